/* Reads the state file and the records of what processes hold. */
#include "world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* files */

static const char *folder(void)
{
    const char *named = getenv("NVML_STANDIN_DIR");
    return named && *named ? named : "/var/lib/nvml-standin";
}

void count(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    if (write(fd, ".", 1) < 0) { /* a folder that cannot be written to only loses the count */ }
    close(fd);
}

void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* the state file */

static const char *value_of(const char *line, const char *key, char *out, size_t size)
{
    const char *at = strstr(line, key);
    out[0] = 0;
    if (!at)
        return out;
    at += strlen(key);
    size_t length = strcspn(at, " \n");
    snprintf(out, size, "%.*s", (int)length, at);
    return out;
}

static uint64_t number_of(const char *line, const char *key)
{
    char text[64];
    return strtoull(value_of(line, key, text, sizeof text), NULL, 10);
}

static void read_gpu(struct world *world, const char *line)
{
    int index = -1;
    if (sscanf(line, "gpu %d", &index) != 1 || index < 0 || index >= FIRST_INSTANCE)
        return;
    struct gpu *gpu = &world->gpus[index];
    gpu->present = 1;
    gpu->minor = (int)number_of(line, " minor=");
    value_of(line, " uuid=", gpu->uuid, sizeof gpu->uuid);
    value_of(line, " pci=", gpu->pci, sizeof gpu->pci);
    gpu->total = number_of(line, " total=");
    gpu->reserved = number_of(line, " reserved=");
    gpu->base = number_of(line, " base=");
    const char *name = strstr(line, " name=");
    copy(gpu->name, sizeof gpu->name, name ? name + 6 : "NVIDIA H200");
    if (index >= world->gpu_count)
        world->gpu_count = index + 1;
}

/* `mig ENTRY parent=GPU instance=N [compute=N] uuid=... total=...`: what else names ENTRY (process, hidden, error) means this instance. */
static void read_instance(struct world *world, const char *line)
{
    int entry = -1;
    if (sscanf(line, "mig %d", &entry) != 1 || entry < FIRST_INSTANCE || entry >= MAX_GPUS)
        return;
    struct gpu *gpu = &world->gpus[entry];
    int parent = (int)number_of(line, " parent=");
    if (parent < 0 || parent >= FIRST_INSTANCE || !world->gpus[parent].present)
        return;
    gpu->present = 1;
    gpu->parent = parent;
    gpu->instance = (int)number_of(line, " instance=");
    gpu->compute = (int)number_of(line, " compute=");
    gpu->minor = world->gpus[parent].minor;
    copy(gpu->pci, sizeof gpu->pci, world->gpus[parent].pci);
    value_of(line, " uuid=", gpu->uuid, sizeof gpu->uuid);
    gpu->total = number_of(line, " total=");
    copy(gpu->name, sizeof gpu->name, world->gpus[parent].name);
}

static void add_process(struct world *world, int gpu, long pid, uint64_t bytes, int listed)
{
    if (gpu < 0 || gpu >= MAX_GPUS || world->process_count == 4 * MAX_LINES)
        return;
    world->processes[world->process_count++] = (struct process){gpu, (uint32_t)pid, bytes, listed && pid > 0};
}

static void read_process(struct world *world, const char *line)
{
    int gpu;
    long pid;
    char bytes[32];
    if (sscanf(line, "process %d %ld %31s", &gpu, &pid, bytes) == 3)
        add_process(world, gpu, pid, strcmp(bytes, "unknown") ? strtoull(bytes, NULL, 10) : UNKNOWN_BYTES, 1);
}

static void read_fault(struct fault *faults, int *have, const char *line)
{
    struct fault fault = {.gpu = -1};
    if (*have < MAX_LINES && sscanf(line, "%*s %63s %d %d", fault.function, &fault.value, &fault.gpu) >= 2)
        faults[(*have)++] = fault;
}

static void read_health(struct world *world, const char *line)
{
    static const char *const keys[HEALTH_COUNT] = {HEALTH_KEYS};
    char key[32];
    int gpu;
    long long value;
    if (sscanf(line, "health %d %31s %lld", &gpu, key, &value) != 3 || gpu < 0 || gpu >= MAX_GPUS)
        return;
    for (int i = 0; i < HEALTH_COUNT; i++)
        if (!strcmp(keys[i], key))
            world->gpus[gpu].health[i] = value;
}

static void read_line(struct world *world, const char *line)
{
    int gpu;
    unsigned long long bytes;
    if (!strncmp(line, "driver ", 7))
        copy(world->driver, sizeof world->driver, line + 7);
    else if (!strncmp(line, "gpu ", 4))
        read_gpu(world, line);
    else if (!strncmp(line, "mig ", 4))
        read_instance(world, line);
    else if (sscanf(line, "hidden %d %llu", &gpu, &bytes) == 2 && gpu >= 0 && gpu < MAX_GPUS)
        world->gpus[gpu].hidden += bytes;
    else if (!strncmp(line, "health ", 7))
        read_health(world, line);
    else if (!strncmp(line, "process ", 8))
        read_process(world, line);
    else if (!strncmp(line, "error ", 6))
        read_fault(world->errors, &world->error_count, line);
    else if (!strncmp(line, "delay ", 6))
        read_fault(world->delays, &world->delay_count, line);
    else if (!strncmp(line, "linger ", 7))
        world->linger_ms = strtol(line + 7, NULL, 10);
    else if (!strncmp(line, "keep ", 5))
        world->keep_ms = strtol(line + 5, NULL, 10);
    else if (!strncmp(line, "unloaded", 8))
        world->loaded = 0;
}

static void read_state(struct world *world)
{
    char path[512], line[1024];
    snprintf(path, sizeof path, "%s/state", folder());
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    world->loaded = 1;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        read_line(world, line);
    }
    fclose(file);
}

/* what live processes hold */

static int is_live(long pid, unsigned long long ticks)
{
    char path[64], text[1024], state;
    long threads;
    unsigned long long started;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) /* hidden from this reader (hidepid) is not dead */
        return kill((pid_t)pid, 0) == 0 || errno == EPERM;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                        &state, &threads, &started) != 3)
        return 0;
    return started == ticks && !((state == 'Z' || state == 'X') && threads <= 1);
}

/* True while the memory of a dead process is still being given back; forgets the process after that. */
static int lingers(const struct world *world, int alloc, const char *name)
{
    char mark[300];
    struct stat seen;
    struct timespec now;
    snprintf(mark, sizeof mark, "dead.%s", name);
    if (world->linger_ms > 0) {
        int fd = openat(alloc, mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            close(fd);
        clock_gettime(CLOCK_REALTIME, &now);
        if (fstatat(alloc, mark, &seen, 0) == 0 &&
            (now.tv_sec - seen.st_mtim.tv_sec) * 1000 + (now.tv_nsec - seen.st_mtim.tv_nsec) / 1000000 <
                world->linger_ms)
            return 1;
    }
    unlinkat(alloc, name, 0);
    unlinkat(alloc, mark, 0);
    return 0;
}

static void read_alloc(struct world *world, int alloc, const char *name)
{
    long pid;
    unsigned long long ticks, bytes;
    int end = 0, gpu;
    if (sscanf(name, "%ld.%llu%n", &pid, &ticks, &end) != 2 || name[end])
        return;
    int live = is_live(pid, ticks);
    if (!live && !lingers(world, alloc, name))
        return;
    int fd = openat(alloc, name, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file)
        return;
    while (fscanf(file, "%d %llu", &gpu, &bytes) == 2)
        if (bytes)
            add_process(world, gpu, pid, bytes, live);
    fclose(file);
}

static void read_allocs(struct world *world)
{
    char path[512];
    snprintf(path, sizeof path, "%s/alloc", folder());
    DIR *directory = opendir(path);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));)
        read_alloc(world, dirfd(directory), entry->d_name);
    closedir(directory);
}

/* A driver has its figures in memory: where our own cost is measured, reading files for each call would be most of it. */
static int is_kept(const struct world *kept, const struct timespec *since)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - since->tv_sec) * 1000 + (now.tv_nsec - since->tv_nsec) / 1000000 < kept->keep_ms;
}

static void read_files(struct world *world)
{
    static const long long healthy[HEALTH_COUNT] = HEALTH_DEFAULTS;
    copy(world->driver, sizeof world->driver, "595.71.05");
    for (int i = 0; i < MAX_GPUS; i++) {
        memcpy(world->gpus[i].health, healthy, sizeof healthy);
        world->gpus[i].parent = -1;
    }
    read_state(world);
    read_allocs(world);
}

void read_world(struct world *world)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct world kept;
    static struct timespec since;
    pthread_mutex_lock(&lock);
    if (is_kept(&kept, &since)) {
        memcpy(world, &kept, sizeof kept);
    } else {
        read_files(world);
        memcpy(&kept, world, sizeof kept);
        clock_gettime(CLOCK_MONOTONIC, &since);
    }
    pthread_mutex_unlock(&lock);
}

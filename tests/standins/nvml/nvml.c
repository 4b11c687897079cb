/* A stand-in for libnvidia-ml.so.1: says what the files in $NVML_STANDIN_DIR say, read again on every call.
 *
 *   state            the GPUs, their faults, and memory that nothing explains
 *   alloc/PID.TICKS  what a live process holds: lines "INDEX BYTES"
 *   alloc/dead.PID.TICKS  made when that process is first seen dead, while the driver still tears it down ("linger")
 *   inits, shutdowns one byte for each call
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
#define MAX_GPUS 64
#define MAX_LINES 256
#define UNKNOWN_BYTES (~0ULL)
#define NO_INSTANCE 0xFFFFFFFFu

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 25
};

struct gpu {
    int present, minor;
    char uuid[96], pci[32], name[96];
    uint64_t total, reserved, base, hidden;
};
struct process { int gpu; uint32_t pid; uint64_t bytes; int listed; };
struct fault { char function[64]; int value, gpu; };
struct world {
    int loaded, gpu_count, process_count, error_count, delay_count;
    char driver[80];
    long linger_ms;
    struct gpu gpus[MAX_GPUS];
    struct process processes[4 * MAX_LINES];
    struct fault errors[MAX_LINES], delays[MAX_LINES];
};
struct handle { int index; };

static struct handle handles[MAX_GPUS];
static int control_fd = -1, gpu_fds[MAX_GPUS], references;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* files */

static const char *folder(void)
{
    const char *named = getenv("NVML_STANDIN_DIR");
    return named && *named ? named : "/var/lib/nvml-standin";
}

static void count(const char *name)
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

static void copy(char *to, size_t size, const char *from)
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
    if (sscanf(line, "gpu %d", &index) != 1 || index < 0 || index >= MAX_GPUS)
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

static void read_line(struct world *world, const char *line)
{
    int gpu;
    unsigned long long bytes;
    if (!strncmp(line, "driver ", 7))
        copy(world->driver, sizeof world->driver, line + 7);
    else if (!strncmp(line, "gpu ", 4))
        read_gpu(world, line);
    else if (sscanf(line, "hidden %d %llu", &gpu, &bytes) == 2 && gpu >= 0 && gpu < MAX_GPUS)
        world->gpus[gpu].hidden += bytes;
    else if (!strncmp(line, "process ", 8))
        read_process(world, line);
    else if (!strncmp(line, "error ", 6))
        read_fault(world->errors, &world->error_count, line);
    else if (!strncmp(line, "delay ", 6))
        read_fault(world->delays, &world->delay_count, line);
    else if (!strncmp(line, "linger ", 7))
        world->linger_ms = strtol(line + 7, NULL, 10);
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

/* calls */

static int matches(const struct fault *fault, const char *function, int gpu)
{
    return (!strcmp(fault->function, "*") || !strcmp(fault->function, function)) &&
           (fault->gpu < 0 || fault->gpu == gpu);
}

/* The world as the files have it, and what this call is to do: wait, fail, or go on. The caller frees it. */
static int enter(const char *function, int gpu, struct world **out)
{
    struct world *world = *out = calloc(1, sizeof *world);
    copy(world->driver, sizeof world->driver, "595.71.05");
    read_state(world);
    read_allocs(world);
    for (int i = 0; i < world->delay_count; i++)
        if (matches(&world->delays[i], function, gpu)) {
            long ms = world->delays[i].value;
            struct timespec time = {ms / 1000, ms % 1000 * 1000000};
            while (nanosleep(&time, &time) && errno == EINTR) { }
        }
    for (int i = 0; i < world->error_count; i++)
        if (matches(&world->errors[i], function, gpu))
            return world->errors[i].value;
    return OK;
}

static int index_of(const struct handle *handle)
{
    return handle >= handles && handle < handles + MAX_GPUS ? (int)(handle - handles) : -1;
}

static int enter_gpu(const char *function, const struct handle *handle, struct world **world)
{
    int index = index_of(handle);
    int result = enter(function, index, world);
    if (result)
        return result;
    if (!references)
        return UNINITIALIZED;
    return index < 0 || !(*world)->gpus[index].present ? INVALID_ARGUMENT : OK;
}

/* A function on the whole machine or on one GPU: the body runs with `world` (and `gpu`), and may set `result`. */
#define SYSTEM(name, parameters, ...)                                                                        \
    API name parameters                                                                                      \
    {                                                                                                        \
        struct world *world;                                                                                 \
        int result = enter(#name, -1, &world);                                                               \
        if (!result && !references)                                                                          \
            result = UNINITIALIZED;                                                                          \
        if (!result) __VA_ARGS__ \
        free(world);                                                                                         \
        return result;                                                                                       \
    }
#define DEVICE(name, parameters, ...)                                                                        \
    API name parameters                                                                                      \
    {                                                                                                        \
        struct world *world;                                                                                 \
        int result = enter_gpu(#name, handle, &world);                                                       \
        struct gpu *gpu = &world->gpus[index_of(handle) < 0 ? 0 : index_of(handle)];                         \
        (void)gpu;                                                                                           \
        if (!result) __VA_ARGS__ \
        free(world);                                                                                         \
        return result;                                                                                       \
    }
#define CONSTANT(name, type, value) DEVICE(name, (struct handle *handle, type *out), { *out = (value); })

/* start and end */

static int initialise(const char *function)
{
    struct world *world;
    count("inits");
    int result = enter(function, -1, &world);
    if (!result && !world->loaded)
        result = DRIVER_NOT_LOADED;
    free(world);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    if (references++ == 0) {
        control_fd = open("/dev/nvidiactl", O_RDWR | O_NOCTTY | O_CLOEXEC);
        memset(gpu_fds, -1, sizeof gpu_fds);
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

API nvmlInit_v2(void) { return initialise("nvmlInit_v2"); }
API nvmlInit(void) { return initialise("nvmlInit"); }
API nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise("nvmlInitWithFlags");
}

static void close_nodes(void)
{
    if (control_fd >= 0)
        close(control_fd);
    control_fd = -1;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (gpu_fds[i] >= 0)
            close(gpu_fds[i]);
        gpu_fds[i] = -1;
    }
}

API nvmlShutdown(void)
{
    struct world *world;
    int result = enter("nvmlShutdown", -1, &world);
    free(world);
    count("shutdowns");
    pthread_mutex_lock(&lock);
    if (!result && !references)
        result = UNINITIALIZED;
    else if (!result && --references == 0)
        close_nodes();
    pthread_mutex_unlock(&lock);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int result)
{
    switch (result) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "The operating system has blocked the request.";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}

SYSTEM(nvmlSystemGetDriverVersion, (char *out, unsigned size), { copy(out, size, world->driver); })
SYSTEM(nvmlSystemGetNVMLVersion, (char *out, unsigned size), { snprintf(out, size, "13.%s", world->driver); })
SYSTEM(nvmlSystemGetCudaDriverVersion, (int *out), { *out = 13020; (void)world; })
SYSTEM(nvmlSystemGetCudaDriverVersion_v2, (int *out), { *out = 13020; (void)world; })
SYSTEM(nvmlDeviceGetCount_v2, (unsigned *out), { *out = (unsigned)world->gpu_count; })

/* handles */

static int hand_out(const struct world *world, int index, struct handle **out)
{
    char path[32];
    if (index < 0 || index >= MAX_GPUS || !world->gpus[index].present)
        return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/dev/nvidia%d", world->gpus[index].minor);
    pthread_mutex_lock(&lock);
    if (gpu_fds[index] < 0)
        gpu_fds[index] = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    handles[index].index = index;
    pthread_mutex_unlock(&lock);
    *out = &handles[index];
    return OK;
}

static int find(const struct world *world, const char *text, int by_pci)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        const struct gpu *gpu = &world->gpus[i];
        size_t extra = strlen(gpu->pci) > strlen(text) ? strlen(gpu->pci) - strlen(text) : 0; /* short domain */
        if (gpu->present && (by_pci ? !strcasecmp(gpu->pci + extra, text) : !strcmp(gpu->uuid, text)))
            return i;
    }
    return -1;
}

static int by_name(const char *function, const char *text, int by_pci, struct handle **out)
{
    struct world *world;
    int result = enter(function, -1, &world), index = result ? -1 : find(world, text, by_pci);
    free(world);
    if (result || !references)
        return result ? result : UNINITIALIZED;
    if (index < 0)
        return NOT_FOUND;
    result = enter(function, index, &world); /* a fault of this GPU alone */
    if (!result)
        result = hand_out(world, index, out);
    free(world);
    return result;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out)
{
    struct world *world;
    int result = enter("nvmlDeviceGetHandleByIndex_v2", (int)index, &world);
    if (!result)
        result = references ? hand_out(world, (int)index, out) : UNINITIALIZED;
    free(world);
    return result;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **out)
{
    return by_name("nvmlDeviceGetHandleByUUID", uuid, 0, out);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct handle **out)
{
    return by_name("nvmlDeviceGetHandleByPciBusId_v2", pci, 1, out);
}

/* who a GPU is */

struct pci_info { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };

static void fill_pci(const struct gpu *gpu, struct pci_info *out)
{
    memset(out, 0, sizeof *out);
    sscanf(gpu->pci, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFF, out->bus & 0xFF,
             out->device & 0xFF);
    copy(out->text, sizeof out->text, gpu->pci);
    out->id = 0x233510DE;
    out->subsystem = 0x18BE10DE;
}

DEVICE(nvmlDeviceGetUUID, (struct handle *handle, char *out, unsigned size), { copy(out, size, gpu->uuid); })
DEVICE(nvmlDeviceGetName, (struct handle *handle, char *out, unsigned size), { copy(out, size, gpu->name); })
DEVICE(nvmlDeviceGetMinorNumber, (struct handle *handle, unsigned *out), { *out = (unsigned)gpu->minor; })
DEVICE(nvmlDeviceGetIndex, (struct handle *handle, unsigned *out), { *out = (unsigned)index_of(handle); })
DEVICE(nvmlDeviceGetPciInfo_v3, (struct handle *handle, struct pci_info *out), { fill_pci(gpu, out); })

/* memory and processes */

struct memory_v1 { uint64_t total, free, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
struct process_info { uint32_t pid; uint64_t used; uint32_t gpu_instance, compute_instance; };

static uint64_t used_of(const struct world *world, int index)
{
    uint64_t used = world->gpus[index].base + world->gpus[index].hidden;
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i].gpu == index && world->processes[i].bytes != UNKNOWN_BYTES)
            used += world->processes[i].bytes;
    return used;
}

static uint64_t free_of(const struct gpu *gpu, uint64_t used)
{
    uint64_t taken = used + gpu->reserved;
    return gpu->total > taken ? gpu->total - taken : 0;
}

DEVICE(nvmlDeviceGetMemoryInfo, (struct handle *handle, struct memory_v1 *out), {
    uint64_t used = used_of(world, index_of(handle));
    *out = (struct memory_v1){gpu->total, free_of(gpu, used), used + gpu->reserved};
})

DEVICE(nvmlDeviceGetMemoryInfo_v2, (struct handle *handle, struct memory_v2 *out), {
    uint64_t used = used_of(world, index_of(handle));
    if (out->version != (sizeof *out | 2u << 24))
        result = VERSION_MISMATCH;
    else
        *out = (struct memory_v2){out->version, gpu->total, gpu->reserved, free_of(gpu, used), used};
})

static int list_processes(const struct world *world, int index, unsigned *size, struct process_info *out)
{
    unsigned have = 0;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];
        if (process->gpu != index || !process->listed)
            continue;
        if (have < *size && out)
            out[have] = (struct process_info){process->pid, process->bytes, NO_INSTANCE, NO_INSTANCE};
        have++;
    }
    int fits = have <= *size;
    *size = have;
    return fits ? OK : INSUFFICIENT_SIZE;
}

DEVICE(nvmlDeviceGetComputeRunningProcesses_v3,
       (struct handle *handle, unsigned *size, struct process_info *out),
       { result = list_processes(world, index_of(handle), size, out); })
DEVICE(nvmlDeviceGetGraphicsRunningProcesses_v3,
       (struct handle *handle, unsigned *size, struct process_info *out), { *size = 0; (void)out; })
DEVICE(nvmlDeviceGetMPSComputeRunningProcesses_v3,
       (struct handle *handle, unsigned *size, struct process_info *out), { *size = 0; (void)out; })

/* health: all is well unless an `error` line says otherwise */

struct field {
    unsigned id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int result;
    uint64_t value;
};

static void fill_field(struct field *field)
{
    field->timestamp = field->latency = 0;
    field->type = 1; /* unsigned int */
    field->result = OK;
    field->value = 0;
}

DEVICE(nvmlDeviceGetFieldValues, (struct handle *handle, int size, struct field *fields), {
    for (int i = 0; i < size; i++)
        fill_field(&fields[i]);
})
DEVICE(nvmlDeviceGetTotalEccErrors, (struct handle *handle, int type, int counter, unsigned long long *out),
       { *out = 0; (void)type; (void)counter; })
DEVICE(nvmlDeviceGetRemappedRows,
       (struct handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed),
       { *corrected = *uncorrected = *pending = *failed = 0; })
DEVICE(nvmlDeviceGetEccMode, (struct handle *handle, unsigned *now, unsigned *next), { *now = *next = 1; })
DEVICE(nvmlDeviceGetMigMode, (struct handle *handle, unsigned *now, unsigned *next), { *now = *next = 0; })
DEVICE(nvmlDeviceGetTemperature, (struct handle *handle, int sensor, unsigned *out), { *out = 35; (void)sensor; })
DEVICE(nvmlDeviceGetUtilizationRates, (struct handle *handle, unsigned *out), { out[0] = out[1] = 0; })
CONSTANT(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
CONSTANT(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
CONSTANT(nvmlDeviceGetPersistenceMode, unsigned, 1)
CONSTANT(nvmlDeviceGetComputeMode, unsigned, 0)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetPowerUsage, unsigned, 75000)
CONSTANT(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0x8)

struct temperature { unsigned version, sensor; int degrees; };
DEVICE(nvmlDeviceGetTemperatureV, (struct handle *handle, struct temperature *out), { out->degrees = 35; })

DEVICE(nvmlDeviceGetProcessUtilization,
       (struct handle *handle, void *out, unsigned *size, unsigned long long since),
       { *size = 0; result = NOT_FOUND; (void)out; (void)since; })

/* events: none ever comes */

static int event_set;

API nvmlEventSetCreate(void **out)
{
    *out = &event_set;
    return references ? OK : UNINITIALIZED;
}

API nvmlEventSetFree(void *set)
{
    (void)set;
    return OK;
}

DEVICE(nvmlDeviceRegisterEvents, (struct handle *handle, unsigned long long types, void *set), {
    (void)types;
    (void)set;
})

API nvmlEventSetWait_v2(void *set, void *data, unsigned ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)set;
    (void)data;
    nanosleep(&time, NULL);
    return TIMEOUT;
}

/* A stand-in for libnvidia-ml.so.1: says what the files in $NVML_STANDIN_DIR say, read again on every call (unless `keep`).
 *
 *   state            the GPUs, their faults, and memory that nothing explains
 *   alloc/PID.TICKS  what a live process holds: lines "INDEX BYTES"
 *   alloc/dead.PID.TICKS  made when that process is first seen dead, while the driver still tears it down ("linger")
 *   inits, shutdowns one byte for each call
 */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
#define NO_INSTANCE 0xFFFFFFFFu

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 25
};

struct handle { int index; };

static struct handle handles[MAX_GPUS];
static int control_fd = -1, gpu_fds[MAX_GPUS], references;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
    read_world(world);
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

/* The entry of one of a GPU's instances, by its place among them; -1: there are fewer. */
static int instance_of(const struct world *world, int parent, int place)
{
    for (int i = FIRST_INSTANCE; i < MAX_GPUS; i++)
        if (world->gpus[i].present && world->gpus[i].parent == parent && place-- == 0)
            return i;
    return -1;
}

static uint64_t used_of(const struct world *world, int index)
{
    uint64_t used = world->gpus[index].base + world->gpus[index].hidden;
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i].gpu == index && world->processes[i].bytes != UNKNOWN_BYTES)
            used += world->processes[i].bytes;
    for (int place = 0, at; (at = instance_of(world, index, place)) >= 0; place++)
        used += used_of(world, at);
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
    unsigned have = 0, instance = world->gpus[index].parent < 0 ? NO_INSTANCE : (unsigned)world->gpus[index].instance;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];
        if (process->gpu != index || !process->listed)
            continue;
        if (have < *size && out)
            out[have] = (struct process_info){process->pid, process->bytes, instance, instance == NO_INSTANCE ? instance : 0};
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

/* health: all is well unless a `health` or an `error` line says otherwise */

struct field {
    unsigned id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int result;
    uint64_t value;
};

#define RECOVERY_ACTION 230 /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */

static void fill_field(const struct gpu *gpu, struct field *field)
{
    field->timestamp = field->latency = 0;
    field->type = 1; /* unsigned int */
    field->result = OK;
    field->value = field->id == RECOVERY_ACTION ? (uint64_t)gpu->health[RECOVERY] : 0;
}

DEVICE(nvmlDeviceGetFieldValues, (struct handle *handle, int size, struct field *fields), {
    for (int i = 0; i < size; i++)
        fill_field(gpu, &fields[i]);
})
DEVICE(nvmlDeviceGetTotalEccErrors, (struct handle *handle, int type, int counter, unsigned long long *out),
       { *out = type == 1 ? (unsigned long long)gpu->health[ECC] : 0; (void)counter; })
DEVICE(nvmlDeviceGetRemappedRows,
       (struct handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed),
       {
           *corrected = *uncorrected = 0;
           *pending = (unsigned)gpu->health[REMAP_PENDING];
           *failed = (unsigned)gpu->health[REMAP_FAILED];
       })
DEVICE(nvmlDeviceGetEccMode, (struct handle *handle, unsigned *now, unsigned *next), { *now = *next = 1; })

/* GPUs that are divided (MIG) */

DEVICE(nvmlDeviceGetMigMode, (struct handle *handle, unsigned *now, unsigned *next), {
    *now = *next = instance_of(world, index_of(handle), 0) >= 0;
})
DEVICE(nvmlDeviceGetMaxMigDeviceCount, (struct handle *handle, unsigned *out), {
    *out = instance_of(world, index_of(handle), 0) >= 0 ? 7 : 0;
})
DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, (struct handle *handle, unsigned place, struct handle **out), {
    int at = instance_of(world, index_of(handle), (int)place);
    result = at < 0 ? NOT_FOUND : hand_out(world, at, out);
})
DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (struct handle *handle, struct handle **out), {
    result = gpu->parent < 0 ? INVALID_ARGUMENT : hand_out(world, gpu->parent, out);
})
CONSTANT(nvmlDeviceIsMigDeviceHandle, unsigned, gpu->parent >= 0)
DEVICE(nvmlDeviceGetGpuInstanceId, (struct handle *handle, unsigned *out), {
    *out = (unsigned)gpu->instance;
    if (gpu->parent < 0)
        result = INVALID_ARGUMENT;
})
CONSTANT(nvmlDeviceGetComputeInstanceId, unsigned, (unsigned)gpu->compute)

DEVICE(nvmlDeviceGetTemperature, (struct handle *handle, int sensor, unsigned *out), { *out = 35; (void)sensor; })
DEVICE(nvmlDeviceGetUtilizationRates, (struct handle *handle, unsigned *out), { out[0] = out[1] = 0; })
CONSTANT(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, (unsigned long long)gpu->health[CLOCKS])
CONSTANT(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, (unsigned long long)gpu->health[CLOCKS])
CONSTANT(nvmlDeviceGetPersistenceMode, unsigned, (unsigned)gpu->health[PERSISTENCE])
CONSTANT(nvmlDeviceGetComputeMode, unsigned, (unsigned)gpu->health[COMPUTE])
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, (unsigned)gpu->health[WIDTH])
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, (unsigned)gpu->health[MAX_WIDTH])
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetPowerUsage, unsigned, 75000)
CONSTANT(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0x8)

CONSTANT(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, (unsigned)gpu->health[RETIRED_PENDING])

struct margin { unsigned version; int degrees; };
DEVICE(nvmlDeviceGetMarginTemperature, (struct handle *handle, struct margin *out), {
    out->degrees = (int)gpu->health[MARGIN];
})

DEVICE(nvmlDeviceGetNvLinkState, (struct handle *handle, unsigned link, unsigned *out), {
    if (link >= (unsigned)gpu->health[LINKS])
        result = NOT_SUPPORTED;
    else
        *out = link >= (unsigned)gpu->health[LINKS_DOWN];
})

struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned mask; };
DEVICE(nvmlDeviceGetGpuFabricInfoV, (struct handle *handle, struct fabric *out), {
    out->status = (int)gpu->health[FABRIC_STATUS];
    out->state = (unsigned char)gpu->health[FABRIC_STATE];
    out->clique = 0;
    if (out->version >> 24 >= 2) /* nvmlGpuFabricInfo_v1 ends before it */
        out->mask = (unsigned)gpu->health[FABRIC_MASK];
})

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

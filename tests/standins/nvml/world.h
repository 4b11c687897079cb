/* The stand-in driver's world, as its files have it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_LINES 256
#define FIRST_INSTANCE 32 /* entries from here on are instances of divided GPUs (MIG), not GPUs */
#define UNKNOWN_BYTES (~0ULL)

/* `health GPU KEY VALUE`, in this order; a GPU starts with DEFAULTS. */
#define HEALTH_KEYS \
    "recovery", "ecc", "remap_pending", "remap_failed", "retired_pending", "fabric_state", "fabric_status", "fabric_mask", "links", \
    "links_down", "margin", "clocks", "width", "max_width", "persistence", "compute"
#define HEALTH_DEFAULTS {0, 0, 0, 0, 0, 0, 0, 0, 18, 0, 40, 0, 16, 16, 1, 0}
enum health {
    RECOVERY, ECC, REMAP_PENDING, REMAP_FAILED, RETIRED_PENDING, FABRIC_STATE, FABRIC_STATUS, FABRIC_MASK, LINKS, LINKS_DOWN, MARGIN,
    CLOCKS, WIDTH, MAX_WIDTH, PERSISTENCE, COMPUTE, HEALTH_COUNT
};

struct gpu {
    int present, minor, parent, instance, compute; /* parent: of an instance the GPU, of a GPU -1 */
    long long health[HEALTH_COUNT];
    char uuid[96], pci[32], name[96];
    uint64_t total, reserved, base, hidden;
};
struct process { int gpu; uint32_t pid; uint64_t bytes; int listed; };
struct fault { char function[64]; int value, gpu; };
struct world {
    int loaded, gpu_count, process_count, error_count, delay_count;
    char driver[80];
    long linger_ms, keep_ms;
    struct gpu gpus[MAX_GPUS];
    struct process processes[4 * MAX_LINES];
    struct fault errors[MAX_LINES], delays[MAX_LINES];
};

/* The folder's files, read anew; with `keep MS` in them, not sooner than so many milliseconds after the last time. */
void read_world(struct world *world);
/* One more byte in a file of that folder. */
void count(const char *name);
void copy(char *to, size_t size, const char *from);

/* The stand-in driver's world, as its files have it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_LINES 256
#define UNKNOWN_BYTES (~0ULL)

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

/* The folder's files, read anew. */
void read_world(struct world *world);
/* One more byte in a file of that folder. */
void count(const char *name);
void copy(char *to, size_t size, const char *from);

/* Counts, mistakes and handles. */
#include "fake_gpu.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static long counts[COUNTS];
static const char *const WORDS[COUNTS] = {"wait", "staged", "mistake"};
static int tracing;
static void (*at_wait)(const char *name);

__attribute__((constructor)) static void begin(void)
{
    tracing = getenv("FAKE_GPU_TRACE") != NULL;
}

/* For Python: all counts since the process began, in the order of `enum count`. */
void fake_gpu_counts(long into[COUNTS])
{
    for (int which = 0; which < COUNTS; which++)
        into[which] = __atomic_load_n(&counts[which], __ATOMIC_RELAXED);
}

/* For Python: what is called at each wait, by the function that waits. */
void fake_gpu_at_wait(void (*called)(const char *name))
{
    at_wait = called;
}

void trace(const char *what, const char *name)
{
    if (tracing)
        fprintf(stderr, "[fake gpu] %s %s\n", what, name);
}

void count(enum count which, const char *name)
{
    __atomic_add_fetch(&counts[which], 1, __ATOMIC_RELAXED);
    trace(WORDS[which], name);
    if (which == WAITS && at_wait)
        at_wait(name);
}

void mistake(const char *format, ...)
{
    va_list values;

    __atomic_add_fetch(&counts[MISTAKES], 1, __ATOMIC_RELAXED);
    fputs("[fake gpu] mistake: ", stderr);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
}

int shown(void)
{
    return tracing;
}

int launchable(const unsigned grid[3], const unsigned block[3], size_t shared)
{
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];

    return grid[0] && grid[1] && grid[2] && threads && grid[0] <= GRID_WIDTH && grid[1] <= GRID_HEIGHT &&
           grid[2] <= GRID_HEIGHT && threads <= BLOCK_THREADS && block[2] <= BLOCK_DEPTH &&
           shared <= BLOCK_SHARED_BYTES_AT_MOST;
}

void unwritten(const char *name)
{
    if (tracing)
        fprintf(stderr, "[fake gpu] stub %s\n", name);
}

void *handle(void)
{
    static uintptr_t last = 0x10000;

    return (void *)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
}

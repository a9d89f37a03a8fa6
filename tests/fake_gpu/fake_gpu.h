/* What the files of the pretended GPU share: its size, its counts, its memory. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <stddef.h>

/* An H100 with 80 GB. */
#define DEVICE_NAME "NVIDIA H100 80GB HBM3"
#define DEVICE_BYTES 85520809984UL
#define CAPABILITY_MAJOR 9
#define CAPABILITY_MINOR 0
#define MULTIPROCESSORS 132
#define WARP 32
#define REGISTERS 65536
#define BLOCK_THREADS 1024
#define BLOCK_DEPTH 64
#define MULTIPROCESSOR_THREADS 2048
#define MULTIPROCESSOR_SHARED_BYTES 233472
#define BLOCK_SHARED_BYTES 49152
#define BLOCK_SHARED_BYTES_AT_MOST 232448
#define CACHE_BYTES 52428800
#define BUS_BITS 5120
#define CLOCK_KHZ 1980000
#define MEMORY_CLOCK_KHZ 2619000
#define GRID_WIDTH 2147483647
#define GRID_HEIGHT 65535
#define CUDA_VERSION_PRETENDED 13000

/* Loaded before all else, the library must define nothing but functions of CUDA. */
#pragma GCC visibility push(hidden)

enum count {
    WAITS,    /* times that the host waits for the device */
    STAGED,   /* asynchronous copies whose host side is not page-locked: a real GPU may make the host wait */
    MISTAKES, /* launches and copies that a real GPU refuses */
    COUNTS
};

/* Adds one to a count; FAKE_GPU_TRACE=1 shows each. */
void count(enum count which, const char *name);

/* Shows a launch or a copy with FAKE_GPU_TRACE=1. */
void trace(const char *what, const char *name);

/* Whether launches, copies and counts are shown. */
int shown(void);

/* Shows the call of a function that has only a stub. */
void unwritten(const char *name);

/* Says on stderr what a real GPU would refuse, and counts it. */
void mistake(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether a real GPU takes a launch of this grid, these blocks and so many bytes of dynamic shared memory. */
int launchable(const unsigned grid[3], const unsigned block[3], size_t shared);

enum kind { PAGEABLE, DEVICE, PAGE_LOCKED };

/* How many GPUs there are for this process, and which of them this thread uses. */
int devices(void);
int device_in_use(void);

/* Memory of this kind, of the device in use, that holds zeros, NULL where there is none; it is taken only as it is
 * written. */
void *take(size_t bytes, enum kind kind);

/* Gives it back; 0 where `start` was never taken. */
int give_back(void *start);

/* Host memory that the program has itself. */
void lock_pages(void *start, size_t bytes);

int unlock_pages(void *start);

/* The kind of the memory around `pointer`; `left` (unless NULL): the bytes from there to its end. */
enum kind kind_of(const void *pointer, size_t *left);

/* The device that this memory was taken on; 0 where it was not taken. */
int device_of(const void *pointer);

/* A handle that nothing else has. */
void *handle(void);

#pragma GCC visibility pop

#endif

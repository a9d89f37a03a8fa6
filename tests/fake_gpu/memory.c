/* Memory of the pretended device is memory of the host, in a table: so that a copy between the wrong kinds is seen. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL

struct piece {
    char *start;
    size_t bytes;
    enum kind kind;
    int device;
    int ours; /* taken here, not the program's own */
};

static struct piece *table; /* by start */
static size_t pieces;
static size_t places;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* How many pieces start at `pointer` or before it. */
static size_t before(const char *pointer)
{
    size_t low = 0;
    size_t high = pieces;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (table[middle].start <= pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct piece piece)
{
    size_t at;

    pthread_mutex_lock(&lock);
    if (pieces == places) {
        places = places ? 2 * places : 1024;
        table = realloc(table, places * sizeof *table);
        if (!table)
            abort();
    }
    at = before(piece.start);
    memmove(table + at + 1, table + at, (pieces - at) * sizeof *table);
    table[at] = piece;
    pieces++;
    pthread_mutex_unlock(&lock);
}

/* Takes the piece that starts at `start` out of the table; its bytes are 0 where there is none. */
static struct piece removed(const char *start)
{
    struct piece piece = {0};
    size_t at;

    pthread_mutex_lock(&lock);
    at = before(start);
    if (at && table[at - 1].start == start) {
        piece = table[at - 1];
        memmove(table + at - 1, table + at, (pieces - at) * sizeof *table);
        pieces--;
    }
    pthread_mutex_unlock(&lock);
    return piece;
}

void *take(size_t bytes, enum kind kind)
{
    void *start;

    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (!bytes)
        bytes = PAGE;
    /* not reserved: a model of many GB takes memory only where the host copies something to */
    start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    insert((struct piece){start, bytes, kind, device_in_use(), 1});
    return start;
}

int give_back(void *start)
{
    struct piece piece = removed(start);

    if (!piece.bytes || !piece.ours)
        return 0;
    munmap(piece.start, piece.bytes);
    return 1;
}

void lock_pages(void *start, size_t bytes)
{
    insert((struct piece){start, bytes, PAGE_LOCKED, device_in_use(), 0});
}

int unlock_pages(void *start)
{
    return removed(start).bytes != 0;
}

/* The piece around `pointer`; of no bytes where there is none. */
static struct piece around(const char *pointer)
{
    struct piece piece = {0};
    size_t at;

    pthread_mutex_lock(&lock);
    at = before(pointer);
    if (at && pointer < table[at - 1].start + table[at - 1].bytes)
        piece = table[at - 1];
    pthread_mutex_unlock(&lock);
    return piece;
}

enum kind kind_of(const void *pointer, size_t *left)
{
    struct piece piece = around(pointer);

    if (left)
        *left = piece.bytes ? piece.start + piece.bytes - (const char *)pointer : 0;
    return piece.kind; /* PAGEABLE where there is none */
}

int device_of(const void *pointer)
{
    return around(pointer).device;
}

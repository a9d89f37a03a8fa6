/* Ranks of a communicator: processes of this machine, or one. */
#ifndef RANKS_H
#define RANKS_H

#include <stddef.h>

#define RANKS_AT_MOST 8

#pragma GCC visibility push(hidden)

struct ranks {
    char name[128]; /* of the shared memory in which they meet, until all have it */
    int size;
    int rank; /* this process's */
    int splits;
    struct meeting *meeting;
};

/* Waits for all ranks that give the same name; NULL where that fails. */
struct ranks *meet(const char *name, int size, int rank);

void part(struct ranks *ranks);

/* What is done with the bytes that a rank has given, `at` so many from their start: called for each rank, in order. */
typedef void (*taken)(void *state, int rank, size_t at, const char *bytes, size_t number);

/* Has every rank give `bytes` bytes and take those of all, which may overwrite what it has given. Waits for the others.
 * It is a mistake, and 0 is returned, where another rank asks for something else than `asked`. */
int exchange(struct ranks *ranks, const char *asked, const void *given, size_t bytes, taken take, void *state);

/* Bytes to or from one other rank. */
struct passage {
    struct ranks *ranks;
    int other;
    int sends;
    char *bytes;
    size_t left;
};

/* Does all of these, which may wait for one another; 0 where that takes too long. */
int pass_on(struct passage *passages, int number);

#pragma GCC visibility pop

#endif

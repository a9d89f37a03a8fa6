/* Where ranks meet: a piece of shared memory for each communicator. They wait for one another as GPUs would, so that ranks
 * which do not ask for the same collectives in the same order are found out; but it is the host that waits. */
#define _GNU_SOURCE
#include "ranks.h"
#include "fake_gpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PART (1UL << 20)
#define RING (1UL << 16)
#define PATIENCE 1200 /* seconds: one rank may compile while the others wait */

struct slot {
    char asked[128];
    char bytes[PART];
};

/* Bytes on their way from one rank to another. */
struct ring {
    size_t written;
    size_t read;
    char bytes[RING];
};

struct meeting {
    int ready;
    pthread_mutex_t lock;
    pthread_cond_t complete;
    int here;
    unsigned round;
    struct slot slots[RANKS_AT_MOST];
    struct ring rings[RANKS_AT_MOST][RANKS_AT_MOST]; /* from, to */
};

static struct timespec limit(void)
{
    struct timespec at;

    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += PATIENCE;
    return at;
}

static int is_over(struct timespec limit)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec > limit.tv_sec;
}

/* Returns once all ranks are here; 0 where one of them does not come. */
static int gather(struct ranks *ranks, const char *asked)
{
    struct meeting *meeting = ranks->meeting;
    struct timespec until = limit();
    unsigned round;
    int error = 0;

    pthread_mutex_lock(&meeting->lock);
    round = meeting->round;
    if (++meeting->here == ranks->size) {
        meeting->here = 0;
        meeting->round++;
        pthread_cond_broadcast(&meeting->complete);
    }
    while (meeting->round == round && !error)
        error = pthread_cond_timedwait(&meeting->complete, &meeting->lock, &until);
    pthread_mutex_unlock(&meeting->lock);
    if (error)
        mistake("rank %d of %d waited %d s for the others in %s", ranks->rank, ranks->size, PATIENCE, asked);
    return !error;
}

static void prepare(struct meeting *meeting)
{
    pthread_mutexattr_t of_lock;
    pthread_condattr_t of_complete;

    pthread_mutexattr_init(&of_lock);
    pthread_mutexattr_setpshared(&of_lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&meeting->lock, &of_lock);
    pthread_condattr_init(&of_complete);
    pthread_condattr_setpshared(&of_complete, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&meeting->complete, &of_complete);
    __atomic_store_n(&meeting->ready, 1, __ATOMIC_RELEASE);
}

/* Of zeros, and only what is used takes memory. */
static struct meeting *mapped(const char *name, int size)
{
    const size_t bytes = sizeof(struct meeting);
    void *start = MAP_FAILED;
    int file;

    if (size == 1) {
        start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    } else if ((file = shm_open(name, O_CREAT | O_RDWR, 0600)) >= 0) {
        if (!ftruncate(file, bytes))
            start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    return start == MAP_FAILED ? NULL : start;
}

struct ranks *meet(const char *name, int size, int rank)
{
    struct ranks *ranks = calloc(1, sizeof *ranks);
    struct timespec until = limit();

    if (!ranks)
        abort();
    snprintf(ranks->name, sizeof ranks->name, "%s", name);
    ranks->size = size;
    ranks->rank = rank;
    ranks->meeting = size <= RANKS_AT_MOST ? mapped(name, size) : NULL;
    if (!ranks->meeting) {
        mistake("a communicator of %d ranks, called %s", size, name);
        free(ranks);
        return NULL;
    }
    if (size == 1)
        return ranks;
    if (rank == 0)
        prepare(ranks->meeting);
    while (!__atomic_load_n(&ranks->meeting->ready, __ATOMIC_ACQUIRE) && !is_over(until))
        usleep(1000);
    if (!gather(ranks, "the start")) {
        part(ranks);
        return NULL;
    }
    if (rank == 0)
        shm_unlink(name); /* all have it */
    return ranks;
}

void part(struct ranks *ranks)
{
    munmap(ranks->meeting, sizeof *ranks->meeting);
    free(ranks);
}

static int agreed(struct ranks *ranks, const char *asked)
{
    for (int rank = 0; rank < ranks->size; rank++) {
        const char *other = ranks->meeting->slots[rank].asked;

        if (strcmp(other, asked)) {
            mistake("rank %d asks for %s where rank %d asks for %s", ranks->rank, asked, rank, other);
            return 0;
        }
    }
    return 1;
}

int exchange(struct ranks *ranks, const char *asked, const void *given, size_t bytes, taken take, void *state)
{
    struct slot *own;
    size_t at = 0;

    if (ranks->size == 1) {
        take(state, 0, 0, given, bytes);
        return 1;
    }
    own = &ranks->meeting->slots[ranks->rank];
    do {
        size_t number = bytes - at < PART ? bytes - at : PART;
        int same;

        snprintf(own->asked, sizeof own->asked, "%s", asked);
        memcpy(own->bytes, (const char *)given + at, number);
        if (!gather(ranks, asked))
            return 0;
        same = agreed(ranks, asked);
        for (int rank = 0; same && rank < ranks->size; rank++)
            take(state, rank, at, ranks->meeting->slots[rank].bytes, number);
        if (!gather(ranks, asked) || !same) /* nobody writes its slot before all have read it */
            return 0;
        at += number;
    } while (at < bytes);
    return 1;
}

static struct ring *ring_of(const struct passage *passage)
{
    struct ranks *ranks = passage->ranks;
    int from = passage->sends ? ranks->rank : passage->other;
    int to = passage->sends ? passage->other : ranks->rank;

    return &ranks->meeting->rings[from][to];
}

/* Moves what there is, or is place for; returns how many bytes. */
static size_t move(struct passage *passage)
{
    struct ring *ring = ring_of(passage);
    size_t written = __atomic_load_n(&ring->written, __ATOMIC_ACQUIRE);
    size_t read = __atomic_load_n(&ring->read, __ATOMIC_ACQUIRE);
    size_t at = (passage->sends ? written : read) % RING;
    size_t number = passage->sends ? RING - (written - read) : written - read;

    number = number < passage->left ? number : passage->left;
    number = number < RING - at ? number : RING - at;
    if (passage->sends) {
        memcpy(ring->bytes + at, passage->bytes, number);
        __atomic_store_n(&ring->written, written + number, __ATOMIC_RELEASE);
    } else {
        memcpy(passage->bytes, ring->bytes + at, number);
        __atomic_store_n(&ring->read, read + number, __ATOMIC_RELEASE);
    }
    passage->bytes += number;
    passage->left -= number;
    return number;
}

/* Whether an earlier one of them is still under way through the same ring. */
static int is_behind(const struct passage *passages, int number)
{
    for (int earlier = 0; earlier < number; earlier++)
        if (passages[earlier].left && ring_of(&passages[earlier]) == ring_of(&passages[number]))
            return 1;
    return 0;
}

int pass_on(struct passage *passages, int number)
{
    struct timespec until = limit();
    int left;

    do {
        size_t moved = 0;

        left = 0;
        for (int i = 0; i < number; i++) {
            if (passages[i].left && !is_behind(passages, i))
                moved += move(&passages[i]);
            left += passages[i].left != 0;
        }
        if (left && !moved)
            usleep(100);
    } while (left && !is_over(until));
    if (left)
        mistake("rank %d waited %d s to send or receive", passages->ranks->rank, PATIENCE);
    return !left;
}

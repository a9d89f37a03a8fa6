/* In place of NCCL: what ranks send to one another. Bytes arrive where they should, and whole numbers, fp32 and fp64 are
 * added up; of half precision, whose sums no host reads, every rank gets the first one's. */
#include "fake_gpu.h"
#include "ranks.h"

#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EVERY -1
#define GROUPED 1024

static size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 1;
    }
}

/* Whether so many bytes there are the device's. */
static int is_there(const char *name, const void *pointer, size_t bytes)
{
    size_t left;

    if (!bytes || (kind_of(pointer, &left) == DEVICE && bytes <= left))
        return 1;
    mistake("%s of %zu bytes that are not on the device", name, bytes);
    return 0;
}

/* What becomes of the bytes that all ranks give: those from `begin` to `end` of each are taken. */
struct result {
    char *into;
    size_t begin;
    size_t end;
    size_t apart; /* from one rank's to the next one's in `into` */
    int only;     /* the one rank whose bytes count, or EVERY */
    int folded;   /* put together, not beside each other */
    ncclDataType_t type;
    ncclRedOp_t operation;
};

#define FOLD(type)                                                                                                     \
    for (size_t i = 0; i < number / sizeof(type); i++) {                                                               \
        type mine = ((type *)into)[i], other = ((const type *)bytes)[i];                                               \
        ((type *)into)[i] = operation == ncclMax   ? (mine > other ? mine : other)                                     \
                            : operation == ncclMin ? (mine < other ? mine : other)                                     \
                                                   : mine + other;                                                     \
    }

/* Maxima and minima; all else is a sum. */
static void fold(void *into, const void *bytes, size_t number, ncclDataType_t type, ncclRedOp_t operation)
{
    switch (type) {
    case ncclInt8:
        FOLD(int8_t) break;
    case ncclUint8:
        FOLD(uint8_t) break;
    case ncclInt32:
        FOLD(int32_t) break;
    case ncclInt64:
        FOLD(int64_t) break;
    case ncclFloat32:
        FOLD(float) break;
    case ncclFloat64:
        FOLD(double) break;
    default:
        break;
    }
}

static void received(void *state, int rank, size_t at, const char *bytes, size_t number)
{
    const struct result *result = state;
    size_t from = at > result->begin ? at : result->begin;
    size_t to = at + number < result->end ? at + number : result->end;
    char *into = result->into + (from - result->begin) + rank * result->apart;

    if (from >= to || (result->only != EVERY && rank != result->only))
        return;
    if (result->folded && rank)
        fold(into, bytes + (from - at), to - from, result->type, result->operation);
    else
        memmove(into, bytes + (from - at), to - from);
}

static ncclResult_t collective(const char *name, ncclComm_t communicator, const void *from, size_t bytes,
                               struct result result)
{
    struct ranks *ranks = (struct ranks *)communicator;
    size_t due = result.end - result.begin + (ranks->size - 1) * result.apart;
    char asked[128];

    trace("launch", name);
    if (!is_there(name, from, bytes) || !is_there(name, result.into, due))
        return ncclInvalidArgument;
    snprintf(asked, sizeof asked, "%s of %zu bytes of type %d, operation %d, root %d", name, bytes, result.type,
             result.operation, result.only);
    return exchange(ranks, asked, from, bytes, received, &result) ? ncclSuccess : ncclInvalidUsage;
}

static int rank_of(ncclComm_t communicator)
{
    return ((struct ranks *)communicator)->rank;
}

static int size_of_world(ncclComm_t communicator)
{
    return ((struct ranks *)communicator)->size;
}

ncclResult_t ncclAllReduce(const void *from, void *into, size_t elements, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t communicator, cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);

    return collective("ncclAllReduce", communicator, from, bytes,
                      (struct result){into, 0, bytes, 0, EVERY, 1, type, operation});
}

ncclResult_t ncclReduce(const void *from, void *into, size_t elements, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t communicator, cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);
    size_t due = rank_of(communicator) == root ? bytes : 0;

    return collective("ncclReduce", communicator, from, bytes,
                      (struct result){into, 0, due, 0, EVERY, 1, type, operation});
}

ncclResult_t ncclReduceScatter(const void *from, void *into, size_t elements, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);
    size_t begin = rank_of(communicator) * bytes;

    return collective("ncclReduceScatter", communicator, from, size_of_world(communicator) * bytes,
                      (struct result){into, begin, begin + bytes, 0, EVERY, 1, type, operation});
}

ncclResult_t ncclAllGather(const void *from, void *into, size_t elements, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);

    return collective("ncclAllGather", communicator, from, bytes,
                      (struct result){into, 0, bytes, bytes, EVERY, 0, type, ncclSum});
}

ncclResult_t ncclAlltoAll(const void *from, void *into, size_t elements, ncclDataType_t type, ncclComm_t communicator,
                          cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);
    size_t begin = rank_of(communicator) * bytes;

    return collective("ncclAlltoAll", communicator, from, size_of_world(communicator) * bytes,
                      (struct result){into, begin, begin + bytes, bytes, EVERY, 0, type, ncclSum});
}

ncclResult_t ncclBroadcast(const void *from, void *into, size_t elements, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream)
{
    size_t bytes = elements * size_of(type);

    return collective("ncclBroadcast", communicator, rank_of(communicator) == root ? from : into, bytes,
                      (struct result){into, 0, bytes, 0, root, 0, type, ncclSum});
}

ncclResult_t ncclBcast(void *buffer, size_t elements, ncclDataType_t type, int root, ncclComm_t communicator,
                       cudaStream_t stream)
{
    return ncclBroadcast(buffer, buffer, elements, type, root, communicator, stream);
}

/* From one rank to another: at the end of the group, since what is sent may wait for what is received */

static __thread struct passage passages[GROUPED];
static __thread int asked_for;
static __thread int depth;

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    int number = asked_for;

    if (--depth || !number)
        return ncclSuccess;
    asked_for = 0;
    trace("launch", "ncclSend and ncclRecv");
    return pass_on(passages, number) ? ncclSuccess : ncclSystemError;
}

static ncclResult_t passing(const char *name, ncclComm_t communicator, int other, int sends, const void *start,
                            size_t elements, ncclDataType_t type)
{
    size_t bytes = elements * size_of(type);

    if (!is_there(name, start, bytes) || asked_for == GROUPED)
        return ncclInvalidArgument;
    ncclGroupStart();
    passages[asked_for++] = (struct passage){(struct ranks *)communicator, other, sends, (char *)start, bytes};
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void *start, size_t elements, ncclDataType_t type, int other, ncclComm_t communicator,
                      cudaStream_t stream)
{
    return passing("ncclSend", communicator, other, 1, start, elements, type);
}

ncclResult_t ncclRecv(void *start, size_t elements, ncclDataType_t type, int other, ncclComm_t communicator,
                      cudaStream_t stream)
{
    return passing("ncclRecv", communicator, other, 0, start, elements, type);
}

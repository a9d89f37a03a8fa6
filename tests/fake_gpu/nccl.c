/* In place of NCCL, between processes of this machine: communicators. */
#define _GNU_SOURCE
#include "fake_gpu.h"
#include "ranks.h"

#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* Communicators */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    unsigned long number;

    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/fake_gpu-%016lx", number);
    return ncclSuccess;
}

static ncclResult_t join(ncclComm_t *communicator, const char *name, int ranks, int rank)
{
    *communicator = (ncclComm_t)meet(name, ranks, rank);
    return *communicator ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    return join(communicator, id.internal, ranks, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return join(communicator, id.internal, ranks, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int ranks, int rank, int number, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    return join(communicator, ids->internal, ranks, rank);
}

/* What each rank says as a communicator is split, and how many so far are of this one's color, and before it. */
struct split {
    int said[2];
    int ranks;
    int rank;
};

static void placed(void *state, int rank, size_t at, const char *bytes, size_t number)
{
    struct split *split = state;
    int other[2];

    memcpy(other, bytes, sizeof other);
    if (other[0] != split->said[0])
        return;
    split->ranks++;
    split->rank += other[1] < split->said[1];
}

ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t *communicator, ncclConfig_t *config)
{
    struct ranks *ranks = (struct ranks *)whole;
    struct split split = {{color, key}, 0, 0};
    char name[128];

    if (!exchange(ranks, "ncclCommSplit", split.said, sizeof split.said, placed, &split))
        return ncclInvalidUsage;
    snprintf(name, sizeof name, "%.100s-%d-%d", ranks->name, ranks->splits++, color);
    *communicator = NULL;
    return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : join(communicator, name, split.ranks, split.rank);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator)
{
    part((struct ranks *)communicator);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator)
{
    return ncclCommDestroy(communicator);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error)
{
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *ranks)
{
    *ranks = ((struct ranks *)communicator)->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank)
{
    *rank = ((struct ranks *)communicator)->rank;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t error)
{
    return error == ncclSuccess ? "no error" : "an error of the pretended NCCL";
}

const char *ncclGetLastError(ncclComm_t communicator)
{
    return "";
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *made, void *scale, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t communicator)
{
    *made = ncclAvg;
    return ncclSuccess;
}

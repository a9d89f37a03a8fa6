/* In place of NCCL, of a world of one rank, since there is one device: a collective is a copy. */
#include "fake_gpu.h"

#include <nccl.h>
#include <string.h>


static ncclResult_t join(ncclComm_t *communicator, int ranks)
{
    if (ranks != 1) {
        mistake("a communicator of %d ranks: one GPU is pretended", ranks);
        return ncclInvalidUsage;
    }
    *communicator = handle();
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 1, sizeof *id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    return join(communicator, ranks);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return join(communicator, ranks);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int ranks, int rank, int number, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    return join(communicator, ranks);
}

ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t *communicator, ncclConfig_t *config)
{
    return join(communicator, 1);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error)
{
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *ranks)
{
    *ranks = 1;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank)
{
    *rank = 0;
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

static ncclResult_t collective(const char *name, const void *from, void *into, size_t elements, ncclDataType_t type)
{
    size_t bytes = elements * size_of(type);
    size_t sent;
    size_t received;

    count(LAUNCHES, name);
    if (kind_of(from, &sent) != DEVICE || kind_of(into, &received) != DEVICE || sent < bytes || received < bytes) {
        if (bytes) {
            mistake("%s of %zu bytes that are not on the device", name, bytes);
            return ncclInvalidArgument;
        }
        return ncclSuccess;
    }
    memmove(into, from, bytes);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *into, size_t elements, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t communicator, cudaStream_t stream)
{
    return collective("ncclAllReduce", from, into, elements, type);
}

ncclResult_t ncclReduce(const void *from, void *into, size_t elements, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t communicator, cudaStream_t stream)
{
    return collective("ncclReduce", from, into, elements, type);
}

ncclResult_t ncclReduceScatter(const void *from, void *into, size_t elements, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream)
{
    return collective("ncclReduceScatter", from, into, elements, type);
}

ncclResult_t ncclAllGather(const void *from, void *into, size_t elements, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream)
{
    return collective("ncclAllGather", from, into, elements, type);
}

ncclResult_t ncclBroadcast(const void *from, void *into, size_t elements, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream)
{
    return collective("ncclBroadcast", from, into, elements, type);
}

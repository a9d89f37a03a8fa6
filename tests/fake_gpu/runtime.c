/* In place of libcudart: streams, events, errors and the driver's entry points. Work is done when it is asked for, so
 * that every stream is empty and every event has happened. */
#define _GNU_SOURCE
#include "runtime.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static __thread cudaError_t last_error;

cudaError_t failed(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaError of the pretended GPU";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    default:
        return "invalid argument";
    }
}

/* Streams */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    *stream = handle();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreate(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    return cudaStreamCreate(stream);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    count(WAITS, "cudaStreamSynchronize");
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *number)
{
    *status = cudaStreamCaptureStatusNone;
    if (id)
        *id = 0;
    if (number)
        *number = 0;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *given)
{
    function(given);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *given, unsigned flags)
{
    function(stream, cudaSuccess, given);
    return cudaSuccess;
}

/* Events keep the time of the host at which they were recorded. */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = calloc(1, sizeof(double));
    return *event ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)event = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    count(WAITS, "cudaEventSynchronize");
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t second)
{
    *milliseconds = (float)(*(double *)second - *(double *)first);
    return cudaSuccess;
}

/* The driver is this very library; what it lacks is not supported, rather than a success that did nothing. */

static CUresult not_supported(void)
{
    mistake("a call to a function of the driver that is not pretended");
    return CUDA_ERROR_NOT_SUPPORTED;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function)
        *function = not_supported;
    if (found)
        *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* In place of libcudart: memory, copies and fills, done at once and checked. */
#include "runtime.h"

#include <string.h>

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    *free = DEVICE_BYTES / 64 * 60;
    *total = DEVICE_BYTES;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **start, size_t bytes)
{
    *start = take(bytes, DEVICE);
    return *start ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocAsync(void **start, size_t bytes, cudaStream_t stream)
{
    return cudaMalloc(start, bytes);
}

cudaError_t cudaFree(void *start)
{
    return !start || give_back(start) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaFreeAsync(void *start, cudaStream_t stream)
{
    return cudaFree(start);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    *pool = handle();
    return cudaSuccess;
}

/* Variables of a module on the device: memory apart for each question, since nothing reads what is copied there. */
cudaError_t cudaGetSymbolAddress(void **start, const void *symbol)
{
    return cudaMalloc(start, 4096);
}

cudaError_t cudaHostAlloc(void **start, size_t bytes, unsigned flags)
{
    *start = take(bytes, PAGE_LOCKED);
    return *start ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *start)
{
    return cudaFree(start);
}

cudaError_t cudaHostRegister(void *start, size_t bytes, unsigned flags)
{
    lock_pages(start, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *start)
{
    return unlock_pages(start) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *said, const void *pointer)
{
    enum kind kind = kind_of(pointer, NULL);

    memset(said, 0, sizeof *said);
    said->type = cudaMemoryTypeUnregistered;
    if (kind == PAGEABLE)
        return cudaSuccess;
    said->type = kind == DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    said->device = device_of(pointer);
    said->devicePointer = (void *)pointer;
    said->hostPointer = kind == DEVICE ? NULL : (void *)pointer;
    return cudaSuccess;
}

/* Whether all of these bytes are on the side that they are said to be on. */
static int lies(const void *pointer, size_t bytes, int on_device)
{
    size_t left;
    enum kind kind = kind_of(pointer, &left);

    return on_device ? kind == DEVICE && bytes <= left : kind != DEVICE;
}

static int copied(void *into, const void *from, size_t bytes, enum cudaMemcpyKind way)
{
    int to_device = way == cudaMemcpyHostToDevice || way == cudaMemcpyDeviceToDevice;
    int from_device = way == cudaMemcpyDeviceToHost || way == cudaMemcpyDeviceToDevice;

    if (bytes && way != cudaMemcpyDefault && !(lies(into, bytes, to_device) && lies(from, bytes, from_device))) {
        mistake("copy of %zu bytes from %p to %p of kind %d: memory elsewhere or too short", bytes, from, into, way);
        return 0;
    }
    memmove(into, from, bytes);
    return 1;
}

cudaError_t cudaMemcpy(void *into, const void *from, size_t bytes, enum cudaMemcpyKind way)
{
    count(WAITS, "cudaMemcpy");
    return copied(into, from, bytes, way) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void *into, const void *from, size_t bytes, enum cudaMemcpyKind way, cudaStream_t stream)
{
    static const char *const WAYS[] = {"on the host", "to the device", "to the host", "on the device", "anywhere"};
    const void *host = way == cudaMemcpyHostToDevice ? from : into;

    trace("copy", WAYS[way]);
    if ((way == cudaMemcpyHostToDevice || way == cudaMemcpyDeviceToHost) && kind_of(host, NULL) == PAGEABLE)
        count(STAGED, WAYS[way]);
    return copied(into, from, bytes, way) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyPeerAsync(void *into, int device, const void *from, int other, size_t bytes, cudaStream_t stream)
{
    return cudaMemcpyAsync(into, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

static cudaError_t filled(void *start, int value, size_t bytes)
{
    if (bytes && !lies(start, bytes, 1)) {
        mistake("fill of %zu bytes at %p: memory elsewhere or too short", bytes, start);
        return failed(cudaErrorInvalidValue);
    }
    memset(start, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *start, int value, size_t bytes)
{
    trace("launch", "cudaMemset");
    return filled(start, value, bytes);
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t stream)
{
    trace("launch", "cudaMemsetAsync");
    return filled(start, value, bytes);
}

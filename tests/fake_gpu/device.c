/* In place of libcudart: what the device is. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number = 1;
static __thread int in_use;

/* FAKE_GPU_DEVICES of them, or as many as CUDA_VISIBLE_DEVICES names. */
__attribute__((constructor)) static void begin(void)
{
    const char *given = getenv("FAKE_GPU_DEVICES");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    if (given)
        number = atoi(given);
    if (visible)
        for (number = *visible != 0; *visible; visible++)
            number += *visible == ',';
}

int devices(void)
{
    return number;
}

int device_in_use(void)
{
    return in_use;
}

cudaError_t cudaGetDeviceCount(int *found)
{
    *found = number;
    return number ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = in_use;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= number)
        return failed(cudaErrorInvalidDevice);
    in_use = device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDA_VERSION_PRETENDED;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDA_VERSION_PRETENDED;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *said, int device)
{
    memset(said, 0, sizeof *said);
    strcpy(said->name, DEVICE_NAME);
    said->major = CAPABILITY_MAJOR;
    said->minor = CAPABILITY_MINOR;
    said->totalGlobalMem = DEVICE_BYTES;
    said->sharedMemPerBlock = BLOCK_SHARED_BYTES;
    said->sharedMemPerBlockOptin = BLOCK_SHARED_BYTES_AT_MOST;
    said->sharedMemPerMultiprocessor = MULTIPROCESSOR_SHARED_BYTES;
    said->regsPerBlock = REGISTERS;
    said->regsPerMultiprocessor = REGISTERS;
    said->warpSize = WARP;
    said->maxThreadsPerBlock = BLOCK_THREADS;
    said->maxThreadsDim[0] = BLOCK_THREADS;
    said->maxThreadsDim[1] = BLOCK_THREADS;
    said->maxThreadsDim[2] = BLOCK_DEPTH;
    said->maxGridSize[0] = GRID_WIDTH;
    said->maxGridSize[1] = GRID_HEIGHT;
    said->maxGridSize[2] = GRID_HEIGHT;
    said->multiProcessorCount = MULTIPROCESSORS;
    said->maxThreadsPerMultiProcessor = MULTIPROCESSOR_THREADS;
    said->l2CacheSize = CACHE_BYTES;
    said->memoryBusWidth = BUS_BITS;
    said->memPitch = GRID_WIDTH;
    said->textureAlignment = 512;
    said->totalConstMem = 65536;
    said->canMapHostMemory = 1;
    said->concurrentKernels = 1;
    said->cooperativeLaunch = 1;
    said->unifiedAddressing = 1;
    said->managedMemory = 1;
    said->asyncEngineCount = 3;
    said->pciBusID = 1 + device;
    said->uuid.bytes[0] = 1 + device;
    return cudaSuccess;
}

/* The driver's attributes have the same numbers. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        *value = BLOCK_THREADS;
        break;
    case cudaDevAttrMaxBlockDimZ:
        *value = BLOCK_DEPTH;
        break;
    case cudaDevAttrMaxGridDimX:
        *value = GRID_WIDTH;
        break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        *value = GRID_HEIGHT;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = BLOCK_SHARED_BYTES;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = BLOCK_SHARED_BYTES_AT_MOST;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = MULTIPROCESSOR_SHARED_BYTES;
        break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = REGISTERS;
        break;
    case cudaDevAttrWarpSize:
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = WARP;
        break;
    case cudaDevAttrClockRate:
        *value = CLOCK_KHZ;
        break;
    case cudaDevAttrMemoryClockRate:
        *value = MEMORY_CLOCK_KHZ;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = BUS_BITS;
        break;
    case cudaDevAttrL2CacheSize:
        *value = CACHE_BYTES;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = MULTIPROCESSORS;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = MULTIPROCESSOR_THREADS;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = CAPABILITY_MAJOR;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = CAPABILITY_MINOR;
        break;
    case cudaDevAttrIntegrated:
    case cudaDevAttrKernelExecTimeout:
        *value = 0;
        break;
    default: /* most of the others ask whether the device can do something */
        *value = 1;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *name, int length, int device)
{
    snprintf(name, length, "0000:%02x:00.0", 1 + device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other)
{
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    count(WAITS, "cudaDeviceSynchronize");
    return cudaSuccess;
}

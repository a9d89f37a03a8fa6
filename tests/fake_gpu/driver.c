/* libcuda.so.1: what Triton, the launcher of compiled graphs and torch ask the driver for. Kernels are loaded by name alone. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Each device has one, known by its number. */
#define CONTEXT_OF(device) ((CUcontext)(size_t)(0x100 + (device)))
#define DEVICE_OF(context) ((int)((size_t)(context) - 0x100))

CUresult cuInit(unsigned flags)
{
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION_PRETENDED;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = "CUDA_ERROR";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = "an error of the pretended driver";
    return CUDA_SUCCESS;
}

/* The device and its context */

CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = number;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *number)
{
    *number = devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    snprintf(name, length, "%s", DEVICE_NAME);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice device)
{
    memset(id, 0, sizeof *id);
    id->bytes[0] = 1 + device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    *bytes = DEVICE_BYTES;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = CONTEXT_OF(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = CONTEXT_OF(device_in_use());
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    return context ? (CUresult)cudaSetDevice(DEVICE_OF(context)) : CUDA_SUCCESS;
}

static __thread CUcontext pushed[8];
static __thread int held;

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (held == sizeof pushed / sizeof *pushed)
        return CUDA_ERROR_INVALID_VALUE;
    cuCtxGetCurrent(&pushed[held++]);
    return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (!held)
        return CUDA_ERROR_INVALID_CONTEXT;
    cuCtxGetCurrent(context);
    return cuCtxSetCurrent(pushed[--held]);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = device_in_use();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    *value = 1048576;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    enum kind kind = kind_of((void *)pointer, NULL);

    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value = kind == DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && kind != PAGEABLE)
        *(CUdeviceptr *)value = pointer;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Modules: a kernel is its name */

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    *module = handle();
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = handle();
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned number, CUjit_option *options, void **values)
{
    *module = handle();
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)strdup(name);
    return CUDA_SUCCESS;
}

/* Nothing spills here: what ptxas says of registers and spills is in the test of Triton's kernels. */
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    *value = 0;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        *value = BLOCK_THREADS;
    if (attribute == CU_FUNC_ATTRIBUTE_NUM_REGS)
        *value = 32;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    *blocks = 2;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    *clusters = MULTIPROCESSORS / 2;
    return CUDA_SUCCESS;
}

/* Launches */

static CUresult launched(CUfunction function, const unsigned grid[3], const unsigned block[3], size_t shared)
{
    const char *name = (const char *)function;

    trace("launch", name);
    if (launchable(grid, block, shared))
        return CUDA_SUCCESS;
    mistake("launch of %s: grid %u %u %u, block %u %u %u, %zu bytes of shared memory", name, grid[0], grid[1], grid[2],
            block[0], block[1], block[2], shared);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **values,
                        void **extra)
{
    const unsigned grid[3] = {grid_x, grid_y, grid_z};
    const unsigned block[3] = {block_x, block_y, block_z};

    return launched(function, grid, block, shared);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                   CUstream stream, void **values)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, values, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra)
{
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, values, extra);
}

CUresult cuMemcpyDtoHAsync(void *into, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return (CUresult)cudaMemcpyAsync(into, (void *)from, bytes, cudaMemcpyDeviceToHost, NULL);
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *found)
{
    *function = dlsym(RTLD_DEFAULT, name);
    if (found)
        *found = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Memory by pieces, of which torch has pools when it is asked to: nothing here asks. */
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *kind,
                                       CUmemAllocationGranularity_flags option)
{
    *bytes = 2097152;
    return CUDA_SUCCESS;
}

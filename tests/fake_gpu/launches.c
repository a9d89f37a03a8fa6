/* In place of libcudart: launches of the kernels that torch brings. They are checked and counted, and nothing runs. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NESTED 16

struct registered {
    const void *function;
    const char *name;
};

/* The kernels of torch, as its libraries name them when they are loaded. */
static struct registered *kernels;
static size_t registered;
static size_t places;

struct configuration {
    dim3 grid;
    dim3 block;
    size_t shared;
    void *stream;
};

/* `kernel<<<...>>>(...)` keeps its configuration here until the launch takes it. */
static __thread struct configuration kept[NESTED];
static __thread int held;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    if (held == NESTED)
        return 1;
    kept[held++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    struct configuration last = kept[--held];

    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *(void **)stream = last.stream;
    return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary)
{
    return handle();
}

void __cudaRegisterFatBinaryEnd(void **module)
{
}

void __cudaUnregisterFatBinary(void **module)
{
}

void __cudaRegisterVar(void **module)
{
}

/* The original has six parameters more, which say what the compiler has limited. */
void __cudaRegisterFunction(void **module, const void *function, char *mangled, const char *name)
{
    if (registered == places) {
        places = places ? 2 * places : 32768;
        kernels = realloc(kernels, places * sizeof *kernels);
        if (!kernels)
            abort();
    }
    kernels[registered++] = (struct registered){function, name};
}

/* Of tens of thousands, one after the other: asked for where launches are shown, or refused. */
static const char *name_of(const void *function)
{
    for (size_t i = 0; i < registered; i++)
        if (kernels[i].function == function)
            return kernels[i].name;
    return "a kernel of torch";
}

static cudaError_t launched(const void *function, dim3 grid, dim3 block, size_t shared)
{
    const unsigned blocks[3] = {grid.x, grid.y, grid.z};
    const unsigned threads[3] = {block.x, block.y, block.z};
    char name[8192] = "";

    if (shown())
        snprintf(name, sizeof name, "%s grid %u %u %u", name_of(function), grid.x, grid.y, grid.z);
    trace("launch", name);
    if (launchable(blocks, threads, shared))
        return cudaSuccess;
    mistake("launch of %s: grid %u %u %u, block %u %u %u, %zu bytes of shared memory", name_of(function), grid.x,
            grid.y, grid.z, block.x, block.y, block.z, shared);
    return failed(cudaErrorInvalidConfiguration);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **values, size_t shared,
                             cudaStream_t stream)
{
    return launched(function, grid, block, shared);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **values, size_t shared,
                                        cudaStream_t stream)
{
    return launched(function, grid, block, shared);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *given, const void *function, void **values)
{
    return launched(function, given->gridDim, given->blockDim, given->dynamicSmemBytes);
}

/* What nvcc makes of `kernel<<<...>>>(...)` since CUDA 13. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **values, size_t shared,
                               cudaStream_t stream)
{
    return launched(kernel, grid, block, shared);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *said, const void *function)
{
    memset(said, 0, sizeof *said);
    said->maxThreadsPerBlock = BLOCK_THREADS;
    said->numRegs = 64;
    said->binaryVersion = 10 * CAPABILITY_MAJOR + CAPABILITY_MINOR;
    said->ptxVersion = said->binaryVersion;
    said->maxDynamicSharedSizeBytes = BLOCK_SHARED_BYTES_AT_MOST;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared, unsigned flags)
{
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared)
{
    *blocks = 2;
    return cudaSuccess;
}

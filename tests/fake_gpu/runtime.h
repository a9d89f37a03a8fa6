/* What the files in place of libcudart share. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "fake_gpu.h"

#include <cuda_runtime_api.h>

/* Keeps the error for cudaGetLastError, and returns it. */
__attribute__((visibility("hidden"))) cudaError_t failed(cudaError_t error);

#endif

/* In place of cuBLAS: products are counted, not computed. Without its header, so that one line each is enough. */
#include "fake_gpu.h"


static int product(const char *name)
{
    trace("launch", name);
    return 0;
}

#define PRODUCT(name)                                                                                                  \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return product(#name);                                                                                         \
    }

PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasGemmEx)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasSgemv_v2)
PRODUCT(cublasDgemv_v2)
PRODUCT(cublasSdot_v2)
PRODUCT(cublasDdot_v2)
PRODUCT(cublasDotEx)

int cublasCreate_v2(void **context)
{
    *context = handle();
    return 0;
}

int cublasGetMathMode(void *context, int *mode)
{
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *context, int *mode)
{
    *mode = 0;
    return 0;
}

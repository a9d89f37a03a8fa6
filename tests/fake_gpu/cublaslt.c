/* In place of cuBLASLt: products are counted, not computed, and there is one algorithm for each. */
#include "fake_gpu.h"

#include <cublasLt.h>
#include <string.h>

cublasStatus_t cublasLtCreate(cublasLtHandle_t *context)
{
    *context = handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t type, cudaDataType_t scale)
{
    *made = handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading)
{
    *made = handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    *made = handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t context, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    memset(results, 0, sizeof *results);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t context, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t *algorithm, void *space, size_t bytes, cudaStream_t stream)
{
    trace("launch", "cublasLtMatmul");
    return CUBLAS_STATUS_SUCCESS;
}

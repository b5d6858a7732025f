/* Products with few rows of f32 (few_tile.h). */
#include "stage/cuda/kernels/few_tile.h"

SL_DEV void few_f32(const sl_product_args *a, sl_dtype t) {
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, SL_FEW_ROWS);
    const sl_product_last last = sl_product_nothing();
    sl_few_tile(&a->shape, j, &at, &last, t);
}

#define FEW_F32(name, t)                                                                           \
    SL_KERNEL_BOUNDS(name, sl_product_args, SL_FEW_THREADS, 3) {                                   \
        few_f32(&a, t);                                                                            \
    }
FEW_F32(sl_k_few_f32, SL_F32)
FEW_F32(sl_k_few_f16, SL_F16)
FEW_F32(sl_k_few_bf16, SL_BF16)
FEW_F32(sl_k_few_q8_0, SL_Q8_0)
FEW_F32(sl_k_few_q4_0, SL_Q4_0)
FEW_F32(sl_k_few_mxfp4, SL_MXFP4)
FEW_F32(sl_k_few_q4_k, SL_Q4_K)
FEW_F32(sl_k_few_q5_k, SL_Q5_K)
FEW_F32(sl_k_few_q6_k, SL_Q6_K)
FEW_F32(sl_k_few_f8, SL_F8_E4M3)

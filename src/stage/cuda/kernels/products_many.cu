/* Products with many rows of f32 (many_tile.h). */
#include "stage/cuda/kernels/many_tile.h"

SL_DEV void many(const sl_product_args *a, sl_dtype t) {
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, SL_MANY_ROWS);
    const sl_product_last last = sl_product_nothing();
    sl_many_tile(&a->shape, j, &at, &last, t);
}

#define MANY(name, t)                                                                              \
    SL_KERNEL_BOUNDS(name, sl_product_args, SL_MANY_THREADS, 1) {                                  \
        many(&a, t);                                                                               \
    }
MANY(sl_k_many_f32, SL_F32)
MANY(sl_k_many_f16, SL_F16)
MANY(sl_k_many_bf16, SL_BF16)
MANY(sl_k_many_q8_0, SL_Q8_0)
MANY(sl_k_many_q4_0, SL_Q4_0)
MANY(sl_k_many_mxfp4, SL_MXFP4)
MANY(sl_k_many_q4_k, SL_Q4_K)
MANY(sl_k_many_q5_k, SL_Q5_K)
MANY(sl_k_many_q6_k, SL_Q6_K)
MANY(sl_k_many_f8, SL_F8_E4M3)

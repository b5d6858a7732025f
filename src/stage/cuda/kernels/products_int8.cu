/* Products of integers with more than a few rows (int8_tile.h). */
#include "stage/cuda/kernels/int8_tile.h"

SL_DEV void int8(const sl_product_args *a, sl_dtype t) {
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, SL_INT8_ROWS);
    const sl_product_last last = sl_product_nothing();
    sl_int8_tile(&a->shape, j, &at, &last, t);
}

#define INT8(name, t)                                                                              \
    SL_KERNEL_BOUNDS(name, sl_product_args, SL_INT8_COLS * 4, 2) {                                 \
        int8(&a, t);                                                                               \
    }
INT8(sl_k_int8_q8_0, SL_Q8_0)
INT8(sl_k_int8_q4_0, SL_Q4_0)
INT8(sl_k_int8_mxfp4, SL_MXFP4)
INT8(sl_k_int8_q4_k, SL_Q4_K)
INT8(sl_k_int8_q5_k, SL_Q5_K)
INT8(sl_k_int8_q6_k, SL_Q6_K)

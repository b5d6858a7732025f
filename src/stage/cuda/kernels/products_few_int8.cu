/* Products of integers with up to eight rows (ints_tile.h). */
#include "stage/cuda/kernels/ints_tile.h"

SL_DEV void ints(const sl_product_args *a, sl_dtype t) {
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, SL_FEW_ROWS);
    const sl_product_last last = sl_product_nothing();
    sl_ints_tile(&a->shape, j, &at, &last, t);
}

#define INTS(name, t)                                                                              \
    SL_KERNEL_BOUNDS(name, sl_product_args, 2 * SL_FEW_COLS, 4) {                                  \
        ints(&a, t);                                                                               \
    }
INTS(sl_k_few_int8_q8_0, SL_Q8_0)
INTS(sl_k_few_int8_q4_0, SL_Q4_0)
INTS(sl_k_few_int8_mxfp4, SL_MXFP4)
INTS(sl_k_few_int8_q4_k, SL_Q4_K)
INTS(sl_k_few_int8_q5_k, SL_Q5_K)
INTS(sl_k_few_int8_q6_k, SL_Q6_K)

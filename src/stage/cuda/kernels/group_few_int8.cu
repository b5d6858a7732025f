/* Routed experts in blocks of whole numbers, groups of up to eight pairs (group.h). */
#include "stage/cuda/kernels/group.h"
#include "stage/cuda/kernels/ints_tile.h"

SL_DEV void group(const sl_group_args *a, sl_dtype t) {
    sl_group_work work;
    sl_fast_wait();
    sl_fast_let_next();
    if (!sl_group_begin(a, t, false, &work)) return;
    sl_ints_tile(&a->shape, &work.job, &work.at, &work.last, t);
}

#define GROUP(name, t)                                                                             \
    SL_KERNEL_BOUNDS(name, sl_group_args, 2 * SL_FEW_COLS, 4) {                                    \
        group(&a, t);                                                                              \
    }
GROUP(sl_k_group_few_int8_q8_0, SL_Q8_0)
GROUP(sl_k_group_few_int8_q4_0, SL_Q4_0)
GROUP(sl_k_group_few_int8_mxfp4, SL_MXFP4)
GROUP(sl_k_group_few_int8_q4_k, SL_Q4_K)
GROUP(sl_k_group_few_int8_q5_k, SL_Q5_K)
GROUP(sl_k_group_few_int8_q6_k, SL_Q6_K)

/* Routed experts by products of f32, groups of up to 32 pairs (group.h). */
#include "stage/cuda/kernels/group.h"
#include "stage/cuda/kernels/many_tile.h"

SL_DEV void group(const sl_group_args *a, sl_dtype t) {
    sl_group_work work;
    sl_fast_wait();
    sl_fast_let_next();
    if (!sl_group_begin(a, t, true, &work)) return;
    sl_many_tile(&a->shape, &work.job, &work.at, &work.last, t);
}

#define GROUP(name, t)                                                                             \
    SL_KERNEL_BOUNDS(name, sl_group_args, SL_MANY_THREADS, 1) {                                    \
        group(&a, t);                                                                              \
    }
GROUP(sl_k_group_many_f16, SL_F16)
GROUP(sl_k_group_many_bf16, SL_BF16)
GROUP(sl_k_group_many_f8, SL_F8_E4M3)

/* Routed experts by products of f32, groups of up to 32 pairs (group.h). */
#include "stage/cuda/kernels/group.h"
#include "stage/cuda/kernels/many_tile.h"

SL_GROUP_WORK(sl_many_tile, true)

#define GROUP(name, t) SL_GROUP_KERNEL(name, t, SL_MANY_THREADS, 1)
GROUP(sl_k_group_many_f16, SL_F16)
GROUP(sl_k_group_many_bf16, SL_BF16)
GROUP(sl_k_group_many_f8, SL_F8_E4M3)

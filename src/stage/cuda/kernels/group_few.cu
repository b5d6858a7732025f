/* Routed experts by products of f32, groups of up to eight pairs (group.h). */
#include "stage/cuda/kernels/group.h"
#include "stage/cuda/kernels/few_tile.h"

SL_GROUP_WORK(sl_few_tile, false)

#define GROUP(name, t) SL_GROUP_KERNEL(name, t, SL_FEW_THREADS, 3)
GROUP(sl_k_group_few_f16, SL_F16)
GROUP(sl_k_group_few_bf16, SL_BF16)
GROUP(sl_k_group_few_f8, SL_F8_E4M3)

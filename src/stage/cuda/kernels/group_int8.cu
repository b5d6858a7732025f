/* Routed experts in blocks of whole numbers, groups of up to 64 pairs (group.h). */
#include "stage/cuda/kernels/group.h"
#include "stage/cuda/kernels/int8_tile.h"

SL_GROUP_WORK(sl_int8_tile, true)

#define GROUP(name, t) SL_GROUP_KERNEL(name, t, SL_INT8_COLS * 4, 2)
GROUP(sl_k_group_int8_q8_0, SL_Q8_0)
GROUP(sl_k_group_int8_q4_0, SL_Q4_0)
GROUP(sl_k_group_int8_mxfp4, SL_MXFP4)
GROUP(sl_k_group_int8_q4_k, SL_Q4_K)
GROUP(sl_k_group_int8_q5_k, SL_Q5_K)
GROUP(sl_k_group_int8_q6_k, SL_Q6_K)

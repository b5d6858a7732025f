/* What kernels of rows have in common: the tree of 16 lanes of docs/numbers.md, largest values of a
 * warp, values of plain types. */
#ifndef SL_STAGE_CUDA_LANES_H
#define SL_STAGE_CUDA_LANES_H

#include "quant/half.h"
#include "spec/model.h"
#include "stage/cuda/kernels/device.h"

/* A loop that is not to be unrolled: its registers are wanted elsewhere. */
#ifdef __CUDACC__
#define SL_ROLLED _Pragma("unroll 1")
#else
#define SL_ROLLED
#endif

/* Each half of a warp holds 16 lanes; all its threads get the sum that the tree makes of them:
 * sl_tree16, as sums of the same pairs. By all threads of the warp. */
SL_DEV float sl_lanes_tree(float s) {
    s = s + __shfl_xor_sync(SL_ALL, s, 8);
    s = s + __shfl_xor_sync(SL_ALL, s, 4);
    s = s + __shfl_xor_sync(SL_ALL, s, 2);
    return s + __shfl_xor_sync(SL_ALL, s, 1);
}

/* The largest of a warp's values, none of which is NaN. */
SL_DEV float sl_lanes_max(float v) {
    for (uint32_t i = SL_WARP / 2; i; i /= 2) {
        const float other = __shfl_xor_sync(SL_ALL, v, i);
        v = other > v ? other : v;
    }
    return v;
}

/* The largest and the smallest of a warp's numbers. */
#ifdef __CUDACC__
SL_DEV uint32_t sl_lanes_most(uint32_t v) {
    return __reduce_max_sync(SL_ALL, v);
}

SL_DEV uint32_t sl_lanes_least(uint32_t v) {
    return __reduce_min_sync(SL_ALL, v);
}
#else
SL_DEV uint32_t sl_lanes_most(uint32_t v) {
    for (uint32_t i = SL_WARP / 2; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(SL_ALL, v, i);
        v = other > v ? other : v;
    }
    return v;
}

SL_DEV uint32_t sl_lanes_least(uint32_t v) {
    return ~sl_lanes_most(~v);
}
#endif

/* Value i of an array of a plain type. */
SL_DEV float sl_plain_value(const void *p, uint32_t dtype, size_t i) {
    if (dtype == SL_F32) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return dtype == SL_F16 ? sl_f16_to_f32(h) : sl_bf16_to_f32(h);
}

#endif

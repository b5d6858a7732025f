/* Norms of many rows in numerics fast, which sum in any order: a row a block, all of it in
 * registers between its way in and its way out, in f32 and, where products of many rows follow, in
 * bf16 as they read it (fast_wide.cu). */
#include "stage/cuda/kernels/args_rows.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/fast_parts.h"
#include "stage/cuda/kernels/lanes.h"

#define EACH (SL_FAST_NORM_MOST / (8 * SL_FAST_NORM_THREADS)) /* times 8 values of a thread */

typedef char norm_fits[SL_FAST_NORM_MOST % (8 * SL_FAST_NORM_THREADS) == 0 ? 1 : -1];

/* Where a thread's values are. */
SL_DEV uint32_t place_of(uint32_t e) {
    return 8 * (e * SL_FAST_NORM_THREADS + threadIdx.x);
}

/* The sum over the block, for all threads; `part` is used once. */
SL_DEV float sum_of_block(float s, float *part) {
    SL_UNROLL for (uint32_t by = SL_WARP / 2; by; by /= 2) s += __shfl_xor_sync(SL_ALL, s, by);
    if (sl_lane() == 0) part[sl_warp()] = s;
    __syncthreads();
    s = 0;
    SL_UNROLL for (uint32_t i = 0; i < SL_FAST_NORM_THREADS / SL_WARP; i++) s += part[i];
    return s;
}

SL_KERNEL_BOUNDS(sl_k_fast_norm, sl_k_norm_args, SL_FAST_NORM_THREADS, 4) {
    SL_SHARED2(float, part, 2, SL_FAST_NORM_THREADS / SL_WARP);
    sl_fast_wait();
    sl_fast_let_next();
    const size_t row = blockIdx.x;
    float v[EACH][8], mean = 0, s = 0;
    SL_UNROLL for (uint32_t e = 0; e < EACH; e++) {
        const float *x = a.x + row * a.n + place_of(e);
        const bool there = place_of(e) < a.n;
        const float4 zero = make_float4(0, 0, 0, 0);
        const float4 lo = there ? __ldcg((const float4 *)x) : zero;
        const float4 hi = there ? __ldcg((const float4 *)(x + 4)) : zero;
        v[e][0] = lo.x, v[e][1] = lo.y, v[e][2] = lo.z, v[e][3] = lo.w;
        v[e][4] = hi.x, v[e][5] = hi.y, v[e][6] = hi.z, v[e][7] = hi.w;
    }
    SL_UNROLL for (uint32_t e = 0; e < EACH; e++) {
        SL_UNROLL for (uint32_t i = 0; i < 8; i++) s += v[e][i];
    }
    if (a.centred) mean = sum_of_block(s, part[0]) / (float)a.n;
    s = 0;
    SL_UNROLL for (uint32_t e = 0; e < EACH; e++) {
        if (place_of(e) >= a.n) continue;
        SL_UNROLL for (uint32_t i = 0; i < 8; i++) {
            v[e][i] -= mean;
            s = fmaf(v[e][i], v[e][i], s);
        }
    }
    const float inv = 1.0f / sqrtf(sum_of_block(s, part[1]) / (float)a.n + a.eps);
    SL_UNROLL for (uint32_t e = 0; e < EACH; e++) {
        const uint32_t at = place_of(e);
        if (at >= a.n) continue;
        SL_UNROLL for (uint32_t i = 0; i < 8; i++) v[e][i] *=
            inv * sl_plain_value(a.w, a.dtype, at + i);
        float *y = a.y + row * a.n + at;
        *(float4 *)y = make_float4(v[e][0], v[e][1], v[e][2], v[e][3]);
        *(float4 *)(y + 4) = make_float4(v[e][4], v[e][5], v[e][6], v[e][7]);
        sl_fast_put_parts(a.parts + row * a.n + at, (size_t)a.n_rows * a.n, a.n_parts, v[e]);
    }
}

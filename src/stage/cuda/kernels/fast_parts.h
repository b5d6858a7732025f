/* Rows of f32 as sums of numbers of bf16, for products of many rows (fast_wide.cu). */
#ifndef SL_STAGE_CUDA_FAST_PARTS_H
#define SL_STAGE_CUDA_FAST_PARTS_H

#include "stage/cuda/kernels/fast.h"

/* Eight values, which are used up: the first numbers to `to`, those of what is left `apart` values
 * behind them, and so on; of no parts nothing. */
SL_DEV void sl_fast_put_parts(uint16_t *to, size_t apart, uint32_t parts, float f[8]) {
    for (uint32_t part = 0; part < parts; part++, to += apart) {
        const uint4 p = sl_fast_pack8(f);
        const uint32_t v[4] = {p.x, p.y, p.z, p.w};
        *(uint4 *)to = p;
        SL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            f[2 * j] -= sl_fast_bf16((uint16_t)v[j]);
            f[2 * j + 1] -= sl_fast_bf16((uint16_t)(v[j] >> 16));
        }
    }
}

#endif

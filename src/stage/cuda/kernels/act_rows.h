/* Rounded rows of activations (quant/act.h) as warps make them: 256 neighbouring values at a time,
 * eight a lane, so that a block of either size lies in one warp. */
#ifndef SL_STAGE_CUDA_ACT_ROWS_H
#define SL_STAGE_CUDA_ACT_ROWS_H

#include "kernel/bf16.h"
#include "quant/act.h"
#include "quant/round.h"
#include "stage/cuda/kernels/device.h"

/* The largest of the lanes' values whose numbers differ in bits below `lanes`. */
SL_DEV uint32_t sl_act_most(uint32_t v, uint32_t lanes) {
    for (uint32_t i = 1; i < lanes; i *= 2) {
        const uint32_t other = __shfl_xor_sync(SL_ALL, v, i);
        v = other > v ? other : v;
    }
    return v;
}

SL_DEV int32_t sl_act_sum(int32_t v, uint32_t lanes) {
    for (uint32_t i = 1; i < lanes; i *= 2) v += __shfl_xor_sync(SL_ALL, v, i);
    return v;
}

/* Values at .. at + n - 1 of a row of k, eight or none, in 8 bits. By all lanes of a warp. */
SL_DEV void sl_act_eight_int8(sl_act_kind kind, uint8_t *row, uint32_t k, uint32_t at, uint32_t n,
                              const float v[8]) {
    const uint32_t block = kind == SL_ACT_32 ? 32 : 256, part = kind == SL_ACT_32 ? 32 : 16;
    uint32_t most = 0, code[2] = {0, 0};
    int32_t sum = 0;
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t u = sl_f32_bits(v[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    most = sl_act_most(most, block / 8);
    const float scale = sl_act_scale_of(most), to_code = sl_act_to_code(most);
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const int8_t c = sl_act_code(v[i], most, to_code);
        code[i / 4] |= (uint32_t)(uint8_t)c << (i % 4 * 8);
        sum += c;
    }
    sum = sl_act_sum(sum, part / 8);
    if (n == 0) return;
    *(uint2 *)(row + at) = make_uint2(code[0], code[1]);
    float *scales = (float *)(row + k);
    if (at % block == 0) scales[at / block] = scale;
    if (at % part == 0) ((int16_t *)(scales + k / block))[at / part] = (int16_t)sum;
}

SL_DEV void sl_act_eight_bf16(uint8_t *row, uint32_t at, uint32_t n, const float v[8]) {
    uint16_t *h = (uint16_t *)row + at;
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        if (i < n) h[i] = sl_bf16_round(v[i]);
}

/* The same values to row `r` of every kind that there is; of a row that is rounded to 8 bits n is
 * eight or none. */
SL_DEV void sl_act_eight(uint8_t *const act[SL_ACT_KINDS], const uint32_t bytes[SL_ACT_KINDS],
                         size_t r, uint32_t k, uint32_t at, uint32_t n, const float v[8]) {
    if (act[SL_ACT_32])
        sl_act_eight_int8(SL_ACT_32, act[SL_ACT_32] + r * bytes[SL_ACT_32], k, at, n, v);
    if (act[SL_ACT_256])
        sl_act_eight_int8(SL_ACT_256, act[SL_ACT_256] + r * bytes[SL_ACT_256], k, at, n, v);
    if (act[SL_ACT_BF16]) sl_act_eight_bf16(act[SL_ACT_BF16] + r * bytes[SL_ACT_BF16], at, n, v);
}

#endif

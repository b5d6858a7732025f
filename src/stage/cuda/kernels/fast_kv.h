/* Values of KV pages for tensor cores, numerics fast. Pages of f16 are multiplied as they are, with
 * queries and weights in f16; of bf16 likewise in bf16, to which others are rounded where shared
 * memory holds them. `type` is a constant everywhere. */
#ifndef SL_STAGE_CUDA_FAST_KV_H
#define SL_STAGE_CUDA_FAST_KV_H

#include "stage/cuda/kernels/kv_rows.h"

SL_DEV bool sl_fast_kv_is_16(uint32_t type) {
    return type == SL_KV_F16 || type == SL_KV_BF16;
}

SL_DEV uint32_t sl_fast_kv_pack(uint32_t type, float lo, float hi) {
    return type == SL_KV_F16 ? sl_pack_f16(lo, hi) : sl_pack_bf16(lo, hi);
}

/* Of queries, which may be large: finite ones stay so. */
SL_DEV float sl_fast_kv_bounded(float v) {
    const float most = 65504.0f, size = fabsf(v);
    return size > most && size < INFINITY ? copysignf(most, v) : v;
}

SL_DEV uint32_t sl_fast_kv_query(uint32_t type, float lo, float hi) {
    if (type == SL_KV_F16) return sl_pack_f16(sl_fast_kv_bounded(lo), sl_fast_kv_bounded(hi));
    return sl_pack_bf16(lo, hi);
}

SL_DEV void sl_fast_kv_mma(uint32_t type, float d[4], const uint32_t a[4], const uint32_t b[2]) {
    if (type == SL_KV_F16)
        sl_mma_m16n8k16_f16(d, a, b);
    else
        sl_mma_m16n8k16_bf16(d, a, b);
}

/* ---- pieces of rows on their way to shared memory ---- */

/* Values of a piece. */
SL_DEV uint32_t sl_fast_kv_piece(uint32_t type) {
    return sl_fast_kv_is_16(type) ? 8 : 4;
}

/* The piece from value i of a row on, a multiple of its values. */
SL_DEV uint4 sl_fast_kv_load(uint32_t type, const uint8_t *row, uint32_t i) {
    if (type == SL_KV_F32) return *(const uint4 *)(row + 4 * i);
    if (sl_fast_kv_is_16(type)) return *(const uint4 *)(row + 2 * i);
    const sl_kv_codes c = sl_kv_codes_at(type, row, i);
    return make_uint4(c.four, sl_f32_bits(c.scale), 0, 0);
}

SL_DEV void sl_fast_kv_put(uint32_t type, uint4 p, uint16_t *to) {
    if (sl_fast_kv_is_16(type)) {
        *(uint4 *)to = p;
        return;
    }
    float4 v = make_float4(sl_f32_of_bits(p.x), sl_f32_of_bits(p.y), sl_f32_of_bits(p.z),
                           sl_f32_of_bits(p.w));
    if (type != SL_KV_F32) {
        const sl_kv_codes c = {p.x, sl_f32_of_bits(p.y)};
        v = sl_kv_of_codes(type, c);
    }
    *(uint2 *)to = make_uint2(sl_pack_bf16(v.x, v.y), sl_pack_bf16(v.z, v.w));
}

#endif

/* Values of KV pages for tensor cores, numerics fast. Pages of f16 and bf16 are multiplied as they
 * are, with queries and weights in the same type; values of 8 bits are rounded to f16, where a row
 * or a block whose largest would be beyond 65504 has the largest scale that is not. f32 is tf32
 * where keys come straight from memory, and bf16 where shared memory holds them. `type` is a
 * constant everywhere. */
#ifndef SL_STAGE_CUDA_FAST_KV_H
#define SL_STAGE_CUDA_FAST_KV_H

#include "stage/cuda/kernels/kv_rows.h"

#define SL_FAST_KV_Q8_SCALE  0x6007u /* 515.5: 127 times that is finite in f16 */
#define SL_FAST_KV_FP8_SCALE 128.0f  /* and so is 448 times this power of two */

SL_DEV bool sl_fast_kv_is_16(uint32_t type) {
    return type == SL_KV_F16 || type == SL_KV_BF16;
}

SL_DEV bool sl_fast_kv_is_8(uint32_t type) {
    return type == SL_KV_Q8_0 || type == SL_KV_FP8;
}

/* ---- products in 16 bits ---- */

SL_DEV bool sl_fast_kv_is_f16(uint32_t type) {
    return type == SL_KV_F16 || sl_fast_kv_is_8(type);
}

SL_DEV uint32_t sl_fast_kv_pack(uint32_t type, float lo, float hi) {
    return sl_fast_kv_is_f16(type) ? sl_pack_f16(lo, hi) : sl_pack_bf16(lo, hi);
}

/* Of queries, which may be large: finite ones stay so. */
SL_DEV float sl_fast_kv_bounded(float v) {
    const float most = 65504.0f, size = fabsf(v);
    return size > most && size < INFINITY ? copysignf(most, v) : v;
}

SL_DEV uint32_t sl_fast_kv_query(uint32_t type, float lo, float hi) {
    if (!sl_fast_kv_is_f16(type)) return sl_pack_bf16(lo, hi);
    return sl_pack_f16(sl_fast_kv_bounded(lo), sl_fast_kv_bounded(hi));
}

SL_DEV void sl_fast_kv_mma(uint32_t type, float d[4], const uint32_t a[4], const uint32_t b[2]) {
    if (sl_fast_kv_is_f16(type))
        sl_mma_m16n8k16_f16(d, a, b);
    else
        sl_mma_m16n8k16_bf16(d, a, b);
}

/* ---- values of 8 bits as f16 ---- */

/* Four codes, and what they are multiplied with: f16, twice. */
typedef struct sl_fast_kv_codes {
    uint32_t four, scale;
} sl_fast_kv_codes;

/* Values i to i + 3 of a row, i a multiple of 4. */
SL_DEV sl_fast_kv_codes sl_fast_kv_codes_at(uint32_t type, const uint8_t *row, uint32_t i) {
    sl_fast_kv_codes c;
    if (type == SL_KV_Q8_0) {
        const uint8_t *b = row + i / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
        const uint16_t *h = (const uint16_t *)(b + 2 + i % SL_KV_Q8_BLOCK);
        uint32_t scale = *(const uint16_t *)b;
        if (scale > SL_FAST_KV_Q8_SCALE && scale < 0x7c00u) scale = SL_FAST_KV_Q8_SCALE;
        c.four = h[0] | (uint32_t)h[1] << 16;
        c.scale = scale | scale << 16;
    } else {
        float scale = *(const float *)row;
        scale = scale > SL_FAST_KV_FP8_SCALE ? SL_FAST_KV_FP8_SCALE : scale;
        c.four = *(const uint32_t *)(row + SL_KV_FP8_HEAD + i);
        c.scale = sl_pack_f16(scale, scale);
    }
    return c;
}

/* Sums and products of two f16 each, rounded to nearest even, and halves of two registers: of both
 * the lower one, or the upper one. */
#ifdef __CUDACC__
#define sl_fast_kv_low(a, b)  __byte_perm(a, b, 0x5410)
#define sl_fast_kv_high(a, b) __byte_perm(a, b, 0x7632)

SL_DEV uint32_t sl_fast_kv_times(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Two codes of an integer, bytes `select` of `four`, which has the sign turned round: in 1024 +
 * code
 * + 128 the lowest bits are the code's. */
SL_DEV uint32_t sl_fast_kv_integers(uint32_t four, uint32_t select) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;"
        : "=r"(d)
        : "r"(__byte_perm(four, 0x64646464u, select)), "r"(0xe480e480u));
    return d;
}

SL_DEV uint32_t sl_fast_kv_low_integers(uint32_t four) {
    return sl_fast_kv_integers(four ^ 0x80808080u, 0x4140u);
}

SL_DEV uint32_t sl_fast_kv_high_integers(uint32_t four) {
    return sl_fast_kv_integers(four ^ 0x80808080u, 0x4342u);
}
#else
#define sl_fast_kv_low(a, b)  (((a)&0xffffu) | (b) << 16)
#define sl_fast_kv_high(a, b) ((a) >> 16 | ((b)&0xffff0000u))

SL_DEV uint32_t sl_fast_kv_times(uint32_t a, uint32_t b) {
    return sl_pack_f16(sl_kv_wide((uint16_t)a) * sl_kv_wide((uint16_t)b),
                       sl_kv_wide((uint16_t)(a >> 16)) * sl_kv_wide((uint16_t)(b >> 16)));
}

SL_DEV uint32_t sl_fast_kv_low_integers(uint32_t four) {
    return sl_pack_f16(sl_kv_integer(four), sl_kv_integer(four >> 8));
}

SL_DEV uint32_t sl_fast_kv_high_integers(uint32_t four) {
    return sl_pack_f16(sl_kv_integer(four >> 16), sl_kv_integer(four >> 24));
}
#endif

SL_DEV uint2 sl_fast_kv_halves(uint32_t type, sl_fast_kv_codes c) {
    if (type == SL_KV_Q8_0)
        return make_uint2(sl_fast_kv_times(sl_fast_kv_low_integers(c.four), c.scale),
                          sl_fast_kv_times(sl_fast_kv_high_integers(c.four), c.scale));
    return make_uint2(sl_fast_kv_times(sl_kv_two_e4m3(c.four & 0xffffu), c.scale),
                      sl_fast_kv_times(sl_kv_two_e4m3(c.four >> 16), c.scale));
}

/* Values i to i + 7 of a row of 8 bits. */
SL_DEV uint4 sl_fast_kv_eight(uint32_t type, const uint8_t *row, uint32_t i) {
    const uint2 lo = sl_fast_kv_halves(type, sl_fast_kv_codes_at(type, row, i));
    const uint2 hi = sl_fast_kv_halves(type, sl_fast_kv_codes_at(type, row, i + 4));
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
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
    const sl_fast_kv_codes c = sl_fast_kv_codes_at(type, row, i);
    return make_uint4(c.four, c.scale, 0, 0);
}

SL_DEV void sl_fast_kv_put(uint32_t type, uint4 p, uint16_t *to) {
    const sl_fast_kv_codes c = {p.x, p.y};
    if (sl_fast_kv_is_16(type))
        *(uint4 *)to = p;
    else if (type == SL_KV_F32)
        *(uint2 *)to = make_uint2(sl_pack_bf16(sl_f32_of_bits(p.x), sl_f32_of_bits(p.y)),
                                  sl_pack_bf16(sl_f32_of_bits(p.z), sl_f32_of_bits(p.w)));
    else
        *(uint2 *)to = sl_fast_kv_halves(type, c);
}

#endif

/* Rows of KV pages of any type (spec/kv_type.h) as kernels read and write them, to the bit what
 * quant/kv_rows.c does. `type` is an sl_kv_type, often a constant. A part is what is rounded
 * together; its address is a multiple of 4 where its values are a multiple of 4. */
#ifndef SL_STAGE_CUDA_KV_ROWS_H
#define SL_STAGE_CUDA_KV_ROWS_H

#include "quant/fp8.h"
#include "quant/kv_values.h"
#include "spec/kv_type.h"
#include "stage/cuda/kernels/lanes.h"

/* sl_f16_to_f32, and two codes of E4M3 as two of f16, the lower ones first: both exact. */
#ifdef __CUDACC__
SL_DEV float sl_kv_wide(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
#else
#define sl_kv_wide sl_f16_to_f32
#endif
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890)
SL_DEV uint32_t sl_kv_two_e4m3(uint32_t two) {
    uint32_t d;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"((uint16_t)two));
    return d;
}
#else
SL_DEV uint32_t sl_kv_two_e4m3(uint32_t two) {
    return sl_pack_f16(sl_e4m3_to_f32((uint8_t)two), sl_e4m3_to_f32((uint8_t)(two >> 8)));
}
#endif

/* ---- reading ---- */

/* A code of 8 bits, sign and all, as a float: an integer's place in 2^23 is its lowest bits. */
SL_DEV float sl_kv_integer(uint32_t code) {
    return sl_f32_of_bits(0x4b000000u | ((code & 0xffu) ^ 0x80u)) - 8388736.0f;
}

/* Value i of a part. */
SL_DEV float sl_kv_one(uint32_t type, const uint8_t *part, uint32_t i) {
    if (type == SL_KV_F16) return sl_kv_wide(((const uint16_t *)part)[i]);
    if (type == SL_KV_BF16) return sl_bf16_to_f32(((const uint16_t *)part)[i]);
    if (type == SL_KV_Q8_0) {
        const uint8_t *b = part + i / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
        return sl_kv_wide(*(const uint16_t *)b) * sl_kv_integer(b[2 + i % SL_KV_Q8_BLOCK]);
    }
    if (type == SL_KV_FP8)
        return sl_kv_wide((uint16_t)sl_kv_two_e4m3(part[SL_KV_FP8_HEAD + i])) *
               *(const float *)part;
    return ((const float *)part)[i];
}

/* Four codes of 8 bits, and what they are multiplied with. */
typedef struct sl_kv_codes {
    uint32_t four;
    float scale;
} sl_kv_codes;

/* Values i to i + 3 of a part of q8_0 or fp8, i a multiple of 4. */
SL_DEV sl_kv_codes sl_kv_codes_at(uint32_t type, const uint8_t *part, uint32_t i) {
    sl_kv_codes c;
    if (type == SL_KV_Q8_0) {
        const uint8_t *b = part + i / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
        const uint16_t *h = (const uint16_t *)(b + 2 + i % SL_KV_Q8_BLOCK);
        c.four = h[0] | (uint32_t)h[1] << 16;
        c.scale = sl_kv_wide(*(const uint16_t *)b);
    } else {
        c.four = *(const uint32_t *)(part + SL_KV_FP8_HEAD + i);
        c.scale = *(const float *)part;
    }
    return c;
}

SL_DEV float4 sl_kv_of_codes(uint32_t type, sl_kv_codes c) {
    if (type == SL_KV_Q8_0)
        return make_float4(c.scale * sl_kv_integer(c.four), c.scale * sl_kv_integer(c.four >> 8),
                           c.scale * sl_kv_integer(c.four >> 16),
                           c.scale * sl_kv_integer(c.four >> 24));
    const uint32_t lo = sl_kv_two_e4m3(c.four & 0xffffu), hi = sl_kv_two_e4m3(c.four >> 16);
    return make_float4(
        c.scale * sl_kv_wide((uint16_t)lo), c.scale * sl_kv_wide((uint16_t)(lo >> 16)),
        c.scale * sl_kv_wide((uint16_t)hi), c.scale * sl_kv_wide((uint16_t)(hi >> 16)));
}

/* Values i to i + 3 of a part of another type than f32 whose values are a multiple of 4, and so is
 * i. */
SL_DEV float4 sl_kv_four(uint32_t type, const uint8_t *part, uint32_t i) {
    if (type == SL_KV_F16 || type == SL_KV_BF16) {
        const uint2 h = *(const uint2 *)(part + 2 * i);
        if (type == SL_KV_BF16)
            return make_float4(sl_f32_of_bits(h.x << 16), sl_f32_of_bits(h.x & 0xffff0000u),
                               sl_f32_of_bits(h.y << 16), sl_f32_of_bits(h.y & 0xffff0000u));
        return make_float4(sl_kv_wide((uint16_t)h.x), sl_kv_wide((uint16_t)(h.x >> 16)),
                           sl_kv_wide((uint16_t)h.y), sl_kv_wide((uint16_t)(h.y >> 16)));
    }
    return sl_kv_of_codes(type, sl_kv_codes_at(type, part, i));
}

/* ---- writing ---- */

SL_DEV uint32_t sl_kv_magnitude(float x) {
    return sl_f32_bits(x) & 0x7fffffffu;
}

/* As it counts for the scale of a part of fp8. */
SL_DEV uint32_t sl_kv_finite_magnitude(float x) {
    const uint32_t u = sl_kv_magnitude(x);
    return sl_act_is_finite(u) ? u : 0;
}

SL_DEV uint16_t sl_kv_half(uint32_t type, float x) {
    return type == SL_KV_F16 ? sl_kv_f16_of(x) : sl_f32_to_bf16(x);
}

/* Value i of a block of Q8_0 that begins at b, its zeros behind the last value, too. */
SL_DEV void sl_kv_put_q8(uint8_t *b, const sl_kv_q8 *q, uint32_t i, float x) {
    if (i == 0) *(uint16_t *)b = q->scale;
    b[2 + i] = sl_kv_q8_code(q, x);
}

/* Value i of a part of n values of fp8, or a zero behind the last one. */
SL_DEV void sl_kv_put_fp8(uint8_t *part, float scale, uint32_t i, uint32_t n, float x) {
    if (i == 0) *(float *)part = scale;
    part[SL_KV_FP8_HEAD + i] = i < n ? sl_f32_to_e4m3(x * sl_e4m3_inverse_of(scale)) : 0;
}

/* A part of n values from x on, of another type than f32, by all lanes of a warp. */
SL_DEV void sl_kv_put_part(uint32_t type, const float *x, uint32_t n, uint8_t *part) {
    if (type == SL_KV_Q8_0) {
        for (uint32_t at = 0; at < n; at += SL_KV_Q8_BLOCK, part += SL_KV_Q8_BYTES) {
            const float v = at + sl_lane() < n ? x[at + sl_lane()] : 0.0f;
            const sl_kv_q8 q = sl_kv_q8_of(sl_lanes_most(sl_kv_magnitude(v)));
            sl_kv_put_q8(part, &q, sl_lane(), v);
        }
    } else if (type == SL_KV_FP8) {
        uint32_t most = 0;
        for (uint32_t i = sl_lane(); i < n; i += SL_WARP) {
            const uint32_t u = sl_kv_finite_magnitude(x[i]);
            most = u > most ? u : most;
        }
        const float scale = sl_e4m3_scale_of(sl_lanes_most(most));
        for (uint32_t i = sl_lane(); i < (n + 3) / 4 * 4; i += SL_WARP)
            sl_kv_put_fp8(part, scale, i, n, i < n ? x[i] : 0.0f);
    } else {
        for (uint32_t i = sl_lane(); i < n; i += SL_WARP)
            ((uint16_t *)part)[i] = sl_kv_half(type, x[i]);
    }
}

/* ---- tiles ---- */

/* `bytes` of a tile as they lie, a multiple of 16, to shared memory, asynchronously. */
SL_DEV void sl_kv_copy_tile(const uint8_t *from, uint32_t bytes, uint8_t *to, uint32_t thread,
                            uint32_t threads) {
    for (uint32_t i = 16 * thread; i < bytes; i += 16 * threads) sl_cp_async16(to + i, from + i);
}

/* Rows of `row` bytes: `dim` values, the first `part` of which are a part, what is left another. */
typedef struct sl_kv_shape {
    uint32_t type, part, dim, row;
} sl_kv_shape;

/* Value i of a row. */
SL_DEV float sl_kv_value(const sl_kv_shape *s, const uint8_t *row, uint32_t i) {
    if (i < s->part) return sl_kv_one(s->type, row, i);
    return sl_kv_one(s->type, row + sl_kv_part_bytes((sl_kv_type)s->type, s->part), i - s->part);
}

#define SL_KV_AT_ONCE 4u /* rows that a thread has under way */

/* Values i to i + 3 of rows first, first + step, ... of a part, to floats. */
SL_DEV void sl_kv_widen_fours(uint32_t type, const uint8_t *from, uint32_t row, uint32_t i,
                              uint32_t first, uint32_t step, uint32_t rows, float *to,
                              uint32_t apart) {
    for (uint32_t j = first; j < rows; j += SL_KV_AT_ONCE * step) {
        float4 v[SL_KV_AT_ONCE];
        SL_UNROLL
        for (uint32_t e = 0; e < SL_KV_AT_ONCE; e++) {
            const uint32_t at = j + e * step < rows ? j + e * step : first;
            v[e] = sl_kv_four(type, from + at * row, i);
        }
        SL_UNROLL
        for (uint32_t e = 0; e < SL_KV_AT_ONCE; e++)
            if (j + e * step < rows) *(float4 *)(to + (j + e * step) * apart + i) = v[e];
    }
}

SL_DEV void sl_kv_widen_ones(uint32_t type, const uint8_t *from, uint32_t row, uint32_t i,
                             uint32_t first, uint32_t step, uint32_t rows, float *to,
                             uint32_t apart) {
    for (uint32_t j = first; j < rows; j += step)
        to[j * apart + i] = sl_kv_one(type, from + j * row, i);
}

/* n values of each of `rows` rows of a part at `from`, to rows `apart` floats from one another:
 * thread `thread` of so many, a power of two of at least 32. */
SL_DEV void sl_kv_widen_part(const sl_kv_shape *s, const uint8_t *from, uint32_t n, uint32_t rows,
                             float *to, uint32_t apart, uint32_t thread, uint32_t threads) {
    const uint32_t unit = s->part % 4 == 0 && s->dim % 4 == 0 ? 4 : 1;
    uint32_t log = 0;
    while (log < 5 && unit << log < n) log++;
    const uint32_t first = thread >> log, step = threads >> log;
    for (uint32_t i = unit * (thread & ((1u << log) - 1)); i < n; i += unit << log) {
        if (unit == 4 && s->type == SL_KV_F16)
            sl_kv_widen_fours(SL_KV_F16, from, s->row, i, first, step, rows, to, apart);
        else if (unit == 4 && s->type == SL_KV_BF16)
            sl_kv_widen_fours(SL_KV_BF16, from, s->row, i, first, step, rows, to, apart);
        else if (unit == 4 && s->type == SL_KV_Q8_0)
            sl_kv_widen_fours(SL_KV_Q8_0, from, s->row, i, first, step, rows, to, apart);
        else if (unit == 4)
            sl_kv_widen_fours(SL_KV_FP8, from, s->row, i, first, step, rows, to, apart);
        else
            sl_kv_widen_ones(s->type, from, s->row, i, first, step, rows, to, apart);
    }
}

/* The first `width` values (part or dim) of each of a tile's rows. */
SL_DEV void sl_kv_widen_tile(const sl_kv_shape *s, const uint8_t *from, uint32_t width,
                             uint32_t rows, float *to, uint32_t apart, uint32_t thread,
                             uint32_t threads) {
    sl_kv_widen_part(s, from, s->part, rows, to, apart, thread, threads);
    if (width > s->part)
        sl_kv_widen_part(s, from + sl_kv_part_bytes((sl_kv_type)s->type, s->part), width - s->part,
                         rows, to + s->part, apart, thread, threads);
}

#endif

/* How values of keys, values and latents are rounded when they are written into a page. Loops are
 * plain and without branches so that compilers make vector code of them. */
#include "quant/kv_rows.h"

#include "quant/round.h"
#include "quant/wire_rows.h"

#include <math.h>

#define F16_MAX_BITS 0x477fe000u /* 65504 */

/* As sl_f32_to_f16, but finite values do not become infinite. */
static uint16_t to_f16(float x) {
    const uint32_t bits = sl_f32_bits(x), u = bits & 0x7fffffffu;
    const int finite = (int32_t)u <= 0x7f7fffff, large = (int32_t)u > (int32_t)F16_MAX_BITS;
    const uint32_t a = finite & large ? F16_MAX_BITS : u;
    const uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    const uint32_t subnormal = sl_f32_bits(sl_f32_of_bits(a) + 0.5f) - 0x3f000000u;
    const uint32_t none = (int32_t)u > 0x7f800000 ? 0x7e00u : 0x7c00u;
    uint32_t code = (int32_t)a < 0x38800000 ? subnormal : normal;
    code = finite ? code : none;
    return (uint16_t)(code | (bits >> 16 & 0x8000u));
}

static void round_f16(const float *x, uint32_t n, uint8_t *dst) {
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t h = to_f16(x[i]);
        memcpy(dst + 2 * (size_t)i, &h, sizeof h);
    }
}

static void round_bf16(const float *x, uint32_t n, uint8_t *dst) {
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t h = sl_f32_to_bf16(x[i]);
        memcpy(dst + 2 * (size_t)i, &h, sizeof h);
    }
}

/* A block of n <= 32 values: GGUF's Q8_0, with codes to nearest even. */
static void round_q8_0(const float *x, uint32_t n, uint8_t *b) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = sl_f32_bits(x[i]) & 0x7fffffffu;
        most = (int32_t)u > (int32_t)most ? u : most;
    }
    const bool finite = sl_act_is_finite(most);
    const float d = sl_f32_of_bits(most) / 127.0f, inverse = d != 0 ? 1.0f / d : 0;
    const uint16_t h = to_f16(finite ? d : NAN);
    const bool counts = finite && isfinite(inverse);
    memcpy(b, &h, sizeof h);
    for (uint32_t i = 0; i < SL_KV_Q8_BLOCK; i++)
        b[2 + i] = i < n && counts ? (uint8_t)(int8_t)sl_round_even(x[i] * inverse) : 0;
}

void sl_kv_round(sl_kv_type t, const float *x, uint32_t n, void *dst) {
    uint8_t *to = dst;
    switch (t) {
    case SL_KV_F16:
        round_f16(x, n, to);
        break;
    case SL_KV_BF16:
        round_bf16(x, n, to);
        break;
    case SL_KV_Q8_0:
        for (uint32_t i = 0; i < n; i += SL_KV_Q8_BLOCK, to += SL_KV_Q8_BYTES)
            round_q8_0(x + i, SL_MIN(n - i, SL_KV_Q8_BLOCK), to);
        break;
    case SL_KV_FP8:
        sl_wire_pack(SL_WIRE_FP8, x, 1, n, to);
        break;
    case SL_KV_F32:
    case SL_KV_TYPES:
        memcpy(to, x, n * sizeof *x);
        break;
    }
}

void sl_kv_round_row(sl_kv_type t, const float *x, uint32_t part, uint32_t dim, void *dst) {
    sl_kv_round(t, x, part, dst);
    if (dim > part)
        sl_kv_round(t, x + part, dim - part, (uint8_t *)dst + sl_kv_part_bytes(t, part));
}

static void widen_q8_0(const uint8_t *b, uint32_t n, float *dst) {
    uint16_t h;
    memcpy(&h, b, sizeof h);
    const float d = sl_f16_to_f32(h);
    for (uint32_t i = 0; i < n; i++) dst[i] = d * (float)(int8_t)b[2 + i];
}

void sl_kv_widen(sl_kv_type t, const void *src, uint32_t n, float *dst) {
    const uint8_t *from = src;
    uint16_t h;
    switch (t) {
    case SL_KV_F16:
    case SL_KV_BF16:
        for (uint32_t i = 0; i < n; i++) {
            memcpy(&h, from + 2 * (size_t)i, sizeof h);
            dst[i] = t == SL_KV_F16 ? sl_f16_to_f32(h) : sl_bf16_to_f32(h);
        }
        break;
    case SL_KV_Q8_0:
        for (uint32_t i = 0; i < n; i += SL_KV_Q8_BLOCK, from += SL_KV_Q8_BYTES)
            widen_q8_0(from, SL_MIN(n - i, SL_KV_Q8_BLOCK), dst + i);
        break;
    case SL_KV_FP8:
        sl_wire_unpack(SL_WIRE_FP8, from, 1, n, dst);
        break;
    case SL_KV_F32:
    case SL_KV_TYPES:
        memcpy(dst, from, n * sizeof *dst);
        break;
    }
}

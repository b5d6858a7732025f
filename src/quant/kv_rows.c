/* How values of keys, values and latents are rounded when they are written into a page. Loops are
 * plain and without branches so that compilers make vector code of them. */
#include "quant/kv_rows.h"

#include "quant/kv_values.h"
#include "quant/wire_rows.h"

static void round_f16(const float *x, uint32_t n, uint8_t *dst) {
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t h = sl_kv_f16_of(x[i]);
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
    const sl_kv_q8 q = sl_kv_q8_of(most);
    memcpy(b, &q.scale, sizeof q.scale);
    for (uint32_t i = 0; i < SL_KV_Q8_BLOCK; i++) b[2 + i] = i < n ? sl_kv_q8_code(&q, x[i]) : 0;
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

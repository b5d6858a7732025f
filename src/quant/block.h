/* Blocks of GGUF weights: layouts, decoding to f32, encoding.
 *
 * The value of a weight is one f32, which the format defines: every product in d * scale * q is
 * exact (11 bits of an f16, at most 7 of a scale, at most 6 of a code), and formats with a minimum
 * round once, at the subtraction. So decoding has no choices, and every instruction set gives the
 * same bits. Layouts are facts of the format (github.com/ggml-org/ggml, docs/gguf.md); integers are
 * little-endian, d and dmin are f16.
 *
 *   Q8_0   32 values   d, code[32] int8                                  d * code
 *   Q4_0   32 values   d, 16 bytes of two codes                          d * (code - 8)
 *   MXFP4  32 values   scale, a byte of bias 127, 16 bytes of two codes  2^(scale - 127) * code
 *   Q4_K  256 values   d, dmin, 8 scales and 8 minima of 6 bits,         d * scale * code - dmin *
 * min 128 bytes of two codes Q5_K  256 values   the same with a fifth bit of each code in 32 bytes
 * before the codes Q6_K  256 values   128 bytes of low halves, 64 bytes of two high bits, 16 int8
 * scales, d d * scale * (code - 32) Thread: any. */
#ifndef SL_QUANT_BLOCK_H
#define SL_QUANT_BLOCK_H

#include "base/status.h"
#include "quant/half.h"
#include "spec/model.h"

#define SL_BLOCK_MAX       256u /* values of the largest block */
#define SL_BLOCK_BYTES_MAX 210u

SL_FN float sl_block_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sl_f16_to_f32(h);
}

/* dst[0..32) of one Q8_0 block. */
static inline void sl_q8_0_decode(const uint8_t *b, float *dst) {
    float d = sl_block_f16(b);
    for (int i = 0; i < 32; i++) dst[i] = d * (float)(int8_t)b[2 + i];
}

static inline void sl_q4_0_decode(const uint8_t *b, float *dst) {
    float d = sl_block_f16(b);
    for (int i = 0; i < 16; i++) dst[i] = d * (float)((b[2 + i] & 15) - 8);
    for (int i = 0; i < 16; i++) dst[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
}

/* Scale and minimum s of eight, from the 12 bytes of Q4_K and Q5_K. */
SL_FN void sl_k_scale(const uint8_t *p, int s, uint8_t *scale, uint8_t *min) {
    if (s < 4) {
        *scale = p[s] & 63;
        *min = p[s + 4] & 63;
    } else {
        *scale = (uint8_t)((p[s + 4] & 15) | p[s - 4] >> 6 << 4);
        *min = (uint8_t)(p[s + 4] >> 4 | p[s] >> 6 << 4);
    }
}

static inline void sl_q4_k_decode(const uint8_t *b, float *dst) {
    float d = sl_block_f16(b), dmin = sl_block_f16(b + 2);
    for (int s = 0; s < 8; s++) {
        const uint8_t *code = b + 16 + s / 2 * 32;
        uint8_t scale, min;
        sl_k_scale(b + 4, s, &scale, &min);
        float a = d * (float)scale, m = dmin * (float)min;
        if (s & 1)
            for (int i = 0; i < 32; i++) dst[32 * s + i] = a * (float)(code[i] >> 4) - m;
        else
            for (int i = 0; i < 32; i++) dst[32 * s + i] = a * (float)(code[i] & 15) - m;
    }
}

static inline void sl_q5_k_decode(const uint8_t *b, float *dst) {
    float d = sl_block_f16(b), dmin = sl_block_f16(b + 2);
    const uint8_t *high = b + 16;
    for (int s = 0; s < 8; s++) {
        const uint8_t *code = b + 48 + s / 2 * 32;
        uint8_t scale, min;
        sl_k_scale(b + 4, s, &scale, &min);
        float a = d * (float)scale, m = dmin * (float)min;
        int shift = s & 1 ? 4 : 0;
        for (int i = 0; i < 32; i++)
            dst[32 * s + i] = a * (float)((code[i] >> shift & 15) | (high[i] >> s & 1) << 4) - m;
    }
}

static inline void sl_q6_k_decode(const uint8_t *b, float *dst) {
    float d = sl_block_f16(b + 208);
    for (int s = 0; s < 16; s++) { /* 16 values: half s / 8, quarter s / 2 % 4 of it */
        const uint8_t *low = b + s / 8 * 64 + s % 4 * 16, *high = b + 128 + s / 8 * 32 + s % 2 * 16;
        int shift = s % 8 < 4 ? 0 : 4, pair = s / 2 % 4 * 2;
        float a = d * (float)(int8_t)b[192 + s];
        for (int i = 0; i < 16; i++)
            dst[16 * s + i] =
                a * (float)(((low[i] >> shift & 15) | (high[i] >> pair & 3) << 4) - 32);
    }
}

/* Codes of four bits, doubled. */
#define SL_MXFP4_CODES                                                                             \
    { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 }

/* 2^(e - 128), half of what the byte of a scale says; 255 is 2^127, as in the other readers of the
 * format. */
SL_FN float sl_mxfp4_half_scale(uint8_t e) {
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The same codes 12 above their value, for products that want them without a sign. */
#define SL_MXFP4_ABOVE 12
#define SL_MXFP4_CODES_ABOVE                                                                       \
    { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 }

/* Blocks of 32 values with one scale, Q8_0, Q4_0 and MXFP4: bytes before the codes, and what the
 * codes as integers (quant/codes.h) are multiplied with. */
SL_FN uint32_t sl_block_head_32(sl_dtype t) {
    return t == SL_MXFP4 ? 1 : 2;
}

SL_FN float sl_block_scale_32(sl_dtype t, const uint8_t *b) {
    return t == SL_MXFP4 ? sl_mxfp4_half_scale(b[0]) : sl_block_f16(b);
}

static inline void sl_mxfp4_decode(const uint8_t *b, float *dst) {
    static const int8_t code[16] = SL_MXFP4_CODES;
    float d = sl_mxfp4_half_scale(b[0]);
    for (int i = 0; i < 16; i++) dst[i] = d * (float)code[b[1 + i] & 15];
    for (int i = 0; i < 16; i++) dst[16 + i] = d * (float)code[b[1 + i] >> 4];
}

/* Decodes n values, a whole number of blocks, of a block type. */
static inline void sl_block_decode(sl_dtype t, const void *src, size_t n, float *dst) {
    const uint8_t *b = (const uint8_t *)src;
    size_t step = sl_dtype_block(t), bytes = sl_dtype_block_bytes(t);
    for (size_t i = 0; i < n; i += step, b += bytes) {
        if (t == SL_Q8_0) sl_q8_0_decode(b, dst + i);
        if (t == SL_Q4_0) sl_q4_0_decode(b, dst + i);
        if (t == SL_MXFP4) sl_mxfp4_decode(b, dst + i);
        if (t == SL_Q4_K) sl_q4_k_decode(b, dst + i);
        if (t == SL_Q5_K) sl_q5_k_decode(b, dst + i);
        if (t == SL_Q6_K) sl_q6_k_decode(b, dst + i);
    }
}

/* Whether sl_block_encode knows the type: F32, F16, BF16, Q8_0, Q4_0, MXFP4, Q4_K.
 */
bool sl_block_encodes(sl_dtype t);

/* Encodes n finite values, a whole number of blocks; dst has sl_dtype_row_bytes(t, n). Q8_0: d is
 * the largest magnitude / 127, codes are rounded to nearest, halves away from zero. Q4_0: d is the
 * value of largest magnitude / -8. MXFP4: the scale's power is that of the largest magnitude less
 * 2. Q4_K: scale and minimum of each 32 values by alternating least
 * squares. */
void sl_block_encode(sl_dtype t, const float *src, size_t n, void *dst);

#endif

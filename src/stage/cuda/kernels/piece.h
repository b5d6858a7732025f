/* Weights as kernels take them: eight values at a time, from global or shared memory.
 *
 * A row of weights is a row of units of 32 values, which four threads share: piece q of a unit has
 * values 4q .. 4q + 3 and 16 + 4q .. 16 + 4q + 3 of it. So each of the 16 lanes of a dot product
 * (docs/numbers.md) belongs to one thread, and a type of 4 bits gives both halves of its bytes to
 * the same thread. Tensor cores of 8 bits ask for the same values.
 *
 * A piece is loaded first and decoded later, so that a kernel can put work in between. Formats are
 * those of quant/block.h; `t` is a constant wherever these functions are called in a loop. */
#ifndef SL_STAGE_CUDA_PIECE_H
#define SL_STAGE_CUDA_PIECE_H

#include "quant/block.h"
#include "quant/fp8.h"
#include "stage/cuda/kernels/device.h"

#define SL_UNIT 32u

/* As loaded: codes or values in w[0], w[1] (F32: all eight), what else a type has behind them. */
typedef struct sl_piece {
    uint32_t w[8];
} sl_piece;

/* Four bytes at any address, of which only words are read that hold some of them. */
SL_DEV uint32_t sl_four_any(const uint8_t *p) {
    const uint32_t past = (uint32_t)((uintptr_t)p & 3);
    const uint32_t low = *(const uint32_t *)(p - past);
    const uint32_t high = *(const uint32_t *)(p - past + (past ? 4 : 0));
    return (uint32_t)(((uint64_t)high << 32 | low) >> (8 * past));
}

SL_DEV uint32_t sl_four(const uint8_t *p, bool aligned) {
    return aligned ? *(const uint32_t *)p : sl_four_any(p);
}

/* 4 * n bytes, aligned to as many; n is 2 or 4. */
SL_DEV void sl_words(const uint8_t *p, uint32_t n, bool aligned, uint32_t *w) {
    if (!aligned) {
        SL_UNROLL
        for (uint32_t i = 0; i < n; i++) w[i] = sl_four_any(p + 4 * i);
    } else if (n == 2) {
        const uint2 v = *(const uint2 *)p;
        w[0] = v.x, w[1] = v.y;
    } else {
        const uint4 v = *(const uint4 *)p;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
}

SL_DEV uint32_t sl_half_bits(const uint8_t *p) {
    return *(const uint16_t *)p;
}

SL_DEV float sl_half_value(uint32_t bits) {
#ifdef __CUDACC__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
    return f;
#else
    return sl_f16_to_f32((uint16_t)bits);
#endif
}

/* The four codes of E4M3 in a word. */
SL_DEV void sl_e4m3_values(uint32_t codes, float v[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t low, high; /* pairs of f16, which hold them exactly */
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((uint16_t)codes));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((uint16_t)(codes >> 16)));
    v[0] = sl_half_value(low), v[1] = sl_half_value(low >> 16);
    v[2] = sl_half_value(high), v[3] = sl_half_value(high >> 16);
#else
    for (uint32_t i = 0; i < 4; i++) v[i] = sl_e4m3_to_f32((uint8_t)(codes >> 8 * i));
#endif
}

/* Byte i of a word as a number, less `bias`: exact, and faster than a conversion. */
SL_DEV float sl_byte_value(uint32_t bytes, uint32_t i, uint32_t bias) {
    return sl_f32_of_bits(0x4b000000u | (bytes >> 8 * i & 255u)) - (float)(0x800000u + bias);
}

/* Bytes of 256 values. */
SL_FN uint32_t sl_bytes_of_256(sl_dtype t) {
    return t == SL_F32     ? 1024
           : t == SL_F16   ? 512
           : t == SL_BF16  ? 512
           : t == SL_Q8_0  ? 272
           : t == SL_Q4_0  ? 144
           : t == SL_MXFP4 ? 136
           : t == SL_Q4_K  ? 144
           : t == SL_Q5_K  ? 176
           : t == SL_Q6_K  ? 210
                           : 256;
}

/* Whether 256 values have one d. */
SL_FN bool sl_is_k(sl_dtype t) {
    return t == SL_Q4_K || t == SL_Q5_K || t == SL_Q6_K;
}

/* Whether pieces are loaded in another way where rows begin at multiples of 16 bytes. */
SL_FN bool sl_minds_alignment(sl_dtype t) {
    return t == SL_F32 || t == SL_F16 || t == SL_BF16 || t == SL_F8_E4M3 || t == SL_Q4_K ||
           t == SL_Q5_K;
}

SL_DEV void sl_piece_k(sl_dtype t, const uint8_t *b, uint32_t s, uint32_t q, bool aligned,
                       sl_piece *p) {
    const uint8_t *code = b + (t == SL_Q4_K ? 16 : 48) + s / 2 * 32 + 4 * q;
    uint8_t scale, min;
    sl_k_scale(b + 4, (int)s, &scale, &min);
    p->w[0] = sl_four(code, aligned), p->w[1] = sl_four(code + 16, aligned);
    p->w[2] = sl_half_bits(b) | sl_half_bits(b + 2) << 16;
    p->w[3] = scale | (uint32_t)min << 8;
    if (t == SL_Q4_K) return;
    p->w[4] = sl_four(b + 16 + 4 * q, aligned), p->w[5] = sl_four(b + 32 + 4 * q, aligned);
}

SL_DEV void sl_piece_q6_k(const uint8_t *b, uint32_t s, uint32_t q, sl_piece *p) {
    const uint8_t *low = b + s / 4 * 64 + s % 2 * 32 + 4 * q, *high = b + 128 + s / 4 * 32 + 4 * q;
    p->w[0] = sl_four_any(low), p->w[1] = sl_four_any(low + 16);
    p->w[2] = sl_half_bits(b + 208), p->w[3] = sl_half_bits(b + 192 + 2 * s);
    p->w[4] = sl_four_any(high), p->w[5] = sl_four_any(high + 16);
}

/* Piece q of unit u of the row that begins at `row` with a whole block. aligned: the row begins at
 * a multiple of 16 bytes. Types of 2 bytes, and those with a d of f16, lie at even addresses. */
SL_DEV void sl_piece_load(sl_dtype t, const uint8_t *row, uint32_t u, uint32_t q, bool aligned,
                          sl_piece *p) {
    if (t == SL_F32) {
        sl_words(row + 128 * u + 16 * q, 4, aligned, p->w);
        sl_words(row + 128 * u + 16 * q + 64, 4, aligned, p->w + 4);
    } else if (t == SL_F16 || t == SL_BF16) {
        sl_words(row + 64 * u + 8 * q, 2, aligned, p->w);
        sl_words(row + 64 * u + 8 * q + 32, 2, aligned, p->w + 2);
    } else if (t == SL_F8_E4M3) {
        p->w[0] = sl_four(row + 32 * u + 4 * q, aligned);
        p->w[1] = sl_four(row + 32 * u + 4 * q + 16, aligned);
    } else if (t == SL_Q8_0) {
        const uint8_t *b = row + 34 * u;
        p->w[0] = sl_four_any(b + 2 + 4 * q), p->w[1] = sl_four_any(b + 18 + 4 * q);
        p->w[2] = sl_half_bits(b);
    } else if (t == SL_Q4_0) {
        p->w[0] = sl_four_any(row + 18 * u + 2 + 4 * q);
        p->w[2] = sl_half_bits(row + 18 * u);
    } else if (t == SL_MXFP4) {
        p->w[0] = sl_four_any(row + 17 * u + 1 + 4 * q);
        p->w[2] = row[17 * u];
    } else if (t == SL_Q6_K) {
        sl_piece_q6_k(row + u / 8 * 210, u % 8, q, p);
    } else {
        sl_piece_k(t, row + u / 8 * (t == SL_Q4_K ? 144 : 176), u % 8, q, aligned, p);
    }
}

/* The same of a unit that ends after n < 32 values, of types with rows of any length; zeros
 * follow. */
SL_DEV void sl_piece_tail(sl_dtype t, const uint8_t *row, uint32_t u, uint32_t q, uint32_t n,
                          sl_piece *p) {
    const uint32_t bytes = sl_bytes_of_256(t) / 256;
    for (uint32_t i = 0; i < 8; i++) p->w[i] = 0;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t at = 4 * q + i % 4 + i / 4 * 16;
        const uint8_t *from = row + (SL_UNIT * u + at) * bytes;
        if (at >= n) continue;
        if (t == SL_F32)
            p->w[i] = *(const uint32_t *)from;
        else if (t == SL_F8_E4M3)
            p->w[i / 4] |= (uint32_t)*from << 8 * (i % 4);
        else
            p->w[i / 2] |= sl_half_bits(from) << 16 * (i % 2);
    }
}

/* F8_E4M3: the scales of both halves of piece q of unit u; scale[i] is that of values 128 i - past
 * and so on of the row, past < 128 a multiple of 4. n: as above, or 32. */
SL_DEV void sl_piece_scales(const float *scale, uint32_t past, uint32_t u, uint32_t q, uint32_t n,
                            sl_piece *p) {
    const uint32_t at = past + SL_UNIT * u + 4 * q;
    p->w[2] = sl_f32_bits(4 * q < n ? scale[at / SL_F8_BLOCK] : 0.0f);
    p->w[3] = sl_f32_bits(4 * q + 16 < n ? scale[(at + 16) / SL_F8_BLOCK] : 0.0f);
}

/* Codes of the first and the second half as bytes, unsigned but in Q8_0; types of integers. */
SL_DEV void sl_piece_codes(sl_dtype t, const sl_piece *p, uint32_t u, uint32_t c[2]) {
    const uint32_t s = u % 8, nibbles = 0x0f0f0f0fu;
    if (t == SL_Q8_0) {
        c[0] = p->w[0], c[1] = p->w[1];
    } else if (t == SL_Q4_0 || t == SL_MXFP4) {
        c[0] = p->w[0] & nibbles, c[1] = p->w[0] >> 4 & nibbles;
    } else if (t == SL_Q6_K) {
        const uint32_t shift = s % 4 < 2 ? 0 : 4, pair = s % 4 * 2;
        SL_UNROLL
        for (uint32_t i = 0; i < 2; i++)
            c[i] = (p->w[i] >> shift & nibbles) | (p->w[4 + i] >> pair & 0x03030303u) << 4;
    } else {
        SL_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            c[i] = p->w[i] >> (s & 1 ? 4 : 0) & nibbles;
            if (t == SL_Q5_K) c[i] |= (p->w[4 + i] >> s & 0x01010101u) << 4;
        }
    }
}

/* Four codes of MXFP4 as signed bytes: doubled, as SL_MXFP4_CODES has them. The three low bits of
 * each take a byte of a table, of magnitudes below zero where the fourth bit is set. */
SL_DEV uint32_t sl_mxfp4_signed(uint32_t codes) {
    const uint32_t pairs = (codes & 0x07070707u) | (codes & 0x07070707u) >> 4;
    const uint32_t which = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
    const uint32_t below = sl_byte_perm(codes << 4, 0, 0xba98);
    return (sl_byte_perm(0x03020100u, 0x0c080604u, which) & ~below) |
           (sl_byte_perm(0xfdfeff00u, 0xf4f8fafcu, which) & below);
}

/* The same as signed bytes, for products of integers. */
SL_DEV void sl_piece_signed(sl_dtype t, const sl_piece *p, uint32_t u, uint32_t c[2]) {
    const uint32_t top = 0x80808080u, bias = t == SL_Q4_0 ? 0x08080808u : 0x20202020u;
    sl_piece_codes(t, p, u, c);
    if (t == SL_MXFP4) c[0] = sl_mxfp4_signed(c[0]), c[1] = sl_mxfp4_signed(c[1]);
    if (t != SL_Q4_0 && t != SL_Q6_K) return;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) c[i] = ((c[i] | top) - bias) ^ top;
}

/* What codes of a block of 32 are multiplied with, of the third word of a piece. */
SL_DEV float sl_piece_scale_32(sl_dtype t, uint32_t word) {
    return t == SL_MXFP4 ? sl_mxfp4_half_scale((uint8_t)word) : sl_half_value(word);
}

/* Code i of a word of them: 0 or 1 and so on to 12, with its sign, as sl_mxfp4_decode has it. The
 * three low bits are a float of that many, but for its exponent; a zero has no sign. */
SL_DEV float sl_mxfp4_value(uint32_t codes, uint32_t i, float half_scale) {
    const uint32_t c = codes >> 8 * i;
    const float v = sl_f32_of_bits((c & 7u) << 22 | (c & 8u) << 28) * 0x1p127f;
    return fmaf(v, half_scale, 0.0f);
}

/* What the four codes of half h of a piece stand for. */
SL_DEV void sl_piece_half(sl_dtype t, const sl_piece *p, uint32_t codes, uint32_t h, float v[4]) {
    const float d = sl_half_value(p->w[2]);
    if (t == SL_Q8_0) {
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = d * sl_byte_value(codes ^ 0x80808080u, i, 128);
    } else if (t == SL_Q4_0) {
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = d * sl_byte_value(codes, i, 8);
    } else if (t == SL_MXFP4) {
        const float half_scale = sl_mxfp4_half_scale((uint8_t)p->w[2]);
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = sl_mxfp4_value(codes, i, half_scale);
    } else if (t == SL_Q6_K) {
        const float a = d * (float)(int8_t)(p->w[3] >> 8 * h);
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = a * sl_byte_value(codes, i, 32);
    } else {
        const float a = d * (float)(p->w[3] & 255u);
        const float m = sl_half_value(p->w[2] >> 16) * (float)(p->w[3] >> 8);
        /* a * code is exact, so this rounds once, as the two steps do. */
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) v[i] = fmaf(a, sl_byte_value(codes, i, 0), -m);
    }
}

/* The eight values of piece q of unit u. */
SL_DEV void sl_piece_values(sl_dtype t, const sl_piece *p, uint32_t u, float v[8]) {
    uint32_t c[2];
    if (t == SL_F32) {
        SL_UNROLL
        for (uint32_t i = 0; i < 8; i++) v[i] = sl_f32_of_bits(p->w[i]);
    } else if (t == SL_BF16) {
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            v[2 * i] = sl_f32_of_bits(p->w[i] << 16);
            v[2 * i + 1] = sl_f32_of_bits(p->w[i] & 0xffff0000u);
        }
    } else if (t == SL_F16) {
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            v[2 * i] = sl_half_value(p->w[i]);
            v[2 * i + 1] = sl_half_value(p->w[i] >> 16);
        }
    } else if (t == SL_F8_E4M3) {
        sl_e4m3_values(p->w[0], v);
        sl_e4m3_values(p->w[1], v + 4);
        SL_UNROLL
        for (uint32_t i = 0; i < 8; i++) v[i] = v[i] * sl_f32_of_bits(p->w[2 + i / 4]);
    } else {
        sl_piece_codes(t, p, u, c);
        sl_piece_half(t, p, c[0], 0, v);
        sl_piece_half(t, p, c[1], 1, v + 4);
    }
}

#endif

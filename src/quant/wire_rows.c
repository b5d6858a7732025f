/* Rows between f32 and the formats of the wire. The loops are plain so that compilers make vector
 * code of them, fp8's a second time for AVX2. */
#include "quant/wire_rows.h"

#include "quant/fp8.h"

#include <string.h>

const char *sl_wire_format_name(sl_wire_format f) {
    switch (f) {
    case SL_WIRE_F32:
        return "f32";
    case SL_WIRE_BF16:
        return "bf16";
    case SL_WIRE_FP8:
        return "fp8";
    case SL_WIRE_FORMAT_COUNT:
        break;
    }
    return "unknown";
}

size_t sl_wire_row_bytes(sl_wire_format f, uint32_t d_model) {
    if (d_model == 0) return 0;
    switch (f) {
    case SL_WIRE_BF16:
        return (size_t)d_model * 2;
    case SL_WIRE_FP8:
        return (SL_WIRE_FP8_HEAD + d_model + 3) & ~(size_t)3;
    case SL_WIRE_F32:
    case SL_WIRE_FORMAT_COUNT:
        break;
    }
    return (size_t)d_model * 4;
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE uint32_t top_body(const float *restrict src, uint32_t d) {
    int32_t largest = 0;
    for (uint32_t i = 0; i < d; i++) {
        int32_t u = (int32_t)(sl_f32_bits(src[i]) & 0x7fffffffu);
        u = (int32_t)sl_fp8_pick(u > 0x7f7fffff, 0, (uint32_t)u);
        largest = u > largest ? u : largest;
    }
    return (uint32_t)largest;
}

ALWAYS_INLINE void pack_fp8_body(const float *restrict src, uint32_t d, uint32_t top,
                                 uint8_t *restrict dst) {
    float scale = sl_e4m3_scale_of(top), inverse = sl_e4m3_inverse_of(scale);
    memcpy(dst, &scale, sizeof scale);
    dst += SL_WIRE_FP8_HEAD;
    for (uint32_t i = 0; i < d; i++) dst[i] = sl_f32_to_e4m3(src[i] * inverse);
    for (uint32_t i = d; i % 4; i++) dst[i] = 0;
}

/* Columns first .. first + n - 1 of a row. */
ALWAYS_INLINE void unpack_fp8_body(const uint8_t *restrict src, uint32_t first, uint32_t n,
                                   float *restrict dst) {
    float scale;
    memcpy(&scale, src, sizeof scale);
    src += SL_WIRE_FP8_HEAD + first;
    for (uint32_t i = 0; i < n; i++) dst[i] = sl_e4m3_to_f32(src[i]) * scale;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint32_t top_avx2(const float *src, uint32_t d) {
    return top_body(src, d);
}
__attribute__((target("avx2"))) static void pack_fp8_avx2(const float *src, uint32_t d,
                                                          uint32_t top, uint8_t *dst) {
    pack_fp8_body(src, d, top, dst);
}
__attribute__((target("avx2"))) static void unpack_fp8_avx2(const uint8_t *src, uint32_t first,
                                                            uint32_t n, float *dst) {
    unpack_fp8_body(src, first, n, dst);
}
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#else
#define top_avx2        top_body
#define pack_fp8_avx2   pack_fp8_body
#define unpack_fp8_avx2 unpack_fp8_body
#define HAS_AVX2        false
#endif

static void pack_fp8(const float *src, uint32_t d, uint32_t top, uint8_t *dst) {
    if (HAS_AVX2)
        pack_fp8_avx2(src, d, top, dst);
    else
        pack_fp8_body(src, d, top, dst);
}

static void unpack_fp8(const uint8_t *src, uint32_t first, uint32_t n, float *dst) {
    if (HAS_AVX2)
        unpack_fp8_avx2(src, first, n, dst);
    else
        unpack_fp8_body(src, first, n, dst);
}

void sl_wire_pack(sl_wire_format f, const float *src, size_t rows, uint32_t d_model, void *dst) {
    size_t n = rows * d_model, stride = sl_wire_row_bytes(f, d_model);
    if (n == 0) return;
    if (f == SL_WIRE_F32) {
        memcpy(dst, src, n * sizeof *src);
    } else if (f == SL_WIRE_BF16) {
        uint16_t *out = dst;
        for (size_t i = 0; i < n; i++) out[i] = sl_f32_to_bf16(src[i]);
    } else {
        for (size_t r = 0; r < rows; r++) {
            const float *row = src + r * d_model;
            pack_fp8(row, d_model, sl_wire_top(row, d_model), (uint8_t *)dst + r * stride);
        }
    }
}

uint32_t sl_wire_top(const float *src, uint32_t n) {
    return HAS_AVX2 ? top_avx2(src, n) : top_body(src, n);
}

void sl_wire_pack_columns(sl_wire_format f, const float *src, uint32_t n, uint32_t top, void *dst) {
    if (f == SL_WIRE_FP8)
        pack_fp8(src, n, top, dst);
    else
        sl_wire_pack(f, src, 1, n, dst);
}

void sl_wire_unpack_columns(sl_wire_format f, const void *row, uint32_t first, uint32_t n,
                            float *dst) {
    const size_t width = f == SL_WIRE_BF16 ? sizeof(uint16_t) : sizeof(float);
    if (f == SL_WIRE_FP8)
        unpack_fp8(row, first, n, dst);
    else
        sl_wire_unpack(f, (const uint8_t *)row + first * width, 1, n, dst);
}

void sl_wire_unpack(sl_wire_format f, const void *src, size_t rows, uint32_t d_model, float *dst) {
    size_t n = rows * d_model, stride = sl_wire_row_bytes(f, d_model);
    if (n == 0) return;
    if (f == SL_WIRE_F32) {
        memcpy(dst, src, n * sizeof *dst);
    } else if (f == SL_WIRE_BF16) {
        const uint16_t *in = src;
        for (size_t i = 0; i < n; i++) dst[i] = sl_bf16_to_f32(in[i]);
    } else {
        for (size_t r = 0; r < rows; r++)
            unpack_fp8((const uint8_t *)src + r * stride, 0, d_model, dst + r * d_model);
    }
}

sl_status sl_wire_rows_check(sl_wire_format f, const uint8_t *data, size_t rows, uint32_t d_model,
                             sl_err *err) {
    if (f != SL_WIRE_FP8 || d_model == 0) return SL_OK;
    size_t stride = sl_wire_row_bytes(f, d_model);
    for (size_t r = 0; r < rows; r++) {
        float scale;
        memcpy(&scale, data + r * stride, sizeof scale);
        uint32_t exponent = sl_f32_bits(scale) >> 23;
        if ((sl_f32_bits(scale) & 0x7fffffu) || exponent == 0 || exponent > 254)
            return sl_fail(err, SL_ERR_PROTOCOL, "row %zu: scale %g is no power of two", r,
                           (double)scale);
    }
    return SL_OK;
}

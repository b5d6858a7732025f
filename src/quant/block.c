/* Values to blocks of GGUF. */
#include "quant/block.h"

#include <math.h>

#define ROUNDS 6 /* of alternating least squares; further ones change nothing worth having */

bool sl_block_encodes(sl_dtype t) {
    return sl_dtype_is_plain(t) || t == SL_Q8_0 || t == SL_Q4_0 || t == SL_MXFP4 || t == SL_Q4_K;
}

static void put_f16(uint8_t *p, float f) {
    uint16_t h = sl_f32_to_f16(f);
    memcpy(p, &h, sizeof h);
}

static void encode_q8_0(const float *x, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[i]));
    float d = most / 127.0f, inverse = d != 0 ? 1.0f / d : 0;
    put_f16(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

static uint8_t code_4_0(float x, float inverse) {
    int q = (int)(x * inverse + 8.5f);
    return (uint8_t)SL_MAX(0, SL_MIN(q, 15));
}

static void encode_q4_0(const float *x, uint8_t *b) {
    float most = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    float d = most / -8.0f, inverse = d != 0 ? 1.0f / d : 0;
    put_f16(b, d);
    for (int i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(code_4_0(x[i], inverse) | code_4_0(x[16 + i], inverse) << 4);
}

/* The largest power of two of the values is that of the largest code, 4; what is above 6 becomes 6.
 * Halfway goes to the smaller magnitude. */
static void encode_mxfp4(const float *x, uint8_t *b) {
    static const int8_t code[16] = SL_MXFP4_CODES;
    float most = 0;
    int e = -125;
    for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[i]));
    if (most > 0) e = SL_MAX(ilogbf(most) - 2, -127);
    b[0] = (uint8_t)(e + 127);
    float half = sl_mxfp4_half_scale(b[0]);
    for (int i = 0; i < 32; i++) {
        uint8_t best = 0;
        for (uint8_t c = 1; c < 8; c++)
            if (fabsf(fabsf(x[i]) - half * (float)code[c]) <
                fabsf(fabsf(x[i]) - half * (float)code[best]))
                best = c;
        best = (uint8_t)(best | (x[i] < 0) << 3);
        b[1 + i % 16] = (uint8_t)(i < 16 ? best : b[1 + i % 16] | best << 4);
    }
}

/* x is about scale * code - min, scale and min >= 0. */
typedef struct fit {
    float scale, min;
} fit;

static int nearest_code(float x, fit f) {
    float q = f.scale > 0 ? roundf((x + f.min) / f.scale) : 0;
    return (int)fmaxf(0, fminf(q, 15));
}

static double fit_error(const float *x, fit f) {
    double sum = 0;
    for (int i = 0; i < 32; i++) {
        double e = (double)f.scale * nearest_code(x[i], f) - f.min - x[i];
        sum += e * e;
    }
    return sum;
}

/* The best scale and minimum for the codes that `from` gives. */
static fit refit(const float *x, fit from) {
    double q1 = 0, q2 = 0, s = 0, sq = 0;
    for (int i = 0; i < 32; i++) {
        int q = nearest_code(x[i], from);
        q1 += q, q2 += q * q, s += x[i], sq += (double)q * x[i];
    }
    double det = 32 * q2 - q1 * q1;
    fit f = from;
    if (det > 0) f = (fit){(float)((32 * sq - q1 * s) / det), (float)((q1 * sq - q2 * s) / det)};
    if (f.min < 0 && q2 > 0) f = (fit){(float)(sq / q2), 0};
    return f.scale > 0 ? f : from;
}

/* Scale and minimum of 32 values. */
static fit fit_32(const float *x) {
    float low = 0, high = 0;
    for (int i = 0; i < 32; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    fit best = {(high - low) / 15.0f, -low};
    double least = fit_error(x, best);
    /* Narrower ranges clip the extremes, and often err less in sum. */
    for (int shrink = 0; shrink < 6; shrink++) {
        fit f = {(high - low) * (1.0f - 0.05f * (float)shrink) / 15.0f, -low};
        for (int i = 0; i < ROUNDS; i++) {
            f = refit(x, f);
            double e = fit_error(x, f);
            if (e < least) {
                least = e;
                best = f;
            }
        }
    }
    return best;
}

/* The 12 bytes of eight scales and minima of 6 bits. */
static void put_scales(const uint8_t *scale, const uint8_t *min, uint8_t *p) {
    for (int s = 0; s < 4; s++) {
        p[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        p[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        p[s + 8] = (uint8_t)((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
}

static uint8_t code_6(float v, float unit) {
    return unit > 0 ? (uint8_t)fminf(roundf(v / unit), 63) : 0;
}

static void encode_q4_k(const float *x, uint8_t *b) {
    fit f[8];
    float most = 0, most_min = 0;
    uint8_t scale[8], min[8];
    for (int s = 0; s < 8; s++) {
        f[s] = fit_32(x + 32 * s);
        most = fmaxf(most, f[s].scale);
        most_min = fmaxf(most_min, f[s].min);
    }
    put_f16(b, most / 63.0f);
    put_f16(b + 2, most_min / 63.0f);
    float d = sl_block_f16(b), dmin = sl_block_f16(b + 2);
    for (int s = 0; s < 8; s++) {
        scale[s] = code_6(f[s].scale, d);
        min[s] = code_6(f[s].min, dmin);
        f[s] = (fit){d * (float)scale[s], dmin * (float)min[s]};
    }
    put_scales(scale, min, b + 4);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++)
            b[16 + 32 * p + i] = (uint8_t)(nearest_code(x[64 * p + i], f[2 * p]) |
                                           nearest_code(x[64 * p + 32 + i], f[2 * p + 1]) << 4);
}

static void encode_plain(sl_dtype t, const float *src, size_t n, uint8_t *dst) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h = t == SL_F16 ? sl_f32_to_f16(src[i]) : sl_f32_to_bf16(src[i]);
        if (t == SL_F32)
            memcpy(dst + 4 * i, src + i, 4);
        else
            memcpy(dst + 2 * i, &h, 2);
    }
}

void sl_block_encode(sl_dtype t, const float *src, size_t n, void *dst) {
    uint8_t *b = dst;
    size_t step = sl_dtype_block(t), bytes = sl_dtype_block_bytes(t);
    SL_ASSERT(sl_block_encodes(t) && n % step == 0);
    if (sl_dtype_is_plain(t)) {
        encode_plain(t, src, n, b);
        return;
    }
    for (size_t i = 0; i < n; i += step, b += bytes) {
        if (t == SL_Q8_0) encode_q8_0(src + i, b);
        if (t == SL_Q4_0) encode_q4_0(src + i, b);
        if (t == SL_MXFP4) encode_mxfp4(src + i, b);
        if (t == SL_Q4_K) encode_q4_k(src + i, b);
    }
}

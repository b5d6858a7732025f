/* Kernels over vectors in the type v16; those whose elements need no exp and no chain are the loops
 * of kernel/loops.h. */
#include "kernel/bf16.h"
#include "kernel/kernel_int.h"
#include "kernel/loops.h"

/* sl_exp_scalar, operation for operation. */
SL_INLINE v16 simd_exp(v16 x) {
    x = v_max(v_set1(SL_EXP_MIN), x);
    x = v_min(v_set1(SL_EXP_MAX), x);
    const v16 shift = v_set1(SL_EXP_SHIFT), one = v_set1(1.0f);
    v16 t = v_fma(x, v_set1(SL_EXP_LOG2E), shift), n = v_sub(t, shift);
    v16 r = v_fma(n, v_set1(-SL_EXP_LN2HI), x);
    r = v_fma(n, v_set1(-SL_EXP_LN2LO), r);
    v16 p = v_fma(v_set1(SL_EXP_C7), r, v_set1(SL_EXP_C6));
    p = v_fma(p, r, v_set1(SL_EXP_C5));
    p = v_fma(p, r, v_set1(SL_EXP_C4));
    p = v_fma(p, r, v_set1(SL_EXP_C3));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, one);
    p = v_fma(p, r, one);
    return v_scale_exp(p, t);
}

/* sl_gated_scalar */
SL_INLINE v16 simd_gated(v16 y, v16 gate) {
    return v_div(y, v_add(v_set1(1.0f), simd_exp(v_neg(gate))));
}

static inline void simd_swiglu(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const v16 g = v_load(gate + i);
        v_store(gate + i, v_mul(simd_gated(g, g), v_load(up + i)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_scalar(gate[i], up[i]);
}

static inline void simd_swiglu_clamped(float *gate, const float *up, float limit, size_t n) {
    const v16 one = v_set1(1.0f), high = v_set1(limit), low = v_set1(-limit);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 g = v_min(high, v_load(gate + i)), u = v_max(low, v_min(high, v_load(up + i)));
        v16 e = simd_exp(v_neg(v_mul(v_set1(SL_SWIGLU_ALPHA), g)));
        v_store(gate + i, v_mul(v_div(g, v_add(one, e)), v_add(u, one)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_clamped_scalar(gate[i], up[i], limit);
}

static inline void simd_gate_values(float *y, const float *gate, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(y + i, simd_gated(v_load(y + i), v_load(gate + i)));
    for (; i < n; i++) y[i] = sl_gated_scalar(y[i], gate[i]);
}

static inline float simd_rms_inverse(const float *x, float eps, uint32_t n) {
    v16 sum = v_set1(0);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v_load(x + i);
        sum = v_fma(v, v, sum);
    }
    if (i < n) {
        float pad[16] = {0};
        memcpy(pad, x + i, (n - i) * sizeof *pad);
        v16 v = v_load(pad);
        sum = v_fma(v, v, sum);
    }
    float mean = v_tree(sum) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

static inline void simd_center(const float *x, uint32_t n, float *y) {
    v16 sum = v_set1(0);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) sum = v_add(sum, v_load(x + i));
    if (i < n) {
        float pad[16] = {0};
        memcpy(pad, x + i, (n - i) * sizeof *pad);
        sum = v_add(sum, v_load(pad));
    }
    float mean = v_tree(sum) / (float)n;
    for (i = 0; i < n; i++) y[i] = x[i] - mean;
}

static inline void simd_rotate(float *lo, float *hi, const float *c, const float *s, uint32_t n) {
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 a = v_load(lo + i), b = v_load(hi + i), cv = v_load(c + i), sv = v_load(s + i);
        v_store(lo + i, v_fma(a, cv, v_neg(v_mul(b, sv))));
        v_store(hi + i, v_fma(b, cv, v_mul(a, sv)));
    }
    for (; i < n; i++) {
        float a = lo[i], b = hi[i];
        lo[i] = fmaf(a, c[i], -(b * s[i]));
        hi[i] = fmaf(b, c[i], a * s[i]);
    }
}

#include "kernel/simd/delta.h"

static inline void simd_expv(const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(y + i, simd_exp(v_load(x + i)));
    for (; i < n; i++) y[i] = sl_exp_scalar(x[i]);
}

static inline void simd_to_bf16(const float *src, size_t n, uint16_t *dst) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store_bf16(dst + i, v_load(src + i));
    for (; i < n; i++) dst[i] = sl_f32_to_bf16(src[i]);
}

static inline void simd_to_bf16_row(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    uint16_t *h = (uint16_t *)row;
    uint32_t i = 0;
    (void)kind;
    for (; i + 16 <= k; i += 16) v_store_bf16(h + i, v_normal(v_load(x + i)));
    for (; i < k; i++) h[i] = sl_bf16_round(x[i]);
}

static inline void simd_rms_to_bf16_row(const float *x, const float *w, float inv,
                                        const sl_act_part *to) {
    uint16_t *h = (uint16_t *)to->row + to->at;
    const v16 by = v_set1(inv);
    uint32_t i = 0;
    for (; i + 16 <= to->n; i += 16)
        v_store_bf16(h + i, v_normal(v_mul(v_mul(v_load(x + i), by), v_load(w + i))));
    for (; i < to->n; i++) h[i] = sl_bf16_round(x[i] * inv * w[i]);
}

SL_INLINE v16 simd_load(const uint8_t *p, sl_dtype dtype) {
    if (dtype == SL_F32) return v_load((const float *)(const void *)p);
    return dtype == SL_F16 ? v_load_f16(p) : v_load_bf16(p);
}

/* n values of a plain type of two bytes. */
static inline void simd_widen_halves(const void *src, sl_dtype dtype, size_t n, float *dst) {
    const uint8_t *p = src;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(dst + i, simd_load(p + i * 2, dtype));
    for (; i < n; i++) dst[i] = sl_load_any(src, dtype, i);
}

/* Entries of a table that come from here. */
#define SIMD_VECTORS                                                                               \
    .swiglu = simd_swiglu, .swiglu_clamped = simd_swiglu_clamped, .gate_values = simd_gate_values, \
    .taps = simd_taps, .delta = simd_delta, .rms_inverse = simd_rms_inverse,                       \
    .center = simd_center, .rotate = simd_rotate, .expv = simd_expv, .to_bf16 = simd_to_bf16

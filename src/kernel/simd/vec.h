/* Kernels over vectors in the type v16. Loops over independent elements are left to the compiler,
 * which may vectorise them but never reorder or fuse; chains are written out. */
#include "kernel/kernel_int.h"

/* sl_exp_scalar, operation for operation. */
static inline v16 simd_exp(v16 x) {
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

static void simd_swiglu(float *gate, const float *up, size_t n) {
    const v16 one = v_set1(1.0f);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 g = v_load(gate + i);
        g = v_div(g, v_add(one, simd_exp(v_neg(g))));
        v_store(gate + i, v_mul(g, v_load(up + i)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_scalar(gate[i], up[i]);
}

static void simd_swiglu_clamped(float *gate, const float *up, float limit, size_t n) {
    const v16 one = v_set1(1.0f), high = v_set1(limit), low = v_set1(-limit);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 g = v_min(high, v_load(gate + i)), u = v_max(low, v_min(high, v_load(up + i)));
        v16 e = simd_exp(v_neg(v_mul(v_set1(SL_SWIGLU_ALPHA), g)));
        v_store(gate + i, v_mul(v_div(g, v_add(one, e)), v_add(u, one)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_clamped_scalar(gate[i], up[i], limit);
}

static float simd_rms_inverse(const float *x, float eps, uint32_t n) {
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

static void simd_center(const float *x, uint32_t n, float *y) {
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

static void simd_rms_apply(const float *x, const float *w, float inv, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static void simd_sincos(uint32_t pos, const double *freq, uint32_t n, float *c, float *s) {
    for (uint32_t i = 0; i < n; i++) sl_sincos_scalar((double)pos * freq[i], &c[i], &s[i]);
}

static void simd_rotate(float *lo, float *hi, const float *c, const float *s, uint32_t n) {
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

static void simd_divide(float *o, float sum, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) o[i] = o[i] / sum;
}

static void simd_expv(const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store(y + i, simd_exp(v_load(x + i)));
    for (; i < n; i++) y[i] = sl_exp_scalar(x[i]);
}

static void simd_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void simd_scale(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a * x[i];
}

static void simd_add_scaled(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float p = a * x[i];
        y[i] = y[i] + p;
    }
}

static void simd_to_bf16(const float *src, size_t n, uint16_t *dst) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v_store_bf16(dst + i, v_load(src + i));
    for (; i < n; i++) dst[i] = sl_f32_to_bf16(src[i]);
}

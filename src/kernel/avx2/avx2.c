/* AVX2, FMA and F16C. Loops over independent elements are left to the compiler, which may vectorise
 * them but never reorder or fuse; chains are written out. */
#include "kernel/avx2/avx2.h"
#include "kernel/avx2/exp.h"
#include "kernel/cpu.h"

static void avx2_swiglu(float *gate, const float *up, size_t n) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 e = sl_avx2_exp(_mm256_xor_ps(g, sign));
        g = _mm256_div_ps(g, _mm256_add_ps(one, e));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(g, _mm256_loadu_ps(up + i)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_scalar(gate[i], up[i]);
}

/* min and max give their second operand when one is NaN, as the comparisons in ref do. */
static void avx2_swiglu_clamped(float *gate, const float *up, float limit, size_t n) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    const __m256 alpha = _mm256_set1_ps(SL_SWIGLU_ALPHA);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_min_ps(high, _mm256_loadu_ps(gate + i));
        __m256 u = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(up + i)));
        __m256 e = sl_avx2_exp(_mm256_xor_ps(_mm256_mul_ps(alpha, g), sign));
        g = _mm256_div_ps(g, _mm256_add_ps(one, e));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(g, _mm256_add_ps(u, one)));
    }
    for (; i < n; i++) gate[i] = sl_swiglu_clamped_scalar(gate[i], up[i], limit);
}

float sl_avx2_rms_inverse(const float *x, float eps, uint32_t n) {
    __m256 a = _mm256_setzero_ps(), b = a;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 u = _mm256_loadu_ps(x + i), v = _mm256_loadu_ps(x + i + 8);
        a = _mm256_fmadd_ps(u, u, a);
        b = _mm256_fmadd_ps(v, v, b);
    }
    if (i < n) {
        _Alignas(32) float pad[16] = {0};
        memcpy(pad, x + i, (n - i) * sizeof(float));
        __m256 u = _mm256_load_ps(pad), v = _mm256_load_ps(pad + 8);
        a = _mm256_fmadd_ps(u, u, a);
        b = _mm256_fmadd_ps(v, v, b);
    }
    float mean = sl_avx2_tree16(a, b) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

static void avx2_center(const float *x, uint32_t n, float *y) {
    __m256 a = _mm256_setzero_ps(), b = a;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_add_ps(a, _mm256_loadu_ps(x + i));
        b = _mm256_add_ps(b, _mm256_loadu_ps(x + i + 8));
    }
    if (i < n) {
        _Alignas(32) float pad[16] = {0};
        memcpy(pad, x + i, (n - i) * sizeof(float));
        a = _mm256_add_ps(a, _mm256_load_ps(pad));
        b = _mm256_add_ps(b, _mm256_load_ps(pad + 8));
    }
    float mean = sl_avx2_tree16(a, b) / (float)n;
    for (i = 0; i < n; i++) y[i] = x[i] - mean;
}

static void avx2_rms_apply(const float *x, const float *w, float inv, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static void avx2_sincos(uint32_t pos, const double *freq, uint32_t n, float *c, float *s) {
    for (uint32_t i = 0; i < n; i++) sl_sincos_scalar((double)pos * freq[i], &c[i], &s[i]);
}

static void avx2_rotate(float *lo, float *hi, const float *c, const float *s, uint32_t n) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(lo + i), b = _mm256_loadu_ps(hi + i);
        __m256 cv = _mm256_loadu_ps(c + i), sv = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(lo + i, _mm256_fmsub_ps(a, cv, _mm256_mul_ps(b, sv)));
        _mm256_storeu_ps(hi + i, _mm256_fmadd_ps(b, cv, _mm256_mul_ps(a, sv)));
    }
    for (; i < n; i++) {
        float a = lo[i], b = hi[i];
        lo[i] = fmaf(a, c[i], -(b * s[i]));
        hi[i] = fmaf(b, c[i], a * s[i]);
    }
}

static void avx2_divide(float *o, float sum, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) o[i] = o[i] / sum;
}

static void avx2_expv(const float *x, size_t n, float *y) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, sl_avx2_exp(_mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] = sl_exp_scalar(x[i]);
}

static void avx2_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void avx2_scale(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a * x[i];
}

static void avx2_add_scaled(float *y, const float *x, float a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float p = a * x[i];
        y[i] = y[i] + p;
    }
}

static void avx2_widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    const uint8_t *p = src;
    size_t i = 0;
    if (!sl_dtype_is_plain(dtype)) {
        sl_avx2_block_decode(dtype, src, n, dst);
        return;
    }
    if (dtype == SL_F32) {
        memcpy(dst, src, n * sizeof(float));
        return;
    }
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(p + i * 2));
        __m256 f = dtype == SL_F16
                       ? _mm256_cvtph_ps(h)
                       : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
        _mm256_storeu_ps(dst + i, f);
    }
    for (; i < n; i++) dst[i] = sl_load_any(src, dtype, i);
}

static void avx2_to_bf16(const float *src, size_t n, uint16_t *dst) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 f = _mm256_loadu_ps(src + i);
        __m256i u = _mm256_castps_si256(f), top = _mm256_srli_epi32(u, 16);
        __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
        __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i nan = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        __m256 is_nan = _mm256_cmp_ps(f, f, _CMP_UNORD_Q);
        near = _mm256_blendv_epi8(_mm256_srli_epi32(near, 16), nan, _mm256_castps_si256(is_nan));
        __m128i h =
            _mm_packus_epi32(_mm256_castsi256_si128(near), _mm256_extracti128_si256(near, 1));
        _mm_storeu_si128((__m128i *)(dst + i), h);
    }
    for (; i < n; i++) dst[i] = sl_f32_to_bf16(src[i]);
}

const sl_kernels sl_kernels_avx2 = {
    .name = "avx2",
    .supported = sl_cpu_has_avx2,
    .gemm_tile = sl_avx2_gemm_tile,
    .quantise = sl_avx2_quantise,
    .int8_tile = sl_avx2_int8_tile,
    .swiglu = avx2_swiglu,
    .swiglu_clamped = avx2_swiglu_clamped,
    .rms_inverse = sl_avx2_rms_inverse,
    .center = avx2_center,
    .rms_apply = avx2_rms_apply,
    .sincos = avx2_sincos,
    .rotate = avx2_rotate,
    .attn_page = sl_avx2_attn_page,
    .divide = avx2_divide,
    .softmax = sl_avx2_softmax,
    .expv = avx2_expv,
    .add = avx2_add,
    .scale = avx2_scale,
    .add_scaled = avx2_add_scaled,
    .widen = avx2_widen,
    .to_bf16 = avx2_to_bf16,
};

/* The definition of products and of the sums in norms. */
#include "kernel/ref/ref.h"
#include "kernel/scalar.h"
#include "quant/block.h"

static float dot_any(const float *x, const uint8_t *w, sl_dtype dtype, uint32_t k) {
    float s[SL_DOT_LANES] = {0};
    for (uint32_t i = 0; i < k; i += SL_DOT_LANES)
        for (uint32_t j = 0; j < SL_DOT_LANES; j++) {
            bool in = i + j < k;
            s[j] = fmaf(in ? x[i + j] : 0.0f, in ? sl_load_any(w, dtype, i + j) : 0.0f, s[j]);
        }
    return sl_tree16(s);
}

static float dot_blocks(const sl_gemm_tile *t, const float *x, uint32_t c) {
    float s[SL_DOT_LANES] = {0}, value[SL_BLOCK_MAX];
    for (uint32_t i = 0; i < t->k; i += SL_BLOCK_MAX) {
        uint32_t n = SL_MIN(SL_BLOCK_MAX, t->k - i);
        sl_tile_decode(t, c, i, n, value);
        for (uint32_t j = 0; j < n; j++)
            s[j % SL_DOT_LANES] = fmaf(x[i + j], value[j], s[j % SL_DOT_LANES]);
    }
    for (uint32_t i = t->k; i % SL_DOT_LANES; i++) /* F8_E4M3: rows of any length */
        s[i % SL_DOT_LANES] = fmaf(0.0f, 0.0f, s[i % SL_DOT_LANES]);
    return sl_tree16(s);
}

void sl_ref_gemm_tile(const sl_gemm_tile *t) {
    bool plain = sl_dtype_is_plain(t->dtype);
    for (uint32_t c = 0; c < t->n_cols; c++)
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const uint8_t *w = (const uint8_t *)t->w + c * t->w_stride;
            t->y[(size_t)r * t->y_stride + c] =
                plain ? dot_any(t->x[r], w, t->dtype, t->k) : dot_blocks(t, t->x[r], c);
        }
}

void sl_ref_center(const float *x, uint32_t n, float *y) {
    float lane[SL_DOT_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % SL_DOT_LANES] += x[i];
    float mean = sl_tree16(lane) / (float)n;
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] - mean;
}

float sl_ref_rms_inverse(const float *x, float eps, uint32_t n) {
    float mean = dot_any(x, (const uint8_t *)x, SL_F32, n) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

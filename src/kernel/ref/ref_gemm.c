#include "kernel/ref/ref.h"
#include "kernel/scalar.h"

static float dot_any(const float *x, const uint8_t *w, sl_dtype dtype, uint32_t k) {
    float s[SL_DOT_LANES] = {0};
    for (uint32_t i = 0; i < k; i += SL_DOT_LANES)
        for (uint32_t j = 0; j < SL_DOT_LANES; j++) {
            bool in = i + j < k;
            s[j] = fmaf(in ? x[i + j] : 0.0f, in ? sl_load_any(w, dtype, i + j) : 0.0f, s[j]);
        }
    return sl_tree16(s);
}

void sl_ref_gemm_tile(const sl_gemm_tile *t) {
    size_t row_bytes = (size_t)t->k * sl_dtype_bytes(t->dtype);
    for (uint32_t c = 0; c < t->n_cols; c++)
        for (uint32_t r = 0; r < t->n_rows; r++)
            t->y[(size_t)r * t->y_stride + c] =
                dot_any(t->x[r], (const uint8_t *)t->w + c * row_bytes, t->dtype, t->k);
}

float sl_ref_rms_inverse(const float *x, float eps, uint32_t n) {
    float mean = dot_any(x, (const uint8_t *)x, SL_F32, n) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

/* Scalar reference: slow, plain, and the definition of every result. */
#include "kernel/loops.h"
#include "kernel/ref/ref.h"
#include "quant/block.h"

static bool always(void) {
    return true;
}

static void ref_swiglu(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) gate[i] = sl_swiglu_scalar(gate[i], up[i]);
}

static void ref_swiglu_clamped(float *gate, const float *up, float limit, size_t n) {
    for (size_t i = 0; i < n; i++) gate[i] = sl_swiglu_clamped_scalar(gate[i], up[i], limit);
}

static void ref_gate_values(float *y, const float *gate, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = sl_gated_scalar(y[i], gate[i]);
}

static void ref_rotate(float *lo, float *hi, const float *c, const float *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float a = lo[i], b = hi[i];
        lo[i] = fmaf(a, c[i], -(b * s[i]));
        hi[i] = fmaf(b, c[i], a * s[i]);
    }
}

static void ref_expv(const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = sl_exp_scalar(x[i]);
}

static void ref_widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    if (!sl_dtype_is_plain(dtype)) {
        sl_block_decode(dtype, src, n, dst);
        return;
    }
    for (size_t i = 0; i < n; i++) dst[i] = sl_load_any(src, dtype, i);
}

static void ref_to_bf16(const float *src, size_t n, uint16_t *dst) {
    for (size_t i = 0; i < n; i++) dst[i] = sl_f32_to_bf16(src[i]);
}

const sl_kernels sl_kernels_ref = {
    .name = "ref",
    .supported = always,
    SL_PLAIN_LOOPS,
    .gemm_tile = SL_EVERY_PRODUCT(sl_ref_gemm_tile),
    .quantise = {sl_ref_quantise, sl_ref_quantise, sl_ref_to_bf16_row},
    .rms_quantise = {sl_ref_rms_quantise, sl_ref_rms_quantise, sl_ref_rms_to_bf16_row},
    .int8_tile = SL_EVERY_INT8(sl_ref_int8_tile),
    .strip_tile = SL_EVERY_TYPE(sl_ref_strip_tile),
    .bf16_tile = SL_EVERY_AMOUNT(sl_ref_bf16_tile),
    .parts_tile = SL_EVERY_AMOUNT(sl_ref_parts_tile),
    .swiglu = ref_swiglu,
    .swiglu_clamped = ref_swiglu_clamped,
    .gate_values = ref_gate_values,
    .taps = sl_ref_taps,
    .delta = sl_ref_delta,
    .rms_inverse = sl_ref_rms_inverse,
    .center = sl_ref_center,
    .rotate = ref_rotate,
    .attn_page = SL_EVERY_AMOUNT(sl_ref_attn_page),
    .softmax = sl_ref_softmax,
    .expv = ref_expv,
    .widen = SL_EVERY_TYPE(ref_widen),
    .to_bf16 = ref_to_bf16,
};

/* A kernel table written once for instruction sets whose vectors hold the sixteen virtual lanes of
 * docs/numbers.md as one value: the including file has chosen v16 and its operations (simd/neon.h,
 * simd/avx512.h). */
#include "kernel/simd/vec.h"

#include "kernel/simd/gemm.h"

#include "kernel/simd/attn.h"

#include "kernel/simd/int8.h"

static void simd_widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    const uint8_t *p = src;
    size_t i = 0;
    if (!sl_dtype_is_plain(dtype)) {
        sl_block_decode(dtype, src, n, dst);
        return;
    }
    if (dtype == SL_F32) {
        memcpy(dst, src, n * sizeof(float));
        return;
    }
    for (; i + 16 <= n; i += 16) v_store(dst + i, simd_load(p + i * 2, dtype));
    for (; i < n; i++) dst[i] = sl_load_any(src, dtype, i);
}

#define SIMD_TABLE                                                                                 \
    .gemm_tile = simd_gemm_tile, .quantise = sl_ref_quantise, .int8_tile = simd_int8_tile,         \
    .swiglu = simd_swiglu, .swiglu_clamped = simd_swiglu_clamped, .rms_inverse = simd_rms_inverse, \
    .center = simd_center, .rms_apply = simd_rms_apply, .sincos = simd_sincos,                     \
    .rotate = simd_rotate, .attn_page = simd_attn_page, .divide = simd_divide,                     \
    .softmax = simd_softmax, .expv = simd_expv, .add = simd_add, .scale = simd_scale,              \
    .add_scaled = simd_add_scaled, .widen = simd_widen, .to_bf16 = simd_to_bf16

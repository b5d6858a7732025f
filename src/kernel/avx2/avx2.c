/* AVX2, FMA and F16C: vectors from simd/, products and attention with tiles of their own. */
#include "kernel/avx2/avx2.h"
#include "kernel/cpu.h"
#include "kernel/simd/avx2.h"

#include "kernel/simd/vec.h"

static void avx2_widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    if (!sl_dtype_is_plain(dtype))
        sl_avx2_block_decode(dtype, src, n, dst);
    else if (dtype == SL_F32)
        memcpy(dst, src, n * sizeof(float));
    else
        simd_widen_halves(src, dtype, n, dst);
}

const sl_kernels sl_kernels_avx2 = {
    .name = "avx2",
    .supported = sl_cpu_has_avx2,
    SL_PLAIN_LOOPS,
    SIMD_VECTORS,
    .gemm_tile = SL_EVERY_PRODUCT(sl_avx2_gemm_tile),
    .quantise = {sl_avx2_quantise, sl_avx2_quantise, simd_to_bf16_row},
    .rms_quantise = {sl_avx2_rms_quantise, sl_avx2_rms_quantise, simd_rms_to_bf16_row},
    .int8_tile = SL_EVERY_INT8(sl_avx2_int8_tile),
    .strip_tile = SL_EVERY_TYPE(sl_avx2_strip_tile),
    .bf16_tile = SL_EVERY_AMOUNT(sl_avx2_bf16_tile),
    .parts_tile = SL_EVERY_AMOUNT(sl_avx2_parts_tile),
    .attn_page = SL_EVERY_AMOUNT(sl_avx2_attn_page),
    .softmax = sl_avx2_softmax,
    .widen = SL_EVERY_TYPE(avx2_widen),
};

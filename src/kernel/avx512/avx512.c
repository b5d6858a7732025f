/* AVX-512 F, BW, DQ, VL and VNNI; the instruction for pairs of BF16 has a table of its own
 * (avx512bf16). */
#include "kernel/avx512/avx512.h"
#include "kernel/cpu.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/vec.h"

#include "kernel/simd/bf16.h"
#include "kernel/simd/scores.h"

static void widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    if (!sl_dtype_is_plain(dtype))
        sl_avx512_block_decode(dtype, src, n, dst);
    else if (dtype == SL_F32)
        memcpy(dst, src, n * sizeof(float));
    else
        simd_widen_halves(src, dtype, n, dst);
}

const sl_kernels sl_kernels_avx512 = {
    .name = "avx512",
    .supported = sl_cpu_has_avx512,
    .by_merit = true,
    SL_PLAIN_LOOPS,
    SIMD_VECTORS,
    .gemm_tile = SL_EVERY_PRODUCT(sl_avx512_gemm_tile),
    .quantise = {sl_avx512_quantise, sl_avx512_quantise, simd_to_bf16_row},
    .rms_quantise = {sl_avx512_rms_quantise, sl_avx512_rms_quantise, simd_rms_to_bf16_row},
    .int8_tile = SL_EVERY_INT8(sl_avx512_int8_tile),
    .strip_tile = SL_EVERY_TYPE(sl_avx512_strip_tile),
    .bf16_tile = SL_EVERY_AMOUNT(simd_bf16_tile),
    .parts_tile = SL_EVERY_AMOUNT(sl_avx512_parts_tile),
    .attn_page = SL_EVERY_AMOUNT(sl_avx512_attn_page),
    .softmax = simd_softmax,
    .widen = SL_EVERY_TYPE(widen),
};

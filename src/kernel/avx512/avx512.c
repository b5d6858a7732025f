/* Products and attention by AVX-512 F, BW, DQ and VL alone. Integer products by VNNI, with the
 * loops over vectors (avx512vnni), and products of pairs of BF16 (avx512bf16) have tables of their
 * own. */
#include "kernel/avx512/avx512.h"
#include "kernel/cpu.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/vec.h"

#include "kernel/simd/bf16.h"

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
    .gemm_tile = SL_EVERY_PRODUCT(sl_avx512_gemm_tile),
    .quantise = {sl_avx512_quantise, sl_avx512_quantise, simd_to_bf16_row},
    .rms_quantise = {sl_avx512_rms_quantise, sl_avx512_rms_quantise, simd_rms_to_bf16_row},
    .bf16_tile = SL_EVERY_AMOUNT(simd_bf16_tile),
    .parts_tile = SL_EVERY_AMOUNT(sl_avx512_parts_tile),
    .attn_page = SL_EVERY_AMOUNT(sl_avx512_attn_page),
    .widen = SL_EVERY_TYPE(widen), /* with the next, what attention widens pages by */
    .widen_e4m3 = loop_widen_e4m3,
};

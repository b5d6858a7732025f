/* A kernel table written once for instruction sets whose vectors hold the sixteen virtual lanes of
 * docs/numbers.md as one value: the including file has chosen v16 and its operations (simd/neon.h,
 * simd/avx512.h), and says by SIMD_SELF which table it is. */
#include "kernel/simd/vec.h"

#include "kernel/simd/gemm.h"

#include "kernel/simd/scores.h"

#include "kernel/simd/attn.h"

#include "kernel/simd/bf16.h"

#include "kernel/simd/parts.h"

static void simd_widen(const void *src, sl_dtype dtype, size_t n, float *dst) {
    if (!sl_dtype_is_plain(dtype))
        sl_block_decode(dtype, src, n, dst);
    else if (dtype == SL_F32)
        memcpy(dst, src, n * sizeof(float));
    else
        simd_widen_halves(src, dtype, n, dst);
}

/* All but integer products, and the rounding of activations. */
#define SIMD_TABLE                                                                                 \
    SL_PLAIN_LOOPS, SIMD_VECTORS, .gemm_tile = SL_EVERY_PRODUCT(simd_gemm_tile),                   \
                                  .bf16_tile = SL_EVERY_AMOUNT(simd_bf16_tile),                    \
                                  .parts_tile = SL_EVERY_AMOUNT(simd_parts_tile),                  \
                                  .attn_page = SL_EVERY_AMOUNT(simd_attn_page),                    \
                                  .softmax = simd_softmax, .widen = SL_EVERY_TYPE(simd_widen)

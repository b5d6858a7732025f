/* Blocks of GGUF weights to f32. The loops of quant/block.h are over independent values without a
 * choice of order, so the compiler's vector code gives their bits; each type has a copy of its own.
 */
#include "kernel/avx2/avx2.h"
#include "quant/block.h"

void sl_avx2_block_decode(sl_dtype dtype, const void *src, size_t n, float *dst) {
    switch (dtype) {
    case SL_Q8_0:
        sl_block_decode(SL_Q8_0, src, n, dst);
        break;
    case SL_Q4_0:
        sl_block_decode(SL_Q4_0, src, n, dst);
        break;
    case SL_MXFP4:
        sl_block_decode(SL_MXFP4, src, n, dst);
        break;
    case SL_Q4_K:
        sl_block_decode(SL_Q4_K, src, n, dst);
        break;
    case SL_Q5_K:
        sl_block_decode(SL_Q5_K, src, n, dst);
        break;
    default:
        SL_ASSERT(dtype == SL_Q6_K);
        sl_block_decode(SL_Q6_K, src, n, dst);
    }
}

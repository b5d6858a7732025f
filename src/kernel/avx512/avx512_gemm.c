/* Products with f32 activations that ask for the weights that come next. */
#include "kernel/avx512/gemm.h"

void sl_avx512_gemm_tile(const sl_gemm_tile *t) {
    gemm_tile(t);
}

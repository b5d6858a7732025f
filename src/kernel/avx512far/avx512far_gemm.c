/* Products with f32 activations that ask for weights long before. */
#include "kernel/avx512far/avx512far.h"

#include "kernel/avx512/gemm.h"

void sl_avx512far_gemm_tile(const sl_gemm_tile *t) {
    gemm_tile(t);
}

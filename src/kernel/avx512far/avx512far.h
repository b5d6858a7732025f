/* Pieces of the table for processors whose weights are best asked for long before, and to the
 * second cache: forms of avx512/ and avx512bf16/, compiled to do so. */
#ifndef SL_KERNEL_AVX512FAR_AVX512FAR_H
#define SL_KERNEL_AVX512FAR_AVX512FAR_H

#include "kernel/kernel_int.h"

#include <immintrin.h>

#define SL_ASK        _MM_HINT_T1
#define SL_ASK_AHEAD  4096u
#define SL_ASK_FEW_K  65536u /* all */
#define SL_ASK_PAGES  0u
#define SL_ASK_STRIPS 20480u

void sl_avx512far_gemm_tile(const sl_gemm_tile *t);
void sl_avx512far_int8_tile_32(const sl_act_tile *t);
void sl_avx512far_int8_tile_256(const sl_act_tile *t);

#endif

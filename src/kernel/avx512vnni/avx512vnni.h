/* Pieces of the table of VNNI that live in different files of avx512vnni/. */
#ifndef SL_KERNEL_AVX512VNNI_AVX512VNNI_H
#define SL_KERNEL_AVX512VNNI_AVX512VNNI_H

#include "kernel/kernel_int.h"

void sl_avx512vnni_int8_tile_32(const sl_act_tile *t);  /* Q8_0, Q4_0, MXFP4 */
void sl_avx512vnni_int8_tile_256(const sl_act_tile *t); /* Q4_K, Q5_K, Q6_K */
void sl_avx512vnni_strip_tile(const sl_act_tile *t);

#endif

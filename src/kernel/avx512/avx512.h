/* Pieces of the AVX-512 table that live in different files of avx512/. */
#ifndef SL_KERNEL_AVX512_AVX512_H
#define SL_KERNEL_AVX512_AVX512_H

#include "kernel/kernel_int.h"

void sl_avx512_gemm_tile(const sl_gemm_tile *t);
/* n values, whole blocks of a block type, to f32. */
void sl_avx512_block_decode(sl_dtype dtype, const void *src, size_t n, float *dst);
/* As sl_f8_decode. */
void sl_avx512_f8_decode(const uint8_t *w, const float *scale, size_t first, size_t n, float *dst);
void sl_avx512_parts_tile(const sl_act_tile *t);
void sl_avx512_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row);
void sl_avx512_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to);
void sl_avx512_attn_page(const sl_attn_page *a);

#endif

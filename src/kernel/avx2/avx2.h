/* Pieces of the AVX2 table that live in different files of avx2/. */
#ifndef SL_KERNEL_AVX2_AVX2_H
#define SL_KERNEL_AVX2_AVX2_H

#include "kernel/kernel_int.h"

/* Stops the compiler from loading the value again at each use, which would make loads the limit,
 * and from turning chains of sums into trees with more values than there are registers. */
#define SL_KEEP(v) __asm__("" : "+x"(v))

void sl_avx2_gemm_tile(const sl_gemm_tile *t);
void sl_avx2_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row);
void sl_avx2_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to);
void sl_avx2_int8_tile(const sl_act_tile *t);
void sl_avx2_strip_tile(const sl_act_tile *t); /* of weights in strips */
void sl_avx2_bf16_tile(const sl_act_tile *t);
void sl_avx2_parts_tile(const sl_act_tile *t);
/* n values, whole blocks of a block type, to f32. */
void sl_avx2_block_decode(sl_dtype dtype, const void *src, size_t n, float *dst);
void sl_avx2_attn_page(const sl_attn_page *a);
void sl_avx2_softmax(const float *x, uint32_t n, float *p);

#endif

/* Pieces of the scalar table that live in different files of ref/. */
#ifndef SL_KERNEL_REF_REF_H
#define SL_KERNEL_REF_REF_H

#include "kernel/kernel_int.h"

void sl_ref_gemm_tile(const sl_gemm_tile *t);
void sl_ref_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row);
void sl_ref_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to);
void sl_ref_int8_tile(const sl_act_tile *t);
void sl_ref_strip_tile(const sl_act_tile *t);
void sl_ref_to_bf16_row(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row);
void sl_ref_rms_to_bf16_row(const float *x, const float *w, float inv, const sl_act_part *to);
void sl_ref_bf16_tile(const sl_act_tile *t);
void sl_ref_parts_tile(const sl_act_tile *t);
void sl_ref_taps(const sl_taps *t);
void sl_ref_delta(const sl_delta_step *s);
void sl_ref_delta_column(const sl_delta_step *s, uint32_t c); /* one of them */
void sl_ref_center(const float *x, uint32_t n, float *y);
float sl_ref_rms_inverse(const float *x, float eps, uint32_t n);
void sl_ref_attn_page(const sl_attn_page *a);
void sl_ref_softmax(const float *x, uint32_t n, float *p);

#endif

/* The host's operations that are not kernel.c's own. */
#ifndef SL_KERNEL_OPS_INT_H
#define SL_KERNEL_OPS_INT_H

#include "kernel/delta.h"

void sl_host_attention_span(const sl_exec *ex, const sl_attn_span *a);
void sl_host_embed(const sl_exec *ex, const sl_mat *w, const uint32_t *ids, uint32_t n_rows,
                   float *x);
void sl_host_copy_rows(const sl_exec *ex, const float *x, size_t x_stride, uint32_t n_rows,
                       uint32_t width, float *y, size_t y_stride);
void sl_host_pick_rows(const sl_exec *ex, const float *x, const uint32_t *row, const float *factor,
                       uint32_t n_rows, uint32_t width, float *y);
void sl_host_scale_part(const sl_exec *ex, float *x, size_t stride, uint32_t n, uint32_t width,
                        float a);
void sl_host_split_pairs(const sl_exec *ex, float *x, uint32_t n, uint32_t dim, size_t stride);
void sl_host_put_kv(const sl_exec *ex, const sl_kv_put *p);
void sl_host_route(const sl_exec *ex, const sl_route_args *a);
void sl_host_sum_pairs(const sl_exec *ex, const sl_pair_sum *s);
void sl_host_gate_values(const sl_exec *ex, float *y, const float *gate, size_t n);
void sl_host_delta(const sl_exec *ex, const sl_delta_args *a);

#endif

/* Products, rounded rows and widened rows on a GPU, in numerics `cpu`: the bits of docs/numbers.md.
 * Data pointers in jobs, matrices and rows are device addresses; lists (jobs, row numbers, ids) lie
 * in host memory and may change once a call returns. What is asked runs later, in order; an error
 * is the context's (sl_cuda_failed). Thread: the context's owner. */
#ifndef SL_STAGE_CUDA_EXEC_PRODUCTS_H
#define SL_STAGE_CUDA_EXEC_PRODUCTS_H

#include "kernel/kernel.h"
#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_attention.h"

/* sl_gemm, or with `up` sl_gemm_swiglu. SL_ERR_UNSUPPORTED: matrices with segments, products of
 * BF16 rows (--activations bf16), and weights that lie where kernels cannot read them: F32 at other
 * than multiples of 4 bytes, other types but MXFP4 and F8_E4M3 at odd addresses, and columns of
 * F8_E4M3 that begin at other than a multiple of 4. */
void sl_cuda_gemm(sl_cuda *c, const sl_gemm_job *jobs, const sl_mat *const *up, uint32_t n_jobs);

/* For tests: products of many rows in numerics fast are from now on in tiles number `shape` - 1 of
 * SL_WIDE_TILES (args_wide.h) wherever these can be, each block alone or in pairs; 0: as it pays.
 */
void sl_cuda_wide_as(sl_cuda *c, uint32_t shape, bool alone);

/* sl_quantise_segments for rows of 8 bits without segments; dst at a multiple of 64. */
void sl_cuda_quantise(sl_cuda *c, const float *x, const uint32_t *row, uint32_t n_rows,
                      uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                      uint8_t *dst);

/* x[i] = row ids[i] of w, widened. */
void sl_cuda_embed(sl_cuda *c, const sl_mat *w, const uint32_t *ids, uint32_t n_rows, float *x);

/* y += x of n values, if x is what a product is about to make that is held (context.h): then that
 * adds it, too. False: nothing was done. */
bool sl_cuda_vec_adds(sl_cuda *c, float *y, const float *x, size_t n);
/* The same of a router whose logits that product is about to make. */
bool sl_cuda_vec_routes(sl_cuda *c, const sl_k_route_args *r, uint32_t n_rows);

#endif

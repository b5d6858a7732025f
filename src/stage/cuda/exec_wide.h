/* What kernels of many rows on sm_90a share on the host's side (exec_fast_wide.c): what the copy
 * engine is told, and memory for what was rounded. Thread: the context's owner. */
#ifndef SL_STAGE_CUDA_EXEC_WIDE_H
#define SL_STAGE_CUDA_EXEC_WIDE_H

#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_prompt.h"

/* Whether those kernels are to be taken (sl_cuda_set_many), and this GPU has them. */
bool sl_cuda_is_wide_gpu(const sl_cuda *c);
/* Rows of so many values of bf16 that begin `stride` bytes apart; boxes of 64 values by box_rows.
 * False: there is a failure. */
bool sl_cuda_wide_map(sl_cuda *c, const void *at, uint32_t rows, uint32_t values, uint64_t stride,
                      uint32_t box_rows, sl_wide_map *out);
/* Counts what may have written to the GPU's memory. */
uint64_t sl_cuda_asked(const sl_cuda *c);
/* Rows x, n_rows of n values one behind another, in bf16 (of more parts than one the first), if an
 * operation that made or read them since then has left them so, and nobody took the room; 0: they
 * are not there. What was asked behind that operation did not change x: the caller knows it. */
uint64_t sl_cuda_rounded_rows(const sl_cuda *c, const float *x, uint32_t n_rows, uint32_t n,
                              uint64_t since);
void sl_cuda_have_rounded(sl_cuda *c, const float *x, uint32_t n_rows, uint32_t n, uint64_t at);
/* At least so many bytes of the GPU for operations that run one after another, contents undefined;
 * 0: there are not so many. */
uint64_t sl_cuda_wide_room(sl_cuda *c, size_t bytes);

#endif

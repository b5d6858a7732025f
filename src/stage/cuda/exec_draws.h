/* What draws seek of logits (model/seek.h), on the GPU that has them. Errors are kept by the
 * context. Thread: the context's owner. */
#ifndef SL_STAGE_CUDA_EXEC_DRAWS_H
#define SL_STAGE_CUDA_EXEC_DRAWS_H

#include "model/seek.h"
#include "stage/cuda/cuda_int.h"

/* Scratch of the GPU that so many rows take. */
size_t sl_cuda_seek_bytes(uint32_t rows, uint32_t vocab);

/* Of rows of logits, [rows][vocab] at an address of the GPU: what each seeks to found[row], at an
 * address of the GPU of pinned memory, but for `all`; rows that seek all are left alone. Any number
 * of rows. */
void sl_cuda_seek(sl_cuda *c, const float *logits, uint32_t rows, uint32_t vocab,
                  const sl_sought *sought, uint64_t scratch, sl_found *found);

#endif

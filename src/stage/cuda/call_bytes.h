/* How much memory calls of a CUDA device need: lists on the host, scratch on the GPU. Pure. */
#ifndef SL_STAGE_CUDA_CALL_BYTES_H
#define SL_STAGE_CUDA_CALL_BYTES_H

#include "model/model.h"

/* Lists of a call's kernels: of so many rows, and pairs of row and expert. */
size_t sl_cuda_list_bytes(const sl_model_spec *m, size_t rows, size_t pairs);
/* Scratch of stages; 0 rows or pairs: there are no such calls. */
size_t sl_cuda_scratch_for(const sl_model_spec *m, uint32_t max_rows, uint32_t max_pairs);

#endif

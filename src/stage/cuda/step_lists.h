/* What the lists of a step are, all in one piece of memory: tokens, positions, places of keys, how
 * attention is split, pages. Launches that are recorded read them there, whatever the step. A piece
 * is filled by the host and copied before they run. Thread: any. */
#ifndef SL_STAGE_CUDA_STEP_LISTS_H
#define SL_STAGE_CUDA_STEP_LISTS_H

#include "stage/cuda/graph.h"

/* Rows of a step, as of sl_rowset. */
typedef struct sl_cuda_step_rows {
    const sl_model_spec *m;
    sl_kv_pool kv;
    uint32_t n;
    const uint32_t *id, *pos;
    const uint32_t *const *pages;
} sl_cuda_step_rows;

/* Whether attention takes these rows in one launch of rows of single requests. */
bool sl_cuda_step_fits(const sl_cuda_step_rows *r);
size_t sl_cuda_step_bytes(const sl_cuda_step_rows *r);
/* The bytes themselves, 64-byte aligned; blocks: parts of each kind of sight. */
void sl_cuda_step_fill(const sl_cuda *c, const sl_cuda_step_rows *r, uint8_t *to,
                       uint32_t blocks[SL_CUDA_SIGHTS]);
/* What launches are told, where the bytes are at `at` of the GPU, with up to so many parts. */
void sl_cuda_step_at(const sl_cuda_step_rows *r, uint64_t at, const uint32_t blocks[SL_CUDA_SIGHTS],
                     sl_cuda_step *out);
/* Scratch for that (sl_cuda_split_reserve). Thread: owner of the context. */
bool sl_cuda_step_reserve(sl_cuda *c, const sl_cuda_step_rows *r,
                          const uint32_t blocks[SL_CUDA_SIGHTS]);

#endif

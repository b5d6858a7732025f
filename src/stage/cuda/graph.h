/* Launches that are recorded once and run again as one: a graph of CUDA. What is asked of a context
 * while it records is not run, and no failure of it: whatever cannot be part of a graph (waiting,
 * memory that comes or goes, lists of the host) speaks against this one, and the caller asks for
 * the same again without. A graph has kernels, their arguments and addresses for good, so what
 * differs from step to step lies in the GPU's memory (sl_cuda_step), and nobody may run one that is
 * stale. Thread: owner of the context, but for sl_cuda_moves. */
#ifndef SL_STAGE_CUDA_GRAPH_H
#define SL_STAGE_CUDA_GRAPH_H

#include "spec/kv.h"
#include "stage/cuda/cuda_int.h"
#include "stage/cuda/kernels/args_fast_attention.h"

#define SL_CUDA_WHY_BYTES 320u
#define SL_CUDA_SIGHTS    (SL_SIGHT_CHUNK + 1u) /* kinds of sl_sight */

/* Where lists of a step's rows are, of the GPU, in launches that are recorded; which lists of the
 * host they are copies of is known by the address of these. */
typedef struct sl_cuda_step {
    uint32_t n;
    const uint32_t *id, *pos; /* of the host: [n] */
    const uint32_t *id_at, *pos_at;
    const uint64_t *place_at; /* [n] bytes from the pool to a row's first key of block 0 */
    const uint32_t *page_at;  /* of all rows, of all kinds of sight */
    const sl_fast_attn_list *list_at[SL_CUDA_SIGHTS];
    uint32_t blocks[SL_CUDA_SIGHTS]; /* as many parts as there may be; 0: no block sees so */
} sl_cuda_step;

typedef struct sl_cuda_graph sl_cuda_graph;

bool sl_cuda_has_graphs(const sl_cuda *c);
/* Records from here on, until sl_cuda_record_end, which is to be called unless this is false. step:
 * borrowed until then. */
bool sl_cuda_record_begin(sl_cuda *c, const sl_cuda_step *step, char why[SL_CUDA_WHY_BYTES]);
/* NULL: `why` says why not. */
sl_cuda_graph *sl_cuda_record_end(sl_cuda *c, char why[SL_CUDA_WHY_BYTES]);
/* The step whose list, of n rows, this is, if launches are recorded; NULL: the list goes to the GPU
 * as any other. */
const sl_cuda_step *sl_cuda_step_with(const sl_cuda *c, const uint32_t *list, uint32_t n);

/* Speaks against the graph that is recorded, if one is. */
void sl_cuda_refuse(sl_cuda *c, const char *fmt, ...) SL_PRINTF(2, 3);
/* The same; whether one is. */
bool sl_cuda_refuses(sl_cuda *c, const char *why);

/* What graphs have for good is not as it was: memory came or went, weights, forms of kernels. All
 * graphs of the context are stale. Thread: any. */
void sl_cuda_moves(sl_cuda *c);
bool sl_cuda_graph_is_stale(const sl_cuda *c, const sl_cuda_graph *g);
/* In order with launches; not of a stale one. False: `why` says why nothing runs. */
bool sl_cuda_graph_run(sl_cuda *c, const sl_cuda_graph *g, char why[SL_CUDA_WHY_BYTES]);
void sl_cuda_graph_free(sl_cuda *c, sl_cuda_graph *g); /* NULL-safe; it may run still */

#endif

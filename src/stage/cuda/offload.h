/* Routed experts whose weights stay in the host's memory, where the file is mapped: those of a
 * block are copied to the GPU when it is to be computed. Memory there has two places, which blocks
 * take in turns, so that one is copied while another is computed; every block has its own for good,
 * and so every matrix an address.
 *
 * Whole blocks are copied where most of their experts are asked for, the next block right behind,
 * before anybody asks; else what is asked for alone. Copies run beside kernels, from the host's
 * memory as it lies where the driver lets it be registered, else by way of pinned memory, into
 * which the worker's threads put it first. Thread: owner of the context. */
#ifndef SL_STAGE_CUDA_OFFLOAD_H
#define SL_STAGE_CUDA_OFFLOAD_H

#include "stage/cuda/cuda_int.h"
#include "base/pool.h"
#include "stage/cuda/slabs.h"

#define SL_CUDA_PLACES        2u
#define SL_CUDA_STEPS_OVER    4u /* parts of pinned memory */
#define SL_CUDA_EXPERT_PIECES 9u /* matrices, scales and biases of gate, up and down */
#define SL_CUDA_NO_BLOCK      UINT32_MAX

/* Where an expert's weights are: pieces of the host's memory, and how far from the beginning of its
 * part of a place each goes. */
typedef struct sl_cuda_kept {
    uint32_t n;
    struct {
        const uint8_t *from;
        size_t bytes, at;
    } piece[SL_CUDA_EXPERT_PIECES];
} sl_cuda_kept;

/* Memory of the host that is registered. */
typedef struct sl_cuda_span {
    const uint8_t *at;
    size_t bytes;
} sl_cuda_span;

/* A part of pinned memory that weights pass through. */
typedef struct sl_cuda_over {
    uint8_t *host; /* NULL: there is none yet */
    size_t used;
    sl_cuda_event *read; /* behind the last copy from it */
} sl_cuda_over;

/* Where the copying of an expert was left off. */
typedef struct sl_cuda_left {
    uint32_t expert, piece; /* expert SL_CUDA_NO_BLOCK: of none */
    size_t at;
} sl_cuda_left;

typedef struct sl_cuda_place {
    uint64_t at;
    uint32_t block; /* whose experts are there or on their way; SL_CUDA_NO_BLOCK: nobody's */
    uint8_t *has;   /* [n_experts] */
    sl_cuda_left left;
    sl_cuda_event *there; /* behind what was copied for the last call */
    sl_cuda_event *read;  /* behind the last call that read it */
} sl_cuda_place;

typedef struct sl_cuda_offload {
    sl_cuda *c; /* NULL: weights are on the GPU */
    sl_cuda_slabs *memory;
    uint32_t index; /* of the GPU, for errors */
    uint32_t n_blocks, n_experts;
    size_t stride;      /* bytes of an expert in a place */
    sl_cuda_kept *kept; /* [n_blocks * n_experts] */
    uint8_t *asked;     /* [n_experts] of a call */
    void *arrays;
    sl_cuda_place place[SL_CUDA_PLACES];
    sl_cuda_span *span; /* by address, apart */
    size_t n_spans, cap_spans;
    bool refused; /* by the driver: nothing more is registered */
    sl_cuda_over over[SL_CUDA_STEPS_OVER];
    uint32_t filling; /* which of them */
    sl_pool *pool;    /* whose threads fill them, borrowed; NULL: the owner alone */
    bool most;        /* the last call asked for most of its block's experts */
    uint32_t next;    /* the block that is copied ahead, or SL_CUDA_NO_BLOCK */
    void (*tick)(void *ctx);
    void *tick_ctx;
    uint64_t bytes, over_bytes; /* copied; of these by way of pinned memory */
} sl_cuda_offload;

/* Bytes of an expert in a place, of models whose experts are so at most. */
size_t sl_cuda_offload_stride(const sl_cuda_cut *cut);
/* What places of a model with so many blocks of experts take. */
uint64_t sl_cuda_offload_bytes(const sl_cuda_cut *cut, uint32_t n_blocks, uint32_t n_experts);

/* Places for such experts. tick: may be NULL; called while memory is registered. On an error it is
 * to be freed, too. */
sl_status sl_cuda_offload_create(sl_cuda *c, sl_cuda_slabs *memory, const sl_cuda_cut *cut,
                                 uint32_t n_blocks, uint32_t n_experts, void (*tick)(void *),
                                 void *tick_ctx, sl_cuda_offload *out, sl_err *err) SL_MUST_CHECK;
/* Nothing stays registered: to be called before the model goes, whose memory it is. */
void sl_cuda_offload_release(sl_cuda_offload *o);
/* Nothing is in flight. Says (info) how much was copied. */
void sl_cuda_offload_free(sl_cuda_offload *o);

/* As of sl_home, of experts. What is put stays where it is until it is dropped. */
sl_status sl_cuda_offload_put(sl_cuda_offload *o, size_t expert, const void *data, size_t bytes,
                              const void **out, sl_err *err) SL_MUST_CHECK;
void sl_cuda_offload_drop(sl_cuda_offload *o, size_t expert, const void *at);
/* When all have come and gone that are to: registers what is not registered. What the driver says
 * against it is logged once (info). */
sl_status sl_cuda_offload_settle(sl_cuda_offload *o, sl_err *err) SL_MUST_CHECK;

/* Of a block: what is launched next reads those of the n groups that have pairs, first[g] ..
 * first[g + 1] - 1 (sl_stage_experts). */
void sl_cuda_offload_need(sl_cuda_offload *o, uint32_t block, const uint32_t *expert,
                          const uint32_t *first, uint32_t n);
/* What read them was launched. The next block may begin to come. */
void sl_cuda_offload_used(sl_cuda_offload *o, uint32_t block);
/* Some MB more of it, a millisecond or so, while the caller waits for other things. */
void sl_cuda_offload_ahead(sl_cuda_offload *o);

#endif

/* Routed experts of a model by the kernels of tensor cores (fast_experts.h): which models have
 * them, where their matrices lie, and calls of EXPERTS and INSIDE as batches. Thread: owner of the
 * context. */
#ifndef SL_STAGE_CUDA_EXPERTS_H
#define SL_STAGE_CUDA_EXPERTS_H

#include "stage/cuda/cuda_int.h"
#include "stage/cuda/fast_experts.h"
#include "stage/cuda/slabs.h"
#include "stage/stage_int.h"

/* An expert's matrices and what it has beside. One that left and came back may have some of that
 * where it was. */
typedef struct sl_cuda_places {
    const void *gate, *up, *down;
    sl_group_beside beside;
} sl_cuda_places;

/* What kernels may compute: matrices of BF16 on tensor cores; as numerics `cpu` does, blocks of
 * whole numbers and types whose products are of f32. */
typedef struct sl_cuda_kinds {
    bool bf16, ints, floats;
} sl_cuda_kinds;

typedef struct sl_cuda_experts {
    sl_cuda *c;
    sl_cuda_kinds kinds;
    const sl_model *model;
    sl_cuda_slabs *memory;
    uint8_t *known;       /* [n_moe * n_experts]: maps are of the matrices that are there */
    sl_cuda_places *at;   /* [n_moe * n_experts]: where these are */
    sl_fast_types *types; /* [n_moe]: of the experts of a block that the table has */
    void *arrays;
    sl_cuda_piece table;                /* [n_moe][n_experts] of sl_fast_expert */
    sl_cuda_piece beside;               /* the same of sl_group_beside, of those kinds */
    sl_cuda_piece maps;                 /* [n_moe][n_experts][3] tensor maps; the GPU has none: 0 */
    sl_cuda_piece scratch, rows;        /* of the kernels; results that go elsewhere */
    sl_cuda_piece expert, gate, shared; /* [rows][top_k] twice, [rows][d_model] */
} sl_cuda_experts;

/* Whether there are kernels for experts of such sizes, with gates after the product. */
bool sl_cuda_experts_shaped(const sl_model_spec *s);
/* Whether they compute all experts that are here: of these kinds, those of a block of one type. */
bool sl_cuda_experts_can(const sl_model *m, sl_cuda_kinds kinds);
sl_status sl_cuda_experts_create(sl_cuda *c, const sl_model *m, sl_cuda_kinds kinds,
                                 sl_cuda_slabs *memory, sl_cuda_experts *out,
                                 sl_err *err) SL_MUST_CHECK;
void sl_cuda_experts_free(sl_cuda_experts *x);
/* What they may take for calls of so many pairs, whatever the numerics and types. */
uint64_t sl_cuda_experts_bytes(const sl_model_spec *s, uint32_t max_pairs);
/* Bytes that room for calls of so many pairs would take beside what there is. */
uint64_t sl_cuda_experts_more(const sl_cuda_experts *x, uint32_t max_pairs);
/* Room for calls of so many pairs. */
sl_status sl_cuda_experts_reserve(sl_cuda_experts *x, uint32_t max_pairs,
                                  sl_err *err) SL_MUST_CHECK;
/* INSIDE for up to so many rows. Anew when experts have come or gone. */
sl_status sl_cuda_experts_table(sl_cuda_experts *x, uint32_t max_rows, sl_err *err) SL_MUST_CHECK;
/* Whether the table has all experts of the first n blocks that have some. */
bool sl_cuda_experts_whole(const sl_cuda_experts *x, uint32_t n);
/* y = or, `add`, += the routed experts of n rows h whose ids and weights lie at x->expert and
 * x->gate. heard: where the GPU writes a copy of the ids. since: of sl_cuda_asked, before h was
 * made. */
void sl_cuda_experts_inside(sl_cuda_experts *x, uint32_t layer, uint32_t n, const float *h,
                            uint64_t heard, float *y, bool add, uint64_t since);
/* EXPERTS; false: what c->experts then says has still to be done: in numerics exact and cpu pairs
 * of other experts than the kernels', else all of it, since its results are not a row of each row
 * of x. lists: room for some words a pair. */
bool sl_cuda_experts_run(sl_cuda_experts *x, sl_stage_call *c, sl_arena *lists);

#endif

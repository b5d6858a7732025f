/* Products of routed experts whose lists are made on the GPU (args_group.h): what a block works at,
 * as the tiles of products.h know it. */
#ifndef SL_STAGE_CUDA_GROUP_H
#define SL_STAGE_CUDA_GROUP_H

#include "stage/cuda/kernels/args_group.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/product.h"

/* What a block works at: its group as a job, its columns as the job's one row of tiles, and what
 * results go through. */
typedef struct sl_group_work {
    sl_product_job job;
    sl_product_tile at;
    sl_product_last last;
} sl_group_work;

/* The group's matrix number m, of gate, up and down, as side `side`. */
SL_DEV void sl_group_side(const sl_group_args *a, const sl_group_beside *b, const uint8_t *w,
                          uint32_t m, uint32_t side, sl_dtype t, sl_group_work *to) {
    const sl_product_side s = {w, NULL, sl_product_bytes(t, a->k),
                               0, 0,    (a->k + SL_F8_BLOCK - 1) / SL_F8_BLOCK};
    to->job.side[side] = s;
    if (!b) return;
    to->job.side[side].scale = b->scale[m];
    to->last.bias[side] = b->bias[m];
    to->last.bias_type[side] = b->bias_type[m];
}

SL_DEV bool sl_group_aligned(const sl_product_job *j, sl_dtype t) {
    const uintptr_t lie = (uintptr_t)j->side[0].stride | sl_bytes_of_256(t);
    return ((lie | (uintptr_t)j->side[0].w | (uintptr_t)j->side[1].w) & 15) == 0;
}

/* False: there are fewer groups. turns: of both sides' weight rows, see product.h. */
SL_DEV bool sl_group_begin(const sl_group_args *a, sl_dtype t, bool turns, sl_group_work *to) {
    if (blockIdx.y >= a->counts->n_groups) return false;
    const sl_fast_group g = a->group[blockIdx.y];
    const sl_group_beside *b = a->beside ? a->beside + g.expert : NULL;
    memset(to, 0, sizeof *to);
    sl_group_side(a, b, a->up ? g.gate : g.down, a->up ? 0 : 2, 0, t, to);
    if (a->up)
        sl_group_side(a, b, g.up, 1, 1, t, to);
    else
        to->job.side[1] = to->job.side[0];
    sl_product_job *j = &to->job;
    j->x = a->up ? a->x : a->x + g.first * a->x_stride;
    j->row = a->up ? a->x_row + g.first : NULL;
    j->y = a->y + (uint64_t)g.first * a->n;
    j->x_stride = a->x_stride;
    j->n = j->y_stride = a->n;
    j->k = a->k;
    j->n_rows = g.n;
    j->end = a->up ? SL_PRODUCT_SWIGLU : SL_PRODUCT_STORE;
    j->w_aligned = sl_group_aligned(j, t);
    j->x_aligned = (((uintptr_t)j->x | j->x_stride) & 15) == 0;
    to->at.rows = g.n;
    to->at.col0 = blockIdx.x * (a->up ? a->shape.cols / 2 : a->shape.cols);
    to->at.pairs = a->up;
    to->at.turns = turns && a->up;
    to->last.limit = a->up ? a->limit : 0;
    to->last.weight = a->up ? NULL : a->weight + g.first;
    return true;
}

/* What all kernels of a file do: tile is sl_*_tile of its tiles' header. */
#define SL_GROUP_WORK(tile, turns)                                                                 \
    SL_DEV void group(const sl_group_args *a, sl_dtype t) {                                        \
        sl_group_work work;                                                                        \
        sl_fast_wait();                                                                            \
        sl_fast_let_next();                                                                        \
        if (!sl_group_begin(a, t, turns, &work)) return;                                           \
        tile(&a->shape, &work.job, &work.at, &work.last, t);                                       \
    }
#define SL_GROUP_KERNEL(name, t, threads, blocks)                                                  \
    SL_KERNEL_BOUNDS(name, sl_group_args, threads, blocks) {                                       \
        group(&a, t);                                                                              \
    }

#endif

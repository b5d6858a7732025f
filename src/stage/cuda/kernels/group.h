/* Products of routed experts whose lists are made on the GPU (args_group.h): what a block works at,
 * as the tiles of products.h know it. */
#ifndef SL_STAGE_CUDA_GROUP_H
#define SL_STAGE_CUDA_GROUP_H

#include "stage/cuda/kernels/args_group.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/product.h"

SL_DEV sl_product_side sl_group_side(const uint8_t *w, uint64_t stride) {
    const sl_product_side s = {w, NULL, stride, 0, 0, 0};
    return s;
}

/* The block's group as a job, and its columns as the job's one row of tiles. False: there are fewer
 * groups. */
SL_DEV bool sl_group_job(const sl_group_args *a, sl_dtype t, bool turns, sl_product_job *j,
                         sl_product_tile *at) {
    if (blockIdx.y >= a->counts->n_groups) return false;
    const sl_fast_group g = a->group[blockIdx.y];
    const uint64_t stride = sl_product_bytes(t, a->k);
    const uintptr_t lie = (uintptr_t)stride | sl_bytes_of_256(t);
    memset(j, 0, sizeof *j);
    j->side[0] = sl_group_side(a->up ? g.gate : g.down, stride);
    j->side[1] = a->up ? sl_group_side(g.up, stride) : j->side[0];
    j->x = a->up ? a->x : a->x + g.first * a->x_stride;
    j->row = a->up ? a->x_row + g.first : NULL;
    j->y = a->y + (uint64_t)g.first * a->n;
    j->x_stride = a->x_stride;
    j->n = j->y_stride = a->n;
    j->k = a->k;
    j->n_rows = g.n;
    j->end = a->up ? SL_PRODUCT_SWIGLU : SL_PRODUCT_STORE;
    j->w_aligned = ((lie | (uintptr_t)j->side[0].w | (uintptr_t)j->side[1].w) & 15) == 0;
    at->r0 = 0;
    at->rows = g.n;
    at->col0 = blockIdx.x * (a->up ? a->shape.cols / 2 : a->shape.cols);
    at->pairs = a->up;
    at->turns = turns && a->up;
    return true;
}

/* Weights of the group's pairs, which multiply rows of the last product; NULL: the first. */
SL_DEV const float *sl_group_weight(const sl_group_args *a) {
    return a->up ? NULL : a->weight + a->group[blockIdx.y].first;
}

#endif

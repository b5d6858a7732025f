/* What the kernels that sort pairs of experts share (fast_sort.cu, fast_sort_many.cu): the lists
 * that they write. */
#ifndef SL_STAGE_CUDA_SORT_LISTS_H
#define SL_STAGE_CUDA_SORT_LISTS_H

#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/fast.h"

#define SL_SORT_NOWHERE 0xffffffffu

/* How many groups, or pieces, n pairs make. */
SL_DEV uint32_t sl_sort_groups(const sl_fast_sort_args *a, uint32_t n) {
    return a->cap ? (n + a->cap - 1) / a->cap : 0;
}

SL_DEV uint32_t sl_sort_pieces(const sl_fast_sort_args *a, uint32_t n) {
    const uint32_t most = a->pair * a->width;
    return most ? (n + most - 1) / most * a->pair : 0;
}

/* The lists of one expert: pairs from .. from + n - 1 in parts of about the same size. */
SL_DEV void sl_sort_lists(const sl_fast_sort_args *a, uint32_t e, uint32_t from, uint32_t n,
                          uint32_t group, uint32_t piece) {
    const sl_fast_expert x = a->expert[e];
    const uint32_t groups = sl_sort_groups(a, n), pieces = sl_sort_pieces(a, n);
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t first = n * i / groups, end = n * (i + 1) / groups;
        sl_fast_group *g = a->group + group + i;
        g->gate = x.gate;
        g->up = x.up;
        g->down = x.down;
        g->first = from + first;
        g->n = end - first;
        g->expert = e;
        g->unused = 0;
    }
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t first = n * i / pieces, end = n * (i + 1) / pieces;
        sl_fast_piece *p = a->piece + piece + i;
        p->maps = x.maps;
        p->first = from + first;
        p->n = end - first;
        p->width = ((n + pieces - 1) / pieces + 7) / 8 * 8;
        p->unused = 0;
    }
}

/* How long the lists are; widest: the most pairs of a piece. */
SL_DEV void sl_sort_counts(const sl_fast_sort_args *a, uint32_t groups, uint32_t pieces,
                           uint32_t widest) {
    const uint32_t bytes = SL_FAST_BIG_WEIGHTS + (widest + 7) / 8 * 8 * 128;
    const uint32_t stages = a->stage_room / bytes;
    a->counts->n_groups = groups;
    a->counts->n_pieces = pieces;
    a->counts->stage_bytes = bytes;
    a->counts->stages = stages < SL_FAST_BIG_STAGES ? stages : SL_FAST_BIG_STAGES;
}

#endif

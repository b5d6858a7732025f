/* Lists of a step (step_lists.h). Pages come last, so that no more is copied than there are. */
#include "stage/cuda/step_lists.h"

#include "stage/cuda/exec_rows.h"

typedef struct layout {
    uint64_t place[SL_FAST_ATTN_ROWS];
    uint32_t id[SL_FAST_ATTN_ROWS], pos[SL_FAST_ATTN_ROWS];
    sl_fast_attn_list list[SL_CUDA_SIGHTS];
    uint32_t page[];
} layout;

/* The rows as a block sees them that sees so; false: none does. */
static bool sees(const sl_cuda_step_rows *r, uint32_t sight, sl_attn_args *out) {
    uint32_t layer = 0;
    while (layer < r->m->n_layers && r->m->sight[layer] != sight) layer++;
    *out =
        (sl_attn_args){.m = r->m, .layer = layer, .n_rows = r->n, .pos = r->pos, .pages = r->pages};
    return layer < r->m->n_layers;
}

bool sl_cuda_step_fits(const sl_cuda_step_rows *r) {
    sl_attn_args a;
    for (uint32_t s = 0; s < SL_CUDA_SIGHTS; s++)
        if (sees(r, s, &a) && !sl_cuda_split_alone(&a)) return false;
    return true;
}

size_t sl_cuda_step_bytes(const sl_cuda_step_rows *r) {
    sl_attn_args a;
    size_t pages = 0;
    for (uint32_t s = 0; s < SL_CUDA_SIGHTS; s++)
        if (sees(r, s, &a)) pages += sl_cuda_split_pages(&a);
    return sizeof(layout) + pages * sizeof(uint32_t);
}

void sl_cuda_step_fill(const sl_cuda *c, const sl_cuda_step_rows *r, uint8_t *to,
                       uint32_t blocks[SL_CUDA_SIGHTS]) {
    layout *l = (layout *)(void *)to;
    uint32_t at = 0;
    sl_attn_args a;
    for (uint32_t i = 0; i < r->n; i++) {
        l->id[i] = r->id[i];
        l->pos[i] = r->pos[i];
        l->place[i] = sl_kv_row_offset(r->m, &r->kv, r->pages[i], r->pos[i]);
    }
    for (uint32_t s = 0; s < SL_CUDA_SIGHTS; s++) {
        blocks[s] = 0;
        if (!sees(r, s, &a)) continue;
        sl_cuda_split(c, &a, at, l->page, &l->list[s]);
        at += (uint32_t)sl_cuda_split_pages(&a);
        blocks[s] = l->list[s].blocks;
    }
}

void sl_cuda_step_at(const sl_cuda_step_rows *r, uint64_t at, const uint32_t blocks[SL_CUDA_SIGHTS],
                     sl_cuda_step *out) {
    const layout *l = (const layout *)(uintptr_t)at; /* not followed */
    *out = (sl_cuda_step){.n = r->n,
                          .id = r->id,
                          .pos = r->pos,
                          .id_at = l->id,
                          .pos_at = l->pos,
                          .place_at = l->place,
                          .page_at = l->page};
    for (uint32_t s = 0; s < SL_CUDA_SIGHTS; s++) {
        out->list_at[s] = &l->list[s];
        out->blocks[s] = blocks[s];
    }
}

bool sl_cuda_step_reserve(sl_cuda *c, const sl_cuda_step_rows *r,
                          const uint32_t blocks[SL_CUDA_SIGHTS]) {
    sl_attn_args a;
    for (uint32_t s = 0; s < SL_CUDA_SIGHTS; s++)
        if (sees(r, s, &a) && !sl_cuda_split_reserve(c, &a, blocks[s])) return false;
    return true;
}

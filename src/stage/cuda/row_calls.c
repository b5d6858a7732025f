/* UNPACK, MOVE and MERGE: rows that messages brought, and rows from one place to another. */
#include "stage/cuda/row_calls.h"

#include "stage/cuda/exec_rows.h"

#include <string.h>

/* Rows as they came, where kernels read them; NULL stays, and so does what lies in a window. */
static const uint8_t *const *bring(const sl_cuda_rows *r, const uint8_t *const *from, uint32_t n,
                                   size_t row) {
    const void *at = NULL;
    const uint8_t **to = sl_arena_take(r->lists, n, sizeof *to);
    uint32_t there = 0;
    SL_ASSERT(to != NULL);
    for (uint32_t i = 0; i < n; i++) {
        to[i] = sl_cuda_windows_have(r->windows, from[i]) ? from[i] : NULL;
        there += from[i] && !to[i];
    }
    uint8_t *room = there ? sl_cuda_list_room(r->c, there * row, &at) : NULL;
    for (uint32_t i = 0, j = 0; i < n; i++) {
        if (!from[i] || to[i]) continue;
        memcpy(room + j * row, from[i], row);
        to[i] = (const uint8_t *)at + j++ * row;
    }
    return to;
}

void sl_cuda_rows_unpack(const sl_cuda_rows *r, const sl_stage_pack *p) {
    const uint32_t width = r->spec->d_model;
    if (p->n == 0) return;
    const uint8_t *const *from = (const uint8_t *const *)p->at;
    sl_cuda_unpack(r->c, p->wire, sl_mem_at(p->rows), p->row, p->n, width,
                   bring(r, from, p->n, sl_wire_row_bytes(p->wire, width)));
}

void sl_cuda_rows_move(const sl_cuda_rows *r, const sl_stage_move *m) {
    if (m->n)
        sl_cuda_move_rows(r->c, sl_mem_at(m->from), m->from_row, m->n, r->spec->d_model,
                          sl_mem_at(m->to), m->to_row);
}

void sl_cuda_rows_merge(const sl_cuda_rows *r, const sl_stage_call *c) {
    const sl_stage_merge *m = &c->merge;
    const sl_model_spec *s = r->spec;
    if (c->rows.n == 0) return;
    const size_t row = sl_wire_row_bytes(m->wire, s->d_model);
    sl_cuda_merge(r->c,
                  &(sl_cuda_merge_rows){.to = sl_mem_at(c->rows.x),
                                        .x = sl_mem_at(m->x),
                                        .shared = sl_mem_at(m->shared),
                                        .from = m->from,
                                        .piece = bring(r, m->piece, c->rows.n * s->top_k, row),
                                        .wire = m->wire,
                                        .n = c->rows.n,
                                        .d = s->d_model,
                                        .k = s->top_k});
}

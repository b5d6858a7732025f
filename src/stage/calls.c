/* Stages that are src/model's functions, whoever has the rows. */
#include "stage/stage_int.h"

/* Where results go, by pair. */
static float **places_of(const sl_stage_model *s, const sl_stage_experts *e, uint32_t pairs) {
    sl_arena *lists = s->exec->lists ? s->exec->lists : s->scratch;
    size_t row = sl_model_stored_of(s->model)->d_model, n = 0, at = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) n += e->part[i].n;
    float **to = sl_arena_take(lists, pairs, sizeof *to);
    float **place = sl_arena_take(lists, n, sizeof *place);
    SL_ASSERT(to && place);
    for (uint32_t i = 0; i < e->n_parts; i++) {
        float *rows = sl_mem_at(e->part[i].rows);
        for (uint32_t j = 0; j < e->part[i].n; j++) place[at++] = rows + j * row;
    }
    for (uint32_t p = 0; p < pairs; p++) to[p] = place[e->to[p]];
    return to;
}

static void experts(const sl_stage_model *s, const sl_stage_call *c) {
    const sl_stage_experts *e = &c->experts;
    size_t level = s->scratch->used;
    sl_expert_batch b = {.n_groups = e->n_groups,
                         .expert = e->expert,
                         .first = e->first,
                         .row = e->row,
                         .x = sl_mem_at(e->x),
                         .gate = e->gate,
                         .n_rows = e->n_rows,
                         .adds = e->adds};
    if (e->to)
        b.to = places_of(s, e, e->first[e->n_groups]);
    else
        b.y = sl_mem_at(e->part[0].rows);
    sl_block_experts(s->model, s->exec, c->layer, &b, s->scratch);
    s->scratch->used = level;
}

static size_t rows_bytes(const sl_model *m, uint32_t n) {
    return sl_model_scratch_bytes(sl_model_spec_of(m), n) + sl_rank_scratch_bytes(m, n);
}

static size_t pairs_bytes(const sl_model *m, uint32_t n) {
    return sl_experts_scratch_bytes(sl_model_spec_of(m), n) + sl_rank_pairs_bytes(m, n) +
           2 * ((size_t)n * sizeof(void *) + 64);
}

size_t sl_stage_rows_bytes(const sl_model *m, uint32_t n) {
    return rows_bytes(m, n) + rows_bytes(m, 0);
}

size_t sl_stage_pairs_bytes(const sl_model *m, uint32_t n) {
    return pairs_bytes(m, n) + pairs_bytes(m, 1);
}

bool sl_stage_run_model(const sl_stage_model *s, const sl_stage_call *c) {
    const sl_rowset *r = &c->rows;
    const sl_rows rows = {.n = r->n,
                          .id = r->id,
                          .pos = r->pos,
                          .kv = s->kv,
                          .pages = r->pages,
                          .state = r->state,
                          .done = r->done,
                          .states = s->states};
    sl_model *m = s->model;
    float *x = sl_mem_at(r->x), *h = sl_mem_at(r->h);
    switch (c->op) {
    case SL_OP_EMBED:
        sl_model_embed(m, s->exec, r->id, r->n, x);
        return true;
    case SL_OP_ATTEND:
        sl_block_attention(m, s->exec, c->layer, &rows, x, s->scratch);
        return true;
    case SL_OP_DENSE:
        sl_block_dense(m, s->exec, c->layer, r->n, x, s->scratch);
        return true;
    case SL_OP_ROUTE:
        sl_block_route(m, s->exec, c->layer, &rows, x, h, r->expert, r->gate, s->scratch);
        return true;
    case SL_OP_SHARED:
        sl_block_shared(m, s->exec, c->layer, r->n, x, h, s->scratch);
        return true;
    case SL_OP_EXPERTS:
        experts(s, c);
        return true;
    default:
        return false;
    }
}

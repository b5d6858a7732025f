/* The block that predicts a further token, all of it in one place: what enters it, its attention,
 * its router and its experts, a slice of the call's rows at a time. Of ranks each routes for itself
 * and has its columns of what the others need of its rows. */
#include "spec/mtp_cost.h"
#include "stage/stage_int.h"

static size_t padded(size_t bytes) {
    return bytes + 64;
}

size_t sl_stage_mtp_bytes(const sl_model *m) {
    const sl_model_spec *s = sl_model_spec_of(m);
    const size_t pairs = (size_t)SL_MTP_SLICE_ROWS * s->top_k, row = s->d_model * sizeof(float);
    return sl_mtp_scratch_bytes(s, SL_MTP_SLICE_ROWS) + padded(SL_MTP_SLICE_ROWS * row) +
           2 * padded(pairs * sizeof(float)) + sl_stage_rows_bytes(m, SL_MTP_SLICE_ROWS) +
           sl_stage_pairs_bytes(m, (uint32_t)pairs) + sl_stage_inside_bytes(s, SL_MTP_SLICE_ROWS);
}

static void run_slice(const sl_stage_model *s, const sl_stage_call *c, const uint32_t *low,
                      uint32_t at, uint32_t n, float *x) {
    const sl_model_spec *m = sl_model_stored_of(s->model);
    const size_t level = s->scratch->used, bytes = (size_t)n * m->d_model * sizeof(float);
    const sl_rows rows = {
        .n = n, .pos = c->rows.pos + at, .kv = s->kv, .pages = c->rows.pages + at, .low = low + at};
    sl_mtp_enter(s->model, s->exec, c->rows.id + at, sl_mem_at(c->rows.x), c->mtp.row + at, n,
                 c->mtp.again, x, s->scratch);
    sl_model_hear(s->model);
    sl_block_attention(s->model, s->exec, sl_mtp_block(m), &rows, x, s->scratch);
    sl_model_hear(s->model);
    float *h = sl_arena_take(s->scratch, (size_t)n * m->d_model, sizeof *h);
    float *gate = sl_arena_take(s->scratch, (size_t)n * m->top_k, sizeof *gate);
    uint32_t *expert = sl_arena_take(s->scratch, (size_t)n * m->top_k, sizeof *expert);
    SL_ASSERT(h && gate && expert);
    sl_stage_call inside = {.op = SL_OP_INSIDE, .queue = c->queue, .layer = sl_mtp_block(m)};
    inside.rows = (sl_rowset){.n = n,
                              .id = c->rows.id + at,
                              .pos = c->rows.pos + at,
                              .pages = c->rows.pages + at,
                              .x = sl_mem_host(x, bytes),
                              .h = sl_mem_host(h, bytes),
                              .expert = expert,
                              .gate = gate};
    sl_stage_run_inside(s, &inside);
    sl_model_wrote(s->model, x, n);
    sl_model_hear(s->model);
    s->scratch->used = level;
}

void sl_stage_run_mtp(const sl_stage_model *s, const sl_stage_call *c, const uint32_t *low) {
    const uint32_t d = sl_model_stored_of(s->model)->d_model;
    float *x = sl_mem_at(c->mtp.out);
    for (uint32_t at = 0; at < c->rows.n; at += SL_MTP_SLICE_ROWS)
        run_slice(s, c, low, at, SL_MIN(SL_MTP_SLICE_ROWS, c->rows.n - at), x + (size_t)at * d);
    if (s->heads)
        sl_mtp_head_rows(s->model, s->exec, x, c->mtp.last, c->mtp.n_last, sl_mem_at(c->mtp.h));
}

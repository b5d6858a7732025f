/* Rows on their way between ranks: what O and DOWN multiply, of which each rank has made some
 * columns. Where all products with them take the same rounded rows, each rank rounds its own
 * columns and these travel (quant/act_words.h): whole blocks, so that they are as who rounds the
 * whole row has them, in a quarter of the bytes or half. */
#include "model/block_int.h"

#include "quant/act_words.h"

/* What passes together elsewhere, of ranks whose rows travel: the first of these travels while
 * nothing is computed. */
#define PARTS_IN_ONE 2u

/* The kind in which rows travel; SL_ACT_NONE: in f32. The same at all ranks. */
static sl_act_kind travels_as(const sl_holding *mine, uint32_t values, uint32_t kinds) {
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        if (kinds != 1u << i) continue;
        return sl_act_is_int8(i) || mine->even || values % 2 == 0 ? i : SL_ACT_NONE;
    }
    return SL_ACT_NONE;
}

static void pass(const sl_model *m, const float *part, uint32_t n_rows, sl_extent mine,
                 uint32_t width, float *whole, sl_arrival *a) {
    const sl_gang *g = m->gang;
    if (sl_rank_overlaps(m))
        a->ticket = g->begin(g->ctx, part, n_rows, mine.first, mine.n, width, whole);
    else
        g->gather(g->ctx, part, n_rows, mine.first, mine.n, width, whole);
}

sl_arrival sl_rank_send(const sl_model *m, const sl_exec *ex, const sl_holding *mine,
                        uint32_t values, uint32_t kinds, const float *x, uint32_t n_rows,
                        uint32_t width, sl_arena *scratch) {
    const sl_extent has = {mine->first * values, mine->n * values};
    sl_arrival a = {.rows = x, .n_rows = n_rows, .kinds = kinds, .rounded = SL_ACT_NONE};
    if (!m->gang || !sl_rank_gives_columns(m)) return a;
    a.rounded = travels_as(mine, values, kinds);
    if (a.rounded == SL_ACT_NONE) {
        float *whole = sl_take_rows(scratch, n_rows, width);
        a.rows = whole;
        pass(m, x, n_rows, has, width, whole, &a);
        return a;
    }
    const sl_extent words = {sl_act_words(a.rounded, has.first), sl_act_words(a.rounded, has.n)};
    const uint32_t wide = sl_act_words(a.rounded, width);
    float *part = sl_take_rows(scratch, n_rows, words.n);
    float *whole = sl_take_rows(scratch, n_rows, wide);
    const size_t level = scratch->used;
    uint8_t *rows = sl_take(scratch, n_rows, sl_act_row_bytes(a.rounded, has.n));
    sl_quantise_words(ex, x, n_rows, has.n, a.rounded, rows, part);
    scratch->used = level;
    a.rows = whole;
    pass(m, part, n_rows, words, wide, whole, &a);
    return a;
}

sl_arrived sl_rank_arrived(const sl_model *m, const sl_exec *ex, const sl_arrival *a,
                           const sl_mat *into, sl_arena *scratch) {
    sl_arrived in = {0};
    if (a->ticket) m->gang->end(m->gang->ctx, a->ticket);
    if (a->rounded == SL_ACT_NONE) {
        in.x = a->rows;
        in.act =
            sl_take_act(ex, a->kinds, a->rows, NULL, a->n_rows, into->k, into->segments, scratch);
        return in;
    }
    uint8_t *rows = sl_take(scratch, a->n_rows, sl_act_row_bytes(a->rounded, into->k));
    sl_rows_of_words(ex, a->rows, a->n_rows, into->k, a->rounded, rows);
    in.act.row[a->rounded] = rows;
    return in;
}

void sl_rank_project(const sl_model *m, const sl_exec *ex, const sl_mat *w, const sl_arrival *a,
                     float *y, sl_arena *scratch) {
    const size_t level = scratch->used;
    const sl_arrived in = sl_rank_arrived(m, ex, a, w, scratch);
    sl_gemm_job job = sl_dense_job(w, in.x, a->n_rows, y + sl_rank_first(m));
    job.y_stride = m->spec.d_model;
    job.act = in.act;
    sl_gemm(ex, &job, 1);
    scratch->used = level;
}

bool sl_rank_overlaps(const sl_model *m) {
    return m->gang && m->gang->begin && sl_rank_gives_columns(m);
}

uint32_t sl_rank_slice(const sl_model *m, const sl_exec *ex, uint32_t each) {
    if (sl_rank_overlaps(m)) each /= PARTS_IN_ONE;
    return m->gang && m->gang->threads ? each * m->gang->threads : sl_exec_rows(ex, each);
}

void sl_rank_turns(bool overlap, size_t first, size_t second, sl_arena *scratch,
                   sl_turns_scratch *out) {
    const size_t bytes[] = {first, second};
    out->ahead = overlap;
    for (uint32_t i = 0; i < 2; i++) {
        out->at[i] = scratch;
        if (!overlap) continue;
        out->own[i] = (sl_arena){.base = sl_take(scratch, bytes[i], 1), .cap = bytes[i]};
        out->at[i] = &out->own[i];
    }
}

/* Inputs and results of jobs between machines. */
#include "stage/gang/carry.h"

#include "base/mem.h"
#include "spec/pipeline.h"

#include <string.h>

#define MOST_THREADS 4096u /* of rank 0, by which calls are cut */

/* ---- marks ---- */

void gang_marks_free(gang_marks *m) {
    sl_free(m->bits);
    *m = (gang_marks){0};
}

/* None of the first n. */
static sl_status clear(gang_marks *m, size_t n, sl_err *err) {
    const size_t words = n / 64 + 1;
    if (words > m->cap) {
        uint64_t *more = sl_grow(m->bits, m->cap, words, sizeof *more);
        if (!more) return sl_fail(err, SL_ERR_NOMEM, "marks of %zu rows", n);
        m->bits = more;
        m->cap = words;
    }
    memset(m->bits, 0, words * sizeof *m->bits);
    return SL_OK;
}

/* False: it is already. */
static bool mark(gang_marks *m, size_t i) {
    const uint64_t bit = 1ull << i % 64;
    if (m->bits[i / 64] & bit) return false;
    m->bits[i / 64] |= bit;
    return true;
}

/* ---- rows ---- */

static size_t row_bytes(const sl_model_spec *s) {
    return s->d_model * sizeof(float);
}

static size_t rows_of_parts(const sl_stage_experts *e) {
    size_t n = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) n += e->part[i].n;
    return n;
}

static float *row_of_parts(const sl_stage_experts *e, size_t row, uint32_t width) {
    uint32_t i = 0;
    while (row >= e->part[i].n) row -= e->part[i++].n;
    return (float *)sl_mem_ptr(e->part[i].rows) + row * width;
}

/* ---- inputs ---- */

typedef struct inputs {
    const sl_model_spec *spec;
    gang_marks *marks;
    gang_input_fn f;
    void *ctx;
} inputs;

/* The rows that experts read, and those of results that are added to before they are written: what
 * an earlier call left there. */
static sl_status experts_read(const inputs *in, const sl_stage_experts *e, sl_err *err) {
    const size_t row = row_bytes(in->spec);
    const uint32_t pairs = e->first[e->n_groups];
    size_t most = 0;
    for (uint32_t p = 0; p < pairs; p++) most = SL_MAX(most, e->row[p] + (size_t)1);
    sl_status st = clear(in->marks, most, err);
    for (uint32_t p = 0; st == SL_OK && p < pairs; p++)
        if (mark(in->marks, e->row[p]))
            in->f(in->ctx, (const uint8_t *)sl_mem_ptr(e->x) + e->row[p] * row, row);
    if (st == SL_OK && e->to) st = clear(in->marks, rows_of_parts(e), err);
    for (uint32_t p = 0; st == SL_OK && e->to && p < pairs; p++)
        if (mark(in->marks, e->to[p]) && e->adds[p])
            in->f(in->ctx, (const uint8_t *)row_of_parts(e, e->to[p], in->spec->d_model), row);
    return st;
}

static void rows_read(const inputs *in, sl_mem rows, uint32_t n) {
    if (n) in->f(in->ctx, sl_mem_ptr(rows), n * row_bytes(in->spec));
}

/* Those that a list names. */
static void listed_read(const inputs *in, sl_mem rows, const uint32_t *row, uint32_t n) {
    const size_t bytes = row_bytes(in->spec);
    for (uint32_t i = 0; i < n; i++)
        in->f(in->ctx, (const uint8_t *)sl_mem_ptr(rows) + row[i] * bytes, bytes);
}

static sl_status call_reads(const inputs *in, const sl_stage_call *c, sl_err *err) {
    switch (c->op) {
    case SL_OP_ATTEND:
    case SL_OP_DENSE:
        rows_read(in, c->rows.x, c->rows.n);
        return SL_OK;
    case SL_OP_SHARED:
        rows_read(in, in->spec->dense_branch ? c->rows.x : c->rows.h, c->rows.n);
        return SL_OK;
    case SL_OP_EXPERTS:
        return experts_read(in, &c->experts, err);
    case SL_OP_HEAD: /* what later pieces need was made with the first */
        if (c->head.first > 0) return SL_OK;
        if (c->head.made)
            rows_read(in, c->head.h, c->head.n);
        else
            listed_read(in, c->rows.x, c->head.row, c->head.n);
        return SL_OK;
    case SL_OP_MTP:
        listed_read(in, c->rows.x, c->mtp.row, c->rows.n);
        return SL_OK;
    default:
        return sl_fail(err, SL_ERR_INTERNAL, "stage %d for ranks on machines", (int)c->op);
    }
}

/* Of what is packed by columns, and of what SHARED left, each rank has its own; what came is at
 * ranks, too. */
static void spread_reads(const inputs *in, const gang_job *j) {
    const size_t row = row_bytes(in->spec);
    if (j->spread.op == SL_OP_MERGE) rows_read(in, j->spread.rows, j->spread.n);
    if (j->spread.op != SL_OP_PACK || j->spread.cut) return;
    const uint8_t *rows = sl_mem_ptr(j->spread.rows);
    for (uint32_t i = 0; i < j->spread.n; i++)
        in->f(in->ctx, rows + (j->spread.row ? j->spread.row[i] : i) * row, row);
}

sl_status gang_each_input(const gang_job *j, const sl_model_spec *spec, gang_marks *marks,
                          gang_input_fn f, void *ctx, sl_err *err) {
    const inputs in = {spec, marks, f, ctx};
    if (j->kind == GANG_SPREAD) spread_reads(&in, j);
    if (j->kind == GANG_RUN && !j->run.before)
        rows_read(&in, j->run.call.rows.x, j->run.call.rows.n);
    return j->kind == GANG_CALL ? call_reads(&in, &j->call, err) : SL_OK;
}

/* ---- results ---- */

typedef struct results {
    const sl_model_spec *spec;
    const gang_share *who;
    gang_marks *marks;
    gang_result_fn f;
    void *ctx;
} results;

static void columns_of(const results *r, float *row) {
    if (r->who->out.n) r->f(r->ctx, row + r->who->out.first, r->who->out.n);
}

static void rows_written(const results *r, sl_mem rows, uint32_t n) {
    float *at = sl_mem_ptr(rows);
    for (uint32_t i = 0; i < n; i++) columns_of(r, at + (size_t)i * r->spec->d_model);
}

static sl_status experts_wrote(const results *r, const sl_stage_experts *e, sl_err *err) {
    const uint32_t pairs = e->first[e->n_groups];
    if (!e->to) {
        rows_written(r, e->part[0].rows, pairs);
        return SL_OK;
    }
    sl_status st = clear(r->marks, rows_of_parts(e), err);
    for (uint32_t p = 0; st == SL_OK && p < pairs; p++)
        if (mark(r->marks, e->to[p])) columns_of(r, row_of_parts(e, e->to[p], r->spec->d_model));
    return st;
}

static void logits_written(const results *r, const sl_stage_head *h) {
    const sl_extent its = sl_rank_piece(r->who->is, r->spec->vocab, h->first, h->count);
    for (uint32_t i = 0; its.n && i < h->n; i++)
        r->f(r->ctx, h->logits + (size_t)i * r->spec->vocab + its.first, its.n);
}

/* All of them at every rank of a gang, where they are few and are told once more; of a pipeline's
 * they are nobody else's. */
static void guesses_made(const results *r, const sl_stage_mtp *g) {
    float *out = sl_mem_ptr(g->out);
    for (uint32_t i = 0; i < g->n_last; i++)
        columns_of(r, out + (size_t)g->last[i] * r->spec->d_model);
    rows_written(r, g->h, g->n_last);
}

/* Its heads' tiles of each block. */
static void tiles_read(const results *r, const gang_job *j) {
    const size_t tile = sl_kv_tile_bytes(r->spec) / sizeof(float);
    const size_t block = sl_kv_block_bytes(r->spec) / sizeof(float);
    const sl_extent heads = r->who->kv_heads;
    for (uint32_t i = 0; heads.n && i < j->page.n; i++) {
        if (!sl_extent_has(r->who->blocks, j->page.first + i)) continue;
        for (uint32_t side = 0; side < sl_kv_sides(r->spec); side++)
            r->f(r->ctx,
                 j->page.blocks + i * block +
                     ((size_t)side * r->spec->n_kv_heads + heads.first) * tile,
                 heads.n * tile);
    }
}

static void words(const results *r, uint32_t *at, size_t n) {
    if (n) r->f(r->ctx, (float *)(void *)at, n);
}

/* The stream, where ranks have not told each other or the next one has it; of a pipeline's rank
 * what blocks inside chose; what the last router did, and the rows of one that ends the run. */
static void run_wrote(const results *r, const gang_job *j) {
    const sl_rowset *rows = &j->run.call.rows;
    const size_t n = (size_t)rows->n * r->spec->top_k;
    if (j->run.together ? !gang_run_shares(j) : !j->run.hands_on) rows_written(r, rows->x, rows->n);
    if (j->run.together) return; /* rank 0 has chosen, too */
    words(r, j->run.chosen, n * gang_run_inside(j));
    if (gang_run_routes(j)) rows_written(r, rows->h, rows->n);
    if (!gang_run_chooses(j)) return;
    words(r, rows->expert, n);
    if (n) r->f(r->ctx, rows->gate, n);
}

sl_status gang_each_result(const gang_job *j, const sl_model_spec *spec, const gang_share *who,
                           gang_marks *marks, gang_result_fn f, void *ctx, sl_err *err) {
    const results r = {spec, who, marks, f, ctx};
    const sl_stage_call *c = &j->call;
    if (j->kind == GANG_READ) tiles_read(&r, j);
    if (j->kind == GANG_RUN) run_wrote(&r, j);
    if (j->kind != GANG_CALL || !gang_job_is_answered(j)) return SL_OK;
    if (c->op == SL_OP_ATTEND || c->op == SL_OP_DENSE) rows_written(&r, c->rows.x, c->rows.n);
    if (c->op == SL_OP_SHARED) rows_written(&r, c->rows.h, c->rows.n);
    if (c->op == SL_OP_HEAD) logits_written(&r, &c->head);
    if (c->op == SL_OP_MTP) guesses_made(&r, &c->mtp);
    return c->op == SL_OP_EXPERTS ? experts_wrote(&r, &c->experts, err) : SL_OK;
}

/* ---- what came is what it has to be ---- */

typedef struct checking {
    const gang_memory *m;
    const uint8_t *base; /* of the area */
    size_t bytes, room;  /* of it that came; all of it */
    uint32_t area;
    const gang_bounds *b;
} checking;

/* The array at that place, n > 0 values of `size`; NULL: it is not all there. */
static const void *array(const checking *k, const void *place, size_t n, size_t size) {
    const size_t at = (uintptr_t)place;
    if (at == 0 || at > k->bytes || n > (k->bytes - at) / size || at % sizeof(uint64_t))
        return NULL;
    return k->base + at;
}

/* A place is one of the area also where nothing is read of it. */
static bool is_place(const checking *k, const void *place) {
    return (uintptr_t)place <= k->room;
}

static bool has_bytes(const checking *k, const void *place, size_t n, size_t size) {
    return n ? array(k, place, n, size) != NULL : is_place(k, place);
}

/* Room in the area for what the rank writes, behind all that came: writing it changes nothing that
 * was checked. */
static bool has_room(const checking *k, const void *place, size_t n, size_t size) {
    const size_t at = (uintptr_t)place;
    if (n == 0) return is_place(k, place);
    return at && at >= k->bytes && at <= k->room && n <= (k->room - at) / size &&
           at % sizeof(uint64_t) == 0;
}

/* Values of an array of n, all below `most`. */
static bool below(const checking *k, const void *place, size_t n, uint32_t most) {
    const uint32_t *v = n ? array(k, place, n, sizeof *v) : NULL;
    for (size_t i = 0; v && i < n; i++)
        if (v[i] >= most) return false;
    return n ? v != NULL : is_place(k, place);
}

/* That many rows of the model's width in a block. */
static bool has_rows(const checking *k, sl_mem at, size_t n) {
    if (at.bytes == 0) return n == 0;
    /* Rows do not lie where lists do: writing them would change what was checked. */
    if (at.space == 0 || at.space > GANG_MAX_BLOCKS || at.space == k->area + 1) return false;
    const gang_block *b = &k->m->block[at.space - 1];
    return b->at && at.at <= b->bytes && at.bytes <= b->bytes - at.at &&
           at.at % sizeof(float) == 0 && n <= at.bytes / row_bytes(k->b->spec);
}

/* Each row's list of pages as far as its position asks for it. */
static bool has_pages(const checking *k, const sl_rowset *r) {
    const uint64_t *list = array(k, r->pages, r->n, sizeof *list);
    const uint32_t *pos = array(k, r->pos, r->n, sizeof *pos);
    for (uint32_t i = 0; list && pos && i < r->n; i++) {
        const void *place = (const void *)(uintptr_t)list[i];
        const size_t n = pos[i] / SL_KV_PAGE_TOKENS + (size_t)1;
        if (i && list[i] == list[i - 1] && pos[i] <= pos[i - 1]) continue; /* part of that one */
        if (!below(k, place, n, k->b->kv_pages)) return false;
    }
    return list && pos;
}

/* SHARED and HEAD name positions and ids that nobody reads there; they lie in the area all the
 * same. */
static bool rows_fit(const checking *k, const sl_stage_call *c) {
    const sl_model_spec *s = k->b->spec;
    const sl_rowset *r = &c->rows;
    const size_t word = sizeof(uint32_t);
    if (r->n > k->b->max_rows || r->expert || r->gate) return false;
    if (r->id && !has_bytes(k, r->id, r->n, word)) return false;
    if (r->pos && !below(k, r->pos, r->n, s->max_position)) return false;
    if (r->state && !has_bytes(k, r->state, r->n, word)) return false;
    if (r->done && !has_bytes(k, r->done, r->n, word)) return false;
    if (!has_rows(k, r->x, 0) || !has_rows(k, r->h, 0)) return false;
    if (c->op != SL_OP_ATTEND && c->op != SL_OP_MTP) return !r->pages;
    return r->n ? has_pages(k, r) : is_place(k, r->pages);
}

static bool experts_fit(const checking *k, const sl_stage_call *c) {
    const sl_stage_experts *e = &c->experts;
    const sl_model_spec *s = k->b->spec;
    if (!k->b->experts || e->n_groups > s->n_experts || e->n_parts > k->b->max_pairs + 1u)
        return false;
    const bool places = is_place(k, e->expert) && is_place(k, e->part) && is_place(k, e->row) &&
                        is_place(k, e->gate) && is_place(k, e->to) && is_place(k, e->adds);
    if (!places || !has_rows(k, e->x, 0)) return false;
    const uint32_t *first = array(k, e->first, e->n_groups + (size_t)1, sizeof *first);
    const uint32_t *who = e->n_groups ? array(k, e->expert, e->n_groups, sizeof *who) : NULL;
    const sl_stage_part *part = e->n_parts ? array(k, e->part, e->n_parts, sizeof *part) : NULL;
    if (!first || first[0] != 0 || (e->n_groups && !who) || (e->n_parts && !part)) return false;
    size_t rows = 0;
    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (first[g + 1] < first[g] || who[g] >= s->n_experts) return false;
        const bool asked = first[g + 1] > first[g];
        if (asked && k->b->device && !sl_cpu_has_expert(k->b->device, c->layer, who[g]))
            return false;
    }
    const uint32_t pairs = first[e->n_groups];
    for (uint32_t i = 0; i < e->n_parts; i++) {
        if (!has_rows(k, part[i].rows, part[i].n)) return false;
        rows += part[i].n;
    }
    if (pairs > k->b->max_pairs || rows > SL_MAX(k->b->max_pairs, 1u)) return false;
    if (!e->to && e->n_parts != 1) return false;
    if (pairs == 0) return true;
    if (!has_rows(k, e->x, SL_MAX(e->n_rows, 1u))) return false;
    const size_t have = e->x.bytes / row_bytes(s);
    if (!below(k, e->row, pairs, e->n_rows ? e->n_rows : (uint32_t)SL_MIN(have, UINT32_MAX)))
        return false;
    if (e->gate && !has_bytes(k, e->gate, pairs, sizeof(float))) return false;
    if (!e->to) return e->n_parts == 1 && part[0].n >= pairs && !e->adds;
    return below(k, e->to, pairs, (uint32_t)rows) && has_bytes(k, e->adds, pairs, 1);
}

static bool head_fits(const checking *k, const sl_stage_call *c) {
    const sl_stage_head *h = &c->head;
    const uint32_t vocab = k->b->spec->vocab;
    if (h->n > k->b->max_rows || h->first > vocab || h->count > vocab - h->first) return false;
    if (!gang_is_bool(&h->made) || !has_rows(k, h->h, h->n)) return false;
    if (h->made ? h->row != NULL : !below(k, h->row, h->n, c->rows.n)) return false;
    if (h->n && h->first == 0 && !h->made && !has_rows(k, c->rows.x, c->rows.n)) return false;
    return has_room(k, h->logits, (size_t)h->n * vocab, sizeof(float));
}

/* Ids are looked up here, by each rank. */
static bool mtp_fits(const checking *k, const sl_stage_call *c) {
    const sl_rowset *r = &c->rows;
    const size_t have = r->x.bytes / row_bytes(k->b->spec);
    return k->b->mtp && gang_is_bool(&c->mtp.again) && below(k, r->id, r->n, k->b->spec->vocab) &&
           has_rows(k, r->x, SL_MIN(r->n, 1u)) &&
           below(k, c->mtp.row, r->n, (uint32_t)SL_MIN(have, UINT32_MAX)) &&
           has_rows(k, c->mtp.out, r->n) && below(k, c->mtp.last, c->mtp.n_last, r->n) &&
           c->mtp.n_last <= k->b->max_rows && has_rows(k, c->mtp.h, c->mtp.n_last);
}

/* A block of the model that the rank has. */
static bool has_block(const checking *k, uint32_t layer) {
    return layer < k->b->spec->n_layers &&
           (k->b->blocks.n == 0 || sl_extent_has(k->b->blocks, layer));
}

static bool has_all_experts(const checking *k, uint32_t layer) {
    for (uint32_t e = 0; k->b->device && e < k->b->spec->n_experts; e++)
        if (!sl_cpu_has_expert(k->b->device, layer, e)) return false;
    return true;
}

static bool step_fits(const checking *k, const gang_step *s) {
    if (!has_block(k, s->layer) || !gang_is_bool(&s->shares)) return false;
    if (s->shares && (!k->b->together || s->op == SL_OP_ROUTE)) return false;
    const bool moe = k->b->spec->ffn[s->layer] == SL_FFN_MOE;
    switch (s->op) {
    case SL_OP_ATTEND:
        return true;
    case SL_OP_DENSE:
        return !moe;
    case SL_OP_ROUTE:
        return moe;
    case SL_OP_INSIDE:
        return moe && k->b->inside && has_all_experts(k, s->layer);
    default:
        return false;
    }
}

/* What is written of it: choices, gates and, one behind the other, those of blocks inside. */
static bool has_choices(const checking *k, const gang_job *j, uint32_t inside, bool routes) {
    const sl_rowset *r = &j->run.call.rows;
    const size_t pairs = (size_t)r->n * k->b->spec->top_k, word = sizeof(uint32_t);
    const uintptr_t expert = (uintptr_t)r->expert, gate = (uintptr_t)r->gate;
    if (j->run.together && j->run.chosen) return false;
    if (j->run.together && !inside && !routes) return !expert && !gate;
    if (!has_room(k, r->expert, pairs, word) || !has_room(k, r->gate, pairs, word)) return false;
    if (gate < expert || gate - expert < pairs * word) return false;
    if (inside == 0) return is_place(k, j->run.chosen);
    if (j->run.together) return pairs <= k->b->max_pairs;
    const uintptr_t chosen = (uintptr_t)j->run.chosen;
    return pairs <= k->b->max_pairs && has_room(k, j->run.chosen, inside * pairs, word) &&
           chosen >= gate && chosen - gate >= pairs * word;
}

/* Rows come from the rank before this one and go to the one behind it, where there are such, as
 * whole blocks leave them. */
static bool hands_fit(const checking *k, const gang_job *j, bool routes) {
    const sl_rank is = k->b->is;
    if (!gang_is_bool(&j->run.hands_on)) return false;
    if (!j->run.hands_on && !j->run.before) return true;
    if (j->run.together || routes || is.index == 0) return false;
    return (!j->run.hands_on || sl_pipeline_hands_on(is)) &&
           (!j->run.before || sl_pipeline_hands_on((sl_rank){is.index - 1, is.of}));
}

static bool run_fits(const checking *k, const gang_job *j) {
    const sl_rowset *r = &j->run.call.rows;
    const uint32_t steps = j->run.n_steps;
    uint32_t inside = 0;
    bool routes = false;
    if (!gang_is_bool(&j->run.together) || j->run.together != k->b->together) return false;
    if (!k->b->attention || r->n == 0 || r->n > k->b->max_rows || steps == 0 ||
        steps > 2 * SL_MAX_LAYERS || j->run.call.queue >= SL_STAGE_QUEUES)
        return false;
    const gang_step *step = array(k, j->run.step, steps, sizeof *step);
    for (uint32_t i = 0; step && i < steps; i++) {
        if (!step_fits(k, &step[i])) return false;
        inside += step[i].op == SL_OP_INSIDE;
        routes = routes || step[i].op == SL_OP_ROUTE;
    }
    const size_t word = sizeof(uint32_t);
    return step && has_rows(k, r->x, r->n) && has_rows(k, r->h, r->n) &&
           has_bytes(k, r->id, r->n, word) && below(k, r->pos, r->n, k->b->spec->max_position) &&
           (!r->state || has_bytes(k, r->state, r->n, word)) &&
           (!r->done || has_bytes(k, r->done, r->n, word)) && has_pages(k, r) &&
           has_choices(k, j, inside, routes) && hands_fit(k, j, routes);
}

static bool call_fits(const checking *k, const sl_stage_call *c) {
    const sl_model_spec *s = k->b->spec;
    const bool head = c->op == SL_OP_HEAD, no_block = head || c->op == SL_OP_MTP;
    if ((!no_block && !has_block(k, c->layer)) || c->queue >= SL_STAGE_QUEUES) return false;
    if (head && k->b->blocks.n && k->b->blocks.first > 0) return false; /* another rank has it */
    const bool moe = !no_block && s->ffn[c->layer] == SL_FFN_MOE;
    const bool may_stay = k->b->spreads && (c->op == SL_OP_EXPERTS || c->op == SL_OP_SHARED);
    if (!gang_is_bool(&c->stays) || (c->stays && !may_stay)) return false;
    if (c->op == SL_OP_EXPERTS) return moe && experts_fit(k, c);
    if (!k->b->attention || !rows_fit(k, c)) return false;
    switch (c->op) {
    case SL_OP_ATTEND:
        return has_rows(k, c->rows.x, c->rows.n);
    case SL_OP_DENSE:
        return !moe && has_rows(k, c->rows.x, c->rows.n);
    case SL_OP_SHARED:
        return moe && s->d_ff_shared && has_rows(k, c->rows.h, c->rows.n) &&
               (!s->dense_branch || has_rows(k, c->rows.x, c->rows.n));
    case SL_OP_HEAD:
        return head_fits(k, c);
    case SL_OP_MTP:
        return mtp_fits(k, c);
    default:
        return false;
    }
}

static bool page_fits(const checking *k, const gang_job *j) {
    const sl_model_spec *s = k->b->spec;
    return k->b->attention && j->page.page < k->b->kv_pages && j->page.n > 0 &&
           j->page.n <= s->n_layers && j->page.first <= s->n_layers - j->page.n &&
           j->page.bytes == j->page.n * sl_kv_block_bytes(s) &&
           (j->kind == GANG_WRITE ? has_bytes : has_room)(k, j->page.blocks, j->page.bytes, 1);
}

/* A message has a number, and is whole only where it stays. What came may be none. */
static bool messages_fit(const checking *k, const gang_job *j) {
    const uint32_t n = j->spread.n_messages;
    const sl_stage_spread *m = n ? array(k, j->spread.message, n, sizeof *m) : NULL;
    /* Of each row as many come back as it has positions. */
    const uint64_t most =
        SL_MAX((uint64_t)k->b->max_rows * k->b->spec->top_k, (uint64_t)k->b->max_pairs);
    if (n == 0) return j->spread.op == SL_OP_MERGE && is_place(k, j->spread.message);
    for (uint32_t i = 0; m && i < n; i++) {
        const bool bools = gang_is_bool(&m[i].is.cut) && gang_is_bool(&m[i].back);
        if (!bools || !m[i].is.number || (!m[i].is.cut && m[i].is.key) || m[i].data) return false;
        if (m[i].rows == 0 || m[i].rows > most) return false;
    }
    return m;
}

/* What is gathered before anybody asks for its rows: messages that came in parts, and nothing else.
 */
static bool begins(const checking *k, const gang_job *j) {
    const uint32_t n = j->spread.n_messages;
    const sl_stage_spread *m = n ? array(k, j->spread.message, n, sizeof *m) : NULL;
    for (uint32_t i = 0; m && i < n; i++)
        if (!m[i].is.cut || !m[i].is.key || m[i].back) return false;
    return m && !j->spread.rows.bytes && !j->spread.shared.bytes && !j->spread.n_plain &&
           is_place(k, j->spread.plain) && is_place(k, j->spread.row) && is_place(k, j->spread.ref);
}

static bool refs_fit(const checking *k, const gang_job *j) {
    const bool merges = j->spread.op == SL_OP_MERGE, packs = j->spread.op == SL_OP_PACK;
    const size_t n = (size_t)j->spread.n * (merges ? k->b->spec->top_k : 1);
    const uint32_t n_messages = j->spread.n_messages;
    const sl_stage_spread *m =
        n_messages ? array(k, j->spread.message, n_messages, sizeof *m) : NULL;
    const gang_ref *ref = array(k, j->spread.ref, n, sizeof *ref);
    for (size_t i = 0; ref && i < n; i++) {
        const uint32_t of = ref[i].message;
        if (of == GANG_NO_ROW && merges) continue;
        if (of == GANG_PLAIN && !packs && ref[i].row < j->spread.n_plain) continue;
        if (of >= n_messages || ref[i].row >= m[of].rows) return false;
    }
    return ref;
}

/* What each rank has of a row, this one what it has. */
static bool columns_fit(const checking *k, const gang_job *j) {
    const uint32_t d = k->b->spec->d_model, self = k->b->is.index;
    const sl_extent *c = j->spread.columns;
    uint64_t all = 0;
    for (uint32_t i = 0; i < k->b->is.of; i++) {
        if (c[i].first > d || c[i].n > d - c[i].first) return false;
        all += c[i].n;
    }
    return self < SL_MAX_RANKS && all <= d && c[self].first == k->b->out.first &&
           c[self].n == k->b->out.n;
}

static bool spread_fits(const checking *k, const gang_job *j) {
    const sl_model_spec *s = k->b->spec;
    const sl_stage_op op = j->spread.op;
    const sl_mem rows = j->spread.rows;
    if (!k->b->spreads || j->spread.wire != k->b->wire || !gang_is_bool(&j->spread.cut))
        return false;
    if (op != SL_OP_PACK && op != SL_OP_UNPACK && op != SL_OP_MERGE) return false;
    if (op == SL_OP_MERGE && (!k->b->attention || j->spread.row)) return false;
    if (op == SL_OP_UNPACK && !k->b->experts) return false;
    if (op == SL_OP_PACK && j->spread.n_plain) return false;
    if (!columns_fit(k, j) || !messages_fit(k, j)) return false;
    if (j->spread.n == 0) return op == SL_OP_UNPACK && begins(k, j);
    if (!refs_fit(k, j)) return false;
    const size_t plain = sl_wire_row_bytes(j->spread.wire, s->d_model);
    if (!has_bytes(k, j->spread.plain, j->spread.n_plain, plain)) return false;
    const size_t have = rows.bytes / row_bytes(s);
    if (j->spread.row)
        return has_rows(k, rows, 1) && !j->spread.shared.bytes &&
               below(k, j->spread.row, j->spread.n, (uint32_t)SL_MIN(have, UINT32_MAX));
    return has_rows(k, rows, j->spread.n) &&
           (!j->spread.shared.bytes || has_rows(k, j->spread.shared, j->spread.n));
}

static bool text_fits(const checking *k, const char *place, size_t bytes) {
    const char *text = bytes ? array(k, place, bytes, 1) : NULL;
    return text && text[bytes - 1] == 0;
}

static bool open_fits(const checking *k, const gang_job *j) {
    const sl_device_opts *o = &j->open.o;
    const sl_stages *s = &o->hosts;
    const bool bools =
        gang_is_bool(&s->attention) && gang_is_bool(&s->experts) && gang_is_bool(&s->random) &&
        gang_is_bool(&s->segmented) && gang_is_bool(&s->skew.on) &&
        gang_is_bool(&s->skew.permuted) && gang_is_bool(&o->exact) && gang_is_bool(&o->apart) &&
        gang_is_bool(&o->inside) && gang_is_bool(&o->loud) && gang_is_bool(&s->inner) &&
        gang_is_bool(&o->spreads) && gang_is_bool(&o->numa) && gang_is_bool(&s->mtp);
    if (!bools || (uint32_t)o->wire >= SL_WIRE_FORMAT_COUNT ||
        (uint32_t)o->activations >= SL_ACTIVATIONS_COUNT || (uint32_t)s->kv_type >= SL_KV_TYPES ||
        o->threads > MOST_THREADS)
        return false;
    if (o->pipeline > SL_MAX_RANKS) return false;
    return !k->b->spec && text_fits(k, o->folder, j->open.folder_bytes) &&
           (!o->isa || text_fits(k, o->isa, j->open.isa_bytes)) &&
           (!o->hosts.hosted || has_bytes(k, o->hosts.hosted, j->open.hosted_bytes, 1));
}

static bool job_fits(const checking *k, const gang_job *j) {
    const sl_model_spec *s = k->b->spec;
    switch (j->kind) {
    case GANG_OPEN:
        return open_fits(k, j);
    case GANG_CALL:
        return s && call_fits(k, &j->call);
    case GANG_RUN:
        return s && run_fits(k, j);
    case GANG_HOST:
        return s && k->b->experts && gang_is_bool(&j->host.patient) &&
               j->host.hosted_bytes == (size_t)s->n_moe * s->n_experts &&
               has_bytes(k, j->host.hosted, j->host.hosted_bytes, 1);
    case GANG_READ:
    case GANG_WRITE:
        return s && page_fits(k, j);
    case GANG_MAP:
    case GANG_UNMAP:
        return j->map.id < GANG_MAX_BLOCKS && (j->kind == GANG_UNMAP || j->map.bytes > 0);
    case GANG_SPREAD:
        return s && spread_fits(k, j);
    case GANG_SETTLE:
    case GANG_LEAVE:
        return true;
    }
    return false;
}

sl_status gang_job_check(const gang_memory *m, uint32_t area, size_t bytes, const gang_job *j,
                         const gang_bounds *b, sl_err *err) {
    const bool there = area < GANG_MAX_BLOCKS && m->block[area].at && bytes <= m->block[area].bytes;
    const bool needed = gang_job_has_lists(j->kind);
    const gang_block *a = there ? &m->block[area] : &(gang_block){0};
    const checking k = {m, a->at, there ? bytes : 0, a->bytes, area, b};
    if ((there || !needed) && job_fits(&k, j)) return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL,
                   "job %d of a gang, stage %d of block %u: it names what is not there",
                   (int)j->kind, j->kind == GANG_CALL ? (int)j->call.op : -1,
                   j->kind == GANG_CALL ? j->call.layer : 0);
}

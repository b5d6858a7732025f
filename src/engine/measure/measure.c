/* Times of a model's stages on this machine, for plans and profiles. */
#include "engine/measure/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/model.h"
#include "quant/kv_rows.h"
#include "spec/kv.h"

#include <stdbool.h>
#include <string.h>

#define CALL_BUDGET_NS  100000000ull /* of one call, estimated from one row's */
#define STAGE_BUDGET_NS 150000000ull /* of all calls of one figure */
#define TICK_US         1000u
#define MOST_CALLS      5
#define MOST_ROWS       256u
#define MOST_KEYS       1024u
#define MOST_EXPERTS    8u
#define EXPERT_BYTES    (256ull << 20) /* of weights, which may have to come from a disk first */
#define EXPERT_ROWS     32u
#define KEY_ROWS        8u

typedef struct lab {
    const sl_measure_opts *o;
    const sl_model_spec *m;
    sl_model *model;
    sl_exec ex;
    sl_pool *pool;
    sl_arena scratch, expert_scratch;
    uint32_t layer, max_rows, keys, n_experts;
    uint32_t *id, *pos;
    const uint32_t **row_pages; /* [max_rows] the same pages for all */
    uint32_t *page;
    uint8_t *kv;
    float *x, *h, *y, *gate;
    uint32_t *expert;
    void *pages, *rows; /* what the arrays of pages, and of rows, are in */
} lab;

static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 31) * 0.01f - 0.15f;
}

typedef enum stage { ATTENTION, FAR_ATTENTION, ROUTER, SHARED, EXPERTS } stage;

/* One call of a stage with n rows; of experts: with n rows each. */
static void call(lab *b, stage s, uint32_t n) {
    const sl_rows rows = {.n = n,
                          .id = b->id,
                          .pos = b->pos,
                          .kv = sl_kv_pool_of(b->m, b->kv),
                          .pages = b->row_pages};
    uint32_t expert[MOST_EXPERTS], first[MOST_EXPERTS + 1], row[MOST_EXPERTS * EXPERT_ROWS];
    for (uint32_t i = 0; s != EXPERTS && i < n; i++)
        b->pos[i] = s == FAR_ATTENTION ? b->keys - 1 : i;
    if (s == ATTENTION || s == FAR_ATTENTION)
        sl_block_attention(b->model, &b->ex, b->layer, &rows, b->x, &b->scratch);
    if (s == ROUTER)
        sl_block_route(b->model, &b->ex, b->layer, &rows, b->x, b->h, b->expert, b->gate,
                       &b->scratch);
    if (s == SHARED) sl_block_shared(b->model, &b->ex, b->layer, n, b->x, b->h, &b->scratch);
    if (s != EXPERTS) return;
    for (uint32_t e = 0; e <= b->n_experts; e++) first[e] = e * n;
    for (uint32_t e = 0; e < b->n_experts; e++) expert[e] = e;
    for (uint32_t i = 0; i < b->n_experts * n; i++) row[i] = i % b->max_rows;
    const sl_expert_batch batch = {.n_groups = b->n_experts,
                                   .expert = expert,
                                   .first = first,
                                   .row = row,
                                   .x = b->x,
                                   .y = b->y};
    sl_block_experts(b->model, &b->ex, b->layer, &batch, &b->expert_scratch);
}

/* Microseconds of the fastest of a few calls; a first one touches the weights. */
static double time_of(lab *b, stage s, uint32_t n) {
    uint64_t began_ns = sl_now_ns(), best_ns = UINT64_MAX;
    call(b, s, n);
    for (int i = 0; i < MOST_CALLS && (i == 0 || sl_now_ns() - began_ns < STAGE_BUDGET_NS); i++) {
        fill(b->h, (size_t)b->max_rows * b->m->d_model); /* SHARED works in place */
        uint64_t at_ns = sl_now_ns();
        call(b, s, n);
        best_ns = SL_MIN(best_ns, sl_now_ns() - at_ns);
        if (b->o->tick) b->o->tick(b->o->ctx);
    }
    return (double)best_ns / 1e3;
}

/* So many rows surely stay within the budget of a call. */
static uint32_t rows_within(double one_us, uint32_t most) {
    double rows = one_us > 0 ? CALL_BUDGET_NS / 1e3 / one_us : most;
    return rows >= most ? most : rows < 1 ? 1 : (uint32_t)rows;
}

static sl_stage_cost line_of(lab *b, stage s, uint32_t most, double per) {
    double one = time_of(b, s, 1);
    uint32_t n = rows_within(one, most);
    double many = n > 1 ? time_of(b, s, n) : one;
    return (sl_stage_cost){.floor_us = one / per, .row_us = SL_MAX(many, one) / n / per};
}

static void measure_attention(lab *b, sl_costs *out) {
    sl_stage_cost attention = line_of(b, ATTENTION, b->max_rows, 1);
    uint32_t n = SL_MIN(rows_within(attention.floor_us, KEY_ROWS), b->max_rows);
    double near = time_of(b, ATTENTION, n), far = time_of(b, FAR_ATTENTION, n);
    double keys = (double)n * (b->keys - 1);
    attention.key_us = keys > 0 && far > near ? (far - near) / keys : 0;
    /* The rows of the slope had keys, too. */
    uint32_t many = rows_within(attention.floor_us, b->max_rows);
    attention.row_us = SL_MAX(attention.row_us - attention.key_us * many / 2, attention.row_us / 4);
    out->stage[SL_COST_ATTENTION] = attention;
    out->stage[SL_COST_ROUTER] = line_of(b, ROUTER, b->max_rows, 1);
    if (b->m->d_ff_shared) out->stage[SL_COST_SHARED] = line_of(b, SHARED, b->max_rows, 1);
}

static void measure(lab *b, sl_costs *out) {
    if (b->o->roles & SL_ROLE_ATTENTION) measure_attention(b, out);
    if (b->o->roles & SL_ROLE_EXPERT)
        out->stage[SL_COST_EXPERT] = line_of(b, EXPERTS, EXPERT_ROWS, b->n_experts);
}

/* ---- what the calls need ---- */

/* The block's tiles of a page. */
static void fill_tiles(const lab *b, uint8_t *page) {
    const sl_model_spec *m = b->m;
    float row[SL_HEAD_DIM_MAX];
    fill(row, m->head_dim);
    for (uint32_t side = 0; side < sl_kv_sides(m); side++)
        for (uint32_t h = 0; h < m->n_kv_heads; h++)
            for (uint32_t t = 0; t < SL_KV_PAGE_TOKENS; t++) {
                uint8_t *at =
                    page + sl_kv_tile_offset(m, b->layer, side, h) + t * sl_kv_row_bytes(m);
                sl_kv_round_row(m->kv_type, row, sl_kv_value_dim(m), m->head_dim, at);
            }
}

static sl_status make_pages(lab *b, sl_err *err) {
    uint32_t n = sl_kv_pages_for(SL_MAX(b->keys, b->max_rows));
    size_t page_bytes = sl_kv_page_bytes(b->m);
    /* zeroed lazily: only this block's tiles take memory */
    b->pages = sl_alloc_arrays(SL_TABLE(b->kv, n, page_bytes), SL_ARRAY(b->page, n),
                               SL_ARRAY(b->row_pages, b->max_rows));
    if (!b->pages)
        return sl_fail(err, SL_ERR_NOMEM, "%u KV pages of %zu bytes to measure with", n,
                       page_bytes);
    for (uint32_t i = 0; i < n; i++) {
        b->page[i] = i;
        fill_tiles(b, b->kv + i * page_bytes);
    }
    for (uint32_t i = 0; i < b->max_rows; i++) b->row_pages[i] = b->page;
    return SL_OK;
}

static sl_status make_rows(lab *b, sl_err *err) {
    size_t d = b->m->d_model, k = b->m->top_k, pairs = (size_t)b->n_experts * EXPERT_ROWS;
    b->rows = sl_alloc_arrays(SL_ARRAY(b->id, b->max_rows), SL_ARRAY(b->pos, b->max_rows),
                              SL_TABLE(b->x, b->max_rows, d), SL_TABLE(b->h, b->max_rows, d),
                              SL_TABLE(b->y, pairs, d), SL_TABLE(b->gate, b->max_rows, k),
                              SL_TABLE(b->expert, b->max_rows, k));
    if (!b->rows) return sl_fail(err, SL_ERR_NOMEM, "rows to measure with");
    fill(b->x, b->max_rows * d);
    fill(b->h, b->max_rows * d);
    sl_status st = sl_arena_create(sl_model_scratch_bytes(b->m, b->max_rows), &b->scratch, err);
    if (st != SL_OK) return st;
    return sl_arena_create(sl_experts_scratch_bytes(b->m, (uint32_t)pairs), &b->expert_scratch,
                           err);
}

/* What is measured, and no more: some weights are copied when they are bound. */
static sl_status open_model(lab *b, sl_err *err) {
    const sl_measure_opts *o = b->o;
    const sl_model_spec *m = b->m;
    uint8_t *hosted = sl_alloc((size_t)m->n_moe * m->n_experts, 1);
    if (!hosted) return sl_fail(err, SL_ERR_NOMEM, "table of experts to measure with");
    memset(hosted + (size_t)m->moe_index[b->layer] * m->n_experts, 1, b->n_experts);
    const sl_stages some = {.attention = o->roles & SL_ROLE_ATTENTION,
                            .experts = o->roles & SL_ROLE_EXPERT,
                            .hosted = hosted,
                            .blocks = {.first = b->layer, .n = 1},
                            .inner = true,
                            .kv_type = m->kv_type};
    sl_status st = sl_model_open(o->model_folder, &some, &b->model, err);
    sl_free(hosted);
    return st;
}

static sl_status make_lab(const sl_measure_opts *o, lab *b, sl_err *err) {
    b->o = o;
    b->m = o->m;
    b->layer = o->m->moe_layer[o->m->n_moe / 2];
    b->max_rows = SL_MAX(SL_MIN(o->rows, MOST_ROWS), 1u);
    b->keys = SL_MAX(SL_MIN(o->keys, MOST_KEYS), 1u);
    uint64_t each = 6ull * o->m->d_model * o->m->d_ff_expert; /* three matrices in 16 bits */
    uint64_t fit = SL_MAX(EXPERT_BYTES / SL_MAX(each, 1u), 1u);
    b->n_experts = (uint32_t)SL_MIN(SL_MIN(fit, MOST_EXPERTS), o->m->n_experts);
    b->ex.k = sl_kernels_select(o->isa);
    b->ex.activations = o->activations;
    if (!b->ex.k) return sl_fail(err, SL_ERR_ARG, "there are no kernels '%s' here", o->isa);
    sl_status st = open_model(b, err);
    /* Also of one thread: it ticks between the chunks of a call. */
    if (st == SL_OK) st = sl_pool_create(SL_MAX(o->threads, 1u), &b->pool, err);
    if (b->pool && o->tick) sl_pool_set_tick(b->pool, o->tick, o->ctx, TICK_US);
    b->ex.pool = b->pool;
    if (st == SL_OK) st = make_pages(b, err);
    return st == SL_OK ? make_rows(b, err) : st;
}

sl_status sl_measure_stages(const sl_measure_opts *o, sl_costs *out, sl_err *err) {
    lab b = {0};
    sl_status st = make_lab(o, &b, err);
    if (st == SL_OK) measure(&b, out);
    sl_free(b.pages);
    sl_free(b.rows);
    sl_arena_free(&b.scratch);
    sl_arena_free(&b.expert_scratch);
    sl_pool_free(b.pool);
    sl_model_free(b.model);
    return st;
}

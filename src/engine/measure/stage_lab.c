/* Calls of stages for whoever times them. */
#include "engine/measure/stage_lab.h"

#include "base/mem.h"
#include "engine/measure/state_walk.h"
#include "quant/kv_rows.h"
#include "spec/kv.h"
#include "stage/stage.h"

#include <string.h>

#define TICK_US 1000u

struct sl_lab {
    sl_lab_opts o;
    sl_device *d;
    uint32_t turn;
    uint32_t *id, *pos;
    sl_state_walk walk;         /* of linear attention */
    const uint32_t **row_pages; /* [max_rows] */
    uint32_t *page;             /* [pages] their numbers */
    float *row;                 /* a row's values... */
    uint8_t **from, **to;       /* [max_rows] ...which each comes with, and where each goes */
    float *gate;                /* of routers, and of pairs */
    uint32_t *expert, *choice, *first, *pair_row;
    uint8_t *pair_adds;
    float *logits;
    sl_mem x, h, y; /* rows; results of experts */
    void *lists;    /* what the arrays are in */
};

static void fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 31) * 0.01f - 0.15f;
}

static void ask(sl_lab *l, const sl_stage_call *c) {
    if (l->d->failed != SL_OK) return;
    sl_device_submit(l->d, c);
    sl_device_drain(l->d);
}

/* ---- the calls ---- */

/* The next of its blocks that is of that kind; `any`: of any. */
static uint32_t next_block(sl_lab *l, sl_ffn_kind kind, bool any) {
    const sl_extent *b = &l->o.blocks;
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t at = b->first + l->turn++ % b->n;
        if (any || l->o.m->ffn[at] == kind) return at;
    }
    return b->first;
}

static sl_stage_call call_of(sl_lab *l, sl_stage_op op, uint32_t layer, uint32_t rows) {
    return (sl_stage_call){.op = op,
                           .layer = layer,
                           .rows = {.n = rows,
                                    .id = l->id,
                                    .pos = l->pos,
                                    .pages = l->row_pages,
                                    .x = l->x,
                                    .h = l->h,
                                    .expert = l->choice,
                                    .gate = l->gate}};
}

/* Where rows are in pages: each the last of its request, or together a prompt. */
static void place_keys(sl_lab *l, const sl_lab_task *t) {
    const uint32_t per_row = sl_kv_pages_for(t->context ? t->context : t->rows);
    SL_ASSERT(per_row <= l->o.pages);
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint64_t first = t->context ? (uint64_t)r * per_row % (l->o.pages - per_row + 1) : 0;
        l->row_pages[r] = l->page + first;
        l->pos[r] = t->context ? t->context - 1 : r;
    }
}

static void attend(sl_lab *l, const sl_lab_task *t, uint32_t block) {
    sl_stage_call c = call_of(l, SL_OP_ATTEND, block, t->rows);
    place_keys(l, t);
    if (l->o.m->linear[block]) {
        sl_state_walk_place(&l->walk, t->rows, !t->context);
        c.rows.pos = l->walk.pos;
        c.rows.state = l->walk.state;
        c.rows.done = l->walk.done;
    }
    ask(l, &c);
}

static uint32_t run_attention(sl_lab *l, const sl_lab_task *t) {
    const sl_extent *b = &l->o.blocks;
    if (!l->o.m->n_linear) {
        attend(l, t, next_block(l, SL_FFN_MOE, true));
        return 1;
    }
    for (uint32_t i = 0; i < b->n; i++) attend(l, t, b->first + i);
    sl_state_walk_pass(&l->walk, t->rows, !t->context);
    return b->n;
}

static void run_experts(sl_lab *l, const sl_lab_task *t) {
    const uint32_t pairs = t->experts * t->rows, begin = l->turn * t->experts % l->o.experts;
    SL_ASSERT(pairs <= l->o.max_pairs && t->experts <= l->o.experts);
    for (uint32_t e = 0; e <= t->experts; e++) l->first[e] = e * t->rows;
    const uint32_t at = begin + t->experts <= l->o.experts ? begin : l->o.experts - t->experts;
    for (uint32_t e = 0; e < t->experts; e++) l->expert[e] = at + e;
    for (uint32_t i = 0; i < pairs; i++) {
        l->pair_row[i] = i % l->o.max_rows;
        l->pair_adds[i] = i >= l->o.max_rows;
        l->gate[i] = 1;
    }
    /* As a worker asks: who has memory of his own adds up a row's results there. */
    const bool adds_up = !l->d->in_place;
    const sl_stage_part part = {.rows = l->y, .n = adds_up ? SL_MIN(pairs, l->o.max_rows) : pairs};
    const sl_stage_call c = {.op = SL_OP_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = next_block(l, SL_FFN_MOE, false),
                             .experts = {.n_groups = t->experts,
                                         .expert = l->expert,
                                         .first = l->first,
                                         .row = l->pair_row,
                                         .gate = l->gate,
                                         .x = l->x,
                                         .to = adds_up ? l->pair_row : NULL,
                                         .adds = adds_up ? l->pair_adds : NULL,
                                         .part = &part,
                                         .n_parts = 1}};
    ask(l, &c);
}

static void run_head(sl_lab *l, const sl_lab_task *t) {
    SL_ASSERT(t->rows <= l->o.head_rows);
    for (uint32_t i = 0; i < t->rows; i++) l->pair_row[i] = i;
    const sl_stage_call embed = call_of(l, SL_OP_EMBED, 0, t->rows);
    sl_stage_call c = call_of(l, SL_OP_HEAD, 0, t->rows);
    c.head = (sl_stage_head){
        .n = t->rows, .count = l->o.m->vocab, .row = l->pair_row, .h = l->h, .logits = l->logits};
    ask(l, &embed);
    ask(l, &c);
}

uint32_t sl_lab_run(sl_lab *l, const sl_lab_task *t) {
    static const struct {
        sl_stage_op op;
        sl_ffn_kind of;
    } plain[SL_COST_COUNT] = {[SL_COST_ROUTER] = {SL_OP_ROUTE, SL_FFN_MOE},
                              [SL_COST_DENSE] = {SL_OP_DENSE, SL_FFN_DENSE},
                              [SL_COST_SHARED] = {SL_OP_SHARED, SL_FFN_MOE}};
    SL_ASSERT(t->rows <= l->o.max_rows);
    if (t->kind == SL_COST_ATTENTION) {
        return run_attention(l, t);
    } else if (t->kind == SL_COST_EXPERT) {
        run_experts(l, t);
    } else if (t->kind == SL_COST_HEAD) {
        run_head(l, t);
    } else {
        const uint32_t at = next_block(l, plain[t->kind].of, false);
        const sl_stage_call c = call_of(l, plain[t->kind].op, at, t->rows);
        ask(l, &c);
    }
    return 1;
}

static void move(sl_lab *l, sl_stage_op op, sl_mem rows, uint8_t *const *at, uint32_t n) {
    const sl_stage_call c = {.op = op,
                             .pack = {.n = n, .wire = SL_WIRE_F32, .rows = rows, .at = at}};
    ask(l, &c);
}

void sl_lab_copy(sl_lab *l, bool leave, uint32_t rows) {
    SL_ASSERT(rows <= l->o.max_rows);
    move(l, leave ? SL_OP_PACK : SL_OP_UNPACK, l->x, leave ? l->to : l->from, rows);
}

void sl_lab_renew(sl_lab *l) {
    move(l, SL_OP_UNPACK, l->h, l->from, l->o.max_rows);
}

/* ---- what they need ---- */

sl_extent sl_lab_first_blocks(const sl_model_spec *m, uint32_t n) {
    const uint32_t least = m->moe_layer[0] + 1u;
    uint32_t end = SL_MIN(SL_MAX(n, least), m->n_layers);
    while (end < m->n_layers && m->linear_before[end] * m->n_layers != m->n_linear * end) end++;
    return (sl_extent){0, end};
}

/* What attention reads in a block's part of a page. */
static void fill_block(const sl_model_spec *m, uint8_t *block) {
    float row[SL_HEAD_DIM_MAX];
    fill(row, m->head_dim);
    for (uint32_t side = 0; side < sl_kv_sides(m); side++)
        for (uint32_t h = 0; h < m->n_kv_heads; h++)
            for (uint32_t t = 0; t < SL_KV_PAGE_TOKENS; t++) {
                uint8_t *at = block + sl_kv_tile_offset(m, 0, side, h) + t * sl_kv_row_bytes(m);
                sl_kv_round_row(m->kv_type, row, sl_kv_value_dim(m), m->head_dim, at);
            }
}

static sl_status fill_pages(sl_lab *l, sl_err *err) {
    const sl_extent *b = &l->o.blocks;
    uint8_t *block = sl_alloc(sl_kv_block_bytes(l->o.m), 1);
    if (!block) return sl_fail(err, SL_ERR_NOMEM, "part of a KV page to measure with");
    fill_block(l->o.m, block);
    for (uint32_t i = 0; i < l->o.pages; i++)
        for (uint32_t k = 0; k < b->n; k++)
            if (!l->o.m->linear[b->first + k])
                l->d->ops->write_page(l->d, i, b->first + k, 1, block);
    sl_free(block);
    return SL_OK;
}

static sl_status make_lists(sl_lab *l, sl_err *err) {
    const sl_lab_opts *o = &l->o;
    const size_t k = o->m->top_k, d = o->m->d_model, rows = o->max_rows;
    const size_t pairs = SL_MAX((size_t)o->max_pairs, rows * k);
    uint8_t *gone = NULL; /* rows that left */
    l->lists = sl_alloc_arrays(
        SL_ARRAY(l->id, rows), SL_ARRAY(l->pos, rows), SL_ARRAY(l->page, SL_MAX(o->pages, 1u)),
        SL_ARRAY(l->row_pages, rows), SL_ARRAY(l->row, d), SL_ARRAY(l->from, rows),
        SL_ARRAY(l->to, rows), SL_ARRAY(l->gate, pairs), SL_ARRAY(l->choice, rows * k),
        SL_ARRAY(l->expert, SL_MAX(o->experts, 1u)), SL_ARRAY(l->first, o->experts + 1u),
        SL_ARRAY(l->pair_row, pairs), SL_ARRAY(l->pair_adds, pairs),
        SL_TABLE(l->logits, SL_MAX(o->head_rows, 1u), o->m->vocab),
        SL_TABLE(gone, rows, d * sizeof(float)));
    if (!l->lists) return sl_fail(err, SL_ERR_NOMEM, "rows to measure with");
    fill(l->row, d);
    for (uint32_t i = 0; i < o->pages; i++) l->page[i] = i;
    for (uint32_t i = 0; i < rows; i++) {
        l->row_pages[i] = l->page;
        l->from[i] = (uint8_t *)l->row;
        l->to[i] = gone + i * d * sizeof(float);
    }
    return SL_OK;
}

static sl_status make_rows(sl_lab *l, sl_err *err) {
    const sl_lab_opts *o = &l->o;
    sl_status st = sl_device_take_rows(l->d, o->max_rows, &l->x, err);
    if (st == SL_OK) st = sl_device_take_rows(l->d, o->max_rows, &l->h, err);
    if (st == SL_OK) st = sl_device_take_rows(l->d, SL_MAX(o->max_pairs, 1u), &l->y, err);
    if (st != SL_OK) return st;
    move(l, SL_OP_UNPACK, l->x, l->from, o->max_rows);
    sl_lab_renew(l);
    return o->roles & SL_ROLE_ATTENTION ? fill_pages(l, err) : SL_OK;
}

/* The experts that take turns, in each of the blocks. */
static uint8_t *hosted_of(const sl_lab_opts *o) {
    const sl_model_spec *m = o->m;
    uint8_t *hosted = sl_alloc((size_t)m->n_moe * m->n_experts, 1);
    for (uint32_t i = 0; hosted && i < o->blocks.n; i++) {
        const uint32_t at = o->blocks.first + i;
        if (m->ffn[at] == SL_FFN_MOE)
            memset(hosted + (size_t)m->moe_index[at] * m->n_experts, 1, o->experts);
    }
    return hosted;
}

/* What is measured, and no more: some weights are copied when they are bound. */
static sl_status open_device(sl_lab *l, sl_err *err) {
    static const sl_device_spec cpu = {.kind = SL_DEVICE_CPU};
    const sl_lab_opts *o = &l->o;
    const sl_device_spec *device = o->device ? o->device : &cpu;
    const bool attention = o->roles & SL_ROLE_ATTENTION, experts = o->roles & SL_ROLE_EXPERT;
    const bool varies = !sl_device_is_cpu(device) && device->numerics == SL_NUMERICS_FAST;
    uint8_t *hosted = hosted_of(o);
    if (!hosted) return sl_fail(err, SL_ERR_NOMEM, "table of experts to measure with");
    const sl_device_opts some = {.folder = o->model_folder,
                                 .hosts = {.attention = attention,
                                           .experts = experts,
                                           .hosted = hosted,
                                           .blocks = o->blocks,
                                           .inner = o->head_rows == 0,
                                           .kv_type = o->m->kv_type},
                                 .device = device,
                                 .isa = o->isa,
                                 .threads = SL_MAX(o->threads, 1u),
                                 .activations = o->activations,
                                 .exact = !varies,
                                 .max_rows = o->max_rows,
                                 .max_pairs = experts ? o->max_pairs : 0,
                                 .requests = attention ? l->walk.n : 0,
                                 .kv_pages = attention ? o->pages : 0,
                                 .tick = o->tick,
                                 .ctx = o->ctx,
                                 .tick_us = TICK_US,
                                 .loud = o->tick != NULL};
    sl_status st = sl_device_open(&some, &l->d, err);
    sl_free(hosted);
    return st;
}

sl_status sl_lab_open(const sl_lab_opts *o, sl_lab **out, sl_err *err) {
    sl_lab *l = *out = sl_alloc(1, sizeof *l);
    if (!l) return sl_fail(err, SL_ERR_NOMEM, "stages to measure");
    l->o = *o;
    sl_status st = sl_state_walk_open(o->m, o->blocks, o->max_rows, &l->walk, err);
    if (st == SL_OK) st = make_lists(l, err);
    if (st == SL_OK) st = open_device(l, err);
    if (st == SL_OK) st = make_rows(l, err);
    if (st == SL_OK) return SL_OK;
    st = sl_lab_close(l, st, err);
    *out = NULL;
    return st;
}

sl_status sl_lab_close(sl_lab *l, sl_status st, sl_err *err) {
    if (!l) return st;
    if (l->d) {
        const sl_mem rows[] = {l->x, l->h, l->y};
        if (st == SL_OK && l->d->failed != SL_OK)
            st = sl_fail(err, l->d->failed, "%s", l->d->failure.msg);
        for (size_t i = 0; i < SL_LEN(rows); i++) sl_device_give(l->d, rows[i]);
    }
    sl_device_close(l->d);
    sl_state_walk_close(&l->walk);
    sl_free(l->lists);
    sl_free(l);
    return st;
}

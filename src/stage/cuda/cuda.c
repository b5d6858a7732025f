/* The CUDA device: src/model's stages by the kernels of a GPU, in whose memory weights, KV pages,
 * rows and scratch lie. A call is launched when it is submitted and is through when the GPU says
 * so; calls run one after another, whatever their queues. What a call writes to the host's memory
 * (ids and gates of routers, rows that leave, logits) comes by way of pinned memory, and is put
 * where it belongs when the call is through. */
#include "base/log.h"
#include "stage/cuda.h"
#include "stage/cuda/asked.h"
#include "stage/cuda/call_bytes.h"
#include "stage/cuda/exec_rows.h"
#include "stage/cuda/exec_wide.h"
#include "stage/cuda/experts.h"
#include "stage/cuda/few_choice.h"
#include "stage/cuda/logits.h"
#include "stage/cuda/offload.h"
#include "stage/cuda/row_calls.h"
#include "stage/cuda/slabs.h"
#include "stage/cuda/steps.h"
#include "stage/cuda/ops.h"
#include "stage/cuda/timeline.h"
#include "stage/cuda/windows.h"
#include "stage/stage_int.h"

#include <sched.h>
#include <string.h>

/* Calls in flight: two a block of a step that stays inside, for some lanes. With more the next one
 * waits for the oldest. */
#define MOST_SHARERS 16u
#define MOST_CALLS   1024u
#define RESULTS      ((size_t)4 << 20) /* bytes of pinned memory to begin with */

/* A call that was launched. */
typedef struct launched {
    sl_stage_call call;
    sl_cuda_event *event;
    sl_cuda_event *mark; /* behind it: `event`, or that of a graph; what is before the next mark is
                          * through with that. NULL: none is */
    sl_cuda_known *run;  /* whose graph has done its work; NULL: it was launched */
    const uint8_t *result; /* in the ring, or a graph's; NULL: it has none */
    uint64_t end;          /* of results up to this call's, counted from the first ever */
    uint64_t timed;        /* its number on the timeline; 0: it is not */
} launched;

typedef struct cuda {
    sl_device base;
    sl_cuda *c;
    sl_cuda_slabs memory;
    sl_model *model;
    sl_cuda_offload offload; /* c NULL: experts' weights lie on the GPU */
    sl_cuda_experts fast;    /* c NULL: experts go by the operations of `exec`, */
    bool not_fast;           /* as they do while one is here that its kernels do not compute; */
    bool stays_inside;       /* else base.inside is this */
    sl_cuda_cut cut;         /* of an expert; */
    uint64_t expert_bytes;   /* as the file has it */
    sl_exec exec;
    sl_arena rows;  /* scratch of the GPU: base is an address there */
    sl_arena lists; /* of the host */
    sl_kv_pool kv;
    uint32_t kv_pages, max_rows;
    launched call[MOST_CALLS]; /* ring */
    uint64_t n_launched, n_done;
    uint64_t unmarked; /* no call in flight before this one has a mark */
    uint8_t *results;  /* ring of pinned memory, at this address for kernels: */
    uint64_t results_at;
    size_t results_cap;
    uint64_t results_used, results_done; /* bytes ever */
    uint8_t *own_result; /* where results of a call go that a graph will do; NULL: to the ring */
    uint64_t own_at;
    sl_pool *pool;
    sl_cuda_tries tries;
    sl_cuda_windows windows; /* rows of other workers' messages lie there, and of ours to them */
    sl_cuda_steps steps;
    sl_cuda_logits logits;
    sl_cuda_timeline times; /* of calls, where somebody watches */
    void (*tick)(void *ctx);
    void (*routed)(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert);
    void *tick_ctx; /* of both */
} cuda;

/* The first failure ends the device. */
static void fails(cuda *d, sl_status st, const sl_err *err) {
    if (d->base.failed != SL_OK) return;
    d->base.failed = st;
    d->base.failure = *err;
    d->base.own_fault = true;
}

/* ---- results ---- */

/* Rows whose places are the host's. */
static void scatter(sl_cuda_windows *w, const sl_stage_pack *p, size_t row, const uint8_t *from) {
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->at[i] || sl_cuda_windows_have(w, p->at[i])) continue;
        memcpy(p->at[i], from, row);
        from += row;
    }
}

/* Ids, and gates behind them, where ROUTE wants them. */
static void give_gates(const sl_stage_call *c, size_t k, const uint8_t *from) {
    memcpy(c->rows.expert, from, k * sizeof *c->rows.expert);
    memcpy(c->rows.gate, from + k * sizeof *c->rows.expert, k * sizeof *c->rows.gate);
}

/* A call's results, where it wants them. */
static void deliver(cuda *d, const launched *l) {
    const sl_model_spec *m = d->base.spec;
    const sl_stage_call *c = &l->call;
    const size_t k = (size_t)c->rows.n * m->top_k;
    if (!l->result) return;
    if (c->op == SL_OP_ROUTE) {
        give_gates(c, k, l->result);
    } else if (c->op == SL_OP_INSIDE) {
        const uint32_t *expert = (const uint32_t *)(const void *)l->result;
        if (d->routed) d->routed(d->tick_ctx, c->layer, c->rows.n, expert);
        if (sl_is_last_moe(m, c->layer)) give_gates(c, k, l->result);
    } else if (c->op == SL_OP_PACK) {
        scatter(&d->windows, &c->pack, sl_wire_row_bytes(c->pack.wire, m->d_model), l->result);
    } else if (c->op == SL_OP_HEAD) {
        sl_cuda_logits_give(&d->logits, &c->head, l->result);
    }
}

static void mark(cuda *d, launched *l) {
    sl_cuda_event_record(d->c, l->event);
    l->mark = l->event;
}

/* The first call in flight with a mark, which the last one gets if there is none: whoever asks is
 * waiting. A mark for each call would cost the host as much as a launch. */
static launched *next_mark(cuda *d) {
    launched *l = NULL;
    for (d->unmarked = SL_MAX(d->unmarked, d->n_done); d->unmarked < d->n_launched; d->unmarked++) {
        l = &d->call[d->unmarked % MOST_CALLS];
        if (l->mark) return l;
    }
    d->unmarked--;
    mark(d, l);
    return l;
}

static void cuda_poll(sl_device *base) {
    cuda *d = (cuda *)base;
    sl_err err;
    if (base->failed != SL_OK) return;
    if (d->offload.c) sl_cuda_offload_ahead(&d->offload);
    sl_status st = sl_cuda_failed(d->c, &err);
    sl_cuda_event *passed = NULL;
    while (st == SL_OK && d->n_done < d->n_launched) {
        const launched *until = next_mark(d), *l;
        if (until->mark != passed && !sl_cuda_event_is_done(d->c, until->mark)) break;
        passed = until->mark; /* of a graph: one question for all its calls */
        st = sl_cuda_failed(d->c, &err);
        if (st != SL_OK) break;
        do {
            l = &d->call[d->n_done++ % MOST_CALLS];
            deliver(d, l);
            if (l->timed)
                sl_cuda_timeline_tell(&d->times, l->timed, base, &l->call, l->run != NULL);
            d->results_done = l->end;
            if (l->run) sl_cuda_known_ran(l->run);
            sl_device_ran(base, l->call.queue);
        } while (l != until);
    }
    if (st != SL_OK) fails(d, st, &err);
}

/* Waits until the oldest call is through. */
static void wait_for_one(cuda *d) {
    if (d->n_done == d->n_launched) return;
    sl_cuda_event_wait(d->c, next_mark(d)->mark);
    cuda_poll(&d->base);
}

static void all_done(cuda *d) {
    while (d->n_done < d->n_launched && d->base.failed == SL_OK) wait_for_one(d);
}

/* Room for that many bytes more, at once. */
static sl_status grow_results(cuda *d, size_t bytes, sl_err *err) {
    size_t cap = SL_MAX(d->results_cap, RESULTS);
    while (cap < bytes) cap *= 2;
    if (cap == d->results_cap) return SL_OK;
    all_done(d);
    if (d->base.failed != SL_OK) {
        *err = d->base.failure;
        return d->base.failed;
    }
    sl_cuda_unpin(d->c, d->results);
    d->results = NULL;
    d->results_cap = 0;
    void *p = NULL;
    sl_status st = sl_cuda_pin(d->c, cap, &p, &d->results_at, err);
    if (st != SL_OK) return st;
    d->results = p;
    d->results_cap = cap;
    d->results_used = d->results_done = 0;
    return SL_OK;
}

/* Pinned memory for a call's results, at *at for kernels; NULL: the device has failed. */
static uint8_t *take_result(cuda *d, size_t bytes, uint64_t *at) {
    sl_err err;
    if (d->own_result) {
        *at = d->own_at;
        return d->own_result;
    }
    bytes = (bytes + 63) / 64 * 64;
    sl_status st = grow_results(d, bytes, &err);
    if (st != SL_OK) {
        fails(d, st, &err);
        return NULL;
    }
    size_t skip = d->results_used % d->results_cap;
    uint64_t used = d->results_used;
    if (bytes > d->results_cap - skip) used += d->results_cap - skip; /* the end is left out */
    while (used + bytes - d->results_done > d->results_cap && d->n_done < d->n_launched) {
        wait_for_one(d);
        if (d->base.failed != SL_OK) return NULL;
    }
    if (d->n_done == d->n_launched) d->results_done = used;
    d->results_used = used + bytes;
    *at = d->results_at + used % d->results_cap;
    return d->results + used % d->results_cap;
}

/* ---- stages ---- */

static void route(cuda *d, const sl_stage_model *s, launched *l) {
    sl_stage_call c = l->call;
    const size_t k = (size_t)c.rows.n * d->base.spec->top_k;
    uint64_t at = 0;
    if (c.rows.n == 0) return;
    const bool drawn = sl_model_draws(d->model); /* on the host, into the call's own */
    l->result = drawn ? NULL : take_result(d, k * (sizeof(uint32_t) + sizeof(float)), &at);
    if (!drawn) {
        if (!l->result) return;
        c.rows.expert = (uint32_t *)(uintptr_t)at;
        c.rows.gate = (float *)(uintptr_t)(at + k * sizeof(uint32_t));
    }
    (void)sl_stage_run_model(s, &c);
}

/* Router, experts and shared expert of a block, and what they make of x, with nothing that the host
 * has to know first. */
static void inside(cuda *d, const sl_stage_model *s, launched *l) {
    const sl_model_spec *m = d->base.spec;
    const uint32_t n = l->call.rows.n;
    const size_t values = (size_t)n * m->d_model;
    float *x = sl_mem_at(l->call.rows.x), *h = sl_mem_at(l->call.rows.h);
    float *shared = (float *)(uintptr_t)d->fast.shared.at;
    const bool exact = d->base.inside_exact; /* the order of additions of rows that travel */
    float *to = exact ? (float *)(uintptr_t)d->fast.rows.at : x;
    sl_stage_call c = l->call;
    const size_t ids = (size_t)n * m->top_k * sizeof(uint32_t);
    const bool tells = sl_is_last_moe(m, c.layer); /* ids and gates */
    const uint64_t since = sl_cuda_asked(d->c);
    uint64_t heard = 0;
    if (n == 0) return;
    if (d->routed || tells) {
        l->result = take_result(d, ids * (tells ? 2 : 1), &heard);
        if (!l->result) return;
    }
    c.op = SL_OP_ROUTE;
    c.rows.expert = (uint32_t *)(uintptr_t)d->fast.expert.at;
    c.rows.gate = (float *)(uintptr_t)d->fast.gate.at;
    (void)sl_stage_run_model(s, &c);
    sl_cuda_experts_inside(&d->fast, c.layer, n, h, heard, to, !exact, since);
    if (tells)
        sl_cuda_copy_out_later(d->c, (void *)(uintptr_t)(l->result + ids), d->fast.gate.at, ids);
    if (m->d_ff_shared) {
        sl_cuda_copy(d->c, d->fast.shared.at, c.rows.h.at, values * sizeof(float));
        c.op = SL_OP_SHARED;
        c.rows.h = (sl_mem){SL_SPACE_CUDA, d->fast.shared.at, values * sizeof(float)};
        (void)sl_stage_run_model(s, &c);
        sl_cuda_vec_add(d->c, to, shared, values);
    }
    if (exact) sl_cuda_vec_add(d->c, x, to, values);
}

static void pack(cuda *d, launched *l) {
    const sl_stage_pack *p = &l->call.pack;
    const uint32_t width = d->base.spec->d_model;
    const size_t row = sl_wire_row_bytes(p->wire, width);
    uint64_t at = 0;
    if (p->n == 0) return;
    const sl_cuda_row_places to = sl_cuda_windows_places(&d->windows, p, &d->lists);
    if (to.by_host) l->result = take_result(d, to.by_host * row, &at);
    if (to.n == 0 || (to.by_host && !l->result)) return;
    for (uint32_t i = 0; i < to.n; i++) {
        if (to.at[i]) continue;
        to.at[i] = (uint8_t *)(uintptr_t)at; /* one after another */
        at += row;
    }
    sl_cuda_pack(d->c, p->wire, sl_mem_at(p->rows), to.row, to.n, width, to.at);
}

static sl_status make_logits(cuda *d, uint32_t rows, sl_err *err) {
    if (sl_cuda_logits_fit(&d->logits, d->base.spec, rows)) return SL_OK;
    all_done(d);
    return sl_cuda_logits_reserve(&d->logits, d->base.spec, rows, &d->memory, err);
}

/* All columns with the last ones: there is no hurry in between that a GPU would gain by. */
static void head(cuda *d, launched *l) {
    const sl_stage_head *h = &l->call.head;
    const uint32_t vocab = d->base.spec->vocab;
    float *rows = sl_mem_at(h->h);
    uint64_t at = 0;
    sl_err err;
    if (h->n == 0) return;
    if (h->first == 0)
        sl_model_head_rows(d->model, &d->exec, sl_mem_at(l->call.rows.x), h->row, h->n, rows);
    if (h->first + h->count < vocab) return;
    const sl_status st = make_logits(d, h->n, &err);
    if (st != SL_OK) {
        fails(d, st, &err);
        return;
    }
    uint8_t *result = take_result(d, sl_cuda_logits_result(&d->logits, h), &at);
    l->result = result;
    if (!result) return;
    sl_model_head_part(d->model, &d->exec, rows, h->n, 0, vocab,
                       (float *)(uintptr_t)d->logits.at.at, &d->rows);
    sl_cuda_logits_bring(&d->logits, h, result, at);
}

static void experts(cuda *d, const sl_stage_model *s, launched *l) {
    const sl_stage_experts *e = &l->call.experts;
    const uint32_t block = d->base.spec->moe_index[l->call.layer];
    if (d->offload.c) sl_cuda_offload_need(&d->offload, block, e->expert, e->first, e->n_groups);
    if (!d->fast.c || d->not_fast || !sl_cuda_experts_run(&d->fast, &l->call, &d->lists))
        if (!sl_stage_run_model(s, &l->call)) SL_ASSERT(false);
    if (d->offload.c) sl_cuda_offload_used(&d->offload, block);
}

static void run(cuda *d, launched *l) {
    const sl_stage_model s = {
        .model = d->model, .exec = &d->exec, .scratch = &d->rows, .kv = d->kv};
    const sl_cuda_rows rows = {d->c, &d->windows, &d->lists, d->base.spec};
    switch (l->call.op) {
    case SL_OP_ROUTE:
        route(d, &s, l);
        break;
    case SL_OP_INSIDE:
        inside(d, &s, l);
        break;
    case SL_OP_PACK:
        pack(d, l);
        break;
    case SL_OP_UNPACK:
        sl_cuda_rows_unpack(&rows, &l->call.pack);
        break;
    case SL_OP_MOVE:
        sl_cuda_rows_move(&rows, &l->call.move);
        break;
    case SL_OP_MERGE:
        sl_cuda_rows_merge(&rows, &l->call);
        break;
    case SL_OP_HEAD:
        head(d, l);
        break;
    case SL_OP_EXPERTS:
        experts(d, &s, l);
        break;
    default:
        if (!sl_stage_run_model(&s, &l->call)) SL_ASSERT(false);
    }
}

static void launch(cuda *d, launched *l) {
    sl_arena_reset(&d->rows);
    sl_arena_reset(&d->lists);
    run(d, l);
    sl_cuda_settle(d->c);
    sl_cuda_fence(d->c);
}

/* ---- steps as graphs ---- */

static void record_call(void *ctx, const sl_stage_call *c, uint8_t *result, uint64_t at) {
    cuda *d = ctx;
    launched l = {.call = *c};
    d->own_result = result;
    d->own_at = at;
    launch(d, &l);
    d->own_result = NULL;
}

static void wait_for_all(void *ctx) {
    all_done(ctx);
}

/* The first n calls of a step whose graph has run, which goes on otherwise: what the graph left is
 * that of its last call. They are through, whoever asked for them. */
static void compute_again(cuda *d, const sl_stage_call *of, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        launched l = {.call = sl_cuda_steps_call(&d->steps, i, of)};
        launch(d, &l);
    }
}

/* A call whose graph has run long ago is no mark for others that were launched since. */
static void mark_last(cuda *d) {
    launched *l = &d->call[(d->n_launched - 1) % MOST_CALLS];
    if (d->n_launched > d->n_done && !l->mark) mark(d, l);
}

static void cuda_submit(sl_device *base, const sl_stage_call *c) {
    cuda *d = (cuda *)base;
    while (d->n_launched - d->n_done == MOST_CALLS && base->failed == SL_OK) wait_for_one(d);
    if (base->failed != SL_OK) return; /* never through */
    if (!base->watch.ran) sl_cuda_timeline_rest(&d->times);
    const uint64_t number = d->n_launched + 1;
    const bool timed = base->watch.ran && sl_cuda_timeline_begin(&d->times, number);
    const sl_cuda_step_says says = sl_cuda_steps_take(&d->steps, c);
    if (says.again) compute_again(d, c, says.again);
    if (says.run && c->op != SL_OP_EMBED) mark_last(d);
    launched *l = &d->call[d->n_launched % MOST_CALLS];
    l->call = *c;
    l->result = says.result;
    l->run = says.run;
    l->mark = says.run ? says.run->end : NULL;
    if (!says.run) launch(d, l);
    l->timed = timed && (!says.run || c->op == SL_OP_EMBED) ? number : 0;
    if (l->timed) sl_cuda_timeline_end(&d->times, number, l->mark);
    l->end = d->results_used;
    d->n_launched++;
    const bool tells = c->op != SL_OP_INSIDE || sl_is_last_moe(base->spec, c->layer);
    const bool far = c->op == SL_OP_PACK && d->windows.n > 0;   /* perhaps with no result */
    if (!says.run && ((l->result && tells) || far)) mark(d, l); /* somebody waits for it */
}

/* ---- memory ---- */

static sl_status cuda_take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    cuda *d = (cuda *)base;
    uint64_t at = 0;
    sl_status st = sl_cuda_slabs_take(&d->memory, bytes, "rows", &at, err);
    if (st != SL_OK) return st;
    sl_cuda_fill(d->c, at, 0, bytes);
    *out = (sl_mem){.space = SL_SPACE_CUDA, .at = at, .bytes = bytes};
    return SL_OK;
}

static void cuda_give(sl_device *base, sl_mem m) {
    sl_cuda_slabs_return(&((cuda *)base)->memory, m.at, m.bytes);
}

static sl_status cuda_offer(sl_device *base, size_t bytes, sl_mem *out, sl_device_key *key,
                            sl_err *err) {
    return sl_cuda_windows_offer(&((cuda *)base)->windows, bytes, out, key, err);
}

static sl_status cuda_join(sl_device *base, sl_span key, sl_mem *out, sl_err *err) {
    return sl_cuda_windows_join(&((cuda *)base)->windows, key, out, err);
}

static void cuda_part(sl_device *base, sl_mem m) {
    cuda *d = (cuda *)base;
    all_done(d);
    sl_cuda_windows_part(&d->windows, m);
}

static uint64_t block_at(const cuda *d, uint32_t page, uint32_t first, uint32_t n) {
    const sl_model_spec *m = d->base.spec;
    SL_ASSERT(page < d->kv_pages && n > 0 && n <= m->n_layers && first <= m->n_layers - n);
    return (uint64_t)(uintptr_t)(sl_kv_page(&d->kv, page)) + first * sl_kv_block_bytes(m);
}

static void cuda_read_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n, void *to) {
    cuda *d = (cuda *)base;
    sl_err err;
    sl_status st = sl_cuda_copy_out(d->c, to, block_at(d, page, first, n),
                                    n * sl_kv_block_bytes(base->spec), &err);
    if (st != SL_OK) fails(d, st, &err);
}

static void cuda_write_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                            const void *from) {
    cuda *d = (cuda *)base;
    sl_err err;
    /* A graph writes K and V of its step before anybody has asked for them, of one that is given up
     * by then, too. */
    if (d->steps.c) sl_cuda_drain(d->c);
    sl_status st = sl_cuda_copy_in(d->c, block_at(d, page, first, n), from,
                                   n * sl_kv_block_bytes(base->spec), &err);
    if (st != SL_OK) fails(d, st, &err);
}

static void cuda_read_logits(sl_device *base, uint32_t row, float *to) {
    cuda *d = (cuda *)base;
    sl_err err;
    sl_status st = sl_cuda_logits_read(&d->logits, row, to, &err);
    if (st != SL_OK) fails(d, st, &err);
}

/* ---- experts that come and go ---- */

static sl_status home_put(void *ctx, size_t expert, const void *data, size_t bytes,
                          const void **out, sl_err *err) {
    cuda *d = ctx;
    uint64_t at = 0;
    if (d->tick) d->tick(d->tick_ctx);
    if (d->offload.c && expert != SIZE_MAX)
        return sl_cuda_offload_put(&d->offload, expert, data, bytes, out, err);
    sl_status st = sl_cuda_slabs_cut(&d->memory, bytes, &at, err);
    if (st != SL_OK) return st;
    st = sl_cuda_copy_in(d->c, at, data, bytes, err);
    if (st != SL_OK)
        sl_cuda_slabs_drop(&d->memory, at, bytes);
    else
        *out = (const void *)(uintptr_t)at;
    return st;
}

static void home_drop(void *ctx, size_t expert, const void *at, size_t bytes) {
    cuda *d = ctx;
    if (d->offload.c && expert != SIZE_MAX)
        sl_cuda_offload_drop(&d->offload, expert, at);
    else
        sl_cuda_slabs_drop(&d->memory, (uint64_t)(uintptr_t)at, bytes);
}

static size_t scratch_bytes(const cuda *d, uint32_t max_pairs) {
    return sl_cuda_scratch_for(d->base.spec, d->max_rows, max_pairs);
}

/* Calls of so many pairs need other scratch than there is. */
static bool grows(const cuda *d, uint32_t max_pairs) {
    return scratch_bytes(d, max_pairs) > d->rows.cap ||
           sl_cuda_list_bytes(d->base.spec, d->max_rows, max_pairs) > d->lists.cap ||
           (d->fast.c && sl_cuda_experts_more(&d->fast, max_pairs) > 0);
}

/* At least what calls of so many pairs need. */
static sl_status make_scratch(cuda *d, uint32_t max_pairs, sl_err *err) {
    const sl_model_spec *m = d->base.spec;
    size_t cap = scratch_bytes(d, max_pairs);
    size_t lists = sl_cuda_list_bytes(m, d->max_rows, max_pairs);
    sl_cuda_piece scratch = {(uint64_t)(uintptr_t)d->rows.base, d->rows.cap};
    sl_arena more;
    sl_status st = SL_OK;
    if (lists > d->lists.cap) {
        st = sl_arena_create(lists, &more, err);
        if (st != SL_OK) return st;
        sl_arena_free(&d->lists);
        d->lists = more;
    }
    if (d->fast.c && max_pairs) st = sl_cuda_experts_reserve(&d->fast, max_pairs, err);
    if (st == SL_OK) st = sl_cuda_slabs_grow(&d->memory, cap, "scratch", &scratch, err);
    d->rows = (sl_arena){.base = (uint8_t *)(uintptr_t)scratch.at, .cap = scratch.bytes};
    return st;
}

/* Numerics fast compute experts by one kind of kernels: the faster one, if all that are here have
 * it. A block's rows stay inside with that alone. */
static void look_at_experts(cuda *d) {
    if (!d->fast.c) return;
    const bool can = sl_cuda_experts_can(d->model, d->fast.kinds);
    d->not_fast = sl_cuda_numerics_of(d->c) == SL_NUMERICS_FAST && !can;
    d->base.inside = d->stays_inside && can;
}

static sl_status cuda_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                           sl_hosting *left, sl_err *err) {
    cuda *d = (cuda *)base;
    /* Else they are copied beside calls in flight, which ask for none that come or go. */
    if (base->inside || grows(d, max_pairs)) all_done(d);
    sl_status st = make_scratch(d, max_pairs, err);
    if (st == SL_OK) st = sl_model_host(d->model, hosted, patient, left, err);
    sl_cuda_moves(d->c);
    if (st != SL_OK || *left != SL_HOSTING_DONE) return st;
    look_at_experts(d);
    if (d->offload.c) st = sl_cuda_offload_settle(&d->offload, err);
    if (!base->inside) return st;
    return sl_cuda_experts_table(&d->fast, d->max_rows, err);
}

static uint64_t cuda_room(sl_device *base, uint32_t max_pairs, uint64_t beside) {
    cuda *d = (cuda *)base;
    const size_t cap = scratch_bytes(d, max_pairs);
    if (d->offload.c) return UINT64_MAX;  /* they stay in the machine's */
    if (cap > d->rows.cap) beside += cap; /* the new one is there before the old one goes */
    if (d->fast.c) beside += sl_cuda_experts_more(&d->fast, max_pairs);
    return sl_cuda_slabs_room(&d->memory, &d->cut, beside) * d->expert_bytes;
}

/* Threads beside the one that drives the GPU: tokens of many requests are drawn on the host. */
static sl_status make_pool(cuda *d, uint32_t threads, sl_err *err) {
    cpu_set_t set;
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const uint32_t cores = known ? (uint32_t)CPU_COUNT(&set) : 1;
    d->base.sharers = SL_MAX(1u, SL_MIN(SL_MIN(threads, cores), MOST_SHARERS));
    if (d->base.sharers == 1) return SL_OK;
    return sl_pool_create(d->base.sharers, &d->pool, err);
}

static void cuda_share(sl_device *base, size_t n, sl_pool_fn fn, void *ctx) {
    sl_pool_run(((cuda *)base)->pool, n, 1, fn, ctx);
}

/* ---- its life ---- */

static void cuda_close(sl_device *base) {
    cuda *d = (cuda *)base;
    sl_pool_free(d->pool);
    sl_cuda_logits_tell(&d->logits);
    if (d->c) sl_cuda_drain(d->c);
    sl_cuda_offload_release(&d->offload);
    sl_model_free(d->model);
    for (uint32_t i = 0; d->c && i < MOST_CALLS; i++) sl_cuda_event_free(d->c, d->call[i].event);
    if (d->c) {
        sl_cuda_timeline_free(&d->times);
        sl_cuda_steps_free(&d->steps);
        sl_cuda_experts_free(&d->fast);
        sl_cuda_offload_free(&d->offload);
        sl_cuda_unpin(d->c, d->results);
        sl_cuda_free(d->c, d->logits.at.at);
        sl_cuda_free(d->c, (uint64_t)(uintptr_t)d->rows.base);
        sl_cuda_free(d->c, (uint64_t)(uintptr_t)d->kv.base);
        sl_cuda_slabs_free(&d->memory);
        sl_cuda_windows_free(&d->windows);
    }
    sl_arena_free(&d->lists);
    sl_cuda_close(d->c);
    sl_free(d);
}

static sl_status make_pages(cuda *d, uint32_t n, sl_err *err) {
    size_t page = sl_kv_page_bytes(d->base.spec), bytes;
    uint64_t at = 0;
    if (n == 0) return SL_OK;
    if (__builtin_mul_overflow(n, page, &bytes))
        return sl_fail(err, SL_ERR_LIMIT, "%u KV pages overflow the address space", n);
    sl_status st = sl_cuda_slabs_take(&d->memory, bytes, "KV pages", &at, err);
    if (st != SL_OK) return st;
    sl_cuda_fill(d->c, at, 0, bytes);
    d->kv = sl_kv_pool_of(d->base.spec, (void *)(uintptr_t)at);
    d->kv_pages = n;
    return SL_OK;
}

/* What experts' kernels may compute. Those with numerics `cpu` no GPU has run yet. */
static sl_cuda_kinds expert_kinds(const cuda *d, const sl_device_opts *o) {
    const sl_numerics n = o->device->numerics;
    const bool groups = d->tries.forms && n != SL_NUMERICS_EXACT;
    return (sl_cuda_kinds){.bf16 = n != SL_NUMERICS_CPU,
                           .ints = groups && o->activations == SL_ACTIVATIONS_INT8,
                           .floats = groups};
}

/* Routed experts by kernels of their own, where there are some for this model. */
static sl_status open_experts(cuda *d, const sl_device_opts *o, sl_err *err) {
    const sl_model_spec *m = d->base.spec;
    const sl_cuda_kinds kinds = expert_kinds(d, o);
    const bool can = sl_cuda_experts_can(d->model, kinds);
    const bool tried = can && !sl_cuda_experts_can(d->model, (sl_cuda_kinds){.bf16 = kinds.bf16});
    const bool owes = o->device->numerics != SL_NUMERICS_FAST;
    /* Where bits are owed an expert's kernels are no matter of which others are here. */
    if (!(kinds.bf16 || kinds.ints || kinds.floats)) return SL_OK;
    if (owes ? !sl_cuda_experts_shaped(m) : !can) return SL_OK;
    sl_status st = sl_cuda_experts_create(d->c, d->model, kinds, &d->memory, &d->fast, err);
    d->base.inside = st == SL_OK && can && o->max_rows && o->max_pairs && !m->dense_branch &&
                     !sl_model_draws(d->model) && !d->offload.c &&
                     (uint64_t)o->max_rows * m->top_k <= UINT16_MAX;
    d->stays_inside = d->base.copies_lists = d->base.inside;
    d->base.inside_exact = d->base.inside && owes;
    if (tried)
        sl_log(SL_LOG_INFO, "cuda", "experts by groups: their lists are made on the GPU%s",
               d->base.inside ? ", rows stay there" : "");
    return d->base.inside ? sl_cuda_experts_table(&d->fast, o->max_rows, err) : st;
}

static sl_status open_model(cuda *d, const sl_device_opts *o, sl_err *err) {
    const sl_home home = {.put = home_put, .drop = home_drop, .ctx = d};
    sl_model_info info = {0};
    sl_status st = sl_stage_kernels(o->isa, &d->exec.k, err);
    if (st == SL_OK) st = sl_model_open(o->folder, &o->hosts, &d->model, err);
    /* Random weights lie in no file: there is nothing that could come from one. */
    if (st == SL_OK && !o->hosts.random) st = sl_model_measure(d->model, &info, err);
    if (st != SL_OK) return st;
    d->cut = (sl_cuda_cut){info.expert_piece, info.expert_small, info.expert_pieces};
    d->expert_bytes = info.bytes_expert_most;
    d->base.spec = sl_model_stored_of(d->model);
    if (d->base.spec->n_linear && o->hosts.attention)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: %s has blocks of linear attention, which are not computed on GPUs yet",
                       o->folder, d->base.spec->arch);
    d->exec.ops = &sl_cuda_ops;
    d->exec.ops_ctx = d->c;
    d->exec.lists = &d->lists;
    d->exec.activations = o->activations;
    if (o->device->offload && o->hosts.experts)
        st =
            sl_cuda_offload_create(d->c, &d->memory, &d->cut, d->base.spec->n_moe,
                                   d->base.spec->n_experts, d->tick, d->tick_ctx, &d->offload, err);
    if (st == SL_OK) st = sl_model_settle(d->model, &home, o->progress, o->progress_ctx, err);
    if (st == SL_OK && d->offload.c) st = sl_cuda_offload_settle(&d->offload, err);
    return st == SL_OK ? open_experts(d, o, err) : st;
}

/* Forms of kernels by measurement, where somebody asks for it: no GPU has run all of them yet.
 * Those for many rows are taken as they are. */
static void choose_forms(cuda *d) {
    /* the other numerics have no forms */
    if (!d->tries.forms || sl_cuda_numerics_of(d->c) != SL_NUMERICS_FAST) return;
    sl_cuda_set_many(d->c, true);
    if (!d->base.inside || !d->kv_pages || !sl_cuda_experts_whole(&d->fast, SL_CUDA_FEW_BLOCKS))
        return;
    sl_cuda_few_try(&d->base, d->c);
    sl_cuda_fill(d->c, block_at(d, 0, 0, d->base.spec->n_layers), 0,
                 sl_kv_page_bytes(d->base.spec));
}

/* As graphs where somebody asks for it: no GPU has run one yet. */
static sl_status make_steps(cuda *d, sl_err *err) {
    const sl_cuda_step_work work = {.launch = record_call, .wait = wait_for_all, .ctx = d};
    if (!d->tries.graphs) return SL_OK;
    if (d->base.inside && d->kv_pages)
        return sl_cuda_steps_create(d->c, d->base.spec, &d->memory, d->kv, &work, &d->steps, err);
    sl_log(SL_LOG_INFO, "cuda",
           "steps are no graphs here: rows of blocks with experts leave the GPU");
    return SL_OK;
}

sl_status sl_cuda_device_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = cuda_close,
                                      .submit = cuda_submit,
                                      .poll = cuda_poll,
                                      .take = cuda_take,
                                      .give = cuda_give,
                                      .host = cuda_host,
                                      .room = cuda_room,
                                      .share = cuda_share,
                                      .read_logits = cuda_read_logits,
                                      .offer = cuda_offer,
                                      .join = cuda_join,
                                      .part = cuda_part,
                                      .read_page = cuda_read_page,
                                      .write_page = cuda_write_page};
    sl_status st = sl_cuda_asked_check(o, err);
    if (st != SL_OK) return st;
    cuda *d = sl_alloc(1, sizeof *d);
    if (!d) return sl_fail(err, SL_ERR_NOMEM, "device");
    d->base = (sl_device){.ops = &ops, .resumes = true};
    d->max_rows = o->max_rows;
    d->tick = o->tick;
    d->tick_ctx = o->ctx;
    st = sl_cuda_asked_tries(&d->tries, err);
    d->base.windows = d->tries.rows;
    d->base.finds = d->tries.forms;
    if (st == SL_OK) st = sl_cuda_open(o->device->index, o->device->numerics, &d->c, err);
    if (st == SL_OK) st = sl_cuda_asked_kind(d->c, o->device, err);
    d->windows.c = d->times.c = d->c;
    d->logits = (sl_cuda_logits){.c = d->c, .finds = d->base.finds};
    d->memory =
        (sl_cuda_slabs){.c = d->c, .index = o->device->index, .limit = o->device->gpu_memory};
    for (uint32_t i = 0; st == SL_OK && i < MOST_CALLS; i++)
        st = sl_cuda_event_create(d->c, &d->call[i].event, err);
    if (st == SL_OK) st = open_model(d, o, err);
    if (st == SL_OK) st = make_scratch(d, o->max_pairs, err);
    if (st == SL_OK) st = make_pages(d, o->kv_pages, err);
    if (st == SL_OK) st = make_logits(d, o->head_rows, err);
    if (st == SL_OK) choose_forms(d);
    if (st == SL_OK) st = make_steps(d, err);
    if (st == SL_OK && (o->head_rows || d->offload.c)) st = make_pool(d, o->threads, err);
    d->offload.pool = d->pool;
    d->routed = o->routed;
    d->steps.tells = d->routed != NULL;
    if (st == SL_OK) sl_cuda_drain(d->c); /* pages are zero before any is written */
    if (st == SL_OK) st = sl_cuda_failed(d->c, err);
    if (st == SL_OK)
        *out = &d->base;
    else
        cuda_close(&d->base);
    return st;
}

/* The expert side of schedule aep: what lies in the queues of src/sched/queues.h, rows that
 * attention workers sent, and what each of their entries needs to run and to be answered. Each
 * attention worker that has rows in a batch gets one message back, with one position a row.
 *
 * Rows are unpacked when they come, into storage of max_num_batched_tokens rows for each attention
 * worker: what it may have in flight; twice as many where there are replicas. */
#include "engine/expert/expert.h"

#include "base/log.h"
#include "sched/queues.h"

#include <string.h>

#define NONE UINT32_MAX

/* A row of an attention worker, until its last entry ran. */
typedef struct row {
    uint64_t tag, came_ns;
    uint32_t src;
    uint32_t entries; /* in queues */
    uint32_t next;    /* in the free list of its source */
} row;

/* One (row, expert) pair, at its place in the queues. */
typedef struct entry {
    uint32_t row, position;
    float gate;
} entry;

typedef struct source {
    uint32_t free_row, held; /* rows in storage */
    uint32_t n;              /* rows of the running batch */
    sl_buf *buf;             /* its answer */
    sl_wire_return view;
} source;

/* Rows on their way from messages into storage: calls in a row share the lists, which are empty
 * again when the last of them is through. */
typedef struct arrivals {
    uint32_t *row; /* [max_rows] */
    uint8_t **at;  /* [max_rows] */
    sl_buf **buf;  /* [max_rows] messages, until `last` is through */
    uint32_t n, n_bufs;
    sl_event last;
} arrivals;

typedef struct queues {
    sl_worker *w;
    const sl_model_spec *m;
    uint32_t max_rows, max_pairs; /* of all attention workers */
    uint32_t each;                /* rows of one of them */
    sl_queues *queues;
    source *source; /* [n_workers of the plan] */
    row *row;       /* [max_rows] */
    sl_mem x;       /* [max_rows][d_model] */
    arrivals in;
    entry *entry; /* [max_pairs] by place */
    sl_queue_batch t;
    bool begun, packing; /* t waits for `event`: of its experts, of its answers */
    sl_event event;
    /* scratch of a batch */
    uint32_t *batch_row; /* [max_pairs] */
    float *batch_gate;   /* [max_pairs] */
    sl_mem y;            /* [max_pairs][d_model] */
    sl_stage_part part;  /* y, as far as it is used */
    uint8_t **back;      /* [max_pairs] where y's rows are in answers */
    void *arrays;        /* what they are all in */
} queues;

/* ---- arrival ---- */

static sl_status check_header(const queues *x, uint32_t src, const sl_wire_header *h,
                              sl_span payload, sl_err *err) {
    const sl_plan *p = &x->w->plan;
    if (src >= p->n_workers || !(p->worker[src].roles & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch from worker %u", src);
    return sl_worker_check_wave(x->w, h, payload.len, sl_queues_seen(x->queues), err);
}

static void push(queues *x, const sl_wire_header *h, uint32_t expert, entry e) {
    uint32_t place = sl_queues_push(x->queues, &(sl_queue_entry){.layer = h->layer,
                                                                 .expert = expert,
                                                                 .source = x->row[e.row].src,
                                                                 .rows = 1,
                                                                 .wave = h->wave});
    x->entry[place] = e;
    x->row[e.row].entries++;
}

/* Messages whose rows are in storage are needed no more. */
static void forget_messages(queues *x) {
    arrivals *in = &x->in;
    if (in->n == 0 || !sl_device_is_done(x->w->device, &in->last)) return;
    for (uint32_t i = 0; i < in->n_bufs; i++) sl_net_buf_give(x->w->net, in->buf[i]);
    in->n = in->n_bufs = 0;
}

/* Rows in->n - n .. in->n - 1 of the lists are those of the message. */
static void unpack(queues *x, uint32_t n, sl_buf *b) {
    arrivals *in = &x->in;
    const sl_stage_call c = {.op = SL_OP_UNPACK,
                             .queue = SL_QUEUE_EXPERTS,
                             .pack = {.n = n,
                                      .wire = (sl_wire_format)x->w->plan.wire,
                                      .rows = x->x,
                                      .row = in->row + in->n - n,
                                      .at = in->at + in->n - n}};
    in->last = sl_device_submit(x->w->device, &c);
    in->buf[in->n_bufs++] = b;
    forget_messages(x);
}

static sl_status on_dispatch(void *side, const sl_wire_header *h, sl_buf **payload, sl_err *err) {
    queues *x = side;
    const uint32_t src = h->src;
    sl_wire_dispatch v;
    sl_wire_format wire = (sl_wire_format)x->w->plan.wire;
    size_t row_bytes = sl_wire_row_bytes(wire, x->m->d_model);
    sl_span span = *payload ? (sl_span){(*payload)->data, (*payload)->len} : (sl_span){0};
    sl_status st = check_header(x, src, h, span, err);
    if (st == SL_OK) st = sl_wire_dispatch_decode(h, span, x->m, wire, &v, err);
    if (st == SL_OK) st = sl_worker_check_rows(x->w, h, &v, x->source[src].held, x->each, err);
    if (st != SL_OK) return st;
    source *s = &x->source[src];
    if (x->in.n + v.rows > x->max_rows) { /* rows leave storage before their lists are empty */
        sl_device_drain(x->w->device);
        forget_messages(x);
    }
    for (uint32_t r = 0; r < v.rows; r++) {
        uint32_t at = s->free_row;
        SL_ASSERT(at != NONE);
        s->free_row = x->row[at].next;
        x->row[at] = (row){.tag = v.tag[r], .came_ns = x->w->came_ns, .src = src};
        x->in.row[x->in.n] = at;
        x->in.at[x->in.n++] = v.data + r * row_bytes;
        for (uint32_t i = v.first[r]; i < v.first[r + 1]; i++)
            push(x, h, v.expert[i],
                 (entry){.row = at, .position = v.position[i], .gate = v.gate[i]});
    }
    s->held += v.rows;
    unpack(x, v.rows, *payload);
    *payload = NULL;
    return SL_OK;
}

/* ---- a batch ---- */

/* The entry ran or was dropped; with its last one the row's place is free. */
static void release(queues *x, uint32_t place) {
    row *r = &x->row[x->entry[place].row];
    if (--r->entries > 0) return;
    source *s = &x->source[r->src];
    r->next = s->free_row;
    s->free_row = (uint32_t)(r - x->row);
    s->held--;
}

static bool take_answers(queues *x) {
    sl_wire_format wire = (sl_wire_format)x->w->plan.wire;
    for (uint32_t i = 0; i < x->w->plan.n_workers; i++) {
        source *s = &x->source[i];
        if (s->n == 0) continue;
        s->buf = sl_net_buf_take(x->w->net, sl_wire_return_bytes(s->n, 0, x->m->d_model, wire));
        if (!s->buf) return false;
        sl_wire_return_layout(s->buf->data, s->n, 0, x->m->d_model, wire, &s->view);
        s->n = 0;
    }
    return true;
}

static void send_answers(queues *x, uint32_t layer) {
    sl_worker *w = x->w;
    for (uint32_t i = 0; i < w->plan.n_workers; i++) {
        source *s = &x->source[i];
        if (!s->buf) continue;
        const sl_wire_header h = {
            .kind = SL_MSG_RETURN, .wave = sl_queues_seen(x->queues), .layer = layer, .rows = s->n};
        sl_worker_send(w, i, h, s->buf); /* one that died meanwhile is reported by its connection */
        s->buf = NULL;
        s->n = 0;
    }
}

/* The answers of a batch, whose rows go to the device. False: the worker stops. */
static bool answer(queues *x, const sl_queue_batch *b) {
    sl_wire_format wire = (sl_wire_format)x->w->plan.wire;
    size_t row_bytes = sl_wire_row_bytes(wire, x->m->d_model);
    if (!take_answers(x)) {
        sl_worker_stop(x->w, sl_fail(&x->w->stop_err, SL_ERR_NOMEM, "reply of %u rows", b->n));
        return false;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        const entry *e = &x->entry[b->place[i]];
        source *s = &x->source[x->row[e->row].src];
        s->view.tag[s->n] = x->row[e->row].tag;
        s->view.mask[s->n] = 1ull << e->position;
        x->back[i] = s->view.data + s->n++ * row_bytes;
        release(x, b->place[i]);
    }
    const sl_stage_call c = {.op = SL_OP_PACK,
                             .queue = SL_QUEUE_EXPERTS,
                             .pack = {.n = b->n, .wire = wire, .rows = x->y, .at = x->back}};
    x->event = sl_device_submit(x->w->device, &c);
    return true;
}

static void begin(const queues *x, sl_trace_kind kind, uint32_t layer, uint32_t rows,
                  uint64_t queued_us) {
    sl_worker_begin(x->w, &(sl_trace_event){.kind = (uint8_t)kind,
                                            .layer = sl_trace_u16(x->m->moe_layer[layer]),
                                            .rows = rows,
                                            .queued_us = (uint32_t)SL_MIN(queued_us, UINT32_MAX)});
}

static void gather(queues *x, const sl_queue_batch *b) {
    for (uint32_t i = 0; i < b->n; i++) {
        const entry *e = &x->entry[b->place[i]];
        x->batch_gate[i] = e->gate;
        x->batch_row[i] = e->row;
        x->source[x->row[e->row].src].n++;
    }
}

static bool begin_batch(queues *x) {
    sl_worker *w = x->w;
    sl_queue_batch *t = &x->t;
    if (!sl_queues_take(x->queues, t)) return false;
    uint64_t waited_ns = sl_now_ns() - x->row[x->entry[t->oldest].row].came_ns;
    begin(x, SL_TRACE_GATHER, t->layer, 0, 0);
    gather(x, t);
    const sl_stage_call c = {.op = SL_OP_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = x->m->moe_layer[t->layer],
                             .experts = {.n_groups = t->n_groups,
                                         .expert = t->expert,
                                         .first = t->first,
                                         .row = x->batch_row,
                                         .gate = x->batch_gate,
                                         .x = x->x,
                                         .part = &x->part,
                                         .n_parts = 1}};
    x->part = (sl_stage_part){.rows = x->y, .n = t->n};
    sl_expert_begins(w, t->n, sl_queues_rows(x->queues));
    sl_worker_note_experts(w, t->layer, t->expert, t->first, t->n_groups);
    begin(x, SL_TRACE_EXPERT, t->layer, t->n, waited_ns / 1000);
    x->event = sl_device_submit(w->device, &c);
    x->begun = true;
    return true;
}

/* The device is through with what the batch has asked. */
static void go_on(queues *x) {
    if (!x->packing) {
        begin(x, SL_TRACE_REPLY, x->t.layer, 0, 0);
        x->w->n.expert_rows += x->t.n;
        sl_expert_ends(x->w, x->t.n);
        x->packing = answer(x, &x->t);
        if (x->packing) return;
    } else {
        send_answers(x, x->t.layer);
    }
    sl_queues_done(x->queues);
    x->begun = x->packing = false;
}

static bool run(void *side) {
    queues *x = side;
    bool went = !x->begun;
    forget_messages(x);
    if (went && !begin_batch(x)) return false;
    for (; x->begun && sl_device_is_done(x->w->device, &x->event); went = true) go_on(x);
    return went;
}

static void count(const void *side, sl_counts *out) {
    const queues *x = side;
    for (uint32_t b = 0; b < out->n_moe; b++)
        for (uint32_t i = 0; i < out->n_experts; i++)
            out->expert[(size_t)b * out->n_experts + i].waits = sl_queues_waits(x->queues, b, i);
}

/* ---- an attention worker is gone ---- */

bool sl_expert_queues_are_empty(const void *side) {
    const queues *x = side;
    bool empty = sl_queues_rows(x->queues) == 0;
    for (uint32_t i = 0; i < x->w->plan.n_workers; i++) empty = empty && x->source[i].held == 0;
    return empty;
}

/* What the device has is answered before anybody is forgotten. */
static void finish(queues *x) {
    while (x->begun) {
        sl_device_drain(x->w->device);
        if (sl_worker_has_no_device(x->w)) return;
        go_on(x);
    }
}

/* The rows of an attention worker leave the queues. */
static sl_status on_gone(void *side, uint32_t id, bool left, sl_err *err) {
    queues *x = side;
    const uint32_t *place;
    (void)left, (void)err;
    if (!(x->w->plan.worker[id].roles & SL_ROLE_ATTENTION)) return SL_OK;
    finish(x);
    if (x->begun) return SL_OK; /* the device has failed, and the worker ends with it */
    uint32_t lost = x->source[id].held, n = sl_queues_drop(x->queues, id, &place);
    for (uint32_t i = 0; i < n; i++) release(x, place[i]);
    x->w->n.rows_stale += lost;
    sl_log(SL_LOG_INFO, "expert", "attention worker %u is gone with %u rows", id, lost);
    return SL_OK;
}

/* ---- life ---- */

/* Each attention worker has its own part of the row storage, so that no other can fill it. */
static void share_rows(queues *x) {
    const sl_plan *p = &x->w->plan;
    uint32_t each = x->each, at = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        x->source[i].free_row = NONE;
        if (!(p->worker[i].roles & SL_ROLE_ATTENTION)) continue;
        x->source[i].free_row = at;
        for (uint32_t r = 0; r < each; r++, at++) x->row[at].next = r + 1 < each ? at + 1 : NONE;
    }
}

static sl_status create_storage(queues *x, sl_err *err) {
    const sl_plan *p = &x->w->plan;
    arrivals *in = &x->in;
    /* Where there are replicas, a row that is here may come again, in place of a lost worker's. */
    x->each = sl_plan_lane_rows(p) * (sl_plan_has_replicas(p) ? 2 : 1);
    x->max_rows = x->each * (uint32_t)x->w->attention.n;
    x->max_pairs = sl_worker_max_pairs(x->w, x->m);
    x->arrays =
        sl_alloc_arrays(SL_ARRAY(x->source, p->n_workers), SL_ARRAY(x->row, x->max_rows),
                        SL_ARRAY(in->row, x->max_rows), SL_ARRAY(in->at, x->max_rows),
                        SL_ARRAY(in->buf, x->max_rows), SL_ARRAY(x->entry, x->max_pairs),
                        SL_ARRAY(x->batch_row, x->max_pairs), SL_ARRAY(x->batch_gate, x->max_pairs),
                        SL_ARRAY(x->back, x->max_pairs));
    if (!x->arrays)
        return sl_fail(err, SL_ERR_NOMEM, "storage of an expert worker for %u rows", x->max_rows);
    share_rows(x);
    sl_status st = sl_device_take_rows(x->w->device, x->max_rows, &x->x, err);
    if (st == SL_OK) st = sl_device_take_rows(x->w->device, x->max_pairs, &x->y, err);
    if (st != SL_OK) return st;
    st = sl_queues_create(p, x->m->n_moe, x->w->id, x->max_pairs, &x->queues, err);
    if (st == SL_OK) sl_queues_watch(x->queues, x->w->watch);
    return st;
}

static void free_side(void *side) {
    queues *x = side;
    if (!x) return;
    for (uint32_t i = 0; x->source && i < x->w->plan.n_workers; i++) {
        x->w->n.rows_stale += x->source[i].held;
        sl_net_buf_give(x->w->net, x->source[i].buf);
    }
    sl_queues_free(x->queues);
    forget_messages(x);
    sl_device_give(x->w->device, x->x);
    sl_device_give(x->w->device, x->y);
    sl_free(x->arrays);
    sl_free(x);
}

static sl_status create(sl_worker *w, void **out, sl_err *err) {
    queues *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "expert worker");
    x->w = w;
    x->m = w->device->spec;
    sl_status st = create_storage(x, err);
    if (st == SL_OK)
        *out = x;
    else
        free_side(x);
    return st;
}

const sl_expert_side_ops sl_expert_queues = {.create = create,
                                             .free = free_side,
                                             .on_dispatch = on_dispatch,
                                             .on_gone = on_gone,
                                             .run = run,
                                             .count = count};

#include "engine/xqueue.h"

#include "base/log.h"
#include "sched/policy.h"

#include <string.h>

#define NONE UINT32_MAX

/* A row of an attention worker, until its last entry ran. */
typedef struct row {
    uint64_t tag;
    uint32_t src;
    uint32_t entries; /* in queues */
    uint32_t next;    /* in the free list of its source */
} row;

/* One (row, expert) pair in a queue. */
typedef struct entry {
    uint32_t row, position, next;
    float gate;
} entry;

typedef struct queue {
    uint32_t head, tail; /* entries */
    uint64_t came_ns;    /* when the oldest arrived */
} queue;

typedef struct source {
    uint32_t free_row, held; /* rows in storage */
    uint32_t n;              /* rows of the running batch */
    sl_buf *buf;             /* its answer */
    sl_wire_return view;
} source;

struct sl_xqueue {
    sl_worker *w;
    const sl_model_spec *m;
    uint32_t hosted, max_rows, max_pairs; /* max_rows: of all attention workers */
    uint32_t *expert, *hosted_at;         /* [hosted] ids; [n_experts] places in it, or NONE */
    source *source;                       /* [SL_PLAN_MAX_WORKERS] */
    row *row;                             /* [max_rows] */
    float *x;                             /* [max_rows][d_model] */
    entry *entry;                         /* [max_pairs] */
    uint32_t free_entry;
    queue *queue; /* [n_moe][hosted] */
    sl_queue_state *state;
    uint64_t *total;
    double *ahead;
    uint64_t arrivals, seen, queued; /* queued: entries in all queues */
    /* scratch of a batch */
    uint32_t *batch, *batch_row;          /* [max_pairs] entries, their rows */
    uint32_t *group_expert, *group_first; /* [hosted], [hosted + 1] */
    float *y;                             /* [max_pairs][d_model] */
    float *batch_gate;                    /* [max_pairs] */
};

/* ---- arrival ---- */

static sl_status check_header(const sl_xqueue *x, uint32_t src, const sl_wire_header *h,
                              sl_span payload, sl_err *err) {
    const sl_plan *p = &x->w->plan;
    if (src >= p->n_workers || !(p->worker[src].roles & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_PROTOCOL, "dispatch from worker %u", src);
    if (h->lane || h->chunk || h->flags || h->layer >= x->m->n_moe || h->rows == 0 ||
        payload.len == 0)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "dispatch of %u rows, %zu bytes for layer %u of %u, lane %u, chunk %u, "
                       "flags %x",
                       h->rows, payload.len, h->layer, x->m->n_moe, h->lane, h->chunk, h->flags);
    if (h->round > x->seen && h->round - x->seen > SL_AEP_MAX_STEP)
        return sl_fail(err, SL_ERR_PROTOCOL, "epoch %llu after %llu", (unsigned long long)h->round,
                       (unsigned long long)x->seen);
    return SL_OK;
}

static sl_status check_rows(const sl_xqueue *x, uint32_t src, const sl_wire_header *h,
                            const sl_wire_dispatch *v, sl_err *err) {
    uint32_t most = sl_lane_max_rows(&x->w->plan), held = x->source[src].held;
    if (h->rows > most - held)
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows in flight, %u are reserved", held + h->rows,
                       most);
    for (uint32_t r = 0; r < v->rows; r++) {
        for (uint32_t i = v->first[r]; i < v->first[r + 1]; i++) {
            if (!sl_plan_is_host(&x->w->plan, h->layer, v->expert[i], x->w->id))
                return sl_fail(err, SL_ERR_PROTOCOL, "expert %u of layer %u is at worker %u",
                               v->expert[i], h->layer,
                               sl_plan_host_of(&x->w->plan, h->layer, v->expert[i], 0));
            /* An expert twice would make more pairs than there is room for. */
            if (i > v->first[r] && v->expert[i] <= v->expert[i - 1])
                return sl_fail(err, SL_ERR_PROTOCOL, "row %u names expert %u after expert %u", r,
                               v->expert[i], v->expert[i - 1]);
        }
    }
    return SL_OK;
}

static void push(sl_xqueue *x, uint32_t layer, uint32_t at, uint64_t epoch, entry e) {
    size_t i = (size_t)layer * x->hosted + at;
    uint32_t id = x->free_entry;
    SL_ASSERT(id != NONE);
    x->free_entry = x->entry[id].next;
    e.next = NONE;
    x->entry[id] = e;
    sl_queue_state *s = &x->state[i];
    if (s->rows == 0) {
        *s = (sl_queue_state){.head = x->arrivals, .epoch = epoch};
        x->queue[i].head = id;
        x->queue[i].came_ns = x->w->came_ns;
    } else {
        x->entry[x->queue[i].tail].next = id;
    }
    x->queue[i].tail = id;
    x->arrivals++;
    s->rows++;
    s->epoch = SL_MIN(s->epoch, epoch);
    x->total[layer]++;
    x->queued++;
    x->row[e.row].entries++;
}

sl_status sl_xqueue_on_dispatch(sl_xqueue *x, uint32_t src, const sl_wire_header *h,
                                sl_span payload, sl_err *err) {
    sl_wire_dispatch v;
    sl_wire_format wire = (sl_wire_format)x->w->plan.wire;
    uint32_t d = x->m->d_model;
    size_t row_bytes = sl_wire_row_bytes(wire, d);
    sl_status st = check_header(x, src, h, payload, err);
    if (st == SL_OK) st = sl_wire_dispatch_decode(h, payload, x->m, wire, &v, err);
    if (st == SL_OK) st = check_rows(x, src, h, &v, err);
    if (st != SL_OK) return st;
    source *s = &x->source[src];
    for (uint32_t r = 0; r < v.rows; r++) {
        uint32_t at = s->free_row;
        SL_ASSERT(at != NONE);
        s->free_row = x->row[at].next;
        x->row[at] = (row){.tag = v.tag[r], .src = src};
        sl_wire_unpack(wire, v.data + r * row_bytes, 1, d, x->x + (size_t)at * d);
        for (uint32_t i = v.first[r]; i < v.first[r + 1]; i++)
            push(x, h->layer, x->hosted_at[v.expert[i]], h->round,
                 (entry){.row = at, .position = v.position[i], .gate = v.gate[i]});
    }
    s->held += v.rows;
    x->seen = SL_MAX(x->seen, h->round);
    return SL_OK;
}

/* ---- a batch ---- */

typedef struct batch {
    uint32_t n, groups; /* entries; experts */
    uint64_t came_ns;   /* when the oldest arrived */
} batch;

/* The entry ran or was dropped; with its last one the row's place is free. */
static void release(sl_xqueue *x, uint32_t id) {
    row *r = &x->row[x->entry[id].row];
    x->entry[id].next = x->free_entry;
    x->free_entry = id;
    if (--r->entries > 0) return;
    source *s = &x->source[r->src];
    r->next = s->free_row;
    s->free_row = (uint32_t)(r - x->row);
    s->held--;
}

/* Takes all of a queue as a further group of the batch. */
static void drain(sl_xqueue *x, uint32_t layer, uint32_t e, batch *b) {
    size_t at = (size_t)layer * x->hosted + e;
    uint32_t id = x->queue[at].head, rows = x->state[at].rows;
    if (rows == 0) return;
    b->came_ns = SL_MIN(b->came_ns, x->queue[at].came_ns);
    x->group_expert[b->groups] = x->expert[e];
    x->group_first[b->groups++] = b->n;
    for (uint32_t left = rows; left > 0; left--, id = x->entry[id].next) {
        x->batch[b->n] = id;
        x->batch_gate[b->n] = x->entry[id].gate;
        x->batch_row[b->n++] = x->entry[id].row;
        x->source[x->row[x->entry[id].row].src].n++;
    }
    x->group_first[b->groups] = b->n;
    x->state[at].rows = 0;
    x->total[layer] -= rows;
    x->queued -= rows;
}

/* The picked queue; or all of its layer as one grouped product if no other layer has rows here:
 * then no order of them lets later rows join, and there are fewer calls and messages. */
static batch take_batch(sl_xqueue *x, uint32_t layer, uint32_t picked, uint64_t now) {
    batch b = {.came_ns = now};
    if (x->queued > x->total[layer]) {
        drain(x, layer, picked, &b);
        return b;
    }
    for (uint32_t e = 0; e < x->hosted; e++) drain(x, layer, e, &b);
    return b;
}

static bool take_answers(sl_xqueue *x) {
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

static void send_answers(sl_xqueue *x, uint32_t layer) {
    sl_worker *w = x->w;
    for (uint32_t i = 0; i < w->plan.n_workers; i++) {
        source *s = &x->source[i];
        if (!s->buf) continue;
        const sl_wire_header h = {
            .kind = SL_MSG_RETURN, .round = x->seen, .layer = layer, .rows = s->n};
        sl_status st = sl_worker_send(w, i, h, s->buf);
        (void)st; /* one that died meanwhile is reported by its connection */
        s->buf = NULL;
        s->n = 0;
    }
}

static void answer(sl_xqueue *x, uint32_t layer, uint32_t n) {
    sl_wire_format wire = (sl_wire_format)x->w->plan.wire;
    uint32_t d = x->m->d_model;
    size_t row_bytes = sl_wire_row_bytes(wire, d);
    if (!take_answers(x)) {
        x->w->stop = true;
        x->w->stop_status = sl_fail(&x->w->stop_err, SL_ERR_NOMEM, "reply of %u rows", n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const entry *e = &x->entry[x->batch[i]];
        source *s = &x->source[x->row[e->row].src];
        s->view.tag[s->n] = x->row[e->row].tag;
        s->view.mask[s->n] = 1ull << e->position;
        sl_wire_pack(wire, x->y + (size_t)i * d, 1, d, s->view.data + s->n++ * row_bytes);
        release(x, x->batch[i]);
    }
    send_answers(x, layer);
}

static void begin(const sl_xqueue *x, sl_trace_kind kind, uint32_t layer, uint32_t rows,
                  uint64_t queued_us) {
    sl_worker_begin(x->w, &(sl_trace_event){.kind = (uint8_t)kind,
                                            .layer = sl_trace_u16(x->m->moe_layer[layer]),
                                            .rows = rows,
                                            .queued_us = (uint32_t)SL_MIN(queued_us, UINT32_MAX)});
}

bool sl_xqueue_run(sl_xqueue *x) {
    sl_worker *w = x->w;
    uint32_t at;
    const sl_policy_view v = {.policy = w->plan.policy,
                              .lookahead = w->plan.lookahead,
                              .delta = w->plan.delta,
                              .ring = x->m->n_moe,
                              .n = x->hosted,
                              .queue = x->state,
                              .total = x->total,
                              .ahead = x->ahead};
    if (x->hosted == 0 || !sl_policy_pick(&v, &at)) return false;
    uint32_t layer = at / x->hosted;
    uint64_t now = sl_now_ns();
    begin(x, SL_TRACE_GATHER, layer, 0, 0);
    batch t = take_batch(x, layer, at % x->hosted, now);
    const sl_stage_call c = {.kind = SL_STAGE_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = x->m->moe_layer[layer],
                             .experts = {.n_groups = t.groups,
                                         .expert = x->group_expert,
                                         .first = x->group_first,
                                         .row = x->batch_row,
                                         .gate = x->batch_gate,
                                         .x = x->x,
                                         .y = x->y}};
    sl_worker_note_experts(w, x->group_expert, x->group_first, t.groups);
    begin(x, SL_TRACE_EXPERT, layer, t.n, (now - t.came_ns) / 1000);
    sl_device_submit(w->device, &c);
    begin(x, SL_TRACE_REPLY, layer, 0, 0);
    w->n.expert_rows += t.n;
    answer(x, layer, t.n);
    return true;
}

/* ---- an attention worker is gone ---- */

bool sl_xqueue_is_empty(const sl_xqueue *x) {
    bool empty = x->queued == 0;
    for (uint32_t i = 0; i < SL_PLAN_MAX_WORKERS; i++) empty = empty && x->source[i].held == 0;
    return empty;
}

void sl_xqueue_on_dead(sl_xqueue *x, uint32_t src) {
    uint32_t lost = x->source[src].held;
    for (uint32_t i = 0; i < x->m->n_moe * x->hosted; i++) {
        uint32_t *link = &x->queue[i].head, n = x->state[i].rows, last = NONE;
        for (uint32_t left = n; left > 0; left--) {
            uint32_t id = *link;
            if (x->row[x->entry[id].row].src != src) {
                last = id;
                link = &x->entry[id].next;
                continue;
            }
            *link = x->entry[id].next;
            release(x, id);
            x->state[i].rows--;
            x->total[i / x->hosted]--;
            x->queued--;
        }
        x->queue[i].tail = last;
    }
    x->w->n.rows_stale += lost;
    sl_log(SL_LOG_INFO, "expert", "attention worker %u is gone with %u rows", src, lost);
}

/* ---- life ---- */

static sl_status create_tables(sl_xqueue *x, sl_err *err) {
    const sl_plan *p = &x->w->plan;
    for (uint32_t e = 0; e < x->m->n_experts; e++) x->hosted += sl_plan_hosts_any(p, e, x->w->id);
    size_t queues = (size_t)x->m->n_moe * x->hosted;
    x->expert = sl_alloc(x->hosted, sizeof *x->expert);
    x->group_expert = sl_alloc(x->hosted, sizeof *x->group_expert);
    x->group_first = sl_alloc(x->hosted + 1u, sizeof *x->group_first);
    x->hosted_at = sl_alloc(x->m->n_experts, sizeof *x->hosted_at);
    x->source = sl_alloc(SL_PLAN_MAX_WORKERS, sizeof *x->source);
    x->queue = sl_alloc(queues, sizeof *x->queue);
    x->state = sl_alloc(queues, sizeof *x->state);
    x->total = sl_alloc(x->m->n_moe, sizeof *x->total);
    x->ahead = sl_alloc(x->m->n_moe, sizeof *x->ahead);
    if (!x->expert || !x->group_expert || !x->group_first || !x->hosted_at || !x->source ||
        !x->queue || !x->state || !x->total || !x->ahead)
        return sl_fail(err, SL_ERR_NOMEM, "%zu queues of an expert worker", queues);
    for (uint32_t e = 0, at = 0; e < x->m->n_experts; e++) {
        x->hosted_at[e] = sl_plan_hosts_any(p, e, x->w->id) ? at : NONE;
        if (x->hosted_at[e] != NONE) x->expert[at++] = e;
    }
    return SL_OK;
}

/* Each attention worker has its own part of the row storage, so that no other can fill it. */
static void share_rows(sl_xqueue *x) {
    const sl_plan *p = &x->w->plan;
    uint32_t each = sl_lane_max_rows(p), at = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        x->source[i].free_row = NONE;
        if (!(p->worker[i].roles & SL_ROLE_ATTENTION)) continue;
        x->source[i].free_row = at;
        for (uint32_t r = 0; r < each; r++, at++) x->row[at].next = r + 1 < each ? at + 1 : NONE;
    }
}

static sl_status create_storage(sl_xqueue *x, sl_err *err) {
    size_t d = x->m->d_model;
    x->max_rows = sl_lane_max_rows(&x->w->plan) * x->w->attention_workers;
    x->max_pairs = sl_worker_max_pairs(x->w, x->m);
    x->row = sl_alloc(x->max_rows, sizeof *x->row);
    x->x = sl_alloc(x->max_rows, d * sizeof *x->x);
    x->entry = sl_alloc(x->max_pairs, sizeof *x->entry);
    x->batch = sl_alloc(x->max_pairs, sizeof *x->batch);
    x->batch_row = sl_alloc(x->max_pairs, sizeof *x->batch_row);
    x->y = sl_alloc(x->max_pairs, d * sizeof *x->y);
    x->batch_gate = sl_alloc(x->max_pairs, sizeof *x->batch_gate);
    if (!x->row || !x->x || !x->entry || !x->batch || !x->batch_row || !x->y || !x->batch_gate)
        return sl_fail(err, SL_ERR_NOMEM, "storage of an expert worker for %u rows", x->max_rows);
    for (uint32_t i = 0; i < x->max_pairs; i++)
        x->entry[i].next = i + 1 < x->max_pairs ? i + 1 : NONE;
    share_rows(x);
    return SL_OK;
}

sl_status sl_xqueue_create(sl_worker *w, sl_xqueue **out, sl_err *err) {
    sl_xqueue *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "expert worker");
    x->w = w;
    x->m = w->device->spec;
    sl_status st = create_tables(x, err);
    if (st == SL_OK) st = create_storage(x, err);
    if (st == SL_OK)
        *out = x;
    else
        sl_xqueue_free(x);
    return st;
}

void sl_xqueue_free(sl_xqueue *x) {
    if (!x) return;
    for (uint32_t i = 0; x->source && i < SL_PLAN_MAX_WORKERS; i++)
        sl_net_buf_give(x->w->net, x->source[i].buf);
    void *const owned[] = {x->expert, x->group_expert, x->group_first, x->hosted_at,
                           x->source, x->queue,        x->state,       x->total,
                           x->ahead,  x->row,          x->x,           x->entry,
                           x->batch,  x->batch_row,    x->y,           x->batch_gate};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_free(x);
}

/* Where a worker's time goes: counters always, and a trace of what it did when one is recorded. At
 * every moment the owner's thread does one thing (w->doing), so the parts add up to the wall time
 * by construction. */
#include "engine/host/host.h"

static sl_mode mode_of(uint32_t kind) {
    return (sl_mode)sl_trace_kind_category(kind);
}

/* Nothing but time tells spans of these kinds apart: neighbours become one. */
static bool joins(const sl_trace_event *a, const sl_trace_event *b) {
    return a->kind == b->kind && a->lane == b->lane && a->layer == b->layer && a->why == b->why &&
           sl_trace_kind_category(a->kind) >= SL_TRACE_CAT_POLL;
}

void sl_worker_begin(sl_worker *w, const sl_trace_event *what) {
    if (joins(&w->doing, what)) return;
    uint64_t now = sl_now_ns();
    sl_mode mode = mode_of(w->doing.kind);
    uint64_t poll_ns = SL_MIN(w->tick_ns, now - w->doing.begin_ns);
    w->mode_ns[mode] += now - w->doing.begin_ns - poll_ns;
    w->mode_ns[SL_MODE_POLL] += poll_ns;
    w->doing.end_ns = now;
    w->doing.poll_ns = (uint32_t)SL_MIN(poll_ns, UINT32_MAX);
    if (mode == SL_MODE_EXECUTE) {
        w->last_task_ns = now;
        sl_counts_task(&w->counts, &w->doing);
    }
    if (w->doing.begin_ns < now) sl_trace_add(w->trace, &w->doing);
    w->tick_ns = 0;
    w->doing = *what;
    w->doing.begin_ns = now;
}

void sl_worker_enter(sl_worker *w, sl_mode mode) {
    static const uint8_t kind[SL_MODE_COUNT] = {
        [SL_MODE_EXECUTE] = SL_TRACE_EXECUTE, [SL_MODE_PACK] = SL_TRACE_PACK,
        [SL_MODE_SEND] = SL_TRACE_SEND,       [SL_MODE_POLL] = SL_TRACE_POLL,
        [SL_MODE_WAIT] = SL_TRACE_WAIT,       [SL_MODE_SLEEP] = SL_TRACE_IDLE};
    sl_worker_begin(w, &(sl_trace_event){.kind = kind[mode]});
}

void sl_worker_tick(void *ctx) {
    sl_worker *w = ctx;
    uint64_t begin = sl_now_ns();
    sl_net_progress(w->net);
    w->tick_ns += sl_now_ns() - begin;
}

uint16_t sl_worker_block_of(const sl_worker *w, const sl_wire_header *h) {
    const sl_model_spec *m = w->device ? w->device->spec : NULL;
    bool rows = h->kind == SL_MSG_DISPATCH || h->kind == SL_MSG_RETURN;
    return rows && m && h->layer < m->n_moe ? (uint16_t)m->moe_layer[h->layer] : 0;
}

/* The event of a message that goes to or came from `peer`. */
static sl_trace_event message(const sl_worker *w, uint8_t kind, uint32_t peer,
                              const sl_wire_header *h, size_t bytes) {
    return (sl_trace_event){.kind = kind,
                            .why = (uint8_t)h->kind,
                            .peer = sl_trace_u16(peer),
                            .round = (uint32_t)h->round,
                            .lane = sl_trace_u16(h->lane),
                            .layer = sl_worker_block_of(w, h),
                            .chunk = sl_trace_u16(h->chunk),
                            .rows = h->rows,
                            .bytes = (uint32_t)(SL_WIRE_HEADER_BYTES + bytes)};
}

sl_trace_event sl_worker_begin_send(sl_worker *w, uint32_t dst, const sl_wire_header *h,
                                    size_t bytes) {
    sl_trace_event before = w->doing, e = message(w, SL_TRACE_SEND, dst, h, bytes);
    sl_worker_begin(w, &e);
    return before;
}

void sl_worker_note_arrival(sl_worker *w, const sl_wire_header *h, uint64_t now_ns) {
    if (!w->trace) return;
    sl_trace_event e = message(w, SL_TRACE_RECV, h->src, h, h->bytes);
    e.begin_ns = e.end_ns = now_ns;
    sl_trace_add(w->trace, &e);
}

void sl_worker_note_experts(sl_worker *w, uint32_t block, const uint32_t *expert,
                            const uint32_t *first, uint32_t n) {
    sl_counts_experts(&w->counts, block, expert, first, n);
    sl_trace_add_rows(w->trace, expert, first, n);
}

/* Rows of the call, or pairs. */
static uint32_t rows_of(const sl_stage_call *c) {
    switch (c->op) {
    case SL_OP_EXPERTS:
        return c->experts.first[c->experts.n_groups];
    case SL_OP_PACK:
    case SL_OP_UNPACK:
        return c->pack.n;
    case SL_OP_MOVE:
        return c->move.n;
    case SL_OP_HEAD:
        return c->head.n;
    default:
        return c->rows.n;
    }
}

/* A call that the device computed beside this thread. */
static void note_device(void *ctx, const sl_stage_call *c, bool whole, uint64_t begin_ns,
                        uint64_t end_ns) {
    static const uint8_t kind[] = {
        [SL_OP_EMBED] = SL_TRACE_ON_EMBED,    [SL_OP_ATTEND] = SL_TRACE_ON_ATTENTION,
        [SL_OP_DENSE] = SL_TRACE_ON_DENSE,    [SL_OP_ROUTE] = SL_TRACE_ON_ROUTER,
        [SL_OP_SHARED] = SL_TRACE_ON_SHARED,  [SL_OP_UNPACK] = SL_TRACE_ON_UNPACK,
        [SL_OP_EXPERTS] = SL_TRACE_ON_EXPERT, [SL_OP_PACK] = SL_TRACE_ON_PACK,
        [SL_OP_MERGE] = SL_TRACE_ON_MERGE,    [SL_OP_MOVE] = SL_TRACE_ON_MOVE,
        [SL_OP_HEAD] = SL_TRACE_ON_HEAD,      [SL_OP_INSIDE] = SL_TRACE_ON_INSIDE,
        [SL_OP_MTP] = SL_TRACE_ON_MTP};
    sl_worker *w = ctx;
    const bool lane = c->queue != SL_QUEUE_EXPERTS;
    sl_trace_add(w->trace, &(sl_trace_event){.kind = whole ? SL_TRACE_ON_GRAPH : kind[c->op],
                                             .begin_ns = begin_ns,
                                             .end_ns = end_ns,
                                             .lane = lane ? sl_trace_u16(c->queue) : 0,
                                             .layer = sl_trace_u16(c->layer),
                                             .rows = rows_of(c)});
}

void sl_worker_watch_device(sl_worker *w) {
    if (!w->device) return;
    w->device->watch = (sl_device_watch){0};
    if (sl_trace_records(w->trace))
        w->device->watch = (sl_device_watch){.ran = note_device, .ctx = w};
}

void sl_worker_note_span(sl_worker *w, sl_trace_event e, uint64_t begin_ns) {
    e.begin_ns = begin_ns;
    e.end_ns = sl_now_ns();
    sl_counts_task(&w->counts, &e);
    sl_trace_add(w->trace, &e);
}

/* What a worker tells the coordinator about itself: its counters, its clock, what it recorded. */
#include "base/memory.h"
#include "engine/host/host.h"

/* Events of one answer to TRACE_GET: 210 KB. */
#define BATCH 4096u

/* For who watches: events that are kept, and for how long after a question more are recorded. */
#define LIVE_EVENTS 16384u
#define LIVE_NS     3000000000ull

/* What was recorded for somebody who watches no more is forgotten. */
static void forget_live(sl_worker *w) {
    if (!w->live_until_ns || sl_now_ns() < w->live_until_ns) return;
    sl_trace_free(w->trace);
    w->trace = NULL;
    w->live_until_ns = 0;
    sl_worker_watch_device(w);
}

/* With calls as large as they become where it hosts many experts, of whose pairs a side has rows
 * (engine/expert). */
static uint64_t device_free(const sl_worker *w) {
    if (!w->device || !w->device->ops->room) return UINT64_MAX;
    const sl_model_spec *m = w->device->spec;
    const uint32_t most = sl_worker_pairs(w, &w->plan, m, UINT32_MAX);
    const uint32_t now = sl_worker_pairs(w, &w->plan, m, sl_plan_n_hosted(&w->plan, w->id));
    return sl_device_room(w->device, most, (uint64_t)(most - now) * m->d_model * sizeof(float));
}

void sl_worker_send_stats(sl_worker *w) {
    sl_worker_enter(w, SL_MODE_PACK); /* books the time so far */
    forget_live(w);
    w->n.execute_us = w->mode_ns[SL_MODE_EXECUTE] / 1000;
    w->n.pack_us = w->mode_ns[SL_MODE_PACK] / 1000;
    w->n.send_us = w->mode_ns[SL_MODE_SEND] / 1000;
    w->n.wait_us = w->mode_ns[SL_MODE_WAIT] / 1000;
    w->n.poll_us = w->mode_ns[SL_MODE_POLL] / 1000;
    w->n.sleep_us = w->mode_ns[SL_MODE_SLEEP] / 1000;
    w->n.wall_us = (sl_now_ns() - w->started_ns) / 1000;
    w->n.cpu_us = sl_thread_cpu_ns() / 1000;
    w->n.machine = sl_clock_id();
    w->n.memory_free = sl_memory_free();
    w->n.device_free = device_free(w);
    if (w->device && w->device->ops->ranks_ns)
        w->n.ranks_us = w->device->ops->ranks_ns(w->device) / 1000;
    if (w->rails) {
        const sl_rails_stats r = sl_rails_stats_of(w->rails);
        w->n.striped_messages = r.striped;
        w->n.rail_bytes = r.rail_bytes;
    }
    w->n.put_messages = sl_net_window_stats(w->net).put;
    sl_buf *b = sl_net_buf_take(w->net, sizeof w->n + sl_counts_bytes(&w->counts));
    if (!b) return;
    sl_wr wr = sl_wr_of(b->data, b->len);
#define SL_COUNTER_WRITE(name) sl_wr_u64(&wr, w->n.name);
    SL_WORKER_COUNTERS(SL_COUNTER_WRITE)
#undef SL_COUNTER_WRITE
    sl_counts_encode(&w->counts, &wr);
    /* A lost coordinator ends the loop anyway. */
    sl_worker_send(w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_STATS}, b);
}

sl_status sl_worker_answer_clock(sl_worker *w, const sl_wire_header *h) {
    sl_buf *b = sl_net_buf_take(w->net, SL_WIRE_CLOCK_BYTES);
    if (!b) return SL_ERR_NOMEM;
    sl_wr wr = sl_wr_of(b->data, b->len);
    uint64_t id = sl_clock_id();
    sl_wr_u64(&wr, sl_now_ns());
    sl_wr_u64(&wr, id);
    return sl_worker_send(w, SL_NO_WORKER,
                          (sl_wire_header){.kind = SL_MSG_CLOCK, .number = h->number}, b);
}

/* n events from `first` on, which the answer calls `number`. */
static sl_status send_events(sl_worker *w, uint64_t first, uint32_t n, uint64_t number) {
    uint64_t count = sl_trace_count(w->trace);
    sl_buf *b = sl_net_buf_take(w->net, sl_wire_trace_bytes(n));
    if (!b) return SL_ERR_NOMEM;
    sl_wr wr = sl_wr_of(b->data, b->len);
    sl_wr_u64(&wr, count);
    sl_wr_u64(&wr, sl_trace_dropped(w->trace));
    for (uint32_t i = 0; i < n; i++)
        sl_trace_event_encode(sl_trace_at(w->trace, first + i),
                              sl_wr_take(&wr, SL_TRACE_EVENT_BYTES));
    return sl_worker_send(w, SL_NO_WORKER,
                          (sl_wire_header){.kind = SL_MSG_TRACE, .number = number, .rows = n}, b);
}

/* Rows of experts have no time of their own. */
static bool is_recent(const sl_trace_event *e, uint64_t from_ns) {
    return e->kind == SL_TRACE_EXPERT_ROWS || e->end_ns >= from_ns;
}

/* The latest events, h->rows at most, that ended in the last h->number ns. Without memory for a
 * trace there are none. */
static sl_status send_latest(sl_worker *w, const sl_wire_header *h) {
    sl_err err;
    sl_worker_enter(w, SL_MODE_PACK); /* what it did until now has ended */
    uint64_t now_ns = sl_now_ns();
    if (w->live_until_ns || !w->trace) w->live_until_ns = now_ns + LIVE_NS;
    if (!w->trace && sl_trace_create(LIVE_EVENTS, &w->trace, &err) != SL_OK) w->live_until_ns = 0;
    sl_worker_watch_device(w);
    uint64_t count = sl_trace_count(w->trace), most = SL_MIN(h->rows, BATCH), first = count;
    uint64_t from_ns = now_ns - SL_MIN(h->number, now_ns);
    while (first > 0 && count - first < most &&
           is_recent(sl_trace_at(w->trace, first - 1), from_ns))
        first--;
    return send_events(w, first, (uint32_t)(count - first), 0);
}

sl_status sl_worker_send_trace(sl_worker *w, const sl_wire_header *h) {
    if (h->rows) return send_latest(w, h);
    sl_trace_stop(w->trace);
    sl_worker_watch_device(w);
    uint64_t count = sl_trace_count(w->trace), first = SL_MIN(h->number, count);
    return send_events(w, first, (uint32_t)SL_MIN(count - first, (uint64_t)BATCH), first);
}

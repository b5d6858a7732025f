/* What a worker tells the coordinator about itself: its counters, its clock, what it recorded. */
#include "base/memory.h"
#include "engine/host/host.h"

/* Events of one answer to TRACE_GET: 210 KB. */
#define BATCH 4096u

void sl_worker_send_stats(sl_worker *w) {
    sl_worker_enter(w, SL_MODE_PACK); /* books the time so far */
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

sl_status sl_worker_send_trace(sl_worker *w, const sl_wire_header *h) {
    sl_trace_stop(w->trace);
    uint64_t count = sl_trace_count(w->trace), first = SL_MIN(h->number, count);
    uint32_t n = (uint32_t)SL_MIN(count - first, (uint64_t)BATCH);
    sl_buf *b = sl_net_buf_take(w->net, sl_wire_trace_bytes(n));
    if (!b) return SL_ERR_NOMEM;
    sl_wr wr = sl_wr_of(b->data, b->len);
    sl_wr_u64(&wr, count);
    sl_wr_u64(&wr, sl_trace_dropped(w->trace));
    for (uint32_t i = 0; i < n; i++)
        sl_trace_event_encode(sl_trace_at(w->trace, first + i),
                              sl_wr_take(&wr, SL_TRACE_EVENT_BYTES));
    return sl_worker_send(w, SL_NO_WORKER,
                          (sl_wire_header){.kind = SL_MSG_TRACE, .number = first, .rows = n}, b);
}

/* What workers did last, for somebody who watches: they are asked now and then, and what they
 * answer is kept until the next answer. Nobody asks: nothing is recorded, sent or kept anew. */
#include "engine/coord/coord_int.h"

#include "base/clock.h"

void sl_live_on_plan(sl_engine *e) {
    const sl_plan *p = &e->plan;
    bool same = true;
    for (uint32_t i = 0; i < p->n_workers; i++)
        same = same && p->worker[i].roles == sl_plan_first_roles(&e->home, i);
    pthread_mutex_lock(&e->lock);
    e->stats.epoch = p->epoch;
    e->stats.as_predicted = same;
    memset(e->hosts, 0, (size_t)e->spec.n_moe * p->n_workers);
    for (uint32_t b = 0; b < e->spec.n_moe; b++) {
        for (uint32_t k = 0, n; k < p->n_experts; k++) {
            const sl_host *h = sl_plan_hosts(p, b, k, &n);
            for (uint32_t i = 0; i < n; i++) e->hosts[b * p->n_workers + h[i].worker] = 1;
        }
    }
    pthread_mutex_unlock(&e->lock);
}

void sl_live_ask(sl_engine *e) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_member_worker *w = &e->worker[i];
        if (!sl_roster_serves(&e->roster, i) || !w->conn || w->n_looks) continue;
        const sl_wire_header h = {.kind = SL_MSG_TRACE_GET,
                                  .epoch = e->plan.epoch,
                                  .rows = SL_VIEW_EVENTS,
                                  .number = SL_VIEW_NS};
        sl_buf *b = sl_net_buf_take(e->net, 0);
        if (b && sl_net_send(e->net, w->conn, h, b) == SL_OK) w->n_looks++;
    }
}

/* Times of another machine's clock, as if its last event had ended when the answer came. */
static void move_to(sl_worker_view *v, uint64_t now_ns) {
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < v->n; i++) last_ns = SL_MAX(last_ns, v->event[i].end_ns);
    for (uint32_t i = 0; i < v->n; i++) {
        v->event[i].begin_ns += now_ns - last_ns;
        v->event[i].end_ns += now_ns - last_ns;
    }
}

sl_status sl_live_on_trace(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) {
    sl_member_worker *w = &e->worker[id];
    uint64_t clock = sl_clock_id();
    sl_worker_view v = {
        .taken_ns = sl_now_ns(), .same_clock = clock && w->stats.machine == clock, .n = h->rows};
    w->n_looks--;
    if (h->rows > SL_VIEW_EVENTS || payload.len != sl_wire_trace_bytes(h->rows))
        return sl_fail(err, SL_ERR_PROTOCOL, "trace of %u events in %zu bytes", h->rows,
                       payload.len);
    v.event = sl_alloc(SL_MAX(v.n, 1u), sizeof *v.event);
    if (!v.event) return SL_OK; /* the last one stays */
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < v.n; i++) {
        const uint8_t *at = payload.data + sl_wire_trace_bytes(i);
        st = sl_trace_event_decode((sl_span){at, SL_TRACE_EVENT_BYTES}, &v.event[i], err);
    }
    if (st != SL_OK) {
        sl_free(v.event);
        return st;
    }
    if (!v.same_clock) move_to(&v, v.taken_ns);
    pthread_mutex_lock(&e->lock);
    sl_trace_event *old = w->latest.event;
    w->latest = v;
    pthread_mutex_unlock(&e->lock);
    sl_free(old);
    return SL_OK;
}

/* What there is of a worker, to the room that is left; the latest. */
static void copy_view(const sl_worker_view *v, sl_trace_event *to, uint32_t room,
                      sl_worker_view *out) {
    *out = *v;
    out->n = SL_MIN(v->n, room);
    out->event = to;
    if (out->n) memcpy(to, v->event + (v->n - out->n), out->n * sizeof *to);
}

/* The lowest expert worker that serves (sched/rounds.h). */
static uint32_t find_sequencer(const sl_engine *e) {
    uint32_t i = 0;
    while (i < e->plan.n_workers && (e->worker[i].stats.life != SL_WORKER_SERVING ||
                                     !(e->worker[i].stats.roles & SL_ROLE_EXPERT)))
        i++;
    return i;
}

static void add_rows(const sl_counts *c, uint64_t *rows) {
    size_t n = (size_t)c->n_moe * c->n_experts;
    for (size_t i = 0; i < n; i++) rows[i] += c->expert[i].rows;
}

sl_status sl_engine_view_get(sl_engine *e, sl_engine_view *out, sl_err *err) {
    uint32_t n_events = 0, n = 0;
    *out = (sl_engine_view){
        .n_workers = e->plan.n_workers, .n_moe = e->spec.n_moe, .n_experts = e->spec.n_experts};
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < out->n_workers; i++) n_events += e->worker[i].latest.n;
    pthread_mutex_unlock(&e->lock);
    out->arrays = sl_alloc_arrays(SL_ARRAY(out->worker, out->n_workers),
                                  SL_ARRAY(out->expert_rows, (size_t)out->n_moe * out->n_experts),
                                  SL_ARRAY(out->hosts, (size_t)out->n_moe * out->n_workers));
    out->events = sl_alloc(SL_MAX(n_events, 1u), sizeof *out->events);
    if (!out->arrays || !out->events) {
        sl_engine_view_free(out);
        return sl_fail(err, SL_ERR_NOMEM, "what %u workers did last", e->plan.n_workers);
    }
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < out->n_workers; i++) {
        copy_view(&e->worker[i].latest, out->events + n, n_events - n, &out->worker[i]);
        n += out->worker[i].n;
        add_rows(&e->worker[i].counts, out->expert_rows);
    }
    memcpy(out->hosts, e->hosts, (size_t)out->n_moe * out->n_workers);
    out->sequencer = find_sequencer(e);
    pthread_mutex_unlock(&e->lock);
    return SL_OK;
}

void sl_engine_view_free(sl_engine_view *v) {
    sl_free(v->arrays);
    sl_free(v->events);
    *v = (sl_engine_view){0};
}

/* The coordinator's part of a trace: it compares the workers' clocks with its own when they are
 * ready and when the run ends, then takes their events, batch by batch, and writes one file. */
#include "engine/coord/coord_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/output.h"
#include "base/version.h"
#include "format/plan_json.h"
#include "trace/trace_file.h"

#include <stdlib.h>
#include <string.h>

#define ASKS        24u /* questions of one comparison of clocks; the quickest answer counts */
#define SILENCE_NS  3000000000ull
#define MAX_TIME_NS (1ull << 60)

typedef struct log_of_worker {
    sl_trace_event *events;
    uint64_t n, count, dropped;
    bool counted, done; /* count is known; all events are here */
    sl_trace_sync sync[2];
    uint64_t clock_id;
    uint32_t phase, asks_left;
    uint64_t asked_ns;
} log_of_worker;

struct sl_collect {
    sl_output file;
    uint64_t clock_id, heard_ns;
    uint32_t n_workers;
    log_of_worker worker[]; /* [n_workers] */
};

sl_status sl_collect_create(const char *path, uint32_t n_workers, sl_collect **out, sl_err *err) {
    sl_collect *c = sl_alloc(1, sizeof *c + n_workers * sizeof *c->worker);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "trace");
    sl_status st = sl_output_open(path, &c->file, err);
    if (st != SL_OK) {
        sl_free(c);
        return sl_err_prefix(err, "--trace");
    }
    c->clock_id = sl_clock_id();
    c->n_workers = n_workers;
    for (uint32_t i = 0; i < n_workers; i++)
        c->worker[i].sync[0].error_ns = c->worker[i].sync[1].error_ns = UINT64_MAX;
    *out = c;
    return SL_OK;
}

void sl_collect_free(sl_collect *c) {
    if (!c) return;
    sl_output_abandon(&c->file);
    for (uint32_t i = 0; i < c->n_workers; i++) sl_free(c->worker[i].events);
    sl_free(c);
}

/* ---- clocks ---- */

static void ask(sl_engine *e, uint32_t id, uint16_t kind, uint64_t number) {
    if (!e->worker[id].conn) return;
    const sl_wire_header h = {.kind = kind, .epoch = e->plan.epoch, .number = number};
    e->collect->worker[id].asked_ns = sl_now_ns();
    sl_buf *b = sl_net_buf_take(e->net, 0);               /* no memory: as if it did not answer */
    if (b) sl_net_send(e->net, e->worker[id].conn, h, b); /* a lost worker has no events */
}

static void compare_clocks(sl_engine *e, uint32_t id, uint32_t phase) {
    log_of_worker *l = &e->collect->worker[id];
    l->phase = phase;
    l->asks_left = ASKS;
    ask(e, id, SL_MSG_CLOCK, l->asks_left);
}

void sl_collect_ready(sl_engine *e, uint32_t id) {
    if (e->collect) compare_clocks(e, id, 0);
}

sl_status sl_collect_on_clock(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) {
    uint64_t now = sl_now_ns();
    log_of_worker *l = e->collect ? &e->collect->worker[id] : NULL;
    sl_cur c = sl_cur_of(payload);
    uint64_t its = sl_cur_u64(&c), clock_id = sl_cur_u64(&c);
    if (!l || !c.ok || sl_cur_left(&c) || l->asks_left == 0 || h->number != l->asks_left ||
        its >= MAX_TIME_NS)
        return sl_fail(err, SL_ERR_PROTOCOL, "unexpected clock of %zu bytes", payload.len);
    /* It was read between question and answer: the middle is wrong by at most half of that. */
    uint64_t middle = l->asked_ns + (now - l->asked_ns) / 2, error = (now - l->asked_ns + 1) / 2;
    if (error < l->sync[l->phase].error_ns)
        l->sync[l->phase] = (sl_trace_sync){
            .at_ns = its, .offset_ns = (int64_t)middle - (int64_t)its, .error_ns = error};
    l->clock_id = clock_id;
    e->collect->heard_ns = now;
    if (--l->asks_left) ask(e, id, SL_MSG_CLOCK, l->asks_left);
    return SL_OK;
}

/* ---- events ---- */

static sl_status take_events(log_of_worker *l, sl_cur *c, uint32_t n, sl_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        sl_span span = {sl_cur_take(c, SL_TRACE_EVENT_BYTES), SL_TRACE_EVENT_BYTES};
        sl_status st = sl_trace_event_decode(span, &l->events[l->n], err);
        if (st != SL_OK) return st;
        l->n++;
    }
    return SL_OK;
}

sl_status sl_collect_on_trace(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) {
    log_of_worker *l = e->collect ? &e->collect->worker[id] : NULL;
    sl_cur c = sl_cur_of(payload);
    uint64_t count = sl_cur_u64(&c), dropped = sl_cur_u64(&c);
    if (!l || l->done || payload.len != sl_wire_trace_bytes(h->rows) || h->number != l->n ||
        count > e->o.trace_events || (l->counted && count != l->count) || h->rows > count - l->n ||
        (h->rows == 0 && count != l->n))
        return sl_fail(err, SL_ERR_PROTOCOL, "unexpected trace of %u events from %llu of %llu",
                       h->rows, (unsigned long long)h->number, (unsigned long long)count);
    if (!l->counted) l->events = sl_alloc(count, sizeof *l->events);
    if (!l->events) {
        sl_log(SL_LOG_WARN, "trace", "no memory for the %llu events of worker %u",
               (unsigned long long)count, id);
        l->counted = l->done = true;
        return SL_OK;
    }
    l->counted = true;
    l->count = count;
    l->dropped = dropped;
    sl_status st = take_events(l, &c, h->rows, err);
    if (st != SL_OK) return st;
    e->collect->heard_ns = sl_now_ns();
    l->done = l->n == count;
    if (!l->done) ask(e, id, SL_MSG_TRACE_GET, l->n);
    return SL_OK;
}

/* ---- the end ---- */

static bool owes(const sl_engine *e, uint32_t id, bool events) {
    const log_of_worker *l = &e->collect->worker[id];
    if (!sl_roster_serves(&e->roster, id)) return false;
    return events ? !l->done : l->asks_left > 0;
}

/* Until every worker that is there has answered, or all are silent for too long. */
static void await(sl_engine *e, bool events) {
    e->collect->heard_ns = sl_now_ns();
    for (;;) {
        bool any = false;
        sl_net_progress(e->net);
        for (uint32_t i = 0; i < e->plan.n_workers; i++) any = any || owes(e, i, events);
        if (!any || sl_now_ns() - e->collect->heard_ns > SILENCE_NS) return;
        sl_net_wait(e->net, 1000);
    }
}

static const char *role_name(uint32_t roles) {
    return roles == SL_ROLE_ATTENTION ? "attention" : roles == SL_ROLE_EXPERT ? "expert" : "both";
}

/* A clock of the same kernel needs no estimate, unless the estimate contradicts that (a worker in a
 * time namespace of its own). */
static bool shares_clock(const sl_collect *c, const log_of_worker *l) {
    bool same = l->clock_id != 0 && l->clock_id == c->clock_id;
    for (uint32_t i = 0; i < 2; i++) {
        const sl_trace_sync *s = &l->sync[i];
        if (s->error_ns != UINT64_MAX && (uint64_t)llabs(s->offset_ns) > s->error_ns) same = false;
    }
    return same;
}

static sl_trace_log log_of(const sl_engine *e, uint32_t id) {
    const log_of_worker *l = &e->collect->worker[id];
    sl_trace_log out = {.id = id,
                        .role = role_name(e->worker[id].stats.roles),
                        .events = l->events,
                        .n = l->n,
                        .dropped = l->dropped,
                        .same_clock = shares_clock(e->collect, l),
                        .first = l->sync[0],
                        .last = l->sync[1]};
    if (out.last.error_ns == UINT64_MAX) out.last = out.first;
    if (!l->done) out.missing = e->worker[id].conn ? "it did not answer in time" : "it was lost";
    return out;
}

static sl_status write_file(sl_engine *e, sl_err *err) {
    sl_trace_log *logs = sl_alloc(e->plan.n_workers, sizeof *logs);
    if (!logs) return sl_fail(err, SL_ERR_NOMEM, "trace of %u workers", e->plan.n_workers);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        logs[i] = log_of(e, i);
        if (logs[i].missing)
            sl_log(SL_LOG_WARN, "trace", "%s has no events of worker %u: %s", e->trace_path, i,
                   logs[i].missing);
        if (logs[i].dropped)
            sl_log(SL_LOG_WARN, "trace",
                   "%s lacks the %llu oldest events of worker %u: the last %llu are kept "
                   "(--trace-events)",
                   e->trace_path, (unsigned long long)logs[i].dropped, i,
                   (unsigned long long)logs[i].n);
    }
    const sl_trace_about about = {.model = e->model_folder,
                                  .schedule = sl_schedule_name(e->plan.schedule),
                                  .transport = e->o.transport,
                                  .version = sl_version(),
                                  .lanes = e->plan.lanes,
                                  .layers = e->spec.n_layers,
                                  .message_name = sl_msg_kind_name};
    sl_output *out = &e->collect->file;
    sl_status st = sl_trace_file_write(out->f, &about, logs, e->plan.n_workers, err);
    sl_free(logs);
    if (st != SL_OK) st = sl_err_prefix(err, "%s", e->trace_path);
    return sl_output_end(out, st, err);
}

sl_status sl_collect_finish(sl_engine *e, sl_err *err) {
    if (!e->collect || !e->planned || !e->net) return SL_OK;
    await(e, false); /* a short run may end before its first comparison */
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (sl_roster_serves(&e->roster, i)) compare_clocks(e, i, 1);
    }
    await(e, false);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (sl_roster_serves(&e->roster, i)) ask(e, i, SL_MSG_TRACE_GET, 0);
    }
    await(e, true);
    return write_file(e, err);
}

/* One sample of what the deployment does, as JSON: what /metrics counts, and what each worker did
 * in the last moments. docs/api.md has its fields. */
#include "serve/live.h"

#include "base/clock.h"
#include "base/mem.h"
#include "spec/schedules.h"
#include "trace/trace_paint.h"

#include <inttypes.h>

/* Neighbours of one kind that are this short and this near are one span; what is shorter than the
 * last and touches the one before is not shown. */
#define SHORT_NS  400000u
#define NEAR_NS   60000u
#define UNSEEN_NS 20000u
#define MAX_SPANS 1500u       /* of a worker; the latest */
#define OLD_NS    2500000000u /* a worker that was silent for so long is shown without spans */

/* ---- what is the same in every sample ---- */

/* Of spans that are a micro-batch's: its colours for the second and the further ones. */
static void put_shades(sl_jbuf *b, uint32_t kind, uint32_t paint) {
    const sl_trace_category c = sl_trace_kind_category(kind);
    const bool shaded =
        paint < SL_TRACE_PAINTS && (c <= SL_TRACE_CAT_SEND || c == SL_TRACE_CAT_DEVICE);
    for (uint32_t i = 1; shaded && i < SL_TRACE_SHADES; i++)
        sl_jbuf_fmt(b, "%s\"#%06" PRIx32 "\"", i > 1 ? "," : ",[",
                    sl_trace_shaded(sl_trace_paints[paint].rgb, i));
    sl_jbuf_fmt(b, shaded ? "]]" : "]");
}

static void put_kinds(sl_jbuf *b) {
    sl_jbuf_fmt(b, ",\"kinds\":[");
    for (uint32_t k = 0; k < SL_TRACE_KIND_COUNT; k++) {
        const char *name = sl_trace_kind_name(k);
        const char *category = sl_trace_category_name(sl_trace_kind_category(k));
        uint32_t paint = sl_trace_paint_of(name, category);
        sl_jbuf_fmt(b, "%s[\"%s\",\"%s\",", k ? "," : "", name, category);
        if (paint < SL_TRACE_PAINTS)
            sl_jbuf_fmt(b, "\"#%06" PRIx32 "\"", sl_trace_paints[paint].rgb);
        else
            sl_jbuf_fmt(b, "null");
        put_shades(b, k, paint);
    }
    sl_jbuf_fmt(b, "],\"waits\":[");
    for (uint32_t i = 0; i < SL_TRACE_WHY_COUNT; i++)
        sl_jbuf_fmt(b, "%s\"%s\"", i ? "," : "", sl_trace_why_name(i));
    sl_jbuf_fmt(b, "]");
}

/* ---- the engine ---- */

static void put_predicted(sl_jbuf *b, const sl_live_sample *sample) {
    const sl_engine_stats *s = &sample->stats;
    const sl_predicted *p = &s->predicted;
    const double *dense = sample->predicted_dense_s;
    if (p->block_s[0] > 0)
        sl_jbuf_fmt(b,
                    ",\"predicted_us\":[%.2f,%.2f],\"predicted_rows\":[%" PRIu32 ",%" PRIu32
                    "],\"predicted_holds\":%s",
                    1e6 * p->block_s[0], 1e6 * p->block_s[1], p->rows[0], p->rows[1],
                    s->as_predicted ? "true" : "false");
    else
        sl_jbuf_fmt(b, ",\"predicted_us\":null");
    if (dense[0] > 0)
        sl_jbuf_fmt(b, ",\"predicted_dense_us\":[%.2f,%.2f]", 1e6 * dense[0], 1e6 * dense[1]);
    else
        sl_jbuf_fmt(b, ",\"predicted_dense_us\":null");
}

/* The last ones, oldest first: [number, seconds since its end, seconds that requests waited, why].
 */
static void put_pauses(sl_jbuf *b, const sl_engine_stats *s) {
    uint64_t now_us = sl_now_ns() / 1000;
    uint64_t first = s->n_pauses - SL_MIN(s->n_pauses, (uint64_t)SL_PAUSES_KEPT);
    sl_jbuf_fmt(b, ",\"pauses\":[");
    for (uint64_t i = first; i < s->n_pauses; i++) {
        const sl_pause *p = &s->pause[i % SL_PAUSES_KEPT];
        sl_jbuf_fmt(b, "%s[%" PRIu64 ",%.1f,%.3f,", i > first ? "," : "", i,
                    1e-6 * (double)(now_us - SL_MIN(p->ended_us, now_us)), p->s);
        sl_jbuf_cstring(b, p->why);
        sl_jbuf_fmt(b, "]");
    }
    sl_jbuf_fmt(b, "]");
}

static void put_engine(sl_jbuf *b, const sl_engine_stats *s) {
    sl_jbuf_fmt(b, ",\"schedule\":\"%s\",\"lanes\":%" PRIu32 ",\"serving\":%s,\"recovering\":%s",
                sl_schedule_name(s->schedule), s->lanes, s->serving ? "true" : "false",
                s->recovering ? "true" : "false");
    sl_jbuf_fmt(b,
                ",\"running\":%" PRIu32 ",\"waiting\":%" PRIu32 ",\"kv_pages\":[%" PRIu64
                ",%" PRIu64 "],\"tokens\":[%" PRIu64 ",%" PRIu64 "]",
                s->running, s->waiting, s->pages_used, s->pages_total, s->prompt_tokens,
                s->generated_tokens);
    sl_jbuf_fmt(b,
                ",\"recovery\":{\"lost\":%" PRIu64 ",\"restarted\":%" PRIu64
                ",\"requeued\":%" PRIu64 ",\"rows_kept\":%" PRIu64 ",\"rows_recomputed\":%" PRIu64
                ",\"longest_pause_s\":%.3f",
                s->lost_workers, s->restarted_workers, s->requeued, s->rows_kept,
                s->rows_recomputed, s->longest_pause_s);
    put_pauses(b, s);
    sl_jbuf_fmt(b, ",\"why\":");
    sl_jbuf_cstring(b, s->lost[0] ? s->lost : NULL);
    sl_jbuf_fmt(b, "},\"plan\":%" PRIu32 ",\"changing\":%s", s->epoch,
                s->changing ? "true" : "false");
}

/* [attention ns, expert ns, flights, away ns, rows] of each block, since the workers' start. */
static void put_layers(sl_jbuf *b, const sl_engine_detail *d) {
    sl_jbuf_fmt(b, ",\"layers\":[");
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const sl_layer_stats *l = &d->layer[i];
        sl_jbuf_fmt(b, "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]",
                    i ? "," : "", l->attention_ns, l->expert_ns, l->flights, l->away_ns, l->rows);
    }
    sl_jbuf_fmt(b, "]");
}

static void put_experts(sl_jbuf *b, const sl_engine_view *v, const sl_model_spec *m) {
    const uint64_t *rows = v->expert_rows;
    sl_jbuf_fmt(b, ",\"moe_layers\":[");
    for (uint32_t i = 0; i < m->n_moe; i++)
        sl_jbuf_fmt(b, "%s%u", i ? "," : "", (unsigned)m->moe_layer[i]);
    sl_jbuf_fmt(b, "],\"experts\":[");
    for (uint32_t i = 0; i < v->n_moe; i++) {
        sl_jbuf_fmt(b, "%s[", i ? "," : "");
        for (uint32_t k = 0; k < v->n_experts; k++)
            sl_jbuf_fmt(b, "%s%" PRIu64, k ? "," : "", *rows++);
        sl_jbuf_fmt(b, "]");
    }
    sl_jbuf_fmt(b, "]");
}

/* Who hosts experts of each routed block; once where it is the same in all. */
static void put_hosts(sl_jbuf *b, const sl_engine_view *v) {
    bool same = true;
    for (uint32_t i = 1; i < v->n_moe; i++)
        same = same && memcmp(v->hosts, v->hosts + i * v->n_workers, v->n_workers) == 0;
    sl_jbuf_fmt(b, ",\"hosts\":[");
    for (uint32_t i = 0; i < (same ? SL_MIN(v->n_moe, 1u) : v->n_moe); i++) {
        const char *comma = "";
        sl_jbuf_fmt(b, "%s[", i ? "," : "");
        for (uint32_t k = 0; k < v->n_workers; k++) {
            if (!v->hosts[i * v->n_workers + k]) continue;
            sl_jbuf_fmt(b, "%s%" PRIu32, comma, k);
            comma = ",";
        }
        sl_jbuf_fmt(b, "]");
    }
    sl_jbuf_fmt(b, "]");
    if (v->sequencer < v->n_workers)
        sl_jbuf_fmt(b, ",\"sequencer\":%" PRIu32, v->sequencer);
    else
        sl_jbuf_fmt(b, ",\"sequencer\":null");
}

/* ---- what a worker did ---- */

typedef struct span {
    uint64_t begin_ns, end_ns;
    uint32_t kind, lane, layer, detail; /* detail: peer of SEND, reason of WAIT */
} span;

typedef struct spans {
    span at[MAX_SPANS];
    uint64_t n; /* all that there were: the latest are kept */
} spans;

static void add_span(spans *s, const sl_trace_event *e, uint64_t from_ns) {
    span *last = s->n ? &s->at[(s->n - 1) % MAX_SPANS] : NULL;
    bool of_thread = sl_trace_kind_category(e->kind) != SL_TRACE_CAT_LANE;
    uint64_t begin_ns = of_thread ? SL_MAX(e->begin_ns, from_ns) : e->begin_ns;
    uint64_t ns = e->end_ns - begin_ns;
    bool same = of_thread && last && last->kind == e->kind && last->lane == e->lane;
    bool is_short = ns < SHORT_NS && (!last || last->end_ns - last->begin_ns < SHORT_NS);
    bool is_near = last && begin_ns - SL_MIN(last->end_ns, begin_ns) < NEAR_NS;
    if (same && is_short && is_near) {
        last->end_ns = e->end_ns;
        return;
    }
    if (of_thread && ns < UNSEEN_NS && is_near) return;
    s->at[s->n++ % MAX_SPANS] = (span){.begin_ns = begin_ns,
                                       .end_ns = e->end_ns,
                                       .kind = e->kind,
                                       .lane = e->lane,
                                       .layer = e->layer,
                                       .detail = e->kind == SL_TRACE_SEND ? e->peer : e->why};
}

/* Spans of the thread (IDLE stands for all of its categories), of its device or of micro-batches;
 * those that end after from_ns. */
static void gather(const sl_worker_view *v, sl_trace_category what, uint64_t from_ns, spans *out) {
    out->n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        const sl_trace_event *e = &v->event[i];
        sl_trace_category c = sl_trace_kind_category(e->kind);
        bool wanted = what == SL_TRACE_CAT_IDLE ? c < SL_TRACE_CAT_IDLE : c == what;
        bool sound = e->begin_ns <= e->end_ns; /* a clock that is moved may end before it begins */
        if (wanted && sound && e->end_ns > from_ns) add_span(out, e, from_ns);
    }
}

/* From where on a view is whole: where more happened than it holds, the beginning is missing. */
static uint64_t whole_from(const sl_worker_view *v, const spans *s, uint64_t from_ns) {
    uint64_t whole = from_ns;
    if (v->n >= SL_VIEW_EVENTS) whole = SL_MAX(whole, v->event[0].end_ns);
    if (s->n > MAX_SPANS) whole = SL_MAX(whole, s->at[s->n % MAX_SPANS].begin_ns);
    return SL_MIN(whole, from_ns + SL_VIEW_NS); /* clocks are moved */
}

/* [kind, begin, length, micro-batch, layer, detail], in us from the window's beginning: those of
 * micro-batches may have begun before. */
static void put_spans(sl_jbuf *b, const char *name, const spans *s, uint64_t from_ns) {
    uint64_t first = s->n > MAX_SPANS ? s->n - MAX_SPANS : 0;
    sl_jbuf_fmt(b, ",\"%s\":[", name);
    for (uint64_t i = first; i < s->n; i++) {
        const span *p = &s->at[i % MAX_SPANS];
        sl_jbuf_fmt(b,
                    "%s[%" PRIu32 ",%" PRId64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 "]",
                    i > first ? "," : "", p->kind, (int64_t)(p->begin_ns - from_ns) / 1000,
                    (p->end_ns - p->begin_ns) / 1000, p->lane, p->layer, p->detail);
    }
    sl_jbuf_fmt(b, "]");
}

/* What it sent to whom in the window: [peer, messages, bytes]; the coordinator is -1. */
static void put_sent(sl_jbuf *b, const sl_worker_view *v, uint32_t n_workers) {
    const char *comma = "";
    sl_jbuf_fmt(b, ",\"sent\":[");
    for (uint32_t peer = 0; peer <= n_workers; peer++) {
        uint64_t messages = 0, bytes = 0;
        uint16_t id = peer < n_workers ? sl_trace_u16(peer) : SL_TRACE_NO_PEER;
        for (uint32_t i = 0; i < v->n; i++) {
            if (v->event[i].kind != SL_TRACE_SEND || v->event[i].peer != id) continue;
            messages++;
            bytes += v->event[i].bytes;
        }
        if (!messages) continue;
        sl_jbuf_fmt(b, "%s[%d,%" PRIu64 ",%" PRIu64 "]", comma, peer < n_workers ? (int)peer : -1,
                    messages, bytes);
        comma = ",";
    }
    sl_jbuf_fmt(b, "]");
}

static void put_view(sl_jbuf *b, const sl_worker_view *v, uint32_t n_workers, uint64_t from_ns,
                     spans *scratch) {
    sl_jbuf_fmt(b, ",\"view\":{\"same_clock\":%s", v->same_clock ? "true" : "false");
    gather(v, SL_TRACE_CAT_IDLE, from_ns, scratch);
    sl_jbuf_fmt(b, ",\"whole_from_us\":%" PRIu64,
                (whole_from(v, scratch, from_ns) - from_ns) / 1000);
    put_spans(b, "spans", scratch, from_ns);
    gather(v, SL_TRACE_CAT_LANE, from_ns, scratch);
    put_spans(b, "flights", scratch, from_ns);
    gather(v, SL_TRACE_CAT_DEVICE, from_ns, scratch);
    if (scratch->n) put_spans(b, "device", scratch, from_ns);
    put_sent(b, v, n_workers);
    sl_jbuf_fmt(b, "}");
}

static void put_worker(sl_jbuf *b, const sl_worker_stats *w) {
    sl_jbuf_fmt(b,
                "{\"id\":%" PRIu32 ",\"role\":\"%s\"%s,\"state\":\"%s\",\"pid\":%" PRId64
                ",\"requests\":%" PRIu32 ",\"kv_pages\":[%" PRIu32 ",%" PRIu32 "]",
                w->id, sl_metrics_role(w->roles), w->prefill ? ",\"prefill\":true" : "",
                sl_metrics_life(w->life), w->pid, w->running, w->pages - w->pages_free, w->pages);
    sl_jbuf_fmt(b,
                ",\"prompts\":[%" PRIu64 ",%" PRIu64 "],\"rows\":[%" PRIu64 ",%" PRIu64
                "],\"time_us\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",%" PRIu64 "]",
                w->prompt_rows_done, w->prompt_rows, w->attention_rows, w->expert_rows,
                w->execute_us, w->pack_us, w->send_us, w->poll_us, w->wait_us, w->sleep_us);
}

static void put_workers(sl_jbuf *b, const sl_live_sample *s, spans *scratch) {
    uint64_t to_ns = 0, now_ns = sl_now_ns();
    for (uint32_t i = 0; i < s->view.n_workers; i++)
        to_ns = SL_MAX(to_ns, s->view.worker[i].taken_ns);
    uint64_t from_ns = to_ns - SL_MIN((uint64_t)SL_VIEW_NS, to_ns);
    sl_jbuf_fmt(b, ",\"workers\":[");
    for (uint32_t i = 0; i < s->detail.n_workers; i++) {
        const sl_worker_view *v = &s->view.worker[i];
        if (i) sl_jbuf_put(b, ",", 1);
        put_worker(b, &s->detail.worker[i]);
        if (v->taken_ns && now_ns - v->taken_ns < OLD_NS)
            put_view(b, v, s->view.n_workers, from_ns, scratch);
        else
            sl_jbuf_fmt(b, ",\"view\":null");
        sl_jbuf_fmt(b, "}");
    }
    sl_jbuf_fmt(b, "]");
}

void sl_live_json(const sl_live_sample *s, sl_jbuf *b) {
    spans *scratch = sl_alloc(1, sizeof *scratch);
    b->ok = b->ok && scratch;
    if (!scratch) return;
    sl_jbuf_fmt(b, "data: {\"window_us\":%u,\"model\":", SL_VIEW_NS / 1000);
    sl_jbuf_cstring(b, s->model);
    sl_jbuf_fmt(b, ",\"top_k\":%u,\"cpu_us\":%" PRIu64, (unsigned)s->spec->top_k, s->cpu_us);
    put_engine(b, &s->stats);
    put_predicted(b, s);
    put_kinds(b);
    put_workers(b, s, scratch);
    put_layers(b, &s->detail);
    put_experts(b, &s->view, s->spec);
    put_hosts(b, &s->view);
    sl_jbuf_fmt(b, "}\n\n");
    sl_free(scratch);
}

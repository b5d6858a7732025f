/* Counters and histograms of the server, as Prometheus reads them. */
#include "serve/metrics_int.h"

#include <inttypes.h>
#include <math.h>

static const double token_bounds[] = {0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04,
                                      0.05,  0.075, 0.1,   0.15, 0.2,   0.3,  0.5,  0.75,
                                      1,     2,     5,     10,   20,    40,   80};
static const double request_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8,
                                        1,    1.5,  2,    2.5, 5,   10,  15,  20,
                                        30,   40,   50,   60,  120, 240, 480};
static const double count_bounds[] = {1,   2,   5,   1e1, 2e1, 5e1, 1e2, 2e2, 5e2, 1e3, 2e3, 5e3,
                                      1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7};
_Static_assert(SL_LEN(token_bounds) == SL_METRICS_BUCKETS - 1, "one bound per bucket but the last");
_Static_assert(SL_LEN(request_bounds) == SL_METRICS_BUCKETS - 1,
               "one bound per bucket but the last");
_Static_assert(SL_LEN(count_bounds) == SL_METRICS_BUCKETS - 1, "one bound per bucket but the last");

static const struct measure {
    const char *name, *help;
    const double *bounds;
} measures[SL_MEASURE_COUNT] = {
    [SL_MEASURE_QUEUE] = {"request_queue_time_seconds", "From the request to its first start.",
                          request_bounds},
    [SL_MEASURE_FIRST_TOKEN] = {"time_to_first_token_seconds",
                                "From the request to its first token.", token_bounds},
    [SL_MEASURE_INTER_TOKEN] = {"inter_token_latency_seconds", "Between two tokens of a request.",
                                token_bounds},
    [SL_MEASURE_PER_TOKEN] = {"request_time_per_output_token_seconds",
                              "Mean time between the tokens of a request.", token_bounds},
    [SL_MEASURE_PREFILL] = {"request_prefill_time_seconds",
                            "From the first start to the first token.", request_bounds},
    [SL_MEASURE_DECODE] = {"request_decode_time_seconds", "From the first token to the last.",
                           request_bounds},
    [SL_MEASURE_INFERENCE] = {"request_inference_time_seconds",
                              "From the first start to the last token.", request_bounds},
    [SL_MEASURE_END_TO_END] = {"e2e_request_latency_seconds", "From the request to its end.",
                               request_bounds},
    [SL_MEASURE_PROMPT_TOKENS] = {"request_prompt_tokens", "Prompt tokens of a request.",
                                  count_bounds},
    [SL_MEASURE_ANSWER_TOKENS] = {"request_generation_tokens", "Tokens generated for a request.",
                                  count_bounds},
    [SL_MEASURE_ASKED_CHOICES] = {"request_params_n", "What requests ask for as n.", count_bounds},
    [SL_MEASURE_ASKED_TOKENS] = {"request_params_max_tokens",
                                 "What requests ask for as max_tokens, or get without.",
                                 count_bounds},
};

static const char *const outcome_names[] = {
    [SL_OUTCOME_STOP] = "stop",
    [SL_OUTCOME_LENGTH] = "length",
    [SL_OUTCOME_ABORT] = "abort",
    [SL_OUTCOME_ERROR] = "error",
};

sl_status sl_metrics_create(sl_metrics *m, sl_err *err) {
    *m = (sl_metrics){0};
    if (pthread_mutex_init(&m->lock, NULL) != 0)
        return sl_fail(err, SL_ERR_NOMEM, "metrics: no mutex");
    return SL_OK;
}

void sl_metrics_free(sl_metrics *m) {
    pthread_mutex_destroy(&m->lock);
}

static void observe(sl_metrics *m, sl_measure what, double value, uint64_t n) {
    sl_histogram *h = &m->measure[what];
    size_t i = 0;
    while (i < SL_METRICS_BUCKETS - 1 && value > measures[what].bounds[i]) i++;
    h->count[i] += n;
    h->total += n;
    h->sum += value * (double)n;
}

void sl_metrics_add(sl_metrics *m, sl_measure what, double value) {
    pthread_mutex_lock(&m->lock);
    observe(m, what, value, 1);
    pthread_mutex_unlock(&m->lock);
}

static double seconds_since(uint64_t then_ns, uint64_t now_ns) {
    return 1e-9 * (double)(now_ns - then_ns);
}

/* A choice that made tokens has ended. */
static void observe_whole(sl_metrics *m, const sl_pace *p, double queued) {
    double prefill = SL_MAX(seconds_since(p->submit_ns, p->first_ns) - queued, 0.0);
    double decode = seconds_since(p->first_ns, p->last_ns);
    observe(m, SL_MEASURE_PREFILL, prefill, 1);
    observe(m, SL_MEASURE_DECODE, decode, 1);
    observe(m, SL_MEASURE_INFERENCE, prefill + decode, 1);
    if (p->n_made > 1) observe(m, SL_MEASURE_PER_TOKEN, decode / (double)(p->n_made - 1), 1);
    observe(m, SL_MEASURE_PROMPT_TOKENS, (double)p->n_prompt, 1);
    observe(m, SL_MEASURE_ANSWER_TOKENS, (double)p->n_made, 1);
}

void sl_metrics_event(sl_metrics *m, sl_pace *p, const sl_request_event *ev, uint64_t now_ns) {
    double queued = 1e-6 * (double)ev->queued_us;
    bool made = ev->n > 0 && !ev->prompt_position;
    pthread_mutex_lock(&m->lock);
    if (made && p->n_made == 0) {
        observe(m, SL_MEASURE_QUEUE, queued, 1);
        observe(m, SL_MEASURE_FIRST_TOKEN, seconds_since(p->start_ns, now_ns), 1);
        p->first_ns = now_ns;
        p->queued_ns = 1000 * ev->queued_us;
    } else if (made) {
        observe(m, SL_MEASURE_INTER_TOKEN, seconds_since(p->last_ns, now_ns) / ev->n, ev->n);
    }
    if (made) {
        p->last_ns = now_ns;
        p->n_made += ev->n;
    }
    if (ev->finish != SL_FINISH_NONE && p->n_made > 0) observe_whole(m, p, queued);
    pthread_mutex_unlock(&m->lock);
}

void sl_metrics_finished(sl_metrics *m, sl_outcome outcome, double seconds) {
    pthread_mutex_lock(&m->lock);
    m->outcome[outcome]++;
    observe(m, SL_MEASURE_END_TO_END, seconds, 1);
    pthread_mutex_unlock(&m->lock);
}

void sl_metrics_refused(sl_metrics *m, bool draining) {
    pthread_mutex_lock(&m->lock);
    m->refused++;
    m->draining += draining;
    pthread_mutex_unlock(&m->lock);
}

/* A label value: backslash, quote and newline are escaped. */
static void put_label(sl_jbuf *b, const char *name, const char *value) {
    sl_jbuf_fmt(b, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n') {
            sl_jbuf_put(b, "\\n", 2);
            continue;
        }
        if (*c == '\\' || *c == '"') sl_jbuf_put(b, "\\", 1);
        sl_jbuf_put(b, c, 1);
    }
    sl_jbuf_put(b, "\"", 1);
}

static void put_single(sl_jbuf *b, const char *name, const char *type, const char *help,
                       const char *model, double value) {
    sl_metrics_put_help(b, name, type, help);
    sl_jbuf_fmt(b, "sluice:%s{", name);
    put_label(b, "model_name", model);
    sl_jbuf_fmt(b, "} %.17g\n", value);
}

static void put_histogram(sl_jbuf *b, const struct measure *measure, const char *model,
                          const sl_histogram *h) {
    uint64_t below = 0;
    const char *name = measure->name;
    sl_metrics_put_help(b, name, "histogram", measure->help);
    for (size_t i = 0; i < SL_METRICS_BUCKETS; i++) {
        below += h->count[i];
        sl_jbuf_fmt(b, "sluice:%s_bucket{", name);
        put_label(b, "model_name", model);
        if (i < SL_METRICS_BUCKETS - 1)
            sl_jbuf_fmt(b, ",le=\"%g\"} %" PRIu64 "\n", measure->bounds[i], below);
        else
            sl_jbuf_fmt(b, ",le=\"+Inf\"} %" PRIu64 "\n", below);
    }
    sl_jbuf_fmt(b, "sluice:%s_sum{", name);
    put_label(b, "model_name", model);
    sl_jbuf_fmt(b, "} %.17g\nsluice:%s_count{", h->sum, name);
    put_label(b, "model_name", model);
    sl_jbuf_fmt(b, "} %" PRIu64 "\n", h->total);
}

/* Columns of the per-worker counters: one family of samples each, told apart by one label. */
static const struct column {
    const char *family, *help, *label, *value;
    size_t offset;
    double scale;
} columns[] = {
#define COLUMN(family, help, label, value, field, scale)                                           \
    { family, help, label, value, offsetof(sl_worker_stats, field), scale }
    COLUMN("worker_rows_total", "Rows computed.", "kind", "attention", attention_rows, 1),
    COLUMN("worker_rows_total", "", "kind", "expert", expert_rows, 1),
    COLUMN("worker_rounds_total", "Passes of a lane over the MoE layers.", NULL, NULL, rounds, 1),
    COLUMN("worker_tokens_total", "Tokens sampled.", NULL, NULL, tokens, 1),
    COLUMN("worker_forced_tokens_total",
           "Of these, tokens that the shape of an answer alone decided: their rows take no step of "
           "their own.",
           NULL, NULL, tokens_forced, 1),
    COLUMN("worker_guesses_total", "Rows of what requests might say next (--speculate).", NULL,
           NULL, guesses, 1),
    COLUMN("worker_guesses_right_total", "Of these, rows of what was said then.", NULL, NULL,
           guesses_right, 1),
    COLUMN("worker_bytes_total", "Bytes over the fabric.", "direction", "sent", sent_bytes, 1),
    COLUMN("worker_bytes_total", "", "direction", "received", received_bytes, 1),
    COLUMN("worker_messages_total", "Messages over the fabric.", "direction", "sent", sent_messages,
           1),
    COLUMN("worker_messages_total", "", "direction", "received", received_messages, 1),
    COLUMN("worker_put_messages_total", "Messages sent by windows (--windows).", NULL, NULL,
           put_messages, 1),
    COLUMN("worker_device_bytes_total",
           "Bytes of rows from device to device, beside those over the fabric (SLUICE_CUDA_ROWS).",
           NULL, NULL, device_bytes, 1),
    COLUMN("worker_striped_messages_total", "Messages sent in stripes, one a rank.", NULL, NULL,
           striped_messages, 1),
    COLUMN("worker_rail_bytes_total",
           "Of the bytes sent, those over the rails of ranks other than the first.", NULL, NULL,
           rail_bytes, 1),
    COLUMN("worker_time_seconds_total", "Where the wall time went.", "state", "execute", execute_us,
           1e-6),
    COLUMN("worker_time_seconds_total", "", "state", "pack", pack_us, 1e-6),
    COLUMN("worker_time_seconds_total", "", "state", "send", send_us, 1e-6),
    COLUMN("worker_time_seconds_total", "", "state", "wait", wait_us, 1e-6),
    COLUMN("worker_time_seconds_total", "", "state", "poll", poll_us, 1e-6),
    COLUMN("worker_time_seconds_total", "", "state", "sleep", sleep_us, 1e-6),
    COLUMN("worker_ranks_seconds_total",
           "Of the time of execute: in exchanges of the worker's ranks, with waits for each other.",
           NULL, NULL, ranks_us, 1e-6),
    COLUMN("worker_wall_seconds_total", "Wall time since the worker started.", NULL, NULL, wall_us,
           1e-6),
    COLUMN("worker_ledger_rows_total", "Rows sent to experts and what became of them.", "state",
           "created", rows_created, 1),
    COLUMN("worker_ledger_rows_total", "", "state", "merged", rows_merged, 1),
    COLUMN("worker_ledger_rows_total", "", "state", "cancelled", rows_cancelled, 1),
    COLUMN("worker_ledger_rows_total", "", "state", "lost", rows_lost, 1),
    COLUMN("worker_ledger_rows_total", "", "state", "stale", rows_stale, 1),
    COLUMN("worker_reissued_rows_total", "Rows sent to a replica, as their expert worker was lost.",
           NULL, NULL, rows_reissued, 1),
    COLUMN(
        "worker_late_rows_total",
        "Returned rows that were dropped: they were asked of two, and the other was first, or the "
        "step was given up.",
        NULL, NULL, rows_late, 1),
    COLUMN(
        "worker_again_rows_total",
        "Returned rows that were asked of two, as the first lets others wait or is lost, and what "
        "became of them; asked = counted + late + lost + worker_again_rows_out.",
        "state", "asked", again_asked, 1),
    COLUMN("worker_again_rows_total", "", "state", "counted", again_counted, 1),
    COLUMN("worker_again_rows_total", "", "state", "late", rows_late, 1),
    COLUMN("worker_again_rows_total", "", "state", "lost", again_lost, 1),
    COLUMN("worker_steps_given_up_total", "Steps that were begun and are done again.", NULL, NULL,
           steps_given_up, 1),
    COLUMN("worker_kv_disk_pages_total",
           "KV pages that came from the disk (--kv-disk), that went there, and that were damaged "
           "there and not used.",
           "what", "loaded", kv_loaded, 1),
    COLUMN("worker_kv_disk_pages_total", "", "what", "saved", kv_saved, 1),
    COLUMN("worker_kv_disk_pages_total", "", "what", "damaged", kv_damaged, 1),
    COLUMN("worker_schedule_changes_total",
           "How often lanes, chunks, what they are or the order of shared experts were chosen anew "
           "(--resolve).",
           NULL, NULL, choices, 1),
#undef COLUMN
};

const char *sl_metrics_role(uint32_t roles) {
    static const char *const names[] = {"none", "attention", "expert", "both"};
    return names[roles & 3];
}

const char *sl_metrics_life(sl_worker_life life) {
    static const char *const names[] = {
        [SL_WORKER_JOINING] = "joining",   [SL_WORKER_SERVING] = "serving",
        [SL_WORKER_DRAINING] = "draining", [SL_WORKER_DRAINED] = "drained",
        [SL_WORKER_FREE] = "free",         [SL_WORKER_LOST] = "lost"};
    return names[life];
}

static void put_worker_labels(sl_jbuf *b, const char *family, const sl_worker_stats *w) {
    sl_jbuf_fmt(b, "sluice:%s{worker=\"%" PRIu32 "\",role=\"%s\"", family, w->id,
                sl_metrics_role(w->roles));
}

/* Of attention workers: a new request starts at the one with most free pages. */
static void put_pages(sl_jbuf *b, const sl_engine_detail *d) {
    sl_metrics_put_help(b, "worker_requests_running", "gauge", "Requests that run at the worker.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (!d->worker[i].pages) continue;
        put_worker_labels(b, "worker_requests_running", &d->worker[i]);
        sl_jbuf_fmt(b, "} %" PRIu32 "\n", d->worker[i].running);
    }
    sl_metrics_put_help(b, "worker_kv_pages", "gauge", "KV pages of the worker.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const sl_worker_stats *w = &d->worker[i];
        if (!w->pages) continue;
        put_worker_labels(b, "worker_kv_pages", w);
        sl_jbuf_fmt(b, ",state=\"used\"} %" PRIu32 "\n", w->pages - w->pages_free);
        put_worker_labels(b, "worker_kv_pages", w);
        sl_jbuf_fmt(b, ",state=\"free\"} %" PRIu32 "\n", w->pages_free - w->pages_cached);
        put_worker_labels(b, "worker_kv_pages", w);
        sl_jbuf_fmt(b, ",state=\"cached\"} %" PRIu32 "\n", w->pages_cached);
    }
    sl_metrics_put_help(b, "worker_prompt_rows", "gauge", "Rows of prompts that are under way.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const sl_worker_stats *w = &d->worker[i];
        if (!w->pages) continue;
        put_worker_labels(b, "worker_prompt_rows", w);
        sl_jbuf_fmt(b, ",state=\"done\"} %" PRIu64 "\n", w->prompt_rows_done);
        put_worker_labels(b, "worker_prompt_rows", w);
        sl_jbuf_fmt(b, ",state=\"left\"} %" PRIu64 "\n",
                    SL_MAX(w->prompt_rows, w->prompt_rows_done) - w->prompt_rows_done);
    }
}

static void put_workers(sl_jbuf *b, const sl_engine_detail *d) {
    sl_metrics_put_help(b, "worker_up", "gauge", "1 while the worker answers.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        put_worker_labels(b, "worker_up", &d->worker[i]);
        sl_jbuf_fmt(b, ",");
        put_label(b, "name", d->worker[i].name);
        sl_jbuf_fmt(b, "} %d\n", d->worker[i].alive ? 1 : 0);
    }
    sl_metrics_put_help(b, "worker_state", "gauge", "What the worker does; always 1.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        put_worker_labels(b, "worker_state", &d->worker[i]);
        sl_jbuf_fmt(b, ",state=\"%s\"} 1\n", sl_metrics_life(d->worker[i].life));
    }
    put_pages(b, d);
    for (size_t c = 0; c < SL_LEN(columns); c++) {
        if (columns[c].help[0])
            sl_metrics_put_help(b, columns[c].family, "counter", columns[c].help);
        for (uint32_t i = 0; i < d->n_workers; i++) {
            uint64_t v;
            memcpy(&v, (const char *)&d->worker[i] + columns[c].offset, sizeof v);
            put_worker_labels(b, columns[c].family, &d->worker[i]);
            if (columns[c].label) sl_jbuf_fmt(b, ",%s=\"%s\"", columns[c].label, columns[c].value);
            sl_jbuf_fmt(b, "} %.17g\n", (double)v * columns[c].scale);
        }
    }
    sl_metrics_put_help(b, "worker_again_rows_out", "gauge",
                        "Returned rows that were asked of two and have not come.");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        put_worker_labels(b, "worker_again_rows_out", &d->worker[i]);
        sl_jbuf_fmt(b, "} %" PRIu64 "\n", d->worker[i].again_out);
    }
}

static void put_rejected(const sl_metrics *m, const sl_engine_stats *stats, const char *model,
                         sl_jbuf *out) {
    const struct {
        const char *reason;
        uint64_t n;
    } rejected[] = {{"queue_full", stats->rejected_full},
                    {"queue_timeout", stats->rejected_late},
                    {"draining", m->draining}};
    sl_metrics_put_help(out, "requests_rejected_total", "counter",
                        "Requests turned away under load.");
    for (size_t i = 0; i < SL_LEN(rejected); i++) {
        sl_jbuf_fmt(out, "sluice:requests_rejected_total{reason=\"%s\",", rejected[i].reason);
        put_label(out, "model_name", model);
        sl_jbuf_fmt(out, "} %" PRIu64 "\n", rejected[i].n);
    }
}

static void put_recovery(const sl_engine_stats *stats, const char *model, sl_jbuf *out) {
    put_single(out, "recovering", "gauge", "1 while a lost worker is made good.", model,
               stats->recovering);
    put_single(out, "workers_lost_total", "counter", "Workers that were lost.", model,
               (double)stats->lost_workers);
    put_single(out, "workers_restarted_total", "counter", "Workers that came back after a loss.",
               model, (double)stats->restarted_workers);
    put_single(out, "workers_hedged_total", "counter",
               "Times that a worker was left out, as others waited for it too long.", model,
               (double)stats->hedged_workers);
    put_single(out, "workers_rehosted_total", "counter",
               "Times of these that others had to map what it hosted.", model,
               (double)stats->rehosted_workers);
    put_single(out, "workers_left_out", "gauge",
               "Workers that live and are left out for a while: slow, or with broken links.", model,
               stats->n_left_out);
    put_single(out, "workers_drained_total", "counter", "Workers that left on purpose.", model,
               (double)stats->drained_workers);
    put_single(out, "workers_joined_total", "counter", "Workers that came after that.", model,
               (double)stats->joined_workers);
    put_single(out, "requests_moved_total", "counter",
               "Times that a request went on elsewhere as its worker was drained.", model,
               (double)stats->moved);
    put_single(out, "requests_handed_over_total", "counter",
               "Times that a request went on elsewhere when a worker for prompts had computed its "
               "prompt.",
               model, (double)stats->handed);
    put_single(out, "requests_requeued_total", "counter",
               "Times that a request went on elsewhere after its worker was lost.", model,
               (double)stats->requeued);
    put_single(out, "rows_kept_total", "counter",
               "Rows of requests that started again and were there.", model,
               (double)stats->rows_kept);
    put_single(out, "rows_recomputed_total", "counter",
               "Rows that requests which started again had to compute.", model,
               (double)stats->rows_recomputed);
    put_single(out, "kv_page_copies", "gauge",
               "KV pages that are copies of another worker's (--kv-replicas).", model,
               (double)stats->page_copies);
    put_single(out, "kv_pages_copied_total", "counter", "KV pages that were copied so far.", model,
               (double)stats->pages_copied);
    put_single(out, "kv_copies_failed_total", "counter",
               "KV pages that could not be had from their worker, or came damaged.", model,
               (double)stats->copies_failed);
    put_single(out, "longest_pause_seconds", "gauge", "Longest pause of a recovery so far.", model,
               stats->longest_pause_s);
}

static void put_adapting(const sl_engine_stats *stats, const char *model, sl_jbuf *out) {
    const sl_adapt_stats *a = &stats->adapt;
    const struct {
        const char *what;
        uint64_t n;
    } ends[] = {{"taken", a->changes}, {"refused", a->refused}, {"failed", a->failed}};
    const struct {
        const char *when;
        double value;
    } points[] = {{"now", a->imbalance}, {"before", a->before}, {"predicted", a->after}};
    sl_metrics_put_help(out, "expert_moves_total", "counter",
                        "Changes of who hosts which experts (--adapt), by what became of them.");
    for (size_t i = 0; i < SL_LEN(ends); i++) {
        sl_jbuf_fmt(out, "sluice:expert_moves_total{outcome=\"%s\",", ends[i].what);
        put_label(out, "model_name", model);
        sl_jbuf_fmt(out, "} %" PRIu64 "\n", ends[i].n);
    }
    sl_metrics_put_help(out, "expert_wait_ratio", "gauge",
                        "Cost of experts over the least that a placement could make of it, lately "
                        "and at the last change (--adapt); 0: not known.");
    for (size_t i = 0; i < SL_LEN(points); i++) {
        sl_jbuf_fmt(out, "sluice:expert_wait_ratio{when=\"%s\",", points[i].when);
        put_label(out, "model_name", model);
        sl_jbuf_fmt(out, "} %.6g\n", points[i].value);
    }
    put_single(out, "expert_move_pause_seconds", "gauge",
               "How long the last change held up all streams.", model, a->pause_s);
}

void sl_metrics_write(sl_metrics *m, const sl_engine_stats *stats, const sl_engine_detail *detail,
                      const sl_metrics_clients *clients, const sl_metrics_kept *kept,
                      const sl_cached *weights, const char *model, sl_jbuf *out) {
    double used = stats->pages_total ? (double)stats->pages_used / (double)stats->pages_total : 0;
    put_single(out, "num_requests_running", "gauge", "Requests in execution.", model,
               stats->running);
    put_single(out, "num_requests_waiting", "gauge", "Requests that wait for a place.", model,
               stats->waiting);
    put_single(out, "http_connections", "gauge", "Open connections of clients.", model, clients->n);
    put_single(out, "tls_handshakes_total", "counter", "Sessions of HTTPS that began.", model,
               (double)clients->tls.n_shaken);
    put_single(out, "tls_handshakes_failed_total", "counter",
               "Connections to a server with HTTPS whose session did not begin.", model,
               (double)clients->tls.n_failed);
    put_single(out, "tls_certificate_expiry_seconds", "gauge",
               "Unix time at which the certificate of HTTPS ends; 0: there is none.", model,
               (double)clients->tls.ends_s);
    put_single(out, "responses_kept", "gauge", "Answers kept for who asks again.", model,
               (double)kept->n);
    put_single(out, "responses_kept_bytes", "gauge", "Memory of the answers that are kept.", model,
               (double)kept->bytes);
    put_single(out, "responses_replayed_total", "counter",
               "Requests whose Idempotency-Key was known: read, not computed.", model,
               (double)kept->n_replayed);
    put_single(out, "responses_resumed_total", "counter",
               "Requests of a coordinator that was gone, which go on.", model,
               (double)kept->n_resumed);
    put_single(out, "journal_bytes", "gauge", "Size of the journal; 0: there is none.", model,
               (double)kept->journal_bytes);
    put_single(out, "journal_broken", "gauge", "1 while the journal cannot be written.", model,
               kept->journal_broken);
    put_single(out, "weights_bytes", "gauge",
               "Weight files that workers of this machine map; 0: none, or not known.", model,
               weights ? (double)sl_cached_total(weights) : 0);
    put_single(out, "weights_cached_bytes", "gauge", "Of them in memory.", model,
               weights ? (double)sl_cached_now(weights) : 0);
    put_single(out, "kv_cache_usage_perc", "gauge", "Share of KV pages in use, 1 is all.", model,
               used);
    put_single(out, "kv_pages_cached", "gauge",
               "KV pages that no request has and the next ones may begin with.", model,
               (double)stats->pages_cached);
    put_single(out, "kv_pages_evicted_total", "counter",
               "Of such pages: somebody wanted them for something else.", model,
               (double)stats->pages_evicted);
    put_single(out, "prefix_cache_queries_total", "counter",
               "Tokens of requests that looked for cached KV pages as they started.", model,
               (double)stats->cached_asked);
    put_single(out, "prefix_cache_hits_total", "counter", "Of these tokens: their rows were there.",
               model, (double)stats->cached_found);
    put_single(out, "prompt_tokens_total", "counter", "Prompt tokens processed.", model,
               (double)stats->prompt_tokens);
    put_single(out, "generation_tokens_total", "counter", "Tokens generated.", model,
               (double)stats->generated_tokens);
    put_single(out, "num_preemptions_total", "counter", "Requests set back to free KV pages.",
               model, (double)stats->preempted);
    put_recovery(stats, model, out);
    put_adapting(stats, model, out);
    pthread_mutex_lock(&m->lock);
    put_single(out, "requests_refused_total", "counter", "Requests answered with 4xx or 5xx.",
               model, (double)m->refused);
    put_rejected(m, stats, model, out);
    sl_metrics_put_help(out, "request_success_total", "counter",
                        "Requests that ran, by how they ended.");
    for (size_t i = 0; i < SL_OUTCOME_COUNT; i++) {
        sl_jbuf_fmt(out, "sluice:request_success_total{finished_reason=\"%s\",", outcome_names[i]);
        put_label(out, "model_name", model);
        sl_jbuf_fmt(out, "} %" PRIu64 "\n", m->outcome[i]);
    }
    for (size_t i = 0; i < SL_MEASURE_COUNT; i++)
        put_histogram(out, &measures[i], model, &m->measure[i]);
    pthread_mutex_unlock(&m->lock);
    sl_metrics_put_schedule(out, stats);
    put_workers(out, detail);
    sl_metrics_put_batches(out, detail);
    sl_metrics_put_detail(out, detail);
}

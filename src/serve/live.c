/* GET /live: one feed of samples for a few watchers. While somebody watches, one thread asks the
 * engine about once a second and hands the same sample to everybody; a watcher that has not read
 * the last one misses this one. Nobody watches: the thread sleeps, and workers record nothing. */
#include "serve/live.h"

#include "base/clock.h"
#include "base/log.h"

#include <time.h>

#define PERIOD_MS  1000u
#define ANSWERS_MS 60u /* that workers get to answer */
#define BLOCK      32768u

/* ---- a watcher ---- */

/* libmicrohttpd wants up to `max` bytes of the feed. */
static ssize_t read_feed(void *cls, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    sl_call *call = cls;
    size_t n = 0;
    pthread_mutex_lock(&call->lock);
    bool over = call->abort != SL_ABORT_NONE;
    if (!over) {
        n = SL_MIN(max, call->events.len - call->events_at);
        if (n > 0) memcpy(buf, call->events.data + call->events_at, n);
        call->events_at += n;
        call->suspended = n == 0;
        if (n == 0) MHD_suspend_connection(call->connection);
    }
    pthread_mutex_unlock(&call->lock);
    return over ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

enum MHD_Result sl_live_answer(sl_call *call, const char *rest) {
    (void)rest;
    sl_api_error e;
    if (!sl_server_enter_watcher(call->server)) {
        sl_api_error_bad(&e, NULL, "%u watch already, no more may; try again", SL_LIVE_WATCHERS);
        e.http = MHD_HTTP_SERVICE_UNAVAILABLE;
        e.type = "server_error";
        e.code = "too_many_watchers";
        e.retry_after_s = 5;
        return sl_call_reply_error(call, &e);
    }
    pthread_mutex_lock(&call->lock);
    call->watches = true;
    call->phase = SL_CALL_STREAM;
    pthread_mutex_unlock(&call->lock);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_feed, call, NULL);
    if (!r) return MHD_NO;
    sl_watch_add(call);
    bool ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream") &&
              MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") &&
              MHD_add_response_header(r, "X-Accel-Buffering", "no");
    return sl_call_queue(call, MHD_HTTP_OK, r, ok);
}

/* ---- samples ---- */

/* A watcher that has read the last sample gets this one. */
static void hand(sl_call *call, const sl_jbuf *sample) {
    pthread_mutex_lock(&call->lock);
    if (call->watches && call->abort == SL_ABORT_NONE && call->events_at == call->events.len) {
        sl_jbuf_clear(&call->events);
        call->events_at = 0;
        sl_jbuf_put(&call->events, sample->data, sample->len);
        if (!call->events.ok) call->abort = SL_ABORT_NOMEM;
        if (call->suspended) {
            call->suspended = false;
            MHD_resume_connection(call->connection);
        }
    }
    pthread_mutex_unlock(&call->lock);
}

static sl_status take_sample(sl_server *s, sl_jbuf *b, sl_err *err) {
    sl_live_sample sample = {
        .model = s->model,
        .spec = sl_engine_spec(s->o.engine),
        .cpu_us = sl_process_cpu_ns() / 1000,
        .predicted_dense_s = {s->o.predicted_dense_s[0], s->o.predicted_dense_s[1]}};
    sl_engine_stats_get(s->o.engine, &sample.stats);
    sl_status st = sl_engine_detail_get(s->o.engine, &sample.detail, err);
    if (st == SL_OK) st = sl_engine_view_get(s->o.engine, &sample.view, err);
    sl_jbuf_clear(b);
    b->ok = true;
    if (st == SL_OK) sl_live_json(&sample, b);
    sl_engine_detail_free(&sample.detail);
    sl_engine_view_free(&sample.view);
    return st != SL_OK || b->ok ? st : sl_fail(err, SL_ERR_NOMEM, "out of memory");
}

static void publish(sl_server *s, sl_jbuf *b) {
    sl_err err;
    if (take_sample(s, b, &err) != SL_OK) {
        sl_log(SL_LOG_WARN, "serve", "a sample of /live is left out: %s", err.msg);
        return;
    }
    pthread_mutex_lock(&s->lock);
    for (sl_call *call = s->calls; call; call = call->next) hand(call, b);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the thread ---- */

/* Under the lock: so long, or until the server stops. */
static void sleep_ms(sl_live *live, uint32_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms * 1000000ull;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    while (!live->stopping && pthread_cond_timedwait(&live->changed, &live->lock, &until) == 0) {
    }
}

static void *sample(void *arg) {
    sl_server *s = arg;
    sl_live *live = &s->live;
    sl_jbuf b = sl_jbuf_init();
    sl_err err;
    pthread_mutex_lock(&live->lock);
    while (!live->stopping) {
        if (live->n_watchers == 0) {
            pthread_cond_wait(&live->changed, &live->lock);
            continue;
        }
        /* not asked: what they answered before does */
        if (sl_engine_look(s->o.engine, &err) == SL_OK) sleep_ms(live, ANSWERS_MS);
        pthread_mutex_unlock(&live->lock);
        publish(s, &b);
        pthread_mutex_lock(&live->lock);
        sleep_ms(live, PERIOD_MS - ANSWERS_MS);
    }
    pthread_mutex_unlock(&live->lock);
    sl_jbuf_free(&b);
    return NULL;
}

void sl_live_init(sl_live *live) {
    pthread_condattr_t attr;
    pthread_mutex_init(&live->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&live->changed, &attr);
    pthread_condattr_destroy(&attr);
}

sl_status sl_live_start(sl_server *s, sl_err *err) {
    int rc = pthread_create(&s->live.thread, NULL, sample, s);
    if (rc != 0) return sl_fail(err, SL_ERR_IO, "server: thread of /live: %s", strerror(rc));
    s->live.started = true;
    return SL_OK;
}

void sl_live_stop(sl_server *s) {
    sl_live *live = &s->live;
    if (!live->started) return;
    pthread_mutex_lock(&live->lock);
    live->stopping = true;
    pthread_cond_signal(&live->changed);
    pthread_mutex_unlock(&live->lock);
    pthread_join(live->thread, NULL);
    live->started = false;
}

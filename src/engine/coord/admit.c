/* What src/sched/admit decides, carried out: messages to attention workers, ends of requests that
 * are turned away, a line of the log for each. */
#include "engine/coord/coord_int.h"

#include "base/log.h"

#include <stdio.h>

/* Tells its worker about a request. A lost worker is reported by on_down; one that cannot be told
 * for want of memory is lost, too: it would wait for a page that the books say it has. */
static void send_pair(sl_engine *e, const sl_request *r, uint32_t worker, uint16_t kind,
                      uint64_t value) {
    sl_buf *b = sl_net_buf_take(e->net, sizeof(sl_wire_pair));
    if (!b) {
        sl_net_close(e->net, e->worker[worker].conn, SL_ERR_NOMEM, "no memory for a message");
        return;
    }
    const sl_wire_pair pair = {.request = r->id, .value = value};
    sl_wire_pairs_encode(&pair, 1, b->data);
    const sl_wire_header h = {.kind = kind, .epoch = e->plan.epoch, .rows = 1};
    sl_net_send(e->net, e->worker[worker].conn, h, b);
}

/* Whether it matters how far its prompt is, before a token says so: others may begin with its
 * pages, and it may go on with what outlives its worker. */
static bool wants_rows(const sl_engine *e, const sl_request *r, uint32_t worker) {
    return r->p.shares || e->worker[worker].keeps || e->plan.kv_replicas ||
           e->home.worker[worker].prefill;
}

static sl_status send_submit(sl_engine *e, const sl_request *r, const sl_admit_request *q) {
    sl_span shape = sl_shared_bytes(r->p.shape);
    const sl_wire_submit s = {
        .request = r->id,
        .max_tokens = q->most - q->drawn,
        .flags =
            (r->p.ignore_eos ? SL_SUBMIT_IGNORE_EOS : 0) | (r->p.on_logits ? SL_SUBMIT_LOGITS : 0) |
            (r->p.logprobs ? SL_SUBMIT_LOGPROBS : 0) |
            (r->p.prompt_logprobs ? SL_SUBMIT_PROMPT_LOGPROBS : 0) |
            (wants_rows(e, r, q->worker) ? SL_SUBMIT_ROWS : 0) | (q->parks ? SL_SUBMIT_PARK : 0),
        .n_prompt = q->prompt,
        .min_tokens = r->p.min_tokens,
        .start = q->sure,
        .root = r->root,
        .report = r->p.report,
        .sampling = r->p.sampling,
        .n_tokens = sl_admit_known(q),
        .n_pages = q->n_pages,
        .n_stop = r->p.n_stop,
        .tokens = r->tokens,
        .pages = q->pages,
        .stop = r->p.stop,
        .n_shape = (uint32_t)shape.len,
        .shape = shape.data,
    };
    sl_buf *b = sl_net_buf_take(e->net, sl_wire_submit_bytes(&s));
    if (!b) return SL_ERR_NOMEM;
    sl_wire_submit_encode(&s, b->data);
    const sl_wire_header h = {.kind = SL_MSG_SUBMIT, .epoch = e->plan.epoch};
    return sl_net_send(e->net, e->worker[q->worker].conn, h, b);
}

static void start(sl_engine *e, sl_request *r) {
    const sl_admit_request *q = sl_request_books(e, r);
    if (q->starts == 1) r->queued_us = sl_clock_now_us(&e->clock) - q->came_us;
    if (q->starts == 1) r->n_found = SL_MIN(q->found, q->prompt);
    r->n_before = q->drawn;
    sl_stay_note_start(e, r);
    sl_log_request(SL_LOG_INFO, "engine", r->name,
                   "request %llu of %u tokens starts at worker %u with %u pages, %u rows are there",
                   (unsigned long long)r->id, sl_admit_known(q), q->worker, q->n_pages, q->sure);
    if (q->drawn == 0) {
        pthread_mutex_lock(&e->lock);
        e->stats.prompt_tokens += q->prompt;
        pthread_mutex_unlock(&e->lock);
    }
    if (q->suspect) sl_sign_ask(e);
    sl_status st = send_submit(e, r, q);
    if (st != SL_OK && st != SL_ERR_PEER_DOWN) /* a lost worker is reported by on_down */
        sl_coord_finish(e, r, SL_FINISH_ERROR, st, sl_status_text(st));
}

void sl_coord_preempt(sl_engine *e, const sl_request *r, uint32_t worker) {
    sl_log_request(SL_LOG_INFO, "engine", r->name, "request %llu is preempted after %u tokens: %s",
                   (unsigned long long)r->id, sl_request_books(e, r)->drawn,
                   !sl_drain_wants(&e->drain, worker) ? "its worker leaves"
                   : e->admit.n_suspects              ? "a suspect is tried alone"
                                                      : "no page is free");
    send_pair(e, r, worker, SL_MSG_CANCEL, 0);
}

/* Its prompt is computed, and what could be copied of it is at another worker. */
static void hand_over(sl_engine *e, const sl_request *r, const sl_admit_decision *d) {
    const sl_admit_request *q = sl_request_books(e, r);
    sl_log_request(SL_LOG_INFO, "engine", r->name,
                   "request %llu goes from worker %u to %u, where %u of its pages are",
                   (unsigned long long)r->id, d->worker, q->kept_at,
                   sl_kv_copies_at(&e->admit.copies, d->request, q->kept_at));
    pthread_mutex_lock(&e->lock);
    e->stats.handed++;
    pthread_mutex_unlock(&e->lock);
    send_pair(e, r, d->worker, SL_MSG_CANCEL, 0);
}

static void reject(sl_engine *e, sl_request *r, uint64_t *counter, const char *text) {
    pthread_mutex_lock(&e->lock);
    ++*counter;
    pthread_mutex_unlock(&e->lock);
    sl_coord_finish(e, r, SL_FINISH_ERROR, SL_ERR_OVERLOADED, text);
}

static void reject_full(sl_engine *e, sl_request *r) {
    char text[160];
    snprintf(text, sizeof text, "the queue is full: %u requests wait (--max-queue)", e->max_queue);
    reject(e, r, &e->stats.rejected_full, text);
}

static void reject_late(sl_engine *e, sl_request *r, uint64_t now_us) {
    char text[160];
    snprintf(text, sizeof text,
             "the request waited %.1f s for its turn, the limit is %g s (--queue-timeout)",
             1e-6 * (double)(now_us - sl_request_books(e, r)->came_us), e->o.queue_timeout_s);
    reject(e, r, &e->stats.rejected_late, text);
}

void sl_coord_admit(sl_engine *e) {
    uint64_t now = sl_clock_now_us(&e->clock);
    sl_admit_decision d;
    while (sl_admit_next(&e->admit, now, &d)) {
        sl_request *r = e->ledger.at[d.request];
        switch (d.kind) {
        case SL_ADMIT_PAGE:
            send_pair(e, r, d.worker, SL_MSG_PAGES, d.page);
            break;
        case SL_ADMIT_PREEMPT:
            sl_coord_preempt(e, r, d.worker);
            break;
        case SL_ADMIT_HAND:
            hand_over(e, r, &d);
            break;
        case SL_ADMIT_RESUME:
        case SL_ADMIT_START:
            start(e, r);
            break;
        case SL_ADMIT_COPY:
            sl_copying_tell(e, r, &d);
            break;
        case SL_ADMIT_FULL:
            reject_full(e, r);
            break;
        case SL_ADMIT_LATE:
            reject_late(e, r, now);
            break;
        }
    }
}

void sl_coord_cancel(sl_engine *e, uint64_t id) {
    sl_request *r = sl_ledger_find(&e->ledger, id);
    if (!r) return;
    const sl_admit_request *q = sl_request_books(e, r);
    if (!sl_admit_runs(q))
        sl_coord_finish(e, r, SL_FINISH_STOP, SL_ERR_CANCELLED, NULL);
    else if (sl_admit_cancel(&e->admit, r->place))
        send_pair(e, r, q->worker, SL_MSG_CANCEL, 0);
}

/* It ends with an error, wherever it runs. */
static void fail(sl_engine *e, sl_request *r, sl_status status, const char *why) {
    const sl_admit_request *q = sl_request_books(e, r);
    if (sl_admit_runs(q) && e->worker[q->worker].conn) /* it is to forget it */
        send_pair(e, r, q->worker, SL_MSG_CANCEL, 0);
    sl_coord_finish(e, r, SL_FINISH_ERROR, status, why);
}

void sl_coord_fail_running(sl_engine *e, const char *why) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        while (e->admit.worker[i].running.n > 0)
            fail(e, e->ledger.at[e->admit.worker[i].running.first], SL_ERR_WORKER_LOST, why);
}

void sl_coord_fail_waiting(sl_engine *e, const char *why) {
    const sl_admit_list *line[] = {&e->admit.waiting, &e->admit.held};
    for (uint32_t i = 0; i < e->plan.n_workers; i++) sl_stay_release(e, i);
    for (size_t i = 0; i < SL_LEN(line); i++)
        while (line[i]->n > 0) fail(e, e->ledger.at[line[i]->first], SL_ERR_WORKER_LOST, why);
}

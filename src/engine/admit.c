/* Who gets KV pages: requests start when their tokens so far and a little more fit, grow a page at
 * a time, and when a pool runs out its youngest request is preempted and recomputed later from its
 * tokens. The oldest is never preempted, and a pool holds at least one request of full length, so
 * somebody always makes progress. Requests that would wait too long, or in too long a queue, are
 * turned away. */
#include "engine/engine_int.h"

#include "base/log.h"
#include "base/mutate.h"
#include "spec/kv.h"

#include <stdio.h>

static uint32_t known_tokens(const sl_request *r) {
    return r->p.n_prompt + r->n_generated;
}

/* Pages that let it run on until the coordinator has heard of its next tokens. */
static uint32_t wanted_pages(const sl_request *r) {
    uint64_t positions = (uint64_t)known_tokens(r) + SL_MAX_AHEAD;
    return sl_kv_pages_for(SL_MIN(positions, sl_kv_positions(r->p.n_prompt, r->p.max_tokens)));
}

/* Tells the worker of r about it. A lost worker is reported by on_down. */
static void send_pair(sl_engine *e, const sl_request *r, uint16_t kind, uint64_t value) {
    sl_buf *b = sl_net_buf_take(e->net, sizeof(sl_wire_pair));
    if (!b) return; /* it ends later by itself, or parks: the ledger still has it right */
    const sl_wire_pair pair = {.request = r->id, .value = value};
    sl_wire_pairs_encode(&pair, 1, b->data);
    const sl_wire_header h = {.kind = kind, .epoch = e->plan.epoch, .rows = 1};
    sl_status st = sl_net_send(e->net, e->worker[r->worker].conn, h, b);
    (void)st;
}

void sl_admit_send_cancel(sl_engine *e, const sl_request *r) {
    send_pair(e, r, SL_MSG_CANCEL, 0);
}

/* ---- growing ---- */

static void preempt_youngest(sl_engine *e, uint32_t worker) {
    sl_request *youngest = NULL;
    for (sl_request *r = e->ledger.running.first; r; r = r->next) {
        if (r->worker != worker) continue;
        /* Pages are on their way back already. */
        if (r->state != SL_REQUEST_RUNNING) return;
        if (!youngest || r->id > youngest->id) youngest = r;
    }
    if (!youngest || e->worker[worker].running < 2) return;
    sl_log_request(SL_LOG_INFO, "engine", youngest->name,
                   "request %llu is preempted after %u tokens: no page is free",
                   (unsigned long long)youngest->id, youngest->n_generated);
    youngest->state = SL_REQUEST_PREEMPTING;
    sl_admit_send_cancel(e, youngest);
}

/* Gives running requests the pages they are about to need, in the order they were started. */
static void grow(sl_engine *e) {
    for (sl_request *r = e->ledger.running.first; r; r = r->next) {
        sl_pages *pool = &e->worker[r->worker].pages;
        while (r->state == SL_REQUEST_RUNNING && r->n_pages < wanted_pages(r)) {
            if (!sl_pages_take(pool, 1, &r->pages[r->n_pages])) {
                /* Only what cannot go on without a page is worth another's work. */
                if (known_tokens(r) >= r->n_pages * SL_KV_PAGE_TOKENS)
                    preempt_youngest(e, r->worker);
                break;
            }
            send_pair(e, r, SL_MSG_PAGES, r->pages[r->n_pages++]);
        }
    }
}

void sl_admit_preempted(sl_engine *e, sl_request *r) {
    sl_member_worker *w = &e->worker[r->worker];
    sl_pages_give(&w->pages, r->pages, r->n_pages - SL_MUTATION(FORGOTTEN_PAGE));
    r->n_pages = 0;
    w->running--;
    sl_ledger_requeue(&e->ledger, r);
    pthread_mutex_lock(&e->lock);
    e->stats.preempted++;
    pthread_mutex_unlock(&e->lock);
}

/* ---- starting ---- */

/* The live attention worker with most free pages that can take `pages`. */
static uint32_t pick_worker(const sl_engine *e, uint32_t pages) {
    uint32_t best = SL_NO_WORKER, most = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_member_worker *w = &e->worker[i];
        if (!(e->plan.worker[i].roles & SL_ROLE_ATTENTION) || w->dead || w->broken) continue;
        if (w->running >= e->plan.max_num_seqs || w->pages.n_free < pages) continue;
        if (best == SL_NO_WORKER || w->pages.n_free > most) {
            best = i;
            most = w->pages.n_free;
        }
    }
    return best;
}

static sl_status send_submit(sl_engine *e, const sl_request *r) {
    sl_wire_id_f32 bias[SL_WIRE_MAX_BIAS];
    for (uint32_t i = 0; i < r->p.sampling.n_bias; i++)
        bias[i] = (sl_wire_id_f32){r->bias[i].id, r->bias[i].bias};
    const sl_wire_submit s = {
        .request = r->id,
        .max_tokens = r->p.max_tokens - r->n_generated,
        .temperature = r->p.sampling.temperature,
        .top_p = r->p.sampling.top_p,
        .top_k = r->p.sampling.top_k,
        .choice = r->p.sampling.choice,
        .seed = r->p.sampling.seed,
        .flags = (r->p.ignore_eos ? SL_SUBMIT_IGNORE_EOS : 0) |
                 (r->p.on_logits ? SL_SUBMIT_LOGITS : 0) |
                 (r->p.logprobs ? SL_SUBMIT_LOGPROBS : 0) |
                 (r->p.prompt_logprobs ? SL_SUBMIT_PROMPT_LOGPROBS : 0),
        .n_prompt = r->p.n_prompt,
        .min_tokens = r->p.min_tokens,
        .min_p = r->p.sampling.min_p,
        .presence_penalty = r->p.sampling.presence_penalty,
        .frequency_penalty = r->p.sampling.frequency_penalty,
        .repetition_penalty = r->p.sampling.repetition_penalty,
        .n_top = r->p.n_top,
        .n_bias = r->p.sampling.n_bias,
        .bias = bias,
        .n_tokens = known_tokens(r),
        .n_pages = r->n_pages,
        .n_stop = r->p.n_stop,
        .tokens = r->tokens,
        .pages = r->pages,
        .stop = r->p.stop,
    };
    sl_buf *b = sl_net_buf_take(e->net, sl_wire_submit_bytes(&s));
    if (!b) return SL_ERR_NOMEM;
    sl_wire_submit_encode(&s, b->data);
    const sl_wire_header h = {.kind = SL_MSG_SUBMIT, .epoch = e->plan.epoch};
    return sl_net_send(e->net, e->worker[r->worker].conn, h, b);
}

static void start(sl_engine *e, sl_request *r, uint32_t id, uint32_t n_pages) {
    if (!r->started) r->queued_us = sl_clock_now_us(&e->clock) - r->submitted_us;
    bool taken = sl_pages_take(&e->worker[id].pages, n_pages, r->pages);
    SL_ASSERT(taken);
    r->n_pages = n_pages;
    r->worker = id;
    r->n_before = r->n_generated;
    e->worker[id].running++;
    sl_ledger_start(&e->ledger, r);
    sl_log_request(SL_LOG_INFO, "engine", r->name,
                   "request %llu of %u tokens starts at worker %u with %u pages",
                   (unsigned long long)r->id, known_tokens(r), id, n_pages);
    if (r->n_generated == 0) {
        pthread_mutex_lock(&e->lock);
        e->stats.prompt_tokens += r->p.n_prompt;
        pthread_mutex_unlock(&e->lock);
    }
    sl_status st = send_submit(e, r);
    if (st != SL_OK && st != SL_ERR_PEER_DOWN) /* a lost worker is reported by on_down */
        sl_coord_finish(e, r, SL_FINISH_ERROR, st, sl_status_text(st));
}

static void start_waiting(sl_engine *e) {
    sl_request *r;
    while (e->serving && (r = e->ledger.waiting.first) != NULL) {
        uint32_t n = wanted_pages(r);
        uint32_t id = pick_worker(e, n);
        if (id == SL_NO_WORKER) return; /* in order: nobody overtakes the oldest */
        start(e, r, id, n);
    }
}

/* ---- turning away ---- */

static void reject(sl_engine *e, sl_request *r, uint64_t *counter, const char *text) {
    pthread_mutex_lock(&e->lock);
    ++*counter;
    pthread_mutex_unlock(&e->lock);
    sl_coord_finish(e, r, SL_FINISH_ERROR, SL_ERR_OVERLOADED, text);
}

/* The oldest request that has never run: those that wait again stand before it. */
static sl_request *first_fresh(const sl_ledger *l) {
    sl_request *r = l->waiting.first;
    while (r && r->started) r = r->next;
    return r;
}

/* Requests that have run are never turned away: their work would be lost. The newest make room,
 * the oldest have waited longest. */
static void turn_away(sl_engine *e) {
    char text[160];
    sl_ledger *l = &e->ledger;
    sl_request *r;
    while (l->waiting.n - l->n_requeued > e->max_queue) {
        snprintf(text, sizeof text, "the queue is full: %u requests wait (--max-queue)",
                 e->max_queue);
        reject(e, l->waiting.last, &e->stats.rejected_full, text);
    }
    uint64_t limit_us = (uint64_t)(e->o.queue_timeout_s * 1e6), now = sl_clock_now_us(&e->clock);
    while (limit_us && (r = first_fresh(l)) != NULL && now - r->submitted_us >= limit_us) {
        snprintf(text, sizeof text,
                 "the request waited %.1f s for its turn, the limit is %g s (--queue-timeout)",
                 1e-6 * (double)(now - r->submitted_us), e->o.queue_timeout_s);
        reject(e, r, &e->stats.rejected_late, text);
    }
}

void sl_admit_step(sl_engine *e) {
    grow(e);
    start_waiting(e);
    turn_away(e);
}

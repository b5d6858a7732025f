/* The coordinator's side of the fabric: workers join and get the plan, requests are admitted
 * against the page ledger, tokens come back. All on the engine's thread. */
#include "engine/coord/coord_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "net/transports.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_US 50000u /* between looks at children while messages come */
#define STATS_US 500000u

/* ---- tokens ---- */

/* A row of the request has values that no number can be made of. */
static sl_status report_not_finite(sl_engine *e, sl_request *r, const sl_wire_token *t,
                                   sl_err *err) {
    char text[160], where[48] = "head";
    uint32_t block = t->token, known = sl_admit_known(sl_request_books(e, r));
    if (block > e->spec.n_layers || t->position >= known || t->n_logprobs)
        return sl_fail(err, SL_ERR_PROTOCOL, "values of request %llu at %u, block %u, not finite",
                       (unsigned long long)t->request, t->position, block);
    if (block < e->spec.n_layers) snprintf(where, sizeof where, "router of block %u", block);
    snprintf(text, sizeof text, "position %u (token %u) has values that are not finite at the %s",
             t->position, r->tokens[t->position], where);
    sl_coord_finish(e, r, SL_FINISH_ERROR, SL_ERR_NOT_FINITE, text);
    return SL_OK;
}

/* The answer cannot take the shape that was asked for, or nothing may be drawn. */
static sl_status report_shapeless(sl_engine *e, sl_request *r, const sl_wire_token *t,
                                  sl_err *err) {
    static const struct {
        sl_status status;
        const char *text;
    } fate[SL_SHAPE_FATES] = {
        [SL_SHAPE_STUCK] =
            {SL_ERR_UNSUPPORTED,
             "structured output: no token of the vocabulary goes on with the answer"},
        [SL_SHAPE_LIMIT] =
            {SL_ERR_LIMIT,
             "structured output: the grammar takes too many steps, or too much memory"},
        [SL_SHAPE_REFUSED] = {SL_ERR_UNSUPPORTED,
                              "structured output: its worker cannot compile it (its log says why)"},
        [SL_SHAPE_STRANGE] = {SL_ERR_INTERNAL,
                              "structured output: the answer so far is none of the grammar"},
        [SL_SHAPE_EXCLUDED] = {SL_ERR_UNSUPPORTED,
                               "no token is left to draw: allowed_token_ids, bad_words, ends that "
                               "come too early and structured output exclude all of them"}};
    if (t->token >= SL_SHAPE_FATES || t->n_logprobs ||
        (t->token != SL_SHAPE_EXCLUDED && !r->p.shape))
        return sl_fail(err, SL_ERR_PROTOCOL, "shape of request %llu: fate %u",
                       (unsigned long long)t->request, t->token);
    sl_coord_finish(e, r, SL_FINISH_ERROR, fate[t->token].status, fate[t->token].text);
    return SL_OK;
}

/* One token as its request hears of it. prompt_position: see sl_request_event. */
static sl_request_event event_of(const sl_request *r, const sl_wire_token *t,
                                 const sl_logprob *pairs, uint32_t prompt_position) {
    return (sl_request_event){.request = r->id,
                              .tokens = &t->token,
                              .n = 1,
                              .logprobs = t->n_logprobs ? pairs : NULL,
                              .prompt_position = prompt_position,
                              .made_us = t->made_us,
                              .queued_us = r->queued_us,
                              .n_found = r->n_found};
}

static void deliver(sl_engine *e, sl_request *r, sl_request_event ev) {
    if (sl_request_books(e, r)->state != SL_ADMIT_CANCELLING) r->p.on_event(r->p.ctx, &ev);
}

/* A record about the prompt. One that is computed again reports again: only the first counts. */
static sl_status on_prompt_token(sl_engine *e, sl_request *r, const sl_wire_token *t,
                                 const sl_logprob *pairs, sl_err *err) {
    if (!r->p.prompt_logprobs || t->position > r->n_prompt_reported + 1 || t->position == 0 ||
        t->token != r->p.prompt[t->position] || t->finish != SL_FINISH_NONE ||
        t->n_logprobs != sl_reported(&r->p.report))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "report of token %u at %u in the prompt of request "
                       "%llu",
                       t->token, t->position, (unsigned long long)t->request);
    if (t->position <= r->n_prompt_reported) return SL_OK;
    r->n_prompt_reported = t->position;
    sl_prefix_note_report(e, r);
    deliver(e, r, event_of(r, t, pairs, t->position));
    return SL_OK;
}

/* The request, if it runs at this worker; NULL: it has ended meanwhile. */
static sl_request *running_at(const sl_engine *e, uint64_t id, uint32_t worker) {
    sl_request *r = sl_ledger_find(&e->ledger, id);
    const sl_admit_request *q = r ? sl_request_books(e, r) : NULL;
    return r && sl_admit_runs(q) && q->worker == worker ? r : NULL;
}

/* Its worker confirmed: pages back, it waits again. */
static void on_preempted(sl_engine *e, const sl_request *r) {
    const sl_admit_request *q = sl_request_books(e, r);
    bool handed = q->kept_at != SL_ADMIT_NONE; /* which is counted already */
    bool moves = !handed && !sl_drain_wants(&e->drain, q->worker);
    sl_admit_gave_way(&e->admit, r->place);
    pthread_mutex_lock(&e->lock);
    e->stats.moved += moves;
    e->stats.preempted += !moves && !handed;
    pthread_mutex_unlock(&e->lock);
}

static sl_status on_token(sl_engine *e, uint32_t id, const sl_wire_token *t,
                          const sl_logprob *pairs, sl_wire_pair *ack, sl_err *err) {
    sl_request *r = running_at(e, t->request, id);
    *ack = (sl_wire_pair){.request = t->request};
    if (!r) return SL_OK;
    if (t->finish == SL_FINISH_NOT_FINITE) return report_not_finite(e, r, t, err);
    if (t->finish == SL_FINISH_SHAPE) return report_shapeless(e, r, t, err);
    if (t->n_logprobs && t->position < r->p.n_prompt) return on_prompt_token(e, r, t, pairs, err);
    const sl_admit_request *q = sl_request_books(e, r);
    bool has_token = t->token != UINT32_MAX;
    if (t->finish == SL_FINISH_ERROR)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u ends request %llu with an error", id,
                       (unsigned long long)t->request);
    if (t->n_logprobs != (has_token && r->p.logprobs ? sl_reported(&r->p.report) : 0))
        return sl_fail(err, SL_ERR_PROTOCOL, "%u log-probabilities for request %llu", t->n_logprobs,
                       (unsigned long long)t->request);
    if (has_token &&
        (t->token >= e->spec.vocab || q->drawn >= q->most || t->position != sl_admit_known(q)))
        return sl_fail(err, SL_ERR_PROTOCOL, "token %u at position %u of request %llu", t->token,
                       t->position, (unsigned long long)t->request);
    if (has_token) {
        r->tokens[sl_admit_known(q)] = t->token;
        sl_admit_token(&e->admit, r->place, t->behind);
        sl_blame_token(e, r);
        sl_stay_note_token(e, r);
        ack->value = q->drawn - r->n_before;
        pthread_mutex_lock(&e->lock);
        e->stats.generated_tokens++;
        pthread_mutex_unlock(&e->lock);
    }
    sl_request_event ev = has_token ? event_of(r, t, pairs, 0) : (sl_request_event){0};
    if (t->finish == SL_FINISH_NONE) {
        if (has_token) deliver(e, r, ev);
    } else if (q->state == SL_ADMIT_PREEMPTING && t->finish == SL_FINISH_STOP && !has_token) {
        on_preempted(e, r);
    } else {
        sl_coord_finish_with(e, r, (sl_finish)t->finish, ev);
    }
    return SL_OK;
}

static sl_status on_tokens(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) {
    const sl_wire_token *t;
    const sl_logprob *pairs;
    sl_status st = sl_wire_tokens_decode(h, payload, &t, &pairs, err);
    if (st != SL_OK || h->rows == 0) return st;
    sl_buf *b = sl_net_buf_take(e->net, h->rows * sizeof(sl_wire_pair));
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "acknowledgement of %u tokens", h->rows);
    sl_wire_pair *ack = (sl_wire_pair *)(void *)b->data;
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = on_token(e, id, &t[i], pairs, &ack[i], err);
        pairs += t[i].n_logprobs;
    }
    if (st != SL_OK) {
        sl_net_buf_give(e->net, b);
        return st;
    }
    const sl_wire_header out = {.kind = SL_MSG_ACK, .epoch = e->plan.epoch, .rows = h->rows};
    st = sl_net_send(e->net, e->worker[id].conn, out, b);
    return st == SL_ERR_PEER_DOWN ? SL_OK : st;
}

static sl_status on_rows(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                         sl_err *err) {
    const sl_wire_pair *pair;
    sl_status st = sl_wire_pairs_decode(h, payload, &pair, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        sl_request *r = running_at(e, pair[i].request, id);
        if (!r) continue;
        if (pair[i].value >= sl_admit_known(sl_request_books(e, r)))
            st = sl_fail(err, SL_ERR_PROTOCOL, "%llu rows of request %llu",
                         (unsigned long long)pair[i].value, (unsigned long long)pair[i].request);
        else
            sl_admit_rows(&e->admit, r->place, (uint32_t)pair[i].value);
    }
    return st;
}

static sl_status on_logits(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) {
    uint64_t request, first;
    const float *logits;
    sl_status st = sl_wire_logits_decode(h, payload, e->spec.vocab, &request, &first, &logits, err);
    if (st != SL_OK) return st;
    sl_request *r = running_at(e, request, id);
    if (!r) return SL_OK;
    uint64_t known = (uint64_t)r->p.n_prompt + r->p.max_tokens;
    if (!r->p.on_logits || first > known || h->rows > known - first)
        return sl_fail(err, SL_ERR_PROTOCOL, "logits of %u positions from %llu of request %llu",
                       h->rows, (unsigned long long)first, (unsigned long long)request);
    r->p.on_logits(r->p.ctx, first, h->rows, logits);
    return SL_OK;
}

static sl_status on_stats(sl_engine *e, uint32_t id, sl_span payload, sl_err *err) {
    sl_cur c = sl_cur_of(payload);
    sl_worker_stats s = e->worker[id].stats;
    const uint64_t wall_us = s.wall_us;
#define SL_COUNTER_READ(name) s.name = sl_cur_u64(&c);
    SL_WORKER_COUNTERS(SL_COUNTER_READ)
#undef SL_COUNTER_READ
    if (!c.ok) return sl_fail(err, SL_ERR_PROTOCOL, "statistics of %zu bytes", payload.len);
    pthread_mutex_lock(&e->lock);
    sl_status st = sl_counts_decode(&c, &e->worker[id].counts, err);
    memcpy(s.batch, e->worker[id].counts.batch, sizeof s.batch);
    if (st == SL_OK) e->worker[id].stats = s;
    pthread_mutex_unlock(&e->lock);
    if (st != SL_OK) return st;
    sl_recover_answered(&e->recover, id, sl_clock_now_us(&e->clock));
    sl_rooming_heard(e, id, s.wall_us < wall_us || wall_us == 0);
    sl_adapting_note(e, id);
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    sl_engine *e = ctx;
    sl_member_worker *w = sl_conn_user(c);
    sl_span span = payload ? (sl_span){payload->data, payload->len} : (sl_span){0};
    uint32_t id = (uint32_t)(w - e->worker);
    sl_status st;
    switch (h->kind) {
    case SL_MSG_READY:
        st = sl_replan_asks(e, id) ? sl_replan_on_answer(e, id, h, span, err)
                                   : sl_crew_on_ready(e, id, h, span, err);
        break;
    case SL_MSG_LOST:
        st = sl_recover_on_link(e, id, h->epoch, span, err);
        break;
    case SL_MSG_SLOW:
    case SL_MSG_DOUBT:
        st = sl_hedge_on_word(e, id, h, span, err);
        break;
    case SL_MSG_UNABLE:
    case SL_MSG_QUIET:
    case SL_MSG_TAKEN:
        st = sl_replan_on_answer(e, id, h, span, err);
        break;
    case SL_MSG_TOKENS:
        st = on_tokens(e, id, h, span, err);
        break;
    case SL_MSG_ROWS:
        st = on_rows(e, id, h, span, err);
        break;
    case SL_MSG_KV_HERE:
        st = sl_copying_on_here(e, id, h, span, err);
        break;
    case SL_MSG_KV_KEPT:
        st = sl_prefix_on_kept(e, id, h, span, err);
        break;
    case SL_MSG_LOGITS:
        st = on_logits(e, id, h, span, err);
        break;
    case SL_MSG_STATS:
        st = on_stats(e, id, span, err);
        break;
    case SL_MSG_CLOCK:
        st = sl_sign_is(h) ? sl_sign_on_answer(e, id, h, err)
                           : sl_collect_on_clock(e, id, h, span, err);
        break;
    case SL_MSG_ECHO:
        st = sl_survey_on_echo(e, id, h, err);
        break;
    case SL_MSG_COSTS:
        st = sl_survey_on_costs(e, id, span, err);
        break;
    case SL_MSG_TRACE:
        st = e->worker[id].n_looks ? sl_live_on_trace(e, id, h, span, err)
                                   : sl_collect_on_trace(e, id, h, span, err);
        break;
    default:
        st = sl_fail(err, SL_ERR_PROTOCOL, "unexpected %s from worker %u",
                     sl_msg_kind_name(h->kind), id);
    }
    sl_net_buf_give(e->net, payload);
    return st;
}

/* ---- commands ---- */

static void submit(sl_engine *e, sl_request *r) {
    sl_err err;
    uint32_t place;
    if (!e->serving) {
        sl_coord_refuse(e, r, SL_ERR_WORKER_LOST, e->lost);
        return;
    }
    sl_status st = sl_admit_submit(&e->admit, r->p.n_prompt, r->p.max_tokens,
                                   sl_clock_now_us(&e->clock), &place, &err);
    if (st == SL_OK && r->p.again) sl_admit_ran_before(&e->admit, place, r->p.n_drawn);
    if (st == SL_OK) {
        r->place = place;
        st = sl_prefix_know(e, r, &err);
        if (st == SL_OK) st = sl_ledger_add(&e->ledger, r, place, &err);
        if (st != SL_OK) sl_admit_end(&e->admit, place);
    }
    if (st != SL_OK) sl_coord_refuse(e, r, st, err.msg);
}

void sl_coord_command(sl_engine *e, sl_command *c) {
    if (c->submit)
        submit(e, c->submit);
    else if (c->replan)
        sl_replan_begin(e, c->replan);
    else if (c->wish)
        sl_drain_begin(e, c->wish);
    else if (c->look)
        sl_live_ask(e);
    else
        sl_coord_cancel(e, c->cancel);
    sl_free(c);
}

/* ---- the step ---- */

static void ask_stats(sl_engine *e) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!sl_roster_serves(&e->roster, i) || !e->worker[i].conn) continue;
        const sl_wire_header h = {.kind = SL_MSG_STATS_GET, .epoch = e->plan.epoch};
        sl_buf *b = sl_net_buf_take(e->net, 0);
        if (b) sl_net_send(e->net, e->worker[i].conn, h, b); /* else it is asked again soon */
    }
}

static void publish_stats(sl_engine *e) {
    pthread_mutex_lock(&e->lock);
    sl_engine_stats *s = &e->stats;
    s->running = e->admit.n_running;
    s->waiting = e->admit.waiting.n + e->admit.held.n + e->admit.n_staying;
    s->pages_total = e->admit.n_pages;
    s->pages_copied = e->admit.copies.n_made;
    s->copies_failed = e->admit.copies.n_failed;
    s->page_copies = e->admit.n_unused_pages;
    s->pages_free = e->admit.n_free_pages;
    s->pages_cached = e->admit.n_cached_pages;
    s->pages_used = e->admit.n_pages - s->pages_free - s->pages_cached - s->page_copies;
    s->cached_asked = e->admit.rows_asked;
    s->cached_found = e->admit.rows_found;
    s->pages_evicted = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        s->pages_evicted += e->admit.worker[i].pages.n_evicted;
    pthread_mutex_unlock(&e->lock);
}

bool sl_coord_step(sl_engine *e) {
    uint32_t came = sl_net_progress(e->net);
    sl_hedge_step(e); /* before work that takes its time: what was said meanwhile is not read */
    const bool all_came = e->roster.n_came == sl_plan_n_first(&e->home);
    if (!e->planned && all_came && sl_survey_step(e)) sl_crew_send_plans(e);
    sl_coord_admit(e);
    sl_replan_step(e);
    sl_recover_step(e);
    sl_adapting_step(e);
    sl_drain_step(e);
    uint64_t now = sl_clock_now_us(&e->clock);
    if (came == 0 || now >= e->next_check_us) {
        e->next_check_us = now + CHECK_US;
        sl_crew_notice_ends(e);
    }
    if (now >= e->next_stats_us) {
        e->next_stats_us =
            now + (e->adapting.on ? SL_MIN(e->adapting.rule.o.window_us / 4, STATS_US) : STATS_US);
        ask_stats(e);
    }
    publish_stats(e);
    return came > 0;
}

void sl_coord_shutdown(sl_engine *e) {
    e->stopping = true;
    sl_replan_stop(e, SL_ERR_CANCELLED, "the server stops");
    sl_coord_fail_waiting(e, "the server stops");
    sl_coord_fail_running(e, "the server stops");
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!e->worker[i].conn) continue;
        e->saved_bytes += sl_prefix_save(e, i);
        const sl_wire_header h = {.kind = SL_MSG_SHUTDOWN, .epoch = e->plan.epoch};
        sl_net_send(e->net, e->worker[i].conn, h, NULL);
    }
    sl_net_progress(e->net);
}

/* Nobody comes to this place before somebody is wanted there. */
static void close_spare(sl_engine *e, uint32_t id) {
    uint32_t duties;
    sl_roster_ended(&e->roster, id, SL_ROSTER_ANY, &duties);
    sl_drain_spare(&e->drain, id);
}

static sl_status create_books(sl_engine *e, sl_err *err) {
    const sl_admit_shape shape = {.n_workers = e->plan.n_workers,
                                  .max_running = e->plan.max_num_seqs,
                                  .max_queue = e->max_queue,
                                  .prompt_rows = e->plan.prefill_rows,
                                  .queue_timeout_us = (uint64_t)(e->o.queue_timeout_s * 1e6)};
    sl_status st = sl_admit_create(&shape, &e->admit, err);
    if (st == SL_OK) st = sl_roster_create(e->plan.n_workers, &e->roster, err);
    if (st == SL_OK) st = sl_change_create(&e->roster, e->plan.epoch, &e->change, err);
    if (st == SL_OK) st = sl_recover_open(e, err);
    if (st == SL_OK) st = sl_rooming_open(e, err);
    if (st == SL_OK) st = sl_adapting_open(e, err);
    sl_drain_opts drain = SL_DRAIN_OPTS;
    if (e->o.kv_disk)
        drain.stop_us += 1000ull * sl_prefix_save_ms(e->plan.n_pages * sl_kv_page_bytes(&e->spec));
    if (st == SL_OK) st = sl_drain_create(&e->recover, &drain, &e->drain, err);
    for (uint32_t i = 0; st == SL_OK && i < e->plan.n_workers; i++) {
        sl_worker_stats *s = &e->worker[i].stats;
        *s = (sl_worker_stats){.id = i,
                               .roles = e->home.worker[i].roles,
                               .prefill = e->home.worker[i].prefill,
                               .pid = -1};
        snprintf(s->name, sizeof s->name, "worker %u", i);
        sl_roster_expect(&e->roster, i, s->roles);
        if (e->home.worker[i].prefill) sl_roster_set_prompts(&e->roster, i);
        if (s->roles & SL_ROLE_ATTENTION)
            st = sl_admit_add_pages(&e->admit, i, e->plan.n_pages, e->plan.n_pages, err);
        if (e->home.worker[i].prefill) sl_admit_set_prompts(&e->admit, i);
        if (e->home.worker[i].spare) close_spare(e, i);
    }
    return st;
}

sl_status sl_coord_start(sl_engine *e, sl_err *err) {
    sl_net_opts no = {.transport = e->o.transport,
                      .host = e->o.host ? e->o.host : "127.0.0.1",
                      .port = e->o.port,
                      .secret = e->o.secret,
                      .hello = {.worker = SL_NO_WORKER,
                                .incarnation = randombytes_random(),
                                .is_coordinator = 1,
                                .wire = e->plan.wire},
                      .clock = e->clock,
                      .silence_limit_us = (uint32_t)(1e6 * e->o.silence_limit_s),
                      .callers = e->plan.n_workers,
                      .sums = e->o.sums,
                      .encrypt = e->o.encrypt,
                      .on = {sl_crew_on_open, on_message, sl_crew_on_down},
                      .ctx = e};
    memcpy(no.hello.model_hash, e->spec.hash, 32);
    snprintf(no.hello.name, sizeof no.hello.name, "coordinator");
    sl_status st = SL_OK;
    const sl_transport_kind *kind = sl_transport_find(e->o.transport, false, err);
    if (!kind) return SL_ERR_ARG;
    if (kind->threads) {
        st = sl_loop_hub_create(e->o.delay_seed, e->o.delay_us, &e->hub, err);
        no.hub = e->hub;
    }
    if (st == SL_OK) st = sl_net_create(&no, &e->net, err);
    if (st == SL_OK) st = create_books(e, err);
    for (uint32_t i = 0; st == SL_OK && i < e->plan.n_workers; i++)
        st = sl_counts_create(&e->spec, &e->worker[i].counts, err);
    return st == SL_OK ? sl_spawn_start(e, err) : st;
}

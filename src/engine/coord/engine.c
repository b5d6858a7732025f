/* The public face of the coordinator: calls from any thread become commands of the engine's thread.
 */
#include "engine/coord/coord_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/trace.h"
#include "format/plan_json.h"
#include "model/model.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_US       50000u
#define MAX_QUEUE     4096u
#define STOP_GRACE_MS 3000u

/* ---- the thread ---- */

static sl_command *take_commands(sl_engine *e, bool *stop) {
    pthread_mutex_lock(&e->lock);
    sl_command *first = e->first_command;
    e->first_command = e->last_command = NULL;
    *stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return first;
}

static void run_commands(sl_engine *e, sl_command *first) {
    while (first) {
        sl_command *next = first->next;
        sl_coord_command(e, first);
        first = next;
    }
}

bool sl_engine_step(sl_engine *e) {
    bool stop;
    sl_command *first = take_commands(e, &stop);
    bool busy = first != NULL;
    run_commands(e, first);
    return !stop && (sl_coord_step(e) || busy);
}

static bool stopping(sl_engine *e) {
    pthread_mutex_lock(&e->lock);
    bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop;
}

static void *engine_main(void *arg) {
    sl_engine *e = arg;
    while (!stopping(e)) {
        if (!sl_engine_step(e)) sl_net_wait(e->net, WAIT_US);
        sl_notify_alive();
    }
    return NULL;
}

/* ---- start and stop ---- */

/* The plan of all places, and that of those who are there at first. */
static sl_status first_plan(sl_engine *e, const sl_plan *p, sl_err *err) {
    sl_status st = sl_plan_copy(p, &e->home, err);
    uint8_t *there = sl_alloc(p->n_workers, 1);
    if (st == SL_OK && !there) st = sl_fail(err, SL_ERR_NOMEM, "plan of %u workers", p->n_workers);
    for (uint32_t i = 0; there && i < p->n_workers; i++) there[i] = !p->worker[i].spare;
    if (st == SL_OK && sl_plan_n_first(p) < p->n_workers)
        st = sl_plan_among(&e->home, there, &e->plan, err);
    else if (st == SL_OK)
        st = sl_plan_copy(&e->home, &e->plan, err);
    sl_free(there);
    return st;
}

static sl_status check_gpu_kind(const sl_plan *p, sl_err *err) {
    if (sl_plan_numerics(p) != SL_NUMERICS_EXACT || p->device.gpu_kind[0]) return SL_OK;
    return sl_fail(err, SL_ERR_ARG,
                   "plan: numerics exact are the bits of one kind of GPU, and nobody says which: "
                   "gpu.kind of the plan does (name and compute capability, as in sluice devices)");
}

static sl_status check_prefill(const sl_plan *p, sl_err *err) {
    if (!sl_plan_has_prefill(p) || !sl_device_is_modelled(&p->device)) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "plan: workers for prompts (prefill, --prefill): an emulated device has no KV "
                   "pages to hand over");
}

static sl_status copy_options(sl_engine *e, const sl_engine_opts *o, sl_err *err) {
    e->o = *o;
    e->o.kv_disk = NULL; /* of the caller; ours below */
    e->model_folder = sl_strdup(o->model_folder);
    e->trace_path = sl_strdup(o->trace_path ? o->trace_path : "");
    e->program = sl_strdup(o->program ? o->program : "");
    e->isa = sl_strdup(o->isa ? o->isa : "");
    e->o.kv_disk = o->kv_disk ? sl_strdup(o->kv_disk) : NULL;
    if (!e->model_folder || !e->trace_path || !e->program || !e->isa ||
        (o->kv_disk && !e->o.kv_disk))
        return sl_fail(err, SL_ERR_NOMEM, "engine options");
    sl_status st = o->secret.len ? sl_secret_check(o->secret.len, "the engine", err)
                                 : sl_secret_make(e->secret, err);
    if (st != SL_OK) return st;
    if (o->secret.len) memcpy(e->secret, o->secret.data, o->secret.len);
    e->o.secret = (sl_span){(const uint8_t *)e->secret, strlen(e->secret)};
    st = sl_model_read_spec(o->model_folder, &e->spec, NULL, err);
    e->spec.kv_type = e->o.plan.kv_type = sl_plan_kv_type(&o->plan);
    e->o.plan.device.numerics = sl_plan_numerics(&o->plan);
    if (st == SL_OK) st = sl_plan_check(&e->o.plan, &e->spec, err);
    if (st == SL_OK) st = check_gpu_kind(&e->o.plan, err);
    if (st == SL_OK) st = check_prefill(&e->o.plan, err);
    if (st == SL_OK) st = sl_plan_check_size(&e->o.plan, &e->spec, err);
    if (st == SL_OK) st = first_plan(e, &e->o.plan, err);
    for (uint32_t i = 0; i < e->home.n_workers; i++)
        e->seats += e->home.worker[i].roles & SL_ROLE_ATTENTION ? e->home.max_num_seqs : 0;
    e->stats.n_workers = e->plan.n_workers;
    e->stats.schedule = e->plan.schedule;
    e->stats.lanes = e->plan.lanes;
    e->stats.chunks = e->plan.chunks;
    e->stats.predicted = o->predicted;
    if (!e->o.trace_events) e->o.trace_events = SL_TRACE_EVENTS;
    if (st != SL_OK) return st;
    e->worker = sl_alloc(e->plan.n_workers, sizeof *e->worker);
    e->spawned = sl_alloc(e->plan.n_workers, sizeof *e->spawned);
    e->hosts = sl_alloc(SL_MAX((size_t)e->spec.n_moe, 1u) * e->plan.n_workers, 1);
    if (!e->worker || !e->spawned || !e->hosts)
        return sl_fail(err, SL_ERR_NOMEM, "books of %u workers", e->plan.n_workers);
    sl_live_on_plan(e);
    if (e->trace_path[0])
        st = sl_collect_create(e->trace_path, e->plan.n_workers, &e->collect, err);
    return st;
}

static void missing_workers(const sl_engine *e, char *out, size_t cap) {
    size_t n = 0;
    for (uint32_t i = 0; i < e->plan.n_workers && n < cap; i++) {
        if (!e->worker[i].stats.alive && !e->home.worker[i].spare)
            n += (size_t)snprintf(out + n, cap - n, " %u", i);
    }
}

static void wait_briefly(sl_engine *e) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&e->changed, &e->lock, &until);
}

static sl_status await_workers(sl_engine *e, sl_err *err) {
    uint32_t timeout = sl_engine_join_s(e);
    uint64_t until_ns = sl_now_ns() + timeout * 1000000000ull;
    bool given_up = false;
    pthread_mutex_lock(&e->lock);
    while (!e->up && e->start_status == SL_OK && !given_up && sl_now_ns() < until_ns) {
        wait_briefly(e);
        given_up = e->o.give_up && e->o.give_up();
        uint32_t ready = 0;
        for (uint32_t i = 0; i < e->plan.n_workers; i++) ready += e->worker[i].stats.alive;
        if (e->o.progress) e->o.progress(e->o.progress_ctx, ready, e->plan.n_workers);
    }
    sl_status st = e->start_status;
    if (st != SL_OK)
        *err = e->start_err;
    else if (given_up && !e->up) {
        st = sl_fail(err, SL_ERR_CANCELLED, "stopped while waiting for workers");
    } else if (!e->up) {
        char missing[200] = "";
        missing_workers(e, missing, sizeof missing);
        st = sl_fail(err, SL_ERR_TIMEOUT, "after %u s these workers are not ready:%s", timeout,
                     missing);
    }
    pthread_mutex_unlock(&e->lock);
    e->o.progress = NULL; /* of the caller, who goes on */
    return st;
}

static sl_status engine_new(const sl_engine_opts *o, sl_clock clock, sl_engine **out, sl_err *err) {
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    sl_engine *e = sl_alloc(1, sizeof *e);
    if (!e) return sl_fail(err, SL_ERR_NOMEM, "engine");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->next_id = 1;
    e->ends.fd = -1;
    e->max_queue = o->max_queue ? o->max_queue : MAX_QUEUE;
    e->clock = clock;
    sl_status st = copy_options(e, o, err);
    if (st == SL_OK) st = sl_coord_start(e, err);
    /* No deadline of requests, workers or changes passes while this process is stopped. */
    if (st == SL_OK) e->clock = sl_net_clock(e->net);
    if (st == SL_OK)
        *out = e;
    else
        sl_engine_free(e);
    return st;
}

sl_status sl_engine_create_stepped(const sl_engine_opts *o, sl_clock clock, sl_engine **out,
                                   sl_err *err) {
    SL_ASSERT(o->spawn == SL_SPAWN_NONE || o->spawn == SL_SPAWN_CALLER);
    return engine_new(o, clock, out, err);
}

sl_status sl_engine_create(const sl_engine_opts *o, sl_engine **out, sl_err *err) {
    sl_engine *e = NULL;
    sl_status st = engine_new(o, sl_clock_real(), &e, err);
    if (st != SL_OK) return st;
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    if (rc != 0) st = sl_fail(err, SL_ERR_IO, "engine thread: %s", strerror(rc));
    e->has_thread = rc == 0;
    if (st == SL_OK) st = await_workers(e, err);
    if (st == SL_OK)
        *out = e;
    else
        sl_engine_free(e);
    return st;
}

sl_status sl_engine_close(sl_engine *e, sl_err *err) {
    if (!e) return SL_OK;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) {
        sl_net_wake(e->net);
        pthread_join(e->thread, NULL);
    }
    bool stop;
    run_commands(e, take_commands(e, &stop));
    sl_status st = sl_collect_finish(e, err);
    if (e->net) sl_coord_shutdown(e);
    if (e->spawned) sl_spawn_stop(e, STOP_GRACE_MS + sl_prefix_save_ms(e->saved_bytes));
    if (e->net) sl_net_free(e->net);
    if (e->ends.fd >= 0) close(e->ends.fd); /* the net watched it */
    if (e->hub) sl_loop_hub_free(e->hub);
    for (uint32_t i = 0; e->worker && i < e->plan.n_workers; i++) {
        sl_counts_free(&e->worker[i].counts);
        sl_free(e->worker[i].latest.event);
    }
    sl_free(e->worker);
    sl_links_free(&e->links);
    sl_free(e->spawned);
    sl_free(e->hosts);
    sl_admit_free(&e->admit);
    sl_change_free(&e->change);
    sl_drain_free(&e->drain);
    sl_recover_free(&e->recover);
    sl_adapting_close(e);
    sl_rooming_close(e);
    sl_roster_free(&e->roster);
    sl_ledger_free(&e->ledger);
    sl_collect_free(e->collect);
    sl_plan_free(&e->plan);
    sl_plan_free(&e->home);
    sl_plan_free(&e->own.plan);
    sl_free(e->model_folder);
    sl_free(e->trace_path);
    sl_free(e->program);
    sl_free(e->isa);
    sl_free((void *)(uintptr_t)e->o.kv_disk);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    sl_free(e);
    return st;
}

void sl_engine_free(sl_engine *e) {
    sl_err err;
    if (sl_engine_close(e, &err) != SL_OK) sl_log(SL_LOG_ERROR, "trace", "%s", err.msg);
}

const sl_model_spec *sl_engine_spec(const sl_engine *e) {
    return &e->spec;
}

void sl_engine_chosen(sl_engine *e, sl_auto_report *out, sl_plan *plan) {
    /* Written before the workers got their plans, and never after the engine was up. */
    *out = e->survey.report;
    sl_plan_schedule_as(&e->o.plan, plan);
}

/* ---- calls ---- */

static sl_status check_ids(const char *what, const uint32_t *id, uint32_t n, uint32_t vocab,
                           sl_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] >= vocab)
            return sl_fail(err, SL_ERR_ARG, "%s: id %u at %u, the vocabulary has %u", what, id[i],
                           i, vocab);
    }
    return SL_OK;
}

static sl_status check_params(const sl_engine *e, const sl_request_params *p, sl_err *err) {
    uint64_t total = sl_kv_positions(p->n_prompt, p->max_tokens);
    if (p->n_prompt == 0) return sl_fail(err, SL_ERR_ARG, "prompt: empty, at least one token");
    if (p->max_tokens == 0) return sl_fail(err, SL_ERR_ARG, "max_tokens: 0, at least 1");
    if (p->min_tokens > p->max_tokens)
        return sl_fail(err, SL_ERR_ARG, "min_tokens: %u, more than max_tokens: %u", p->min_tokens,
                       p->max_tokens);
    if (p->n_drawn >= p->max_tokens)
        return sl_fail(err, SL_ERR_ARG, "drawn: %u tokens, max_tokens is %u", p->n_drawn,
                       p->max_tokens);
    if (p->n_stop > SL_MAX_STOP_IDS)
        return sl_fail(err, SL_ERR_ARG, "stop: %u ids, limit %u", p->n_stop, SL_MAX_STOP_IDS);
    if (total > e->plan.context)
        return sl_fail(err, SL_ERR_LIMIT,
                       "prompt of %u tokens and max_tokens of %u take %llu positions, the context "
                       "has %u (--ctx)",
                       p->n_prompt, p->max_tokens, (unsigned long long)total, e->plan.context);
    sl_status st = check_ids("prompt", p->prompt, p->n_prompt, e->spec.vocab, err);
    if (st == SL_OK) st = check_ids("drawn", p->drawn, p->n_drawn, e->spec.vocab, err);
    if (st != SL_OK) return st;
    st = sl_report_check(&p->report, e->spec.vocab, err);
    if (st != SL_OK) return st;
    if (!p->logprobs && (sl_reported(&p->report) > 1 || p->prompt_logprobs))
        return sl_fail(err, SL_ERR_ARG, "logprobs: not asked for, but their details are");
    size_t n_shape = sl_shared_bytes(p->shape).len;
    if (n_shape > SL_MAX_SHAPE)
        return sl_fail(err, SL_ERR_LIMIT, "structured output: %zu bytes, limit %u", n_shape,
                       SL_MAX_SHAPE);
    if (n_shape && (p->ignore_eos || p->min_tokens))
        return sl_fail(err, SL_ERR_ARG, "structured output: its shape says where it may end, %s",
                       p->ignore_eos ? "ignore_eos has no meaning" : "min_tokens has no meaning");
    return sl_sampling_check(&p->sampling, e->spec.vocab, err);
}

static void push_command(sl_engine *e, sl_command *c) {
    if (e->last_command)
        e->last_command->next = c;
    else
        e->first_command = c;
    e->last_command = c;
}

/* Not even when every worker runs all that it may could this one wait. */
static sl_status refuse_full(sl_engine *e, sl_err *err) {
    e->stats.rejected_full++;
    return sl_fail(err, SL_ERR_OVERLOADED, "%u requests are open, at most %u run and %u wait",
                   e->n_open, e->seats, e->max_queue);
}

sl_status sl_engine_submit(sl_engine *e, const sl_request_params *p, uint64_t *request,
                           sl_err *err) {
    sl_status st = check_params(e, p, err);
    if (st != SL_OK) return st;
    sl_command *c = sl_alloc(1, sizeof *c);
    sl_request *r = c ? sl_request_create(p, 0) : NULL;
    if (!r) {
        sl_free(c);
        return sl_fail(err, SL_ERR_NOMEM, "request of %u tokens", p->n_prompt);
    }
    c->submit = r;
    pthread_mutex_lock(&e->lock);
    if (!e->stats.serving || e->stop)
        st = sl_fail(err, SL_ERR_WORKER_LOST, "not every worker of the plan is there");
    else if (!p->again && e->n_open >= e->seats + e->max_queue)
        st = refuse_full(e, err);
    if (st == SL_OK) {
        e->n_open++;
        *request = r->id = e->next_id++;
        push_command(e, c);
    }
    pthread_mutex_unlock(&e->lock);
    if (st == SL_OK) {
        sl_net_wake(e->net);
        return SL_OK;
    }
    sl_request_free(r);
    sl_free(c);
    return st;
}

/* A copy of *c is run by the engine's thread. SL_ERR_NOMEM. Thread: any. */
static sl_status command(sl_engine *e, const sl_command *c, sl_err *err) {
    sl_command *copy = sl_alloc(1, sizeof *copy);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "command");
    *copy = *c;
    pthread_mutex_lock(&e->lock);
    push_command(e, copy);
    pthread_mutex_unlock(&e->lock);
    sl_net_wake(e->net);
    return SL_OK;
}

void sl_engine_cancel(sl_engine *e, uint64_t request) {
    sl_err err;
    /* without memory it ends by itself, only later */
    command(e, &(sl_command){.cancel = request}, &err);
}

sl_status sl_engine_replan(sl_engine *e, const sl_plan *plan, uint32_t timeout_ms, sl_err *err) {
    sl_replan r = {.timeout_us = 1000ull * timeout_ms};
    sl_status st = sl_plan_check(plan, &e->spec, err);
    if (st == SL_OK) st = sl_plan_copy(plan, &r.plan, err);
    if (st != SL_OK) return st;
    r.plan.kv_type = sl_plan_kv_type(plan);
    if (!plan->device.gpu_kind[0]) /* it is the workers' that there are */
        memcpy(r.plan.device.gpu_kind, e->o.plan.device.gpu_kind, sizeof r.plan.device.gpu_kind);
    r.plan.device.numerics = sl_plan_numerics(&r.plan);
    st = command(e, &(sl_command){.replan = &r}, err);
    pthread_mutex_lock(&e->lock);
    while (st == SL_OK && !r.done) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    sl_plan_free(&r.plan);
    sl_plan_free(&r.home);
    if (st == SL_OK && r.status != SL_OK) *err = r.err;
    return st == SL_OK ? r.status : st;
}

sl_status sl_engine_wish(sl_engine *e, sl_wish_kind kind, uint32_t worker, uint32_t grace_ms,
                         uint32_t *number, sl_err *err) {
    sl_wish w = {.kind = kind, .worker = worker, .grace_ms = grace_ms};
    sl_status st = command(e, &(sl_command){.wish = &w}, err);
    pthread_mutex_lock(&e->lock);
    while (st == SL_OK && !w.done) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    *number = w.number;
    if (st == SL_OK && w.status != SL_OK) *err = w.err;
    return st == SL_OK ? w.status : st;
}

sl_status sl_engine_look(sl_engine *e, sl_err *err) {
    return command(e, &(sl_command){.look = true}, err);
}

void sl_engine_stats_get(sl_engine *e, sl_engine_stats *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

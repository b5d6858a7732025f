/* The coordinator's books over a whole engine in this process: pages, requests and rows add up
 * whatever is cancelled, what cannot run is refused at once, and decoding allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "model/model.h"
#include "net/net.h"
#include "sanitized.h"

#include <pthread.h>
#include <time.h>

#define FIXTURE    SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define DEADLINE_S 120
#define MAX_IDS    400u

typedef struct outcome {
    uint64_t id;
    uint32_t ids[MAX_IDS], n, events_after_end;
    uint32_t hold_ms; /* how long each event keeps the engine's thread */
    bool ended;
    sl_finish finish;
    sl_status status;
    uint64_t allocations[MAX_IDS]; /* made in this process when token i came */
} outcome;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    if (o->hold_ms) {
        const struct timespec t = {.tv_nsec = o->hold_ms * 1000000};
        nanosleep(&t, NULL);
    }
    pthread_mutex_lock(&lock);
    o->events_after_end += o->ended;
    for (uint32_t i = 0; i < ev->n && o->n < MAX_IDS; i++) {
        o->allocations[o->n] = sl_mem_count();
        o->ids[o->n++] = ev->tokens[i];
    }
    if (ev->finish != SL_FINISH_NONE) {
        o->ended = true;
        o->finish = ev->finish;
        o->status = ev->status;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits until o has n tokens or has ended. */
static void await_tokens(outcome *o, uint32_t n) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (!o->ended && o->n < n && rc == 0) rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    if (rc)
        fail_msg("request %llu: %u tokens after %d s", (unsigned long long)o->id, o->n, DEADLINE_S);
}

static void await_end(outcome *o) {
    await_tokens(o, UINT32_MAX);
}

static sl_engine *start(uint32_t attention, uint32_t experts, uint32_t seqs, uint32_t pages,
                        sl_model_spec *m) {
    sl_err err = {0};
    sl_engine *e = NULL;
    sl_engine_opts o = {.model_folder = FIXTURE, .transport = "loop", .join_timeout_s = 60};
    assert_int_equal(sl_model_read_spec(FIXTURE, m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(m, attention, experts, &o.plan, &err), SL_OK);
    o.plan.threads = 1;
    o.plan.exact = true;
    o.plan.max_num_seqs = seqs;
    o.plan.n_pages = pages;
    o.plan.max_num_batched_tokens = 32;
    if (sl_engine_create(&o, &e, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_free(&o.plan);
    return e;
}

static void submit(sl_engine *e, const uint32_t *prompt, uint32_t n, uint32_t max_tokens,
                   outcome *o) {
    sl_err err = {0};
    const sl_request_params p = {.prompt = prompt,
                                 .n_prompt = n,
                                 .max_tokens = max_tokens,
                                 .sampling = {.temperature = 0.8f, .top_p = 1, .seed = 11},
                                 .ignore_eos = true,
                                 .on_event = on_event,
                                 .ctx = o};
    if (sl_engine_submit(e, &p, &o->id, &err) != SL_OK) fail_msg("%s", err.msg);
}

static sl_engine_detail detail(sl_engine *e) {
    sl_engine_detail d;
    sl_err err;
    if (sl_engine_detail_get(e, &d, &err) != SL_OK) fail_msg("%s", err.msg);
    return d;
}

/* The books some time after the last request, when every worker has reported again. */
static sl_engine_stats quiet_stats(sl_engine *e) {
    sl_engine_stats s;
    uint64_t first = sl_now_ns(), until = first + DEADLINE_S * 1000000000ull;
    bool quiet = false;
    uint64_t wall[64] = {0};
    while (!quiet && sl_now_ns() < until) {
        const struct timespec t = {.tv_nsec = 50000000};
        nanosleep(&t, NULL);
        sl_engine_stats_get(e, &s);
        sl_engine_detail d = detail(e);
        quiet = s.running == 0 && s.waiting == 0;
        for (uint32_t i = 0; i < d.n_workers; i++) {
            if (!wall[i]) wall[i] = d.worker[i].wall_us + 1; /* before: may be an old report */
            quiet = quiet && d.worker[i].wall_us > wall[i] + 600000;
        }
        sl_engine_detail_free(&d);
    }
    assert_true(quiet);
    return s;
}

static void check_books(sl_engine *e, const sl_engine_stats *s) {
    sl_engine_detail d = detail(e);
    uint64_t created = 0, merged = 0, expert_rows = 0, attention_rows = 0, sent = 0, received = 0;
    assert_int_equal(s->pages_used, 0);
    for (uint32_t i = 0; i < d.n_workers; i++) {
        const sl_worker_stats *w = &d.worker[i];
        created += w->rows_created;
        merged += w->rows_merged + w->rows_cancelled + w->rows_lost;
        expert_rows += w->expert_rows;
        attention_rows += w->attention_rows;
        sent += w->sent_messages;
        received += w->received_messages;
        uint64_t booked =
            w->execute_us + w->pack_us + w->send_us + w->poll_us + w->wait_us + w->sleep_us;
        uint64_t off = booked > w->wall_us ? booked - w->wall_us : w->wall_us - booked;
        if (off * 100 > w->wall_us)
            fail_msg("worker %u: %llu us booked of %llu", i, (unsigned long long)booked,
                     (unsigned long long)w->wall_us);
        assert_true(w->alive);
        assert_int_equal(w->rows_lost, 0);
        assert_int_equal(w->rows_stale, 0);
    }
    assert_int_equal(created, merged);
    assert_int_equal(created, attention_rows * 3); /* MoE blocks */
    assert_int_equal(expert_rows, created * 2);    /* top k */
    assert_true(sent > 0 && received > 0);
    sl_engine_detail_free(&d);
}

static void books_after_cancels(void **state) {
    (void)state;
    enum { MOST = 200 };
    static outcome o[MOST];
    const uint32_t asked = SL_SLOW_BUILD ? MOST / take_one_in(3) : MOST;
    static const struct { uint32_t attention, experts; } shapes[] = {{0, 0}, {2, 2}};
    for (size_t shape = 0; shape < SL_LEN(shapes); shape++) {
        sl_model_spec m;
        sl_engine *e = start(shapes[shape].attention, shapes[shape].experts, 6, 40, &m);
        uint64_t random = 77 + shape;
        memset(o, 0, sizeof o);
        uint64_t prompts = 0;
        for (uint32_t i = 0; i < asked; i++) {
            uint32_t prompt[60], n = 1 + (uint32_t)sl_rng_below(&random, 60);
            for (uint32_t j = 0; j < n; j++) prompt[j] = (uint32_t)sl_rng_below(&random, m.vocab);
            prompts += n;
            submit(e, prompt, n, 1 + (uint32_t)sl_rng_below(&random, 40), &o[i]);
            uint64_t what = sl_rng_below(&random, 6);
            uint32_t victim = (uint32_t)sl_rng_below(&random, i + 1);
            if (what == 0) sl_engine_cancel(e, o[i].id);
            if (what == 1) sl_engine_cancel(e, o[victim].id);
            if (what == 2) {
                await_tokens(&o[victim], 1 + (uint32_t)sl_rng_below(&random, 8));
                sl_engine_cancel(e, o[victim].id);
                sl_engine_cancel(e, o[victim].id);
            }
        }
        sl_engine_cancel(e, 1ull << 50); /* nobody */
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < asked; i++) {
            await_end(&o[i]);
            tokens += o[i].n;
            assert_true(o[i].finish == SL_FINISH_STOP || o[i].finish == SL_FINISH_LENGTH);
        }
        sl_engine_stats s = quiet_stats(e);
        check_books(e, &s);
        assert_int_equal(s.finished_stop + s.finished_length + s.finished_cancelled, asked);
        assert_int_equal(s.finished_error, 0);
        assert_true(s.finished_cancelled > 10 && s.finished_length > 10);
        assert_true(s.prompt_tokens <= prompts && s.generated_tokens >= tokens);
        assert_int_equal(s.pages_total, 40 * SL_MAX(shapes[shape].attention, 1u));
        sl_engine_free(e);
        for (uint32_t i = 0; i < asked; i++) assert_int_equal(o[i].events_after_end, 0);
    }
}

/* Pages for three requests, twenty are there: they wait their turn and say what they would say
 * alone. */
static void queue_for_pages(void **state) {
    (void)state;
    enum { N = 20 };
    static outcome alone[N], together[N];
    uint32_t prompt[N][40];
    sl_model_spec m;
    sl_engine *e = start(0, 0, 8, 100, &m);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t random = i;
        for (uint32_t j = 0; j < 40; j++) prompt[i][j] = (uint32_t)sl_rng_below(&random, m.vocab);
        submit(e, prompt[i], 40, 24, &alone[i]);
        await_end(&alone[i]);
        assert_int_equal(alone[i].n, 24);
    }
    sl_engine_free(e);
    /* A whole context is 16 pages, the least a pool may have: eight requests of two pages fit. */
    e = start(1, 2, 64, 16, &m);
    static outcome big;
    submit(e, prompt[0], 1, 300, &big); /* ten of sixteen: leaves room for three others */
    await_tokens(&big, 1);
    uint32_t most = 0, waiting = 0;
    for (uint32_t i = 0; i < N; i++) submit(e, prompt[i], 40, 24, &together[i]);
    bool all = false;
    while (!all) {
        sl_engine_stats s;
        const struct timespec t = {.tv_nsec = 200000}; /* the engine wants the lock, too */
        nanosleep(&t, NULL);
        sl_engine_stats_get(e, &s);
        assert_true(s.pages_used <= 16);
        most = SL_MAX(most, s.running);
        waiting = SL_MAX(waiting, s.waiting);
        all = true;
        pthread_mutex_lock(&lock);
        for (uint32_t i = 0; i < N; i++) all = all && together[i].ended;
        pthread_mutex_unlock(&lock);
    }
    assert_true(waiting >= 10);
    assert_true(most <= 8);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(together[i].finish, SL_FINISH_LENGTH);
        assert_int_equal(together[i].n, 24);
        assert_memory_equal(together[i].ids, alone[i].ids, 24 * sizeof(uint32_t));
    }
    await_end(&big);
    sl_engine_stats s = quiet_stats(e);
    check_books(e, &s);
    sl_engine_free(e);
}

static void refuses(sl_engine *e, sl_request_params p, sl_status want, const char *why) {
    sl_err err = {0};
    uint64_t id = 0;
    static outcome never;
    p.on_event = on_event;
    p.ctx = &never;
    assert_int_equal(sl_engine_submit(e, &p, &id, &err), want);
    if (!strstr(err.msg, why)) fail_msg("'%s', expected '%s'", err.msg, why);
    assert_false(never.ended);
}

static void refusals(void **state) {
    (void)state;
    sl_model_spec m;
    sl_engine *e = start(0, 0, 2, 16, &m);
    static const uint32_t prompt[3] = {3, 17, 41}, bad[3] = {3, 1040, 41};
    const sl_request_params ok = {
        .prompt = prompt, .n_prompt = 3, .max_tokens = 4, .sampling = {.top_p = 1}};
    sl_request_params p = ok;
    p.n_prompt = 0;
    refuses(e, p, SL_ERR_ARG, "prompt: empty");
    p = ok;
    p.max_tokens = 0;
    refuses(e, p, SL_ERR_ARG, "max_tokens: 0");
    p = ok;
    p.prompt = bad;
    refuses(e, p, SL_ERR_ARG, "id 1040 at 1, the vocabulary has 1040");
    p = ok;
    p.max_tokens = 511;
    refuses(e, p, SL_ERR_LIMIT, "513 positions, the context has 512");
    p.max_tokens = UINT32_MAX;
    refuses(e, p, SL_ERR_LIMIT, "positions, the context has 512");
    p = ok;
    p.n_stop = 65;
    p.stop = prompt;
    refuses(e, p, SL_ERR_ARG, "stop: 65 ids, limit 64");
    p = ok;
    p.min_tokens = ok.max_tokens + 1;
    refuses(e, p, SL_ERR_ARG, "min_tokens");
    p = ok;
    p.sampling.temperature = -1;
    refuses(e, p, SL_ERR_ARG, "temperature");
    p.sampling = (sl_sampling){.temperature = __builtin_nanf(""), .top_p = 1};
    refuses(e, p, SL_ERR_ARG, "temperature");
    p.sampling = (sl_sampling){.top_p = 0};
    refuses(e, p, SL_ERR_ARG, "top_p");
    p.sampling = (sl_sampling){.top_p = 1.5f};
    refuses(e, p, SL_ERR_ARG, "top_p");
    static outcome o; /* and it still serves, with a stop id of the caller's */
    submit(e, prompt, 3, 5, &o);
    await_end(&o);
    assert_int_equal(o.n, 5);
    static outcome stopped;
    sl_err err;
    p = ok;
    p.max_tokens = 5;
    p.sampling = (sl_sampling){.temperature = 0.8f, .top_p = 1, .seed = 11};
    p.stop = &o.ids[2];
    p.n_stop = 1;
    p.on_event = on_event;
    p.ctx = &stopped;
    assert_int_equal(sl_engine_submit(e, &p, &stopped.id, &err), SL_OK);
    await_end(&stopped);
    assert_int_equal(stopped.finish, SL_FINISH_STOP);
    assert_true(stopped.n >= 1 && stopped.n <= 3 && stopped.ids[stopped.n - 1] == o.ids[2]);
    static outcome late; /* nothing ends it, nor may its stop id come, before min_tokens */
    p.max_tokens = p.min_tokens = 40;
    p.sampling.temperature = 0;
    p.stop = &o.ids[0];
    p.ctx = &late;
    assert_int_equal(sl_engine_submit(e, &p, &late.id, &err), SL_OK);
    await_end(&late);
    assert_int_equal(late.n, 40);
    for (uint32_t i = 0; i < late.n; i++) assert_int_not_equal(late.ids[i], o.ids[0]);
    sl_engine_free(e);
}

/* A cancelled request's last event is STOP, whether it waited, ran, or was about to end. */
static void cancels(void **state) {
    (void)state;
    sl_model_spec m;
    sl_engine *e = start(1, 1, 1, 16, &m);
    static outcome running, waiting, next;
    static const uint32_t prompt[3] = {3, 17, 41};
    submit(e, prompt, 3, 380, &running);
    submit(e, prompt, 3, 380, &waiting); /* one slot */
    await_tokens(&running, 4);
    sl_engine_cancel(e, waiting.id);
    await_end(&waiting);
    assert_int_equal(waiting.n, 0);
    assert_int_equal(waiting.finish, SL_FINISH_STOP);
    assert_false(running.ended);
    sl_engine_cancel(e, running.id);
    submit(e, prompt, 3, 6, &next);
    await_end(&running);
    assert_true(running.n < 380);
    assert_int_equal(running.finish, SL_FINISH_STOP);
    await_end(&next);
    assert_int_equal(next.n, 6);
    sl_engine_stats s = quiet_stats(e);
    check_books(e, &s);
    assert_int_equal(s.finished_cancelled, 2);
    assert_int_equal(s.finished_length, 1);
    sl_engine_free(e);
}

/* The worker runs at most SL_MAX_AHEAD tokens past what the coordinator has seen. */
static void parks_when_unheard(void **state) {
    (void)state;
    sl_model_spec m;
    sl_engine *e = start(0, 0, 1, 16, &m);
    static outcome slow;
    static const uint32_t prompt[3] = {3, 17, 41};
    slow.hold_ms = 3; /* a token takes far less */
    submit(e, prompt, 3, 160, &slow);
    for (uint32_t n = 40; n <= 120; n += 40) {
        await_tokens(&slow, n);
        sl_engine_detail d = detail(e);
        pthread_mutex_lock(&lock);
        assert_true(d.worker[0].tokens <= slow.n + SL_MAX_AHEAD);
        pthread_mutex_unlock(&lock);
        sl_engine_detail_free(&d);
    }
    await_end(&slow);
    assert_int_equal(slow.n, 160);
    assert_int_equal(slow.finish, SL_FINISH_LENGTH);
    sl_engine_free(e);
}

/* Once its first messages are pooled, a request takes no memory however long it decodes: what is
 * taken after token 20 is what more messages on their way at once need, at most those of the
 * run-ahead. */
static void decode_allocates_nothing(void **state) {
    (void)state;
    sl_model_spec m;
    sl_engine *e = start(0, 0, 4, 16, &m);
    static outcome o;
    static const uint32_t prompt[3] = {3, 17, 41};
    submit(e, prompt, 3, 300, &o);
    await_end(&o);
    assert_int_equal(o.n, 300);
    uint64_t taken = o.allocations[299] - o.allocations[20];
    if (taken > 2 * SL_MAX_AHEAD) fail_msg("%llu allocations", (unsigned long long)taken);
    sl_engine_free(e);
}

/* An engine that stops ends what runs and what waits, each with one last event. */
static void stops_with_open_requests(void **state) {
    (void)state;
    enum { N = 12 };
    static outcome o[N];
    sl_model_spec m;
    sl_engine *e = start(1, 1, 3, 48, &m);
    static const uint32_t prompt[3] = {3, 17, 41};
    for (uint32_t i = 0; i < N; i++) submit(e, prompt, 3, 390, &o[i]);
    await_tokens(&o[0], 2);
    sl_engine_free(e);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(o[i].ended);
        assert_int_equal(o[i].events_after_end, 0);
        if (o[i].finish != SL_FINISH_LENGTH) assert_int_equal(o[i].status, SL_ERR_WORKER_LOST);
    }
}

static void cannot_start(void **state) {
    (void)state;
    sl_model_spec m;
    sl_err err = {0};
    sl_engine *e = NULL;
    sl_engine_opts o = {.model_folder = FIXTURE, .transport = "loop", .join_timeout_s = 1};
    assert_int_equal(sl_model_read_spec(FIXTURE, &m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&m, 1, 1, &o.plan, &err), SL_OK);
    o.isa = "none such";
    assert_true(sl_engine_create(&o, &e, &err) != SL_OK);
    assert_non_null(strstr(err.msg, "none such"));
    for (uint32_t i = 0; i < 100 / take_one_in(SL_SLOW_BUILD ? 8 : 2);
         i++) { /* its workers may still be about to join */
        o.delay_seed = i + 1;
        o.delay_us = i * 37 % 3000;
        assert_true(sl_engine_create(&o, &e, &err) != SL_OK);
    }
    o.delay_us = 0;
    o.isa = NULL;
    o.spawn = SL_SPAWN_NONE; /* nobody comes */
    assert_int_equal(sl_engine_create(&o, &e, &err), SL_ERR_TIMEOUT);
    assert_non_null(strstr(err.msg, "these workers are not ready: 0 1"));
    o.model_folder = "/nowhere";
    assert_true(sl_engine_create(&o, &e, &err) != SL_OK);
    assert_non_null(strstr(err.msg, "/nowhere"));
    o.model_folder = FIXTURE;
    static const size_t bad[] = {SL_SECRET_MIN - 1, SL_SECRET_MAX + 1};
    uint8_t secret[SL_SECRET_MAX + 1];
    memset(secret, 'x', sizeof secret);
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        o.secret = (sl_span){secret, bad[i]};
        assert_int_equal(sl_engine_create(&o, &e, &err), SL_ERR_ARG);
        assert_non_null(strstr(err.msg, "the engine: a secret has 16 to 64 bytes"));
    }
    assert_null(e);
    sl_plan_free(&o.plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(books_after_cancels),
        cmocka_unit_test(queue_for_pages),
        cmocka_unit_test(refusals),
        cmocka_unit_test(cancels),
        cmocka_unit_test(parks_when_unheard),
        cmocka_unit_test(decode_allocates_nothing),
        cmocka_unit_test(stops_with_open_requests),
        cmocka_unit_test(cannot_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

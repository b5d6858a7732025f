/* Peers that the test plays against one real worker: a coordinator and other workers over "loop".
 */
#ifndef SL_TESTS_ENGINE_PEERS_H
#define SL_TESTS_ENGINE_PEERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "format/plan_json.h"
#include "engine/worker/worker.h"
#include "model/model.h"
#include "net/net.h"

#include <pthread.h>

#define FIXTURE  SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define SECRET   "a secret of the test"
#define KEEP     64u
#define WAIT_NS  20000000000ull
#define MAX_TOYS 4u

typedef struct actor {
    sl_net *net;
    sl_conn *conn; /* to or from the worker under test */
    bool open, down;
    char why[512];
    sl_hello seen;
    sl_wire_header head[KEEP];
    sl_buf *body[KEEP];
    uint32_t n;
} actor;

/* One real worker, the coordinator, and the workers of the plan that the test plays. */
typedef struct stage {
    bool joins; /* the plan that is sent is of others who run */
    sl_loop_hub *hub;
    sl_model_spec m;
    sl_plan plan;
    uint32_t real;
    actor coordinator, toy[MAX_TOYS];
    sl_worker_opts opts;
    pthread_t thread;
    sl_status status;
    sl_err err;
} stage;

static inline sl_status actor_on_open(void *ctx, sl_conn *c, const sl_hello *h, sl_err *err) {
    actor *a = ctx;
    (void)err;
    a->conn = c;
    a->open = true;
    a->seen = *h;
    return SL_OK;
}

static inline sl_status actor_on_message(void *ctx, sl_conn *c, const sl_wire_header *h,
                                         sl_buf *payload, sl_err *err) {
    actor *a = ctx;
    (void)c;
    (void)err;
    if (h->kind == SL_MSG_STATS) {
        sl_net_buf_give(a->net, payload);
        return SL_OK;
    }
    assert_true(a->n < KEEP);
    a->head[a->n] = *h;
    a->body[a->n++] = payload;
    return SL_OK;
}

static inline void actor_on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    actor *a = ctx;
    (void)why;
    if (a->conn != c) return;
    a->conn = NULL;
    a->open = false;
    a->down = true;
    snprintf(a->why, sizeof a->why, "%s", text);
}

static inline void actor_start(actor *a, sl_loop_hub *hub, uint32_t worker, bool coordinator) {
    static uint32_t incarnation = 7000;
    sl_err err = {0};
    sl_net_opts o = {
        .transport = "loop",
        .hub = hub,
        .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1},
        .hello = {.worker = worker, .incarnation = ++incarnation, .is_coordinator = coordinator},
        .clock = sl_clock_real(),
        .on = {actor_on_open, actor_on_message, actor_on_down},
        .ctx = a};
    snprintf(o.hello.name, sizeof o.hello.name, "played %d", (int)worker);
    *a = (actor){0};
    if (sl_net_create(&o, &a->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

static inline void actor_forget(actor *a, uint32_t i) {
    sl_net_buf_give(a->net, a->body[i]);
    memmove(a->head + i, a->head + i + 1, (a->n - i - 1) * sizeof *a->head);
    memmove(a->body + i, a->body + i + 1, (a->n - i - 1) * sizeof *a->body);
    a->n--;
}

static inline void actor_stop(actor *a) {
    while (a->n) actor_forget(a, 0);
    sl_net_free(a->net);
    a->net = NULL;
}

static inline void turn(stage *s) {
    sl_net_progress(s->coordinator.net);
    for (uint32_t i = 0; i < MAX_TOYS; i++)
        if (s->toy[i].net) sl_net_progress(s->toy[i].net);
    sl_net_wait(s->coordinator.net, 200);
}

static inline void await_flag(stage *s, const bool *flag, const char *what) {
    uint64_t until = sl_now_ns() + WAIT_NS;
    while (!*flag && sl_now_ns() < until) turn(s);
    if (!*flag) fail_msg("%s did not happen", what);
}

/* Index of the first message of this kind; `stop_if_down` makes a lost connection a failure. */
static inline uint32_t await_kind(stage *s, actor *a, uint16_t kind) {
    uint64_t until = sl_now_ns() + WAIT_NS;
    while (sl_now_ns() < until) {
        for (uint32_t i = 0; i < a->n; i++)
            if (a->head[i].kind == kind) return i;
        if (a->down) fail_msg("no %s, but the end: %s", sl_msg_kind_name(kind), a->why);
        turn(s);
    }
    fail_msg("no %s came", sl_msg_kind_name(kind));
    return 0;
}

static inline void say(actor *a, sl_wire_header h, sl_buf *b) {
    h.epoch = h.epoch ? h.epoch : 1;
    assert_non_null(a->conn);
    assert_int_equal(sl_net_send(a->net, a->conn, h, b), SL_OK);
}

/* A request of so many tokens, up to 8, that wants 20 more. */
static inline void say_submit(actor *coordinator, uint64_t request, uint32_t n_tokens) {
    static const uint32_t tokens[8] = {3, 17, 41, 5, 6, 7, 8, 9}, pages[2] = {0, 1};
    const sl_wire_submit in = {.request = request,
                               .max_tokens = 20,
                               .sampling.top_p = 1,
                               .n_tokens = n_tokens,
                               .n_prompt = n_tokens,
                               .n_pages = 1,
                               .tokens = tokens,
                               .pages = pages};
    sl_buf *b = sl_net_buf_take(coordinator->net, sl_wire_submit_bytes(&in));
    assert_non_null(b);
    sl_wire_submit_encode(&in, b->data);
    say(coordinator, (sl_wire_header){.kind = SL_MSG_SUBMIT}, b);
}

/* The coordinator hears that the worker has no connection with `id` any more. */
static inline void expect_loss(stage *s, uint32_t id) {
    actor *c = &s->coordinator;
    uint32_t at = await_kind(s, c, SL_MSG_LOST), lost;
    sl_err err;
    const sl_span span = {c->body[at]->data, c->body[at]->len};
    assert_int_equal(sl_wire_worker_decode(span, &lost, &err), SL_OK);
    assert_int_equal(lost, id);
}

/* Its client gives up the request. */
static inline void say_cancel(actor *coordinator, uint64_t request) {
    const sl_wire_pair pair = {.request = request};
    sl_buf *b = sl_net_buf_take(coordinator->net, sizeof pair);
    assert_non_null(b);
    sl_wire_pairs_encode(&pair, 1, b->data);
    say(coordinator, (sl_wire_header){.kind = SL_MSG_CANCEL, .rows = 1}, b);
}

static inline sl_buf *bytes_of(actor *a, const void *data, size_t n) {
    sl_buf *b = sl_net_buf_take(a->net, n);
    assert_non_null(b);
    memcpy(b->data, data, n);
    return b;
}

static inline void *stage_main(void *arg) {
    stage *s = arg;
    s->status = sl_worker_run(&s->opts, &s->err);
    return NULL;
}

/* Makes the nets; the caller may change s->plan before stage_go. Worker `real` is a real one, that
 * looks for another coordinator for so long. */
static inline void stage_make_as(stage *s, uint32_t attention, uint32_t experts, uint32_t real,
                                 uint32_t rejoin_s, const char *kv_disk) {
    sl_err err = {0};
    *s = (stage){.real = real};
    assert_int_equal(sl_loop_hub_create(0, 0, &s->hub, &err), SL_OK);
    assert_int_equal(sl_model_read_spec(FIXTURE, &s->m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&s->m, attention, experts, &s->plan, &err), SL_OK);
    s->m.kv_type = sl_plan_kv_type(&s->plan);
    s->plan.max_num_batched_tokens = 8;
    s->plan.max_num_seqs = 4;
    s->plan.context = 128;
    s->plan.n_pages = 16;
    s->plan.threads = 1;
    actor_start(&s->coordinator, s->hub, SL_NO_WORKER, true);
    for (uint32_t i = 0; i < s->plan.n_workers; i++) {
        if (i == real) continue;
        actor_start(&s->toy[i], s->hub, i, false);
        snprintf(s->plan.worker[i].address, sizeof s->plan.worker[i].address, "%s",
                 sl_net_address(s->toy[i].net));
    }
    s->opts = (sl_worker_opts){.coordinator = sl_net_address(s->coordinator.net),
                               .transport = "loop",
                               .hub = s->hub,
                               .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1},
                               .wanted = real,
                               .kv_disk = kv_disk,
                               .rejoin_s = rejoin_s};
    assert_int_equal(pthread_create(&s->thread, NULL, stage_main, s), 0);
    await_flag(s, &s->coordinator.open, "the worker's call");
    snprintf(s->plan.worker[real].address, sizeof s->plan.worker[real].address, "%s",
             s->coordinator.seen.address);
}

static inline void stage_make_rejoining(stage *s, uint32_t attention, uint32_t experts,
                                        uint32_t real, uint32_t rejoin_s) {
    stage_make_as(s, attention, experts, real, rejoin_s, NULL);
}

static inline void stage_make(stage *s, uint32_t attention, uint32_t experts, uint32_t real) {
    stage_make_rejoining(s, attention, experts, real, 0);
}

static inline void send_plan(stage *s) {
    char *plan = sl_plan_print(&s->plan), text[8192];
    int n = snprintf(text, sizeof text,
                     "{\"you\":%u,\"model\":\"%s\",\"trace_events\":0,\"joins\":%s,\"plan\":%s}",
                     s->real, FIXTURE, s->joins ? "true" : "false", plan);
    assert_true(n > 0 && (size_t)n < sizeof text);
    sl_free(plan);
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_PLAN},
        bytes_of(&s->coordinator, text, (size_t)n));
}

static inline void dial(stage *s, actor *a) {
    sl_err err = {0};
    a->down = a->open = false;
    if (sl_net_connect(a->net, s->plan.worker[s->real].address, NULL, &a->conn, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static inline void stage_end(stage *s, sl_status want) {
    if (s->coordinator.conn)
        sl_net_send(s->coordinator.net, s->coordinator.conn,
                    (sl_wire_header){.kind = SL_MSG_SHUTDOWN, .epoch = 1}, NULL);
    await_flag(s, &s->coordinator.down, "the worker's leave");
    pthread_join(s->thread, NULL);
    if (s->status != want) fail_msg("worker ended with %d: %s", s->status, s->err.msg);
    for (uint32_t i = 0; i < MAX_TOYS; i++)
        if (s->toy[i].net) actor_stop(&s->toy[i]);
    actor_stop(&s->coordinator);
    sl_loop_hub_free(s->hub);
    sl_plan_free(&s->plan);
}

/* A DISPATCH in the making. */
typedef struct batch {
    sl_wire_header h;
    sl_buf *b;
    sl_wire_dispatch v;
} batch;

/* `rows` rows of `each` entries for expert 0, with set {member} when n_set. */
static inline batch make_batch(stage *s, actor *a, uint32_t rows, uint32_t each, uint32_t n_set,
                               uint32_t member) {
    batch d = {
        .h = {.kind = SL_MSG_DISPATCH, .round = 1, .rows = rows, .flags = n_set ? SL_WIRE_SET : 0}};
    const sl_wire_counts n = {rows, n_set, rows * each, 0};
    uint32_t width = s->m.d_model;
    d.b = sl_net_buf_take(a->net, sl_wire_dispatch_bytes(&n, width, 0));
    assert_non_null(d.b);
    memset(d.b->data, 0, d.b->len);
    sl_wire_dispatch_layout(d.b->data, &n, width, 0, &d.v);
    if (n_set) d.v.set[0] = member;
    for (uint32_t r = 0; r < rows; r++) {
        d.v.tag[r] = 100 + r;
        d.v.first[r] = r * each;
        for (uint32_t j = 0; j < each; j++) {
            d.v.position[r * each + j] = j;
            d.v.gate[r * each + j] = 1;
        }
    }
    d.v.first[rows] = rows * each;
    return d;
}

#endif

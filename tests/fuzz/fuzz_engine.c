/* Holders of the secret that lie: a real worker or coordinator, stepped on a virtual clock, among
 * peers that say what the input tells them to, mostly well-formed and out of place. Input: u8 whose
 * engine it is (0 expert worker, 1 attention worker, 2 coordinator) and plan, then steps of
 * u8 what, u8 who, four operands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/coord/coord_int.h"
#include "format/plan_json.h"
#include "engine/worker/worker.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FOLDER SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define SECRET "a secret of the test"
#define TOYS   3u /* the plan's workers, one of which may be the real one */
#define MASTER TOYS

#define ONE(name)  +1
#define N_COUNTERS (0 SL_WORKER_COUNTERS(ONE))

typedef struct actor {
    sl_net *net;
    sl_conn *conn;
    sl_wire_header head; /* of the last message that it may answer */
    sl_buf *body;
} actor;

typedef struct stage {
    sl_loop_hub *hub;
    sl_model_spec m;
    sl_plan plan;
    sl_worker_opts opts;
    sl_worker *worker;
    sl_engine *engine;
    uint32_t real; /* place of the worker under test */
    actor toy[TOYS + 1];
    char address[96]; /* of what is under test */
} stage;

static uint64_t now_us;

static uint64_t read_clock(void *ctx) {
    return (void)ctx, now_us;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *h, sl_err *err) {
    actor *a = ctx;
    (void)h, (void)err;
    a->conn = c;
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    actor *a = ctx;
    (void)c, (void)err;
    if (h->kind != SL_MSG_DISPATCH && h->kind != SL_MSG_SUBMIT) {
        sl_net_buf_give(a->net, payload);
        return SL_OK;
    }
    sl_net_buf_give(a->net, a->body);
    a->head = *h;
    a->body = payload;
    return SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    actor *a = ctx;
    (void)why, (void)text;
    if (a->conn == c) a->conn = NULL;
}

static void actor_start(stage *s, uint32_t i) {
    sl_err err = {0};
    const sl_net_opts o = {.transport = "loop",
                           .hub = s->hub,
                           .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1},
                           .hello = {.worker = i == MASTER ? SL_NO_WORKER : i,
                                     .incarnation = 100 + i,
                                     .is_coordinator = i == MASTER},
                           .clock = {read_clock, NULL},
                           .on = {on_open, on_message, on_down},
                           .ctx = &s->toy[i]};
    sl_status st = sl_net_create(&o, &s->toy[i].net, &err);
    SL_ASSERT(st == SL_OK);
}

static void turn(stage *s) {
    now_us += 200;
    for (uint32_t i = 0; i <= TOYS; i++)
        if (s->toy[i].net) sl_net_progress(s->toy[i].net);
    if (s->engine) sl_engine_step(s->engine);
    sl_status st;
    sl_err err;
    for (int i = 0; s->worker && i < 4; i++) {
        if (sl_worker_stopped(s->worker, &st, &err)) break;
        if (!sl_worker_step(s->worker)) break;
    }
}

static void dial(stage *s, uint32_t i) {
    sl_err err = {0};
    actor *a = &s->toy[i];
    if (!a->net || a->conn || !s->address[0]) return;
    if (sl_net_connect(a->net, s->address, NULL, &a->conn, &err) != SL_OK) a->conn = NULL;
}

static void say(stage *s, uint32_t i, sl_wire_header h, sl_buf *b) {
    actor *a = &s->toy[i];
    h.epoch = h.epoch ? h.epoch : 1;
    if (!a->conn)
        sl_net_buf_give(a->net, b);
    else
        (void)!sl_net_send(a->net, a->conn, h, b);
}

static sl_buf *bytes_of(actor *a, const void *bytes, size_t n) {
    sl_buf *b = n ? sl_net_buf_take(a->net, n) : NULL;
    if (b) memcpy(b->data, bytes, n);
    return b;
}

/* ---- beginning ---- */

static const sl_model_spec *spec(void) {
    static sl_model_spec m;
    sl_err err = {0};
    sl_status st = m.vocab ? SL_OK : sl_model_read_spec(FOLDER, &m, NULL, &err);
    SL_ASSERT(st == SL_OK);
    return &m;
}

/* Places 0 and 1 attention, 2 experts; or place 0 attention, 1 and 2 experts. */
static void make_plan(stage *s, uint8_t mode) {
    sl_err err = {0};
    uint32_t attention = mode & 4 ? 1 : 2;
    s->m = *spec();
    sl_status st = sl_plan_local(&s->m, attention, TOYS - attention, &s->plan, &err);
    SL_ASSERT(st == SL_OK);
    if (mode & 8) sl_plan_set_schedule(&s->plan, mode & 16 ? SL_SCHED_FINDEP : SL_SCHED_PINGPONG);
    if ((mode & 0x1C) == 0x1C) s->plan.chunking = SL_CHUNK_EXPERTS;
    if ((mode & 0x18) == 0x10) sl_plan_set_schedule(&s->plan, SL_SCHED_AEP);
    s->plan.wire = mode >> 6 < SL_WIRE_FORMAT_COUNT ? mode >> 6 : 0;
    s->plan.exact = (mode & 32) != 0;
    s->plan.max_num_batched_tokens = 8;
    s->plan.max_num_seqs = 3;
    s->plan.context = 96;
    s->plan.n_pages = 9;
    s->plan.threads = 1;
}

static void send_plan(stage *s) {
    char text[8192];
    char *plan = sl_plan_print(&s->plan);
    SL_ASSERT(plan != NULL);
    int n =
        snprintf(text, sizeof text, "{\"you\":%u,\"model\":\"%s\",\"trace_events\":16,\"plan\":%s}",
                 s->real, FOLDER, plan);
    SL_ASSERT(n > 0 && (size_t)n < sizeof text);
    sl_free(plan);
    say(s, MASTER, (sl_wire_header){.kind = SL_MSG_PLAN},
        bytes_of(&s->toy[MASTER], text, (size_t)n));
}

static void start_worker(stage *s, uint8_t mode) {
    sl_err err = {0};
    make_plan(s, mode);
    s->real = mode & 3 ? 0 : 2;
    sl_status st = sl_loop_hub_create(0, 0, &s->hub, &err);
    SL_ASSERT(st == SL_OK);
    for (uint32_t i = 0; i <= TOYS; i++) {
        if (i == s->real) continue;
        actor_start(s, i);
        if (i < TOYS)
            snprintf(s->plan.worker[i].address, sizeof s->plan.worker[i].address, "%s",
                     sl_net_address(s->toy[i].net));
    }
    s->opts = (sl_worker_opts){.coordinator = sl_net_address(s->toy[MASTER].net),
                               .transport = "loop",
                               .hub = s->hub,
                               .isa = "ref",
                               .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1},
                               .wanted = s->real,
                               .clock = {read_clock, NULL}};
    st = sl_worker_create(&s->opts, &s->worker, &err);
    SL_ASSERT(st == SL_OK);
    for (int i = 0; i < 6; i++) turn(s);
    SL_ASSERT(s->toy[MASTER].conn);
    snprintf(s->address, sizeof s->address, "%s", sl_conn_hello(s->toy[MASTER].conn)->address);
    snprintf(s->plan.worker[s->real].address, sizeof s->address, "%s", s->address);
    send_plan(s);
    for (int i = 0; i < 3; i++) turn(s);
    for (uint32_t i = 0; i < TOYS; i++) dial(s, i); /* those that the worker has not called */
    for (int i = 0; i < 3; i++) turn(s);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    (void)ctx;
    for (uint32_t i = 0; i < ev->n; i++) SL_ASSERT(ev->tokens[i] < spec()->vocab);
}

static void on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    (void)ctx;
    SL_ASSERT(first + n <= 64 && logits);
}

/* Of two expert workers one is on a GPU, and experts move between them. */
static void start_engine(stage *s, uint8_t mode) {
    static const sl_adapt_opts often = {.window_us = 2000,
                                        .window_rows = 1,
                                        .decay = 0.5,
                                        .uneven = 1.01,
                                        .worth = 1.01,
                                        .rest_us = 4000,
                                        .max_doublings = 2,
                                        .horizon_us = 3600000000u};
    sl_err err = {0};
    make_plan(s, mode);
    s->plan.worker[2].on_gpu = mode & 4;
    const sl_engine_opts o = {.model_folder = FOLDER,
                              .plan = s->plan,
                              .transport = "loop",
                              .spawn = SL_SPAWN_NONE,
                              .adapt = mode & 4 ? &often : NULL,
                              .expert_bytes = 100,
                              .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1}};
    sl_status st = sl_engine_create_stepped(&o, (sl_clock){read_clock, NULL}, &s->engine, &err);
    SL_ASSERT(st == SL_OK);
    s->hub = s->engine->hub;
    snprintf(s->address, sizeof s->address, "%s", sl_net_address(s->engine->net));
    for (uint32_t i = 0; i < TOYS; i++) {
        actor_start(s, i);
        dial(s, i);
    }
    for (int i = 0; i < 6; i++) turn(s);
    for (uint32_t i = 0; i < TOYS; i++)
        say(s, i, (sl_wire_header){.kind = SL_MSG_READY},
            bytes_of(&s->toy[i], s->m.hash, sizeof s->m.hash));
    turn(s);
}

/* ---- what they say ---- */

typedef struct step {
    uint8_t what, who, a, b, c, d;
} step;

static void say_dispatch(stage *s, uint32_t i, const step *t) {
    uint32_t rows = t->a & 3, each = 1 + (t->a >> 2 & 1), n_set = t->a >> 4 & 3;
    uint32_t d = s->m.d_model;
    sl_wire_format f = (sl_wire_format)s->plan.wire;
    sl_wire_dispatch v;
    const sl_wire_counts n = {.rows = rows,
                              .n_set = n_set,
                              .n_entries = rows * each,
                              .n_old = SL_MIN(t->c >> 4 & 3u, rows)};
    sl_buf *b = sl_net_buf_take(s->toy[i].net, sl_wire_dispatch_bytes(&n, d, f));
    if (!b) return;
    memset(b->data, 0, b->len);
    sl_wire_dispatch_layout(b->data, &n, d, f, &v);
    for (uint32_t j = 0; j < n.n_old; j++) v.old[j] = j + (t->c >> 6);
    for (uint32_t j = 0; j < n_set; j++) v.set[j] = j + (t->b >> 6);
    for (uint32_t r = 0; r < rows; r++) {
        const float one = 1;
        v.tag[r] = sl_tag_make(0, 1, r);
        v.first[r] = r * each;
        for (uint32_t j = 0; j < each; j++) {
            v.expert[r * each + j] = (t->d >> 4) + j;
            v.position[r * each + j] = j + (t->d & 1);
            v.gate[r * each + j] = 0.5f;
        }
        if (f == SL_WIRE_FP8 && r < rows - n.n_old)
            memcpy(v.data + r * sl_wire_row_bytes(f, d), &one, sizeof one);
    }
    v.first[rows] = rows * each;
    if (t->d == 0xFF) b->data[t->c % b->len] ^= t->b;
    say(s, i,
        (sl_wire_header){.kind = SL_MSG_DISPATCH,
                         .flags = t->a >> 6 | (n.n_old ? SL_WIRE_OLD : 0) |
                                  (t->c & 0x40 ? SL_WIRE_ENDS : 0),
                         .round = t->b & 7,
                         .layer = t->b >> 3 & 7,
                         .lane = t->c & 3,
                         .chunk = t->c >> 2 & 3,
                         .rows = rows},
        b);
}

/* Answers the last dispatch that this peer got, rightly where no bit of d says otherwise. */
static void say_return(stage *s, uint32_t i, const step *t) {
    actor *a = &s->toy[i];
    sl_wire_dispatch in = {0};
    sl_wire_return v;
    sl_err err;
    sl_wire_format f = (sl_wire_format)s->plan.wire;
    uint32_t n_set = t->a & 3, d = s->m.d_model;
    sl_span span = a->body ? (sl_span){a->body->data, a->body->len} : (sl_span){0};
    if (a->head.kind != SL_MSG_DISPATCH) return;
    if (sl_wire_dispatch_decode(&a->head, span, &s->m, f, &in, &err) != SL_OK) return;
    uint32_t rows = in.rows - ((t->d & 1) && in.rows);
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_return_bytes(rows, n_set, d, f));
    if (!b) return;
    memset(b->data, 0, b->len);
    sl_wire_return_layout(b->data, rows, n_set, d, f, &v);
    for (uint32_t j = 0; j < n_set; j++) v.set[j] = j + (t->b & 1);
    for (uint32_t r = 0; r < rows; r++) {
        const float one = 1;
        v.tag[r] = in.tag[t->d & 2 ? 0 : r];
        for (uint32_t e = in.first[r]; e < in.first[r + 1]; e++)
            v.mask[r] |= 1ull << in.position[e];
        if (t->d & 4) v.mask[r] = t->c;
        if (f == SL_WIRE_FP8) memcpy(v.data + r * sl_wire_row_bytes(f, d), &one, sizeof one);
    }
    sl_wire_header h = a->head;
    h.kind = SL_MSG_RETURN;
    h.rows = rows;
    h.flags = n_set || t->d & 8 ? SL_WIRE_SET : 0;
    if (t->d & 16) h.round += t->c & 1;
    if (t->d & 32) h.layer = t->c & 7;
    if (t->d & 64) h.lane = t->c & 3;
    if (t->d & 128) h.chunk = t->c & 3;
    say(s, i, h, b);
}

static void say_submit(stage *s, const step *t) {
    static const sl_logit_bias zero;
    uint32_t tokens[16], pages[8];
    for (uint32_t j = 0; j < SL_LEN(tokens); j++) tokens[j] = (uint32_t)t->b * (j + 1) % 1100;
    for (uint32_t j = 0; j < SL_LEN(pages); j++) pages[j] = (t->c >> 4) + j;
    const sl_wire_submit in = {.request = t->a & 7,
                               .max_tokens = t->c & 15,
                               .sampling = {.temperature = t->d & 1 ? 1.0f : 0,
                                            .top_p = 1,
                                            .n_bias = t->d >> 5 & 1,
                                            .bias = &zero,
                                            .repetition_penalty = 1},
                               .flags = t->d & 0xF,
                               .report = {t->d & 16 ? 3 : 0, t->d & 64 ? 2 : 0, tokens},
                               .n_prompt = 1 + (t->a >> 3 & 15),
                               .n_tokens = 1 + (t->a >> 3 & 15),
                               .n_pages = 1 + (t->d >> 6),
                               .tokens = tokens,
                               .pages = pages};
    actor *a = &s->toy[MASTER];
    sl_buf *b = a->net ? sl_net_buf_take(a->net, sl_wire_submit_bytes(&in)) : NULL;
    if (!b) return;
    sl_wire_submit_encode(&in, b->data);
    say(s, MASTER, (sl_wire_header){.kind = SL_MSG_SUBMIT}, b);
}

static void say_set(stage *s, uint32_t i, const step *t) {
    uint32_t set[4], n = t->a & 3;
    for (uint32_t j = 0; j < 4; j++) set[j] = (t->b & 3) + j;
    sl_buf *b = sl_net_buf_take(s->toy[i].net, sl_wire_set_bytes(n));
    if (!b) return;
    sl_wire_set_encode(set, n, b->data);
    say(s, i, (sl_wire_header){.kind = SL_MSG_ROUND_OPEN, .round = t->c & 7, .lane = t->c >> 3 & 3},
        b);
}

static void say_tokens(stage *s, uint32_t i, const step *t) {
    uint32_t n_pairs = t->d & 3;
    const sl_wire_token token = {.request = t->a & 7,
                                 .position = t->b & 63,
                                 .token = t->b == 0xFF ? UINT32_MAX : (uint32_t)t->c * 5,
                                 .finish = t->d >> 2 & 3,
                                 .behind = t->d >> 4 & 3,
                                 .n_logprobs = n_pairs};
    const sl_logprob pairs[3] = {{token.token, -1}, {t->a, -2}, {UINT32_MAX, -3}};
    sl_buf *b = sl_net_buf_take(s->toy[i].net, sl_wire_tokens_bytes(1, n_pairs));
    if (!b) return;
    sl_wire_tokens_encode(&token, 1, pairs, n_pairs, b->data);
    say(s, i, (sl_wire_header){.kind = SL_MSG_TOKENS, .rows = 1}, b);
}

static void say_logits(stage *s, uint32_t i, const step *t) {
    uint32_t n = t->b & 3;
    sl_buf *b = sl_net_buf_take(s->toy[i].net, sl_wire_logits_bytes(n, s->m.vocab));
    if (!b) return;
    memset(b->data, 0, b->len);
    sl_wire_logits_layout(b->data, t->a & 7, (uint64_t)(int64_t)(int8_t)t->c);
    say(s, i, (sl_wire_header){.kind = SL_MSG_LOGITS, .rows = n}, b);
}

static void say_pair(stage *s, uint32_t i, const step *t) {
    static const uint16_t kinds[] = {SL_MSG_CANCEL, SL_MSG_ACK, SL_MSG_PAGES};
    const sl_wire_pair pair = {t->a & 7, t->b};
    say(s, i, (sl_wire_header){.kind = kinds[t->c % 3], .rows = 1},
        bytes_of(&s->toy[i], &pair, sizeof pair));
}

static void say_anything(stage *s, uint32_t i, const step *t) {
    const uint8_t bytes[16] = {t->b, 0, 0, 0, t->c, 0, 0, 0, t->d};
    say(s, i,
        (sl_wire_header){.kind = t->a & 63,
                         .flags = t->a >> 6,
                         .round = t->b & 7,
                         .layer = t->c & 7,
                         .lane = t->d & 3,
                         .rows = t->d >> 4},
        bytes_of(&s->toy[i], bytes, t->d & 15));
}

/* What it counted: one row in this or that expert, a time, the room of its device. */
static void say_stats(stage *s, uint32_t i, const step *t) {
    static const uint64_t rooms[] = {UINT64_MAX, 0, 1000, 1ull << 40};
    sl_err err = {0};
    sl_counts n;
    sl_worker_stats is = {.wall_us = now_us,
                          .expert_us = (uint64_t)t->c << (t->d & 63),
                          .device_free = rooms[t->d >> 6],
                          .machine = t->b & 1,
                          .memory_free = UINT64_MAX};
    if (sl_counts_create(&s->m, &n, &err) != SL_OK) return;
    sl_expert_stats *of = &n.expert[t->a % (s->m.n_moe * s->m.n_experts)];
    of->rows = (uint64_t)t->b << (t->c & 63);
    of->calls = SL_MIN(of->rows, (uint64_t)t->b);
    sl_buf *b = sl_net_buf_take(s->toy[i].net, 8 * N_COUNTERS + sl_counts_bytes(&n));
    if (b) {
        sl_wr w = sl_wr_of(b->data, b->len);
#define SAY_COUNTER(name) sl_wr_u64(&w, is.name);
        SL_WORKER_COUNTERS(SAY_COUNTER)
#undef SAY_COUNTER
        sl_counts_encode(&n, &w);
        say(s, i, (sl_wire_header){.kind = SL_MSG_STATS}, b);
    }
    sl_counts_free(&n);
}

static void submit(stage *s, const step *t) {
    static const uint32_t prompt[16] = {3, 4, 5, 6, 7, 8, 9};
    sl_err err = {0};
    uint64_t id = 0;
    if (!s->engine) return;
    if (t->d & 0x80) {
        sl_engine_cancel(s->engine, t->a & 7);
        return;
    }
    const sl_request_params p = {
        .prompt = prompt,
        .n_prompt = 1 + (t->a & 15),
        .max_tokens = 1 + (t->b & 31),
        .sampling = {.top_p = 1},
        .logprobs = t->d & 1,
        .prompt_logprobs = (t->d & 3) == 3,
        .report = {t->d & 1 ? t->c & 1 : 0, (t->d & 9) == 9 ? 3 : 0, prompt},
        .on_event = on_event,
        .on_logits = t->d & 4 ? on_logits : NULL};
    (void)!sl_engine_submit(s->engine, &p, &id, &err);
}

static void act(stage *s, const step *t) {
    uint32_t i = t->who % (TOYS + 1);
    const sl_wire_header join = {.kind = SL_MSG_JOIN, .lane = t->a & 3};
    actor *a = &s->toy[i];
    if (!a->net) return;
    switch (t->what % 12) {
    case 0:
        say_dispatch(s, i, t);
        break;
    case 1:
        say(s, i, join, NULL);
        break;
    case 2:
        say_submit(s, t);
        break;
    case 3:
        say_return(s, i, t);
        break;
    case 4:
        say_set(s, i, t);
        break;
    case 5:
        say_pair(s, i, t);
        break;
    case 6:
        say_tokens(s, i, t);
        break;
    case 7:
        say_logits(s, i, t);
        break;
    case 8:
        submit(s, t);
        break;
    case 9:
        if (a->conn) sl_net_close(a->net, a->conn, t->a & 1 ? SL_OK : SL_ERR_PROTOCOL, "bye");
        break;
    case 10:
        dial(s, i);
        break;
    default:
        if (t->what % 24 == 11)
            say_anything(s, i, t);
        else
            say_stats(s, i, t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stage s = {0};
    if (size < 1) return 0;
    now_us = 1000;
    sl_log_set_level(SL_LOG_ERROR);
    sl_cur c = sl_cur_of((sl_span){data, size});
    uint8_t mode = sl_cur_u8(&c);
    bool coordinator = (mode & 3) == 2;
    if (coordinator)
        start_engine(&s, mode);
    else
        start_worker(&s, mode);
    while (sl_cur_left(&c) >= sizeof(step)) {
        step t;
        memcpy(&t, sl_cur_take(&c, sizeof t), sizeof t);
        act(&s, &t);
        if (t.what < 0x80) turn(&s); /* else what comes next arrives with it */
        if (t.what < 0x40) turn(&s);
    }
    for (int i = 0; i < 3; i++) turn(&s);
    sl_worker_free(s.worker, true);
    for (uint32_t i = 0; i <= TOYS; i++) {
        if (!s.toy[i].net) continue;
        sl_net_buf_give(s.toy[i].net, s.toy[i].body);
        sl_net_abandon(s.toy[i].net);
    }
    sl_engine_free(s.engine);
    if (!coordinator) sl_loop_hub_free(s.hub);
    sl_plan_free(&s.plan);
    return 0;
}

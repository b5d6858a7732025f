/* The schedulers take the same decisions again: runs of real threads are recorded, and what each
 * worker was told (links of the trace) is fed to a fresh sl_turns, sl_rounds or sl_queues,
 * whose answers must be what the worker then did (its spans). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "model/model.h"
#include "sanitized.h"
#include "sched/queues.h"
#include "sched/rounds.h"
#include "sched/turns.h"
#include "trace/trace_file.h"
#include "trace/trace_read.h"

#include <pthread.h>

#define FIXTURE SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define TOP_1   SL_SOURCE_DIR "/bench/lab/models/amoe-top1"
#define COSTS   "emulated:" SL_SOURCE_DIR "/bench/lab/amoe-low.json"

/* ---- a recorded run ---- */

typedef struct span {
    char name[16], category[12];
    uint32_t worker, src; /* src: of a message to `worker`; NONE: not a message */
    uint32_t layer, lane, chunk, round, rows;
    double begin_us, end_us;
    double moment; /* when a worker knew or decided: what it did then stands in this order */
    size_t at;     /* in the file */
} span;

#define NONE UINT32_MAX

/* A sample is a part of the policies: what decides is the same, and threads are what slow builds
 * look at. */
static int every(void) {
    return (int)take_one_in(SL_SLOW_BUILD ? SL_POLICY_COUNT : 3);
}

typedef struct record {
    span *span;
    size_t n, cap;
    uint32_t link[4096][2]; /* of each row of links: from, to */
} record;

static sl_status keep(void *ctx, const sl_trace_item *it, sl_err *err) {
    record *r = ctx;
    (void)err;
    bool link = it->pid == SL_TRACE_LINKS_PID;
    if (it->is_name) {
        if (link && strcmp(it->name, "thread_name") == 0)
            assert_int_equal(
                sscanf(it->label, "%u -> %u", &r->link[it->tid][0], &r->link[it->tid][1]), 2);
        return SL_OK;
    }
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 4096;
        r->span = realloc(r->span, r->cap * sizeof *r->span);
        assert_non_null(r->span);
    }
    span *s = &r->span[r->n];
    *s = (span){.worker = link ? r->link[it->tid][1] : it->pid,
                .src = link ? r->link[it->tid][0] : NONE,
                .layer = it->layer,
                .lane = it->lane,
                .chunk = it->chunk,
                .round = it->round,
                .rows = (uint32_t)it->rows,
                .begin_us = it->begin_us,
                .end_us = it->end_us,
                .at = r->n++};
    snprintf(s->name, sizeof s->name, "%s", it->name);
    snprintf(s->category, sizeof s->category, "%s", it->category);
    return SL_OK;
}

static bool is(const span *s, const char *name) {
    return strcmp(s->name, name) == 0;
}

/* It lies across the tasks of its worker, or is a message. */
static bool is_no_task(const span *s) {
    return s->src != NONE || strcmp(s->category, "lane") == 0;
}

static int by_moment(const void *pa, const void *pb) {
    const span *a = pa, *b = pb;
    return a->moment != b->moment ? (a->moment > b->moment) - (a->moment < b->moment)
                                  : (a->at > b->at) - (a->at < b->at);
}

/* Where the last task of the step span i began, which may have been interrupted by sends: it was
 * chosen then, and what arrived until the step was over came later. */
static double last_task_us(const record *r, size_t i) {
    const span *step = &r->span[i];
    double began = step->end_us;
    while (i-- > 0) {
        const span *s = &r->span[i];
        if (s->worker != step->worker || is_no_task(s)) continue;
        bool sample = is(s, "sample") && s->lane == step->lane;
        if (!(sample || is(s, "send")) || began - s->end_us > 1e-3) break;
        began = s->begin_us;
        step = sample ? s : step;
    }
    return is(step, "sample") ? step->begin_us + 1e-4 : step->end_us;
}

/* Messages when they arrived, tasks when they began, steps right after their last task did. */
static void put_in_order(record *r) {
    for (size_t i = 0; i < r->n; i++)
        r->span[i].moment = is_no_task(&r->span[i]) ? r->span[i].end_us : r->span[i].begin_us;
    qsort(r->span, r->n, sizeof *r->span, by_moment);
    for (size_t i = 0; i < r->n; i++)
        if (is_no_task(&r->span[i]) && is(&r->span[i], "step"))
            r->span[i].moment = last_task_us(r, i);
    qsort(r->span, r->n, sizeof *r->span, by_moment);
}

typedef struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t open;
} outcome;

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    if (ev->finish == SL_FINISH_NONE) return;
    assert_int_not_equal(ev->finish, SL_FINISH_ERROR);
    pthread_mutex_lock(&o->lock);
    o->open--;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

static void submit_all(sl_engine *e, uint32_t n, outcome *o) {
    sl_err err = {0};
    uint32_t vocab = sl_engine_spec(e)->vocab;
    o->open = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t prompt[24];
        uint64_t id;
        for (uint32_t j = 0; j < 24; j++) prompt[j] = (7 + 131 * i + 17 * j) % vocab;
        const sl_request_params p = {.prompt = prompt,
                                     .n_prompt = 1 + (i * 5) % 24,
                                     .max_tokens = 3 + (i * 7) % 11,
                                     .sampling = {.top_p = 1},
                                     .ignore_eos = true,
                                     .on_event = on_event,
                                     .ctx = o};
        if (sl_engine_submit(e, &p, &id, &err) != SL_OK) fail_msg("%s", err.msg);
    }
    pthread_mutex_lock(&o->lock);
    while (o->open) pthread_cond_wait(&o->changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
}

/* Runs the plan (freed) on threads and returns what was recorded. */
static record run(const char *model, sl_plan *plan, uint32_t requests) {
    static record r;
    char path[] = "/tmp/sluice-replay-XXXXXX";
    sl_err err = {0};
    sl_engine *e = NULL;
    outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    sl_engine_opts opts = {.model_folder = model,
                           .plan = *plan,
                           .transport = "loop",
                           .host = "127.0.0.1",
                           .trace_path = path,
                           .trace_events = 1u << 18};
    if (sl_engine_create(&opts, &e, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_free(plan);
    submit_all(e, requests, &o);
    sl_engine_free(e);
    r = (record){0};
    const sl_trace_visitor v = {.on_item = keep, .ctx = &r};
    for (int pass = 0; pass < 2; pass++) { /* names of links stand before their spans: once is
                                              enough, but nothing promises it */
        r.n = 0;
        if (sl_trace_read(path, &v, &err) != SL_OK) fail_msg("%s", err.msg);
    }
    unlink(path);
    put_in_order(&r);
    return r;
}

/* ---- the attention side: sl_turns ---- */

typedef struct replay {
    const record *r;
    sl_turns turns;
    const sl_model_spec *m;
    uint32_t worker, checked;
    uint32_t rows[SL_PLAN_MAX_LANES]; /* of the lane's step */
} replay;

static void expect(replay *p, sl_turn_kind kind, const span *s) {
    sl_turn t = {0};
    bool any = sl_turns_next(&p->turns, &t);
    bool whole = kind == SL_TURN_BEGIN || kind == SL_TURN_HEAD;
    if (!any || t.kind != kind || t.lane != s->lane || (!whole && t.layer != s->layer))
        fail_msg("worker %u at %.3f us ran %s of lane %u, block %u; replayed: %s%d of lane %u, "
                 "block %u",
                 p->worker, s->begin_us, s->name, s->lane, s->layer, any ? "turn " : "none, ",
                 (int)t.kind, t.lane, t.layer);
    if (kind == SL_TURN_HEAD && !is(s, "step"))
        sl_turns_pause(&p->turns, &t);
    else
        sl_turns_done(&p->turns, &t);
    p->checked++;
}

/* Dense blocks of a step without rows leave no span. */
static void skip_empty(replay *p) {
    sl_turn t;
    while (sl_turns_next(&p->turns, &t) && t.kind == SL_TURN_BLOCK && p->rows[t.lane] == 0 &&
           p->m->ffn[t.layer] == SL_FFN_DENSE)
        sl_turns_done(&p->turns, &t);
}

/* After a step the lane's next round is open at once, or a ROUND_OPEN opens it later. */
static bool goes_on(const replay *p, size_t i) {
    const span *step = &p->r->span[i];
    for (i++; i < p->r->n; i++) {
        const span *s = &p->r->span[i];
        if (s->worker != p->worker || s->lane != step->lane) continue;
        if (s->src != NONE && is(s, "ROUND_OPEN")) return false;
        if (s->src == NONE && is(s, "embed")) return true;
    }
    return false;
}

/* Whether the step is over with this span: both are of one task. */
static bool ends_step(const replay *p, size_t i) {
    const span *sample = &p->r->span[i];
    for (i++; i < p->r->n; i++) {
        const span *s = &p->r->span[i];
        if (s->worker != p->worker || s->lane != sample->lane || s->src != NONE) continue;
        return is(s, "step");
    }
    return false;
}

/* Whether the span is the rest of one that a send interrupted: they touch. */
static bool resumes(const replay *p, size_t i) {
    const span *rest = &p->r->span[i];
    while (i-- > 0) {
        const span *s = &p->r->span[i];
        if (s->worker != p->worker || is_no_task(s)) continue;
        return is(s, "send") && rest->begin_us - s->end_us < 1e-3;
    }
    return false;
}

static void message(replay *p, const span *s) {
    if (is(s, "ROUND_OPEN")) sl_turns_open(&p->turns, s->lane);
    if (is(s, "RETURN")) {
        assert_true(sl_turns_awaits(&p->turns, s->lane));
        sl_turns_reply(&p->turns, s->lane);
    }
}

/* Chunks that a layer was not cut into are answered at once: only those that returned were away. */
static void leave_out(replay *p, size_t i) {
    const span *block = &p->r->span[i];
    uint32_t away = 0;
    if (p->turns.lane[block->lane].phase != SL_TURN_WAITS) return;
    for (i++; i < p->r->n; i++) {
        const span *s = &p->r->span[i];
        if (s->worker != p->worker || s->lane != block->lane) continue;
        if (s->src == NONE && is(s, "merge")) break;
        away += s->src != NONE && is(s, "RETURN");
    }
    for (; away < p->turns.shape.n_replies; away++) sl_turns_reply(&p->turns, block->lane);
}

static void task(replay *p, const span *s, size_t i) {
    const sl_turn_lane *lane = &p->turns.lane[SL_MIN(s->lane, SL_PLAN_MAX_LANES - 1)];
    bool ready = lane->phase == SL_TURN_READY;
    if (is(s, "embed")) {
        p->rows[s->lane] = s->rows;
        expect(p, SL_TURN_BEGIN, s);
    } else if (is(s, "attention")) {
        expect(p, SL_TURN_BLOCK, s);
        leave_out(p, i);
    } else if (is(s, "dispatch") && p->rows[s->lane] == 0 && ready && lane->next == SL_TURN_BLOCK) {
        skip_empty(p);
        expect(p, SL_TURN_BLOCK, s);
        leave_out(p, i);
    } else if (is(s, "shared")) {
        expect(p, SL_TURN_SHARED, s);
    } else if (is(s, "merge")) {
        expect(p, SL_TURN_MERGE, s);
    } else if (is(s, "head") || (is(s, "sample") && !resumes(p, i) && !ends_step(p, i))) {
        expect(p, SL_TURN_HEAD, s);
    } else if (ready && lane->next == SL_TURN_HEAD && is(s, "step")) {
        expect(p, SL_TURN_HEAD, s);
        if (goes_on(p, i)) sl_turns_open(&p->turns, s->lane);
    }
}

static uint32_t replay_turns(const record *r, const sl_model_spec *m, const sl_plan *plan,
                             uint32_t worker, uint32_t replies) {
    uint8_t moe[SL_MAX_LAYERS];
    sl_err err = {0};
    replay p = {.r = r, .m = m, .worker = worker};
    for (uint32_t l = 0; l < m->n_layers; l++) moe[l] = m->ffn[l] != SL_FFN_DENSE;
    const sl_turns_shape shape = {.n_lanes = plan->lanes,
                                  .n_layers = m->n_layers,
                                  .moe = moe,
                                  .n_replies = replies,
                                  .order = plan->order};
    assert_int_equal(sl_turns_init(&p.turns, &shape, &err), SL_OK);
    for (size_t i = 0; i < r->n; i++) {
        const span *s = &r->span[i];
        if (s->worker != worker) continue;
        if (s->src != NONE)
            message(&p, s);
        else
            task(&p, s, i);
    }
    return p.checked;
}

/* ---- the expert side: sl_rounds ---- */

/* Who sent rows, or the word that there are none, in a round: its members. */
static void members_of(const record *r, const span *first, sl_idset *set) {
    sl_err err;
    sl_idset_clear(set);
    for (size_t i = 0; i < r->n; i++) {
        const span *s = &r->span[i];
        if (s->src != NONE && s->worker == first->worker && is(s, "DISPATCH") &&
            s->lane == first->lane && s->round == first->round)
            assert_int_equal(sl_idset_add(set, s->src, &err), SL_OK);
    }
}

/* Votes are not recorded: the sequencer is replayed as one of the others, which hears of a round
 * when its first message comes. */
typedef struct expert_side {
    const record *r;
    const sl_model_spec *m;
    sl_rounds *rounds;
    const span *at[1024]; /* by place */
    sl_idset set;         /* of the round that is looked at */
    uint32_t opened[SL_PLAN_MAX_LANES], checked;
    const span *begun; /* the last task */
} expert_side;

/* Flags are not recorded, either: no further chunk of the sender's layer came. */
static bool is_last_chunk(const record *r, const span *last) {
    for (size_t i = 0; i < r->n; i++) {
        const span *s = &r->span[i];
        if (s->src == last->src && s->worker == last->worker && is(s, "DISPATCH") &&
            s->lane == last->lane && s->round == last->round && s->layer == last->layer &&
            s->chunk > last->chunk)
            return false;
    }
    return true;
}

static sl_round_msg message_of(expert_side *x, const span *s) {
    uint32_t layer = x->m->moe_index[s->layer];
    members_of(x->r, s, &x->set);
    return (sl_round_msg){.member = s->src,
                          .lane = s->lane,
                          .layer = layer,
                          .chunk = s->chunk,
                          .round = s->round,
                          .rows = s->rows,
                          .ends = layer + 1 < x->m->n_moe && is_last_chunk(x->r, s),
                          .with_set = layer == 0 && s->chunk == 0,
                          .set = x->set};
}

static void recall(void *ctx, uint32_t place, sl_round_msg *out) {
    expert_side *x = ctx;
    *out = message_of(x, x->at[place]);
}

static void drop(void *ctx, uint32_t place, bool answered) {
    expert_side *x = ctx;
    assert_true(answered);
    x->at[place] = NULL;
}

static void refuse(void *ctx, uint32_t member, const char *why) {
    (void)ctx;
    fail_msg("worker %u is refused: %s", member, why);
}

static void open_round(expert_side *x, const span *s) {
    sl_err err = {0};
    members_of(x->r, s, &x->set);
    x->opened[s->lane] = s->round;
    if (sl_rounds_on_set(x->rounds, s->lane, s->round, &x->set, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static void arrive(expert_side *x, const span *s) {
    uint32_t place;
    sl_err err = {0};
    const sl_round_msg m = message_of(x, s);
    if (sl_rounds_on_dispatch(x->rounds, &m, &place, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_true(place < SL_LEN(x->at));
    x->at[place] = s;
}

/* A word that is sent while a task begins cuts its span in two. */
static bool is_the_same_task(const expert_side *x, const span *s) {
    const span *b = x->begun;
    return b && b->lane == s->lane && b->round == s->round && b->layer == s->layer &&
           b->chunk == s->chunk;
}

static void run_next(expert_side *x, const span *s) {
    sl_round_task t;
    if (is_the_same_task(x, s)) return;
    x->begun = s;
    assert_true(sl_rounds_begin(x->rounds, &t));
    assert_int_equal(t.lane, s->lane);
    assert_int_equal(x->m->moe_layer[t.layer], s->layer);
    assert_int_equal(t.chunk, s->chunk);
    sl_rounds_end(x->rounds);
    x->checked++;
}

static uint32_t replay_rounds(const record *r, const sl_model_spec *m, const sl_plan *plan,
                              uint32_t worker, bool sequencer) {
    static expert_side x;
    uint32_t members[64], experts[] = {0, worker};
    sl_err err = {0};
    x = (expert_side){.r = r, .m = m};
    for (uint32_t i = 0; i < SL_LEN(members); i++) members[i] = i;
    const sl_idset all = {.ids = members, .n = worker}, two = {.ids = experts, .n = 2};
    const sl_rounds_shape shape = {.n_lanes = plan->lanes,
                                   .n_moe = m->n_moe,
                                   .chunks = plan->chunks,
                                   .self = worker,
                                   .members = &all,
                                   .experts = &two,
                                   .ops = {.refuse = refuse, .recall = recall, .drop = drop},
                                   .ctx = &x};
    assert_int_equal(sl_rounds_create(&shape, &x.rounds, &err), SL_OK);
    for (size_t i = 0; i < r->n; i++) {
        const span *s = &r->span[i];
        if (s->worker != worker) continue;
        if (s->src != NONE && is(s, "ROUND_SET")) open_round(&x, s);
        if (s->src != NONE && is(s, "DISPATCH")) {
            if (sequencer && s->round > x.opened[s->lane]) open_round(&x, s);
            arrive(&x, s);
        }
        if (s->src == NONE && is(s, "gather")) run_next(&x, s);
    }
    sl_rounds_free(x.rounds);
    sl_idset_free(&x.set);
    return x.checked;
}

static void read_spec(const char *model, sl_model_spec *m) {
    sl_err err = {0};
    if (sl_model_read_spec(model, m, NULL, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void rounds_and_turns(void **state) {
    (void)state;
    static const struct {
        sl_schedule schedule;
        uint32_t lanes, chunks;
        sl_chunking chunking;
        sl_order order;
        uint32_t attention, experts;
    } rows[] = {{SL_SCHED_DEP, 1, 1, SL_CHUNK_TOKENS, SL_ORDER_ASAS, 1, 1},
                {SL_SCHED_DEP, 1, 1, SL_CHUNK_TOKENS, SL_ORDER_ASAS, 3, 2},
                {SL_SCHED_PINGPONG, 3, 1, SL_CHUNK_TOKENS, SL_ORDER_ASAS, 2, 2},
                {SL_SCHED_FINDEP, 2, 3, SL_CHUNK_TOKENS, SL_ORDER_ASAS, 1, 2},
                {SL_SCHED_FINDEP, 2, 2, SL_CHUNK_EXPERTS, SL_ORDER_AASS, 2, 1}};
    sl_model_spec m;
    read_spec(FIXTURE, &m);
    for (size_t i = 0; i < SL_LEN(rows); i += take_one_in(SL_SLOW_BUILD ? SL_LEN(rows) : 2)) {
        sl_plan plan = {0};
        sl_err err = {0};
        uint32_t turns = 0, tasks = 0, n = rows[i].attention + rows[i].experts;
        assert_int_equal(sl_plan_local(&m, rows[i].attention, rows[i].experts, &plan, &err), SL_OK);
        plan.schedule = rows[i].schedule;
        plan.lanes = rows[i].lanes;
        plan.chunks = rows[i].chunks;
        plan.chunking = rows[i].chunking;
        plan.order = rows[i].order;
        plan.threads = 1;
        plan.max_num_batched_tokens = 48;
        const sl_plan shape = plan;
        record r = run(FIXTURE, &plan, 12);
        for (uint32_t w = 0; w < rows[i].attention; w++)
            turns += replay_turns(&r, &m, &shape, w, rows[i].experts * shape.chunks);
        for (uint32_t w = rows[i].attention; w < n; w++)
            tasks += replay_rounds(&r, &m, &shape, w, w == rows[i].attention);
        printf("%u+%u: %u turns and %u expert tasks as recorded\n", rows[i].attention,
               rows[i].experts, turns, tasks);
        assert_true(turns > 100 && tasks > 30);
        free(r.span);
    }
}

/* ---- no barrier: sl_queues ---- */

/* An expert worker with one expert a block: its queues are its blocks'. Returns how often several
 * had rows. */
static uint32_t replay_queues(const record *r, const sl_model_spec *m, const sl_plan *plan,
                              uint32_t worker) {
    uint32_t rows[SL_MAX_LAYERS] = {0}, checked = 0, choices = 0;
    sl_queues *q;
    sl_err err = {0};
    assert_int_equal(sl_queues_create(plan, m->n_moe, worker, (uint32_t)r->n, &q, &err), SL_OK);
    for (size_t i = 0; i < r->n; i++) {
        const span *s = &r->span[i];
        if (s->worker != worker) continue;
        uint32_t layer = m->moe_index[s->layer];
        if (s->src != NONE && is(s, "DISPATCH")) {
            sl_queues_push(q, &(sl_queue_entry){.layer = layer,
                                                .expert = worker - 2,
                                                .source = s->src,
                                                .rows = s->rows,
                                                .wave = s->round});
            rows[layer] += s->rows;
        } else if (s->src == NONE && is(s, "expert")) {
            sl_queue_batch b;
            uint32_t full = 0;
            for (uint32_t l = 0; l < m->n_moe; l++) full += rows[l] > 0;
            assert_true(sl_queues_take(q, &b));
            assert_int_equal(b.layer, layer);
            assert_int_equal(b.n_rows, s->rows);
            sl_queues_done(q);
            rows[layer] = 0;
            checked++;
            choices += full > 1;
        }
    }
    sl_queues_free(q);
    assert_true(worker != plan->n_workers - 1 || checked > 0);
    return choices;
}

static void policies(void **state) {
    (void)state;
    sl_model_spec m;
    read_spec(TOP_1, &m);
    for (int policy = 0; policy < SL_POLICY_COUNT; policy += every()) {
        sl_plan plan = {0};
        sl_err err = {0};
        uint32_t choices = 0;
        assert_int_equal(sl_plan_local(&m, 2, m.n_experts, &plan, &err), SL_OK);
        assert_int_equal(sl_device_parse(COSTS, &plan.device, &err), SL_OK);
        plan.schedule = SL_SCHED_AEP;
        plan.policy = (sl_policy)policy;
        plan.lookahead = 2;
        plan.delta = 1;
        sl_plan shape;
        assert_int_equal(sl_plan_copy(&plan, &shape, &err), SL_OK);
        record r = run(TOP_1, &plan, 48);
        for (uint32_t w = 2; w < shape.n_workers; w++) choices += replay_queues(&r, &m, &shape, w);
        printf("policy %d: %u choices among queues as recorded\n", policy, choices);
        assert_true(choices > 20);
        sl_plan_free(&shape);
        free(r.span);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_and_turns),
        cmocka_unit_test(policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

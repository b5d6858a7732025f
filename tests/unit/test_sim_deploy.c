/* Whole deployments in virtual time: laws of the schedules, AMoE's table, conservation on random
 * deployments of every schedule (the run itself checks rows, pages and servers), deaths, size. */
#include "base/mem.h"
#include "base/rng.h"
#include "format/plan_json.h"
#include "model/skew.h"
#include "sanitized.h"
#include "sim_scene.h"
#include "sched/draft.h"
#include "sim/deployment.h"
#include "spec/limits.h"
#include "trace/trace_file.h"
#include "trace/trace_stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static bool full; /* every row, size and draw, where make test takes a share of them */

/* ---- laws ---- */

/* Nothing arrives before it was sent, where a message travels in no time and rounding could say so.
 */
static void messages_take_no_negative_time(void **state) {
    (void)state;
    static scene x;
    model_of(&x.m, 4, 0, 8, 2);
    x.c = (sl_costs){
        .stage = {[SL_COST_ATTENTION] = {.fixed_us = 3.1}, [SL_COST_EXPERT] = {.fixed_us = 0.7}},
        .link = {.byte_us = 1.7e-4}};
    scene_init(&x, 2, 3, SL_SCHED_AEP);
    lengths(&x, 1, 9, 20, 90);
    closed(&x, 64);
    x.load.n_requests = 400;
    sl_sim_result r = run(&x);
    assert_true(r.finished == 400);
    sl_sim_result_free(&r);
    scene_free(&x);
}

static void schedules_take_their_laws(void **state) {
    (void)state;
    static const struct {
        sl_schedule schedule;
        uint32_t lanes;
        double beside, work_us, layer_us;
    } rows[] = {
        {SL_SCHED_DEP, 1, 0, 0, 10000 + 8000 + 2 * 1000},
        {SL_SCHED_PINGPONG, 2, 0, 0, 20000},
        {SL_SCHED_PINGPONG, 3, 0, 0, 30000},
        /* alpha has the work; a neighbour that waits disturbs nobody */
        {SL_SCHED_DEP, 1, 1.5, 300, 20000},
        /* attention computes all the time, at times beside experts, those always beside it */
        {SL_SCHED_PINGPONG, 2, 1.25, 0, 2 * 10000 + (1 - 1 / 1.25) * 2 * 1.25 * 8000},
        /* a message out and one in for each task of attention */
        {SL_SCHED_PINGPONG, 2, 0, 300, 2 * (10000 + 2 * 300)},
    };
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        static scene x;
        model_of(&x.m, 8, 0, 8, 8);
        x.c = (sl_costs){
            .stage =
                {[SL_COST_ATTENTION] = {.fixed_us = 10000}, [SL_COST_EXPERT] = {.fixed_us = 1000}},
            .link = {.alpha_us = 1000, .work_us = rows[i].work_us}};
        for (int k = 0; k < SL_COST_COUNT; k++) x.c.beside[k] = rows[i].beside;
        scene_init(&x, 1, 1, rows[i].schedule);
        x.p.lanes = rows[i].lanes;
        lengths(&x, 1, 1, 200, 300);
        closed(&x, 48);
        x.s.warmup_us = 2e7;
        x.s.measure_us = 4e7;
        sl_sim_result r = run(&x);
        double layer = 48 * 1e6 / r.tokens_per_s / 8; /* a step of all lanes is 48 tokens */
        printf("schedule %d, %u lanes: a layer takes %.1f us, law %.1f\n", rows[i].schedule,
               rows[i].lanes, layer, rows[i].layer_us);
        assert_true(fabs(layer / rows[i].layer_us - 1) < 0.01);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* A rank has its blocks for one lane at a time: with as many lanes as ranks a step takes as long as
 * all blocks and the way through the ranks, or as the slowest rank needs for all lanes. */
static void pipelines_take_their_law(void **state) {
    (void)state;
    static const struct {
        uint32_t ranks, lanes;
        double alpha_us;
    } rows[] = {{1, 1, 0}, {2, 1, 0},   {2, 2, 0},   {4, 4, 0},
                {4, 2, 0}, {2, 2, 500}, {4, 4, 500}, {4, 1, 500}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        static scene x;
        const uint32_t ranks = rows[i].ranks, lanes = rows[i].lanes;
        model_of(&x.m, 8, 0, 8, 2);
        x.m.d_ff_expert =
            256; /* so that a block is more than a vocabulary, and ranks have as many */
        x.c = (sl_costs){
            .stage = {[SL_COST_ATTENTION] = {.row_us = 100}, [SL_COST_EXPERT] = {.row_us = 50}}};
        scene_init(&x, 1, 0, lanes > 1 ? SL_SCHED_PINGPONG : SL_SCHED_EP);
        x.p.lanes = lanes;
        x.p.pp = ranks;
        x.s.rank_link = (sl_link_cost){.alpha_us = rows[i].alpha_us};
        lengths(&x, 1, 1, 200, 300);
        closed(&x, 48);
        x.s.warmup_us = 2e6;
        x.s.measure_us = 4e6;
        sl_sim_result r = run(&x);
        const double all_us = 8 * 48.0 / lanes * 200; /* of a lane's rows in all blocks */
        const uint32_t hops =
            ranks > 1 ? ranks : 0; /* from each to the next, the last one's back */
        const double through_us = all_us + hops * rows[i].alpha_us;
        const double law_us = fmax(through_us, lanes * all_us / ranks);
        const double step_us = 48 * 1e6 / r.tokens_per_s;
        printf("%u ranks, %u lanes, hops of %g us: a step takes %.1f us, law %.1f\n", ranks, lanes,
               rows[i].alpha_us, step_us, law_us);
        assert_true(fabs(step_us / law_us - 1) < 0.02);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* The first message of 64 KB and more that was sent or came. */
static sl_trace_event first_long(const sl_trace *t, sl_trace_kind kind) {
    uint64_t i = 0;
    while (sl_trace_at(t, i)->kind != kind || sl_trace_at(t, i)->bytes < 65536) i++;
    return *sl_trace_at(t, i);
}

/* One node sends rows to three others: by turns, two pieces of 64 KB at a time, so who comes first
 * has all of its own before the others have. */
static void a_port_is_shared_by_turns(void **state) {
    (void)state;
    static scene x;
    model_of(&x.m, 4, 0, 4, 4);
    x.c = (sl_costs){.link = {.alpha_us = 10, .byte_us = 0.05}};
    scene_init(&x, 4, 0, SL_SCHED_EP);
    x.s.shared_ports = true;
    x.s.trace_events = 1000;
    lengths(&x, 928, 928, 1, 1);
    closed(&x, 1);
    x.load.n_requests = 1;
    sl_sim_result r = run(&x);
    const sl_trace_event sent = first_long(r.trace[0], SL_TRACE_SEND);
    for (uint32_t to = 1; to < 4; to++) {
        const uint64_t took = first_long(r.trace[to], SL_TRACE_RECV).begin_ns - sent.begin_ns;
        assert_true(fabs(took / (1e4 + 50. * (((6 - 2 * to) << 16) + to * sent.bytes)) - 1) < 0.01);
    }
    sl_sim_result_free(&r);
    scene_free(&x);
}

/* Long messages of rows go over all ranks' ports, short ones over the first. In a block each node
 * sends its rows, and those that came to it, to every other one. */
static void hybrid_takes_its_law(void **state) {
    (void)state;
    static const sl_link_cost slow[3] = {{.alpha_us = 300, .byte_us = 0.1},
                                         {.alpha_us = 300, .byte_us = 0.1},
                                         {.alpha_us = 300, .byte_us = 0.1}};
    static const struct {
        uint32_t nodes, ranks, least;
        const sl_link_cost *rails;
        double byte_us; /* of the port that ends last */
        uint32_t stripes;
    } rows[] = {{2, 1, 1, NULL, 0.05, 1},        {2, 2, 1, NULL, 0.05, 2},
                {2, 4, 1, NULL, 0.05, 4},        {2, 4, 1, slow, 0.1, 4},
                {2, 4, 1u << 27, NULL, 0.05, 1}, {3, 2, 1, NULL, 0.05, 2}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        static scene x;
        const uint32_t nodes = rows[i].nodes;
        model_of(&x.m, 8, 0, 6, 6);
        x.c = (sl_costs){
            .stage =
                {[SL_COST_ATTENTION] = {.fixed_us = 10000}, [SL_COST_EXPERT] = {.fixed_us = 1000}},
            .link = {.alpha_us = 300, .byte_us = 0.05}};
        scene_init(&x, nodes, 0, SL_SCHED_HYBRID);
        x.p.attention_tp = rows[i].ranks;
        x.p.rail_bytes = rows[i].least;
        x.s.rail_link = rows[i].rails;
        x.s.shared_ports = true;
        x.s.row_bytes = 8192;
        lengths(&x, 1, 1, 200, 300);
        closed(&x, 24 * nodes);
        x.s.warmup_us = 1e7;
        x.s.measure_us = 2e7;
        sl_sim_result r = run(&x);
        const double layer = 24 * nodes * 1e6 / r.tokens_per_s / 8;
        const double bytes = 24 * 8192.0 * (nodes - 1) / rows[i].stripes;
        const double law = 10000 + 6000.0 / nodes + 2 * (300 + bytes * rows[i].byte_us);
        printf("hybrid %u x %u, messages from %u bytes on in stripes: a layer takes %.1f us, law "
               "%.1f\n",
               nodes, rows[i].ranks, rows[i].least, layer, law);
        assert_true(fabs(layer / law - 1) < 0.02);
        assert_true(r.worker[0].out > 0.1 && r.worker[0].out <= 1);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* What worker `from` has sent to `to`, or got from it: sizes in the order of the trace. */
static size_t messages_of(const sl_trace *t, sl_trace_kind kind, uint32_t peer, uint32_t *bytes,
                          size_t room) {
    size_t n = 0;
    for (uint64_t i = 0; i < sl_trace_count(t) && n < room; i++) {
        const sl_trace_event *e = sl_trace_at(t, i);
        if (e->kind == kind && e->peer == peer) bytes[n++] = e->bytes;
    }
    return n;
}

/* A short message goes over the first port alone, and may not overtake a long one whose last stripe
 * comes by a slow one. */
static void what_is_behind_stripes_waits(void **state) {
    (void)state;
    static const sl_link_cost slow = {.alpha_us = 5000, .byte_us = 0.5};
    for (int shared = 0; shared < 2; shared++) {
        static scene x;
        enum { ROOM = 4096 };
        static uint32_t sent[ROOM], got[ROOM];
        model_of(&x.m, 4, 0, 8, 2);
        x.c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = 100, .row_us = 10},
                                   [SL_COST_EXPERT] = {.fixed_us = 50}},
                         .link = {.alpha_us = 10, .byte_us = 0.001}};
        scene_init(&x, 3, 0, SL_SCHED_HYBRID);
        x.p.attention_tp = 2;
        x.p.rail_bytes = 1500;
        x.s.rail_link = &slow;
        x.s.shared_ports = shared;
        x.s.jitter = 0.3;
        x.s.trace_events = 100000;
        lengths(&x, 1, 20, 5, 20);
        closed(&x, 12);
        x.load.n_requests = 40;
        sl_sim_result r = run(&x);
        uint32_t longer = 0, shorter = 0;
        for (uint32_t from = 0; from < 3; from++) {
            for (uint32_t to = 0; to < 3; to++) {
                if (from == to) continue;
                const size_t n = messages_of(r.trace[from], SL_TRACE_SEND, to, sent, ROOM);
                const size_t m = messages_of(r.trace[to], SL_TRACE_RECV, from, got, ROOM);
                assert_true(m > 50 && m <= n && n < ROOM);
                assert_memory_equal(sent, got, m * sizeof *got);
                for (size_t i = 0; i < m; i++) *(got[i] >= 1600 ? &longer : &shorter) += 1;
            }
        }
        assert_true(longer > 50 && shorter > 50);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* Requests at once, each of a token and then so many; nothing takes time but stages. */
static void generate(scene *x, uint32_t requests, uint32_t tokens) {
    x->s.control_us = 0;
    lengths(x, 1, 1, tokens, tokens);
    closed(x, requests);
    x->load.n_requests = requests;
}

/* Of a request's guesses those before the first wrong one count: right + right^2 + ... tokens more
 * a step, after the share of steps that have any. */
static void guesses_take_their_law(void **state) {
    (void)state;
    static const struct {
        sl_schedule schedule;
        uint32_t requests;
        double right, found;
    } rows[] = {{SL_SCHED_DEP, 1, 1, 1},
                {SL_SCHED_DEP, 1, 0.5, 1},
                {SL_SCHED_EP, 4, 0.8, 0.5},
                {SL_SCHED_AEP, 1, 0.8, 1}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        static scene x;
        const bool together = rows[i].schedule == SL_SCHED_EP;
        model_of(&x.m, 4, 0, 8, 2);
        x.c = (sl_costs){
            .stage = {
                [SL_COST_ATTENTION] = {.fixed_us = 1000}, [SL_COST_EXPERT] = {.floor_us = 1}}};
        scene_init(&x, 1, together ? 0 : 1, rows[i].schedule);
        x.p.speculate = SL_SPECULATE_ALWAYS;
        x.load.guess_right = rows[i].right;
        x.load.guess_found = rows[i].found;
        generate(&x, rows[i].requests, 3000);
        sl_sim_result r = run(&x);
        double more = 0;

        for (uint32_t k = 1; k <= SL_DRAFT_MOST; k++) more += pow(rows[i].right, k) * rows[i].found;
        const double steps = 3000.0 * rows[i].requests / r.tokens_per_s / 4020e-6;
        const double each = 3000 / steps;
        printf("schedule %d, %u requests, %.1f right, %.1f found: %.3f tokens a step, law %.3f\n",
               rows[i].schedule, rows[i].requests, rows[i].right, rows[i].found, each, 1 + more);
        if (rows[i].requests == 1)
            assert_true(fabs(each / (1 + more) - 1) < 0.05);
        else /* who is first in the table has most of them */
            assert_true(each > 1.1 && each < 1 + more);
        assert_true(r.guesses > 0 && r.guesses_right <= r.guesses);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* Of the block's guesses, too; each is a call of it, with a row of the step at least, and takes as
 * long as a block of the model, which is a quarter of a step here. */
static void each_guess_of_the_block_takes_a_call(void **state) {
    (void)state;
    const sl_schedule schedules[] = {SL_SCHED_DEP, SL_SCHED_AEP};
    for (size_t i = 0; i < SL_LEN(schedules); i++) {
        static scene x;
        model_of(&x.m, 4, 0, 8, 2);
        x.c = (sl_costs){
            .stage = {
                [SL_COST_ATTENTION] = {.fixed_us = 1000}, [SL_COST_EXPERT] = {.floor_us = 1}}};
        scene_init(&x, 1, 1, schedules[i]);
        x.p.speculate = SL_SPECULATE_MTP_ALWAYS;
        x.load.guess_right = 0.7;
        generate(&x, 1, 3000);
        sl_sim_result r = run(&x);
        double more = 0;
        for (uint32_t k = 1; k <= SL_DRAFT_AHEAD; k++) more += pow(0.7, k);
        const double step_us = 4020 + SL_DRAFT_AHEAD * 1002.0;
        const double law = (1 + more) / step_us * 1e6, steps = 3000 / (1 + more);
        printf("schedule %d: %.1f tokens/s, law %.1f; %.2f calls a step of %.2f rows\n",
               schedules[i], r.tokens_per_s, law, (double)r.block_calls / steps,
               (double)r.block_rows / (double)r.block_calls);
        assert_true(fabs(r.tokens_per_s / law - 1) < 0.05);
        assert_true(fabs((double)r.block_calls / steps - SL_DRAFT_AHEAD) < 0.2);
        /* Tokens that were drawn are rows of the first call, guesses of those behind it. */
        assert_true(fabs((double)r.block_rows / steps - (1 + more + SL_DRAFT_AHEAD - 1)) < 0.2);
        assert_true(r.block_guesses >= r.guesses && r.block_guesses < r.guesses + SL_DRAFT_MOST);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* What a row of a guess costs decides: where it costs as much as a token none is run for long,
 * where it costs next to nothing nearly all are. */
static void only_guesses_that_pay_are_run(void **state) {
    (void)state;
    double rate[2][2];
    for (int dear = 0; dear < 2; dear++) {
        for (int guesses = 0; guesses < 2; guesses++) {
            static scene x;
            model_of(&x.m, 4, 0, 8, 2);
            x.c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = dear ? 1 : 1000,
                                                              .row_us = dear ? 1000 : 1}}};
            scene_init(&x, 1, 1, SL_SCHED_DEP);
            x.p.speculate = guesses ? SL_SPECULATE_LOOKUP : SL_SPECULATE_OFF;
            x.load.guess_right = 0.7;
            x.load.guess_found = 1;
            generate(&x, 1, 2000);
            sl_sim_result r = run(&x);
            rate[dear][guesses] = r.tokens_per_s;
            sl_sim_result_free(&r);
            scene_free(&x);
        }
    }
    printf("guesses that cost nothing: %.2f times the tokens, dear ones %.3f\n",
           rate[0][1] / rate[0][0], rate[1][1] / rate[1][0]);
    assert_true(rate[0][1] > 2 * rate[0][0]);
    assert_true(rate[1][1] > 0.98 * rate[1][0]);
}

/* With eight requests nobody knows at first whether a row pays: trials say so, and where none does
 * they cost less than a hundredth. */
static void many_requests_try_rows(void **state) {
    (void)state;
    const sl_schedule schedules[] = {SL_SCHED_DEP, SL_SCHED_AEP};
    const sl_speculate hows[] = {SL_SPECULATE_OFF, SL_SPECULATE_LOOKUP, SL_SPECULATE_MTP,
                                 SL_SPECULATE_BOTH};
    for (size_t i = 0; i < 2 * SL_LEN(schedules); i++) {
        const bool dear = i % 2;
        double rate[SL_LEN(hows)];
        for (size_t k = 0; k < SL_LEN(hows); k++) {
            static scene x;
            model_of(&x.m, 16, 0, 8, 2);
            x.c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = dear ? 1 : 1000,
                                                              .row_us = dear ? 1000 : 1}}};
            scene_init(&x, 1, 1, schedules[i / 2]);
            x.p.speculate = hows[k];
            x.load.guess_right = x.load.guess_block = 0.9;
            x.load.guess_found = 1;
            generate(&x, 8, 2000);
            sl_sim_result r = run(&x);
            rate[k] = r.tokens_per_s;
            printf("schedule %d, rows %s, %s: %.3f times the tokens, %llu rows of guesses\n",
                   schedules[i / 2], dear ? "dear" : "free", sl_speculate_names[hows[k]],
                   rate[k] / rate[0], (unsigned long long)r.guesses);
            assert_true(k == 0 || (dear ? rate[k] > 0.99 * rate[0] : rate[k] > 1.15 * rate[0]));
            sl_sim_result_free(&r);
            scene_free(&x);
        }
    }
}

static void guesses_of_nobody_knows_what_are_refused(void **state) {
    (void)state;
    static scene x;
    sl_sim_result r;
    sl_err err;
    model_of(&x.m, 4, 0, 8, 2);
    scene_init(&x, 1, 1, SL_SCHED_DEP);
    x.p.speculate = SL_SPECULATE_LOOKUP;
    lengths(&x, 1, 1, 2, 3);
    closed(&x, 4);
    assert_int_equal(sl_sim_run(&x.s, &r, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "how many guesses are right has to be said"));
    scene_free(&x);
}

static void pipelines_that_are_not_simulated_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        static scene x;
        sl_sim_result r;
        sl_err err;
        model_of(&x.m, 8, 0, 8, 2);
        scene_init(&x, i == 0 ? 2 : 1, i == 1, SL_SCHED_PINGPONG);
        x.p.pp = i == 2 ? 9 : 2;
        lengths(&x, 1, 1, 2, 3);
        closed(&x, 4);
        assert_int_not_equal(sl_sim_run(&x.s, &r, &err), SL_OK);
        assert_non_null(
            strstr(err.msg, i == 2 ? "the model has 8 blocks" : "it is the one worker"));
        scene_free(&x);
    }
}

/* Where weights bind, every further chunk costs as much as the first: with the costs in its plan
 * findep goes in one, as in the engine, and takes the time of dep. */
static void findep_cuts_by_the_costs_of_its_plan(void **state) {
    (void)state;
    for (int online = 0; online < 2; online++) {
        static scene x;
        model_of(&x.m, 8, 0, 8, 8);
        x.c = (sl_costs){
            .stage =
                {[SL_COST_ATTENTION] = {.fixed_us = 10000}, [SL_COST_EXPERT] = {.fixed_us = 1000}},
            .link = {.alpha_us = 1000}};
        scene_init(&x, 1, 1, SL_SCHED_FINDEP);
        x.p.lanes = 1;
        x.p.chunks = 4;
        x.p.has_costs = online;
        x.p.costs = x.c;
        lengths(&x, 1, 1, 200, 300);
        closed(&x, 48);
        x.s.warmup_us = 2e7;
        x.s.measure_us = 4e7;
        sl_sim_result r = run(&x);
        double layer = 48 * 1e6 / r.tokens_per_s / 8;
        double law = 10000 + (online ? 1 : 4) * 8000 + 2 * 1000;
        printf("findep %s: a layer takes %.1f us, law %.1f\n", online ? "online" : "in 4 chunks",
               layer, law);
        assert_true(fabs(layer / law - 1) < 0.01);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* A worker generates SL_MAX_AHEAD tokens and waits until the coordinator is known to have seen the
 * first of them: far from its coordinator that is all it does. */
static void nobody_runs_ahead_of_the_coordinator(void **state) {
    (void)state;
    static const sl_schedule schedules[] = {SL_SCHED_DEP, SL_SCHED_AEP};
    for (size_t i = 0; i < SL_LEN(schedules); i++) {
        static scene x;
        enum { WINDOWS = 6, TOKENS = WINDOWS * SL_MAX_AHEAD + 1 };
        model_of(&x.m, 4, 0, 8, 2);
        x.c = (sl_costs){
            .stage = {[SL_COST_ATTENTION] = {.fixed_us = 50}, [SL_COST_EXPERT] = {.fixed_us = 50}}};
        scene_init(&x, 1, 1, schedules[i]);
        lengths(&x, 5, 5, TOKENS, TOKENS);
        closed(&x, 3);
        x.load.n_requests = 3;
        x.s.control_us = 1e6;
        sl_sim_result r = run(&x);
        double window = r.ttft_us.max + WINDOWS * 2 * x.s.control_us;
        assert_int_equal(r.finished, 3);
        assert_true(r.end_us > window && r.end_us < window + 1e5);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* ---- AMoE's table ---- */

static double amoe(sl_schedule schedule, sl_policy policy, uint32_t lookahead, double delta,
                   double theta, uint32_t n, bool low, double *itl_ms) {
    static scene x;
    bool aep = schedule == SL_SCHED_AEP;
    model_of(&x.m, 32, 0, 8, 1);
    x.c = (sl_costs){
        .stage = {[SL_COST_ATTENTION] = {.fixed_us = low ? 150 : 300, .row_us = 1},
                  [SL_COST_EXPERT] = {.fixed_us = low ? 50 : 100, .floor_us = 200, .row_us = 1.55},
                  [SL_COST_HEAD] = {.fixed_us = 50, .row_us = 0.2}},
        .link = {.alpha_us = low ? 50 : 100}};
    scene_init(&x, aep ? 4 : 8, aep ? 4 : 0, schedule);
    x.p.policy = policy;
    x.p.lookahead = lookahead;
    x.p.delta = delta;
    skew(&x, theta, true, 1);
    lengths(&x, 1, 1, 50, 250);
    closed(&x, n);
    x.s.warmup_us = 14e6;
    x.s.measure_us = 6e6;
    x.s.control_us = 0;
    sl_sim_result r = run(&x);
    double tokens = r.tokens_per_s / 1e3;
    *itl_ms = r.itl_us.mean / 1e3;
    sl_sim_result_free(&r);
    scene_free(&x);
    return tokens;
}

static void amoe_table(void **state) {
    (void)state;
    static const struct {
        const char *name;
        sl_schedule schedule;
        sl_policy policy;
        uint32_t lookahead;
        double delta, want; /* ktok/s */
    } rows[] = {
        {"defrag K 2, delta 1", SL_SCHED_AEP, SL_POLICY_DEFRAG, 2, 1, 39.0},
        {"defrag K 4, delta .9", SL_SCHED_AEP, SL_POLICY_DEFRAG, 4, 0.9, 30.3},
        {"rmf", SL_SCHED_AEP, SL_POLICY_RMF, 0, 1, 44.2},
        {"flfs", SL_SCHED_AEP, SL_POLICY_FLFS, 0, 1, 35.6},
        {"mtfs", SL_SCHED_AEP, SL_POLICY_MTFS, 0, 1, 14.9},
        {"ep on 8 workers", SL_SCHED_EP, SL_POLICY_DEFRAG, 2, 1, 31.1},
    };
    if (SL_SLOW_BUILD && !take_whole()) return; /* half a minute each */
    for (size_t i = 0; i < SL_LEN(rows); i += full ? 1 : 6) {
        double itl, got = amoe(rows[i].schedule, rows[i].policy, rows[i].lookahead, rows[i].delta,
                               0.6, 4096, false, &itl);
        printf("%-22s %5.1f ktok/s, specification %5.1f (%+.1f %%), ITL %.0f ms\n", rows[i].name,
               got, rows[i].want, 100 * (got / rows[i].want - 1), itl);
        assert_true(fabs(got / rows[i].want - 1) < 0.1);
    }
}

/* ---- conservation, on deployments drawn at random ---- */

static uint32_t upto(uint64_t *rng, uint32_t least, uint32_t most) {
    return least + (uint32_t)sl_rng_below(rng, most - least + 1u);
}

static void draw_scene(scene *x, uint64_t *rng) {
    sl_schedule schedule = (sl_schedule)upto(rng, 0, SL_SCHED_COUNT - 1);
    bool together =
        schedule == SL_SCHED_EP || schedule == SL_SCHED_EPS || schedule == SL_SCHED_HYBRID;
    uint32_t experts = 4u << upto(rng, 0, 2), dense = upto(rng, 0, 2);
    model_of(&x->m, dense + upto(rng, 1, 4), dense, experts, upto(rng, 1, 4));
    if (upto(rng, 0, 1)) x->m.d_ff_shared = 64;
    if (upto(rng, 0, 3) == 0) x->m.sliding_window = 64;
    x->c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = 50, .row_us = 2, .key_us = 0.01},
                                [SL_COST_ROUTER] = {.row_us = 0.1},
                                [SL_COST_DENSE] = {.fixed_us = 30},
                                [SL_COST_SHARED] = {.fixed_us = 20},
                                [SL_COST_EXPERT] = {.fixed_us = 5, .floor_us = 30, .row_us = 3},
                                [SL_COST_HEAD] = {.fixed_us = 100}},
                      .link = {.alpha_us = upto(rng, 0, 100),
                               .byte_us = 0.001 * upto(rng, 0, 10),
                               .half_duplex = upto(rng, 0, 1)}};
    scene_init(x, upto(rng, 1, 4), together ? 0 : upto(rng, 1, 4), schedule);
    x->p.lanes = schedule == SL_SCHED_PINGPONG || schedule == SL_SCHED_FINDEP ? upto(rng, 1, 4) : 1;
    x->p.chunks = schedule == SL_SCHED_FINDEP || schedule == SL_SCHED_EPS ? upto(rng, 1, 4) : 1;
    x->p.chunking =
        schedule == SL_SCHED_EPS || upto(rng, 0, 1) ? SL_CHUNK_EXPERTS : SL_CHUNK_TOKENS;
    x->p.order = upto(rng, 0, 1) ? SL_ORDER_AASS : SL_ORDER_ASAS;
    x->p.policy = (sl_policy)upto(rng, 0, SL_POLICY_COUNT - 1);
    if (x->p.policy == SL_POLICY_FLFS) x->p.policy = SL_POLICY_RMF; /* starves by design */
    x->p.exact = upto(rng, 0, 1);
    x->p.max_num_seqs = upto(rng, 1, 16);
    x->p.max_num_batched_tokens = 64;
    x->p.context = 512;
    x->p.n_pages = 16 + upto(rng, 0, 30); /* one request of full length at least: preemptions */
    lengths(x, 1, 200, 1, 200);
    x->load.n_requests = 120;
    if (upto(rng, 0, 1))
        closed(x, upto(rng, 1, 40));
    else
        x->load.arrival = (sl_arrival){.kind = SL_ARRIVAL_POISSON, .rate = upto(rng, 5, 500)};
    x->s.seed = sl_rng_next(rng);
    x->s.jitter = 0.1 * upto(rng, 0, 5);
    x->s.message_us = upto(rng, 0, 5);
    x->s.shared_ports = upto(rng, 0, 1);
    x->p.speculate = (sl_speculate)upto(rng, SL_SPECULATE_OFF, SL_SPECULATE_COUNT - 1);
    x->load.guess_right = 0.25 * upto(rng, 1, 4);
    x->load.guess_found = 0.5 * upto(rng, 0, 2);
    x->load.guess_block = 0.3 * upto(rng, 1, 3);
    x->p.attention_tp = schedule == SL_SCHED_HYBRID ? 1u << upto(rng, 0, 2) : 1;
    x->p.rail_bytes = 1u << upto(rng, 0, 14);
    if (upto(rng, 0, 1)) skew(x, 0.5, true, 3);
}

/* sl_sim_run itself fails when rows, pages or servers do not add up. */
static void nothing_gets_lost(void **state) {
    (void)state;
    uint64_t rng = 1, preempted = 0, failed = 0;
    for (int i = 0; i < (full ? 150 : 15); i++) {
        static scene x;
        draw_scene(&x, &rng);
        sl_sim_death death = {.worker = upto(&rng, 0, x.p.n_workers - 1),
                              .at_us = 1e4 * upto(&rng, 1, 100)};
        x.s.death = &death;
        x.s.n_deaths = i % 4 == 0;
        x.s.notice_us = 5e4;
        sl_sim_result r = run(&x);
        assert_int_equal(r.submitted, r.finished + r.failed + r.refused);
        if (x.s.n_deaths == 0) assert_int_equal(r.finished, 120);
        if (x.s.n_deaths == 0) assert_int_equal(r.rows_created, r.rows_merged + r.rows_cancelled);
        if (x.p.schedule != SL_SCHED_AEP) assert_int_equal(r.rows_cancelled, 0);
        preempted += r.preempted;
        failed += r.failed;
        if (i % 10 == 1) { /* a run is a function of its setup */
            sl_sim_result again = run(&x);
            assert_true(again.end_us == r.end_us && again.events == r.events &&
                        again.itl_us.p99 == r.itl_us.p99);
            sl_sim_result_free(&again);
        }
        sl_sim_result_free(&r);
        scene_free(&x);
    }
    printf("%llu preemptions, %llu requests lost with their workers\n",
           (unsigned long long)preempted, (unsigned long long)failed);
    assert_true(preempted > 100 && failed > 20);
}

static void a_dead_expert_worker_ends_everything(void **state) {
    (void)state;
    for (int dead = 0; dead < 4; dead++) {
        static scene x;
        model_of(&x.m, 4, 0, 8, 2);
        x.c = (sl_costs){
            .stage = {
                [SL_COST_ATTENTION] = {.fixed_us = 1000}, [SL_COST_EXPERT] = {.fixed_us = 200}}};
        scene_init(&x, 2, 2, SL_SCHED_DEP);
        lengths(&x, 1, 1, 50, 100);
        closed(&x, 16);
        x.load.n_requests = 200;
        sl_sim_death death = {.worker = (uint32_t)dead, .at_us = 1e6};
        x.s.death = &death;
        x.s.n_deaths = 1;
        x.s.notice_us = 2e6;
        sl_sim_result r = run(&x);
        bool expert = dead >= 2; /* an attention worker takes its own requests with it */
        assert_true(expert ? r.failed == 16 : r.failed >= 8 && r.failed < 16);
        assert_int_equal(r.finished > 100, !expert);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

/* ---- traces ---- */

static void traces_are_the_engines(void **state) {
    (void)state;
    static scene x;
    model_of(&x.m, 4, 1, 8, 2);
    x.c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = 1000},
                               [SL_COST_EXPERT] = {.fixed_us = 200},
                               [SL_COST_DENSE] = {.fixed_us = 100},
                               [SL_COST_HEAD] = {.fixed_us = 50}},
                     .link = {.alpha_us = 100, .byte_us = 0.01}};
    scene_init(&x, 1, 2, SL_SCHED_PINGPONG);
    lengths(&x, 4, 4, 10, 10);
    closed(&x, 8);
    x.load.n_requests = 16;
    x.s.trace_events = 100000;
    sl_sim_result r = run(&x);
    char path[] = "/tmp/sim-trace-XXXXXX";
    sl_err err;
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    static const char *const role[] = {"attention", "expert", "expert"};
    const sl_trace_about about = {.model = "model",
                                  .schedule = "pingpong",
                                  .transport = "simulated links",
                                  .version = "1",
                                  .lanes = x.s.plan->lanes,
                                  .layers = x.s.model->n_layers,
                                  .message_name = sl_sim_message_name};
    assert_int_equal(sl_trace_rings_write(f, &about, r.trace, role, r.n_workers, &err), SL_OK);
    fclose(f);
    sl_trace_stats stats;
    if (sl_trace_stats_read(path, -1, -1, &stats, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(stats.tokens, 160);
    assert_int_equal(stats.n_workers, 3);
    assert_true(stats.n_links >= 4);
    double share = 0;
    sl_trace_stats_busiest_worker(&stats, &share);
    double most = 0;
    for (uint32_t i = 0; i < r.n_workers; i++) most = fmax(most, r.worker[i].busy);
    assert_true(fabs(share - most) < 0.02);
    sl_trace_stats_free(&stats);
    unlink(path);
    sl_sim_result_free(&r);
    scene_free(&x);
}

/* ---- size and speed ---- */

/* n_attention + n_expert workers, more than a plan names: placement and roles are given apart. */
static void large(uint32_t n_attention, uint32_t n_expert, sl_schedule schedule) {
    static scene x;
    uint32_t n = n_attention + n_expert, E = n_expert < 256 ? 256 : n_expert;
    if (E > SL_MAX_EXPERTS) E = SL_MAX_EXPERTS;
    model_of(&x.m, 2, 0, E, 8);
    x.c = (sl_costs){.stage = {[SL_COST_ATTENTION] = {.fixed_us = 100, .row_us = 1},
                               [SL_COST_EXPERT] = {.floor_us = 50, .row_us = 1}},
                     .link = {.alpha_us = 10, .byte_us = 4e-5}};
    scene_init(&x, 1, 1, schedule);
    uint8_t *roles = sl_alloc(n, 1);
    sl_placement own = x.p.place, place = {.n_layers = 1,
                                           .first = sl_alloc(E + 1u, sizeof *place.first),
                                           .host = sl_alloc(2 * (size_t)n, sizeof *place.host)};
    assert_true(roles && place.first && place.host);
    for (uint32_t i = 0; i < n; i++)
        roles[i] = i < n_attention ? SL_ROLE_ATTENTION : SL_ROLE_EXPERT;
    for (uint32_t e = 0; e < E; e++) {
        place.first[e + 1] = e + 1;
        place.host[e] = (sl_host){n_attention + (uint32_t)((uint64_t)e * n_expert / E), UINT32_MAX};
    }
    x.p.place = place;
    x.p.n_experts = E;
    x.p.max_num_seqs = 32;
    x.p.max_num_batched_tokens = 64;
    x.s.roles = roles;
    x.s.n_workers = n;
    lengths(&x, 1, 1, 2, 2);
    closed(&x, n_attention * 4);
    x.load.n_requests = n_attention * 4;
    clock_t begin = clock();
    sl_sim_result r = run(&x);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%u + %u workers, schedule %d: %llu events in %.2f s, %.2f million a second, %ld MiB at "
           "most so far\n",
           n_attention, n_expert, schedule, (unsigned long long)r.events, seconds,
           1e-6 * (double)r.events / seconds, usage.ru_maxrss / 1024);
    assert_int_equal(r.finished, n_attention * 4);
    assert_true(usage.ru_maxrss < 4096 * 1024);
    sl_sim_result_free(&r);
    sl_free(place.first);
    sl_free(place.host);
    sl_free(roles);
    x.p.place = own;
    scene_free(&x);
}

static void thousands_of_workers(void **state) {
    (void)state;
    uint32_t scale = full ? 50 : 1;
    large(120 * scale, 80 * scale, SL_SCHED_AEP);
    large(199 * scale, 1 * scale, SL_SCHED_DEP);
}

int main(int argc, char **argv) {
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_take_no_negative_time),
        cmocka_unit_test(schedules_take_their_laws),
        cmocka_unit_test(pipelines_take_their_law),
        cmocka_unit_test(pipelines_that_are_not_simulated_are_refused),
        cmocka_unit_test(a_port_is_shared_by_turns),
        cmocka_unit_test(hybrid_takes_its_law),
        cmocka_unit_test(what_is_behind_stripes_waits),
        cmocka_unit_test(guesses_take_their_law),
        cmocka_unit_test(each_guess_of_the_block_takes_a_call),
        cmocka_unit_test(only_guesses_that_pay_are_run),
        cmocka_unit_test(many_requests_try_rows),
        cmocka_unit_test(guesses_of_nobody_knows_what_are_refused),
        cmocka_unit_test(findep_cuts_by_the_costs_of_its_plan),
        cmocka_unit_test(nobody_runs_ahead_of_the_coordinator),
        cmocka_unit_test(amoe_table),
        cmocka_unit_test(nothing_gets_lost),
        cmocka_unit_test(a_dead_expert_worker_ends_everything),
        cmocka_unit_test(traces_are_the_engines),
        cmocka_unit_test(thousands_of_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* FinDEP's solver and EPS's groups while requests run: what is measured, when another choice holds,
 * and what it is. */
#include "base/mem.h"
#include "base/rng.h"
#include "plan/eps.h"
#include "sched/resolve.h"
#include "sched/slots.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define WINDOW 4u

/* What stages cost here: of a block, its shared experts, the way there and back, the experts. */
typedef struct costs {
    double block, row, branch, way, expert, pair, way_pair;
} costs;

typedef struct table {
    sl_plan plan;
    sl_model_spec model;
    sl_resolve r;
    uint64_t now_us, round;
} table;

static void make(table *t, uint32_t lanes, uint32_t chunks, bool exact, bool shared) {
    sl_err err;
    *t = (table){.plan = {.schedule = SL_SCHED_FINDEP,
                          .lanes = lanes,
                          .chunks = chunks,
                          .exact = exact,
                          .resolve = WINDOW},
                 .model = {.n_moe = 8, .n_experts = 8, .top_k = 2, .d_ff_shared = shared},
                 .now_us = 1000};
    sl_resolve_init(&t->plan, &t->model, NULL, &t->r);
    assert_int_equal(sl_resolve_deploy(&t->r, 1, 2, UINT32_MAX, &err), SL_OK);
}

/* A chunk of so many rows goes and comes back. */
static void fly(table *t, const costs *c, uint32_t lane, uint32_t chunk, double rows,
                uint32_t groups) {
    const uint32_t pairs = (uint32_t)(rows * t->model.top_k / 2 / groups);
    const uint32_t task = (uint32_t)((c->expert + c->pair * pairs * groups) / groups);
    for (uint32_t x = 0; x < 2; x++)
        sl_resolve_sent(&t->r, lane, chunk, x, pairs, pairs, t->now_us);
    t->now_us += (uint64_t)(2 * (c->way + c->way_pair * pairs)) + task;
    for (uint32_t x = 0; x < 2; x++)
        sl_resolve_answered(&t->r, lane, chunk, x, task, task, t->now_us);
}

/* A step of each open lane, `rows` in all; how many changes there were. */
static uint32_t pass(table *t, const costs *c, uint32_t rows) {
    const uint32_t lanes = t->r.lanes;
    uint32_t changes = 0;
    for (uint32_t l = 0; l < lanes; l++) {
        const uint32_t here = rows / lanes;
        uint32_t n = SL_MIN(t->plan.chunks, here);
        sl_chunking by = t->plan.chunking;
        sl_resolve_form(&t->r, l, here, 0, &n, &by);
        for (uint32_t b = 0; b < t->model.n_moe; b++) {
            sl_resolve_block(&t->r, here, (uint64_t)(c->block + c->row * here));
            sl_resolve_shared(&t->r, here, (uint64_t)c->branch);
            for (uint32_t j = 0; j < n; j++)
                fly(t, c, l, j, by == SL_CHUNK_TOKENS ? here / n : here,
                    by == SL_CHUNK_TOKENS ? 1 : n);
        }
        if (sl_resolve_step(&t->r, l, here, rows, t->now_us)) changes += t->r.n_change;
    }
    return changes;
}

/* The class whose steps have so many rows. */
static const sl_resolve_cut *cut_of(const table *t, uint32_t rows) {
    uint32_t c = 0;
    while (1u << c < rows) c++;
    return &t->r.cut[c];
}

static void a_plan_that_does_not_ask_changes_nothing(void **state) {
    (void)state;
    const sl_plan p = {.lanes = 3, .chunks = 2, .order = SL_ORDER_AASS};
    const sl_model_spec m = {.n_moe = 2};
    sl_resolve r;
    sl_err err;
    uint32_t n = 2;
    sl_chunking by = SL_CHUNK_TOKENS;
    sl_resolve_init(&p, &m, NULL, &r);
    assert_int_equal(sl_resolve_deploy(&r, 1, 1, UINT32_MAX, &err), SL_OK);
    assert_false(sl_resolve_is_on(&r));
    assert_int_equal(sl_resolve_rows(&r, 100), 100);
    for (int i = 0; i < 100; i++) {
        sl_resolve_form(&r, 0, 9, 1, &n, &by);
        sl_resolve_block(&r, 9, 100);
        sl_resolve_sent(&r, 0, 0, 0, 4, 4, 5);
        sl_resolve_answered(&r, 0, 0, 0, 1, 1, 9);
        sl_resolve_drop(&r, 0);
        assert_false(sl_resolve_step(&r, 0, 9, 9, 10));
    }
    assert_true(n == 2 && by == SL_CHUNK_TOKENS && r.order == SL_ORDER_AASS && r.lanes == 3);
    sl_resolve_free(&r);
}

/* Weights bind the experts, whatever rows there are: fewer lanes, and chunks that share the weights
 * while rows travel. Where bits may depend on groups, one chunk. */
static void weights_are_read_once(void **state) {
    (void)state;
    const costs c = {.block = 100, .row = 2, .way = 2, .way_pair = 4, .expert = 800, .pair = 0.1};
    for (int exact = 0; exact < 2; exact++) {
        table t;
        make(&t, 4, 4, exact, false);
        for (int i = 0; i < 400; i++) pass(&t, &c, 64);
        assert_true(t.r.lanes < 4);
        const sl_resolve_cut *cut = cut_of(&t, 64 / t.r.lanes);
        assert_true(cut->known);
        assert_int_equal(cut->chunking, exact ? SL_CHUNK_EXPERTS : SL_CHUNK_TOKENS);
        assert_true(exact ? cut->chunks > 1 : cut->chunks == 1);
        sl_resolve_free(&t.r);
    }
}

/* Everything grows with its rows, and attention takes as long as experts: lanes keep both busy. The
 * other way about, too: from one lane that is open to several. */
static void balanced_sides_get_lanes(void **state) {
    (void)state;
    const costs flat = {.block = 400, .row = 0, .way = 5, .expert = 400, .pair = 0};
    const costs steep = {.block = 2, .row = 8, .way = 200, .expert = 2, .pair = 8};
    table t;
    make(&t, 4, 1, true, false);
    for (int i = 0; i < 100; i++) pass(&t, &flat, 64);
    assert_int_equal(t.r.lanes, 1);                      /* half of the rows would take as long */
    for (int i = 0; i < 100; i++) pass(&t, &steep, 16);  /* rows of another class teach a slope */
    for (int i = 0; i < 6000; i++) pass(&t, &steep, 64); /* the shorter way is forgotten, too */
    assert_true(t.r.lanes > 1);
    const uint32_t lanes = t.r.lanes;
    for (int i = 0; i < 200; i++) assert_int_equal(pass(&t, &steep, 64) && t.r.lanes != lanes, 0);
    sl_resolve_free(&t.r);
}

/* One request is in one lane, however good several were. */
static void a_request_is_in_one_lane(void **state) {
    (void)state;
    table t;
    make(&t, 4, 2, true, true);
    t.r.lanes = 1;
    for (int i = 0; i < 200; i++) {
        for (uint32_t rows = 1; rows <= 256; rows *= 4) {
            sl_resolve_block(&t.r, rows, 10 * rows);
            sl_resolve_shared(&t.r, rows, 10 * rows);
            for (uint32_t x = 0; x < 2; x++) sl_resolve_sent(&t.r, 0, 0, x, rows, rows, t.now_us);
            t.now_us += 1000 + 10 * rows;
            for (uint32_t x = 0; x < 2; x++)
                sl_resolve_answered(&t.r, 0, 0, x, 10 * rows, 10 * rows, t.now_us);
        }
        (void)sl_resolve_step(&t.r, 0, 256, i < 100 ? 1 : 256, t.now_us);
        if (i == 99) assert_int_equal(t.r.lanes, 1);
    }
    assert_true(t.r.lanes > 1);
    sl_resolve_free(&t.r);
}

/* What holds gives way after as many windows in a row as it takes, and not again before. */
static void nothing_changes_twice_within_its_windows(void **state) {
    (void)state;
    const costs few = {.block = 100, .row = 1, .way = 20, .expert = 900, .pair = 0.1};
    const costs many = {.block = 2, .row = 9, .way = 300, .expert = 2, .pair = 9};
    table t;
    make(&t, 4, 4, true, true);
    uint32_t steps = 0, last = 0, changes = 0;
    for (int i = 0; i < 4000; i++) {
        const uint32_t lanes = t.r.lanes;
        const sl_order order = t.r.order;
        pass(&t, i / 300 % 2 ? &many : &few, i % 7 ? 64 : 16);
        steps += lanes;
        if (t.r.lanes == lanes && t.r.order == order) continue;
        assert_true(steps - last + lanes >= SL_RESOLVE_WINS * WINDOW);
        last = steps;
        changes++;
    }
    assert_true(changes > 1);
    sl_resolve_free(&t.r);
}

/* Answers that nobody waits for, chunks that are given up, workers that come and go. */
static void what_is_lost_is_not_measured(void **state) {
    (void)state;
    table t;
    sl_err err;
    make(&t, 2, 2, true, false);
    sl_resolve_answered(&t.r, 0, 0, 1, 5, 5, 100);
    sl_resolve_sent(&t.r, 1, 1, 0, 8, 8, 100);
    sl_resolve_drop(&t.r, 1);
    sl_resolve_answered(&t.r, 1, 1, 0, 5, 5, 200);
    sl_resolve_sent(&t.r, 1, 1, 0, 8, 8, 100);
    sl_resolve_drop(&t.r, 1); /* it was answered by others: the next rows leave */
    sl_resolve_sent(&t.r, 1, 1, 0, 8, 8, 300);
    sl_resolve_answered(&t.r, 1, 1, 0, 5, 5, 400);
    uint32_t n = 0;
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) n += t.r.expert.of[c].n;
    assert_int_equal(n, 1);
    assert_int_equal(sl_resolve_deploy(&t.r, 2, 5, UINT32_MAX, &err), SL_OK);
    sl_resolve_sent(&t.r, 1, 1, 4, 8, 8, 500);
    sl_resolve_answered(&t.r, 1, 1, 4, 5, 5, 600);
    sl_mem_fail_at(1);
    assert_int_equal(sl_resolve_deploy(&t.r, 2, 5, UINT32_MAX, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_resolve_drop(&t.r, 0);
    sl_resolve_free(&t.r);
}

/* ---- groups of experts ---- */

enum { MOST_GROUPS = 8 };

/* What a layer costs a worker that has half of the experts: attention, its shared ones, a task of
 * groups and one of all, a message one way and each of its pairs. */
typedef struct layer {
    double attention, shared, launch, all, way, way_pair;
} layer;

static void make_groups(table *t, uint32_t chunks, bool shared, uint32_t workers) {
    sl_err err;
    *t = (table){.plan = {.schedule = SL_SCHED_EPS,
                          .lanes = 1,
                          .chunks = chunks,
                          .chunking = SL_CHUNK_EXPERTS,
                          .exact = true,
                          .resolve = WINDOW},
                 .model = {.n_moe = 6, .n_experts = 32, .top_k = 4, .d_ff_shared = shared},
                 .now_us = 1000};
    sl_resolve_init(&t->plan, &t->model, NULL, &t->r);
    assert_int_equal(sl_resolve_deploy(&t->r, workers, workers, 0, &err), SL_OK);
}

/* Pairs of a message of one of n groups. */
static uint32_t pairs_of(const table *t, uint32_t rows, uint32_t n) {
    return rows * t->model.top_k / t->r.expert_workers / n;
}

static sl_eps_cut cut_in(const table *t, const layer *l, uint32_t rows, uint32_t n) {
    const double way = l->way + l->way_pair * pairs_of(t, rows, n);
    return (sl_eps_cut){n, way, l->launch + l->all / n, way, 0};
}

static double time_in(const table *t, const layer *l, uint32_t rows, uint32_t n) {
    const sl_eps_cut cut = cut_in(t, l, rows, n);
    return sl_eps_layer(&cut, &(sl_eps_beside){l->attention, l->shared, 0}, true);
}

/* A layer's groups go and come back: all leave at once, to the other worker by a link that takes
 * answers after them. */
static void fly_groups(table *t, const layer *l, uint32_t rows, uint32_t n) {
    const sl_eps_cut c = cut_in(t, l, rows, n);
    const uint32_t pairs = pairs_of(t, rows, n), workers = t->r.expert_workers;
    double out = 0, work = l->shared, back = n * c.dispatch;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = 0; x < workers; x++)
            sl_resolve_sent(&t->r, 0, i, x, pairs, pairs, t->now_us);
    for (uint32_t i = 0; i < n; i++) {
        out += c.dispatch;
        work = fmax(work, out) + c.compute;
        back = fmax(back, work) + c.combine;
        const uint32_t task = (uint32_t)c.compute;
        sl_resolve_answered(&t->r, 0, i, 0, task, (uint32_t)work, t->now_us + (uint64_t)work);
        if (workers == 1) continue;
        sl_resolve_answered(&t->r, 0, i, 1, task, (uint32_t)(work - out),
                            t->now_us + (uint64_t)back);
    }
    t->now_us += (uint64_t)fmax(back, work);
}

/* A step, which would go into `given` groups; into how many it went. */
static uint32_t pass_groups(table *t, const layer *l, uint32_t rows, uint32_t given) {
    uint32_t n = given;
    sl_chunking by = SL_CHUNK_EXPERTS;
    sl_resolve_form(&t->r, 0, rows, ++t->round, &n, &by);
    assert_int_equal(by, SL_CHUNK_EXPERTS);
    assert_int_equal(MOST_GROUPS % n, 0);
    for (uint32_t b = 0; b < t->model.n_moe; b++) {
        sl_resolve_drop(&t->r, 0);
        sl_resolve_block(&t->r, rows, (uint64_t)l->attention);
        t->now_us += (uint64_t)l->attention;
        if (l->shared > 0) sl_resolve_shared(&t->r, rows, (uint64_t)l->shared);
        fly_groups(t, l, rows, n);
    }
    (void)sl_resolve_step(&t->r, 0, rows, rows, t->now_us);
    assert_true(sl_resolve_hear(&t->r, sl_resolve_word(&t->r)));
    return n;
}

static double drawn(uint64_t *rng, double least, double most) {
    return exp(log(least) + (double)sl_rng_below(rng, 1u << 30) / (1u << 30) * log(most / least));
}

/* From whichever groups the plan begins with, and from wrong costs that cut each step otherwise, to
 * what the law says is fastest, or what is no more than the margin slower. */
static void groups_become_what_the_law_says(void **state) {
    (void)state;
    enum { ROWS = 256 };
    uint64_t rng = 5;
    uint32_t chosen[MOST_GROUPS + 1] = {0}, moved = 0;
    for (uint32_t k = 0; k < 400; k++) {
        const layer l = {.attention = drawn(&rng, 50, 2000),
                         .shared = k % 3 == 0 ? drawn(&rng, 50, 1000) : 0,
                         .launch = drawn(&rng, 10, 400),
                         .all = drawn(&rng, 500, 8000),
                         .way = drawn(&rng, 10, 200),
                         .way_pair = drawn(&rng, 1, 16)};
        const uint32_t first = 1u << k % 4;
        uint32_t last = first;
        double least = INFINITY;
        table t;
        make_groups(&t, MOST_GROUPS, l.shared > 0, 2);
        for (uint32_t i = 0; i < 60 * WINDOW; i++) {
            const uint32_t n = pass_groups(&t, &l, ROWS, first);
            if (!t.r.trial) last = n;
        }
        for (uint32_t n = 1; n <= MOST_GROUPS; n *= 2)
            least = fmin(least, time_in(&t, &l, ROWS, n));
        const double share = time_in(&t, &l, ROWS, last) / least;
        if (share > 1.03 * SL_CHOOSE_MARGIN)
            fail_msg("case %u: from %u to %u groups, %.3f of the best; %g %g %g %g %g %g", k, first,
                     last, share, l.attention, l.shared, l.launch, l.all, l.way, l.way_pair);
        chosen[last]++;
        moved += last != first;
        sl_resolve_free(&t.r);
    }
    print_message("400 cases: 1, 2, 4, 8 groups %u, %u, %u, %u times, %u moved\n", chosen[1],
                  chosen[2], chosen[4], chosen[8], moved);
    assert_true(chosen[1] && chosen[2] && chosen[4] && chosen[8] && moved > 100);
}

/* All workers try in the same rounds, whatever holds at each; nothing else is measured. */
static void trials_are_of_rounds(void **state) {
    (void)state;
    const layer l = {.attention = 100, .launch = 30, .all = 2000, .way = 20, .way_pair = 4};
    for (uint32_t first = 1; first <= MOST_GROUPS; first *= 2) {
        table t;
        make_groups(&t, MOST_GROUPS, false, 2);
        for (uint32_t i = 0; i < 3 * SL_RESOLVE_TRIAL * WINDOW; i++) {
            const uint32_t at = (i + 1) % (SL_RESOLVE_TRIAL * WINDOW);
            const sl_resolve_meter was = t.r.expert;
            const uint32_t n = pass_groups(&t, &l, 256, first);
            const sl_resolve_cut *cut = cut_of(&t, 256);
            assert_int_equal(t.r.trial, at == 1 || at == 2);
            if (t.r.trial) assert_int_equal(n, at == 1 ? 1 : MOST_GROUPS);
            if (!t.r.trial && !t.r.heard) assert_int_equal(n, first);
            if (!t.r.trial) assert_memory_equal(&was, &t.r.expert, sizeof was);
            if (cut->known) break;
        }
        sl_resolve_free(&t.r);
    }
}

/* Who is not the first chooses nothing and does what that one says, which may be any divisor. */
static void others_do_what_the_first_says(void **state) {
    (void)state;
    const layer l = {.attention = 100, .launch = 900, .all = 1000, .way = 20, .way_pair = 1};
    table t;
    sl_err err;
    make_groups(&t, MOST_GROUPS, false, 2);
    assert_int_equal(sl_resolve_deploy(&t.r, 2, 2, 1, &err), SL_OK);
    for (uint32_t i = 0; i < 20 * WINDOW; i++) {
        const uint32_t n = pass_groups(&t, &l, 256, MOST_GROUPS);
        if (!t.r.trial) assert_int_equal(n, MOST_GROUPS);
        assert_int_equal(sl_resolve_word(&t.r), 0);
    }
    assert_int_equal(t.r.changes, 0);
    assert_false(sl_resolve_hear(&t.r, 3));
    assert_false(sl_resolve_hear(&t.r, 2 * MOST_GROUPS));
    assert_true(sl_resolve_hear(&t.r, 2));
    while (pass_groups(&t, &l, 64, MOST_GROUPS), t.r.trial) {
    }
    assert_int_equal(t.r.groups[0], 2);
    sl_resolve_free(&t.r);
    make(&t, 2, 2, true, false); /* nobody says that to FinDEP */
    assert_true(sl_resolve_hear(&t.r, 0));
    assert_false(sl_resolve_hear(&t.r, 2));
    sl_resolve_free(&t.r);
}

/* Where there is one group at most, experts have none: a step is as it was. */
static void one_group_is_none(void **state) {
    (void)state;
    table t;
    make_groups(&t, 1, false, 2);
    for (uint64_t round = 1; round < 20; round++) {
        uint32_t n = 1;
        sl_chunking by = SL_CHUNK_TOKENS;
        sl_resolve_form(&t.r, 0, 9, round, &n, &by);
        assert_true(n == 1 && by == SL_CHUNK_TOKENS && !t.r.trial);
        assert_true(sl_resolve_hear(&t.r, sl_resolve_word(&t.r)));
        (void)sl_resolve_step(&t.r, 0, 9, 9, round);
    }
    sl_resolve_free(&t.r);
}

/* Nothing travels: a group costs a task and hides nothing. */
static void a_worker_alone_has_one_group(void **state) {
    (void)state;
    const layer l = {.attention = 100, .launch = 100, .all = 400};
    table t;
    make_groups(&t, MOST_GROUPS, false, 1);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 20 * WINDOW; i++) {
        const uint32_t now = pass_groups(&t, &l, 64, MOST_GROUPS);
        if (!t.r.trial) n = now;
    }
    assert_int_equal(n, 1);
    assert_int_equal(t.r.changes, 1);
    sl_resolve_free(&t.r);
}

/* What stages cost changes while requests run: groups follow, and hold for their windows. */
static void groups_follow_the_load(void **state) {
    (void)state;
    const layer many = {.attention = 200, .launch = 10, .all = 4000, .way = 20, .way_pair = 1};
    const layer few = {.attention = 200, .launch = 900, .all = 1000, .way = 20, .way_pair = 1};
    table t;
    uint32_t since = 0, held = MOST_GROUPS;
    make_groups(&t, MOST_GROUPS, false, 2);
    for (uint32_t i = 0; i < 6000; i++) {
        const layer *l = i / 1500 % 2 ? &few : &many;
        const uint64_t changes = t.r.changes;
        (void)pass_groups(&t, l, 256, MOST_GROUPS);
        since++;
        if (t.r.changes == changes) continue;
        assert_true(since >= SL_RESOLVE_WINS * WINDOW);
        since = 0;
        held = t.r.cut[8].chunks;
        assert_true(time_in(&t, l, 256, held) < 1.3 * time_in(&t, l, 256, l == &many ? 8 : 1));
        if (i % 1500 > 1000) fail_msg("step %u: %u groups", i, held);
    }
    assert_in_range(t.r.changes, 3, 9);
    assert_int_equal(held, 1);
    sl_resolve_free(&t.r);
}

/* ---- requests that go to another lane ---- */

static void requests_leave_a_lane_that_closes(void **state) {
    (void)state;
    sl_slots s;
    sl_err err;
    sl_life *from, *to;
    assert_int_equal(sl_slots_create(3, 4, &s, &err), SL_OK);
    for (uint32_t i = 0; i < 4; i++) assert_non_null(sl_slots_take(&s, 10 + i, 5, 1));
    assert_int_equal(s.n_used[0], 2);
    assert_null(sl_slots_move(&s, 0, &from)); /* lanes are as even as can be */
    s.open = 1;
    sl_life *life = NULL;
    for (uint32_t i = 0; i < 4; i++)
        if (sl_slots_of(&s, 1)[i].used) life = &sl_slots_of(&s, 1)[i];
    life->in_step = true;
    assert_null(sl_slots_move(&s, 1, &from)); /* its rows are away */
    life->in_step = false;
    const sl_life was = *life;
    to = sl_slots_move(&s, 1, &from);
    assert_true(to && from == life && !from->used && sl_slots_lane(&s, to) == 0);
    assert_memory_equal(to, &was, sizeof was);
    assert_true(s.n_used[0] == 3 && s.n_used[1] == 0);
    assert_int_equal(sl_slots_lane(&s, sl_slots_take(&s, 1, 1, 1)), 0);
    assert_null(sl_slots_move(&s, 2, &from)); /* no slot is free there */
    assert_null(sl_slots_take(&s, 1, 1, 1));
    s.open = 3;
    assert_non_null(sl_slots_move(&s, 0, &from)); /* to an even share again */
    assert_int_equal(sl_slots_used(&s), 5);
    assert_true(sl_slots_has(&s, to) && !sl_slots_has(&s, s.life + 12));
    sl_slots_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_does_not_ask_changes_nothing),
        cmocka_unit_test(weights_are_read_once),
        cmocka_unit_test(balanced_sides_get_lanes),
        cmocka_unit_test(a_request_is_in_one_lane),
        cmocka_unit_test(nothing_changes_twice_within_its_windows),
        cmocka_unit_test(what_is_lost_is_not_measured),
        cmocka_unit_test(groups_become_what_the_law_says),
        cmocka_unit_test(trials_are_of_rounds),
        cmocka_unit_test(others_do_what_the_first_says),
        cmocka_unit_test(one_group_is_none),
        cmocka_unit_test(a_worker_alone_has_one_group),
        cmocka_unit_test(groups_follow_the_load),
        cmocka_unit_test(requests_leave_a_lane_that_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

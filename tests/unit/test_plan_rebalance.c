/* Measured load of experts: what it costs, and placements that cost less. */
#include "plan/rebalance.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCKS = 3, EXPERTS = 16, WORKERS = 4, N = BLOCKS * EXPERTS };

static const uint32_t all[WORKERS] = {0, 1, 2, 3};

typedef struct bench {
    sl_rebalance r;
    sl_spread now, to;
    double rows[N], calls[N];
    sl_rebalance_load load;
    sl_rebalance_limits *limits; /* NULL: there are none */
} bench;

static sl_rebalance_shape shape(void) {
    return (sl_rebalance_shape){.n_blocks = BLOCKS,
                                .n_experts = EXPERTS,
                                .n_workers = WORKERS,
                                .spare = 1,
                                .copies = true,
                                .barrier = true};
}

/* Expert e at worker e % 4, or, `blocked`, at e / 4. */
static void place(sl_spread *s, bool blocked) {
    uint32_t at = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        s->first[b] = at;
        for (uint32_t e = 0; e < EXPERTS; e++)
            s->piece[at++] = (sl_fill_piece){e, blocked ? e / 4 : e % 4, 1};
    }
    s->first[BLOCKS] = at;
}

static bench *make(sl_rebalance_shape s) {
    sl_err err;
    bench *x = sl_alloc(1, sizeof *x);
    assert_non_null(x);
    assert_int_equal(sl_rebalance_create(&s, &x->r, &err), SL_OK);
    assert_int_equal(sl_spread_create(&s, &x->now, &err), SL_OK);
    assert_int_equal(sl_spread_create(&s, &x->to, &err), SL_OK);
    x->load = (sl_rebalance_load){x->rows, x->calls};
    place(&x->now, true);
    return x;
}

static void end(bench *x) {
    sl_rebalance_free(&x->r);
    sl_spread_free(&x->now);
    sl_spread_free(&x->to);
    sl_free(x);
}

static void move(bench *x) {
    sl_err err;
    const sl_rebalance_task t = {&x->load, &x->now, all, WORKERS, x->limits};
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_int_equal(sl_rebalance_block(&x->r, &t, b, &x->to, &err), SL_OK);
}

/* Every expert is whole, nobody has two pieces of one or more than there is room for. */
static void is_sound(const sl_spread *s, uint32_t slots) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        double share[EXPERTS] = {0};
        uint32_t used[WORKERS] = {0};
        for (uint32_t i = s->first[b]; i < s->first[b + 1]; i++) {
            const sl_fill_piece *p = &s->piece[i];
            assert_true(p->expert < EXPERTS && p->worker < WORKERS && p->share > 0);
            if (i > s->first[b] && p[-1].expert == p->expert)
                assert_true(p[-1].worker < p->worker);
            else if (i > s->first[b])
                assert_true(p[-1].expert < p->expert);
            share[p->expert] += p->share;
            used[p->worker]++;
        }
        for (uint32_t e = 0; e < EXPERTS; e++) assert_true(fabs(share[e] - 1) < 1e-9);
        for (uint32_t w = 0; w < WORKERS; w++) assert_true(used[w] <= slots);
    }
}

static void costs_are_what_the_formula_says(void **state) {
    (void)state;
    sl_rebalance_shape s = shape();
    s.cost = (sl_stage_cost){.fixed_us = 2, .floor_us = 10, .row_us = 1};
    bench *x = make(s);
    for (uint32_t i = 0; i < N; i++) x->rows[i] = x->calls[i] = 0;
    x->rows[0] = 100, x->calls[0] = 4;                   /* block 0, worker 0: 8 + 100 */
    x->rows[4] = 8, x->calls[4] = 4;                     /* block 0, worker 1: 8 + 40 */
    x->rows[EXPERTS + 4] = 8, x->calls[EXPERTS + 4] = 4; /* block 1, worker 1: 48 */
    sl_rebalance_cost c = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS);
    assert_true(fabs(c.us - (108 + 48)) < 1e-9);
    assert_true(fabs(c.bound_us - (108 + 48 + 48) / 4.0) < 1e-9);
    x->r.shape.barrier = false;
    c = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS);
    assert_true(fabs(c.us - 108) < 1e-9);
    /* Half of the rows: 25 rows a call, of which some are nearly always here. */
    x->now.piece[0].share = 0.5;
    c = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS);
    assert_true(c.us == 96); /* worker 1, both blocks */
    end(x);
}

static void calls_of_copies_are_joined(void **state) {
    (void)state;
    bench *x = make(shape());
    sl_spread *s = &x->now;
    /* Expert 0 of block 0 also lives on worker 3, with a quarter of its rows. */
    memmove(s->piece + 2, s->piece + 1, (N - 1) * sizeof *s->piece);
    s->piece[0].share = 0.75;
    s->piece[1] = (sl_fill_piece){0, 3, 0.25};
    for (uint32_t b = 1; b <= BLOCKS; b++) s->first[b]++;
    double one = 40 * (1 - pow(0.25, 120.0 / 40)), two = 40 * (1 - pow(0.75, 120.0 / 40));
    x->rows[0] = 120, x->calls[0] = one + two;
    x->rows[1] = 7, x->calls[1] = 5;
    sl_rebalance_join_calls(&x->r, s, &x->load);
    assert_true(fabs(x->calls[0] - 40) < 1e-3 && x->calls[1] == 5 && x->calls[2] == 0);
    end(x);
}

static void skewed(bench *x, uint64_t *rng) {
    for (uint32_t i = 0; i < N; i++) {
        double u = (1 + (double)sl_rng_below(rng, 1u << 20)) / (1 + (1u << 20));
        x->rows[i] = floor(-1000 * log(u));
        x->calls[i] = fmin(x->rows[i], 200);
    }
}

static void drawn_loads_come_close_to_the_bound(void **state) {
    (void)state;
    static const sl_stage_cost costs[] = {
        {0}, {.fixed_us = 1, .row_us = 5}, {.floor_us = 10, .row_us = 5}};
    uint64_t rng = 11;
    for (size_t k = 0; k < SL_LEN(costs); k++) {
        double mean = 0, worst = 0, before = 0;
        for (int draw = 0; draw < 40; draw++) {
            sl_rebalance_shape s = shape();
            s.cost = costs[k];
            bench *x = make(s);
            skewed(x, &rng);
            move(x);
            is_sound(&x->to, EXPERTS / WORKERS + 1);
            sl_rebalance_cost was = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS),
                              is = sl_rebalance_cost_of(&x->r, &x->load, &x->to, WORKERS);
            assert_true(is.us <= was.us && is.us >= is.bound_us * (1 - 1e-9));
            mean += is.us / is.bound_us / 40;
            before += was.us / was.bound_us / 40;
            worst = fmax(worst, is.us / is.bound_us);
            end(x);
        }
        printf("costs %zu: %.3f of the bound before; %.3f after, worst %.3f\n", k, before, mean,
               worst);
        assert_true(before > 1.25 && worst <= 1.08);
    }
}

static void what_is_even_stays(void **state) {
    (void)state;
    uint32_t added[WORKERS];
    bench *x = make(shape());
    for (uint32_t i = 0; i < N; i++) x->rows[i] = x->calls[i] = 100 + i % 2;
    move(x);
    sl_rebalance_added(&x->r, &x->now, &x->to, added);
    for (uint32_t w = 0; w < WORKERS; w++) assert_int_equal(added[w], 0);
    assert_int_equal(x->to.first[BLOCKS], N);
    /* Nothing was counted: nothing is uneven. */
    memset(x->rows, 0, sizeof x->rows);
    move(x);
    assert_int_equal(x->to.first[BLOCKS], N);
    sl_rebalance_added(&x->r, &x->now, &x->to, added);
    for (uint32_t w = 0; w < WORKERS; w++) assert_int_equal(added[w], 0);
    end(x);
}

/* One worker has both dear ones of a block: one of them goes, what else moves is little. */
static void little_moves(void **state) {
    (void)state;
    uint32_t added[WORKERS], moved = 0;
    bench *x = make(shape());
    for (uint32_t i = 0; i < N; i++) x->rows[i] = x->calls[i] = 10;
    x->rows[0] = x->rows[1] = 60;
    move(x);
    sl_rebalance_added(&x->r, &x->now, &x->to, added);
    for (uint32_t w = 0; w < WORKERS; w++) moved += added[w];
    assert_in_range(moved, 1, 10);
    for (uint32_t i = EXPERTS; i < N; i++) /* other blocks are even */
        assert_int_equal(x->to.piece[x->to.first[BLOCKS] - N + i].worker, i % EXPERTS / 4);
    end(x);
}

static void the_same_twice(void **state) {
    (void)state;
    uint64_t rng = 5;
    bench *x = make(shape()), *y = make(shape());
    skewed(x, &rng);
    memcpy(y->rows, x->rows, sizeof x->rows);
    memcpy(y->calls, x->calls, sizeof x->calls);
    for (uint32_t i = 0; i < EXPERTS; i++) x->rows[i] = y->rows[i] = 50; /* ties, too */
    move(x);
    move(y);
    assert_memory_equal(x->to.first, y->to.first, (BLOCKS + 1) * sizeof *x->to.first);
    assert_memory_equal(x->to.piece, y->to.piece, x->to.first[BLOCKS] * sizeof *x->to.piece);
    end(x);
    end(y);
}

/* A worker that is no host any more gives up what it had; without room it is an error. */
static void hosts_can_be_fewer(void **state) {
    (void)state;
    static const uint32_t some[] = {0, 2, 3}, one[] = {2};
    sl_err err;
    bench *x = make(shape());
    for (uint32_t i = 0; i < N; i++) x->rows[i] = x->calls[i] = 10;
    const sl_rebalance_task t = {&x->load, &x->now, some, 3, NULL},
                            lone = {&x->load, &x->now, one, 1, NULL};
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_int_equal(sl_rebalance_block(&x->r, &t, b, &x->to, &err), SL_OK);
    is_sound(&x->to, 7);
    for (uint32_t i = 0; i < x->to.first[BLOCKS]; i++)
        assert_int_not_equal(x->to.piece[i].worker, 1);
    assert_int_equal(sl_rebalance_block(&x->r, &lone, 0, &x->to, &err), SL_OK);
    for (uint32_t i = 0; i < x->to.first[1]; i++) assert_int_equal(x->to.piece[i].worker, 2);
    end(x);
}

static void placements_become_spreads(void **state) {
    (void)state;
    sl_rebalance_shape s = shape();
    uint32_t first[EXPERTS + 1];
    sl_host host[EXPERTS + 1];
    sl_spread out;
    sl_err err;
    for (uint32_t e = 0; e <= EXPERTS; e++) first[e] = e + (e > 0);
    host[0] = (sl_host){1, 1u << 30};
    for (uint32_t i = 1; i <= EXPERTS; i++) host[i] = (sl_host){(i + 1) % 4, UINT32_MAX};
    const sl_placement p = {.n_layers = 1, .first = first, .host = host};
    assert_int_equal(sl_spread_create(&s, &out, &err), SL_OK);
    assert_true(sl_spread_of(&s, &p, &out));
    assert_int_equal(out.first[BLOCKS], BLOCKS * (EXPERTS + 1));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_true(out.piece[out.first[b]].share == 0.25 && out.piece[out.first[b]].worker == 1);
        assert_true(out.piece[out.first[b] + 1].share == 0.75);
    }
    is_sound(&out, 6);
    out.cap = 20;
    assert_false(sl_spread_of(&s, &p, &out));
    sl_spread_free(&out);
    s.n_workers = SL_REBALANCE_MAX_WORKERS + 1;
    sl_rebalance r;
    assert_int_equal(sl_rebalance_create(&s, &r, &err), SL_ERR_UNSUPPORTED);
}

/* ---- workers that differ ---- */

/* Worker 3 is on a GPU: weights are read in a tenth of the time, rows computed in a twentieth. */
static const uint8_t last[WORKERS] = {0, 0, 0, 1};

static sl_rebalance_shape mixed(void) {
    sl_rebalance_shape s = shape();
    s.cost = (sl_stage_cost){.fixed_us = 10, .row_us = 2};
    s.other = last;
    s.other_cost = (sl_stage_cost){.fixed_us = 1, .row_us = 0.1};
    return s;
}

/* Expert e of each block has 1000 / (1 + e) rows, in 50 calls at most. */
static void falling(bench *x) {
    for (uint32_t i = 0; i < N; i++) {
        x->rows[i] = floor(1000.0 / (1 + i % EXPERTS));
        x->calls[i] = fmin(x->rows[i], 50);
    }
}

static uint32_t n_at(const sl_spread *s, uint32_t block, uint32_t worker) {
    uint32_t n = 0;
    for (uint32_t i = s->first[block]; i < s->first[block + 1]; i++)
        n += s->piece[i].worker == worker;
    return n;
}

static uint32_t host_of(const sl_spread *s, uint32_t block, uint32_t expert) {
    for (uint32_t i = s->first[block]; i < s->first[block + 1]; i++)
        if (s->piece[i].expert == expert) return s->piece[i].worker;
    return UINT32_MAX;
}

static void hot_experts_land_on_the_fast_device(void **state) {
    (void)state;
    bench *x = make(mixed());
    falling(x);
    sl_rebalance_cost was = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS);
    move(x);
    sl_rebalance_cost is = sl_rebalance_cost_of(&x->r, &x->load, &x->to, WORKERS);
    is_sound(&x->to, EXPERTS);
    printf("%.2f of the bound, then %.3f\n", was.us / was.bound_us, is.us / is.bound_us);
    assert_true(is.us < 1.3 * is.bound_us && is.us >= is.bound_us && was.us > 5 * was.bound_us);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 0; e < 4; e++) assert_int_equal(host_of(&x->to, b, e), 3);
    end(x);
}

/* What every hot expert costs where it cannot go on is borne, and room is never exceeded. */
static void room_on_a_device_is_respected(void **state) {
    (void)state;
    for (uint32_t places = 0; places <= 7; places++) {
        uint32_t most[WORKERS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 12 + places};
        uint32_t gets[WORKERS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, places};
        uint32_t added[WORKERS], n = 0;
        uint8_t full[WORKERS] = {0, 0, 0, places == 0};
        sl_rebalance_limits l = {most, gets, full, UINT32_MAX};
        bench *x = make(mixed());
        falling(x);
        x->limits = &l;
        move(x);
        is_sound(&x->to, EXPERTS);
        sl_rebalance_added(&x->r, &x->now, &x->to, added);
        for (uint32_t b = 0; b < BLOCKS; b++) n += n_at(&x->to, b, 3);
        assert_true(n <= 12 + places);
        assert_int_equal(added[3], places); /* and it is used: hot ones for those that are not */
        assert_int_equal(l.lacks, places ? UINT32_MAX : 3);
        if (places >= 3)
            for (uint32_t b = 0; b < BLOCKS; b++) assert_int_equal(host_of(&x->to, b, 0), 3);
        end(x);
    }
}

/* Each change brings as many as are free, until what is asked for most is there. */
static void changes_follow_each_other_where_little_is_free(void **state) {
    (void)state;
    bench *x = make(mixed());
    falling(x);
    double before = INFINITY;
    for (uint32_t k = 0; k < 5; k++) {
        uint32_t most[WORKERS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 12};
        uint32_t gets[WORKERS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 3};
        uint8_t full[WORKERS] = {0};
        sl_rebalance_limits l = {most, gets, full, UINT32_MAX};
        x->limits = &l;
        move(x);
        const double us = sl_rebalance_cost_of(&x->r, &x->load, &x->to, WORKERS).us;
        assert_true(us <= before);
        before = us;
        sl_spread_copy(&x->r.shape, &x->to, &x->now);
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(n_at(&x->now, b, 3), 4);
        for (uint32_t e = 0; e < 3; e++) assert_int_equal(host_of(&x->now, b, e), 3);
    }
    end(x);
}

/* Costs that are the same are those of workers that are alike. */
static void the_bound_of_both_kinds_is_that_of_one_where_they_are_the_same(void **state) {
    (void)state;
    uint64_t rng = 3;
    sl_rebalance_shape s = mixed(), t = shape();
    s.other_cost = t.cost = s.cost;
    for (int k = 0; k < 2; k++) {
        bench *x = make(s), *y = make(t);
        skewed(x, &rng);
        memcpy(y->rows, x->rows, sizeof x->rows);
        memcpy(y->calls, x->calls, sizeof x->calls);
        const sl_rebalance_cost a = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS),
                                b = sl_rebalance_cost_of(&y->r, &y->load, &y->now, WORKERS);
        assert_true(a.us == b.us && fabs(a.bound_us / b.bound_us - 1) < 1e-4);
        end(x);
        end(y);
        s.barrier = t.barrier = false;
    }
}

/* No placement that is drawn is cheaper than the bound. */
static void nothing_is_below_the_bound(void **state) {
    (void)state;
    uint64_t rng = 17;
    for (int draw = 0; draw < 200; draw++) {
        sl_rebalance_shape s = mixed();
        s.barrier = draw % 2;
        bench *x = make(s);
        skewed(x, &rng);
        for (uint32_t i = 0; i < N; i++)
            x->now.piece[i].worker =
                sl_rng_below(&rng, 4) ? 3 : (uint32_t)sl_rng_below(&rng, WORKERS);
        const sl_rebalance_cost c = sl_rebalance_cost_of(&x->r, &x->load, &x->now, WORKERS);
        assert_true(c.us >= c.bound_us);
        move(x);
        const sl_rebalance_cost m = sl_rebalance_cost_of(&x->r, &x->load, &x->to, WORKERS);
        assert_true(m.us >= m.bound_us && m.us <= c.us);
        end(x);
    }
}

/* Copies go where one may go, and never two to one worker. */
static void copies_stay_copies(void **state) {
    (void)state;
    bench *x = make(mixed());
    sl_spread *s = &x->now;
    falling(x);
    uint32_t at = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        s->first[b] = at;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            s->piece[at++] = (sl_fill_piece){e, e % 2, 0.5};
            s->piece[at++] = (sl_fill_piece){e, 2, 0.5};
        }
    }
    s->first[BLOCKS] = at;
    move(x);
    is_sound(&x->to, EXPERTS);
    assert_int_equal(x->to.first[BLOCKS], at);
    assert_true(n_at(&x->to, 0, 3) > 4);
    end(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_what_the_formula_says),
        cmocka_unit_test(calls_of_copies_are_joined),
        cmocka_unit_test(drawn_loads_come_close_to_the_bound),
        cmocka_unit_test(what_is_even_stays),
        cmocka_unit_test(little_moves),
        cmocka_unit_test(the_same_twice),
        cmocka_unit_test(hosts_can_be_fewer),
        cmocka_unit_test(placements_become_spreads),
        cmocka_unit_test(hot_experts_land_on_the_fast_device),
        cmocka_unit_test(room_on_a_device_is_respected),
        cmocka_unit_test(changes_follow_each_other_where_little_is_free),
        cmocka_unit_test(the_bound_of_both_kinds_is_that_of_one_where_they_are_the_same),
        cmocka_unit_test(nothing_is_below_the_bound),
        cmocka_unit_test(copies_stay_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

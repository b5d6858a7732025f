/* When experts move: loads that are skewed, flat, that drift, and that are made on purpose so that
 * whatever is done is wrong. */
#include "sched/adapt.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCKS = 3, EXPERTS = 16, WORKERS = 4, PAIRS = 12000 /* of a block in a window */ };

static const uint32_t all[WORKERS] = {0, 1, 2, 3};

/* A deployment of nothing but its placement. */
typedef struct world {
    sl_adapt a;
    uint32_t first[BLOCKS * EXPERTS + 1];
    sl_host host[BLOCKS * (2 * EXPERTS + WORKERS)];
    sl_placement place;
    uint64_t free[WORKERS], machine[WORKERS];
    const uint8_t *own; /* NULL: no device has memory of its own */
    uint64_t now_us, rng;
    uint32_t n_changes, n_refused;
    uint64_t words; /* hash of all */
    bool fails;     /* changes are given up */
} world;

static sl_rebalance_shape shape(void) {
    return (sl_rebalance_shape){.n_blocks = BLOCKS,
                                .n_experts = EXPERTS,
                                .n_workers = WORKERS,
                                .spare = 1,
                                .copies = true,
                                .barrier = true,
                                .cost = {.row_us = 20}};
}

static void start(world *w, const sl_adapt_opts *o) {
    const sl_rebalance_shape s = shape();
    sl_err err;
    *w = (world){.rng = 7};
    w->place = (sl_placement){BLOCKS, w->first, w->host};
    for (uint32_t i = 0; i < BLOCKS * EXPERTS; i++) {
        w->first[i + 1] = i + 1;
        w->host[i] = (sl_host){i % EXPERTS / (EXPERTS / WORKERS), UINT32_MAX};
    }
    for (uint32_t i = 0; i < WORKERS; i++) w->free[i] = UINT64_MAX;
    assert_int_equal(sl_adapt_create(&s, o, 0, &w->a, &err), SL_OK);
}

static void take(world *w) {
    const sl_spread *s = &w->a.next;
    uint32_t at = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t i = s->first[b]; i < s->first[b + 1]; i++, at++) {
            const sl_fill_piece *p = &s->piece[i];
            bool first = i == s->first[b] || p[-1].expert != p->expert;
            double below = first ? 0 : w->host[at - 1].until / 4294967296.0;
            bool last = i + 1 == s->first[b + 1] || p[1].expert != p->expert;
            double until = (below + p->share) * 4294967296.0;
            if (first) w->first[b * EXPERTS + p->expert] = at;
            w->host[at] = (sl_host){p->worker, last ? UINT32_MAX : (uint32_t)until};
        }
    }
    w->first[BLOCKS * EXPERTS] = at;
}

static void hash(world *w, uint64_t v) {
    uint64_t x = w->words ^ v;
    w->words = sl_rng_next(&x);
}

static const sl_adapt_view *view(const world *w, sl_adapt_view *v) {
    *v = (sl_adapt_view){&w->place, all, WORKERS, {WORKERS, w->free, w->machine, w->own}};
    return v;
}

/* Asks until there is nothing to do. */
static void ask(world *w) {
    sl_adapt_view v;
    for (uint32_t i = 0; i < 2 * BLOCKS; i++) {
        sl_adapt_word word = sl_adapt_next(&w->a, view(w, &v), w->now_us);
        hash(w, word);
        w->n_refused += word == SL_ADAPT_REFUSED;
        if (word != SL_ADAPT_CHANGE) continue;
        w->n_changes++;
        hash(w, w->now_us);
        if (!w->fails) take(w);
        sl_adapt_changed(&w->a, !w->fails, 10000, w->now_us + 10000);
    }
}

/* In batches of four. */
static void say(world *w, uint32_t block, uint32_t expert, uint64_t rows, int64_t queued) {
    sl_adapt_add(&w->a, block, expert, (sl_adapt_said){rows, rows / 4, queued});
}

/* Popularity falls as exp(-theta * rank); expert `hot` has rank 0. Rows are drawn one by one. */
static void window(world *w, double theta, uint32_t hot, double load) {
    double p[EXPERTS], sum = 0;
    for (uint32_t r = 0; r < EXPERTS; r++) sum += p[r] = exp(-theta * r);
    for (uint32_t part = 0; part < 4; part++) {
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint64_t rows[EXPERTS] = {0};
            for (uint32_t n = 0; n < (uint32_t)(load * PAIRS / 4); n++) {
                double u = (double)sl_rng_below(&w->rng, 1u << 30) / (1u << 30) * sum;
                uint32_t r = 0;
                while (r + 1 < EXPERTS && u >= p[r]) u -= p[r++];
                rows[(r + hot) % EXPERTS]++;
            }
            for (uint32_t e = 0; e < EXPERTS; e++) say(w, b, e, rows[e], 0);
        }
        w->now_us += w->a.o.window_us / 4;
        ask(w);
    }
}

static void skewed_load_becomes_even_at_once_and_for_good(void **state) {
    (void)state;
    world w;
    for (uint32_t hot = 0; hot < EXPERTS; hot += 7) {
        start(&w, &SL_ADAPT_OPTS);
        for (int i = 0; i < 30; i++) window(&w, 0.2, hot, 1);
        printf("hot from %u: %.3f of the bound, then %.3f, now %.3f\n", hot, w.a.promise.before,
               w.a.promise.after, w.a.imbalance);
        assert_int_equal(w.n_changes, 1);
        assert_true(w.a.promise.before > 1.2 && w.a.imbalance < 1.08);
        assert_int_equal(w.a.n_doublings, 0);
        sl_adapt_free(&w.a);
    }
}

static void flat_load_moves_nothing(void **state) {
    (void)state;
    world w;
    static const double loads[] = {1, 0.1, 0.03}; /* the last: noise alone is far above 8 % */
    for (size_t k = 0; k < SL_LEN(loads); k++) {
        start(&w, &SL_ADAPT_OPTS);
        for (int i = 0; i < 60; i++) window(&w, 0, 0, loads[k]);
        assert_int_equal(w.n_changes, 0);
        sl_adapt_free(&w.a);
    }
}

/* Queues of schedule aep beside a placement. Each worker computes CAPACITY rows of all blocks in a
 * quarter of a window at most, of its queues in proportion; the rest waits. */
enum { CAPACITY = 40000 };

typedef struct queued {
    world w;
    uint64_t waits[BLOCKS][EXPERTS];
    bool silent; /* nobody says what waits */
} queued;

static uint32_t owner_of(const world *w, uint32_t block, uint32_t expert) {
    return w->host[w->first[block * EXPERTS + expert]].worker;
}

/* Of what waits at a worker, so many are computed: all, or CAPACITY in proportion. */
static uint64_t computed(const queued *q, uint64_t waits, uint32_t worker) {
    uint64_t sum = 0;
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (owner_of(&q->w, b, e) == worker) sum += q->waits[b][e];
    return sum <= CAPACITY ? waits : waits * CAPACITY / sum;
}

/* Where the hot experts are, 1.2 times CAPACITY comes in a quarter, to the others 0.92 times. A
 * change waits for the steps in flight: queues are empty then. */
static void quarter(queued *q, uint32_t hot) {
    uint32_t seen = q->w.n_changes, each = EXPERTS / WORKERS * BLOCKS;
    uint64_t done[BLOCKS][EXPERTS], before[BLOCKS][EXPERTS];
    memcpy(before, q->waits, sizeof before);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            q->waits[b][e] += (e / (EXPERTS / WORKERS) == hot ? 120 : 92) * CAPACITY / 100 / each;
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            done[b][e] = computed(q, q->waits[b][e], owner_of(&q->w, b, e));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            q->waits[b][e] -= done[b][e];
            int64_t more = (int64_t)q->waits[b][e] - (int64_t)before[b][e];
            say(&q->w, b, e, done[b][e], q->silent ? 0 : more);
        }
    }
    q->w.now_us += q->w.a.o.window_us / 4;
    ask(&q->w);
    if (q->w.n_changes != seen) memset(q->waits, 0, sizeof q->waits);
}

static uint64_t all_that_waits(const queued *q) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 0; e < EXPERTS; e++) n += q->waits[b][e];
    return n;
}

/* A worker that has no time left computes as much as before while its queues grow: by what was
 * computed alone the load is even to 6 %, and nothing would ever move. */
static void queues_that_grow_move_experts(void **state) {
    (void)state;
    enum { QUARTERS = 160 };
    static queued q;
    uint64_t left[2];
    for (int silent = 0; silent < 2; silent++) {
        q = (queued){.silent = silent};
        start(&q.w, &SL_ADAPT_OPTS);
        q.w.a.balance.shape.barrier = false;
        for (uint32_t i = 0; i < QUARTERS; i++) quarter(&q, 1);
        left[silent] = all_that_waits(&q);
        printf("%s queues: %u changes, %.3f of the least, %llu rows wait\n",
               silent ? "without" : "with", q.w.n_changes, q.w.a.imbalance,
               (unsigned long long)left[silent]);
        if (silent)
            assert_int_equal(q.w.n_changes, 0);
        else
            assert_in_range(q.w.n_changes, 1, 3);
        assert_true(q.w.a.imbalance < 1.08);
        sl_adapt_free(&q.w.a);
    }
    assert_true(left[1] > (uint64_t)QUARTERS * CAPACITY / 6); /* 0.2 of CAPACITY a quarter */
    assert_true(left[0] < left[1] / 10);
}

/* What waited and is computed later counts once, and what was dropped counts nothing off. */
static void what_waits_counts_once(void **state) {
    (void)state;
    world w;
    start(&w, &SL_ADAPT_OPTS);
    say(&w, 1, 3, 100, 50);
    assert_true(w.a.open_rows == 150);
    say(&w, 1, 3, 50, -50);
    assert_true(w.a.open_rows == 150 && w.a.open.rows[EXPERTS + 3] == 150);
    say(&w, 1, 3, 0, 20);
    say(&w, 1, 3, 0, -20); /* a change broke its step: the rows come again */
    assert_true(w.a.open_rows == 170);
    sl_adapt_free(&w.a);
}

static void too_few_rows_say_nothing(void **state) {
    (void)state;
    world w;
    start(&w, &SL_ADAPT_OPTS);
    for (int i = 0; i < 3; i++) window(&w, 0.5, 0, 0.003);
    assert_int_equal(w.n_changes + w.a.n_closed, 0);
    sl_adapt_free(&w.a);
}

static void drifting_load_is_followed(void **state) {
    (void)state;
    world w;
    start(&w, &SL_ADAPT_OPTS);
    uint32_t even = 0;
    for (uint32_t i = 0; i < 200; i++) {
        window(&w, 0.3, i / 40 * 5 % EXPERTS, 1);
        even += i % 40 >= 10 && w.a.imbalance < 1.08;
    }
    printf("5 loads: %u changes, even in %u of 150 windows\n", w.n_changes, even);
    assert_in_range(w.n_changes, 5, 10);
    assert_true(even >= 130);
    sl_adapt_free(&w.a);
}

/* The hot experts are others in every window, or every few: few changes are tried. */
static void what_alternates_is_not_followed(void **state) {
    (void)state;
    world w;
    for (uint32_t period = 1; period <= 8; period += period < 4 ? 1 : 2) {
        start(&w, &SL_ADAPT_OPTS);
        for (uint32_t i = 0; i < 200; i++) window(&w, 0.4, i / period % 2 * (EXPERTS / 2), 1);
        printf("every %u windows: %u changes in 200\n", period, w.n_changes);
        assert_true(w.n_changes <= (period < 8 ? 8u : 25u)); /* one a load at most, then */
        if (period == 1) assert_true(w.n_changes <= 4);
        sl_adapt_free(&w.a);
    }
}

/* Who sees what was done and at once makes the load that it is worst for. */
static void an_adversary_tires(void **state) {
    (void)state;
    world w;
    uint32_t hot = 0, seen = 0, n_half = 0;
    start(&w, &SL_ADAPT_OPTS);
    for (uint32_t i = 0; i < 400; i++) {
        if (w.n_changes != seen) hot = (hot + EXPERTS / 2) % EXPERTS;
        seen = w.n_changes;
        window(&w, 0.4, hot, 1);
        if (i == 199) n_half = w.n_changes;
    }
    printf("against an adversary: %u changes in 200 windows, %u in 400\n", n_half, w.n_changes);
    assert_true(n_half <= 6 && w.n_changes <= 7);
    sl_adapt_free(&w.a);
}

static void changes_that_fail_are_tried_ever_later(void **state) {
    (void)state;
    world w;
    start(&w, &SL_ADAPT_OPTS);
    w.fails = true;
    for (uint32_t i = 0; i < 160; i++) window(&w, 0.3, 0, 1);
    assert_in_range(w.n_changes, 4, 5); /* 320 s; 20, 40, 80, 160 s between them */
    sl_adapt_free(&w.a);
}

static void what_does_not_fit_is_refused_with_the_figure(void **state) {
    (void)state;
    sl_adapt_opts o = SL_ADAPT_OPTS;
    o.expert_bytes = 100000000;
    world w;
    start(&w, &o);
    for (uint32_t i = 0; i < WORKERS; i++) w.free[i] = 250000000;
    for (uint32_t i = 0; i < 20; i++) window(&w, 0.3, 0, 1);
    assert_int_equal(w.n_changes, 0);
    assert_int_equal(w.n_refused, 2); /* in 40 s: after 4 and 24 */
    printf("%s\n", w.a.why);
    assert_non_null(strstr(w.a.why, "has 250.0 MB left"));
    /* Each on a machine of its own has room for what it gets. */
    for (uint32_t i = 0; i < WORKERS; i++) w.machine[i] = i, w.free[i] = 10000000000ull;
    for (uint32_t i = 0; i < 20; i++) window(&w, 0.3, 0, 1);
    assert_int_equal(w.n_changes, 1);
    sl_adapt_free(&w.a);
}

/* Little is saved where experts are little of the time. */
static void what_does_not_pay_is_left(void **state) {
    (void)state;
    sl_adapt_opts o = SL_ADAPT_OPTS;
    o.pause_us = 2e6; /* in a minute the 0.2 ms a window that are saved are 7 ms */
    world w;
    start(&w, &o);
    for (uint32_t i = 0; i < 20; i++) window(&w, 0.02, 0, 1);
    assert_int_equal(w.n_changes, 0);
    sl_adapt_free(&w.a);
}

static void a_disturbance_begins_the_window_anew(void **state) {
    (void)state;
    world w;
    sl_adapt_view v;
    start(&w, &SL_ADAPT_OPTS);
    window(&w, 0.3, 0, 1);
    for (uint32_t i = 0; i < 20; i++) {
        for (uint32_t e = 0; e < EXPERTS; e++) say(&w, 0, e, 10000, 0);
        w.now_us += w.a.o.window_us / 2;
        sl_adapt_disturbed(&w.a, w.now_us);
        ask(&w);
    }
    assert_int_equal(w.n_changes, 0);
    assert_int_equal(w.a.n_closed, 1);
    /* In the middle of a thought, too. */
    window(&w, 0.3, 0, 1);
    sl_adapt_disturbed(&w.a, w.now_us);
    assert_int_equal(sl_adapt_next(&w.a, view(&w, &v), w.now_us), SL_ADAPT_NOTHING);
    sl_adapt_free(&w.a);
}

static void the_same_loads_get_the_same_words(void **state) {
    (void)state;
    uint64_t words[2];
    for (int k = 0; k < 2; k++) {
        world w;
        start(&w, &SL_ADAPT_OPTS);
        for (uint32_t i = 0; i < 40; i++) window(&w, 0.3, i / 20 * 5, 1);
        words[k] = w.words;
        sl_adapt_free(&w.a);
    }
    assert_true(words[0] == words[1]);
}

static void without_memory_there_is_none(void **state) {
    (void)state;
    const sl_rebalance_shape s = shape();
    sl_adapt a;
    sl_err err;
    uint64_t nth = 1;
    do {
        sl_mem_fail_at(nth++);
    } while (sl_adapt_create(&s, &SL_ADAPT_OPTS, 0, &a, &err) == SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    assert_true(nth > 4);
    sl_adapt_free(&a);
}

/* ---- a GPU among them ---- */

enum { GPU = 3, EACH = 1000000 };

static const uint8_t gpu[WORKERS] = {0, 0, 0, 1};

/* Worker 3 computes a row in a fiftieth of the time, and has room for so many experts beside those
 * that it begins with. */
static void start_with_gpu(world *w, uint64_t places) {
    sl_adapt_opts o = SL_ADAPT_OPTS;
    o.expert_bytes = EACH;
    start(w, &o);
    w->a.balance.shape.other = w->own = gpu;
    w->a.balance.shape.other_cost = (sl_stage_cost){.row_us = 0.4};
    for (uint32_t i = 0; i < WORKERS; i++) w->machine[i] = i;
    w->free[GPU] = places * EACH;
}

static uint32_t n_on_gpu(const world *w) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->first[BLOCKS * EXPERTS]; i++) n += w->host[i].worker == GPU;
    return n;
}

/* The memory is what it was at the start, less what is there now. */
static void follow_memory(world *w, uint64_t places) {
    const uint32_t n = n_on_gpu(w);
    assert_true(n <= places);
    w->free[GPU] = (places - n) * EACH;
}

static void hot_experts_come_to_a_gpu_by_as_many_changes_as_its_room_asks_for(void **state) {
    (void)state;
    static const uint32_t room[] = {3, 12, 1000};
    uint32_t n_changes = UINT32_MAX;
    for (size_t k = 0; k < SL_LEN(room); k++) {
        world w;
        const uint32_t places = BLOCKS * EXPERTS / WORKERS + room[k];
        start_with_gpu(&w, room[k]);
        for (int i = 0; i < 120; i++) {
            window(&w, 0.3, 0, 1);
            follow_memory(&w, places);
        }
        printf("room for %u: %u changes, %u on the GPU, %.2f of the least\n", room[k], w.n_changes,
               n_on_gpu(&w), w.a.imbalance);
        assert_int_equal(w.n_refused, 0);
        assert_true(w.n_changes > 0 && w.n_changes <= n_changes);
        n_changes = w.n_changes;
        for (uint32_t b = 0; b < BLOCKS; b++)
            for (uint32_t e = 0; e < 2; e++)
                assert_int_equal(w.host[w.first[b * EXPERTS + e]].worker, GPU);
        sl_adapt_free(&w.a);
    }
}

/* What is asked for then is there after a while. */
static void popularity_that_changes_is_followed_in_little_room(void **state) {
    (void)state;
    world w;
    start_with_gpu(&w, 6);
    for (int i = 0; i < 200; i++) {
        window(&w, 0.3, i < 80 ? 0 : 9, 1);
        follow_memory(&w, BLOCKS * EXPERTS / WORKERS + 6);
    }
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t e = 9; e < 11; e++)
            assert_int_equal(w.host[w.first[b * EXPERTS + e]].worker, GPU);
    assert_int_equal(w.n_refused, 0);
    sl_adapt_free(&w.a);
}

static void a_full_gpu_is_said_to_be_so(void **state) {
    (void)state;
    world w;
    start_with_gpu(&w, 0);
    for (int i = 0; i < 30; i++) {
        window(&w, 0.3, 0, 1);
        w.free[GPU] = EACH / 2;
    }
    printf("%s\n", w.a.why);
    for (uint32_t i = 0; i < w.first[BLOCKS * EXPERTS]; i++)
        if (w.host[i].worker == GPU) assert_true(i % EXPERTS >= 12); /* nothing came */
    assert_true(w.n_refused > 0);
    assert_non_null(strstr(w.a.why, "need 1.0 MB beside those that are there"));
    assert_non_null(strstr(w.a.why, "worker 3's GPU has 0.5 MB left"));
    sl_adapt_free(&w.a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skewed_load_becomes_even_at_once_and_for_good),
        cmocka_unit_test(flat_load_moves_nothing),
        cmocka_unit_test(queues_that_grow_move_experts),
        cmocka_unit_test(what_waits_counts_once),
        cmocka_unit_test(too_few_rows_say_nothing),
        cmocka_unit_test(drifting_load_is_followed),
        cmocka_unit_test(what_alternates_is_not_followed),
        cmocka_unit_test(an_adversary_tires),
        cmocka_unit_test(changes_that_fail_are_tried_ever_later),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_figure),
        cmocka_unit_test(what_does_not_pay_is_left),
        cmocka_unit_test(a_disturbance_begins_the_window_anew),
        cmocka_unit_test(the_same_loads_get_the_same_words),
        cmocka_unit_test(hot_experts_come_to_a_gpu_by_as_many_changes_as_its_room_asks_for),
        cmocka_unit_test(popularity_that_changes_is_followed_in_little_room),
        cmocka_unit_test(a_full_gpu_is_said_to_be_so),
        cmocka_unit_test(without_memory_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The queues of an expert worker under aep: places, batches of one queue and of a whole layer,
 * sources that go; and drawn sequences of everything against a plain model. */
#include "base/mem.h"
#include "base/rng.h"
#include "sched/policy.h"
#include "sched/queues.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define ME      7u
#define LAYERS  4u
#define EXPERTS 6u
#define PLACES  64u

static sl_err err;

#define OK(call) assert_int_equal((call), SL_OK)

/* Worker ME hosts the experts of `mask`, others the rest; `layers` as in sl_placement. */
typedef struct hosting {
    sl_plan plan;
    uint32_t first[LAYERS * EXPERTS + 1];
    sl_host host[LAYERS * EXPERTS];
} hosting;

static void host_at(hosting *h, uint32_t layers, const uint32_t mask[]) {
    *h = (hosting){.plan = {.policy = SL_POLICY_MTFS,
                            .lookahead = 2,
                            .delta = 1,
                            .n_experts = EXPERTS,
                            .place = {.n_layers = layers}}};
    h->plan.place.first = h->first;
    h->plan.place.host = h->host;
    for (uint32_t i = 0; i < layers * EXPERTS; i++) {
        bool mine = mask[i / EXPERTS] >> (i % EXPERTS) & 1;
        h->first[i + 1] = i + 1;
        h->host[i] = (sl_host){.worker = mine ? ME : ME + 1, .until = UINT32_MAX};
    }
}

static sl_queues *make(hosting *h, uint32_t mask, sl_policy policy, uint32_t places) {
    sl_queues *q;
    host_at(h, 1, &mask);
    h->plan.policy = policy;
    OK(sl_queues_create(&h->plan, LAYERS, ME, places, &q, &err));
    return q;
}

static uint32_t push(sl_queues *q, uint32_t layer, uint32_t expert, uint32_t source, uint32_t rows,
                     uint64_t wave) {
    return sl_queues_push(q, &(sl_queue_entry){layer, expert, source, rows, wave});
}

/* The next batch is this group of `n` places, alone. */
static void expect_one(sl_queues *q, uint32_t layer, uint32_t expert, uint32_t rows, uint32_t n,
                       const uint32_t place[]) {
    sl_queue_batch b;
    assert_true(sl_queues_take(q, &b));
    assert_true(b.layer == layer && b.n_groups == 1 && b.n == n && b.n_rows == rows);
    assert_true(b.expert[0] == expert && b.rows[0] == rows && b.first[0] == 0 && b.first[1] == n);
    assert_memory_equal(b.place, place, n * sizeof *place);
    assert_int_equal(b.oldest, place[0]);
    sl_queues_done(q);
}

/* ---- rules ---- */

static void places_come_and_go(void **state) {
    (void)state;
    hosting h;
    sl_queue_batch b;
    sl_queues *q = make(&h, 0x3F, SL_POLICY_MTFS, 2);
    assert_false(sl_queues_take(q, &b));
    uint32_t first = push(q, 1, 0, 3, 1, 0), second = push(q, 2, 0, 3, 5, 0);
    assert_true(first == 0 && second == 1 && sl_queues_room(q) == 0);
    OK(sl_queues_reserve(q, 1, &err)); /* no effect */
    assert_true(sl_queues_places(q) == 2 && sl_queues_room(q) == 0);
    OK(sl_queues_reserve(q, 4, &err)); /* what is there stays */
    assert_true(sl_queues_places(q) == 4 && sl_queues_room(q) == 2);
    uint32_t third = push(q, 1, 0, 3, 1, 0);
    assert_int_equal(third, 2);
    assert_true(sl_queues_rows(q) == 7);
    expect_one(q, 2, 0, 5, 1, (uint32_t[]){second});
    expect_one(q, 1, 0, 2, 2, (uint32_t[]){first, third});
    assert_true(sl_queues_rows(q) == 0 && sl_queues_room(q) == 4);
    assert_false(sl_queues_take(q, &b));
    sl_queues_free(q);
    sl_queues_free(NULL);
}

static void a_running_batch_keeps_its_places(void **state) {
    (void)state;
    hosting h;
    sl_queue_batch b;
    sl_queues *q = make(&h, 0x3F, SL_POLICY_MTFS, 3);
    uint32_t first = push(q, 0, 1, 0, 1, 0);
    assert_true(sl_queues_take(q, &b));
    uint32_t second = push(q, 0, 1, 0, 1, 0); /* comes while it runs: not in it */
    assert_true(first != second && sl_queues_room(q) == 1 && b.n == 1 && b.place[0] == first);
    sl_queues_done(q);
    assert_int_equal(sl_queues_room(q), 2);
    expect_one(q, 0, 1, 1, 1, &second);
    sl_queues_free(q);
}

static void one_queue_or_a_whole_layer(void **state) {
    (void)state;
    hosting h;
    sl_queue_batch b;
    sl_queues *q = make(&h, 0x2D, SL_POLICY_MTFS, PLACES); /* experts 0, 2, 3, 5 */
    uint32_t p[6] = {push(q, 1, 5, 0, 2, 0), push(q, 1, 0, 1, 1, 0), push(q, 1, 5, 1, 3, 0),
                     push(q, 1, 3, 0, 1, 0), push(q, 2, 2, 0, 1, 0)};
    expect_one(q, 1, 5, 5, 2, (uint32_t[]){p[0], p[2]}); /* layer 2 has rows, too */
    p[5] = push(q, 2, 0, 4, 1, 0);
    expect_one(q, 1, 0, 1, 1, &p[1]); /* of equals the oldest */
    expect_one(q, 1, 3, 1, 1, &p[3]);
    assert_true(sl_queues_take(q, &b)); /* layer 2 is alone now: by expert */
    assert_true(b.layer == 2 && b.n_groups == 2 && b.n == 2 && b.n_rows == 2);
    assert_true(b.expert[0] == 0 && b.expert[1] == 2 && b.first[0] == 0 && b.first[1] == 1 &&
                b.first[2] == 2 && b.place[0] == p[5] && b.place[1] == p[4]);
    assert_int_equal(b.oldest, p[4]);
    sl_queues_done(q);
    sl_queues_free(q);
}

static void sources_go(void **state) {
    (void)state;
    hosting h;
    const uint32_t *gone;
    sl_queues *q = make(&h, 0x3F, SL_POLICY_RMF, 8);
    uint32_t p[6];
    for (uint32_t i = 0; i < 5; i++) p[i] = push(q, 1, 4, i == 1 || i == 4, i + 1, 10 - i);
    p[5] = push(q, 3, 0, 1, 1, 0);
    assert_int_equal(sl_queues_drop(q, 1, &gone), 3); /* from the middle, the end, and all */
    for (uint32_t i = 0; i < 3; i++)
        assert_true(gone[i] == p[1] || gone[i] == p[4] || gone[i] == p[5]);
    assert_int_equal(sl_queues_waits(q, 1, 4), 8);
    assert_int_equal(sl_queues_waits(q, 3, 0), 0);
    assert_true(sl_queues_rows(q) == 1 + 3 + 4 && sl_queues_room(q) == 5);
    uint32_t late = push(q, 1, 4, 2, 1, 20); /* goes behind what is left */
    expect_one(q, 1, 4, 9, 4, (uint32_t[]){p[0], p[2], p[3], late});
    p[0] = push(q, 0, 0, 5, 1, 1); /* the only one goes: nothing of it is remembered */
    assert_int_equal(sl_queues_drop(q, 5, &gone), 1);
    p[1] = push(q, 0, 0, 6, 1, 7);
    p[2] = push(q, 1, 0, 6, 1, 6);
    expect_one(q, 1, 0, 1, 1, &p[2]);
    assert_int_equal(sl_queues_drop(q, 99, &gone), 0);
    assert_true(sl_queues_seen(q) == 20 && sl_queues_rows(q) == 1);
    sl_queues_free(q);
}

static void only_what_is_hosted(void **state) {
    (void)state;
    hosting h;
    sl_queues *q;
    sl_queue_batch b;
    const uint32_t by_layer[LAYERS] = {0, 1u << 5, 1u << 2, 0};
    host_at(&h, LAYERS, by_layer); /* in any block: a queue in each */
    OK(sl_queues_create(&h.plan, LAYERS, ME, 4, &q, &err));
    uint32_t place = push(q, 1, 5, 0, 1, 0);
    push(q, 2, 2, 0, 1, 0);
    expect_one(q, 1, 5, 1, 1, &place);
    sl_queues_free(q);
    q = make(&h, 0, SL_POLICY_DEFRAG, 0); /* hosts nothing: there is never a batch */
    assert_false(sl_queues_take(q, &b));
    sl_queues_free(q);
}

static void memory_runs_out(void **state) {
    (void)state;
    hosting h;
    const uint32_t mask = 0x15;
    host_at(&h, 1, &mask);
    bool made = false;
    for (uint64_t nth = 1; !made; nth++) {
        sl_queues *q = (sl_queues *)&h;
        sl_mem_fail_at(nth);
        sl_status st = sl_queues_create(&h.plan, LAYERS, ME, 4, &q, &err);
        sl_mem_fail_at(0);
        made = st == SL_OK;
        if (made) assert_int_equal(nth, 5);
        if (!made) assert_true(st == SL_ERR_NOMEM && q == NULL);
        sl_queues_free(q);
    }
    sl_queues *q = make(&h, 0x15, SL_POLICY_MTFS, 2);
    uint32_t p[2] = {push(q, 0, 0, 0, 1, 0), push(q, 0, 0, 0, 1, 0)};
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_queues_reserve(q, 100, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
        assert_true(sl_queues_places(q) == 2 && sl_queues_room(q) == 0);
    }
    OK(sl_queues_reserve(q, 100, &err));
    expect_one(q, 0, 0, 2, 2, p);
    assert_int_equal(sl_queues_room(q), 100);
    sl_queues_free(q);
}

/* ---- a plain model ---- */

typedef struct item {
    sl_queue_entry e;
    uint32_t place;
    bool here;
} item;

typedef struct model {
    sl_plan plan;
    uint32_t hosted[EXPERTS], n_hosted;
    item item[4096]; /* in order of arrival */
    uint32_t n;
    sl_queue_state state[LAYERS * EXPERTS];
    uint64_t total[LAYERS], arrivals, rows, seen;
    double ahead[LAYERS];
    bool taken[PLACES];
} model;

static uint32_t queue_of(const model *m, const sl_queue_entry *e) {
    uint32_t at = 0;
    while (m->hosted[at] != e->expert) at++;
    return e->layer * m->n_hosted + at;
}

static void model_push(model *m, const sl_queue_entry *e, uint32_t place) {
    sl_queue_state *s = &m->state[queue_of(m, e)];
    assert_true(m->n < SL_LEN(m->item) && place < PLACES && !m->taken[place]);
    m->taken[place] = true;
    m->item[m->n++] = (item){*e, place, true};
    if (s->rows == 0) *s = (sl_queue_state){0, m->arrivals, e->wave};
    s->rows += e->rows;
    s->wave = SL_MIN(s->wave, e->wave);
    m->arrivals += e->rows;
    m->total[e->layer] += e->rows;
    m->rows += e->rows;
    m->seen = SL_MAX(m->seen, e->wave);
}

/* It runs or its source is gone; the place is free when the batch is done, or at once. */
static void model_remove(model *m, item *it) {
    m->state[queue_of(m, &it->e)].rows -= it->e.rows;
    m->total[it->e.layer] -= it->e.rows;
    m->rows -= it->e.rows;
    it->here = false;
}

/* Entries of a queue, in order, are group g of the batch; returns how many they are. */
static uint32_t model_group(model *m, uint32_t at, const sl_queue_batch *b, uint32_t g) {
    uint32_t n = b->first[g], rows = m->state[at].rows;
    assert_true(g < b->n_groups && b->rows[g] == rows);
    assert_int_equal(b->expert[g], m->hosted[at % m->n_hosted]);
    for (uint32_t i = 0; i < m->n; i++) {
        if (!m->item[i].here || queue_of(m, &m->item[i].e) != at) continue;
        assert_true(n < b->n && b->place[n++] == m->item[i].place);
        model_remove(m, &m->item[i]);
    }
    assert_int_equal(b->first[g + 1], n);
    return rows;
}

static void model_take(model *m, const sl_queue_batch *b) {
    uint32_t picked, groups = 0, oldest = 0;
    uint64_t rows = 0, age = UINT64_MAX;
    const sl_policy_view v = {m->plan.policy, m->plan.lookahead, m->plan.delta, LAYERS,
                              m->n_hosted,    m->state,          m->total,      m->ahead};
    assert_true(sl_policy_pick(&v, &picked));
    uint32_t layer = picked / m->n_hosted;
    bool alone = m->rows == m->total[layer];
    assert_true(b->layer == layer && b->first[0] == 0);
    for (uint32_t at = layer * m->n_hosted; at < (layer + 1) * m->n_hosted; at++) {
        if (!m->state[at].rows || (!alone && at != picked)) continue;
        if (m->state[at].head < age) oldest = b->place[b->first[groups]];
        age = SL_MIN(age, m->state[at].head);
        rows += model_group(m, at, b, groups++);
    }
    assert_true(b->n_groups == groups && b->n == b->first[groups] && b->n_rows == rows);
    assert_int_equal(b->oldest, oldest);
}

static void model_drop(model *m, sl_queues *q, uint32_t source) {
    const uint32_t *place;
    uint32_t n = sl_queues_drop(q, source, &place), want = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(m->taken[place[i]]);
        m->taken[place[i]] = false;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        if (!m->item[i].here || m->item[i].e.source != source) continue;
        assert_false(m->taken[m->item[i].place]);
        model_remove(m, &m->item[i]);
        want++;
    }
    assert_int_equal(n, want);
}

static void drawn(uint64_t seed) {
    static model m;
    uint64_t rng = seed;
    hosting h;
    uint32_t mask = 1 + (uint32_t)sl_rng_below(&rng, (1u << EXPERTS) - 1), running = 0;
    uint32_t most_rows = sl_rng_below(&rng, 2) ? 1 : 9, run[PLACES];
    sl_queues *q = make(&h, mask, (sl_policy)sl_rng_below(&rng, SL_POLICY_COUNT), 3);
    m = (model){.plan = h.plan};
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (mask >> e & 1) m.hosted[m.n_hosted++] = e;
    for (int i = 0; i < 2000; i++) {
        sl_queue_batch b;
        uint32_t what = (uint32_t)sl_rng_below(&rng, 20);
        if (what < 13 && sl_queues_room(q) == 0 && sl_queues_places(q) < PLACES)
            OK(sl_queues_reserve(q, SL_MIN(2 * sl_queues_places(q), PLACES), &err));
        if (what < 13 && sl_queues_room(q) > 0) {
            const sl_queue_entry e = {.layer = (uint32_t)sl_rng_below(&rng, LAYERS),
                                      .expert = m.hosted[sl_rng_below(&rng, m.n_hosted)],
                                      .source = (uint32_t)sl_rng_below(&rng, 4),
                                      .rows = 1 + (uint32_t)sl_rng_below(&rng, most_rows),
                                      .wave = sl_rng_below(&rng, 30)};
            model_push(&m, &e, sl_queues_push(q, &e));
        } else if (what < 19 && running > 0) {
            for (; running > 0; running--) m.taken[run[running - 1]] = false;
            sl_queues_done(q);
        } else if (what < 19 && m.rows > 0) {
            assert_true(sl_queues_take(q, &b));
            model_take(&m, &b);
            running = b.n;
            memcpy(run, b.place, b.n * sizeof *run);
        } else if (what == 19 && running == 0) {
            model_drop(&m, q, (uint32_t)sl_rng_below(&rng, 4));
        }
        assert_true(sl_queues_rows(q) == m.rows && sl_queues_seen(q) == m.seen);
        if (i % 50 > 0) continue;
        uint64_t waits = 0;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++) waits += sl_queues_waits(q, l, e);
        assert_true(waits == m.rows);
    }
    sl_queues_free(q);
}

static void drawn_sequences(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) drawn(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_come_and_go),
        cmocka_unit_test(a_running_batch_keeps_its_places),
        cmocka_unit_test(one_queue_or_a_whole_layer),
        cmocka_unit_test(sources_go),
        cmocka_unit_test(only_what_is_hosted),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(drawn_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The four policies: vectors, ties, the ring, the recurrence against the sum it stands for, and a
 * small discrete-event simulation in which first-layer-first starves all tokens but the new ones
 * while defrag and rearmost-first deliver. */
#include "base/mem.h"
#include "base/rng.h"
#include "sanitized.h"
#include "sched/policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define RING 6u
#define N    3u
#define MOST 64u

typedef struct field {
    sl_queue_state q[MOST * 4];
    uint64_t total[MOST];
    double ahead[MOST];
    sl_policy_view v;
} field;

static void field_init(field *f, sl_policy p, uint32_t ring, uint32_t n) {
    memset(f, 0, sizeof *f);
    f->v = (sl_policy_view){.policy = p,
                            .lookahead = 2,
                            .delta = 1,
                            .ring = ring,
                            .n = n,
                            .queue = f->q,
                            .total = f->total,
                            .ahead = f->ahead};
}

static void put(field *f, uint32_t b, uint32_t e, uint32_t rows, uint64_t head, uint64_t wave) {
    f->q[b * f->v.n + e] = (sl_queue_state){.rows = rows, .head = head, .wave = wave};
    f->total[b] += rows;
}

static void expect(const field *f, uint32_t b, uint32_t e) {
    uint32_t got = UINT32_MAX;
    assert_true(sl_policy_pick(&f->v, &got));
    assert_int_equal(got, b * f->v.n + e);
}

static void nothing_to_pick(void **state) {
    (void)state;
    field f;
    for (int p = 0; p < SL_POLICY_COUNT; p++) {
        uint32_t got;
        field_init(&f, (sl_policy)p, RING, N);
        assert_false(sl_policy_pick(&f.v, &got));
        put(&f, 4, 1, 1, 9, 3);
        expect(&f, 4, 1); /* an empty queue never wins, whatever will come to it */
    }
}

static void each_by_its_own_rule(void **state) {
    (void)state;
    static const struct {
        sl_policy policy;
        uint32_t layer, index;
    } want[] = {{SL_POLICY_MTFS, 3, 2},
                {SL_POLICY_FLFS, 1, 1},
                {SL_POLICY_RMF, 4, 0},
                {SL_POLICY_DEFRAG, 2, 0}};
    for (size_t i = 0; i < SL_LEN(want); i++) {
        field f;
        field_init(&f, want[i].policy, RING, N);
        put(&f, 1, 0, 3, 1, 7);
        put(&f, 1, 1, 4, 2, 7);
        put(&f, 2, 0, 6, 3, 8); /* 6 and (8 + 7) / 3 behind it */
        put(&f, 3, 2, 8, 4, 8); /* 8 and 7 / 3 behind it */
        put(&f, 4, 0, 2, 5, 6);
        put(&f, 4, 1, 5, 6, 9);
        expect(&f, want[i].layer, want[i].index);
    }
}

static void ties(void **state) {
    (void)state;
    field f;
    field_init(&f, SL_POLICY_MTFS, RING, N); /* the oldest head, wherever it is */
    put(&f, 1, 0, 4, 12, 0);
    put(&f, 2, 1, 4, 11, 0);
    put(&f, 5, 0, 4, 13, 0);
    expect(&f, 2, 1);
    field_init(&f, SL_POLICY_MTFS, RING, N); /* then the lower layer, then the lower index */
    put(&f, 2, 2, 4, 11, 0);
    put(&f, 2, 1, 4, 11, 0);
    put(&f, 3, 0, 4, 11, 0);
    expect(&f, 2, 1);
    field_init(&f, SL_POLICY_DEFRAG, RING, N); /* one score: 3 + 3/3 and 4 + 0: the longer queue */
    put(&f, 0, 0, 3, 1, 0);
    put(&f, 1, 0, 1, 2, 0);
    put(&f, 2, 2, 2, 3, 0);
    put(&f, 4, 0, 4, 9, 0);
    f.v.lookahead = 2;
    expect(&f, 4, 0);
    field_init(&f, SL_POLICY_RMF, RING, N); /* one wave and layer: the longer queue */
    put(&f, 3, 0, 1, 1, 5);
    put(&f, 3, 1, 2, 2, 5);
    put(&f, 4, 0, 9, 0, 5);
    expect(&f, 3, 1);
    field_init(&f, SL_POLICY_FLFS, RING, N);
    put(&f, 3, 0, 2, 2, 5);
    put(&f, 3, 1, 2, 1, 5);
    expect(&f, 3, 1);
}

static void the_ring_is_round(void **state) {
    (void)state;
    field f;
    field_init(&f, SL_POLICY_DEFRAG, RING, 1);
    put(&f, RING - 1, 0, 2, 1, 0); /* 2 + 3 of layer 0, behind the end */
    put(&f, 0, 0, 3, 2, 0);
    put(&f, 3, 0, 4, 3, 0);
    f.v.lookahead = 1;
    expect(&f, RING - 1, 0);
    assert_true(f.ahead[RING - 1] == 3 && f.ahead[0] == 0 && f.ahead[2] == 4);
    f.v.lookahead = 1000; /* as deep as the ring: every layer sees all the others */
    expect(&f, 3, 0);
    assert_true(f.ahead[3] == 5 && f.ahead[0] == 6 && f.ahead[1] == 9);
    field_init(&f, SL_POLICY_DEFRAG, 1, 1); /* a ring of one has nothing ahead */
    put(&f, 0, 0, 3, 2, 0);
    expect(&f, 0, 0);
    assert_true(f.ahead[0] == 0);
}

static double direct(const sl_policy_view *v, uint32_t b) {
    double sum = 0;
    uint32_t depth = SL_MIN(v->lookahead, v->ring - 1);
    for (uint32_t k = 1; k <= depth; k++)
        sum += pow(v->delta, k) * (double)v->total[(b + k) % v->ring] / v->n;
    return sum;
}

/* The winner by the definition, compared pair by pair. */
static uint32_t plain_pick(const sl_policy_view *v) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < v->ring * v->n; i++) {
        const sl_queue_state *a = &v->queue[i], *b = &v->queue[best == UINT32_MAX ? i : best];
        if (a->rows == 0) continue;
        uint32_t la = i / v->n, lb = best / v->n;
        double key_a[4] = {0}, key_b[4] = {0}; /* smaller is better, from the first on */
        if (v->policy == SL_POLICY_DEFRAG)
            key_a[0] = -(a->rows + direct(v, la)), key_b[0] = -(b->rows + direct(v, lb));
        if (v->policy == SL_POLICY_RMF) key_a[0] = (double)a->wave, key_b[0] = (double)b->wave;
        if (v->policy == SL_POLICY_RMF || v->policy == SL_POLICY_FLFS) key_a[1] = la, key_b[1] = lb;
        key_a[2] = -(double)a->rows, key_b[2] = -(double)b->rows;
        key_a[3] = (double)a->head, key_b[3] = (double)b->head;
        bool wins = best == UINT32_MAX;
        for (int k = 0; !wins && k < 4; k++) {
            if (key_a[k] < key_b[k]) wins = true;
            if (key_a[k] != key_b[k]) break;
        }
        if (wins) best = i;
    }
    return best;
}

static void as_the_definition_says(void **state) {
    (void)state;
    static const double deltas[] = {1, 0.5, 0.25, 0.9, 0.7};
    uint64_t rng = 11;
    for (uint32_t round = 0; round < 20000 / take_one_in(SL_SLOW_BUILD ? 10 : 1); round++) {
        field f;
        uint32_t ring = 1 + (uint32_t)sl_rng_below(&rng, MOST);
        uint32_t n = 1u << sl_rng_below(&rng, 3); /* sums stay exact where delta is a power of 2 */
        uint32_t full = (uint32_t)sl_rng_below(&rng, 5);
        field_init(&f, (sl_policy)sl_rng_below(&rng, SL_POLICY_COUNT), ring, n);
        size_t which = sl_rng_below(&rng, SL_LEN(deltas));
        f.v.delta = deltas[which];
        f.v.lookahead = (uint32_t)sl_rng_below(&rng, which == 0 ? 80 : 8);
        for (uint32_t i = 0; i < ring * n; i++)
            if (sl_rng_below(&rng, 5) <= full)
                put(&f, i / n, i % n, (uint32_t)sl_rng_below(&rng, 7), sl_rng_below(&rng, 9),
                    sl_rng_below(&rng, 4));
        sl_policy_lookahead(&f.v);
        for (uint32_t b = 0; b < ring; b++)
            if (!(fabs(f.ahead[b] - direct(&f.v, b)) < 1e-9))
                fail_msg("round %u: L[%u] is %.17g, not %.17g", round, b, f.ahead[b],
                         direct(&f.v, b));
        uint32_t got = UINT32_MAX;
        bool any = sl_policy_pick(&f.v, &got);
        bool exact = which < 3 || f.v.policy != SL_POLICY_DEFRAG;
        assert_int_equal(any, plain_pick(&f.v) != UINT32_MAX);
        if (exact && any && got != plain_pick(&f.v))
            fail_msg("round %u, policy %d: %u, not %u", round, f.v.policy, got, plain_pick(&f.v));
    }
}

/* ---- four attention and four expert workers in virtual time ---- */

#define BLOCKS   32u
#define EXPERTS  8u
#define RANKS    4u
#define PER_RANK 2u      /* experts of an expert worker */
#define TOKENS   65536u  /* in the system at once */
#define EVENTS   262144u /* at once */

typedef struct token {
    uint32_t next, left, home, block, expert;
    uint64_t wave;
} token;

typedef struct fifo {
    uint32_t head, tail;
} fifo;

typedef struct rank {
    uint32_t ring, n, batch; /* batch: first token of what runs, NONE: idle */
    uint32_t layer, running, in_system;
    uint64_t newest;
    sl_queue_state *queue;
    fifo *list;
    uint64_t total[BLOCKS + 1];
    double ahead[BLOCKS + 1];
} rank;

typedef struct event {
    double at;
    uint64_t order;
    uint32_t worker, tokens; /* tokens: list that arrives; NONE: worker has finished its batch */
} event;

typedef struct world {
    rank worker[2 * RANKS];
    token *t;
    uint32_t free_token;
    event *heap;
    size_t n_events;
    double now;
    uint64_t rng, order, arrivals, emitted, batches, batched;
    double p[BLOCKS][EXPERTS];
    sl_policy policy;
    uint32_t lookahead;
    double delta;
} world;

#define NONE UINT32_MAX

static bool sooner(const event *a, const event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push_event(world *w, double at, uint32_t worker, uint32_t tokens) {
    assert_true(w->n_events < EVENTS);
    size_t i = w->n_events++;
    const event e = {at, w->order++, worker, tokens};
    for (; i > 0 && sooner(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
}

static event pop_event(world *w) {
    event top = w->heap[0], e = w->heap[--w->n_events];
    size_t i = 0;
    for (size_t c = 1; c < w->n_events; c = 2 * i + 1) {
        if (c + 1 < w->n_events && sooner(&w->heap[c + 1], &w->heap[c])) c++;
        if (!sooner(&w->heap[c], &e)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = e;
    return top;
}

static void enqueue(world *w, uint32_t worker, uint32_t tok) {
    rank *r = &w->worker[worker];
    token *t = &w->t[tok];
    uint32_t at = t->block * r->n + (worker < RANKS ? 0 : t->expert % PER_RANK);
    sl_queue_state *q = &r->queue[at];
    if (q->rows == 0) {
        *q = (sl_queue_state){.head = w->arrivals, .wave = t->wave};
        r->list[at].head = tok;
    } else {
        w->t[r->list[at].tail].next = tok;
    }
    r->list[at].tail = tok;
    t->next = NONE;
    q->wave = SL_MIN(q->wave, t->wave);
    q->rows++;
    r->total[t->block]++;
    w->arrivals++;
}

/* Milliseconds of a batch: the model of AMoE's testbed that docs/schedules.md gives. */
static double cost(uint32_t worker, uint32_t layer, uint32_t rows) {
    if (worker >= RANKS) return 0.10 + fmax(0.20, 0.00155 * rows);
    return layer == BLOCKS ? 0.05 + 0.0002 * rows : 0.30 + 0.001 * rows;
}

static void start_batch(world *w, uint32_t worker) {
    rank *r = &w->worker[worker];
    uint32_t at;
    const sl_policy_view v = {.policy = w->policy,
                              .lookahead = w->lookahead,
                              .delta = w->delta,
                              .ring = r->ring,
                              .n = r->n,
                              .queue = r->queue,
                              .total = r->total,
                              .ahead = r->ahead};
    if (r->batch != NONE || !sl_policy_pick(&v, &at)) return;
    uint64_t wave = r->queue[at].wave;
    r->batch = r->list[at].head;
    r->layer = at / r->n;
    r->running = r->queue[at].rows;
    r->total[r->layer] -= r->running;
    r->queue[at].rows = 0;
    for (uint32_t i = r->batch; i != NONE; i = w->t[i].next) w->t[i].wave = wave;
    if (worker < RANKS && r->layer == 0) r->newest = wave;
    w->batches++;
    w->batched += r->running;
    push_event(w, w->now + cost(worker, r->layer, r->running), worker, NONE);
}

static uint32_t draw_expert(world *w, uint32_t block) {
    double u = (double)(sl_rng_next(&w->rng) >> 11) * 0x1p-53;
    for (uint32_t e = 0; e < EXPERTS - 1; e++)
        if ((u -= w->p[block][e]) < 0) return e;
    return EXPERTS - 1;
}

/* Where a token of a finished batch goes; NONE: nowhere. */
static uint32_t route(world *w, uint32_t worker, uint32_t tok) {
    token *t = &w->t[tok];
    if (worker >= RANKS) {
        t->block++;
        return t->home;
    }
    if (t->block < BLOCKS) {
        t->expert = draw_expert(w, t->block);
        return RANKS + t->expert / PER_RANK;
    }
    w->emitted++;
    t->block = 0;
    t->wave++;
    if (--t->left > 0) return worker;
    t->next = w->free_token;
    w->free_token = tok;
    w->worker[worker].in_system--;
    return NONE;
}

static void finish_batch(world *w, uint32_t worker) {
    rank *r = &w->worker[worker];
    uint32_t to[2 * RANKS];
    for (uint32_t i = 0; i < SL_LEN(to); i++) to[i] = NONE;
    for (uint32_t i = r->batch, next; i != NONE; i = next) {
        next = w->t[i].next;
        uint32_t dst = route(w, worker, i);
        if (dst == NONE) continue;
        w->t[i].next = to[dst];
        to[dst] = i;
    }
    r->batch = NONE;
    for (uint32_t i = 0; i < SL_LEN(to); i++)
        if (to[i] != NONE) push_event(w, w->now + (i == worker ? 0 : 0.10), i, to[i]);
}

static void new_request(world *w) {
    uint32_t home = 0, tok = w->free_token;
    assert_true(tok != NONE);
    w->free_token = w->t[tok].next;
    for (uint32_t i = 1; i < RANKS; i++)
        if (w->worker[i].in_system < w->worker[home].in_system) home = i;
    w->t[tok] = (token){.home = home,
                        .left = 20 + (uint32_t)sl_rng_below(&w->rng, 41),
                        .wave = w->worker[home].newest + 1};
    w->worker[home].in_system++;
    enqueue(w, home, tok);
    start_batch(w, home);
}

static void world_init(world *w, sl_policy policy, uint32_t lookahead, double delta) {
    *w = (world){.rng = 5, .policy = policy, .lookahead = lookahead, .delta = delta};
    w->t = sl_alloc(TOKENS, sizeof *w->t);
    w->heap = sl_alloc(EVENTS, sizeof *w->heap);
    assert_true(w->t && w->heap);
    for (uint32_t i = 0; i < TOKENS; i++) w->t[i].next = i + 1 < TOKENS ? i + 1 : NONE;
    for (uint32_t i = 0; i < 2 * RANKS; i++) {
        rank *r = &w->worker[i];
        r->ring = i < RANKS ? BLOCKS + 1 : BLOCKS;
        r->n = i < RANKS ? 1 : PER_RANK;
        r->batch = NONE;
        r->queue = sl_alloc((size_t)r->ring * r->n, sizeof *r->queue);
        r->list = sl_alloc((size_t)r->ring * r->n, sizeof *r->list);
        assert_true(r->queue && r->list);
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        double all = 0;
        for (uint32_t e = 0; e < EXPERTS; e++) all += w->p[b][e] = exp(-0.6 * e);
        for (uint32_t e = 0; e < EXPERTS; e++) w->p[b][e] /= all;
        for (uint32_t e = EXPERTS; e-- > 1;) {
            uint32_t o = (uint32_t)sl_rng_below(&w->rng, e + 1);
            double p = w->p[b][e];
            w->p[b][e] = w->p[b][o];
            w->p[b][o] = p;
        }
    }
}

static void world_free(world *w) {
    for (uint32_t i = 0; i < 2 * RANKS; i++) {
        sl_free(w->worker[i].queue);
        sl_free(w->worker[i].list);
    }
    sl_free(w->t);
    sl_free(w->heap);
}

/* Poisson arrivals into an empty system, 37,600 tokens a second offered. Returns the tokens that
 * came out in the last of `seconds` seconds. */
static uint64_t open_loop(sl_policy policy, uint32_t lookahead, double delta, uint32_t seconds) {
    static world w;
    double arrival = 0, end = seconds * 1e3;
    uint64_t before = 0;
    world_init(&w, policy, lookahead, delta);
    while (w.now < end) {
        if (w.n_events == 0 || arrival < w.heap[0].at) {
            w.now = arrival;
            double u = (double)((sl_rng_next(&w.rng) >> 11) + 1) * 0x1p-53;
            arrival += -log(u) * 40 / 37.6;
            new_request(&w);
        } else {
            event e = pop_event(&w);
            w.now = e.at;
            for (uint32_t i = e.tokens, next; i != NONE; i = next) {
                next = w.t[i].next;
                enqueue(&w, e.worker, i);
            }
            if (e.tokens == NONE) finish_batch(&w, e.worker);
            start_batch(&w, e.worker);
        }
        if (w.now < end - 1e3) before = w.emitted;
    }
    uint32_t stuck = 0;
    for (uint32_t i = 0; i < RANKS; i++) stuck += w.worker[i].in_system;
    printf(
        "policy %d (%u, %g): %llu tokens in the last second, batches of %.1f, %u in the system\n",
        policy, lookahead, delta, (unsigned long long)(w.emitted - before),
        (double)w.batched / (double)w.batches, stuck);
    world_free(&w);
    return w.emitted - before;
}

static void first_layer_first_locks_up(void **state) {
    (void)state;
    assert_true(open_loop(SL_POLICY_FLFS, 0, 1, 6) < 376);
}

static void defrag_and_rearmost_first_deliver(void **state) {
    (void)state;
    assert_true(open_loop(SL_POLICY_RMF, 0, 1, 6) > 32000);
    assert_true(open_loop(SL_POLICY_DEFRAG, 2, 1.0, 6) > 30000);
    assert_true(open_loop(SL_POLICY_DEFRAG, 4, 0.9, 6) > 26000);
    assert_true(open_loop(SL_POLICY_MTFS, 0, 1, 6) > 10000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_pick),
        cmocka_unit_test(each_by_its_own_rule),
        cmocka_unit_test(ties),
        cmocka_unit_test(the_ring_is_round),
        cmocka_unit_test(as_the_definition_says),
        cmocka_unit_test(first_layer_first_locks_up),
        cmocka_unit_test(defrag_and_rearmost_first_deliver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

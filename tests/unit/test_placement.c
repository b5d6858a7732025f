/* Placements for those who are there: stories by hand, and drawn placements whose workers are lost:
 * who stays, who moves, how even that is. */
#include "format/placement.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MOST 9u
#define KEYS 4294967296.0

/* A plan of this many workers, the first of them for attention, with owners alike in all blocks. */
static sl_plan owned(sl_plan_worker *w, uint32_t n_workers, const uint32_t *owner, uint32_t n) {
    sl_plan p = {.n_workers = n_workers, .worker = w, .n_experts = n};
    sl_err err;
    for (uint32_t i = 0; i < n_workers; i++)
        w[i] = (sl_plan_worker){.id = i, .roles = i ? SL_ROLE_EXPERT : SL_ROLE_ATTENTION};
    assert_int_equal(sl_placement_of_owners(owner, n, &p.place, &err), SL_OK);
    return p;
}

static sl_plan rehosted(const sl_plan *home, const uint8_t *there) {
    sl_plan p = *home;
    sl_err err;
    if (sl_placement_rehost(home, there, &p.place, &err) != SL_OK) fail_msg("%s", err.msg);
    return p;
}

static void same(const sl_placement *a, const sl_placement *b, uint32_t n_experts) {
    size_t entries = (size_t)a->n_layers * n_experts;
    assert_int_equal(a->n_layers, b->n_layers);
    assert_memory_equal(a->first, b->first, (entries + 1) * sizeof *a->first);
    assert_memory_equal(a->host, b->host, a->first[entries] * sizeof *a->host);
}

static void the_lost_workers_experts_are_shared_out(void **state) {
    (void)state;
    static const uint32_t owner[] = {1, 1, 1, 2, 2, 2, 3, 3, 3};
    sl_plan_worker w[4];
    sl_plan home = owned(w, 4, owner, 9), p = rehosted(&home, (const uint8_t[]){1, 1, 0, 1});
    for (uint32_t e = 0; e < 9; e++)
        assert_int_equal(sl_plan_host_of(&p, 0, e, 7), owner[e] != 2 ? owner[e] : e % 2 ? 1 : 3);
    sl_placement_free(&p.place);
    p = rehosted(&home,
                 (const uint8_t[]){0, 0, 0, 1}); /* whether attention is there says another */
    for (uint32_t e = 0; e < 9; e++) assert_int_equal(sl_plan_host_of(&p, 0, e, 7), 3);
    sl_placement_free(&p.place);
    sl_err err;
    assert_int_equal(sl_placement_rehost(&home, (const uint8_t[]){1, 0, 0, 0}, &p.place, &err),
                     SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "none of the plan's 3 expert workers is there"));
    sl_placement_free(&home.place);
}

/* Of workers with as much in a block, the one with less in all blocks is next. */
static void even_over_blocks(void **state) {
    (void)state;
    sl_share share[12];
    uint32_t n[12], hosted[4] = {0};
    sl_plan_worker w[4];
    sl_err err;
    for (uint32_t i = 0; i < 12; i++) {
        share[i] = (sl_share){1 + i % 3, 1};
        n[i] = 1;
    }
    sl_plan home = owned(w, 4, (const uint32_t[]){1, 2, 3}, 3);
    sl_placement_free(&home.place);
    assert_int_equal(sl_placement_of_shares(share, n, 4, 3, &home.place, &err), SL_OK);
    sl_plan p = rehosted(&home, (const uint8_t[]){1, 0, 1, 1});
    for (uint32_t l = 0; l < 4; l++)
        for (uint32_t e = 0; e < 3; e++) hosted[sl_plan_host_of(&p, l, e, 0)]++;
    assert_true(hosted[1] == 0 && hosted[2] == 6 && hosted[3] == 6);
    sl_placement_free(&p.place);
    sl_placement_free(&home.place);
}

static void replicas_take_the_share_of_the_lost(void **state) {
    (void)state;
    static const sl_share share[] = {{1, 0.5}, {2, 0.125}, {3, 0.375}, {2, 0.25}, {1, 0.75}};
    sl_plan_worker w[4];
    sl_err err;
    uint32_t n;
    sl_plan home = owned(w, 4, (const uint32_t[]){1, 2}, 2);
    sl_placement_free(&home.place);
    assert_int_equal(
        sl_placement_of_shares(share, (const uint32_t[]){3, 2}, 1, 2, &home.place, &err), SL_OK);
    sl_plan p = rehosted(&home, (const uint8_t[]){1, 0, 1, 1});
    const sl_host *h = sl_plan_hosts(&p, 0, 0, &n);
    assert_true(n == 2 && h[0].worker == 2 && h[0].until == 1u << 30); /* an eighth of a half */
    assert_true(h[1].worker == 3 && h[1].until == UINT32_MAX);
    h = sl_plan_hosts(&p, 0, 1, &n);
    assert_true(n == 1 && h[0].worker == 2 && h[0].until == UINT32_MAX);
    sl_placement_free(&p.place);
    sl_placement_free(&home.place);
}

/* However little a share is, its host has keys, and a plan in JSON says so. */
static void nobody_has_nothing(void **state) {
    (void)state;
    static const sl_share share[] = {{1, 1e-17}, {2, 1},     {3, 1e-17},
                                     {3, 0.25},  {1, 1e-12}, {2, 0.75}};
    sl_plan_worker w[4];
    sl_err err;
    uint32_t n;
    sl_plan home = owned(w, 4, (const uint32_t[]){1, 2}, 2);
    sl_placement_free(&home.place);
    assert_int_equal(
        sl_placement_of_shares(share, (const uint32_t[]){3, 3}, 1, 2, &home.place, &err), SL_OK);
    const sl_host *h = sl_plan_hosts(&home, 0, 0, &n);
    assert_true(n == 3 && h[0].until == 1 && h[1].until == UINT32_MAX && h[2].until == UINT32_MAX);
    h = sl_plan_hosts(&home, 0, 1, &n);
    assert_true(n == 3 && h[0].until == 1u << 30 && h[1].until == (1u << 30) + 1);
    json_t *told = sl_placement_json(&home);
    for (uint32_t e = 0; e < 2; e++)
        for (uint32_t i = 0; i < 3; i++)
            assert_true(json_number_value(
                            json_array_get(json_array_get(json_array_get(told, e), i), 1)) > 0);
    json_decref(told);
    sl_placement_free(&home.place);
}

/* ---- drawn placements ---- */

typedef struct drawing {
    uint64_t rng;
    sl_plan home;
    sl_plan_worker worker[MOST];
    uint8_t there[MOST];
    uint32_t n_expert, n_there; /* expert workers */
} drawing;

static uint32_t below(drawing *d, uint32_t n) {
    return (uint32_t)sl_rng_below(&d->rng, n);
}

/* Hosts of one expert, any of the expert workers in any order; how many. */
static uint32_t draw_hosts(drawing *d, const uint32_t *ids, sl_share *out) {
    uint32_t n = 1 + (below(d, 3) == 0 ? below(d, SL_MIN(d->n_expert, 4u)) : 0), from = 0;
    double left = 1;
    from = below(d, d->n_expert);
    for (uint32_t i = 0; i < n; i++) {
        double share = i + 1 == n ? left : left * (double)(1 + below(d, 1000)) / 1001;
        out[i] = (sl_share){ids[(from + i) % d->n_expert], share};
        left -= share;
    }
    return n;
}

static void draw(drawing *d) {
    static sl_share share[5 * 40 * 4];
    static uint32_t n[5 * 40];
    uint32_t ids[MOST], hosts = 0, layers = 1 + (below(d, 2) ? below(d, 5) : 0);
    sl_err err;
    d->home = (sl_plan){
        .n_workers = 1 + below(d, MOST), .worker = d->worker, .n_experts = 1 + below(d, 40)};
    d->n_expert = d->n_there = 0;
    for (uint32_t i = 0; i < d->home.n_workers; i++) {
        d->worker[i] = (sl_plan_worker){.id = i, .roles = 1 + below(d, 3)};
        if (i + 1 == d->home.n_workers && d->n_expert == 0) d->worker[i].roles = SL_ROLE_EXPERT;
        if (d->worker[i].roles & SL_ROLE_EXPERT) ids[d->n_expert++] = i;
        d->there[i] = below(d, 10) < 7;
        d->n_there += d->there[i] && (d->worker[i].roles & SL_ROLE_EXPERT);
    }
    for (uint32_t i = 0; i < layers * d->home.n_experts; i++)
        hosts += n[i] = draw_hosts(d, ids, share + hosts);
    assert_int_equal(
        sl_placement_of_shares(share, n, layers, d->home.n_experts, &d->home.place, &err), SL_OK);
}

/* Part of the keys that host i of n takes. */
static double part(const sl_host *h, uint32_t i, uint32_t n) {
    return ((i + 1 == n ? KEYS : h[i].until) - (i ? h[i - 1].until : 0.0)) / KEYS;
}

/* Of one expert: its living hosts, in order, with shares in proportion; or one other. Whether it
 * has moved. */
static bool check_expert(const drawing *d, const sl_plan *p, uint32_t l, uint32_t e, double *load) {
    uint32_t n, m, kept = 0;
    double living = 0;
    const sl_host *was = sl_plan_hosts(&d->home, l, e, &n), *is = sl_plan_hosts(p, l, e, &m);
    for (uint32_t i = 0; i < n; i++) living += d->there[was[i].worker] ? part(was, i, n) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!d->there[was[i].worker]) continue;
        assert_true(kept < m && is[kept].worker == was[i].worker);
        assert_true(kept == 0 || is[kept].until >= is[kept - 1].until);
        double error = part(is, kept, m) - part(was, i, n) / living;
        assert_true(error < 1e-6 && error > -1e-6);
        kept++;
    }
    assert_int_equal(m, kept ? kept : 1);
    assert_int_equal(is[m - 1].until, UINT32_MAX);
    for (uint32_t i = 0; i < m; i++) {
        assert_true(d->there[is[i].worker] && (d->worker[is[i].worker].roles & SL_ROLE_EXPERT));
        load[is[i].worker] += part(is, i, m);
    }
    return kept == 0;
}

/* Who was given experts would not be the fullest without the last of them. */
static uint32_t check_block(const drawing *d, const sl_plan *p, uint32_t l) {
    double load[MOST] = {0}, least = 1e9;
    bool given[MOST] = {0};
    uint32_t n, moved = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        if (!check_expert(d, p, l, e, load)) continue;
        given[sl_plan_hosts(p, l, e, &n)->worker] = true;
        moved++;
    }
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (d->there[i] && (d->worker[i].roles & SL_ROLE_EXPERT)) least = SL_MIN(least, load[i]);
    for (uint32_t i = 0; i < p->n_workers; i++)
        assert_true(!given[i] || load[i] <= least + 1 + 1e-6);
    return moved;
}

static void drawn(void **state) {
    (void)state;
    uint32_t moved = 0, infeasible = 0;
    sl_err err;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        drawing d = {.rng = seed * 7919};
        draw(&d);
        sl_plan p = d.home, again = d.home;
        if (d.n_there == 0) {
            infeasible++;
            assert_int_equal(sl_placement_rehost(&d.home, d.there, &p.place, &err),
                             SL_ERR_INFEASIBLE);
        } else {
            p = rehosted(&d.home, d.there);
            again = rehosted(&d.home, d.there);
            same(&p.place, &again.place, p.n_experts);
            for (uint32_t l = 0; l < p.place.n_layers; l++) moved += check_block(&d, &p, l);
            sl_placement_free(&p.place);
            sl_placement_free(&again.place);
        }
        memset(d.there, 1, sizeof d.there);
        p = rehosted(&d.home, d.there);
        same(&p.place, &d.home.place, p.n_experts);
        sl_placement_free(&p.place);
        sl_placement_free(&d.home.place);
    }
    printf("%u experts moved, %u plans without an expert worker\n", moved, infeasible);
    assert_true(moved > 10000 && infeasible > 50);
}

static void out_of_memory(void **state) {
    (void)state;
    sl_plan_worker w[3];
    sl_plan home = owned(w, 3, (const uint32_t[]){1, 2, 2}, 3);
    sl_placement made = {0};
    sl_status st = SL_ERR_NOMEM;
    sl_err err;
    for (uint64_t nth = 1; st != SL_OK; nth++) {
        sl_mem_fail_at(nth);
        st = sl_placement_rehost(&home, (const uint8_t[]){1, 1, 0}, &made, &err);
        sl_mem_fail_at(0);
        assert_true(st == SL_OK ? nth == 5 : st == SL_ERR_NOMEM);
    }
    sl_placement_free(&made);
    sl_placement_free(&home.place);
}

/* Keys of a block that each worker takes. */
static void loads(const sl_plan *p, uint32_t block, double *load) {
    for (uint32_t i = 0; i < p->n_workers; i++) load[i] = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t n, from = 0;
        const sl_host *h = sl_plan_hosts(p, block, e, &n);
        for (uint32_t j = 0; j < n; from = h[j++].until)
            load[h[j].worker] += (j + 1 == n ? KEYS : h[j].until) - from;
    }
}

/* A new worker takes an even share, from those with most, and nothing else moves. */
static void one_more(void **state) {
    (void)state;
    static const uint32_t owner[] = {1, 1, 1, 1, 1, 2, 2, 2, 3};
    sl_plan_worker w[5];
    sl_err err;
    sl_plan p = owned(w, 5, owner, 9);
    w[4].spare = true;
    uint32_t n, *ids = sl_placement_expert_workers(&p, &n);
    assert_true(ids && n == 3);
    sl_free(ids);
    w[4].spare = false;
    assert_int_equal(sl_placement_level(4, &p, &err), SL_OK);
    uint32_t moved = 0;
    for (uint32_t e = 0; e < 9; e++) {
        uint32_t host = sl_plan_host_of(&p, 0, e, 7);
        if (host == owner[e]) continue;
        assert_true(host == 4 && owner[e] == 1);
        moved++;
    }
    assert_int_equal(moved, 2); /* of 9 by 4 workers; worker 1 keeps as many as worker 2 has */
    sl_placement_free(&p.place);
}

/* Drawn replicas: each expert has as many hosts as before, all different. */
static void one_more_among_replicas(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t rng = seed;
        uint32_t n_hosts = 2 + (uint32_t)(sl_rng_next(&rng) % 5), count[3 * 8];
        sl_share share[3 * 8 * 6];
        size_t at = 0;
        sl_plan_worker w[9];
        sl_err err;
        for (uint32_t i = 0; i < 3 * 8; i++) {
            count[i] = 1 + (uint32_t)(sl_rng_next(&rng) % SL_MIN(n_hosts, 3u));
            uint32_t first = (uint32_t)(sl_rng_next(&rng) % n_hosts);
            for (uint32_t j = 0; j < count[i]; j++)
                share[at++] = (sl_share){1 + (first + j) % n_hosts, 1.0 / count[i]};
        }
        sl_plan p = owned(w, n_hosts + 2, (const uint32_t[]){1, 1, 1, 1, 1, 1, 1, 1}, 8);
        assert_int_equal(sl_placement_set_shares(share, count, 3, &p, &err), SL_OK);
        sl_plan before = p;
        assert_int_equal(sl_placement_copy(&p.place, 8, &before.place, &err), SL_OK);
        assert_int_equal(sl_placement_level(n_hosts + 1, &p, &err), SL_OK);
        assert_memory_equal(before.place.first, p.place.first, 25 * sizeof *p.place.first);
        for (uint32_t i = 0; i < p.place.first[24]; i++) {
            const sl_host *was = &before.place.host[i], *is = &p.place.host[i];
            assert_int_equal(was->until, is->until);
            assert_true(is->worker == was->worker || is->worker == n_hosts + 1);
        }
        for (uint32_t b = 0; b < 3; b++) {
            double load[9];
            loads(&p, b, load);
            assert_true(load[n_hosts + 1] <= 8 * KEYS / (n_hosts + 1));
            for (uint32_t e = 0; e < 8; e++) {
                uint32_t n, seen = 0;
                const sl_host *h = sl_plan_hosts(&p, b, e, &n);
                for (uint32_t j = 0; j < n; j++) seen += h[j].worker == n_hosts + 1;
                assert_true(seen <= 1);
            }
        }
        sl_placement_free(&before.place);
        sl_placement_free(&p.place);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lost_workers_experts_are_shared_out),
        cmocka_unit_test(even_over_blocks),
        cmocka_unit_test(replicas_take_the_share_of_the_lost),
        cmocka_unit_test(nobody_has_nothing),
        cmocka_unit_test(drawn),
        cmocka_unit_test(one_more),
        cmocka_unit_test(one_more_among_replicas),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Books of KV pages: order, holders, keys; drawn sequences against a plain model. */
#include "sched/pages.h"

#include "base/mem.h"
#include "base/rng.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static sl_pages pages_of(uint32_t n, uint32_t room) {
    sl_pages p;
    sl_err err;
    assert_int_equal(sl_pages_create(n, room, &p, &err), SL_OK);
    return p;
}

static void lowest_first_then_given_back_last(void **state) {
    (void)state;
    sl_pages p = pages_of(5, 0);
    uint32_t a[3], b[2], c[2], none;
    assert_true(sl_pages_take(&p, 3, a));
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(a[i], i);
    assert_true(sl_pages_take(&p, 1, b));
    assert_int_equal(b[0], 3);
    sl_pages_give(&p, a, 2); /* 0 and 1, in this order again */
    assert_int_equal(p.n_free, 3);
    assert_true(sl_pages_take(&p, 2, c));
    assert_int_equal(c[0], 0);
    assert_int_equal(c[1], 1);
    assert_true(sl_pages_take(&p, 1, &b[1]));
    assert_int_equal(b[1], 4);
    assert_false(sl_pages_take(&p, 1, &none));
    assert_true(sl_pages_take(&p, 0, &none));
    sl_pages_free(&p);
}

/* More than are free: none is taken. */
static void all_or_none(void **state) {
    (void)state;
    sl_pages p = pages_of(4, 4);
    uint32_t ids[5];
    assert_true(sl_pages_take(&p, 2, ids));
    assert_false(sl_pages_take(&p, 3, ids));
    assert_int_equal(p.n_free, 2);
    assert_true(sl_pages_take(&p, 2, ids + 2));
    assert_int_equal(p.n_free, 0);
    sl_pages_free(&p);
}

static void free_when_the_last_holder_gave_it_back(void **state) {
    (void)state;
    sl_pages p = pages_of(3, 0);
    uint32_t ids[2], again;
    assert_true(sl_pages_take(&p, 2, ids));
    sl_pages_share(&p, ids[1]);
    sl_pages_give(&p, ids, 2);
    assert_int_equal(p.n_free, 2);
    assert_int_equal(p.page[ids[1]].holders, 1);
    assert_true(sl_pages_take(&p, 1, &again));
    assert_int_equal(again, ids[0]);
    sl_pages_give(&p, &ids[1], 1);
    assert_int_equal(p.n_free, 2);
    assert_true(sl_pages_take(&p, 1, &again));
    assert_int_equal(again, ids[1]);
    sl_pages_free(&p);
}

static void keys_live_as_long_as_their_page_is_held(void **state) {
    (void)state;
    sl_pages p = pages_of(200, 0);
    uint32_t ids[200];
    assert_int_equal(sl_pages_find(&p, 7), SL_PAGES_NONE);
    assert_true(sl_pages_take(&p, 2, ids));
    assert_int_equal(sl_pages_find(&p, 0), SL_PAGES_NONE);
    sl_pages_set_key(&p, ids[0], 7);
    sl_pages_set_key(&p, ids[1], 7 + 64); /* of the same bucket */
    assert_int_equal(sl_pages_find(&p, 7), ids[0]);
    assert_int_equal(sl_pages_find(&p, 7 + 64), ids[1]);
    assert_int_equal(sl_pages_find(&p, 8), SL_PAGES_NONE);
    assert_true(sl_pages_take(&p, 198, ids + 2)); /* the books grow */
    assert_int_equal(sl_pages_find(&p, 7), ids[0]);
    assert_int_equal(sl_pages_find(&p, 7 + 64), ids[1]);
    sl_pages_share(&p, ids[0]);
    sl_pages_give(&p, ids, 2);
    assert_int_equal(sl_pages_find(&p, 7), ids[0]);
    assert_int_equal(sl_pages_find(&p, 7 + 64), SL_PAGES_NONE);
    sl_pages_give(&p, ids, 1);
    assert_int_equal(sl_pages_find(&p, 7), SL_PAGES_NONE);
    assert_int_equal(p.page[ids[0]].key, 0);
    sl_pages_free(&p);
}

/* A key says what all tokens up to the page's end are, and in which order. */
static void keys_chain(void **state) {
    (void)state;
    uint32_t tokens[3][SL_KV_PAGE_TOKENS];
    for (uint32_t i = 0; i < SL_KV_PAGE_TOKENS; i++) {
        tokens[0][i] = i;
        tokens[1][i] = i;
        tokens[2][i] = i;
    }
    tokens[1][31] = 32;
    tokens[2][0] = 1;
    tokens[2][1] = 0;
    uint64_t first = sl_pages_chain(0, tokens[0]);
    assert_true(first != 0);
    assert_true(first == sl_pages_chain(0, tokens[0]));
    assert_true(first != sl_pages_chain(0, tokens[1]));
    assert_true(first != sl_pages_chain(0, tokens[2]));
    assert_true(sl_pages_chain(first, tokens[0]) != first);
    assert_true(sl_pages_chain(first, tokens[0]) !=
                sl_pages_chain(sl_pages_chain(0, tokens[1]), tokens[0]));
}

/* ---- drawn sequences ---- */

#define MOST 150u

/* Who has what, in plain arrays: the stack of pages in the order in which they will be taken. */
typedef struct model {
    uint32_t stack[MOST], n_free, n, holders[MOST];
    uint64_t key[MOST];
} model;

static void compare(const sl_pages *p, const model *m) {
    assert_int_equal(p->n_free, m->n_free);
    for (uint32_t i = 0; i < m->n; i++) {
        assert_int_equal(i < p->n_touched ? p->page[i].holders : 0, m->holders[i]);
        assert_true((i < p->n_touched ? p->page[i].key : 0) == m->key[i]);
        if (!m->key[i]) continue;
        uint32_t found = sl_pages_find(p, m->key[i]);
        assert_true(found != SL_PAGES_NONE && m->key[found] == m->key[i]);
    }
}

static void step(sl_pages *p, model *m, uint64_t *rng) {
    uint32_t ids[MOST], id = (uint32_t)sl_rng_below(rng, m->n);
    switch (sl_rng_below(rng, 4)) {
    case 0: {
        uint32_t n = (uint32_t)sl_rng_below(rng, m->n / 4 + 2);
        bool taken = sl_pages_take(p, n, ids);
        assert_int_equal(taken, n <= m->n_free);
        for (uint32_t i = 0; taken && i < n; i++) {
            assert_int_equal(ids[i], m->stack[--m->n_free]);
            m->holders[ids[i]] = 1;
        }
        return;
    }
    case 1:
        if (m->holders[id] == 0) return;
        sl_pages_give(p, &id, 1);
        if (--m->holders[id] > 0) return;
        m->key[id] = 0;
        m->stack[m->n_free++] = id;
        return;
    case 2:
        if (m->holders[id] == 0) return;
        sl_pages_share(p, id);
        m->holders[id]++;
        return;
    default:
        if (m->holders[id] == 0 || m->key[id]) return;
        m->key[id] = 1 + sl_rng_below(rng, 40);
        sl_pages_set_key(p, id, m->key[id]);
    }
}

static void drawn_sequences(void **state) {
    (void)state;
    uint64_t rng = 5;
    for (int draw = 0; draw < 60; draw++) {
        model m = {.n = 1 + (uint32_t)sl_rng_below(&rng, MOST)};
        sl_pages p = pages_of(m.n, (uint32_t)sl_rng_below(&rng, m.n + 1));
        for (uint32_t i = 0; i < m.n; i++) m.stack[m.n_free++] = m.n - 1 - i;
        for (int i = 0; i < 400; i++) {
            step(&p, &m, &rng);
            compare(&p, &m);
        }
        sl_pages_free(&p);
    }
}

/* ---- memory ---- */

static void out_of_memory(void **state) {
    (void)state;
    sl_err err;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_pages p;
        uint32_t ids[100];
        sl_mem_fail_at(nth);
        assert_int_equal(sl_pages_create(100, 100, &p, &err), SL_ERR_NOMEM);
        p = pages_of(100, 0);
        assert_true(sl_pages_take(&p, 64, ids));
        sl_mem_fail_at(nth);
        assert_false(sl_pages_take(&p, 1, ids + 64));
        assert_int_equal(p.n_free, 36);
        assert_true(sl_pages_take(&p, 36, ids + 64));
        assert_int_equal(ids[99], 99);
        sl_pages_free(&p);
    }
    sl_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_first_then_given_back_last),
        cmocka_unit_test(all_or_none),
        cmocka_unit_test(free_when_the_last_holder_gave_it_back),
        cmocka_unit_test(keys_live_as_long_as_their_page_is_held),
        cmocka_unit_test(keys_chain),
        cmocka_unit_test(drawn_sequences),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

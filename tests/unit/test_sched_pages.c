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

static sl_page_key key(uint64_t n) {
    return (sl_page_key){{n, n / 1000}};
}

static void keys_find_pages_that_are_held(void **state) {
    (void)state;
    sl_pages p = pages_of(200, 0);
    uint32_t ids[200];
    assert_int_equal(sl_pages_find(&p, key(7)), SL_PAGES_NONE);
    assert_true(sl_pages_take(&p, 2, ids));
    assert_int_equal(sl_pages_find(&p, (sl_page_key){0}), SL_PAGES_NONE);
    sl_pages_set_key(&p, ids[0], key(7));
    sl_pages_set_key(&p, ids[1], key(7 + 64)); /* of the same bucket */
    assert_int_equal(sl_pages_find(&p, key(7)), ids[0]);
    assert_int_equal(sl_pages_find(&p, key(7 + 64)), ids[1]);
    assert_int_equal(sl_pages_find(&p, (sl_page_key){{7, 1}}), SL_PAGES_NONE);
    assert_true(sl_pages_take(&p, 198, ids + 2)); /* the books grow */
    assert_int_equal(sl_pages_find(&p, key(7)), ids[0]);
    assert_int_equal(sl_pages_find(&p, key(7 + 64)), ids[1]);
    sl_pages_set_key(&p, ids[2], key(7)); /* another page has it: this one stays nameless */
    assert_int_equal(sl_pages_find(&p, key(7)), ids[0]);
    sl_pages_give(&p, ids + 2, 1);
    assert_true(p.n_free == 1 && p.n_cached == 0 && p.n_keys == 2);
    sl_pages_free(&p);
}

/* What nobody holds and has a key is there until somebody wants a page, the longest unused first
 * and of one request's pages the last. */
static void cached_until_a_page_is_wanted(void **state) {
    (void)state;
    sl_pages p = pages_of(6, 0);
    uint32_t ids[6], got[6];
    assert_true(sl_pages_take(&p, 5, ids));
    for (uint32_t i = 0; i < 5; i++) sl_pages_set_key(&p, ids[i], key(10 + i));
    sl_pages_give(&p, ids + 3, 2);
    sl_pages_give(&p, ids, 3);
    assert_true(p.n_free == 1 && p.n_cached == 5 && sl_pages_spare(&p) == 6);
    sl_pages_share(&p, sl_pages_find(&p, key(14))); /* it would have been the first to go */
    assert_true(p.n_cached == 4 && p.page[ids[4]].holders == 1);
    assert_true(sl_pages_take(&p, 2, got)); /* the free one, and for want of another... */
    assert_int_equal(p.n_evicted, 1);
    assert_int_equal(sl_pages_find(&p, key(13)), SL_PAGES_NONE);
    sl_pages_give(&p, ids + 4, 1);
    assert_true(sl_pages_take(&p, 2, got + 2));
    assert_int_equal(sl_pages_find(&p, key(12)), SL_PAGES_NONE);
    assert_int_equal(sl_pages_find(&p, key(11)), SL_PAGES_NONE);
    assert_int_equal(sl_pages_find(&p, key(10)), ids[0]);
    assert_int_equal(sl_pages_find(&p, key(14)), ids[4]);
    assert_false(sl_pages_take(&p, 3, got + 4));
    sl_pages_forget(&p);
    assert_true(p.n_free == 2 && p.n_cached == 0 && p.n_keys == 0);
    sl_pages_free(&p);
}

static void what_was_there_before_is_adopted(void **state) {
    (void)state;
    sl_pages p = pages_of(50, 0);
    const uint32_t ids[] = {40, 3, 7, 9}, twice[] = {1, 2, 1}, none[] = {1, 50};
    const sl_page_key keys[] = {key(1), key(2), key(3), key(2)};
    uint32_t got[49];
    assert_false(sl_pages_adopt(&p, twice, keys, 3));
    assert_false(sl_pages_adopt(&p, none, keys, 2));
    assert_true(p.n_free == 50 && p.n_keys == 0);
    assert_true(sl_pages_adopt(&p, ids, keys, 4));
    assert_true(p.n_free == 47 && p.n_cached == 3);
    assert_int_equal(sl_pages_find(&p, key(2)), 3);
    assert_int_equal(sl_pages_find(&p, key(1)), 40);
    sl_pages_share(&p, 3);
    assert_false(sl_pages_adopt(&p, ids, keys, 4)); /* somebody has one */
    sl_pages_give(&p, ids + 1, 1);
    assert_true(sl_pages_adopt(&p, ids + 1, keys + 1, 1)); /* of others nobody knows any more */
    assert_true(p.n_free == 49 && p.n_keys == 1 && sl_pages_find(&p, key(1)) == SL_PAGES_NONE);
    assert_true(sl_pages_adopt(&p, ids, keys, 4));
    assert_true(p.n_free == 47 && p.n_cached == 3);
    assert_true(sl_pages_take(&p, 48, got));
    assert_int_equal(sl_pages_find(&p, key(1)), SL_PAGES_NONE); /* the first one went first */
    assert_int_equal(sl_pages_find(&p, key(3)), 7);
    sl_pages_free(&p);
}

/* Those of most use last, and so they are again where that is adopted. */
static void the_newest_are_told_in_order(void **state) {
    (void)state;
    sl_pages p = pages_of(20, 0), q = pages_of(20, 0);
    uint32_t ids[6], got[6];
    sl_page_key keys[6];
    assert_int_equal(sl_pages_newest(&p, 6, got), 0);
    assert_true(sl_pages_take(&p, 6, ids));
    for (uint32_t i = 0; i < 6; i++) sl_pages_set_key(&p, ids[i], key(10 + i));
    sl_pages_give(&p, ids + 3, 3); /* of one text the last go first */
    sl_pages_give(&p, ids, 1);
    sl_pages_share(&p, ids[4]);
    sl_pages_give(&p, ids + 4, 1);
    const uint32_t want[] = {ids[5], ids[3], ids[0], ids[4]};
    assert_int_equal(sl_pages_newest(&p, 6, got), 4);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(sl_pages_newest(&p, 2, got), 2);
    assert_memory_equal(got, want + 2, 2 * sizeof *want);
    for (uint32_t i = 0; i < 4; i++) keys[i] = p.page[want[i]].key;
    assert_true(sl_pages_adopt(&q, want, keys, 4));
    assert_int_equal(sl_pages_newest(&q, 6, got), 4);
    assert_memory_equal(got, want, sizeof want);
    sl_pages_give(&p, ids + 1, 2);
    sl_pages_free(&p);
    sl_pages_free(&q);
}

/* A key says what all tokens up to the page's end are, and in which order, and of whom. */
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
    const sl_page_key root = sl_pages_root("a", 1), other = sl_pages_root("b", 1);
    const sl_page_key first = sl_pages_chain(root, tokens[0]);
    sl_pages_keys of = {.root = root};
    assert_false(sl_page_key_none(first) || sl_page_key_none(root));
    assert_true(sl_page_key_is(first, sl_pages_chain(root, tokens[0])));
    assert_false(sl_page_key_is(first, sl_pages_chain(other, tokens[0])));
    assert_false(sl_page_key_is(first, sl_pages_chain(root, tokens[1])));
    assert_false(sl_page_key_is(first, sl_pages_chain(root, tokens[2])));
    assert_false(sl_page_key_is(sl_pages_chain(first, tokens[0]), first));
    assert_false(sl_page_key_is(sl_pages_chain(first, tokens[0]),
                                sl_pages_chain(sl_pages_chain(root, tokens[1]), tokens[0])));
    const sl_page_key second = sl_pages_chain(first, tokens[1]);
    assert_true(sl_page_key_is(sl_pages_key_of(&of, tokens[0], 1), second));
    assert_true(sl_page_key_is(sl_pages_key_of(&of, tokens[0], 0), first)); /* from the first on */
    assert_true(sl_page_key_is(sl_pages_key_of(&of, tokens[0], 1), second));
}

/* ---- drawn sequences ---- */

#define MOST 150u

/* Who has what, in plain arrays: the stack of pages in the order in which they will be taken, and
 * the cached ones, the oldest first. */
typedef struct model {
    uint32_t stack[MOST], n_free, n, holders[MOST], cached[MOST], n_cached;
    uint64_t key[MOST];
} model;

static uint32_t with_key(const model *m, uint64_t is) {
    for (uint32_t i = 0; i < m->n; i++)
        if (m->key[i] == is) return i;
    return SL_PAGES_NONE;
}

static void compare(const sl_pages *p, const model *m) {
    uint32_t keys = 0;
    assert_int_equal(p->n_free, m->n_free);
    assert_int_equal(p->n_cached, m->n_cached);
    for (uint32_t i = 0; i < m->n; i++) {
        bool known = i < p->n_touched;
        assert_int_equal(known ? p->page[i].holders : 0, m->holders[i]);
        assert_true(m->key[i] ? sl_page_key_is(p->page[i].key, key(m->key[i]))
                              : !known || sl_page_key_none(p->page[i].key));
        if (m->key[i]) assert_int_equal(sl_pages_find(p, key(m->key[i])), i);
        keys += m->key[i] > 0;
    }
    assert_int_equal(p->n_keys, keys);
}

static void take_out_of_cache(model *m, uint32_t id) {
    uint32_t at = 0;
    while (m->cached[at] != id) at++;
    for (m->n_cached--; at < m->n_cached; at++) m->cached[at] = m->cached[at + 1];
}

static void evict(model *m) {
    uint32_t id = m->cached[0];
    take_out_of_cache(m, id);
    m->key[id] = 0;
    m->stack[m->n_free++] = id;
}

static void take(sl_pages *p, model *m, uint32_t n) {
    uint32_t ids[MOST];
    bool taken = sl_pages_take(p, n, ids);
    assert_int_equal(taken, n <= m->n_free + m->n_cached);
    while (taken && m->n_free < n) evict(m);
    for (uint32_t i = 0; taken && i < n; i++) {
        assert_int_equal(ids[i], m->stack[--m->n_free]);
        m->holders[ids[i]] = 1;
    }
}

static void step(sl_pages *p, model *m, uint64_t *rng) {
    uint32_t id = (uint32_t)sl_rng_below(rng, m->n);
    uint64_t is = 1 + sl_rng_below(rng, 40);
    switch (sl_rng_below(rng, 4)) {
    case 0:
        take(p, m, (uint32_t)sl_rng_below(rng, m->n / 4 + 2));
        return;
    case 1:
        if (m->holders[id] == 0) return;
        sl_pages_give(p, &id, 1);
        if (--m->holders[id] > 0) return;
        if (m->key[id])
            m->cached[m->n_cached++] = id;
        else
            m->stack[m->n_free++] = id;
        return;
    case 2:
        if (m->holders[id] == 0 && m->key[id] == 0) return;
        if (m->holders[id] == 0) take_out_of_cache(m, id);
        sl_pages_share(p, id);
        m->holders[id]++;
        return;
    default:
        if (m->holders[id] == 0 || m->key[id]) return;
        sl_pages_set_key(p, id, key(is));
        if (with_key(m, is) == SL_PAGES_NONE) m->key[id] = is;
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
        cmocka_unit_test(keys_find_pages_that_are_held),
        cmocka_unit_test(cached_until_a_page_is_wanted),
        cmocka_unit_test(what_was_there_before_is_adopted),
        cmocka_unit_test(the_newest_are_told_in_order),
        cmocka_unit_test(keys_chain),
        cmocka_unit_test(drawn_sequences),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

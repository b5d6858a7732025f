/* A real attention worker whose coordinator breaks with it, where the test plays that: what it has
 * kept, what it says of it, and when it says nothing. */
#include "engine_peers.h"

#include "engine/attn/keep.h"
#include "sched/pages.h"
#include "spec/kv.h"

#define REAL 0u
#define N    70u /* tokens of a request: two pages, and some */

static uint32_t tokens[N];
static const sl_page_key root = {{7, 8}};

static void begin(stage *s) {
    stage_make_rejoining(s, 1, 1, REAL, 20);
    for (uint32_t i = 0; i < N; i++) tokens[i] = 3 + i;
}

static void get_ready(stage *s) {
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

/* The first `start` rows of the request are in its pages. */
static void say_request(stage *s, uint64_t id, uint32_t start, const uint32_t pages[3]) {
    const sl_wire_submit in = {.request = id,
                               .max_tokens = 20,
                               .sampling.top_p = 1,
                               .n_tokens = N,
                               .n_prompt = N,
                               .start = start,
                               .root = root,
                               .n_pages = 3,
                               .tokens = tokens,
                               .pages = pages};
    sl_buf *b = sl_net_buf_take(s->coordinator.net, sl_wire_submit_bytes(&in));
    assert_non_null(b);
    sl_wire_submit_encode(&in, b->data);
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_SUBMIT}, b);
}

/* The worker has read everything that was said to it. */
static void settle(stage *s) {
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_CLOCK}, NULL);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_CLOCK));
}

static void break_up(stage *s) {
    actor *c = &s->coordinator;
    sl_net_close(c->net, c->conn, SL_ERR_PEER_DOWN, "the coordinator dies");
    await_flag(s, &c->down, "the end of the connection");
    while (c->n) actor_forget(c, 0);
    c->down = false;
    await_flag(s, &c->open, "the worker's next call");
}

/* What it says it has kept, n pages, comes before it is ready; the first n_pages of the request's
 * tokens are in these, and the first of them is said last: it goes last. */
static void expect_kept(stage *s, uint32_t n, uint32_t n_pages, const uint32_t *pages) {
    actor *c = &s->coordinator;
    uint32_t said = 0, found = 0, before = UINT32_MAX;
    send_plan(s);
    uint32_t ready = await_kind(s, c, SL_MSG_READY);
    assert_int_equal(c->head[ready].flags & SL_WIRE_KEPT, 0);
    assert_true(c->head[ready].flags & SL_WIRE_RESUMES);
    for (uint32_t i = 0; i < ready; i++) {
        if (c->head[i].kind != SL_MSG_KV_KEPT) continue;
        const sl_span in = {c->body[i]->data, c->body[i]->len};
        const sl_wire_kept *kept;
        sl_err err;
        assert_int_equal(sl_wire_kept_decode(&c->head[i], in, &kept, &err), SL_OK);
        said = c->head[i].rows;
        for (uint32_t k = 0; k < said; k++)
            for (uint32_t p = 0; p < n_pages; p++) {
                sl_pages_keys of = {.root = root};
                bool is = sl_page_key_is(kept[k].key, sl_pages_key_of(&of, tokens, p));
                if (!is || kept[k].page != pages[p]) continue;
                assert_true(p < before);
                before = p;
                found++;
            }
    }
    assert_int_equal(said, n);
    assert_int_equal(found, n_pages);
    while (c->n) actor_forget(c, 0);
}

static const uint32_t first[3] = {9, 4, 7}, second[3] = {2, 3, 5};

static void full_pages_of_rows_that_are_there(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, pages;
    } cases[] = {{69, 2}, {65, 2}, {64, 2}, {63, 1}, {33, 1}, {32, 1}, {31, 0}, {0, 0}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        stage s;
        begin(&s);
        get_ready(&s);
        say_request(&s, 77, cases[i].rows, first);
        settle(&s);
        break_up(&s);
        expect_kept(&s, cases[i].pages, cases[i].pages, first);
        stage_end(&s, SL_OK);
    }
}

/* It says so again until they are given to somebody; what is in them is known by who has it last.
 */
static void until_the_pages_are_given_to_somebody(void **state) {
    (void)state;
    stage s;
    begin(&s);
    get_ready(&s);
    say_request(&s, 77, 64, first);
    say_request(&s, 78, 33, second);
    settle(&s);
    break_up(&s);
    expect_kept(&s, 3, 2, first);
    break_up(&s);
    expect_kept(&s, 3, 1, second);
    say_request(&s, 5, 0, (const uint32_t[]){11, 3, 4}); /* one that was kept */
    settle(&s);
    break_up(&s);
    expect_kept(&s, 2, 1, first);
    break_up(&s);
    expect_kept(&s, 2, 1, second);
    say_request(&s, 6, 32, second); /* it begins with what is there */
    settle(&s);
    break_up(&s);
    expect_kept(&s, 2, 1, second);
    say_request(&s, 7, 0, (const uint32_t[]){2, 9, 0});
    settle(&s);
    break_up(&s);
    expect_kept(&s, 0, 0, NULL);
    stage_end(&s, SL_OK);
}

/* Those that begin with the same pages keep them once. */
static void shared_pages_are_kept_once(void **state) {
    (void)state;
    stage s;
    begin(&s);
    get_ready(&s);
    say_request(&s, 77, 69, first);
    say_request(&s, 78, 64, (const uint32_t[]){first[0], first[1], 1});
    settle(&s);
    break_up(&s);
    expect_kept(&s, 2, 2, first);
    stage_end(&s, SL_OK);
}

static void what_has_ended_is_not_kept(void **state) {
    (void)state;
    stage s;
    begin(&s);
    get_ready(&s);
    say_request(&s, 77, 64, first);
    say_request(&s, 78, 64, second);
    say_cancel(&s.coordinator, 77);
    settle(&s);
    break_up(&s);
    expect_kept(&s, 2, 2, second);
    stage_end(&s, SL_OK);
}

/* Rows of another plan are of no use, and do not come back with the plan. */
static void by_other_numerics_nothing_is(void **state) {
    (void)state;
    stage s;
    for (uint32_t what = 0; what < 3; what++) {
        begin(&s);
        get_ready(&s);
        say_request(&s, 77, 64, first);
        settle(&s);
        break_up(&s);
        const sl_plan before = s.plan;
        if (what == 0) s.plan.exact = !s.plan.exact;
        if (what == 1) s.plan.n_pages = 17;
        if (what == 2) s.plan.wire = SL_WIRE_BF16;
        expect_kept(&s, 0, 0, NULL);
        break_up(&s);
        s.plan = before;
        expect_kept(&s, 0, 0, NULL);
        stage_end(&s, SL_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pages_of_rows_that_are_there),
        cmocka_unit_test(until_the_pages_are_given_to_somebody),
        cmocka_unit_test(shared_pages_are_kept_once),
        cmocka_unit_test(what_has_ended_is_not_kept),
        cmocka_unit_test(by_other_numerics_nothing_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

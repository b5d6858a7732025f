/* A real attention worker that fetches KV pages from another one and gives its own, where the test
 * plays the other one: what it asks for and says, and what can not happen to its pages. */
#include "engine_peers.h"

#include "base/crc32c.h"
#include "sched/pages.h"
#include "spec/buddy.h"
#include "spec/kv.h"

#define REAL   0u
#define BUDDY  1u
#define EXPERT 2u
#define N      40u /* tokens of a request: a page, and some */

static uint32_t tokens[N];
static uint8_t bytes[1 << 20]; /* of a page */

static void begin(stage *s) {
    stage_make(s, 2, 1, REAL);
    s->plan.kv_replicas = 1;
    assert_int_equal(sl_plan_buddy(&s->plan, REAL), BUDDY);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
    assert_true(s->toy[BUDDY].open); /* it has called the one that copies for it */
    for (uint32_t i = 0; i < N; i++) tokens[i] = 3 + i;
    assert_true(sl_kv_page_bytes(&s->m) <= sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7 + i / 251);
}

/* The first `start` rows of the request are in its pages, the first of which is this one. */
static void say_request(stage *s, uint64_t id, uint32_t start, uint32_t page) {
    const uint32_t pages[3] = {page, 1, 2};
    const sl_wire_submit in = {.request = id,
                               .max_tokens = 20,
                               .sampling.top_p = 1,
                               .n_tokens = N,
                               .n_prompt = N,
                               .start = start,
                               .n_pages = 2,
                               .tokens = tokens,
                               .pages = pages};
    sl_buf *b = sl_net_buf_take(s->coordinator.net, sl_wire_submit_bytes(&in));
    assert_non_null(b);
    sl_wire_submit_encode(&in, b->data);
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_SUBMIT}, b);
}

static void say_fetch(stage *s, uint64_t transfer, uint32_t page) {
    const sl_wire_fetch f = {.transfer = transfer,
                             .key = sl_pages_chain((sl_page_key){.word = {0, 0}}, tokens),
                             .request = 77,
                             .index = 0,
                             .page = page,
                             .from = BUDDY};
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_KV_FETCH, .rows = 1},
        bytes_of(&s->coordinator, &f, sizeof f));
}

static sl_wire_blocks expect_get(stage *s, uint64_t transfer) {
    actor *a = &s->toy[BUDDY];
    uint32_t i = await_kind(s, a, SL_MSG_KV_GET);
    sl_wire_blocks b;
    const uint8_t *data;
    sl_err err;
    const sl_span in = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_blocks_decode(&a->head[i], in, &s->m, &b, &data, &err), SL_OK);
    assert_true(b.transfer == transfer && b.request == 77 && b.index == 0);
    assert_true(sl_page_key_is(b.key, sl_pages_chain((sl_page_key){0}, tokens)));
    actor_forget(a, i);
    return b;
}

/* What was asked for, from `bytes`. */
static void say_blocks(stage *s, sl_wire_blocks b, bool damaged) {
    actor *a = &s->toy[BUDDY];
    const uint8_t *from = bytes + b.first * sl_kv_block_bytes(&s->m);
    sl_buf *out = sl_net_buf_take(a->net, SL_WIRE_BLOCKS_BYTES + b.bytes);
    assert_non_null(out);
    if (b.bytes) b.sum = sl_crc32c(0, from, b.bytes);
    sl_wire_blocks_encode(&b, out->data);
    memcpy(out->data + SL_WIRE_BLOCKS_BYTES, from, b.bytes);
    if (damaged) out->data[SL_WIRE_BLOCKS_BYTES + b.bytes / 2] ^= 0x10;
    say(a, (sl_wire_header){.kind = SL_MSG_KV_PAGES}, out);
}

static void expect_fate(stage *s, uint64_t transfer, sl_kv_fate fate) {
    actor *c = &s->coordinator;
    uint32_t i = await_kind(s, c, SL_MSG_KV_HERE);
    const sl_wire_pair *p;
    sl_err err;
    const sl_span in = {c->body[i]->data, c->body[i]->len};
    assert_int_equal(sl_wire_pairs_decode(&c->head[i], in, &p, &err), SL_OK);
    assert_true(c->head[i].rows == 1 && p->request == transfer);
    assert_int_equal(p->value, fate);
    actor_forget(c, i);
}

/* All of the page is fetched, in as many pieces as it is asked for in. */
static void serve_fetch(stage *s, uint64_t transfer) {
    for (uint32_t came = 0; came < s->m.n_layers;) {
        sl_wire_blocks b = expect_get(s, transfer);
        assert_int_equal(b.first, came);
        say_blocks(s, b, false);
        came += b.n;
    }
    expect_fate(s, transfer, SL_KV_HERE);
}

/* What the worker says is in page `index` of its request: bytes of the blocks, or none. */
static size_t ask(stage *s, uint64_t request, uint32_t index, sl_page_key key, uint8_t *out) {
    static uint64_t transfer = 1000;
    actor *a = &s->toy[BUDDY];
    sl_wire_blocks b = {.transfer = ++transfer,
                        .key = key,
                        .request = request,
                        .index = index,
                        .n = s->m.n_layers,
                        .type = s->m.kv_type,
                        .bytes = sl_kv_page_bytes(&s->m)};
    sl_buf *buf = sl_net_buf_take(a->net, SL_WIRE_BLOCKS_BYTES);
    assert_non_null(buf);
    sl_wire_blocks_encode(&b, buf->data);
    say(a, (sl_wire_header){.kind = SL_MSG_KV_GET}, buf);
    uint32_t i = await_kind(s, a, SL_MSG_KV_PAGES);
    const uint8_t *data;
    sl_err err;
    const sl_span in = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_blocks_decode(&a->head[i], in, &s->m, &b, &data, &err), SL_OK);
    assert_true(b.transfer == transfer);
    if (data) assert_true(b.sum == sl_crc32c(0, data, b.bytes));
    if (data) memcpy(out, data, b.bytes);
    actor_forget(a, i);
    return b.bytes;
}

static void what_was_fetched_is_there(void **state) {
    (void)state;
    static uint8_t got[sizeof bytes];
    stage s;
    begin(&s);
    size_t page = sl_kv_page_bytes(&s.m);
    sl_page_key key = sl_pages_chain((sl_page_key){0}, tokens);
    say_fetch(&s, 5, 9);
    serve_fetch(&s, 5);
    say_request(&s, 77, 33, 9);
    assert_int_equal(ask(&s, 77, 0, key, got), page);
    assert_memory_equal(got, bytes, page);
    /* Nothing else can be had: other tokens, rows that are not computed, no page, no request. */
    assert_int_equal(ask(&s, 77, 0, (sl_page_key){{key.word[0], key.word[1] + 1}}, got), 0);
    assert_int_equal(ask(&s, 77, 1, sl_pages_chain(key, tokens), got), 0);
    assert_int_equal(ask(&s, 77, 400, key, got), 0);
    assert_int_equal(ask(&s, 78, 0, key, got), 0);
    stage_end(&s, SL_OK);
}

static void what_cannot_be_had_is_said(void **state) {
    (void)state;
    stage s;
    begin(&s);
    say_fetch(&s, 5, 9);
    say_blocks(&s, expect_get(&s, 5), true);
    expect_fate(&s, 5, SL_KV_DAMAGED);
    say_fetch(&s, 6, 9);
    sl_wire_blocks b = expect_get(&s, 6);
    b.bytes = 0;
    say_blocks(&s, b, false);
    expect_fate(&s, 6, SL_KV_GONE);
    say_fetch(&s, 7, 9);
    expect_get(&s, 7);
    sl_net_close(s.toy[BUDDY].net, s.toy[BUDDY].conn, SL_ERR_WORKER_LOST, "it dies");
    expect_fate(&s, 7, SL_KV_GONE);
    expect_loss(&s, BUDDY);
    say_fetch(&s, 8, 9); /* there is nobody to ask */
    expect_fate(&s, 8, SL_KV_GONE);
    stage_end(&s, SL_OK);
}

/* A page that comes late, when its place is somebody's, or is to get another one. */
static void a_late_page_touches_nobody(void **state) {
    (void)state;
    static uint8_t before[sizeof bytes], after[sizeof bytes];
    stage s;
    begin(&s);
    size_t page = sl_kv_page_bytes(&s.m);
    sl_page_key key = sl_pages_chain((sl_page_key){0}, tokens);
    say_fetch(&s, 5, 9);
    sl_wire_blocks late = expect_get(&s, 5);
    say_request(&s, 77, 33, 9);
    expect_fate(&s, 5, SL_KV_DROPPED);
    assert_int_equal(ask(&s, 77, 0, key, before), page);
    say_blocks(&s, late, false);
    assert_int_equal(ask(&s, 77, 0, key, after), page);
    assert_memory_equal(before, after, page);
    assert_memory_not_equal(after, bytes, page);
    say_fetch(&s, 6, 10);
    late = expect_get(&s, 6);
    say_fetch(&s, 7, 10);
    expect_fate(&s, 6, SL_KV_DROPPED);
    say_blocks(&s, late, true);
    serve_fetch(&s, 7);
    stage_end(&s, SL_OK);
}

/* Who answers what was not asked loses the connection. */
static void what_was_not_asked_for_is_refused(void **state) {
    (void)state;
    stage s;
    begin(&s);
    say_fetch(&s, 5, 9);
    sl_wire_blocks b = expect_get(&s, 5);
    b.index = 1;
    say_blocks(&s, b, false);
    await_flag(&s, &s.toy[BUDDY].down, "the end of the offender");
    assert_non_null(strstr(s.toy[BUDDY].why, "not due"));
    expect_fate(&s, 5, SL_KV_GONE);
    stage_end(&s, SL_OK);
}

static void expect_refusal(const sl_wire_fetch *f, uint32_t n, const char *why) {
    stage s;
    begin(&s);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_KV_FETCH, .rows = n},
        bytes_of(&s.coordinator, f, n * sizeof *f));
    await_flag(&s, &s.coordinator.down, "the refusal");
    if (!strstr(s.coordinator.why, why)) fail_msg("'%s', not '%s'", s.coordinator.why, why);
    stage_end(&s, SL_ERR_PROTOCOL);
}

static void fetches_are_checked(void **state) {
    (void)state;
    sl_wire_fetch f[SL_MAX_FETCHES + 1];
    for (uint32_t i = 0; i <= SL_MAX_FETCHES; i++)
        f[i] = (sl_wire_fetch){.transfer = i + 1, .key = {{1}}, .page = i, .from = BUDDY};
    f[0].page = 16;
    expect_refusal(f, 1, "into page 16, there are 16");
    f[0].page = 0;
    f[0].from = REAL;
    expect_refusal(f, 1, "from worker 0 of 3, by worker 0");
    f[0].from = 3;
    expect_refusal(f, 1, "from worker 3 of 3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_fetched_is_there),
        cmocka_unit_test(what_cannot_be_had_is_said),
        cmocka_unit_test(a_late_page_touches_nobody),
        cmocka_unit_test(what_was_not_asked_for_is_refused),
        cmocka_unit_test(fetches_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

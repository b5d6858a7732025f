/* Workers that hold the secret and misbehave towards the coordinator. One thread: the engine is
 * stepped, its workers are played. */
#include "engine_peers.h"

#include "engine/coord/coord_int.h"

typedef struct scene {
    sl_engine *e;
    actor worker[2]; /* attention, expert */
    uint32_t heard;  /* calls of on_logits */
    sl_finish finish;
} scene;

static void step(scene *s) {
    sl_engine_step(s->e);
    for (uint32_t i = 0; i < 2; i++)
        if (s->worker[i].net) sl_net_progress(s->worker[i].net);
}

static void begin(scene *s) {
    sl_err err = {0};
    sl_model_spec spec;
    *s = (scene){0};
    sl_engine_opts o = {.model_folder = FIXTURE,
                        .transport = "loop",
                        .spawn = SL_SPAWN_NONE,
                        .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1}};
    assert_int_equal(sl_model_read_spec(FIXTURE, &spec, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, 1, 1, &o.plan, &err), SL_OK);
    if (sl_engine_create_stepped(&o, sl_clock_real(), &s->e, &err) != SL_OK)
        fail_msg("%s", err.msg);
    sl_plan_free(&o.plan);
    for (uint32_t i = 0; i < 2; i++) actor_start(&s->worker[i], s->e->hub, i, false);
}

static void call(scene *s, uint32_t i) {
    sl_err err = {0};
    actor *a = &s->worker[i];
    if (sl_net_connect(a->net, sl_net_address(s->e->net), NULL, &a->conn, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static void join(scene *s, uint32_t i) {
    call(s, i);
    for (int n = 0; n < 20 && !s->worker[i].open; n++) step(s);
    assert_true(s->worker[i].open);
}

static void end(scene *s) {
    for (uint32_t i = 0; i < 2; i++)
        if (s->worker[i].net) actor_stop(&s->worker[i]);
    sl_engine_free(s->e);
}

/* The last worker's proof and the first one's goodbye arrive together: the plan has nobody to go
 * to. */
static void one_leaves_as_the_last_one_joins(void **state) {
    (void)state;
    scene s;
    begin(&s);
    join(&s, 0);
    call(&s, 1);
    sl_engine_step(s.e);
    sl_net_progress(s.worker[1].net); /* its proof is under way */
    sl_net_close(s.worker[0].net, s.worker[0].conn, SL_OK, "leaving");
    sl_engine_step(s.e);
    assert_int_equal(s.e->roster.n_came, 2);
    assert_int_equal(s.e->roster.worker[0].state, SL_ROSTER_GONE);
    assert_true(s.e->planned && !s.e->serving);
    assert_int_equal(s.e->start_status, SL_ERR_WORKER_LOST);
    end(&s);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    ((scene *)ctx)->finish = ev->finish;
}

static void on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    scene *s = ctx;
    assert_true(first + n <= 3 && logits);
    s->heard++;
}

static void serve(scene *s) {
    for (uint32_t i = 0; i < 2; i++)
        if (!s->worker[i].open) join(s, i);
    for (uint32_t i = 0; i < 2; i++)
        say(&s->worker[i], (sl_wire_header){.kind = SL_MSG_READY, .flags = SL_WIRE_RESUMES},
            bytes_of(&s->worker[i], s->e->spec.hash, 32));
    for (int n = 0; n < 20 && !s->e->serving; n++) step(s);
    assert_true(s->e->serving);
}

static void say_logits(scene *s, uint32_t from, uint64_t request, uint64_t first, uint32_t n) {
    sl_buf *b = sl_net_buf_take(s->worker[from].net, sl_wire_logits_bytes(n, s->e->spec.vocab));
    assert_non_null(b);
    memset(b->data, 0, b->len);
    sl_wire_logits_layout(b->data, request, first);
    say(&s->worker[from], (sl_wire_header){.kind = SL_MSG_LOGITS, .rows = n}, b);
    step(s);
    step(s);
}

/* Logits count from the worker that has the request, for positions that the request has. */
static void logits_of_others_and_of_nowhere(void **state) {
    (void)state;
    static const struct {
        uint64_t first;
        uint32_t n;
    } nowhere[] = {{3, 1}, {0, 4}, {UINT64_MAX, 1}, {UINT64_MAX - 1, 3}};
    static const uint32_t prompt[2] = {3, 4};
    for (size_t i = 0; i < SL_LEN(nowhere); i++) {
        scene s;
        sl_err err = {0};
        uint64_t id = 0;
        begin(&s);
        serve(&s);
        const sl_request_params p = {.prompt = prompt,
                                     .n_prompt = 2,
                                     .max_tokens = 1,
                                     .sampling = {.top_p = 1},
                                     .on_event = on_event,
                                     .on_logits = on_logits,
                                     .ctx = &s};
        assert_int_equal(sl_engine_submit(s.e, &p, &id, &err), SL_OK);
        step(&s);
        say_logits(&s, 1, id, 0, 1);
        assert_int_equal(s.heard, 0);
        say_logits(&s, 0, id + 1, 0, 1);
        assert_int_equal(s.heard, 0);
        say_logits(&s, 0, id, 0, 3);
        assert_int_equal(s.heard, 1);
        say_logits(&s, 0, id, nowhere[i].first, nowhere[i].n);
        assert_int_equal(s.heard, 1);
        assert_true(s.worker[0].down);
        assert_non_null(strstr(s.worker[0].why, "logits of"));
        assert_int_equal(s.finish, SL_FINISH_NONE); /* it goes on elsewhere */
        end(&s);
    }
}

/* What a worker had in flight when it was last heard of is lost with it. */
static void books_of_the_dead_balance(void **state) {
    (void)state;
    static const struct { uint64_t merged, lost; } cases[] = {{40, 60}, {100, 0}, {0, 100}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        scene s;
        sl_err err = {0};
        sl_counts counts;
        sl_engine_detail d;
        struct {
#define FIELD(name) uint64_t name;
            SL_WORKER_COUNTERS(FIELD)
#undef FIELD
        } n = {.rows_created = 107, .rows_merged = cases[i].merged, .rows_cancelled = 7};
        begin(&s);
        serve(&s);
        assert_int_equal(sl_counts_create(&s.e->spec, &counts, &err), SL_OK);
        sl_buf *b = sl_net_buf_take(s.worker[0].net, sizeof n + sl_counts_bytes(&counts));
        sl_wr w = sl_wr_of(b->data, b->len);
#define FIELD(name) sl_wr_u64(&w, n.name);
        SL_WORKER_COUNTERS(FIELD)
#undef FIELD
        sl_counts_encode(&counts, &w);
        say(&s.worker[0], (sl_wire_header){.kind = SL_MSG_STATS}, b);
        step(&s);
        assert_int_equal(sl_engine_detail_get(s.e, &d, &err), SL_OK);
        assert_int_equal(d.worker[0].rows_created, 107);
        assert_int_equal(d.worker[0].rows_lost, 0);
        sl_engine_detail_free(&d);
        actor_stop(&s.worker[0]);
        s.worker[0].net = NULL;
        for (int k = 0; k < 20 && s.e->roster.worker[0].state != SL_ROSTER_GONE; k++) step(&s);
        assert_int_equal(sl_engine_detail_get(s.e, &d, &err), SL_OK);
        assert_false(d.worker[0].alive);
        assert_int_equal(d.worker[0].rows_lost, cases[i].lost);
        sl_engine_detail_free(&d);
        sl_counts_free(&counts);
        end(&s);
    }
}

/* ---- KV that a worker kept ---- */

#define TEXT (3 * SL_KV_PAGE_TOKENS)

static sl_page_key root = {{1, 2}}; /* of the requests that are asked again */

static uint64_t ask_again(scene *s, uint32_t n_tokens, bool prompt_logprobs, uint32_t reported) {
    uint32_t tokens[TEXT + 8];
    sl_err err = {0};
    uint64_t id = 0;
    for (uint32_t i = 0; i < SL_LEN(tokens); i++) tokens[i] = 3 + i;
    const sl_request_params p = {.prompt = tokens,
                                 .n_prompt = n_tokens,
                                 .max_tokens = 9,
                                 .sampling = {.top_p = 1},
                                 .again = true,
                                 .logprobs = prompt_logprobs,
                                 .prompt_logprobs = prompt_logprobs,
                                 .n_prompt_reported = reported,
                                 .on_event = on_event,
                                 .ctx = s};
    assert_int_equal(sl_engine_submit(s->e, &p, &id, &err), SL_OK);
    for (int n = 0; n < 3; n++) step(s);
    return id;
}

/* The first n pages of tokens from `token` on, of the requests that ask_again makes. */
static void say_kept(scene *s, uint32_t from, const uint32_t *pages, uint32_t n, uint32_t token) {
    uint32_t tokens[TEXT];
    sl_wire_kept kept[3];
    sl_pages_keys of = {.root = root};
    for (uint32_t i = 0; i < TEXT; i++) tokens[i] = token + i;
    for (uint32_t i = 0; i < n; i++)
        kept[i] = (sl_wire_kept){.page = pages[i], .key = sl_pages_key_of(&of, tokens, i)};
    sl_buf *b = sl_net_buf_take(s->worker[from].net, n * sizeof *kept);
    assert_non_null(b);
    sl_wire_kept_encode(kept, n, b->data);
    say(&s->worker[from], (sl_wire_header){.kind = SL_MSG_KV_KEPT, .rows = n}, b);
}

/* The attention worker hears of it, with so many rows there, in these pages. */
static void expect_start(scene *s, uint64_t id, uint32_t start, const uint32_t *pages, uint32_t n) {
    actor *a = &s->worker[0];
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->head[i].kind != SL_MSG_SUBMIT) continue;
        const sl_span in = {a->body[i]->data, a->body[i]->len};
        sl_wire_submit got;
        sl_err err;
        assert_int_equal(sl_wire_submit_decode(in, s->e->spec.vocab, &got, &err), SL_OK);
        assert_true(got.request == id);
        assert_int_equal(got.start, start);
        assert_memory_equal(got.pages, pages, n * sizeof *pages);
        actor_forget(a, i);
        return;
    }
    fail_msg("no request came");
}

/* How keys begin, another coordinator's requests say. */
static void learn_root(void) {
    scene s;
    begin(&s);
    serve(&s);
    root = sl_ledger_find(&s.e->ledger, ask_again(&s, 1, false, 0))->root;
    assert_false(sl_page_key_none(root));
    end(&s);
}

static void requests_go_on_with_what_was_kept(void **state) {
    (void)state;
    static const struct {
        uint32_t tokens, reported, start;
        bool logprobs;
    } cases[] = {
        {TEXT + 7, 0, TEXT, false},
        {TEXT, 0, 64, false}, /* its last page is computed, as its last row is */
        {TEXT - 1, 0, 64, false},
        {31, 0, 0, false},
        /* of its prompt's tokens the first ones were reported: the others' rows say more */
        {TEXT + 7, 63, 32, true},
        {TEXT + 7, 64, 64, true},
        {TEXT + 7, 0, 0, true},
        {TEXT + 7, TEXT + 6, TEXT, true}};
    const uint32_t pages[] = {7, 0, 300};
    learn_root();
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        scene s;
        begin(&s);
        join(&s, 0);
        join(&s, 1);
        say_kept(&s, 0, pages, 3, 3);
        serve(&s);
        assert_int_equal(s.e->admit.n_cached_pages, 3);
        uint64_t id = ask_again(&s, cases[i].tokens, cases[i].logprobs, cases[i].reported);
        expect_start(&s, id, cases[i].start, pages, cases[i].start / SL_KV_PAGE_TOKENS);
        assert_int_equal(s.e->stats.rows_kept, cases[i].start);
        assert_int_equal(s.e->stats.rows_recomputed, cases[i].tokens - cases[i].start);
        end(&s);
    }
}

static void what_was_kept_is_checked(void **state) {
    (void)state;
    const uint32_t twice[] = {7, 8, 7}, none[] = {1, 2, UINT32_MAX}, fine[] = {1, 2, 3};
    static const struct {
        uint32_t from, token;
        const char *why;
    } lies[] = {{0, 3, "kept 3 pages, of which one is twice"},
                {0, 3, "kept 3 pages, of which one is twice or none"},
                {1, 3, "unexpected KV_KEPT"}};
    const uint32_t *const pages[] = {twice, none, fine};
    for (size_t i = 0; i < SL_LEN(lies); i++) {
        scene s;
        begin(&s);
        join(&s, 0);
        join(&s, 1);
        say_kept(&s, lies[i].from, pages[i], 3, lies[i].token);
        for (int n = 0; n < 20 && !s.worker[lies[i].from].down; n++) step(&s);
        assert_true(s.worker[lies[i].from].down);
        const char *why = s.worker[lies[i].from].why;
        if (!strstr(why, lies[i].why)) fail_msg("'%s', not '%s'", why, lies[i].why);
        assert_int_equal(s.e->admit.n_cached_pages, 0);
        end(&s);
    }
    scene s;
    begin(&s);
    serve(&s);
    say_kept(&s, 0, fine, 3, 3); /* it serves already */
    for (int n = 0; n < 20 && !s.worker[0].down; n++) step(&s);
    assert_true(s.worker[0].down && strstr(s.worker[0].why, "unexpected KV_KEPT"));
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_leaves_as_the_last_one_joins),
        cmocka_unit_test(logits_of_others_and_of_nowhere),
        cmocka_unit_test(books_of_the_dead_balance),
        cmocka_unit_test(requests_go_on_with_what_was_kept),
        cmocka_unit_test(what_was_kept_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Guides: equal shapes are one, compiled beside or at once; answers that go on elsewhere; what is
 * kept, and no memory. Shapes over the vocabulary of a fixture. */
#include "base/mem.h"
#include "grammar/guide.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <cmocka.h>

#define FIXTURE SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define THOUGHT                                                                                    \
    "{\"seq\":[{\"maybe\":{\"seq\":[{\"text\":\"<<\"},{\"until\":\">>\"}]}},{\"regex\":\"(ab)+\"}" \
    "]}"

static sl_tokenizer *tok;
static const uint32_t ends[] = {1021};

static int open_tokenizer(void **state) {
    (void)state;
    sl_err err;
    return sl_tokenizer_open(FIXTURE, &tok, &err) != SL_OK;
}

static int close_tokenizer(void **state) {
    (void)state;
    sl_tokenizer_free(tok);
    return 0;
}

static sl_span text(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static sl_guides *make_store(bool at_once, void (*ready)(void *), void *ctx) {
    sl_guides *s = NULL;
    sl_err err = {0};
    const sl_guides_opts o = {.tok = at_once ? tok : NULL,
                              .model = at_once ? NULL : FIXTURE,
                              .vocab = 1100, /* more than there are tokens */
                              .ends = ends,
                              .n_ends = 1,
                              .at_once = at_once,
                              .ready = ready,
                              .ctx = ctx};
    if (sl_guides_create(&o, &s, &err) != SL_OK) fail_msg("%s", err.msg);
    return s;
}

static sl_guide *ask(sl_guides *s, const char *shape, sl_status want, const char *says) {
    sl_err err = {0};
    sl_guide *g = sl_guides_ask(s, text(shape));
    assert_non_null(g);
    sl_status st = sl_guide_state(g, &err);
    if (st != want || !strstr(err.msg, says)) fail_msg("%s: %d %s", shape, st, err.msg);
    return g;
}

/* The answer `said`, byte by byte; whether it is allowed so far, and may end. */
static bool says(sl_guide *g, const char *said, bool *end) {
    sl_ids ids = {0};
    sl_err err = {0};
    const uint32_t *mask;
    sl_grammar_allowed allowed;
    sl_grammar_at at = sl_guide_begin(g), whole = at;
    bool ok = true;
    assert_int_equal(sl_tokenizer_encode(tok, text(said), true, false, &ids, &err), SL_OK);
    for (size_t i = 0; i < ids.len && ok; i++) {
        assert_int_equal(sl_guide_mask(g, at, &mask, &allowed, &err), SL_OK);
        ok = mask[ids.data[i] / 32] >> ids.data[i] % 32 & 1;
        assert_int_equal(sl_guide_take(g, &ids.data[i], 1, &at, &err) == SL_OK, ok);
    }
    /* the same of all at once, as who goes on with an answer reads it */
    assert_int_equal(sl_guide_take(g, ids.data, ids.len, &whole, &err) == SL_OK, ok);
    assert_true(!ok || whole == at);
    if (ok) {
        assert_int_equal(sl_guide_mask(g, at, &mask, &allowed, &err), SL_OK);
        *end = mask[ends[0] / 32] >> ends[0] % 32 & 1;
        assert_true(*end == allowed.end);
        for (uint32_t id = sl_tokenizer_vocab_size(tok); id < 1100; id++)
            assert_false(mask[id / 32] >> id % 32 & 1);
    }
    sl_ids_free(&ids);
    return ok;
}

static void shapes_are_put_together(void **state) {
    (void)state;
    static const struct {
        const char *shape, *said;
        bool ok, end;
    } cases[] = {
        {THOUGHT, "abab", true, true},
        {THOUGHT, "aba", true, false},
        {THOUGHT, "<<anything at all, > and <<", true, false},
        {THOUGHT, "<<x>>ab", true, true},
        {THOUGHT, "<<x>>x", false, false},
        {THOUGHT, "<x", false, false},
        {"{\"rest\":true}", "what { ever", true, true},
        {"{\"without\":\"no\"}", "yes n", true, true},
        {"{\"without\":\"no\"}", "yes no", false, false},
        {"{\"seq\":[{\"many\":{\"seq\":[{\"until\":\"!\"},{\"choice\":[\"a\",\"b\"]}]}},{"
         "\"without\":\"!\"}]}",
         "x!a y!b z", true, true},
        {"{\"seq\":[{\"many\":{\"seq\":[{\"until\":\"!\"},{\"choice\":[\"a\",\"b\"]}]}},{"
         "\"without\":\"!\"}]}",
         "x!c", false, false},
        {"{\"or\":[{\"json\":{\"const\":1}},{\"gbnf\":\"root ::= \\\"x\\\"\"}]}", "x", true, true},
        {"{\"or\":[{\"json\":{\"const\":1}},{\"gbnf\":\"root ::= \\\"x\\\"\"}]}", "1", true, true},
        {"{\"or\":[{\"json\":{\"const\":1}},{\"gbnf\":\"root ::= \\\"x\\\"\"}]}", "2", false,
         false},
        /* special tokens are met by their ids, and by what allows anything */
        {"{\"regex\":\"[^a]*\"}", "<|im_start|>", false, false},
        {"{\"json\":{\"type\":\"string\"}}", "\"<|im_start|>", false, false},
        {"{\"rest\":true}", "<|im_start|>x", true, true},
        {"{\"seq\":[{\"until\":[1020]},{\"text\":\"x\"}]}", "y<|im_start|>x", true, true},
        {"{\"seq\":[{\"until\":[1020]},{\"text\":\"x\"}]}", "y<|im_start|>y", false, false},
    };
    sl_guides *s = make_store(true, NULL, NULL);
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        bool end = false;
        sl_guide *g = ask(s, cases[i].shape, SL_OK, "");
        if (says(g, cases[i].said, &end) != cases[i].ok || end != cases[i].end)
            fail_msg("%s of %s", cases[i].said, cases[i].shape);
        sl_guide_let_go(g);
    }
    sl_guides_free(s);
}

static void what_is_no_shape_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        sl_status st;
        const char *says;
    } cases[] = {{"", SL_ERR_FORMAT, ""},
                 {"{}", SL_ERR_FORMAT, "one field"},
                 {"{\"a\":1}", SL_ERR_UNSUPPORTED, "no such part"},
                 {"{\"json\":{},\"regex\":\"a\"}", SL_ERR_FORMAT, "one field"},
                 {"{\"seq\":[]}", SL_ERR_FORMAT, "empty list"},
                 {"{\"text\":[7000]}", SL_ERR_FORMAT, "neither texts nor ids"},
                 {"{\"until\":[]}", SL_ERR_FORMAT, "no text"},
                 {"{\"text\":[\"a\",1021]}", SL_ERR_FORMAT, "ends the answer"},
                 {"{\"choice\":[]}", SL_ERR_FORMAT, "empty"},
                 {"{\"choice\":[1]}", SL_ERR_FORMAT, "list of texts"},
                 {"{\"regex\":\"(\"}", SL_ERR_FORMAT, ""},
                 {"{\"many\":{\"maybe\":{\"text\":\"a\"}}}", SL_ERR_UNSUPPORTED, "may be empty"},
                 {"{\"json\":{\"nullable\":true}}", SL_ERR_UNSUPPORTED, "nullable"},
                 {"{\"json\":false}", SL_ERR_ARG, "no text satisfies"}};
    sl_guides *s = make_store(true, NULL, NULL);
    for (size_t i = 0; i < SL_LEN(cases); i++)
        sl_guide_let_go(ask(s, cases[i].shape, cases[i].st, cases[i].says));
    sl_guides_free(s);
}

static void equal_shapes_are_one(void **state) {
    (void)state;
    char shape[64];
    sl_guides *s = make_store(true, NULL, NULL);
    sl_guide *first = ask(s, "{\"text\":\"a\"}", SL_OK, ""),
             *again = ask(s, "{\"text\":\"a\"}", SL_OK, "");
    assert_ptr_equal(first, again);
    sl_guide_let_go(first);
    for (unsigned i = 0; i < 3 * SL_GUIDES_MAX_IDLE; i++) { /* others come, and are dropped */
        snprintf(shape, sizeof shape, "{\"text\":\"%u\"}", i);
        sl_guide_let_go(ask(s, shape, SL_OK, ""));
    }
    bool end = false;
    assert_true(says(again, "a", &end) && end);
    sl_guide_let_go(again);
    sl_guides_free(s);
}

static void note(void *ctx) {
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void a_thread_compiles(void **state) {
    (void)state;
    static const char *const shapes[] = {"{\"regex\":\"(ab)+\"}", "{\"json\":{}}", "{\"a\":1}",
                                         "{\"text\":\"x\"}"};
    atomic_uint n_ready = 0;
    sl_guides *s = make_store(false, note, &n_ready);
    sl_guide *g[SL_LEN(shapes)];
    sl_err err = {0};
    for (size_t i = 0; i < SL_LEN(shapes); i++) {
        g[i] = sl_guides_ask(s, text(shapes[i]));
        assert_non_null(g[i]);
    }
    for (unsigned ms = 0; ms < 60000 && atomic_load(&n_ready) < SL_LEN(shapes); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    bool end = false;
    assert_int_equal(sl_guide_state(g[0], &err), SL_OK);
    assert_int_equal(sl_guide_state(g[2], &err), SL_ERR_UNSUPPORTED);
    assert_true(says(g[0], "abab", &end) && end);
    for (size_t i = 0; i < SL_LEN(shapes); i++) sl_guide_let_go(g[i]);
    sl_guide_let_go(sl_guides_ask(s, text("{\"text\":\"never awaited\"}")));
    sl_guides_free(s);
    s = make_store(false, NULL, NULL); /* nobody asks */
    sl_guides_free(s);
}

static void without_a_tokenizer_nothing_is_compiled(void **state) {
    (void)state;
    sl_guides *s = NULL;
    sl_err err = {0};
    const sl_guides_opts none = {.vocab = 10, .at_once = true},
                         gone = {.model = "/nowhere", .vocab = 10, .at_once = true};
    assert_int_equal(sl_guides_create(&none, &s, &err), SL_OK);
    sl_guide_let_go(ask(s, "{\"text\":\"a\"}", SL_ERR_UNSUPPORTED, "no tokenizer"));
    sl_guides_free(s);
    assert_int_equal(sl_guides_create(&gone, &s, &err), SL_OK);
    sl_guide *g = sl_guides_ask(s, text("{\"text\":\"a\"}"));
    assert_true(g && sl_guide_state(g, &err) != SL_OK);
    sl_guide_let_go(g);
    sl_guides_free(s);
}

static void no_memory_is_an_error(void **state) {
    (void)state;
    bool failed = true;
    for (long n = 1; failed; n += n < 60 ? 1 : 37) {
        sl_guides *s = NULL;
        sl_guide *g = NULL;
        sl_err err = {0};
        const uint32_t *mask;
        const sl_guides_opts o = {
            .tok = tok, .vocab = 1100, .ends = ends, .n_ends = 1, .at_once = true};
        sl_mem_fail_at(n);
        sl_status st = sl_guides_create(&o, &s, &err);
        if (st == SL_OK) g = sl_guides_ask(s, text(THOUGHT));
        if (st == SL_OK) st = g ? sl_guide_state(g, &err) : SL_ERR_NOMEM;
        if (st == SL_OK) st = sl_guide_mask(g, sl_guide_begin(g), &mask, NULL, &err);
        sl_mem_fail_at(0);
        failed = st != SL_OK;
        if (failed) assert_int_equal(st, SL_ERR_NOMEM);
        sl_guide_let_go(g);
        sl_guides_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_put_together),
        cmocka_unit_test(what_is_no_shape_is_refused),
        cmocka_unit_test(equal_shapes_are_one),
        cmocka_unit_test(a_thread_compiles),
        cmocka_unit_test(without_a_tokenizer_nothing_is_compiled),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}

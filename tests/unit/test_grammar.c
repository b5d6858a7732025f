/* Grammars over a small vocabulary: masks, the end, single tokens, going back, limits, no memory.
 * What masks allow is held against others' recognisers in tests/oracle/test_grammar.py and
 * test_schema.py. */
#include "base/mem.h"
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const char *const tokens[] = {
    "{",    "}",  "\"",    "a",    "b",  "{\"",   "\":",  ":",        "1",    "12",
    "true", "ab", "\",\"", "null", " ",  "false", "\"}",  "a\"",      "a\":", "[",
    "]",    ",",  "a",     "",     "tr", "\xc3",  "\xa9", "\xc3\xa9", "0",    "-"};
#define END ((uint32_t)SL_LEN(tokens))

static sl_vocab *make_vocab(void) {
    sl_span texts[SL_LEN(tokens) + 1] = {{0}};
    sl_vocab *v = NULL;
    sl_err err = {0};
    for (size_t i = 0; i < SL_LEN(tokens); i++)
        texts[i] = (sl_span){(const uint8_t *)tokens[i], strlen(tokens[i])};
    if (sl_vocab_create(texts, END + 1, &(uint32_t){END}, 1, &v, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return v;
}

static sl_span text(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static sl_status of_schema(const sl_vocab *v, const char *schema, sl_grammar **out, sl_err *err) {
    sl_json_doc *doc = NULL;
    *out = NULL;
    sl_status st = sl_json_parse("schema", text(schema), &doc, err);
    if (st == SL_OK) st = sl_grammar_of_schema(v, sl_json_root(doc), SL_JSON_SPACE_NONE, out, err);
    sl_json_doc_free(doc);
    return st;
}

/* The allowed tokens as one text, "|" behind each; the end is "$". */
static void allowed(sl_grammar *g, sl_grammar_at at, char out[512], sl_grammar_allowed *what) {
    uint32_t mask[4];
    sl_err err = {0};
    out[0] = 0;
    if (sl_grammar_mask(g, at, mask, what, &err) != SL_OK) fail_msg("%s", err.msg);
    for (uint32_t id = 0; id <= END; id++) {
        if (!(mask[id / 32] >> id % 32 & 1)) continue;
        strcat(out, id == END ? "$" : tokens[id]);
        strcat(out, "|");
    }
}

static void masks_follow_a_schema(void **state) {
    (void)state;
    sl_vocab *v = make_vocab();
    sl_grammar *g = NULL;
    sl_err err = {0};
    char got[512];
    sl_grammar_allowed what;
    const char *schema = "{\"properties\":{\"a\":{\"enum\":[1,12]},\"ab\":{\"type\":\"boolean\"}},"
                         "\"required\":[\"a\"],\"additionalProperties\":false,\"type\":\"object\"}";
    if (of_schema(v, schema, &g, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_grammar_at at = sl_grammar_begin(g), kept;
    allowed(g, at, got, &what);
    assert_string_equal(got, "{|{\"|");
    assert_true(what.n == 2 && !what.end);
    assert_int_equal(sl_grammar_take(g, 5, &at, &err), SL_OK); /* {" */
    allowed(g, at, got, &what);
    assert_string_equal(got, "a|a\"|a\":|a|");                  /* both tokens with the text a */
    assert_int_equal(sl_grammar_take(g, 18, &at, &err), SL_OK); /* a": */
    kept = at;
    allowed(g, at, got, &what);
    assert_string_equal(got, "1|12|");
    assert_int_equal(sl_grammar_take(g, 8, &at, &err), SL_OK);
    allowed(g, at, got, &what);
    assert_string_equal(got, "}|,|"); /* 2 is no token of its own */
    assert_int_equal(sl_grammar_take(g, 12, &at, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "byte 0"));
    assert_int_equal(sl_grammar_take(g, 23, &at, &err), SL_ERR_ARG);
    assert_int_equal(sl_grammar_take(g, END, &at, &err), SL_ERR_ARG);
    at = kept; /* going back costs nothing */
    assert_int_equal(sl_grammar_read(g, text("12,\"ab\":true"), &at, &err), SL_OK);
    allowed(g, at, got, &what);
    assert_string_equal(got, "}|");
    assert_true(what.n == 1 && what.only == 1 && !what.end);
    assert_int_equal(sl_grammar_take(g, 1, &at, &err), SL_OK);
    allowed(g, at, got, &what);
    assert_string_equal(got, "$|");
    assert_true(what.n == 1 && what.only == END && what.end && sl_grammar_may_end(g, at));
    assert_int_equal(sl_grammar_take(g, END, &at, &err), SL_OK);
    sl_grammar_free(g);
    sl_vocab_free(v);
}

static void halves_of_characters_are_tokens(void **state) {
    (void)state;
    sl_vocab *v = make_vocab();
    sl_grammar *g = NULL;
    sl_err err = {0};
    char got[512];
    assert_int_equal(sl_grammar_of_regex(v, text("[\xc3\xa9\xc3\xa8]{2}|a+"), &g, &err), SL_OK);
    sl_grammar_at at = sl_grammar_begin(g);
    allowed(g, at, got, NULL);
    assert_string_equal(got, "a|a|\xc3|\xc3\xa9|");
    assert_int_equal(sl_grammar_read(g, text("\xc3"), &at, &err), SL_OK);
    allowed(g, at, got, NULL);
    assert_string_equal(got, "\xa9|");
    sl_grammar_free(g);
    assert_int_equal(
        sl_grammar_of_choices(v, (sl_span[]){text("true"), text("12"), text("tr")}, 3, &g, &err),
        SL_OK);
    allowed(g, sl_grammar_begin(g), got, NULL);
    assert_string_equal(got, "1|12|true|tr|");
    sl_grammar_free(g);
    assert_int_equal(sl_grammar_of_json(v, SL_JSON_SPACE_SOME, &g, &err), SL_OK);
    allowed(g, sl_grammar_begin(g), got, NULL);
    assert_string_equal(got, "{|{\"|");
    sl_grammar_free(g);
    sl_vocab_free(v);
}

/* Stacks that differ in every level share what they can: no number of readings that doubles with
 * each byte. */
static void ambiguous_grammars_stay_small(void **state) {
    (void)state;
    sl_vocab *v = make_vocab();
    sl_grammar *g = NULL;
    sl_err err = {0};
    const char *gbnf = "root ::= \"a\" x | \"a\" y | \"b\"\nx ::= root \"0\"\ny ::= root \"1\"\n";
    if (sl_grammar_of_gbnf(v, text(gbnf), &g, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_grammar_at at = sl_grammar_begin(g);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(sl_grammar_read(g, text("a"), &at, &err), SL_OK);
    assert_int_equal(sl_grammar_read(g, text("b"), &at, &err), SL_OK);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(sl_grammar_read(g, text(i % 3 ? "0" : "1"), &at, &err), SL_OK);
    assert_true(sl_grammar_may_end(g, at));
    assert_true(sl_grammar_memory(g) < (size_t)8 << 20);
    sl_grammar_free(g);
    sl_vocab_free(v);
}

static void vocabularies_are_checked(void **state) {
    (void)state;
    sl_vocab *v = NULL;
    sl_err err = {0};
    const sl_span one = text("a");
    assert_int_equal(sl_vocab_create(&one, 1, &(uint32_t){1}, 1, &v, &err), SL_ERR_ARG);
    static uint8_t big[UINT16_MAX + 1];
    assert_int_equal(sl_vocab_create(&(sl_span){big, sizeof big}, 1, NULL, 0, &v, &err),
                     SL_ERR_LIMIT);
    assert_int_equal(sl_vocab_create(NULL, 0, NULL, 0, &v, &err), SL_OK);
    sl_vocab_free(v);
}

/* Every allocation of making and using a grammar fails once: an error each time, nothing lost. */
static void no_memory_is_an_error(void **state) {
    (void)state;
    const char *schema =
        "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"a|b\"},\"n\":{\"type\":"
        "\"number\","
        "\"minimum\":1},\"l\":{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"array\"}]}}}";
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        sl_vocab *v = make_vocab();
        sl_grammar *g = NULL;
        sl_err err = {0};
        uint32_t mask[4];
        sl_mem_fail_at(n);
        sl_status st = of_schema(v, schema, &g, &err);
        sl_grammar_at at = 0;
        if (st == SL_OK) {
            at = sl_grammar_begin(g);
            st = sl_grammar_read(g, text("{\"a\":\"a\",\"z\":[1,"), &at, &err);
        }
        if (st == SL_OK) st = sl_grammar_mask(g, at, mask, NULL, &err);
        sl_mem_fail_at(0);
        failed = st != SL_OK;
        if (failed) assert_int_equal(st, SL_ERR_NOMEM);
        sl_grammar_free(g);
        sl_vocab_free(v);
        assert_true(n < 5000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_follow_a_schema),
        cmocka_unit_test(halves_of_characters_are_tokens),
        cmocka_unit_test(ambiguous_grammars_stay_small),
        cmocka_unit_test(vocabularies_are_checked),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

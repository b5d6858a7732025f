/* Documents, getters, limits, errors with a place. */
#include "format/json.h"

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static sl_json_doc *parse(const char *text, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st =
        sl_json_parse("c.json", (sl_span){(const uint8_t *)text, strlen(text)}, &doc, err);
    assert_int_equal(st, doc ? SL_OK : err->code);
    return doc;
}

static void getters_check_kind_and_range(void **state) {
    (void)state;
    sl_err err = {0};
    sl_json_doc *doc = parse("{\"n\":7,\"x\":2.5,\"s\":\"hi\",\"b\":true,\"z\":null,\"neg\":-1,"
                             "\"deep\":{\"list\":[{\"k\":1}]}}",
                             &err);
    assert_non_null(doc);
    sl_json root = sl_json_root(doc);
    uint64_t u = 0;
    double f = 0;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(sl_json_u64(root, "n", SL_JSON_REQUIRED, 0, 7, &u, &err), SL_OK);
    assert_int_equal(u, 7);
    assert_int_equal(sl_json_f64(root, "n", SL_JSON_REQUIRED, 0, 7, &f, &err), SL_OK);
    assert_true(f == 7.0);
    assert_int_equal(sl_json_bool(root, "b", SL_JSON_REQUIRED, &b, &err), SL_OK);
    assert_true(b);
    assert_int_equal(sl_json_string(root, "s", SL_JSON_REQUIRED, &s, &err), SL_OK);
    assert_string_equal(s, "hi");
    assert_int_equal(sl_json_u64(root, "n", SL_JSON_REQUIRED, 8, 9, &u, &err), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "c.json: n: 7 is outside 8..9");
    assert_int_equal(sl_json_u64(root, "neg", SL_JSON_REQUIRED, 0, 9, &u, &err), SL_ERR_LIMIT);
    assert_int_equal(sl_json_u64(root, "x", SL_JSON_REQUIRED, 0, 9, &u, &err), SL_ERR_FORMAT);
    assert_string_equal(err.msg, "c.json: x: a real number (2.5) where an integer was expected");
    assert_int_equal(sl_json_f64(root, "x", SL_JSON_REQUIRED, 3, 9, &f, &err), SL_ERR_LIMIT);
    u = 42;
    assert_int_equal(sl_json_u64(root, "z", SL_JSON_OPTIONAL, 0, 9, &u, &err), SL_OK);
    assert_int_equal(sl_json_u64(root, "nope", SL_JSON_OPTIONAL, 0, 9, &u, &err), SL_OK);
    assert_int_equal(u, 42);
    assert_int_equal(sl_json_u64(root, "z", SL_JSON_REQUIRED, 0, 9, &u, &err), SL_ERR_FORMAT);
    assert_string_equal(err.msg, "c.json: z: missing");
    sl_json in = sl_json_at(sl_json_get(sl_json_get(root, "deep"), "list"), 0);
    assert_int_equal(sl_json_string(in, "k", SL_JSON_REQUIRED, &s, &err), SL_ERR_FORMAT);
    assert_string_equal(err.msg,
                        "c.json: deep.list[0].k: an integer (1) where a string was expected");
    const char *const keys[] = {"n", "x", "s", "b", "deep"};
    assert_int_equal(sl_json_only(root, keys, SL_LEN(keys), &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "c.json: neg: unknown field");
    sl_json_doc_free(doc);
}

static void bad_documents_are_refused_with_a_place(void **state) {
    (void)state;
    sl_err err = {0};
    assert_null(parse("{\"a\":1,\n\"a\":2}", &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "c.json: line 2"));
    assert_non_null(strstr(err.msg, "duplicate"));
    assert_null(parse("", &err));
    assert_null(parse("{\"a\":1} x", &err));
    assert_null(parse("{\"\\u0000\":1}", &err));
    assert_null(parse("{\"a\":1e999}", &err));
    assert_null(parse("{\"a\":\"\xff\"}", &err));
    char deep[400];
    for (int n = SL_JSON_MAX_DEPTH; n <= SL_JSON_MAX_DEPTH + 1; n++) {
        memset(deep, '[', (size_t)n);
        memset(deep + n, ']', (size_t)n);
        deep[2 * n] = 0;
        sl_json_doc *doc = parse(deep, &err);
        assert_int_equal(doc != NULL, n <= SL_JSON_MAX_DEPTH);
        sl_json_doc_free(doc);
    }
    assert_int_equal(err.code, SL_ERR_LIMIT);
}

/* Published tokenizer_config.json have a model_max_length of 10^30. */
static void integers_beyond_64_bits_become_reals(void **state) {
    (void)state;
    sl_err err = {0};
    sl_span s;
    double x = 0;
    int64_t i = 0;
    sl_json_doc *doc = parse(
        "{\"a\":1000000000000000019884624838656,\"b\":[-99999999999999999999,"
        "9223372036854775807,-9223372036854775807,9223372036854775808,1.00000000000000000001,"
        "1e00000000000000000000],\"c\":\"9999999999999999999999 \\\" 99999999999999999999999\"}",
        &err);
    if (!doc) fail_msg("%s", err.msg);
    sl_json root = sl_json_root(doc), b = sl_json_get(root, "b");
    assert_true(sl_json_as_f64(sl_json_get(root, "a"), &x) && fabs(x / 1e30 - 1) < 1e-15);
    assert_true(sl_json_as_f64(sl_json_at(b, 0), &x) && x == -1e20);
    assert_true(sl_json_as_i64(sl_json_at(b, 1), &i) && i == INT64_MAX);
    assert_true(sl_json_as_i64(sl_json_at(b, 2), &i) && i == -INT64_MAX);
    assert_true(sl_json_as_f64(sl_json_at(b, 3), &x) && x == 0x1p63);
    assert_true(sl_json_as_f64(sl_json_at(b, 4), &x) && x == 1);
    assert_true(sl_json_as_f64(sl_json_at(b, 5), &x) && x == 1);
    assert_true(sl_json_as_span(sl_json_get(root, "c"), &s));
    assert_string_equal((const char *)s.data, "9999999999999999999999 \" 99999999999999999999999");
    sl_json_doc_free(doc);
}

static void nul_characters_are_no_c_strings(void **state) {
    (void)state;
    sl_err err = {0};
    const char *s = NULL;
    sl_span span;
    sl_json_doc *doc = parse("{\"a\":\"x\\u0000y\"}", &err);
    sl_json root = sl_json_root(doc);
    assert_int_equal(sl_json_string(root, "a", SL_JSON_REQUIRED, &s, &err), SL_ERR_FORMAT);
    assert_true(sl_json_as_span(sl_json_get(root, "a"), &span) && span.len == 3);
    sl_json_doc_free(doc);
}

static void fields_are_walked_in_file_order(void **state) {
    (void)state;
    sl_err err = {0};
    sl_json_doc *doc = parse("{\"z\":0,\"a\":1,\"m\":2,\"b\":3}", &err);
    void *iter = NULL;
    const char *key;
    char seen[8] = "";
    uint64_t want = 0, got;
    for (sl_json v; sl_json_next(sl_json_root(doc), &iter, &key, &v); want++) {
        assert_true(sl_json_as_u64(v, &got));
        assert_int_equal(got, want);
        strcat(seen, key);
    }
    assert_string_equal(seen, "zamb");
    sl_json_doc_free(doc);
}

static void files_have_a_size_limit(void **state) {
    (void)state;
    char path[] = "/tmp/sl_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "[1,2,3]", 7) == 7);
    close(fd);
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    assert_int_equal(sl_json_load(path, 6, &doc, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "7 bytes, limit 6"));
    assert_int_equal(sl_json_load(path, 7, &doc, &err), SL_OK);
    assert_int_equal(sl_json_count(sl_json_root(doc)), 3);
    sl_json_doc_free(doc);
    unlink(path);
    assert_int_equal(sl_json_load(path, 7, &doc, &err), SL_ERR_NOTFOUND);
    assert_int_equal(sl_json_load("/tmp", 7, &doc, &err), SL_ERR_IO);
}

/* ---- what parsing takes ---- */

static size_t taken, most_taken;

static void *count_malloc(size_t n) {
    void *p = malloc(n);
    taken += p ? malloc_usable_size(p) + 8 : 0; /* and malloc's own word */
    most_taken = taken > most_taken ? taken : most_taken;
    return p;
}

static void count_free(void *p) {
    taken -= p ? malloc_usable_size(p) + 8 : 0;
    free(p);
}

/* Parses unit repeated n times inside the brackets with no more memory than it has to be granted;
 * it must not take more than that. */
static void check_memory(const char *open, const char *unit, const char *close, size_t n) {
    size_t len = 0, cap = strlen(open) + n * (strlen(unit) + 8) + 8;
    char *text = malloc(cap);
    assert_non_null(text);
    len += (size_t)sprintf(text, "%s", open);
    for (size_t i = 0; i < n; i++) { /* keys stay different by their number */
        if (i) text[len++] = ',';
        len += unit[0] == '#' ? (size_t)sprintf(text + len, "\"%zu\"%s", i, unit + 1)
                              : (size_t)sprintf(text + len, "%s", unit);
    }
    len += (size_t)sprintf(text + len, "%s", close);
    sl_status st = SL_ERR_LIMIT;
    size_t granted = 1024;
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    for (; st == SL_ERR_LIMIT; granted += granted / 8) {
        taken = most_taken = 0;
        st = sl_json_parse_within("t", (sl_span){(const uint8_t *)text, len}, granted, &doc, &err);
    }
    if (st != SL_OK) fail_msg("%s", err.msg);
    if (most_taken > granted || granted > 400 * len + 4096)
        fail_msg("%s of %zu bytes took %zu of %zu granted", unit, len, most_taken, granted);
    sl_json_doc_free(doc);
    free(text);
}

static void memory_is_bounded_before_it_is_taken(void **state) {
    (void)state;
    static const char *const array[] = {
        "0",         "1.5",
        "\"\"",      "\"ab\"",
        "{}",        "[]",
        "[0]",       "[[]]",
        "{\"a\":0}", "[0,0,0,0,0,0,0,0,0]",
        "null",      "\"a longer string, of forty-odd characters\""};
    static const char *const object[] = {"#:0", "#:{}", "#:[]", "#:\"\"", "#:{\"a\":{}}"};
    json_set_alloc_funcs(count_malloc, count_free);
    for (size_t n = 1; n < 40000; n = n * 7 + 1) {
        for (size_t i = 0; i < SL_LEN(array); i++) check_memory("[", array[i], "]", n);
        for (size_t i = 0; i < SL_LEN(object); i++) check_memory("{", object[i], "}", n);
    }
    json_set_alloc_funcs(malloc, free);
}

static void small_values_beyond_the_limit_are_refused(void **state) {
    (void)state;
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    const sl_span text = {(const uint8_t *)"[{},{},{}]", 10};
    assert_int_equal(sl_json_parse_within("t", text, 1000, &doc, &err), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "t: 7 values in 4 arrays and objects would take 1794 bytes, limit "
                                 "1000");
    assert_int_equal(sl_json_parse_within("t", text, 1794, &doc, &err), SL_OK);
    sl_json_doc_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(getters_check_kind_and_range),
        cmocka_unit_test(bad_documents_are_refused_with_a_place),
        cmocka_unit_test(integers_beyond_64_bits_become_reals),
        cmocka_unit_test(nul_characters_are_no_c_strings),
        cmocka_unit_test(fields_are_walked_in_file_order),
        cmocka_unit_test(files_have_a_size_limit),
        cmocka_unit_test(memory_is_bounded_before_it_is_taken),
        cmocka_unit_test(small_values_beyond_the_limit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

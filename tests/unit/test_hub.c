/* Names of models, digests as a hub knows files by them, the files that a model needs, and lines
 * about long work. What goes over a network: tests/cli/test_fetch.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/progress.h"
#include "hub/hub_int.h"

static void names_have_parts(void **state) {
    (void)state;
    sl_hub_name n;
    sl_err err = {0};
    assert_int_equal(sl_hub_name_parse("org/model", &n, &err), SL_OK);
    assert_string_equal(n.org, "org");
    assert_string_equal(n.model, "model");
    assert_string_equal(n.revision, "main");
    assert_string_equal(n.pattern, "");
    assert_int_equal(sl_hub_name_parse("a.b/c_D-1@refs/pr/7:*/Q4_K_M", &n, &err), SL_OK);
    assert_string_equal(n.org, "a.b");
    assert_string_equal(n.model, "c_D-1");
    assert_string_equal(n.revision, "refs/pr/7");
    assert_string_equal(n.pattern, "*/Q4_K_M");
    static const char *const none[] = {
        "",      "model",  "a/b/c",    "./b",      "../b",   "/a/b",    "~/b",    "a/b c",
        "a/.b",  "a/b.",   "a/b--c",   "a..b/c",   "a/b@",   "a/b:",    "a/b@-x", "a/b@x/",
        "a/b@/", "a/b@..", "a/b@x..y", "a/b@.git", "a/\303", "a/b:\\x", "-a/b",   "a/b@x y"};
    for (size_t i = 0; i < SL_LEN(none); i++) {
        assert_int_equal(sl_hub_name_parse(none[i], &n, &err), SL_ERR_ARG);
        assert_true(err.msg[0]);
    }
}

static void digest_is(const char *text, size_t repeat, const char *id) {
    size_t n = strlen(text);
    char got[SL_HUB_ID + 1];
    sl_hub_digest *d = sl_hub_digest_start(n * repeat, id);
    assert_non_null(d);
    for (size_t i = 0; i < repeat; i++) sl_hub_digest_add(d, text, n);
    sl_hub_digest_end(d, got);
    assert_string_equal(got, id);
}

/* As `git hash-object` and `sha256sum` say. */
static void digests_are_those_of_git_and_sha256(void **state) {
    (void)state;
    digest_is("", 1, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    digest_is("hello\n", 1, "ce013625030ba8dba906f756967f9e9ca394464a");
    digest_is("0123456789abcdef", 1000, "f93c310d312ebb0e5559297737e21dd106c319a2");
    digest_is("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is("hello\n", 1, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
}

/* Files that a choice takes of a list, with spaces between them, in the list's order. */
static const char *taken(const char *const *names, const char *pattern, const char *open) {
    static char text[512];
    sl_hub_listing l = {0};
    sl_hub_choice choice;
    sl_err err = {0};
    size_t n = 0;
    text[0] = 0;
    for (; *names; names++) assert_int_equal(sl_hub_listing_add(&l, *names, 1, "", &err), SL_OK);
    if (sl_hub_select(&l, "test", pattern, SL_HUB_MODEL, &choice, &err) == SL_OK) {
        for (size_t i = 0; i < l.n; i++)
            if (l.file[i].wanted)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "",
                                      l.file[i].name);
        if (open) assert_string_equal(choice.open ? choice.open : "", open);
    } else {
        assert_true(err.msg[0]);
        snprintf(text, sizeof text, "refused");
    }
    sl_hub_listing_free(&l);
    return text;
}

static void a_model_needs_some_files(void **state) {
    (void)state;
    static const char *const folder[] = {
        "README.md",   "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json",
        "x-Q8_0.gguf", NULL};
    assert_string_equal(taken(folder, "", ""), "config.json model.safetensors tokenizer.json");
    assert_string_equal(taken(folder, "q8_0", "x-Q8_0.gguf"), "x-Q8_0.gguf");
    assert_string_equal(taken(folder, "8_0", ""), "refused"); /* no part of a word */
    assert_string_equal(taken(folder, "*.md", ""), "README.md");
    static const char *const parts[] = {"d/m-Q4-00001-of-00002.gguf", "d/m-Q4-00002-of-00002.gguf",
                                        "d/m-Q4-00002-of-00003.gguf", "d/m-Q4.gguf", NULL};
    assert_string_equal(taken(parts, "*-00001-of-00002.gguf", "d/m-Q4-00001-of-00002.gguf"),
                        "d/m-Q4-00001-of-00002.gguf d/m-Q4-00002-of-00002.gguf");
    assert_string_equal(taken(parts, "m-Q4.gguf", "d/m-Q4.gguf"), "d/m-Q4.gguf");
    static const char *const bare[] = {"config.json", "model.safetensors", NULL};
    assert_string_equal(taken(bare, "", ""), "refused"); /* no tokenizer */
}

static void lines_say_how_long_it_takes(void **state) {
    (void)state;
    char text[200];
    sl_progress p = {.unit = SL_PROGRESS_BYTES, .what = "org/model", .begun_ns = 1};
    p.done = 1500000000, p.total = 6000000000, p.last_ns = 5000000001, p.rate = 5e7;
    sl_progress_text(&p, text, sizeof text);
    assert_string_equal(text, "org/model: 1.5 of 6.0 GB, 25 %, 50.0 MB/s, 1 min 30 s left");
    p.done = p.total - 5985000000; /* 119.7 s: no minute has 60 s */
    sl_progress_text(&p, text, sizeof text);
    assert_non_null(strstr(text, "2 min 00 s left"));
    p.done = 1500000000;
    p.last_ns = 2; /* too early to say */
    sl_progress_text(&p, text, sizeof text);
    assert_string_equal(text, "org/model: 1.5 of 6.0 GB, 25 %, 50.0 MB/s");
    p = (sl_progress){.unit = SL_PROGRESS_STEPS, .what = "plan", .done = 3, .total = 4};
    sl_progress_text(&p, text, sizeof text);
    assert_string_equal(text, "plan: 3 of 4, 75 %");
    sl_progress_begin(&p, "nothing", SL_PROGRESS_STEPS, false);
    sl_progress_set(&p, 1, 2);
    sl_progress_say(&p, "waits");
    sl_progress_text(&p, text, sizeof text);
    assert_string_equal(text, "nothing: waits");
    sl_progress_end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_parts),
        cmocka_unit_test(digests_are_those_of_git_and_sha256),
        cmocka_unit_test(a_model_needs_some_files),
        cmocka_unit_test(lines_say_how_long_it_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

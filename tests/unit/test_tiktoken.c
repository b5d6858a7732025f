/* tiktoken.model files that are damaged or of a kind that is not known; what is right is compared
 * with the tiktoken library in test_tokenizer.c and tests/oracle/test_tiktoken.py. */
#include "base/mem.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define FIRST  "aGU= 256\nbGw= 257\n"           /* "he", "ll" */
#define SECOND "aGVsbA== 258\r\n\naGVsbG8= 259" /* "hell", "hello" */
#define KIMI   "{\"tokenizer_class\":\"TikTokenTokenizer\"}"

/* Lines of all single bytes but `without`, and `more`. */
static char *file_of(int without, const char *more) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc(16 * 256 + strlen(more) + 1), *at = text;
    assert_non_null(text);
    for (int b = 0, rank = 0; b < 256; b++) {
        if (b == without) continue;
        at += sprintf(at, "%c%c== %d\n", digits[b >> 2], digits[b << 4 & 63], rank++);
    }
    strcpy(at, more);
    return text;
}

static sl_status parse(const char *text, const char *config, sl_tokenizer **out, sl_err *err) {
    sl_span model = {(const uint8_t *)text, strlen(text)};
    sl_span more = {(const uint8_t *)config, strlen(config)};
    return sl_tokenizer_parse_tiktoken("t", model, more, out, err);
}

static void check_refused(int without, const char *more, const char *config, sl_status want,
                          const char *says) {
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    char *text = file_of(without, more);
    sl_status st = parse(text, config, &tok, &err);
    free(text);
    if (st != want || strcmp(err.msg, says) != 0)
        fail_msg("%d \"%s\", not %d \"%s\"", st, err.msg, want, says);
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    sl_err err = {0};
    sl_tokenizer *tok = NULL;
    check_refused(-1, FIRST "aGVs 257", "", SL_ERR_FORMAT, "t: line 259: rank 257 is used twice");
    check_refused(-1, FIRST "aGU= 258", "", SL_ERR_FORMAT,
                  "t: line 259: the token of rank 256 again");
    check_refused(-1, FIRST "aG!s 258", "", SL_ERR_FORMAT,
                  "t: line 259: \"aG!s\" is not a token in base64");
    check_refused(-1, FIRST "aGVsb 258", "", SL_ERR_FORMAT,
                  "t: line 259: \"aGVsb\" is not a token in base64");
    check_refused(-1, FIRST "a=Vs 258", "", SL_ERR_FORMAT,
                  "t: line 259: \"a=Vs\" is not a token in base64");
    check_refused(-1, FIRST "==== 258", "", SL_ERR_FORMAT,
                  "t: line 259: \"====\" is not a token in base64");
    check_refused(-1, FIRST " 258", "", SL_ERR_FORMAT,
                  "t: line 259: \"\" is not a token in base64");
    check_refused(-1, FIRST "aGVs", "", SL_ERR_FORMAT,
                  "t: line 259: \"aGVs\" is not a token in base64");
    check_refused(-1, FIRST "aGVs -1", "", SL_ERR_FORMAT,
                  "t: line 259: rank \"-1\" is not a number");
    check_refused(-1, FIRST "aGVs ", "", SL_ERR_FORMAT, "t: line 259: rank \"\" is not a number");
    check_refused(-1, FIRST "aGVs 99999999999999999999", "", SL_ERR_LIMIT,
                  "t: line 259: rank 1099511627776, limit 0..258: special tokens begin behind as "
                  "many ids as there are lines");
    check_refused(-1, FIRST "aGVs 259", "", SL_ERR_LIMIT,
                  "t: line 259: rank 259, limit 0..258: special tokens begin behind as many ids as "
                  "there are lines");
    check_refused(0xE4, "aGU= 255\n", "", SL_ERR_FORMAT, "t: no token for byte 0xE4");
    check_refused(7, "", "", SL_ERR_LIMIT, "t: 255 tokens, limit 256..1048318");
    check_refused(-1, FIRST "aGV5eQ== 258", "", SL_ERR_UNSUPPORTED,
                  "t: rank 258: tokens of lower rank make 3 parts of its 4 bytes, not 2");
    sl_span large = {(const uint8_t *)"", SL_TOKENIZER_MAX_FILE + 1};
    assert_int_equal(sl_tokenizer_parse_tiktoken("t", large, (sl_span){0}, &tok, &err),
                     SL_ERR_LIMIT);
    assert_string_equal(err.msg, "t: 67108865 bytes, limit 67108864");
}

static void tokens_have_a_limit(void **state) {
    (void)state;
    char more[2900] = FIRST;
    size_t at = strlen(more);
    memset(more + at, 'A', 2732); /* four for three bytes */
    strcpy(more + at + 2732, " 258");
    check_refused(-1, more, "", SL_ERR_LIMIT, "t: line 259: token of 2049 bytes, limit 1..2048");
}

static void special_tokens_lie_behind_the_ranks(void **state) {
    (void)state;
    sl_err err = {0};
    sl_tokenizer *tok = NULL;
    check_refused(
        -1, FIRST, "{\"added_tokens_decoder\":{\"257\":{\"content\":\"x\"}}}", SL_ERR_LIMIT,
        "t: added_tokens_decoder.257: special tokens have ids 258..515, behind the 258 of "
        "tiktoken.model");
    check_refused(
        -1, FIRST, "{\"added_tokens_decoder\":{\"516\":{\"content\":\"x\"}}}", SL_ERR_LIMIT,
        "t: added_tokens_decoder.516: special tokens have ids 258..515, behind the 258 of "
        "tiktoken.model");
    check_refused(-1, FIRST, "{\"added_tokens_decoder\":{\"258\":{}}}", SL_ERR_FORMAT,
                  "t: added_tokens_decoder.258.content: missing");
    char *text = file_of(-1, FIRST SECOND);
    sl_status st = parse(text,
                         "{\"added_tokens_decoder\":{\"260\":{\"content\":\"[BOS]\",\"special\":"
                         "true},\"262\":{\"content\":\"<tool>\"},\"517\":{\"content\":\"[PAD]\"}}}",
                         &tok, &err);
    free(text);
    if (st != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_tokenizer_vocab_size(tok), 518);
    assert_int_equal(sl_tokenizer_find(tok, "[BOS]"), 260);
    assert_int_equal(sl_tokenizer_find(tok, "<|reserved_token_261|>"), 261);
    assert_int_equal(sl_tokenizer_find(tok, "<|reserved_token_515|>"), 515);
    assert_int_equal(sl_tokenizer_find(tok, "<|reserved_token_516|>"), -1);
    assert_int_equal(sl_tokenizer_find(tok, "[PAD]"), 517);
    assert_true(sl_tokenizer_is_special(tok, 260) && sl_tokenizer_is_special(tok, 261));
    assert_false(sl_tokenizer_is_special(tok, 262));
    static const uint32_t want[] = {260, 259, 262, 256, 'l', 'p'};
    static const char words[] = "[BOS]hello<tool>help";
    sl_ids ids = {0};
    sl_span s = {(const uint8_t *)words, sizeof words - 1};
    assert_int_equal(sl_tokenizer_encode(tok, s, true, true, &ids, &err), SL_OK);
    assert_int_equal(ids.len, SL_LEN(want));
    assert_memory_equal(ids.data, want, sizeof want);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void check_folder(const char *folder, sl_status want, const char *says) {
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    sl_status st = sl_tokenizer_open(folder, &tok, &err);
    sl_tokenizer_free(tok);
    if (st != want || (want != SL_OK && !strstr(err.msg, says)))
        fail_msg("%d \"%s\", not %d \"%s\"", st, err.msg, want, says);
}

static void folders_of_other_kinds_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"tiktoken.model", "config.json", "tokenizer_config.json"};
    char folder[] = "/tmp/sl_tiktoken_XXXXXX", path[256];
    assert_non_null(mkdtemp(folder));
    check_folder(folder, SL_ERR_NOTFOUND, "has neither tokenizer.json nor tiktoken.model");
    char *text = file_of(-1, FIRST);
    write_file(folder, names[0], text);
    free(text);
    check_folder(folder, SL_ERR_UNSUPPORTED, "/tiktoken.model: no tokenizer_class and no config");
    write_file(folder, names[1], "{\"model_type\":\"qwen\"}");
    check_folder(folder, SL_ERR_UNSUPPORTED, "config.json: model_type: \"qwen\": how it splits");
    write_file(folder, names[1], "{\"model_type\":\"kimi_k2\"}");
    check_folder(folder, SL_OK, "");
    write_file(folder, names[2], "{\"tokenizer_class\":\"QWenTokenizer\"}");
    check_folder(folder, SL_ERR_UNSUPPORTED,
                 "tokenizer_config.json: tokenizer_class: \"QWenTokenizer\": of tiktoken.model");
    write_file(folder, names[2], KIMI);
    write_file(folder, names[1], "{}");
    check_folder(folder, SL_OK, "");
    for (size_t i = 0; i < SL_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void failing_allocations_are_errors(void **state) {
    (void)state;
    char *text = file_of(-1, FIRST SECOND);
    for (uint64_t nth = 1;; nth++) {
        sl_tokenizer *tok = NULL;
        sl_err err = {0};
        sl_mem_fail_at(nth);
        sl_status st = parse(text, KIMI, &tok, &err);
        sl_mem_fail_at(0);
        sl_tokenizer_free(tok);
        if (st == SL_OK) break;
        assert_int_equal(st, SL_ERR_NOMEM);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(tokens_have_a_limit),
        cmocka_unit_test(special_tokens_lie_behind_the_ranks),
        cmocka_unit_test(folders_of_other_kinds_are_refused),
        cmocka_unit_test(failing_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Prompts of fill-in-the-middle: which format a tokenizer has, and what is put where. */
#include "base/mem.h"
#include "format/gguf_write.h"
#include "text/fim.h"
#include "text/tokenizer_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static sl_span span_of(const char *s) {
    return (sl_span){(const uint8_t *)s, s ? strlen(s) : 0};
}

/* "a" to "d" are 0 to 3, a line break is 4, letters of names follow. */
#define VOCAB                                                                                      \
    "{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"\u010A\":4,\"r\":5,\"e\":6,\"p\":7,\"o\":8,\"s\":9,"       \
    "\"i\":10,\"t\":11,\"y\":12,\"f\":13,\"l\":14,\"n\":15,\"m\":16}"
#define SPM_VOCAB "{\"<unk>\":0,\"a\":1,\"b\":2,\"c\":3,\"\u2581\":4,\"<0x0A>\":5,\"d\":6}"

/* A tokenizer with these added tokens, from id 20 on. */
static sl_tokenizer *make(bool spm, const char *const *added, size_t n) {
    static char text[8192];
    size_t at = (size_t)snprintf(text, sizeof text, "{\"added_tokens\":[");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "%s{\"id\":%zu,\"content\":\"%s\",\"special\":true}", i ? "," : "",
                               20 + i, added[i]);
    if (spm)
        snprintf(text + at, sizeof text - at,
                 "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                 "\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                 "\"content\":\"\u2581\"}]},\"pre_tokenizer\":null,\"decoder\":{\"type\":"
                 "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                 "\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
                 "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
                 "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                 "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
                 "\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[20],"
                 "\"tokens\":[\"<s>\"]}}},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
                 "\"fuse_unk\":true,\"unk_token\":\"<unk>\",\"vocab\":" SPM_VOCAB
                 ",\"merges\":[]}}");
    else
        snprintf(text + at, sizeof text - at,
                 "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                 "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                 "\"BPE\",\"vocab\":" VOCAB ",\"merges\":[]}}");
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    if (sl_tokenizer_parse("t", span_of(text), (sl_span){0}, &tok, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return tok;
}

static void check(const sl_tokenizer *tok, const sl_fim_gap *gap, const char *want) {
    sl_ids ids = {0};
    sl_err err = {0};
    char got[512] = "";
    const sl_fim f = sl_fim_of(tok);
    assert_non_null(f.name);
    if (sl_fim_encode(&f, tok, gap, &ids, &err) != SL_OK) fail_msg("%s", err.msg);
    for (size_t i = 0, n = 0; i < ids.len; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, i ? " %u" : "%u", ids.data[i]);
    assert_string_equal(got, want);
    sl_ids_free(&ids);
}

static sl_fim_gap gap_of(const char *before, const char *behind) {
    return (sl_fim_gap){
        .before = span_of(before), .behind = span_of(behind), .room = 1000, .special = true};
}

static void every_format_is_known_by_its_tokens(void **state) {
    (void)state;
    static const struct {
        const char *name, *added[7], *want; /* of "ab" before and "cd" behind */
        size_t n;
        const char *ends;
    } cases[] = {
        {"qwen",
         {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
          "<|file_sep|>", "<|endoftext|>"},
         "20 0 1 22 2 3 21",
         7,
         "23 24 25 26"},
        {"qwen", {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"}, "20 0 1 22 2 3 21", 3, ""},
        {"starcoder",
         {"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<file_sep>"},
         "20 0 1 22 2 3 21",
         5,
         "23 24"},
        {"santacoder", {"<fim-prefix>", "<fim-middle>", "<fim-suffix>"}, "20 0 1 22 2 3 21", 3, ""},
        {"deepseek",
         {"<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜end▁of▁sentence｜>"},
         "21 0 1 20 2 3 22",
         4,
         "23"},
        {"glm",
         {"<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"},
         "20 0 1 22 2 3 21",
         3,
         ""},
        {"codellama", {"▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"}, "20 0 1 22 2 3 21", 4, "23"},
        {"mistral", {"[SUFFIX]", "[PREFIX]", "[MIDDLE]", "</s>"}, "20 2 3 21 0 1", 4, "23"},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        sl_tokenizer *tok = make(false, cases[i].added, cases[i].n);
        const sl_fim f = sl_fim_of(tok);
        char ends[64] = "";
        for (uint32_t k = 0, n = 0; k < f.n_ends; k++)
            n += (uint32_t)snprintf(ends + n, sizeof ends - n, k ? " %u" : "%u", f.end[k]);
        assert_string_equal(f.name, cases[i].name);
        assert_string_equal(ends, cases[i].ends);
        const sl_fim_gap gap = gap_of("ab", "cd");
        check(tok, &gap, cases[i].want);
        sl_tokenizer_free(tok);
    }
}

static void without_all_three_there_is_none(void **state) {
    (void)state;
    static const char *const two[] = {"<|fim_prefix|>", "<|fim_middle|>", "<fim_suffix>"};
    sl_tokenizer *tok = make(false, two, SL_LEN(two));
    assert_null(sl_fim_of(tok).name);
    sl_tokenizer_free(tok);
}

static const char *const qwen[] = {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                                   "<|fim_pad|>",    "<|repo_name|>",  "<|file_sep|>"};

static void texts_stay_texts(void **state) {
    (void)state;
    sl_tokenizer *tok = make(false, qwen, SL_LEN(qwen));
    /* letters of the marker that are in the vocabulary, and not the marker */
    sl_fim_gap gap = gap_of("a<|fim_middle|>", "");
    check(tok, &gap, "20 0 13 10 16 16 10 3 3 14 6 22 21");
    uint32_t id[] = {3, 21};
    sl_ids ids = {.data = id, .len = 2, .cap = 2};
    gap.ids = &ids;
    gap.behind = span_of("b");
    check(tok, &gap, "20 3 21 22 1 21");
    sl_tokenizer_free(tok);
}

static void files_come_first_as_far_as_there_is_room(void **state) {
    (void)state;
    sl_tokenizer *tok = make(false, qwen, SL_LEN(qwen));
    const sl_fim_file files[] = {{span_of("a"), span_of("bb")}, {{0}, span_of("cc")}};
    sl_fim_gap gap = gap_of("a", "b");
    gap.file = files;
    gap.n_files = 2;
    /* [repo] repository [file] a bb [file] file cc [file] filename */
#define NAMED "5 6 7 8 9 10 11 8 5 12 4"
#define LAST  "25 13 10 14 6 4 2 2 25 13 10 14 6 15 0 16 6 4 20 0 22 1 21"
    check(tok, &gap, "24 " NAMED " 25 0 4 1 1 " LAST);
    gap.room = 23 + 3;
    check(tok, &gap, "4 1 1 " LAST);
    gap.room = 3; /* what is around the gap is never cut */
    check(tok, &gap, "20 0 22 1 21");
    sl_tokenizer_free(tok);
    tok = make(false, qwen, 3);
    gap.room = 1000;
    check(tok, &gap, "0 4 1 1 4 4 13 10 14 6 4 2 2 4 4 20 0 22 1 21");
    sl_tokenizer_free(tok);
}

/* The space that such a tokenizer puts before a text is no part of what is behind the gap. */
static void sentencepiece_puts_no_space_behind_the_gap(void **state) {
    (void)state;
    static const char *const mistral[] = {"<s>", "[SUFFIX]", "[PREFIX]"};
    sl_tokenizer *tok = make(true, mistral, SL_LEN(mistral));
    sl_fim_gap gap = gap_of("ab", "cd");
    check(tok, &gap, "20 21 3 6 22 4 1 2");
    gap.special = false;
    gap.behind = span_of(" \nd");
    check(tok, &gap, "21 4 5 6 22 4 1 2");
    gap.behind = (sl_span){0};
    check(tok, &gap, "21 22 4 1 2");
    sl_tokenizer_free(tok);
}

/* ---- ids of a GGUF file ---- */

static const char *const words[] = {"a", "b", "c", "d", "<P>", "<S>", "<M>", "<X>"};

static sl_status open_named(const char *path, const char *const *key, const uint32_t *id, size_t n,
                            sl_tokenizer **out, sl_err *err) {
    sl_gguf_out *w = NULL;
    sl_gguf *g = NULL;
    assert_int_equal(sl_gguf_out_open(path, true, &w, err), SL_OK);
    sl_gguf_out_string(w, "general.architecture", span_of("x"));
    sl_gguf_out_string(w, "tokenizer.ggml.model", span_of("gpt2"));
    sl_gguf_out_string(w, "tokenizer.ggml.pre", span_of("gpt-2"));
    sl_gguf_out_array(w, "tokenizer.ggml.tokens", SL_GGUF_STRING, SL_LEN(words));
    for (size_t i = 0; i < SL_LEN(words); i++) sl_gguf_out_item(w, span_of(words[i]));
    sl_gguf_out_array(w, "tokenizer.ggml.token_type", SL_GGUF_I32, SL_LEN(words));
    for (size_t i = 0; i < SL_LEN(words); i++) sl_gguf_out_item32(w, i < 4 ? 1 : 3);
    sl_gguf_out_array(w, "tokenizer.ggml.merges", SL_GGUF_STRING, 0);
    for (size_t i = 0; i < n; i++) sl_gguf_out_u32(w, key[i], id[i]);
    assert_int_equal(sl_gguf_out_begin(w, err), SL_OK);
    assert_int_equal(sl_gguf_out_finish(w, err), SL_OK);
    sl_gguf_out_free(w);
    assert_int_equal(sl_gguf_open(path, &g, err), SL_OK);
    sl_status st = sl_tokenizer_from_gguf(g, out, err);
    sl_gguf_close(g);
    return st;
}

static void files_may_name_the_tokens(void **state) {
    (void)state;
    static const char *const keys[] = {
        "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.suffix_token_id",
        "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.fim_pad_token_id"};
    char path[] = "/tmp/test_fim.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    const uint32_t id[] = {4, 5, 6, 7}, far[] = {4, 5, 8, 7};
    if (open_named(path, keys, id, 4, &tok, &err) != SL_OK) fail_msg("%s", err.msg);
    const sl_fim f = sl_fim_of(tok);
    assert_string_equal(f.name, "gguf");
    assert_int_equal(f.n_ends, 1);
    assert_int_equal(f.end[0], 7);
    const sl_fim_gap gap = gap_of("ab", "cd");
    check(tok, &gap, "4 0 1 5 2 3 6");
    sl_tokenizer_free(tok);
    tok = NULL;
    if (open_named(path, keys, id, 2, &tok, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_null(sl_fim_of(tok).name);
    sl_tokenizer_free(tok);
    assert_int_equal(open_named(path, keys, far, 4, &tok, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "tokenizer.ggml.fim_mid_token_id"));
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_known_by_its_tokens),
        cmocka_unit_test(without_all_three_there_is_none),
        cmocka_unit_test(texts_stay_texts),
        cmocka_unit_test(files_come_first_as_far_as_there_is_room),
        cmocka_unit_test(sentencepiece_puts_no_space_behind_the_gap),
        cmocka_unit_test(files_may_name_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What tokenizers refuse, and how; streaming; long words; failing allocations. */
#include "base/clock.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* Sections of a tokenizer.json; NULL takes the default. */
typedef struct sections {
    const char *model, *added, *normalizer, *pre, *post, *decoder, *more, *config;
} sections;

/* "a" to "d" are 0 to 3, 0xC3 is 4 and 0xA9 is 5 (together one character), "ab" is 6, "abab" 7. */
#define MODEL                                                                                      \
    "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"\u00c3\":4,\"\u00a9\":5,"      \
    "\"ab\":6,\"abab\":7},\"merges\":[\"a b\",\"ab ab\"]}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT(pattern, behavior)                                                                   \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" pattern "\"},\"behavior\":\"" behavior "\",\"invert\":false}," BYTE_LEVEL "]}"
#define ADDED(id, content, special)                                                                \
    "[{\"id\":" #id ",\"content\":\"" content "\",\"special\":" #special "}]"

static sl_span span_of(const char *s) {
    return (sl_span){(const uint8_t *)s, s ? strlen(s) : 0};
}

static const char *or_else(const char *s, const char *otherwise) {
    return s ? s : otherwise;
}

static sl_status parse(const sections *s, sl_tokenizer **out, sl_err *err) {
    static char text[1 << 16];
    int n =
        snprintf(text, sizeof text,
                 "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":%s,"
                 "\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
                 "\"model\":%s%s}",
                 or_else(s->added, ADDED(8, "<end>", true)), or_else(s->normalizer, "null"),
                 or_else(s->pre, BYTE_LEVEL), or_else(s->post, "null"),
                 or_else(s->decoder, "{\"type\":\"ByteLevel\"}"), or_else(s->model, MODEL),
                 or_else(s->more, ""));
    assert_in_range(n, 1, sizeof text - 1);
    return sl_tokenizer_parse("t", span_of(text), span_of(s->config), out, err);
}

static sl_tokenizer *make(const sections *s) {
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    if (parse(s, &tok, &err) != SL_OK) fail_msg("%s", err.msg);
    return tok;
}

static void check_ids(const sl_tokenizer *tok, const char *text, bool special, const char *want) {
    sl_ids ids = {0};
    sl_err err = {0};
    char got[256] = "";
    if (sl_tokenizer_encode(tok, span_of(text), special, true, &ids, &err) != SL_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0, n = 0; i < ids.len; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, i ? " %u" : "%u", ids.data[i]);
    assert_string_equal(got, want);
    sl_ids_free(&ids);
}

static void files_that_would_change_ids_are_refused(void **state) {
    (void)state;
#define U SL_ERR_UNSUPPORTED
#define F SL_ERR_FORMAT
#define L SL_ERR_LIMIT
    static const struct {
        sections s;
        sl_status want;
        const char *says;
    } bad[] = {
        {{.more = ",\"new_thing\":1"}, U, "t: new_thing: unknown field"},
        {{.model = "{\"type\":\"Unigram\",\"vocab\":{},\"merges\":[]}"},
         U,
         "model.type: \"Unigram\""},
        {{.model = "{\"vocab\":{},\"merges\":[],\"dropout\":0.1}"}, U, "model.dropout"},
        {{.model = "{\"vocab\":{},\"merges\":[],\"byte_fallback\":true}"},
         U,
         "model.byte_fallback"},
        {{.model = "{\"vocab\":{},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}"},
         U,
         "model.end_of_word_suffix"},
        {{.model = "{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}"},
         F,
         "model.vocab.b: id 1 is used"},
        {{.model = "{\"vocab\":{\"a\":1048576},\"merges\":[]}"},
         L,
         "1048576 is outside 0..1048575"},
        {{.model = "{\"vocab\":{\"a\":\"1\"},\"merges\":[]}"}, F, "model.vocab.a: a string"},
        {{.model = "{\"vocab\":{\"a\":1},\"merges\":[\"a a\"]}"}, F, "merge 0 (\"a a\" + \"a\")"},
        {{.model = "{\"vocab\":{\"a\":1},\"merges\":[\"aa\"]}"}, F, "merge 0 is not a pair"},
        {{.model = "{\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}"}, F, "merge 0 is not a pair"},
        {{.model = "{\"vocab\":{\"a\":1},\"merges\":[],\"unk_token\":\"u\"}"},
         F,
         "unk_token: \"u\""},
        {{.model = "[]"}, F, "t: model: an array"},
        {{.normalizer = "{\"type\":\"NFKC\"}"}, U, "normalizer \"NFKC\""},
        {{.pre = "null"}, F, "t: pre_tokenizer: missing"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, U, "pre-tokenizer \"Metaspace\""},
        {{.pre = "{\"type\":\"Digits\"}"}, U, "pre_tokenizer: has no ByteLevel step"},
        {{.pre =
              "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]}"},
         U,
         "pre_tokenizer.pretokenizers[1]: a step after ByteLevel"},
        {{.pre = SPLIT("a", "MergedWithNext")}, U, "behavior: \"MergedWithNext\""},
        {{.pre = SPLIT("a(", "Isolated")}, F, "pretokenizers[0].pattern: missing closing"},
        {{.pre = SPLIT("^a", "Isolated")}, U, "anchor at byte 0 of \"^a\""},
        {{.pre = SPLIT("\\\\w", "Isolated")}, U, "escape at byte 0"},
        {{.pre = SPLIT("(a)\\\\1", "Isolated")}, U, "escape at byte 3"},
        {{.pre = SPLIT("(?<x>a)", "Isolated")}, U, "kind of group"},
        {{.pre = SPLIT("(*UCP)a", "Isolated")}, U, "verb"},
        {{.pre = SPLIT("[a&&b]", "Isolated")}, U, "intersection"},
        {{.pre = SPLIT("[[a]b]", "Isolated")}, U, "class inside a class"},
        {{.pre = SPLIT("[a", "Isolated")}, U, "class without end"},
        {{.pre = SPLIT("a{1,2}+", "Isolated")}, U, "possessive"},
        {{.pre = SPLIT("", "Isolated")}, L, "0 bytes, limit 1..4096"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, U, "post-processor \"BertProcessing\""},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}"},
         U,
         "post_processor.single: has no Sequence A"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
                  "\"special_tokens\":{\"x\":{\"ids\":[99]}}}"},
         F,
         "element 0 is not a token's id"},
        {{.decoder = "null"}, F, "decoder: missing"},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, U, "decoder \"WordPiece\""},
        {{.added = ADDED(0, "x", true)}, F, "\"x\" with id 0 contradicts another token"},
        {{.added = ADDED(9, "a", true)}, F, "\"a\" with id 9 contradicts another token"},
        {{.added = ADDED(9, "", true)}, L, "token of 0 bytes"},
        {{.added = "[{\"id\":9,\"content\":\"x\",\"fuzzy\":true}]"}, U, "added_tokens[0].fuzzy"},
        {{.config = "{\"add_bos_token\":true}"}, U, "t: add_bos_token: true, but"},
        {{.config = "{\"add_prefix_space\":true}"}, U, "t: add_prefix_space: contradicts"},
        {{.config = "{\"split_special_tokens\":true}"}, U, "t: split_special_tokens"},
        {{.config = "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}"},
         F,
         "not an id below"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_tokenizer *tok = NULL;
        sl_err err = {0};
        sl_status st = parse(&bad[i].s, &tok, &err);
        if (st != bad[i].want || !strstr(err.msg, bad[i].says))
            fail_msg("case %zu: status %d, \"%s\", not \"%s\"", i, st, err.msg, bad[i].says);
        assert_null(tok);
    }
}

static void special_tokens_count_only_where_allowed(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){0});
    check_ids(tok, "ab<end>abab", true, "6 8 7");
    check_ids(tok, "abab<end>", false, "7 3"); /* of <end> only d is in the vocabulary */
    assert_int_equal(sl_tokenizer_find(tok, "<end>"), 8);
    assert_int_equal(sl_tokenizer_find(tok, "abab"), 7);
    assert_int_equal(sl_tokenizer_find(tok, "nope"), -1);
    assert_true(sl_tokenizer_is_special(tok, 8));
    assert_false(sl_tokenizer_is_special(tok, 7) || sl_tokenizer_is_special(tok, 9));
    assert_int_equal(sl_tokenizer_vocab_size(tok), 9);
    assert_int_equal(sl_tokenizer_piece(tok, 4).data[0], 0xC3);
    assert_int_equal(sl_tokenizer_piece(tok, 9).len, 0);
    /* a merge crosses the border of two parts, a special token does not */
    const sl_text_part parts[] = {{span_of("a"), true},
                                  {span_of("b<e"), true},
                                  {span_of("nd>c"), true},
                                  {span_of("<end>"), true}};
    sl_ids ids = {0};
    sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode_parts(tok, parts, 4, false, &ids, &err), SL_OK);
    const uint32_t want[] = {6, 3, 2, 8};
    assert_int_equal(ids.len, 4);
    assert_memory_equal(ids.data, want, sizeof want);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

/* SentencePiece's shape: U+2581 is 3, <0xC3> and <0xA9> are 4 and 5. */
#define SPM_MODEL                                                                                  \
    "{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"          \
    "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\u2581\":3,\"<0xC3>\":4,\"<0xA9>\":5,\"ab\":6,"      \
    "\"\u2581ab\":7},\"merges\":[[\"a\",\"b\"],[\"\u2581\",\"ab\"]]}"
#define REPLACE(from, to)                                                                          \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"
#define DECODER(steps) "{\"type\":\"Sequence\",\"decoders\":[" steps "]}"
#define TO_SPACES      REPLACE("\u2581", " ") ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
#define STRIP(n)       "{\"type\":\"Strip\",\"content\":\" \",\"start\":" #n ",\"stop\":0}"
#define SPM_DECODER    DECODER(TO_SPACES "," STRIP(1))
#define PREPEND        "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}"
#define SPM_NORMALIZER                                                                             \
    "{\"type\":\"Sequence\",\"normalizers\":[" PREPEND "," REPLACE(" ", "\u2581") "]}"
#define METASPACE(scheme)                                                                          \
    "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"" scheme "\"}"
#define SPM .model = SPM_MODEL, .normalizer = SPM_NORMALIZER, .pre = "null", .decoder = SPM_DECODER

static void other_steps_of_sentencepiece_are_refused(void **state) {
    (void)state;
    static const struct {
        sections s;
        sl_status want;
        const char *says;
    } bad[] = {
        {{.decoder = DECODER("")}, U, "t: decoder.decoders: 0 steps"},
        {{.decoder = DECODER(TO_SPACES "," STRIP(2))}, L, "decoders[3].start: 2 is outside 0..1"},
        {{.decoder = DECODER(REPLACE("_", " ") ",1,2")},
         U,
         "decoders[0].pattern.String: \"_\", not \"\u2581\""},
        {{.decoder = DECODER(REPLACE("\u2581", "-") ",1,2")}, U, "decoders[0].content: \"-\""},
        {{.decoder = DECODER("{\"type\":\"Fuse\"},1,2")}, U, "decoders[0].type: \"Fuse\""},
        {{.decoder = DECODER("1,2,3")}, F, "decoders[0]"},
        {{SPM, .added = ADDED(1, "x", true)}, F, "\"x\" with id 1 contradicts"},
        {{.decoder = SPM_DECODER, .pre = "null"}, U, "t: pre_tokenizer: missing, and no"},
        {{.decoder = SPM_DECODER}, U, "pre_tokenizer.type: \"ByteLevel\", not \"Metaspace\""},
        {{.decoder = SPM_DECODER, .pre = METASPACE("last")}, U, "prepend_scheme: \"last\""},
        {{.decoder = SPM_DECODER, .pre = METASPACE("first"), .normalizer = SPM_NORMALIZER},
         U,
         "t: pre_tokenizer: Metaspace, where the normalizer"},
        {{.decoder = SPM_DECODER, .pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}"},
         U,
         "pre_tokenizer.replacement: \"_\""},
        {{.decoder = SPM_DECODER, .normalizer = "{\"type\":\"NFC\"}"}, U, "normalizer \"NFC\""},
        {{.decoder = SPM_DECODER, .normalizer = PREPEND}, U, "Prepend without Replace"},
        {{.decoder = SPM_DECODER, .normalizer = REPLACE(" ", "_")}, U, "normalizer.content: \"_\""},
        {{SPM, .config = "{\"add_prefix_space\":false}"}, U, "t: add_prefix_space: contradicts"},
        {{SPM, .config = "{\"add_bos_token\":true}"}, U, "t: add_bos_token: true, but"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_tokenizer *tok = NULL;
        sl_err err = {0};
        sl_status st = parse(&bad[i].s, &tok, &err);
        if (st != bad[i].want || !strstr(err.msg, bad[i].says))
            fail_msg("case %zu: status %d, \"%s\", not \"%s\"", i, st, err.msg, bad[i].says);
        assert_null(tok);
    }
}

static void sentencepiece_marks_spaces_and_falls_back_to_bytes(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){SPM});
    check_ids(tok, "ab", true, "7");
    check_ids(tok, " ab", true, "3 7");
    check_ids(tok, "ab<end>ab", true, "7 8 7");
    check_ids(tok, "a\u00e9xyb", true, "3 1 4 5 0 2");
    check_ids(tok, "", true, "");
    assert_int_equal(sl_tokenizer_find(tok, "<0xC3>"), 4);
    assert_int_equal(sl_tokenizer_find(tok, "\u2581ab"), 7);
    assert_int_equal(sl_tokenizer_piece(tok, 7).len, 3);
    sl_tokenizer_free(tok);
    sections s = {.model = SPM_MODEL, .pre = METASPACE("first"), .decoder = SPM_DECODER};
    tok = make(&s);
    check_ids(tok, "ab<end>ab ab", true, "7 8 6 7");
    check_ids(tok, " ab", true, "7");
    sl_tokenizer_free(tok);
    s.pre = METASPACE("never");
    tok = make(&s);
    check_ids(tok, "ab ab", true, "6 7");
    sl_tokenizer_free(tok);
    s.pre = METASPACE("always");
    tok = make(&s);
    check_ids(tok, "ab<end>ab", true, "7 8 7");
    sl_tokenizer_free(tok);
}

/* Special tokens that are looked for after the spaces are marked count only inside one stretch. */
static void marked_special_tokens_count_only_where_allowed(void **state) {
    (void)state;
    sections s = {SPM};
    s.added = "[{\"id\":8,\"content\":\"<end>\",\"special\":true,\"normalized\":true}]";
    sl_tokenizer *tok = make(&s);
    const sl_text_part parts[] = {{span_of("ab <end> <end>"), false},
                                  {span_of(" <end>a <end>"), true},
                                  {span_of(" <e"), false},
                                  {span_of("nd>"), true}};
    sl_ids ids = {0};
    sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode_parts(tok, parts, 4, false, &ids, &err), SL_OK);
    size_t special = 0;
    for (size_t i = 0; i < ids.len; i++) special += ids.data[i] == 8;
    assert_int_equal(special, 2);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void sentencepiece_streams_bytes_and_drops_the_first_space(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){SPM});
    sl_detok d = {0};
    char out[SL_DETOK_MAX_OUT];
    assert_int_equal(sl_detok_push(&d, tok, 8, true, out), 0); /* special, skipped */
    assert_int_equal(sl_detok_push(&d, tok, 3, false, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 7, false, out), 3);
    assert_memory_equal(out, " ab", 3);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 5, false, out), 2);
    assert_memory_equal(out, "\xC3\xA9", 2);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 3, false, out), 4);
    assert_memory_equal(out, "\xEF\xBF\xBD ", 4);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_flush(&d, out), 3);
    sl_detok more = {.started = true}; /* continues a text: its space stays */
    assert_int_equal(sl_detok_push(&more, tok, 7, false, out), 3);
    sl_tokenizer_free(tok);
}

/* Words of 1, 2, 4, ... `longest` letters, each of two of the former. */
static sl_status parse_long(size_t longest, sl_tokenizer **out, sl_err *err) {
    static char model[1 << 16], a[2 * SL_TOKENIZER_MAX_PIECE + 1];
    size_t at = (size_t)sprintf(model, "{\"type\":\"BPE\",\"vocab\":{");
    memset(a, 'a', sizeof a - 1);
    for (size_t n = 1, id = 0; n <= longest; n *= 2, id++)
        at += (size_t)sprintf(model + at, "%s\"%.*s\":%zu", id ? "," : "", (int)n, a, id);
    at += (size_t)sprintf(model + at, "},\"merges\":[");
    for (size_t n = 1; 2 * n <= longest; n *= 2)
        at +=
            (size_t)sprintf(model + at, "%s\"%.*s %.*s\"", n > 1 ? "," : "", (int)n, a, (int)n, a);
    sprintf(model + at, "]}");
    return parse(&(sections){.model = model, .added = "[]"}, out, err);
}

static void tokens_are_as_long_as_the_limit(void **state) {
    (void)state;
    sl_tokenizer *tok = NULL;
    sl_ids ids = {0};
    sl_err err = {0};
    sl_detok d = {0};
    char text[SL_TOKENIZER_MAX_PIECE + 1] = "", out[SL_DETOK_MAX_OUT], *whole = NULL;
    size_t len = 0;
    memset(text, 'a', SL_TOKENIZER_MAX_PIECE);
    assert_int_equal(parse_long(SL_TOKENIZER_MAX_PIECE, &tok, &err), SL_OK);
    assert_int_equal(sl_tokenizer_encode(tok, span_of(text), false, false, &ids, &err), SL_OK);
    assert_int_equal(ids.len, 1);
    assert_int_equal(sl_tokenizer_piece(tok, ids.data[0]).len, SL_TOKENIZER_MAX_PIECE);
    assert_int_equal(sl_detok_push(&d, tok, ids.data[0], false, out), SL_TOKENIZER_MAX_PIECE);
    assert_memory_equal(out, text, SL_TOKENIZER_MAX_PIECE);
    assert_int_equal(sl_tokenizer_decode(tok, ids.data, 1, false, &whole, &len, &err), SL_OK);
    assert_string_equal(whole, text);
    sl_free(whole);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
    assert_int_equal(parse_long(2 * SL_TOKENIZER_MAX_PIECE, &tok, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, ": token of 8192 bytes, limit 1..4096"));
}

static void templates_and_config_tokens_are_added(void **state) {
    (void)state;
    const char *post =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},"
        "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[8]}}}";
    const char *config = "{\"add_bos_token\":true,\"added_tokens_decoder\":{\"11\":{\"content\":"
                         "\"<new>\",\"special\":true},\"8\":{\"content\":\"<end>\"}}}";
    sl_tokenizer *tok = make(&(sections){.post = post, .config = config});
    check_ids(tok, "<new>a", true, "8 11 0");
    assert_int_equal(sl_tokenizer_vocab_size(tok), 12);
    sl_tokenizer_free(tok);
}

static void bad_text_leaves_the_list_as_it_was(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){0});
    sl_ids ids = {0};
    sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode(tok, span_of("abab"), true, false, &ids, &err), SL_OK);
    assert_int_equal(sl_tokenizer_encode(tok, span_of("ab\xff"), true, false, &ids, &err),
                     SL_ERR_FORMAT);
    assert_string_equal(err.msg, "text: not UTF-8 at byte 2");
    sl_span huge = {(const uint8_t *)"", SL_TOKENIZER_MAX_TEXT + 1};
    assert_int_equal(sl_tokenizer_encode(tok, huge, true, false, &ids, &err), SL_ERR_LIMIT);
    assert_int_equal(ids.len, 1);
    char *text = NULL;
    size_t len = 0;
    const uint32_t beyond[] = {0, 9};
    assert_int_equal(sl_tokenizer_decode(tok, beyond, 2, false, &text, &len, &err), SL_ERR_ARG);
    assert_string_equal(err.msg, "id 9 at position 1: the vocabulary has 9");
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void patterns_that_explode_hit_a_limit(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){.pre = SPLIT("(?:a+)+c", "Isolated")});
    char text[4001]; /* the c at the end keeps the matcher from giving up at once */
    memset(text, 'a', 4000);
    memcpy(text + 3998, "bc", 3);
    sl_ids ids = {0};
    sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode(tok, span_of(text), true, false, &ids, &err),
                     SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "splitting 4000 bytes of text"));
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

/* A word of n bytes must not take n^2 steps: 1 MiB of it would take hours, and gets 20 s here. */
static void check_long_word(const sections *s, size_t want) {
    sl_tokenizer *tok = make(s);
    size_t n = 1 << 20;
    uint8_t *text = sl_alloc(n, 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = "ab"[i % 2];
    sl_ids ids = {0};
    sl_err err = {0};
    uint64_t start = sl_now_ns();
    assert_int_equal(sl_tokenizer_encode(tok, (sl_span){text, n}, true, false, &ids, &err), SL_OK);
    assert_true(sl_now_ns() - start < 20000000000u);
    assert_int_equal(ids.len, want);
    sl_ids_free(&ids);
    sl_free(text);
    sl_tokenizer_free(tok);
}

static void long_words_take_no_square_time(void **state) {
    (void)state;
    check_long_word(&(sections){0}, (1 << 20) / 4);
    check_long_word(&(sections){SPM}, (1 << 20) / 2);
}

/* Tokens that take the spaces around them and are spaces themselves. */
static void stripped_spaces_take_no_square_time(void **state) {
    (void)state;
    enum { N = 300000 };
    static const sections sides[] = {{.added = "[{\"id\":8,\"content\":\" \",\"lstrip\":true}]"},
                                     {.added = "[{\"id\":8,\"content\":\" \",\"rstrip\":true}]"}};
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, ' ', N);
    for (size_t i = 0; i < SL_LEN(sides); i++) {
        sl_tokenizer *tok = make(&sides[i]);
        sl_ids ids = {0};
        sl_err err = {0};
        uint64_t begin_ns = sl_now_ns();
        assert_int_equal(
            sl_tokenizer_encode(tok, (sl_span){(uint8_t *)text, N}, true, true, &ids, &err), SL_OK);
        assert_int_equal(ids.len, N);
        assert_true(sl_now_ns() - begin_ns < 10000000000ull);
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
    free(text);
}

static void streams_hold_back_unfinished_characters(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){0});
    sl_detok d = {0};
    char out[SL_DETOK_MAX_OUT];
    uint64_t before = sl_mem_count();
    assert_int_equal(sl_detok_push(&d, tok, 6, false, out), 2);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 8, true, out), 0); /* special, skipped */
    assert_int_equal(sl_detok_push(&d, tok, 5, false, out), 2);
    assert_memory_equal(out, "\xC3\xA9", 2);
    assert_int_equal(sl_detok_push(&d, tok, 5, false, out), 3);
    assert_memory_equal(out, "\xEF\xBF\xBD", 3);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 0, false, out), 4);
    assert_memory_equal(out,
                        "\xEF\xBF\xBD"
                        "a",
                        4);
    assert_int_equal(sl_detok_push(&d, tok, 123456, false, out), 0);
    assert_int_equal(sl_detok_flush(&d, out), 0);
    assert_int_equal(sl_detok_push(&d, tok, 4, false, out), 0);
    assert_int_equal(sl_detok_flush(&d, out), 3);
    assert_int_equal(sl_mem_count(), before);
    sl_tokenizer_free(tok);
}

/* Every allocation of ours fails once; all of it must come back as an error, without a leak. */
static void fail_each_allocation(const sections *s) {
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        sl_tokenizer *tok = NULL;
        sl_err err = {0};
        sl_ids ids = {0};
        char *text = NULL;
        size_t len;
        uint64_t before = sl_mem_count();
        sl_mem_fail_at(nth);
        sl_status st = parse(s, &tok, &err);
        if (st == SL_OK)
            st = sl_tokenizer_encode(tok, span_of("abab \u00e9 e\u0301"), true, true, &ids, &err);
        if (st == SL_OK) st = sl_tokenizer_decode(tok, ids.data, ids.len, false, &text, &len, &err);
        done = sl_mem_count() - before < nth;
        sl_mem_fail_at(0);
        assert_int_equal(st, done ? SL_OK : SL_ERR_NOMEM);
        sl_free(text);
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
}

static void failing_allocations_are_errors(void **state) {
    (void)state;
    const char *added = "[{\"id\":8,\"content\":\"e\u0301\",\"special\":false}]";
    fail_each_allocation(&(sections){.normalizer = "{\"type\":\"NFC\"}", .added = added});
    fail_each_allocation(&(sections){SPM, .added = added});
    fail_each_allocation(&(sections){
        .model = SPM_MODEL, .pre = METASPACE("first"), .decoder = SPM_DECODER, .added = added});
}

#define THREADS 4

typedef struct shared_encode {
    const sl_tokenizer *tok;
    sl_span text;
    const sl_ids *want;
    bool same;
} shared_encode;

static void *encode_often(void *arg) {
    shared_encode *e = arg;
    e->same = true;
    for (int i = 0; i < 100; i++) {
        sl_ids ids = {0};
        sl_err err = {0};
        e->same = e->same &&
                  sl_tokenizer_encode(e->tok, e->text, true, true, &ids, &err) == SL_OK &&
                  ids.len == e->want->len && memcmp(ids.data, e->want->data, 4 * ids.len) == 0;
        sl_ids_free(&ids);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){.normalizer = "{\"type\":\"NFC\"}"});
    sl_span text = span_of("abab ab a<end>b 'll 123 e\u0301 \u00e9 abababab\n\nab dcba");
    sl_ids want = {0};
    sl_err err = {0};
    assert_int_equal(sl_tokenizer_encode(tok, text, true, true, &want, &err), SL_OK);
    shared_encode work[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i] = (shared_encode){tok, text, &want, false};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &work[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(work[i].same);
    }
    sl_ids_free(&want);
    sl_tokenizer_free(tok);
}

static void check_spelling(const sl_tokenizer *tok, uint32_t id, const char *want) {
    char out[SL_TOKENIZER_MAX_SPELLING];
    size_t n = sl_tokenizer_spelling(tok, id, out);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(out, want, n);
}

static void tokens_are_spelled_as_the_vocabulary_has_them(void **state) {
    (void)state;
    sl_tokenizer *tok = make(&(sections){0});
    sl_tokenizer_added a;
    check_spelling(tok, 4, "\u00c3"); /* the byte, as the character that stands for it */
    check_spelling(tok, 7, "abab");
    check_spelling(tok, 8, "<end>");
    check_spelling(tok, 9, "");
    assert_true(sl_tokenizer_added_at(tok, 0, &a));
    assert_true(a.id == 8 && a.special && a.content.len == 5);
    assert_false(sl_tokenizer_added_at(tok, 1, &a));
    assert_false(sl_tokenizer_is_sentencepiece(tok));
    assert_int_equal(sl_tokenizer_begins_with(tok), -1);
    sl_tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_spelled_as_the_vocabulary_has_them),
        cmocka_unit_test(files_that_would_change_ids_are_refused),
        cmocka_unit_test(special_tokens_count_only_where_allowed),
        cmocka_unit_test(other_steps_of_sentencepiece_are_refused),
        cmocka_unit_test(sentencepiece_marks_spaces_and_falls_back_to_bytes),
        cmocka_unit_test(marked_special_tokens_count_only_where_allowed),
        cmocka_unit_test(sentencepiece_streams_bytes_and_drops_the_first_space),
        cmocka_unit_test(templates_and_config_tokens_are_added),
        cmocka_unit_test(tokens_are_as_long_as_the_limit),
        cmocka_unit_test(bad_text_leaves_the_list_as_it_was),
        cmocka_unit_test(patterns_that_explode_hit_a_limit),
        cmocka_unit_test(long_words_take_no_square_time),
        cmocka_unit_test(stripped_spaces_take_no_square_time),
        cmocka_unit_test(streams_hold_back_unfinished_characters),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(failing_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

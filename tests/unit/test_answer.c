/* Answers told apart, under every cut: by bytes, by tokens with the markers special or not. */
#include "answer_cases.h"
#include "sanitized.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define MAX_SEEN 65536u

/* Events as the cases write them. */
typedef struct seen {
    char text[MAX_SEEN];
    size_t n;
    int kind; /* of the line that is open; -1: none */
} seen;

static void put(seen *s, const char *text, size_t n) {
    assert_true(s->n + n < MAX_SEEN);
    if (n) memcpy(s->text + s->n, text, n);
    s->n += n;
    s->text[s->n] = 0;
}

static void close_line(seen *s) {
    if (s->kind >= 0) put(s, "\n", 1);
    s->kind = -1;
}

static void on_event(void *ctx, const sl_answer_event *ev) {
    static const char *const names[] = {"text|", "think|", "call|", "args|", "end|"};
    seen *s = ctx;
    bool joins = ev->kind == SL_ANSWER_TEXT || ev->kind == SL_ANSWER_REASONING ||
                 ev->kind == SL_ANSWER_ARGUMENTS;
    if (!joins || s->kind != (int)ev->kind) {
        close_line(s);
        put(s, names[ev->kind], strlen(names[ev->kind]));
        s->kind = (int)ev->kind;
    }
    put(s, (const char *)ev->text.data, ev->text.len);
    if (ev->id.len) {
        put(s, " ", 1);
        put(s, (const char *)ev->id.data, ev->id.len);
    }
    if (!joins) close_line(s);
}

static sl_tool_set *make_tools(void) {
    sl_json_doc *doc = NULL;
    sl_tool_set *t = NULL;
    sl_err err = {0};
    const sl_span text = {(const uint8_t *)ANSWER_TOOLS, sizeof ANSWER_TOOLS - 1};
    assert_int_equal(sl_json_parse("tools", text, &doc, &err), SL_OK);
    assert_int_equal(sl_tool_set_create(sl_json_root(doc), &t, &err), SL_OK);
    sl_json_doc_free(doc);
    return t;
}

static sl_answer *begin(const answer_case *c, const sl_tool_set *tools, const sl_tokenizer *tok,
                        seen *s) {
    sl_answer *a = NULL;
    sl_err err = {0};
    const sl_answer_options o = {.style = {.tools = c->format,
                                           .generic = c->flags & GENERIC,
                                           .thought = c->flags & THINKS     ? 1
                                                      : c->flags & BRACKETS ? 2
                                                                            : 0},
                                 .tools = c->flags & NO_TOOLS ? NULL : tools,
                                 .opened = c->flags & OPENED,
                                 .one_call = c->flags & ONE,
                                 .markers = c->format == SL_TOOLS_HARMONY,
                                 .event = on_event,
                                 .ctx = s};
    s->n = 0;
    s->text[0] = 0;
    s->kind = -1;
    assert_int_equal(sl_answer_create(tok, &o, &a, &err), SL_OK);
    return a;
}

static void finish(sl_answer *a, const answer_case *c, seen *s, const char *how) {
    assert_int_equal(sl_answer_end(a), SL_OK);
    assert_int_equal(sl_answer_end(a), SL_OK); /* again: nothing */
    close_line(s);
    if (strcmp(s->text, c->want) != 0)
        fail_msg("%s, %s\n--- text\n%s\n--- want\n%s--- got\n%s---", sl_tool_format_name(c->format),
                 how, c->text, c->want, s->text);
    sl_answer_free(a);
}

static const char *const specials[] = {"<|start|>",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|end|>",
                                       "<|call|>",
                                       "<|return|>",
                                       "<|constrain|>",
                                       DS_CALLS,
                                       DS_CALLS_END,
                                       DS_CALL,
                                       DS_CALL_END,
                                       DS_SEP,
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_end|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|python_start|>",
                                       "<|python_end|>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       "[THINK]",
                                       "[/THINK]",
                                       "<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>"};

/* Feeds text[from..to): where the format is harmony's, its markers as such. */
static void feed(sl_answer *a, const answer_case *c, const char *text, size_t n) {
    size_t from = 0;
    for (size_t i = 0; i < n && c->format == SL_TOOLS_HARMONY;) {
        size_t k = 0;
        while (k < 7 && (n - i < strlen(specials[k]) ||
                         memcmp(text + i, specials[k], strlen(specials[k])) != 0))
            k++;
        if (k == 7) {
            i++;
            continue;
        }
        assert_int_equal(sl_answer_feed(a, text + from, i - from), SL_OK);
        assert_int_equal(sl_answer_marker(a, specials[k]), SL_OK);
        from = i += strlen(specials[k]);
    }
    assert_int_equal(sl_answer_feed(a, text + from, n - from), SL_OK);
}

/* Harmony's markers are never cut. */
static bool may_cut(const answer_case *c, size_t at) {
    if (c->format != SL_TOOLS_HARMONY) return true;
    for (size_t k = 0; k < 7; k++)
        for (size_t i = 1; i < strlen(specials[k]); i++)
            if (i <= at && !strncmp(c->text + at - i, specials[k], strlen(specials[k])))
                return false;
    return true;
}

static void every_cut_says_the_same(void **state) {
    (void)state;
    sl_tool_set *tools = make_tools();
    seen *s = malloc(sizeof *s);
    for (size_t k = 0; k < SL_LEN(answer_cases); k++) {
        const answer_case *c = &answer_cases[k];
        size_t n = strlen(c->text);
        sl_answer *a = begin(c, tools, NULL, s);
        feed(a, c, c->text, n);
        finish(a, c, s, "whole");
        if (c->format != SL_TOOLS_HARMONY) {
            a = begin(c, tools, NULL, s);
            for (size_t i = 0; i < n; i++) feed(a, c, c->text + i, 1);
            finish(a, c, s, "byte by byte");
        }
        for (size_t i = 0; i <= n; i++)
            for (size_t j = i; j <= n; j += take_one_in(SL_SLOW_BUILD ? 7 : 1)) {
                char how[64];
                if (!may_cut(c, i) || !may_cut(c, j)) continue;
                snprintf(how, sizeof how, "cut at %zu and %zu", i, j);
                a = begin(c, tools, NULL, s);
                feed(a, c, c->text, i);
                feed(a, c, c->text + i, j - i);
                feed(a, c, c->text + j, n - j);
                finish(a, c, s, how);
            }
    }
    free(s);
    sl_tool_set_free(tools);
}

/* A byte-level tokenizer whose markers are tokens, special or not. */
static sl_tokenizer *make_tokenizer(bool special) {
    static char text[65536];
    size_t n = 0;
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    n += (size_t)snprintf(text, sizeof text, "{\"added_tokens\":[");
    for (size_t i = 0; i < SL_LEN(specials); i++) {
        bool marks = special || i < 7;
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":"
                              "false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                              i ? "," : "", 256 + i, specials[i], marks ? "true" : "false");
    }
    n += (size_t)snprintf(text + n, sizeof text - n,
                          "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
                          "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                          "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (unsigned b = 0, other = 256; b < 256; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"\\u%04x\":%u", b ? "," : "",
                              self ? b : other++, b);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "}}}");
    if (sl_tokenizer_parse("markers", (sl_span){(const uint8_t *)text, n}, (sl_span){0}, &tok,
                           &err) != SL_OK)
        fail_msg("%s", err.msg);
    return tok;
}

static void tokens_say_the_same(void **state) {
    (void)state;
    sl_tool_set *tools = make_tools();
    seen *s = malloc(sizeof *s);
    for (int special = 0; special < 2; special++) {
        sl_tokenizer *tok = make_tokenizer(special);
        for (size_t k = 0; k < SL_LEN(answer_cases); k++) {
            const answer_case *c = &answer_cases[k];
            sl_ids ids = {0};
            sl_err err = {0};
            const sl_span text = {(const uint8_t *)c->text, strlen(c->text)};
            /* a broken call's markers are written out, those of nothing are dropped as ever */
            bool stray = special && strchr(c->want, '<');
            if (stray) continue;
            assert_int_equal(sl_tokenizer_encode(tok, text, true, false, &ids, &err), SL_OK);
            sl_answer *a = begin(c, tools, tok, s);
            for (size_t i = 0; i < ids.len; i++)
                assert_int_equal(sl_answer_push(a, ids.data[i]), SL_OK);
            finish(a, c, s, special ? "special tokens" : "tokens");
            sl_ids_free(&ids);
        }
        sl_tokenizer_free(tok);
    }
    free(s);
    sl_tool_set_free(tools);
}

/* A special token is a marker by its id alone; a broken call of them is shown as it would be
 * written, and one that marks nothing is dropped. */
static void special_tokens_count_by_their_ids(void **state) {
    (void)state;
    static const struct {
        bool spelled;
        answer_case c;
    } cases[] = {
        {true,
         {SL_TOOLS_HERMES, 0, "<tool_call>{\"name\": \"now\"}</tool_call>",
          "text|<tool_call>{\"name\": \"now\"}</tool_call>\n"}},
        {false, {SL_TOOLS_HERMES, 0, "a<tool_call>{nothing", "text|a<tool_call>{nothing\n"}},
        {false,
         {SL_TOOLS_KIMI_K2, 0, "a<|tool_call_begin|>functions.f:0<|tool_call_end|>b",
          "text|a<|tool_call_begin|>functions.f:0<|tool_call_end|>b\n"}},
        {false, {SL_TOOLS_KIMI_K2, 0, "a<|tool_calls_section_end|>b", "text|ab\n"}},
        {false, {SL_TOOLS_KIMI_K2, NO_TOOLS, "a<|tool_call_begin|>b", "text|ab\n"}},
        {false,
         {SL_TOOLS_KIMI_K2, 0,
          "<|tool_call_begin|>f<|tool_call_argument_begin|>{\"a\": \"<|tool_call_end|>b",
          "call|f f\nargs|{\"a\": \"\nend|\ntext|b\n"}},
        {true, {SL_TOOLS_HERMES, THINKS, "<think>a</think>b", "text|<think>a</think>b\n"}},
    };
    sl_tool_set *tools = make_tools();
    sl_tokenizer *tok = make_tokenizer(true);
    seen *s = malloc(sizeof *s);
    for (size_t k = 0; k < SL_LEN(cases); k++) {
        sl_ids ids = {0};
        sl_err err = {0};
        const sl_span text = {(const uint8_t *)cases[k].c.text, strlen(cases[k].c.text)};
        assert_int_equal(sl_tokenizer_encode(tok, text, !cases[k].spelled, false, &ids, &err),
                         SL_OK);
        sl_answer *a = begin(&cases[k].c, tools, tok, s);
        for (size_t i = 0; i < ids.len; i++)
            assert_int_equal(sl_answer_push(a, ids.data[i]), SL_OK);
        finish(a, &cases[k].c, s, "ids");
        sl_ids_free(&ids);
    }
    free(s);
    sl_tokenizer_free(tok);
    sl_tool_set_free(tools);
}

static void any_ids_are_fine(void **state) {
    (void)state;
    sl_tool_set *tools = make_tools();
    sl_tokenizer *tok = make_tokenizer(true);
    seen *s = malloc(sizeof *s);
    for (int f = 0; f < SL_TOOLS_N; f++) {
        const answer_case c = {(sl_tool_format)f, THINKS, "", ""};
        sl_answer *a = begin(&c, tools, tok, s);
        for (uint32_t i = 0, x = 1; i < 3000; i++) {
            x = x * 1664525u + 1013904223u;
            assert_int_equal(sl_answer_push(a, i % 7 ? (x >> 8) % 284 : x), SL_OK);
        }
        assert_int_equal(sl_answer_end(a), SL_OK);
        sl_answer_free(a);
    }
    free(s);
    sl_tokenizer_free(tok);
    sl_tool_set_free(tools);
}

/* Long answers take linear time and little memory: ten megabytes of arguments, of white space, of
 * markers that come to nothing. */
static void count(void *ctx, const sl_answer_event *ev) {
    size_t *n = ctx;
    n[ev->kind] += ev->text.len;
}

static void long_answers_are_no_work(void **state) {
    (void)state;
    static const struct {
        sl_tool_format format;
        const char *head, *again;
    } cases[] = {
        {SL_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "0123456789"},
        {SL_TOOLS_HERMES, "", "\n\n\n\n\n\n\n\n\n\n"},
        {SL_TOOLS_HERMES, "", "<tool_call"},
        {SL_TOOLS_HERMES, "", "<tool_call>"},
        {SL_TOOLS_HERMES, "", "<tool_call>{\"arguments\": {\"a\": \"<tool_call>"},
        {SL_TOOLS_QWEN3_CODER, "<function=get_weather><parameter=city>", "</paramete"},
        {SL_TOOLS_QWEN3_CODER, "<function=look_up><parameter=query>", "0123456789"},
        {SL_TOOLS_LLAMA_PYTHONIC, "[look_up(any=", "[[[[[[[[[["},
    };
    sl_tool_set *tools = make_tools();
    for (size_t k = 0; k < SL_LEN(cases); k++) {
        size_t n[5] = {0}, len = strlen(cases[k].again), all = 0;
        sl_answer *a = NULL;
        sl_err err = {0};
        const sl_answer_options o = {
            .style = {.tools = cases[k].format}, .tools = tools, .event = count, .ctx = n};
        assert_int_equal(sl_answer_create(NULL, &o, &a, &err), SL_OK);
        assert_int_equal(sl_answer_feed(a, cases[k].head, strlen(cases[k].head)), SL_OK);
        for (; all < 500000; all += len)
            assert_int_equal(sl_answer_feed(a, cases[k].again, len), SL_OK);
        assert_int_equal(sl_answer_end(a), SL_OK);
        assert_true(n[SL_ANSWER_TEXT] + n[SL_ANSWER_ARGUMENTS] >= all);
        sl_answer_free(a);
    }
    sl_tool_set_free(tools);
}

static void memory_that_is_out_is_said(void **state) {
    (void)state;
    sl_tool_set *tools = make_tools();
    seen *s = malloc(sizeof *s);
    for (uint64_t nth = 1; nth < 4; nth++) {
        const answer_case *c = &answer_cases[SL_LEN(answer_cases) - 1];
        sl_answer *a = NULL;
        sl_err err = {0};
        const sl_answer_options o = {
            .style = {.tools = c->format}, .tools = tools, .event = on_event, .ctx = s};
        s->n = 0;
        s->kind = -1;
        sl_mem_fail_at(nth);
        sl_status st = sl_answer_create(NULL, &o, &a, &err);
        if (st == SL_OK) st = sl_answer_feed(a, c->text, strlen(c->text));
        sl_mem_fail_at(0);
        assert_int_equal(st, nth < 3 ? SL_ERR_NOMEM : SL_OK);
        sl_answer_free(a);
    }
    free(s);
    sl_tool_set_free(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_says_the_same),
        cmocka_unit_test(tokens_say_the_same),
        cmocka_unit_test(special_tokens_count_by_their_ids),
        cmocka_unit_test(any_ids_are_fine),
        cmocka_unit_test(long_answers_are_no_work),
        cmocka_unit_test(memory_that_is_out_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

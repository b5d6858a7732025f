/* The parts of the server that are pure: JSON text, stop strings, request bodies, event framing. */
#include "base/mem.h"
#include "base/rng.h"
#include "serve/params.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static sl_span span_of(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static void strings_are_always_valid_json(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *want;
    } cases[] = {
        {"plain", 5, "\"plain\""},
        {"a\"b\\c\n\t\r\x01\x7f", 10, "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u007f\""},
        {"\0", 1, "\"\\u0000\""},
        {"\xE6\x97\xA5\xF0\x9F\x8C\x8A", 7, "\"\xE6\x97\xA5\xF0\x9F\x8C\x8A\""},
        {"\xE6\x97", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"\xC0\xAF", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},                 /* overlong */
        {"\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* surrogate */
        {"\xF4\x90\x80\x80", 4, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"", 0, "\"\""},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        sl_jbuf b = sl_jbuf_init();
        sl_jbuf_string(&b, cases[i].in, cases[i].n);
        assert_true(b.ok);
        assert_string_equal(b.data, cases[i].want);
        sl_jbuf_free(&b);
    }
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_cstring(&b, NULL);
    sl_jbuf_ids(&b, (uint32_t[]){0, 4294967295u}, 2);
    sl_jbuf_ids(&b, NULL, 0);
    assert_string_equal(b.data, "null[0,4294967295][]");
    sl_jbuf_free(&b);
}

static void a_failed_allocation_is_remembered(void **state) {
    (void)state;
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_put(&b, "x", 1);
    sl_mem_fail_at(1);
    for (int i = 0; i < 1000; i++) sl_jbuf_fmt(&b, "%d", i);
    sl_mem_fail_at(0);
    assert_false(b.ok);
    assert_true(b.len < b.cap);
    sl_jbuf_free(&b);
    sl_err err = {0};
    sl_stop *stop = NULL;
    sl_span strings[2] = {span_of("ab"), span_of("c")};
    for (uint64_t nth = 1; nth <= 5; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_stop_create(strings, 2, &stop, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
        assert_null(stop);
    }
}

/* What must be released: the text before the match that ends first, the longest of those. */
static bool stop_naive(const char *text, const char *const *strings, size_t n, char *out) {
    size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t m = strlen(strings[i]);
            if (m <= end && !memcmp(text + end - m, strings[i], m)) longest = SL_MAX(longest, m);
        }
        if (longest) {
            memcpy(out, text, end - longest);
            out[end - longest] = 0;
            return true;
        }
    }
    strcpy(out, text);
    return false;
}

/* Whether `tail` is a proper prefix of a stop string. */
static bool could_begin(const char *tail, size_t n, const char *const *strings, size_t n_strings) {
    for (size_t i = 0; i < n_strings; i++)
        if (n < strlen(strings[i]) && !memcmp(tail, strings[i], n)) return true;
    return false;
}

static void stops_do_not_depend_on_cuts(void **state) {
    (void)state;
    uint64_t rng = 20240607;
    for (int round = 0; round < 20000; round++) {
        char text[41] = "", want[41], word[SL_STOP_MAX_STRINGS][8];
        const char *strings[SL_STOP_MAX_STRINGS];
        sl_span spans[SL_STOP_MAX_STRINGS];
        size_t n = sl_rng_below(&rng, SL_STOP_MAX_STRINGS + 1), len = sl_rng_below(&rng, 41);
        unsigned letters = 2 + (unsigned)sl_rng_below(&rng, 2);
        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + sl_rng_below(&rng, letters));
        for (size_t i = 0; i < n; i++) {
            size_t m = 1 + sl_rng_below(&rng, 6);
            for (size_t j = 0; j < m; j++) word[i][j] = (char)('a' + sl_rng_below(&rng, letters));
            word[i][m] = 0;
            strings[i] = word[i];
            spans[i] = span_of(word[i]);
        }
        sl_err err = {0};
        sl_stop *stop = NULL;
        sl_jbuf out = sl_jbuf_init();
        bool matched = false, expect = stop_naive(text, strings, n, want);
        sl_jbuf_put(&out, "", 0);
        assert_int_equal(sl_stop_create(spans, n, &stop, &err), SL_OK);
        for (size_t at = 0; at < len;) {
            size_t cut = sl_rng_below(&rng, 5);
            cut = SL_MIN(len - at, cut);
            matched = sl_stop_feed(stop, text + at, cut, &out);
            at += cut;
            /* released at once unless it may begin a stop string */
            if (!matched && out.len < at)
                assert_true(could_begin(text + out.len, at - out.len, strings, n));
        }
        sl_stop_flush(stop, &out);
        if (matched != expect || strcmp(out.data, want))
            fail_msg("round %d: %s -> %s, not %s", round, text, out.data, want);
        sl_stop_free(stop);
        sl_jbuf_free(&out);
    }
}

static void stop_strings_have_limits(void **state) {
    (void)state;
    char longest[SL_STOP_MAX_BYTES + 2];
    memset(longest, 'x', sizeof longest);
    longest[SL_STOP_MAX_BYTES + 1] = 0;
    sl_err err = {0};
    sl_stop *stop = NULL;
    sl_span many[SL_STOP_MAX_STRINGS + 1];
    for (size_t i = 0; i < SL_LEN(many); i++) many[i] = span_of("a");
    sl_span too_long = span_of(longest), empty = span_of("");
    assert_int_equal(sl_stop_create(many, SL_LEN(many), &stop, &err), SL_ERR_LIMIT);
    assert_int_equal(sl_stop_create(&too_long, 1, &stop, &err), SL_ERR_LIMIT);
    assert_int_equal(sl_stop_create(&empty, 1, &stop, &err), SL_ERR_ARG);
    too_long.len = SL_STOP_MAX_BYTES;
    assert_int_equal(sl_stop_create(&too_long, 1, &stop, &err), SL_OK);
    sl_jbuf out = sl_jbuf_init();
    assert_false(sl_stop_feed(stop, longest, SL_STOP_MAX_BYTES - 1, &out));
    assert_int_equal(out.len, 0);
    assert_true(sl_stop_feed(stop, "x", 1, &out));
    sl_stop_free(stop);
    sl_jbuf_free(&out);
}

static const sl_api_limits limits = {
    .model = "m",
    .vocab = 100,
    .context = 50,
    .gen = {.temperature = NAN, .top_p = NAN, .top_k = -1, .do_sample = -1}};

static sl_status parse(sl_api_kind kind, const char *body, sl_api_params *p, sl_api_error *e) {
    *p = (sl_api_params){0};
    *e = (sl_api_error){0};
    return sl_api_params_parse(kind, span_of(body), &limits, p, e);
}

#define PROMPT  "\"model\":\"m\",\"prompt\":\"x\","
#define MESSAGE "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

static void bad_fields_are_named(void **state) {
    (void)state;
    static const struct {
        sl_api_kind kind;
        const char *body, *param, *msg;
    } cases[] = {
        {SL_API_COMPLETION, "[]", "", "not a JSON object"},
        {SL_API_COMPLETION, "{", "", "line 1"},
        {SL_API_COMPLETION, "{}", "prompt", "missing"},
        {SL_API_COMPLETION, "{\"model\":7}", "model", "an integer (7)"},
        {SL_API_COMPLETION, "{" PROMPT "\"n\":0}", "n", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"n\":129}", "n", "outside"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"n\":64,\"prompt\":[\"a\",\"b\",\"c\"]}", "n",
         "3 prompts with n = 64"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":[\"a\",true]}", "prompt", "neither"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],[]]}", "prompt", "empty"},
        {SL_API_COMPLETION, "{" PROMPT "\"best_of\":3}", "best_of", "as many as n"},
        {SL_API_COMPLETION, "{" PROMPT "\"logprobs\":21}", "logprobs", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"logprobs\":true}", "logprobs", "boolean"},
        {SL_API_COMPLETION, "{" PROMPT "\"echo\":1}", "echo", "an integer"},
        {SL_API_COMPLETION, "{" PROMPT "\"frequency_penalty\":2.1}", "frequency_penalty",
         "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"presence_penalty\":-3}", "presence_penalty", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"repetition_penalty\":0}", "repetition_penalty", "above"},
        {SL_API_COMPLETION, "{" PROMPT "\"min_p\":1.5}", "min_p", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"logit_bias\":{\"5\":101}}", "logit_bias", "-100..100"},
        {SL_API_COMPLETION, "{" PROMPT "\"logit_bias\":{\"100\":1}}", "logit_bias", "below 100"},
        {SL_API_COMPLETION, "{" PROMPT "\"logit_bias\":{\"a\":1}}", "logit_bias", "\"a\""},
        {SL_API_COMPLETION, "{" PROMPT "\"logit_bias\":{\"5\":1,\"05\":1}}", "logit_bias", "twice"},
        {SL_API_COMPLETION, "{" PROMPT "\"logit_bias\":[1]}", "logit_bias", "[ID or TEXT, number]"},
        {SL_API_COMPLETION, "{" PROMPT "\"messages\":[]}", "messages", "unknown field"},
        {SL_API_COMPLETION, "{" PROMPT "\"temperature\":-1}", "temperature", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"temperature\":\"hot\"}", "temperature", "a string"},
        {SL_API_COMPLETION, "{" PROMPT "\"top_p\":0}", "top_p", "above 0"},
        {SL_API_COMPLETION, "{" PROMPT "\"top_k\":-2}", "top_k", "-2"},
        {SL_API_COMPLETION, "{" PROMPT "\"seed\":1.5}", "seed", "1.5"},
        {SL_API_CHAT, "{" MESSAGE "\"max_tokens\":0}", "max_tokens", "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"max_tokens\":3,\"min_tokens\":4}", "min_tokens", "more"},
        {SL_API_COMPLETION, "{" PROMPT "\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens",
         "outside"},
        {SL_API_COMPLETION, "{" PROMPT "\"skip_special_tokens\":1}", "skip_special_tokens",
         "an integer"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_json\":3}", "guided_json", "not a JSON Schema"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_json\":\"{\"}", "guided_json", "guided_json"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_regex\":[\"a\"]}", "guided_regex",
         "a string was expected"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_choice\":[]}", "guided_choice", "not a list"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_choice\":[\"a\",1]}", "guided_choice", "item 1"},
        {SL_API_COMPLETION, "{" PROMPT "\"guided_regex\":\"a\",\"grammar\":\"b\"}", "grammar",
         "by guided_regex already"},
        {SL_API_COMPLETION, "{" PROMPT "\"structured_outputs\":{}}", "structured_outputs",
         "none of json"},
        {SL_API_COMPLETION,
         "{" PROMPT "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}",
         "structured_outputs", "already"},
        {SL_API_COMPLETION, "{" PROMPT "\"structured_outputs\":{\"structural_tag\":\"a\"}}",
         "structured_outputs", "structural_tag"},
        {SL_API_COMPLETION,
         "{" PROMPT "\"structured_outputs\":{\"regex\":\"a\",\"disable_any_whitespace\":true}}",
         "structured_outputs", "only of json"},
        {SL_API_COMPLETION,
         "{" PROMPT "\"structured_outputs\":{\"regex\":\"a\",\"disable_fallback\":true}}",
         "structured_outputs", "only false"},
        {SL_API_CHAT, "{" MESSAGE "\"response_format\":{\"type\":\"json_schema\"}}",
         "response_format", "json_schema: missing"},
        {SL_API_CHAT,
         "{" MESSAGE
         "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
         "\"schema\":{},\"strict\":1}}}",
         "response_format", "strict"},
        {SL_API_CHAT, "{" MESSAGE TOOLS ",\"tool_choice\":\"required\",\"guided_regex\":\"a\"}",
         "guided_regex", "the answer is the call"},
        {SL_API_CHAT, "{" MESSAGE "\"add_special_tokens\":1}", "add_special_tokens", "an integer"},
        {SL_API_CHAT, "{" MESSAGE "\"chat_template_kwargs\":[1]}", "chat_template_kwargs",
         "an array"},
        {SL_API_CHAT, "{" MESSAGE "\"reasoning_effort\":\"much\"}", "reasoning_effort",
         "none of none, minimal, low"},
        {SL_API_CHAT, "{" MESSAGE "\"reasoning_effort\":3}", "reasoning_effort", "none of none"},
        {SL_API_CHAT, "{" MESSAGE "\"enable_thinking\":\"no\"}", "enable_thinking", "a string"},
        {SL_API_CHAT, "{" MESSAGE "\"max_reasoning_tokens\":3.5}", "max_reasoning_tokens",
         "a real number"},
        {SL_API_CHAT, "{" MESSAGE "\"max_reasoning_tokens\":3,\"thinking_token_budget\":4}",
         "thinking_token_budget", "thinking_token_budget: 4, but max_reasoning_tokens is 3"},
        {SL_API_COMPLETION, "{" PROMPT "\"max_reasoning_tokens\":3}", "max_reasoning_tokens", ""},
        {SL_API_COMPLETION, "{" PROMPT "\"stream\":1}", "stream", "an integer"},
        {SL_API_COMPLETION, "{" PROMPT "\"stream_options\":{}}", "stream_options", "only with"},
        {SL_API_COMPLETION, "{" PROMPT "\"stop\":\"\"}", "stop", "0 bytes"},
        {SL_API_COMPLETION, "{" PROMPT "\"stop\":[\"a\",1]}", "stop", "stop[1]"},
        {SL_API_COMPLETION,
         "{" PROMPT "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\","
         "\"l\",\"m\",\"n\",\"o\",\"p\",\"q\"]}",
         "stop", "limit 16"},
        {SL_API_COMPLETION, "{" PROMPT "\"stop_token_ids\":[100]}", "stop_token_ids", "below 100"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":[1,-1]}", "prompt", "prompt[1]"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":[]}", "prompt", "empty"},
        {SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":{}}", "prompt", "neither"},
        {SL_API_CHAT, "{" MESSAGE "\"logprobs\":3}", "logprobs", "an integer"},
        {SL_API_CHAT, "{" MESSAGE "\"top_logprobs\":3}", "top_logprobs", "only with"},
        {SL_API_CHAT, "{" MESSAGE "\"echo\":true}", "echo", "only with continue_final_message"},
        {SL_API_CHAT, "{" MESSAGE "\"tools\":[{}]}", "tools", "tools[0]: not"},
        {SL_API_CHAT, "{" MESSAGE "\"tools\":[{\"type\":\"function\",\"function\":{}}]}", "tools",
         "tools[0]: not"},
        {SL_API_CHAT, "{" MESSAGE "\"tools\":{}}", "tools", "an object"},
        {SL_API_CHAT, "{" MESSAGE "\"tool_choice\":\"required\"}", "tool_choice", "without tools"},
        {SL_API_CHAT, "{" MESSAGE TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}}",
         "tool_choice", "neither \"auto\""},
        {SL_API_CHAT, "{" MESSAGE TOOLS ",\"tool_choice\":\"some\"}", "tool_choice",
         "neither \"auto\""},
        {SL_API_CHAT,
         "{" MESSAGE TOOLS
         ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
         "tool_choice", "no function \"g\""},
        {SL_API_CHAT,
         "{" MESSAGE TOOLS ",\"tool_choice\":\"required\",\"add_generation_prompt\":false}",
         "tool_choice", "add_generation_prompt"},
        {SL_API_CHAT, "{" MESSAGE TOOLS ",\"parallel_tool_calls\":1}", "parallel_tool_calls",
         "an integer"},
        {SL_API_CHAT, "{" MESSAGE TOOLS ",\"skip_special_tokens\":false}", "skip_special_tokens",
         "not with tools"},
        {SL_API_CHAT, "{" MESSAGE "\"chat_template_kwargs\":{\"tools\":[]}}",
         "chat_template_kwargs", "own field \"tools\""},
        {SL_API_CHAT, "{" MESSAGE "\"priority\":3}", "priority", "only 0"},
        {SL_API_COMPLETION, "{" PROMPT "\"seed\":9223372036854775808}", "seed",
         "9.2233720368547758e+18 is not an integer of -9223372036854775808..9223372036854775807"},
        {SL_API_COMPLETION, "{" PROMPT "\"seed\":1000000000000000000000000}", "seed", "..9223"},
        {SL_API_CHAT, "{" MESSAGE "\"max_tokens\":0}", "max_tokens", "0 is outside 1..50: "},
        {SL_API_CHAT, "{" MESSAGE "\"max_completion_tokens\":51}", "max_completion_tokens",
         "maximum context length is 50 tokens (--ctx)"},
        {SL_API_COMPLETION, "{" PROMPT "\"max_tokens\":51}", "max_tokens", "(--ctx)"},
        {SL_API_COMPLETION, "{" PROMPT "\"min_tokens\":51}", "min_tokens", "(--ctx)"},
        {SL_API_CHAT, "{" MESSAGE "\"response_format\":{\"type\":\"xml\"}}", "response_format",
         "none of text"},
        {SL_API_CHAT, "{" MESSAGE "\"modalities\":[\"audio\"]}", "modalities", "text"},
        {SL_API_CHAT, "{\"model\":\"m\",\"messages\":[]}", "messages", "0, allowed are 1"},
        {SL_API_CHAT, "{\"model\":\"m\",\"messages\":[7]}", "messages", "messages[0]"},
        {SL_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}]}", "messages", "role"},
        {SL_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]}", "messages",
         "content"},
        {SL_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}"
         "]}",
         "messages", "content[0]"},
        {SL_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[1]}]"
         "}",
         "messages", "tool_calls"},
        {SL_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":[1]}]}",
         "messages", "messages[0].name: not a string"},
        {SL_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"audio\":{\"id\":"
         "\"a\"}}]}",
         "messages", "messages[0].audio: not supported"},
        {SL_API_CHAT,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"function_"
         "call\":"
         "{\"name\":\"f\"}}]}",
         "messages", "messages[0].function_call: not supported"},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        sl_api_params p;
        sl_api_error e;
        sl_status st = parse(cases[i].kind, cases[i].body, &p, &e);
        if (st == SL_OK || e.http != 400 || strcmp(e.param, cases[i].param) ||
            !strstr(e.msg, cases[i].msg) || strcmp(e.type, "invalid_request_error"))
            fail_msg("%s: %d %u %s: %s", cases[i].body, st, e.http, e.param, e.msg);
    }
}

static void good_fields_are_read(void **state) {
    (void)state;
    sl_api_params p;
    sl_api_error e;
    assert_int_equal(parse(SL_API_COMPLETION, "{\"model\":\"m\",\"prompt\":\"x\"}", &p, &e), SL_OK);
    assert_true(p.sampling.temperature == 1.0f && p.sampling.top_p == 1.0f && !p.sampling.top_k);
    assert_true(!p.stream && !p.has_seed && !p.max_tokens && !p.n_stop && !p.ignore_eos);
    assert_int_equal(p.n_prompts, 1);
    assert_int_equal(p.prompts[0].text.len, 1);
    assert_true(p.n == 1 && !p.echo && !p.logprobs && p.sampling.repetition_penalty == 1);
    sl_api_params_free(&p);

    assert_int_equal(
        parse(SL_API_COMPLETION,
              "{\"model\":\"m\",\"prompt\":[[1,99]],\"temperature\":0,\"top_p\":0.5,\"top_k\":-1,"
              "\"seed\":9,\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":"
              "true},\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[3,4],\"ignore_eos\":true,"
              "\"user\":\"u\",\"n\":1,\"presence_penalty\":0,\"repetition_penalty\":1.0,"
              "\"logit_bias\":{},\"logprobs\":null,\"echo\":false,\"metadata\":{\"a\":1}}",
              &p, &e),
        SL_OK);
    assert_int_equal(p.prompts[0].ids.len, 2);
    assert_int_equal(p.prompts[0].ids.data[1], 99);
    assert_true(p.sampling.temperature == 0 && p.sampling.top_p == 0.5f && !p.sampling.top_k);
    assert_true(p.has_seed && p.sampling.seed == 9 && p.max_tokens == 3);
    assert_true(p.stream && p.include_usage && p.ignore_eos);
    assert_int_equal(p.n_stop, 2);
    assert_int_equal(p.stop[1].len, 2);
    assert_int_equal(p.n_stop_ids, 2);
    sl_api_params_free(&p);

    assert_int_equal(
        parse(
            SL_API_CHAT,
            "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\",\"name\":"
            "\"n\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
            "\"text\",\"text\":\"\"}]}],\"max_completion_tokens\":4,\"max_tokens\":9,\"tools\":[],"
            "\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},"
            "\"parallel_tool_calls\":true,\"modalities\":[\"text\"],\"logprobs\":false}",
            &p, &e),
        SL_OK);
    assert_int_equal(p.n_messages, 2);
    assert_int_equal(p.messages[1].content.len, 2);
    assert_memory_equal(p.messages[1].content.data, "a\n", 2);
    assert_int_equal(p.max_tokens, 4);
    sl_api_params_free(&p);
}

static void breadth_is_read(void **state) {
    (void)state;
    sl_api_params p;
    sl_api_error e;
    assert_int_equal(
        parse(SL_API_COMPLETION,
              "{\"model\":\"m\",\"prompt\":[\"a\",\"bc\"],\"n\":3,\"echo\":true,\"logprobs\":0,"
              "\"max_tokens\":0,\"presence_penalty\":-2,\"frequency_penalty\":1.5,\"min_p\":0.25,"
              "\"repetition_penalty\":1.25,\"logit_bias\":{\"9\":-100,\"10\":0.5,\"2\":7}}",
              &p, &e),
        SL_OK);
    assert_int_equal(p.n_prompts, 2);
    assert_int_equal(p.prompts[1].text.len, 2);
    assert_true(p.n == 3 && p.echo && p.logprobs && p.n_top == 0 && p.no_answer);
    const sl_sampling *s = &p.sampling;
    assert_true(s->presence_penalty == -2 && s->frequency_penalty == 1.5f && s->min_p == 0.25f);
    assert_true(s->repetition_penalty == 1.25f && s->n_bias == 3);
    assert_true(s->bias[0].id == 2 && s->bias[1].id == 9 && s->bias[2].id == 10);
    assert_true(s->bias[1].bias == -100);
    sl_api_params_free(&p);
    assert_int_equal(
        parse(SL_API_CHAT, "{" MESSAGE "\"logprobs\":true,\"top_logprobs\":20,\"n\":2}", &p, &e),
        SL_OK);
    assert_true(p.logprobs && p.n_top == 20 && p.n == 2);
    sl_api_params_free(&p);
    assert_int_equal(
        parse(SL_API_CHAT,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}],"
              "\"seed\":-5,\"max_tokens\":9,\"min_tokens\":9,\"truncate_prompt_tokens\":-1,"
              "\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
              "\"add_special_tokens\":false,\"add_generation_prompt\":false,\"cache_salt\":\"s\","
              "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
              &p, &e),
        SL_OK);
    assert_true(p.has_seed && p.sampling.seed == (uint64_t)-5 && p.min_tokens == 9);
    assert_true(p.truncate && p.keep_tokens == 0 && p.include_stop && p.show_special);
    assert_true(p.no_special && p.no_generation && sl_json_count(p.template_kwargs) == 1);
    assert_int_equal(p.messages[0].role.len, 6);
    assert_memory_equal(p.messages[0].role.data, "system", 6);
    sl_api_params_free(&p);
}

/* What clients send back of an answer: their libraries dump every field. */
static void answers_come_back(void **state) {
    (void)state;
    static const struct {
        const char *message, *content;
    } cases[] = {
        {"{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null,\"annotations\":[{\"type\":"
         "\"url_citation\"}],\"audio\":null,\"function_call\":null,\"tool_calls\":null}",
         "a"},
        {"{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[],\"reasoning_content\":\"r\","
         "\"id\":\"msg_1\",\"type\":\"message\",\"status\":\"completed\"}",
         "a"},
        {"{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"t\",\"thinking_blocks\":[{}],"
         "\"reasoning_details\":[{}],\"provider_specific_fields\":{\"a\":1}}",
         "a"},
        {"{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"}", ""},
        {"{\"role\":\"assistant\",\"refusal\":\"no\"}", ""},
        {"{\"role\":\"user\",\"content\":null}", ""},
        {"{\"role\":\"user\",\"content\":[]}", ""},
        {"{\"role\":\"user\",\"content\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}", "a"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{"
         "\"type\":\"ephemeral\"}},{\"type\":\"input_text\",\"text\":\"b\"}]}",
         "a\nb"},
        {"{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{"
         "\"type\":"
         "\"output_text\",\"text\":\"a\"},{\"type\":\"refusal\",\"refusal\":\"r\"}]}",
         "t\na\nr"},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char body[512];
        sl_api_params p;
        sl_api_error e;
        snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[%s]}", cases[i].message);
        if (parse(SL_API_CHAT, body, &p, &e) != SL_OK) fail_msg("%s: %s", body, e.msg);
        assert_int_equal(p.messages[0].content.len, strlen(cases[i].content));
        if (p.messages[0].content.len)
            assert_memory_equal(p.messages[0].content.data, cases[i].content,
                                strlen(cases[i].content));
        sl_api_params_free(&p);
    }
}

static void tools_that_none_may_call_are_not_shown(void **state) {
    (void)state;
    sl_api_params p;
    sl_api_error e;
    sl_status st = parse(SL_API_CHAT, "{" MESSAGE TOOLS ",\"tool_choice\":\"none\"}", &p, &e);
    assert_int_equal(st, SL_OK);
    assert_null(p.tools.value);
    sl_api_params_free(&p);
    st = parse(SL_API_CHAT, "{" MESSAGE TOOLS ",\"parallel_tool_calls\":false}", &p, &e);
    assert_int_equal(st, SL_OK);
    assert_int_equal(sl_json_count(p.tools), 1);
    assert_true(p.one_call);
    sl_api_params_free(&p);
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," TOOLS "}";
    assert_int_equal(sl_api_tokenize_parse(span_of(body), &limits, &p, &e), SL_OK);
    assert_int_equal(sl_json_count(p.tools), 1); /* the tokens of a prompt with them */
    sl_api_params_free(&p);
}

static void usage_is_given_when_asked_for(void **state) {
    (void)state;
    static const struct {
        const char *options;
        bool last, every;
    } cases[] = {{"{}", false, false},
                 {"{\"include_usage\":false}", false, false},
                 {"{\"include_usage\":true}", true, false},
                 {"{\"continuous_usage_stats\":true}", false, true},
                 {"{\"include_usage\":false,\"continuous_usage_stats\":true}", false, false},
                 {"{\"include_usage\":true,\"continuous_usage_stats\":true}", true, true}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char body[256];
        sl_api_params p;
        sl_api_error e;
        snprintf(body, sizeof body, "{" MESSAGE "\"stream\":true,\"stream_options\":%s}",
                 cases[i].options);
        assert_int_equal(parse(SL_API_CHAT, body, &p, &e), SL_OK);
        assert_int_equal(p.include_usage, cases[i].last);
        assert_int_equal(p.continuous_usage, cases[i].every);
        sl_api_params_free(&p);
    }
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth < 12; nth++) {
        sl_api_params p;
        sl_api_error e;
        sl_mem_fail_at(nth);
        sl_status st = parse(SL_API_CHAT,
                             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
                             "[{\"type\":\"text\",\"text\":\"a\"}]}]}",
                             &p, &e);
        sl_mem_fail_at(0);
        if (st != SL_OK) assert_int_equal(e.http, 500);
        sl_api_params_free(&p);
    }
}

/* What nobody asked for is null; a chat's prompt stands beside its choices. */
static void whole_answers_say_what_was_not_asked(void **state) {
    (void)state;
    sl_reply_head chat = {.kind = SL_API_CHAT, .id = "c-1", .model = "m", .created = 5};
    sl_reply_head text = {.kind = SL_API_COMPLETION, .id = "t-1", .model = "m", .created = 5};
    const sl_reply_ids none = {.whole = true};
    sl_reply_ids scored = {.whole = true, .scores = span_of("null,{}")};
    sl_jbuf b = sl_jbuf_init();
    sl_reply_add(&b, &chat, &(sl_reply_choice){.finish = "stop", .ids = none});
    sl_reply_close(&b, &chat, &scored, (sl_reply_usage){3, 4, .thought = 2});
    assert_string_equal(
        b.data,
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}],"
        "\"prompt_token_ids\":null,\"prompt_logprobs\":[null,{}],\"usage\":{\"prompt_tokens\":3,"
        "\"completion_tokens\":4,\"total_tokens\":7,\"prompt_tokens_details\":{"
        "\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":2}}}");
    sl_jbuf_clear(&b);
    sl_reply_add(&b, &text, &(sl_reply_choice){.finish = "stop", .ids = none});
    sl_reply_close(&b, &text, &none, (sl_reply_usage){3, 4});
    assert_string_equal(
        b.data, "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"stop_reason\":null,\"prompt_token_ids\":null,\"prompt_logprobs\":null,"
                "\"token_ids\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,"
                "\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":0}}}");
    sl_jbuf_free(&b);
}

static void events_are_framed(void **state) {
    (void)state;
    sl_reply_head chat = {.kind = SL_API_CHAT, .id = "c-1", .model = "m", .created = 5};
    sl_reply_head text = {
        .kind = SL_API_COMPLETION, .id = "t-1", .model = "m", .created = 5, .with_usage = true};
    sl_jbuf b = sl_jbuf_init();
    sl_reply_event_role(&b, &chat, &(sl_reply_choice){0});
    sl_reply_event_text(&b, &chat, &(sl_reply_choice){.text = span_of("h\ni")});
    sl_reply_event_text(&b, &chat,
                        &(sl_reply_choice){.finish = "stop", .stop = {.by_id = true, .id = 7}});
    sl_reply_event_done(&b);
    assert_string_equal(
        b.data,
        "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\\ni\"},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
        "\"stop_reason\":7}]}\n\n"
        "data: [DONE]\n\n");
    sl_jbuf_clear(&b);
    uint32_t ids[2] = {4, 5};
    sl_reply_event_text(
        &b, &text,
        &(sl_reply_choice){.index = 3,
                           .text = span_of("x"),
                           .finish = "length",
                           .ids = {.prompt = ids, .n_prompt = 1, .tokens = ids, .n_tokens = 2},
                           .logprobs = span_of("{}")});
    sl_reply_event_usage(&b, &text, (sl_reply_usage){3, 4, .cached = 2});
    sl_api_error e;
    sl_api_error_of(&e, SL_ERR_WORKER_LOST, NULL, "gone");
    sl_reply_event_error(&b, &e);
    assert_string_equal(
        b.data,
        "data: {\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
        "\"choices\":[{\"index\":3,\"text\":\"x\",\"logprobs\":{},\"finish_reason\":\"length\","
        "\"stop_reason\":null,\"prompt_token_ids\":[4],\"token_ids\":[4,5]}],\"usage\":null}\n\n"
        "data: {\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
        "\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,"
        "\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
        "data: {\"error\":{\"message\":\"gone\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":\"worker_lost\"}}\n\n");
    sl_jbuf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_always_valid_json),
        cmocka_unit_test(a_failed_allocation_is_remembered),
        cmocka_unit_test(stops_do_not_depend_on_cuts),
        cmocka_unit_test(stop_strings_have_limits),
        cmocka_unit_test(bad_fields_are_named),
        cmocka_unit_test(good_fields_are_read),
        cmocka_unit_test(breadth_is_read),
        cmocka_unit_test(answers_come_back),
        cmocka_unit_test(tools_that_none_may_call_are_not_shown),
        cmocka_unit_test(usage_is_given_when_asked_for),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(whole_answers_say_what_was_not_asked),
        cmocka_unit_test(events_are_framed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

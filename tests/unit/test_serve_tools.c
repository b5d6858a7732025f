/* Calls of tools and reasoning at the API, whole and streamed: what models of each family write
 * (answer_cases.h) comes from a scripted engine. */
#include "serve_http.h"

#include "answer_cases.h"

#define MAX_TEXT 8192u

/* What an answer holds, put together from its objects, or from what a case wants. */
typedef struct message {
    char text[MAX_TEXT], thought[MAX_TEXT], names[MAX_TEXT], arguments[MAX_TEXT], ids[MAX_TEXT];
    uint32_t n_calls;
} message;

static void add(char to[MAX_TEXT], const char *text, size_t n) {
    size_t have = strlen(to);
    assert_true(have + n < MAX_TEXT);
    memcpy(to + have, text, n);
    to[have + n] = 0;
}

static void add_field(char to[MAX_TEXT], sl_json obj, const char *key) {
    sl_span s;
    if (sl_json_as_span(sl_json_get(obj, key), &s)) add(to, (const char *)s.data, s.len);
}

/* A case's lines; those without a kind go on with the line before. */
static void read_want(const char *want, message *m) {
    static const char *const kinds[] = {"text|", "think|", "call|", "args|", "end|"};
    char *to[] = {m->text, m->thought, m->names, m->arguments, NULL};
    size_t last = 4;
    memset(m, 0, sizeof *m);
    while (*want) {
        size_t n = strcspn(want, "\n"), k = 0;
        while (k < 5 && strncmp(want, kinds[k], strlen(kinds[k])) != 0) k++;
        if (k == 5 && to[last]) add(to[last], "\n", 1);
        size_t skip = k < 5 ? strlen(kinds[k]) : 0;
        last = k < 5 ? k : last;
        size_t len = n - skip;
        if (k == 2) { /* the name, and an id */
            const char *space = memchr(want + skip, ' ', len);
            if (space) len = (size_t)(space - want) - skip;
            m->n_calls++;
        }
        if (to[last]) add(to[last], want + skip, len);
        if (k == 2 || k == 3) add(to[k], ";", 1);
        want += n + (want[n] == '\n');
    }
}

/* Two names for reasoning say the same. */
static void read_thought(sl_json obj, message *m) {
    sl_span a = {0}, b = {0};
    if (!sl_json_as_span(sl_json_get(obj, "reasoning_content"), &a)) return;
    assert_true(sl_json_as_span(sl_json_get(obj, "reasoning"), &b));
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    add(m->thought, (const char *)a.data, a.len);
}

static void read_calls(sl_json calls, bool stream, message *m) {
    for (size_t i = 0; i < sl_json_count(calls); i++) {
        sl_json call = sl_json_at(calls, i), function = sl_json_get(call, "function");
        bool begins = sl_json_get(call, "id").value != NULL;
        assert_true(begins || stream);
        if (begins) {
            if (m->n_calls) add(m->arguments, ";", 1);
            m->n_calls++;
            assert_true(string_at(call, "type", "function"));
            add_field(m->ids, call, "id");
            add(m->ids, ";", 1);
            add_field(m->names, function, "name");
            add(m->names, ";", 1);
        }
        if (stream) assert_int_equal(number_at(call, "index"), m->n_calls - 1);
        assert_int_equal(sl_json_kind_of(sl_json_get(function, "arguments")), SL_JSON_STRING);
        add_field(m->arguments, function, "arguments");
    }
}

static void read_choice(sl_json choice, bool stream, message *m, char finish[32]) {
    sl_json said = sl_json_get(choice, stream ? "delta" : "message");
    add_field(m->text, said, "content");
    read_thought(said, m);
    read_calls(sl_json_get(said, "tool_calls"), stream, m);
    sl_span why = {0};
    if (sl_json_as_span(sl_json_get(choice, "finish_reason"), &why))
        snprintf(finish, 32, "%.*s", (int)why.len, (const char *)why.data);
    sl_json content = sl_json_get(said, "content");
    if (!stream && m->n_calls && !m->text[0])
        assert_int_equal(sl_json_kind_of(content), SL_JSON_NULL);
}

static void ask(const char *body, bool stream, message *m, char finish[32]) {
    http_answer a = http_do(port, "POST", CHAT, NULL, body);
    if (a.status != 200) fail_msg("%d %s", a.status, a.body.data);
    memset(m, 0, sizeof *m);
    finish[0] = 0;
    for (const char *at = a.body.data; at && *at;) {
        const char *end = stream ? strstr(at, "\n\n") : at + a.body.len;
        const char *from = stream ? at + 6 : at;
        assert_non_null(end);
        at = stream ? end + 2 : NULL;
        if (!strncmp(from, "[DONE]", 6)) break;
        sl_json_doc *doc = json_of(from, (size_t)(end - from));
        read_choice(sl_json_at(sl_json_get(sl_json_root(doc), "choices"), 0), stream, m, finish);
        sl_json_doc_free(doc);
    }
    if (m->n_calls) add(m->arguments, ";", 1);
    http_answer_free(&a);
}

static void compare(const answer_case *c, const message *want, const message *got) {
    bool same = !strcmp(want->text, got->text) && !strcmp(want->thought, got->thought) &&
                !strcmp(want->names, got->names) && !strcmp(want->arguments, got->arguments);
    if (!same)
        fail_msg("%s\n--- text \"%s\" thought \"%s\" calls %s %s\n--- text \"%s\" thought \"%s\" "
                 "calls %s %s",
                 c->text, want->text, want->thought, want->names, want->arguments, got->text,
                 got->thought, got->names, got->arguments);
}

static void every_format_comes_whole_and_streamed(void **state) {
    (void)state;
    static const uint32_t per_event[] = {1, 3, 8};
    char body[4096], finish[32];
    message *m = malloc(2 * sizeof *m);
    for (size_t k = 0; k < SL_LEN(answer_cases); k++) {
        const answer_case *c = &answer_cases[k];
        if (c->format == SL_TOOLS_HARMONY) continue; /* this tokenizer has none of its tokens */
        script_style = (sl_answer_style){.tools = c->format,
                                         .generic = c->flags & GENERIC,
                                         .thought = c->flags & THINKS     ? 1
                                                    : c->flags & BRACKETS ? 2
                                                                          : 0};
        script_opened = c->flags & OPENED;
        restart(NULL);
        read_want(c->want, &m[0]);
        for (int i = 0; i < 6; i++) {
            SCRIPT_SET(engine, text, c->text);
            SCRIPT_SET(engine, per_event, per_event[i % 3]);
            snprintf(body, sizeof body,
                     "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                     "\"stream\":%s%s%s%s}",
                     i < 3 ? "false" : "true", c->flags & NO_TOOLS ? "" : ",\"tools\":",
                     c->flags & NO_TOOLS ? "" : ANSWER_TOOLS,
                     c->flags & ONE ? ",\"parallel_tool_calls\":false" : "");
            ask(body, i >= 3, &m[1], finish);
            compare(c, &m[0], &m[1]);
            assert_string_equal(finish, m[0].n_calls ? "tool_calls" : "stop");
        }
    }
    script_style = (sl_answer_style){.tools = SL_TOOLS_HERMES};
    script_opened = false;
    free(m);
}

#define CALL                                                                                       \
    "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>"
#define ASK(rest)                                                                                  \
    "{\"model\":\"org/"                                                                            \
    "m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":" ANSWER_TOOLS rest "}"

/* Every call has an id of its own; of Mistral's form where templates want that. */
static void calls_have_ids(void **state) {
    (void)state;
    char finish[32];
    message *m = malloc(sizeof *m);
    SCRIPT_SET(engine, text, CALL CALL);
    ask(ASK(""), false, m, finish);
    assert_int_equal(m->n_calls, 2);
    assert_int_equal(strlen(m->ids), 2 * (5 + 24 + 1));
    assert_memory_equal(m->ids, "call_", 5);
    assert_memory_not_equal(m->ids, m->ids + 30, 29);
    script_style.tools = SL_TOOLS_MISTRAL;
    restart(NULL);
    SCRIPT_SET(engine, text, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]");
    ask(ASK(""), false, m, finish);
    assert_int_equal(strlen(m->ids), 9 + 1);
    script_style.tools = SL_TOOLS_HERMES;
    free(m);
}

static void a_call_that_is_cut_off_is_what_came_of_it(void **state) {
    (void)state;
    char finish[32];
    message *m = malloc(sizeof *m);
    SCRIPT_SET(engine, text, CALL);
    ask(ASK(",\"max_tokens\":59"), false, m, finish);
    assert_string_equal(finish, "length");
    assert_int_equal(m->n_calls, 1);
    assert_string_equal(m->names, "get_weather;");
    assert_string_equal(m->arguments, "{\"city\": \"O;");
    free(m);
}

/* What follows the one call that is wanted is not made. */
static void one_call_ends_the_answer(void **state) {
    (void)state;
    char finish[32];
    message *m = malloc(sizeof *m);
    SCRIPT_SET(engine, text, CALL " and on and on");
    SCRIPT_SET(engine, delay_us, 1000);
    ask(ASK(",\"parallel_tool_calls\":false,\"ignore_eos\":true,\"stream\":true"), true, m, finish);
    assert_string_equal(finish, "tool_calls");
    assert_int_equal(m->n_calls, 1);
    assert_true(script_idle(engine, 1));
    assert_int_equal(script_cancelled(engine), 1);
    free(m);
}

/* Stop strings are looked for in the text alone. */
static void stops_are_of_the_text(void **state) {
    (void)state;
    char finish[32];
    message *m = malloc(sizeof *m);
    SCRIPT_SET(engine, text, CALL "I said Oslo twice.");
    ask(ASK(",\"stop\":[\"Oslo\"]"), false, m, finish);
    assert_string_equal(finish, "stop");
    assert_string_equal(m->text, "I said ");
    assert_string_equal(m->arguments, "{\"city\": \"Oslo\"};");
    free(m);
}

#define FREE        ",\"min_tokens\":1" /* which no mask can keep */
#define NAMED(name) ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

/* A call that has to be made and has no mask is begun for the model: it says the arguments, and the
 * answer is over. */
static void a_named_function_is_begun(void **state) {
    (void)state;
    static const struct {
        sl_tool_format format;
        const char *says;
    } cases[] = {
        {SL_TOOLS_HERMES, "\"city\": \"Oslo\"}}\n</tool_call> and on"},
        {SL_TOOLS_QWEN3_CODER, "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"},
        {SL_TOOLS_DEEPSEEK_V3, "\"city\": \"Oslo\"}\n```" DS_CALL_END},
        {SL_TOOLS_DEEPSEEK_V31, "\"city\": \"Oslo\"}" DS_CALL_END},
        {SL_TOOLS_KIMI_K2, "\"city\": \"Oslo\"}<|tool_call_end|>"},
        {SL_TOOLS_GLM_45, "city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"},
        {SL_TOOLS_LLAMA_JSON, "\"city\": \"Oslo\"}}; "},
        {SL_TOOLS_LLAMA_PYTHONIC, "\"city\": \"Oslo\"}}"},
        {SL_TOOLS_MISTRAL, "\"city\": \"Oslo\"}}]"},
    };
    char finish[32];
    message *m = malloc(sizeof *m);
    for (size_t i = 0; i < SL_LEN(cases); i++)
        for (int opened = 0; opened < 2; opened++) {
            script_style = (sl_answer_style){.tools = cases[i].format, .thought = 1};
            script_opened = opened; /* the thought is closed before the call */
            restart(NULL);
            SCRIPT_SET(engine, text, cases[i].says);
            ask(ASK(NAMED("get_weather") FREE), false, m, finish);
            assert_string_equal(m->names, "get_weather;");
            assert_string_equal(m->arguments, "{\"city\": \"Oslo\"};");
            assert_string_equal(m->text, "");
            assert_string_equal(finish, "tool_calls");
            ask(ASK(NAMED("get_weather") FREE ",\"stream\":true"), true, m, finish);
            assert_string_equal(m->names, "get_weather;");
            assert_string_equal(m->arguments, "{\"city\": \"Oslo\"};");
        }
    script_style = (sl_answer_style){.tools = SL_TOOLS_HERMES};
    script_opened = false;
    restart(NULL);
    check_error("POST", CHAT, NULL,
                "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f \\\"g\"}}],"
                "\"tool_choice\":\"required\"}",
                400, "tool_choice", NULL);
    free(m);
}

static void formats_are_chosen(void **state) {
    (void)state;
    char finish[32];
    sl_err err = {0};
    sl_server *other = NULL;
    message *m = malloc(sizeof *m);
    restart(&(sl_server_opts){.tool_format = "none"});
    check_error("POST", CHAT, NULL, ASK(""), 400, "tools", NULL);
    SCRIPT_SET(engine, text, CALL);
    ask(ASK(",\"tool_choice\":\"none\""), false, m, finish);
    assert_string_equal(m->text, CALL);
    assert_string_equal(finish, "stop");
    restart(&(sl_server_opts){.tool_format = "deepseek-v3.1"});
    SCRIPT_SET(engine, text, DS_CALL "now" DS_SEP "{}");
    ask(ASK(""), false, m, finish);
    assert_string_equal(m->names, "now;");
    const char *const bad[] = {"qwen", "harmony", ""};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        const sl_server_opts o = {.engine = engine,
                                  .tokenizer = tok,
                                  .chat = (const sl_chat *)&some_chat,
                                  .served_model_name = "m",
                                  .tool_format = bad[i]};
        assert_int_equal(sl_server_create(&o, &other, &err), SL_ERR_ARG);
        assert_non_null(strstr(err.msg, "tool-format"));
    }
    free(m);
}

/* What a template has no word for is refused. */
static void reasoning_is_switched_where_it_can_be(void **state) {
    (void)state;
    check_error("POST", CHAT, NULL, ASK(",\"enable_thinking\":false"), 400, "enable_thinking",
                NULL);
    check_error("POST", CHAT, NULL, ASK(",\"reasoning_effort\":\"low\""), 400, "reasoning_effort",
                NULL);
    check_error("POST", CHAT, NULL, ASK(",\"max_reasoning_tokens\":5"), 400, "max_reasoning_tokens",
                NULL);
    char finish[32];
    message *m = malloc(sizeof *m);
    script_style.thought = 1;
    restart(NULL);
    ask(ASK(",\"enable_thinking\":false"), false, m, finish);
    ask(ASK(",\"reasoning_effort\":\"none\""), false, m, finish);
    ask(ASK(",\"reasoning_effort\":\"high\""), false, m, finish);
    script_style.thought = 0;
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_format_comes_whole_and_streamed),
        TEST(calls_have_ids),
        TEST(a_call_that_is_cut_off_is_what_came_of_it),
        TEST(one_call_ends_the_answer),
        TEST(stops_are_of_the_text),
        TEST(a_named_function_is_begun),
        TEST(formats_are_chosen),
        TEST(reasoning_is_switched_where_it_can_be),
    };
    tok = script_tokenizer();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

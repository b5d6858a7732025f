/* The server over real sockets, in front of a scripted engine. */
#include "serve_http.h"

static void whole_answers_have_every_field(void **state) {
    (void)state;
    http_answer a = http_do(port, "POST", CHAT, "X-Request-Id: abc-1\r\n",
                            "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":"
                            "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
                            "\"b\"}]}],\"user\":\"me\",\"n\":1,\"seed\":5}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "X-Request-Id: abc-1\r\n"));
    sl_json_doc *doc = json_of(a.body.data, a.body.len);
    sl_json root = sl_json_root(doc), choice = sl_json_at(sl_json_get(root, "choices"), 0);
    sl_json usage = sl_json_get(root, "usage");
    assert_true(string_at(root, "object", "chat.completion"));
    assert_true(string_at(root, "model", "org/m"));
    assert_true(string_at(sl_json_get(choice, "message"), "content", "Hello, world."));
    assert_true(string_at(sl_json_get(choice, "message"), "role", "assistant"));
    assert_true(string_at(choice, "finish_reason", "stop"));
    assert_int_equal(number_at(usage, "prompt_tokens"), strlen("user: a\nb\nassistant:"));
    assert_int_equal(number_at(usage, "completion_tokens"), 14);
    assert_int_equal(number_at(usage, "total_tokens"), 34);
    assert_true(number_at(root, "created") > 1600000000);
    sl_json_doc_free(doc);
    http_answer_free(&a);
    assert_int_equal(engine->last_sampling.seed, 5);
    assert_true(engine->last_sampling.temperature == 0.5f);
    assert_true(engine->last_sampling.top_p == 0.25f);
    assert_int_equal(engine->last_sampling.top_k, 7);
    assert_int_equal(engine->last_max_tokens, 100000 - 20);

    a = http_do(port, "POST", COMPLETIONS, NULL,
                "{\"model\":\"org/m\",\"prompt\":[1,2,256],\"max_tokens\":5,\"temperature\":0,"
                "\"return_token_ids\":true}");
    assert_int_equal(a.status, 200);
    doc = json_of(a.body.data, a.body.len);
    choice = sl_json_at(sl_json_get(sl_json_root(doc), "choices"), 0);
    assert_true(string_at(choice, "text", "Hello"));
    assert_true(string_at(choice, "finish_reason", "length"));
    assert_int_equal(sl_json_count(sl_json_get(choice, "token_ids")), 5);
    assert_int_equal(sl_json_count(sl_json_get(choice, "prompt_token_ids")), 3);
    sl_json_doc_free(doc);
    http_answer_free(&a);
    assert_int_equal(engine->last_n_prompt, 3);
    assert_int_equal(engine->last_prompt[2], 256);
}

/* Joins the text of all events; checks their framing and that [DONE] or an error comes last. */
static void read_events(const http_answer *a, sl_jbuf *text, char *finish, char *last) {
    finish[0] = last[0] = 0;
    assert_true(a->whole);
    for (const char *at = a->body.data; *at;) {
        assert_true(!strncmp(at, "data: ", 6));
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_string_not_equal(last, "[DONE]");
        size_t n = (size_t)(end - at) - 6;
        if (!strncmp(at + 6, "[DONE]", 6)) {
            strcpy(last, "[DONE]");
        } else {
            sl_json_doc *doc = json_of(at + 6, n);
            sl_json root = sl_json_root(doc);
            sl_json choice = sl_json_at(sl_json_get(root, "choices"), 0);
            sl_span s;
            snprintf(last, 16, "%s", sl_json_get(root, "error").value ? "error" : "chunk");
            if (sl_json_get(root, "usage").value && !choice.value) strcpy(last, "usage");
            if (sl_json_as_span(sl_json_get(choice, "text"), &s) ||
                sl_json_as_span(sl_json_get(sl_json_get(choice, "delta"), "content"), &s))
                sl_jbuf_put(text, (const char *)s.data, s.len);
            if (sl_json_as_span(sl_json_get(choice, "finish_reason"), &s))
                snprintf(finish, 16, "%.*s", (int)s.len, (char *)s.data);
            sl_json_doc_free(doc);
        }
        at = end + 2;
    }
}

static void check_stream(const char *path, const char *body, const char *want, const char *finish,
                         const char *last) {
    char got_finish[16], got_last[16];
    sl_jbuf text = sl_jbuf_init();
    sl_jbuf_put(&text, "", 0);
    http_answer a = http_do(port, "POST", path, NULL, body);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "Content-Type: text/event-stream\r\n"));
    read_events(&a, &text, got_finish, got_last);
    assert_string_equal(text.data, want);
    assert_string_equal(got_finish, finish);
    assert_string_equal(got_last, last);
    sl_jbuf_free(&text);
    http_answer_free(&a);
}

#define STREAM_CHAT(rest)                                                                          \
    "{\"model\":\"org/"                                                                            \
    "m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" rest "}"
#define STREAM_TEXT(rest) "{\"model\":\"org/m\",\"stream\":true,\"prompt\":\"x\"" rest "}"

static void streams_carry_the_same_text(void **state) {
    (void)state;
    SCRIPT_SET(engine, text, "na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x8C\x8A \"q\"\n");
    SCRIPT_SET(engine, delay_us, 200);
    for (uint32_t n = 1; n < 9; n++) {
        SCRIPT_SET(engine, per_event, n);
        check_stream(CHAT, STREAM_CHAT(), engine->script.text, "stop", "[DONE]");
        check_stream(COMPLETIONS,
                     STREAM_TEXT(",\"max_tokens\":50,\"stream_options\":{\"include_usage\":true}"),
                     engine->script.text, "stop", "[DONE]");
        /* cut inside a character: U+FFFD stands for its first byte */
        check_stream(COMPLETIONS, STREAM_TEXT(",\"max_tokens\":3"), "na\xEF\xBF\xBD", "length",
                     "[DONE]");
    }
}

static void stop_strings_end_an_answer(void **state) {
    (void)state;
    SCRIPT_SET(engine, delay_us, 100);
    for (uint32_t n = 1; n < 4; n++) {
        SCRIPT_SET(engine, per_event, n);
        check_stream(COMPLETIONS, STREAM_TEXT(",\"stop\":[\"worx\",\"o, w\"]"), "Hell", "stop",
                     "[DONE]");
        check_stream(CHAT, STREAM_CHAT(",\"stop\":\"world!\""), "Hello, world.", "stop", "[DONE]");
        check_stream(CHAT, STREAM_CHAT(",\"stop\":\"ld.\",\"ignore_eos\":true"), "Hello, wor",
                     "stop", "[DONE]");
        check_stream(COMPLETIONS, STREAM_TEXT(",\"stop_token_ids\":[44]"), "Hello", "stop",
                     "[DONE]");
        http_answer a = http_do(port, "POST", COMPLETIONS, NULL,
                                "{\"model\":\"org/m\",\"prompt\":\"x\",\"stop\":[\"wor\"],"
                                "\"ignore_eos\":true,\"max_tokens\":90000}");
        sl_json_doc *doc = json_of(a.body.data, a.body.len);
        sl_json choice = sl_json_at(sl_json_get(sl_json_root(doc), "choices"), 0);
        assert_true(string_at(choice, "text", "Hello, "));
        assert_true(string_at(choice, "finish_reason", "stop"));
        assert_int_equal(number_at(sl_json_get(sl_json_root(doc), "usage"), "completion_tokens"),
                         10);
        sl_json_doc_free(doc);
        http_answer_free(&a);
        assert_true(script_busy(engine, 0));
    }
}

static size_t count_of(const char *text, const char *what) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

static void choices_share_a_request(void **state) {
    (void)state;
    static const char *const body[] = {
        "{\"model\":\"org/m\",\"prompt\":[\"a\",\"b\"],\"n\":3}",
        "{\"model\":\"org/m\",\"prompt\":[\"a\",\"b\"],\"n\":3,\"stream\":true}",
        "{\"model\":\"org/m\",\"prompt\":[\"a\",\"b\"],\"n\":3,\"stop\":\"w\"}",
    };
    for (size_t i = 0; i < SL_LEN(body); i++) {
        http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body[i]);
        assert_int_equal(a.status, 200);
        assert_true(a.whole);
        assert_int_equal(count_of(a.body.data, "\"finish_reason\":\"stop\""), 6);
        if (i != 1) assert_int_equal(count_of(a.body.data, "Hello, world."), i == 0 ? 6 : 0);
        assert_non_null(strstr(a.body.data, "\"index\":5"));
        assert_null(strstr(a.body.data, "\"index\":6"));
        http_answer_free(&a);
        assert_true(script_busy(engine, 0));
    }
    /* one choice that cannot be submitted, or fails, is the end of all */
    SCRIPT_SET(engine, fail_after, 3);
    http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body[0]);
    assert_int_equal(a.status, 503);
    http_answer_free(&a);
    a = http_do(port, "POST", COMPLETIONS, NULL, body[1]);
    assert_non_null(strstr(a.body.data, "\"code\":\"worker_lost\""));
    assert_null(strstr(a.body.data, "[DONE]"));
    http_answer_free(&a);
    SCRIPT_SET(engine, fail_after, 0);
    assert_true(script_busy(engine, 0));
    /* a client that leaves ends all of them */
    SCRIPT_SET(engine, silent, true);
    uint64_t before = script_cancelled(engine);
    int fd = http_connect(port);
    http_request(fd, "POST", COMPLETIONS, NULL, body[1]);
    assert_true(script_busy(engine, 6));
    close(fd);
    assert_true(script_busy(engine, 0));
    assert_true(script_cancelled(engine) == before + 6);
    SCRIPT_SET(engine, silent, false);
}

static void wrong_requests_are_named(void **state) {
    (void)state;
#define BAD(fields, param)                                                                         \
    check_error("POST", COMPLETIONS, NULL, "{\"model\":\"org/m\"," fields "}", 400, param, NULL)
    BAD("\"prompt\":\"x\",\"n\":0", "n");
    BAD("\"prompt\":\"x\",\"echo\":2", "echo");
    BAD("\"prompt\":\"x\",\"logprobs\":21", "logprobs");
    BAD("\"prompt\":\"x\",\"temperature\":3", "temperature");
    BAD("\"prompt\":\"x\",\"max_tokens\":-1", "max_tokens");
    BAD("\"prompt\":\"x\",\"max_tokens\":1000000", "max_tokens");
    BAD("\"prompt\":[257]", "prompt");
    BAD("\"prompt\":\"\"", "prompt");
    BAD("\"prompt\":[\"a\",[\"b\"]]", "prompt");
    BAD("\"max_tokens\":1", "prompt");
    BAD("\"prompt\":\"x\",\"temprature\":1", "temprature");
    check_error("POST", COMPLETIONS, NULL, "{\"model\":\"other\",\"prompt\":\"x\"}", 404, "model",
                "model_not_found");
    check_error("POST", COMPLETIONS, NULL, "{\"model\":", 400, NULL, NULL);
    check_error("POST", COMPLETIONS, NULL, "{\"model\":\"org/m\",\"model\":\"b\"}", 400, NULL,
                NULL);
    check_error("POST", COMPLETIONS, NULL, NULL, 400, NULL, NULL);
    check_error("GET", CHAT, NULL, NULL, 405, NULL, "method_not_allowed");
    check_error("DELETE", "/health", NULL, NULL, 405, NULL, "method_not_allowed");
    check_error("POST", "/v1/embeddings", NULL, "{}", 404, NULL, "unknown_url");
    check_error("GET", "/v1/models/none", NULL, NULL, 404, "model", "model_not_found");
    SCRIPT_SET(engine, refuse, SL_ERR_OVERLOADED);
    check_error("POST", CHAT, NULL, STREAM_CHAT(), 429, NULL, "overloaded");
    SCRIPT_SET(engine, refuse, SL_ERR_WORKER_LOST);
    check_error("POST", CHAT, NULL, STREAM_CHAT(), 503, NULL, "worker_lost");
    SCRIPT_SET(engine, refuse, SL_ERR_LIMIT);
    check_error("POST", CHAT, NULL, STREAM_CHAT(), 400, NULL, "context_length_exceeded");
}

static void big_bodies_are_refused(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_body_bytes = 1000});
    char body[5000];
    memset(body, ' ', sizeof body);
    body[1001] = 0;
    check_error("POST", COMPLETIONS, NULL, body, 413, NULL, "request_too_large");
    static const char huge[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               "Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n";
    int fd = http_connect(port);
    http_send(fd, huge, sizeof huge - 1);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body.data, "request_too_large"));
    http_answer_free(&a);
    close(fd);
    body[1001] = ' ';
    body[999] = 0;
    check_error("POST", COMPLETIONS, NULL, body, 400, NULL, NULL);
}

/* A page that a browser on this machine shows can send here, but not under another name. */
static void pages_of_other_sites_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *host, *origin;
        int status;
    } cases[] = {
        {"localhost", NULL, 200},
        {"LOCALHOST:8000", NULL, 200},
        {"127.0.0.1:1", NULL, 200},
        {"127.9.9.9", NULL, 200},
        {"[::1]:8000", NULL, 200},
        {"rebound.example:8000", NULL, 403},
        {"localhost.example", NULL, 403},
        {"127.0.0.1.example", NULL, 403},
        {"10.0.0.1", NULL, 403},
        {"[::2]", NULL, 403},
        {"[::1", NULL, 403},
        {"localhost:80x", NULL, 403},
        {"localhost:8000", "http://localhost:8000", 200},
        {"localhost:8000", "https://LocalHost:8000", 200},
        {"localhost:8000", "http://localhost:3000", 403},
        {"localhost:8000", "http://page.example", 403},
        {"localhost:8000", "null", 403},
        {"localhost:8000", "ftp://localhost:8000", 403},
    };
    for (int keyed = 0; keyed < 2; keyed++) {
        if (keyed) restart(&(sl_server_opts){.api_key = "k"});
        for (size_t i = 0; i < SL_LEN(cases); i++) {
            char text[512];
            int fd = http_connect(port);
            int n = snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: %s\r\n%s%s\r\n\r\n",
                             cases[i].host, cases[i].origin ? "Origin: " : "X: ",
                             cases[i].origin ? cases[i].origin : "y");
            http_send(fd, text, (size_t)n);
            http_answer a = http_read(fd);
            int want = keyed ? 200 : cases[i].status;
            if (a.status != want) fail_msg("%s %s: %d", cases[i].host, cases[i].origin, a.status);
            if (want == 403) assert_non_null(strstr(a.body.data, "origin_not_allowed"));
            http_answer_free(&a);
            close(fd);
        }
    }
    restart(NULL);
    check_error("POST", COMPLETIONS, "Origin: http://page.example\r\n",
                "{\"model\":\"org/m\",\"prompt\":\"x\"}", 403, NULL, "origin_not_allowed");
}

/* In the end, when bodies of clients that left are given back. */
static void completes_with(int want, const char *body) {
    int status = 0;
    for (int tries = 0; tries < 1000 && status != want; tries++) {
        http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body);
        status = a.status;
        http_answer_free(&a);
        usleep(1000);
    }
    assert_int_equal(status, want);
}

/* Bodies that are still arriving count together; what is kept is given back with its request. */
static void all_bodies_share_a_limit(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_body_bytes = 4000, .max_held_bytes = 6000});
    static char half[3500];
    memset(half, ' ', sizeof half);
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               "Content-Length: 3600\r\n\r\n";
    char body[3601];
    memset(body, ' ', sizeof body);
    body[3600] = 0;
    for (int i = 0; i < 20; i++) {
        int fd = http_connect(port);
        http_send(fd, head, sizeof head - 1);
        for (size_t at = 0; at < sizeof half; at += 500) { /* libmicrohttpd may leave some unread */
            usleep(1000);
            http_send(fd, half + at, 500);
        }
        int status = 0;
        for (int tries = 0; tries < 1000 && status != 503; tries++) { /* until those have arrived */
            http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body);
            status = a.status;
            if (status == 503) {
                assert_non_null(strstr(a.body.data, "too_many_bytes"));
                assert_non_null(strstr(a.head, "Retry-After: 1"));
            }
            http_answer_free(&a);
            usleep(1000);
        }
        assert_int_equal(status, 503);
        close(fd);
        completes_with(400, body);
    }
}

/* A close that comes with the last bytes is seen, too; closing only the sending side after a whole
 * body is not one. */
static void bodies_cut_short_are_dropped(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_body_bytes = 4000, .max_held_bytes = 6000});
    static const char whole[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                                "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}";
    static const char *const framing[] = {"Content-Length: 3600", "Transfer-Encoding: chunked"};
    char part[4096];
    for (int i = 0; i < 100; i++) {
        int n = snprintf(part, sizeof part,
                         "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n%s%3500s",
                         framing[i % 2], i % 2 ? "e10\r\n" : "", "");
        int fd = http_connect(port);
        http_send(fd, part, (size_t)n);
        close(fd);
    }
    int n = snprintf(part, sizeof part, "{\"model\":\"org/m\",\"prompt\":\"x\"%3500s}", "");
    assert_true(n > 3500);
    completes_with(200, part);
    int fd = http_connect(port);
    http_send(fd, whole, sizeof whole - 1);
    shutdown(fd, SHUT_WR);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    close(fd);
}

static void hopeless_prompts_are_not_tokenized(void **state) {
    (void)state;
    restart(&(sl_server_opts){.context = 20});
    char body[2048];
    for (int n = 18; n <= 1000; n += 982) { /* 20 tokens of 7 bytes at most */
        int at = snprintf(body, sizeof body, "{\"model\":\"org/m\",\"prompt\":\"%0*d\"}", n, 0);
        assert_true(at > n);
        if (n == 1000)
            check_error("POST", COMPLETIONS, NULL, body, 400, "prompt", "context_length_exceeded");
        http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body);
        assert_int_equal(strstr(a.body.data, "text of 1000 bytes") != NULL, n == 1000);
        assert_int_equal(a.status, n == 1000 ? 400 : 200);
        http_answer_free(&a);
    }
}

static void keys_are_checked(void **state) {
    (void)state;
    restart(&(sl_server_opts){.api_key = "secret"});
    check_error("GET", "/v1/models", NULL, NULL, 401, NULL, "invalid_api_key");
    check_error("GET", "/v1/models", "Authorization: Bearer secre\r\n", NULL, 401, NULL, NULL);
    check_error("GET", "/v1/models", "Authorization: Bearer secretsecret\r\n", NULL, 401, NULL,
                NULL);
    check_error("GET", "/v1/models", "Authorization: Bearer \r\n", NULL, 401, NULL, NULL);
    http_answer a =
        http_do(port, "GET", "/v1/models/org/m", "Authorization: Bearer secret\r\n", NULL);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    check_error("POST", "/tokenize", NULL, "{}", 401, NULL, "invalid_api_key");
    a = http_do(port, "GET", "/health", NULL, NULL);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
}

/* What could not come out of the model's context is refused before it takes memory and time. */
static void check_long_list(const char *open, const char *unit, size_t n, const char *close,
                            const char *path, const char *param) {
    sl_jbuf body = sl_jbuf_init();
    sl_jbuf_fmt(&body, "%s", open);
    for (size_t i = 0; i < n; i++) sl_jbuf_fmt(&body, "%s", unit);
    sl_jbuf_fmt(&body, "%s", close);
    assert_true(body.ok);
    check_error("POST", path, NULL, body.data, 400, param, "context_length_exceeded");
    sl_jbuf_free(&body);
}

static void tokens_come_and_go(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *want;
    } cases[] = {
        {"/tokenize", "{\"model\":\"org/m\",\"prompt\":\"a<|end|>\"}",
         "{\"count\":2,\"max_model_len\":100000,\"tokens\":[97,256],\"token_strs\":null}"},
        {"/tokenize", "{\"model\":\"org/m\",\"prompt\":\"\",\"add_special_tokens\":false}",
         "{\"count\":0,\"max_model_len\":100000,\"tokens\":[],\"token_strs\":null}"},
        {"/tokenize",
         "{\"model\":\"org/m\",\"messages\":[{\"role\":\"u\",\"content\":\"x\"}],"
         "\"add_generation_prompt\":false}",
         "{\"count\":5,\"max_model_len\":100000,\"tokens\":[117,58,32,120,10],\"token_strs\":"
         "null}"},
        {"/detokenize", "{\"model\":\"org/m\",\"tokens\":[97,195,256]}",
         "{\"prompt\":\"a\xEF\xBF\xBD<|end|>\"}"},
        {"/detokenize", "{\"model\":\"org/m\",\"tokens\":[]}", "{\"prompt\":\"\"}"},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        http_answer a = http_do(port, "POST", cases[i].path, NULL, cases[i].body);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body.data, cases[i].want);
        http_answer_free(&a);
    }
    check_error("POST", "/tokenize", NULL, "{\"model\":\"org/m\"}", 400, "prompt", NULL);
    check_error("POST", "/detokenize", NULL, "{\"model\":\"org/m\",\"tokens\":[257]}", 400,
                "tokens", NULL);
    check_error("POST", "/detokenize", NULL, "{\"model\":\"org/m\",\"tokens\":\"a\"}", 400,
                "tokens", NULL);
    check_long_list("{\"tokens\":[1", ",1", 100000, "]}", "/detokenize", "tokens");
    check_long_list("{\"prompt\":\"", "a", 3 * 7 * 100000 + 1, "\"}", "/tokenize", "prompt");
}

static void open_hosts_need_a_key(void **state) {
    (void)state;
    sl_err err = {0};
    sl_server *other = NULL;
    sl_server_opts o = {
        .engine = engine, .tokenizer = tok, .served_model_name = "m", .host = "0.0.0.0"};
    assert_int_equal(sl_server_create(&o, &other, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "API key"));
    o.host = "::";
    assert_int_equal(sl_server_create(&o, &other, &err), SL_ERR_ARG);
    o.host = "no such host";
    assert_int_equal(sl_server_create(&o, &other, &err), SL_ERR_ARG);
    o.host = "localhost";
    o.port = port;
    assert_int_equal(sl_server_create(&o, &other, &err), SL_ERR_IO);
    assert_null(other);
    o.host = "0.0.0.0";
    o.port = 0;
    o.api_key = "k";
    assert_int_equal(sl_server_create(&o, &other, &err), SL_OK);
    assert_non_null(strstr(sl_server_url(other), "http://0.0.0.0:"));
    sl_server_free(other);
}

static void a_lost_worker_is_told(void **state) {
    (void)state;
    SCRIPT_SET(engine, delay_us, 200);
    SCRIPT_SET(engine, fail_after, 5);
    check_stream(CHAT, STREAM_CHAT(), "Hello", "", "error");
    check_error("POST", COMPLETIONS, NULL, "{\"model\":\"org/m\",\"prompt\":\"x\"}", 503, NULL,
                "worker_lost");
    SCRIPT_SET(engine, not_serving, true);
    http_answer a = http_do(port, "GET", "/health", NULL, NULL);
    assert_int_equal(a.status, 503);
    http_answer_free(&a);
}

static void a_client_who_leaves_is_noticed(void **state) {
    (void)state;
    for (int silent = 0; silent < 2; silent++)
        for (int stream = 0; stream < 2; stream++)
            for (int reset = 0; reset < 2; reset++) {
                SCRIPT_SET(engine, silent, silent);
                SCRIPT_SET(engine, delay_us, 1000);
                uint64_t before = script_cancelled(engine);
                int fd = http_connect(port);
                http_request(fd, "POST", CHAT, NULL,
                             stream ? STREAM_CHAT(",\"ignore_eos\":true")
                                    : "{\"model\":\"org/m\",\"ignore_eos\":true,\"messages\":"
                                      "[{\"role\":\"user\",\"content\":\"x\"}]}");
                assert_true(script_busy(engine, 1));
                if (!silent) usleep(10000); /* let some of the answer out */
                struct linger hard = {.l_onoff = reset};
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
                close(fd);
                assert_true(script_busy(engine, 0));
                assert_int_equal(script_cancelled(engine), before + 1);
            }
}

static void a_slow_reader_is_cut_off(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_unread_tokens = 50000, .context = 100000000});
    SCRIPT_SET(engine, per_event, 250);
    SCRIPT_SET(engine, delay_us, 500);
    int fd = http_connect_with(port, 4096);
    http_request(fd, "POST", COMPLETIONS, NULL,
                 STREAM_TEXT(",\"ignore_eos\":true,\"max_tokens\":90000000"));
    /* nobody reads until the engine has been told to stop */
    assert_true(script_idle(engine, 1));
    http_answer a = http_read(fd);
    assert_int_equal(script_cancelled(engine), 1);
    assert_int_equal(a.status, 200);
    assert_false(a.whole);
    http_answer_free(&a);
    close(fd);
}

static void expect(const char *path, int status, const char *text) {
    http_answer a = http_do(port, "GET", path, NULL, NULL);
    assert_int_equal(a.status, status);
    assert_non_null(strstr(a.body.data, text));
    http_answer_free(&a);
}

/* /health and /ping ask whether requests are answered, /readyz whether to send new ones here,
 * /livez whether to kill the process. */
static void expect_probes(int status, int ready, const char *text) {
    expect("/health", status, text);
    expect("/ping", status, text);
    expect("/readyz", ready, text);
    expect("/livez", 200, "ok");
}

static void probes_know_the_workers(void **state) {
    (void)state;
    expect_probes(200, 200, "\"ok\"");
    SCRIPT_SET(engine, not_serving, true);
    expect_probes(503, 503, "\"workers are missing\"");
    SCRIPT_SET(engine, recovering, true);
    expect_probes(200, 503, "\"recovering\"");
    expect("/metrics", 200, "\nsluice:recovering{model_name=\"org/m\"} 1\n");
    expect("/metrics", 200, "\nsluice:workers_lost_total{model_name=\"org/m\"} 2\n");
    expect("/metrics", 200, "\nsluice:workers_restarted_total{model_name=\"org/m\"} 1\n");
    expect("/metrics", 200, "\nsluice:requests_requeued_total{model_name=\"org/m\"} 7\n");
    expect("/metrics", 200, "\nsluice:rows_kept_total{model_name=\"org/m\"} 4096\n");
    expect("/metrics", 200, "\nsluice:rows_recomputed_total{model_name=\"org/m\"} 11\n");
    expect("/metrics", 200, "\nsluice:longest_pause_seconds{model_name=\"org/m\"} 0.5\n");
    expect("/v1/models/", 200, "\"object\":\"list\"");
}

static void a_draining_server_finishes_what_runs(void **state) {
    (void)state;
    SCRIPT_SET(engine, delay_us, 20000);
    int fd = http_connect(port);
    http_request(fd, "POST", COMPLETIONS, NULL, STREAM_TEXT());
    while (sl_server_running(server) == 0) usleep(1000);
    sl_server_drain(server);
    check_error("POST", COMPLETIONS, NULL, "{\"model\":\"org/m\",\"prompt\":\"x\"}", 503, NULL,
                "draining");
    expect_probes(503, 503, "draining");
    assert_int_equal(sl_server_running(server), 1);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "[DONE]"));
    http_answer_free(&a);
    close(fd);
    for (int i = 0; sl_server_running(server) > 0 && i < 5000; i++) usleep(1000);
    assert_int_equal(sl_server_running(server), 0);
}

static void other_ways_to_speak_http(void **state) {
    (void)state;
    int fd = http_connect(port);
    static const char chunked[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        "10\r\n{\"model\":\"org/m\"\r\n0E;x=y\r\n,\"prompt\":\"x\"}\r\n0\r\n\r\n";
    for (size_t i = 0; i + 1 < sizeof chunked; i++) http_send(fd, chunked + i, 1);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "Hello, world."));
    http_answer_free(&a);
    close(fd);
    /* HTTP/1.0 has no chunks: the stream ends with the connection */
    static const char old[] = "POST /v1/completions HTTP/1.0\r\nContent-Length: 44\r\n\r\n"
                              "{\"model\":\"org/m\",\"prompt\":\"x\",\"stream\":true}";
    sl_jbuf all = sl_jbuf_init();
    fd = http_connect(port);
    http_send(fd, old, sizeof old - 1);
    assert_false(http_read_bytes(fd, &all, 1000000));
    assert_non_null(strstr(all.data, " 200 OK\r\n"));
    assert_non_null(strstr(all.data, "data: [DONE]\n\n"));
    assert_null(strcasestr(all.data, "chunked"));
    sl_jbuf_free(&all);
    close(fd);
}

static void connections_are_kept(void **state) {
    (void)state;
    int fd = http_connect(port);
    for (int i = 0; i < 20; i++) {
        http_request(fd, "POST", COMPLETIONS, NULL,
                     i % 2 ? STREAM_TEXT() : "{\"model\":\"org/m\",\"prompt\":\"x\"}");
        http_answer a = http_read(fd);
        assert_int_equal(a.status, 200);
        assert_true(a.whole);
        assert_non_null(strstr(a.body.data, i % 2 ? "[DONE]" : "Hello, world."));
        http_answer_free(&a);
    }
    close(fd);
}

static void *one_client(void *arg) {
    bool stream = arg != NULL;
    http_answer a = http_do(port, "POST", CHAT, NULL,
                            stream ? STREAM_CHAT(",\"max_tokens\":200,\"ignore_eos\":true")
                                   : "{\"model\":\"org/m\",\"max_tokens\":200,\"ignore_eos\":true,"
                                     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    bool ok = a.status == 200 && a.whole && strstr(a.body.data, "\"length\"");
    http_answer_free(&a);
    return ok ? one_client : NULL;
}

static void many_clients_at_once(void **state) {
    (void)state;
    enum { N = 32 };
    pthread_t t[N];
    SCRIPT_SET(engine, delay_us, 500);
    for (uintptr_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&t[i], NULL, one_client, (void *)(i % 4)), 0);
    for (int i = 0; i < N; i++) {
        void *ok = NULL;
        pthread_join(t[i], &ok);
        assert_non_null(ok);
    }
    assert_true(engine->most_running > N / 4);
}

static void metrics_are_prometheus_text(void **state) {
    (void)state;
    check_stream(COMPLETIONS, STREAM_TEXT(",\"max_tokens\":4"), "Hell", "length", "[DONE]");
    http_answer a = http_do(port, "GET", "/metrics", NULL, NULL);
    assert_int_equal(a.status, 200);
    static const char *const want[] = {
        "\nsluice:num_requests_running{model_name=\"org/m\"} 0\n",
        "\nsluice:kv_cache_usage_perc{model_name=\"org/m\"} 0.25\n",
        "\nsluice:prompt_tokens_total{model_name=\"org/m\"} 1\n",
        "\nsluice:generation_tokens_total{model_name=\"org/m\"} 4\n",
        "\nsluice:request_success_total{finished_reason=\"length\",model_name=\"org/m\"} 1\n",
        "\nsluice:time_to_first_token_seconds_count{model_name=\"org/m\"} 1\n",
        "\nsluice:inter_token_latency_seconds_count{model_name=\"org/m\"} 3\n",
        "\nsluice:e2e_request_latency_seconds_bucket{model_name=\"org/m\",le=\"+Inf\"} 1\n",
        "\nsluice:worker_up{worker=\"0\",role=\"attention\",name=\"a \\\"0\\\"\"} 1\n",
        "\nsluice:worker_rows_total{worker=\"1\",role=\"expert\",kind=\"expert\"} 56\n",
        "\nsluice:worker_time_seconds_total{worker=\"1\",role=\"expert\",state=\"sleep\"} 0.5\n",
    };
    for (size_t i = 0; i < SL_LEN(want); i++)
        if (!strstr(a.body.data, want[i])) fail_msg("missing:%s", want[i]);
    http_answer_free(&a);
}

static void stopping_ends_every_request(void **state) {
    (void)state;
    SCRIPT_SET(engine, delay_us, 1000);
    int stream = http_connect(port), whole = http_connect(port), idle = http_connect(port);
    http_request(stream, "POST", CHAT, NULL, STREAM_CHAT(",\"ignore_eos\":true"));
    http_request(whole, "POST", COMPLETIONS, NULL,
                 "{\"model\":\"org/m\",\"prompt\":\"x\",\"max_tokens\":90000,\"ignore_eos\":true}");
    assert_true(script_busy(engine, 2));
    char first;
    assert_int_equal(recv(stream, &first, 1, MSG_PEEK), 1);
    uint64_t before = sl_now_ns();
    sl_server_free(server);
    server = NULL;
    assert_true(sl_now_ns() - before < 2000000000u);
    http_answer a = http_read(stream), b = http_read(whole);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "the server is stopping"));
    assert_int_equal(b.status, 503);
    http_answer_free(&a);
    http_answer_free(&b);
    close(stream);
    close(whole);
    close(idle);
    assert_true(script_busy(engine, 0));
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(whole_answers_have_every_field),
        TEST(streams_carry_the_same_text),
        TEST(stop_strings_end_an_answer),
        TEST(choices_share_a_request),
        TEST(wrong_requests_are_named),
        TEST(big_bodies_are_refused),
        TEST(pages_of_other_sites_are_refused),
        TEST(all_bodies_share_a_limit),
        TEST(bodies_cut_short_are_dropped),
        TEST(hopeless_prompts_are_not_tokenized),
        TEST(keys_are_checked),
        TEST(open_hosts_need_a_key),
        TEST(tokens_come_and_go),
        TEST(a_lost_worker_is_told),
        TEST(a_client_who_leaves_is_noticed),
        TEST(a_slow_reader_is_cut_off),
        TEST(probes_know_the_workers),
        TEST(a_draining_server_finishes_what_runs),
        TEST(other_ways_to_speak_http),
        TEST(connections_are_kept),
        TEST(many_clients_at_once),
        TEST(metrics_are_prometheus_text),
        TEST(stopping_ends_every_request),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

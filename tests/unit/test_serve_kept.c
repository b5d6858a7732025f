/* Answers to requests with an Idempotency-Key: one generation however often it is asked for, over
 * real sockets in front of a scripted engine. */
#include "sanitized.h"
#include "serve_http.h"

#define ASK_TEXT(rest)   "{\"model\":\"org/m\",\"prompt\":\"x\",\"max_tokens\":200" rest "}"
#define STREAM_TEXT      ASK_TEXT(",\"stream\":true")
#define STREAM_LONG      ASK_TEXT(",\"stream\":true,\"ignore_eos\":true")
#define KEY(k)           "Idempotency-Key: " k "\r\n"
#define REPLAYED(answer) (strstr((answer).head, "Idempotent-Replayed: true") != NULL)

static void keep(sl_server_opts o) {
    if (!o.responses) o.responses = 8;
    if (!o.responses_grace_s) o.responses_grace_s = 60;
    restart(&o);
}

static http_answer post(const char *path, const char *headers, const char *body) {
    return http_do(port, "POST", path, headers, body);
}

static void check_generations(uint64_t n) {
    pthread_mutex_lock(&engine->lock);
    uint64_t made = engine->next_id;
    pthread_mutex_unlock(&engine->lock);
    assert_int_equal(made, n);
}

/* The texts of a stream's chunks, joined, and how it ended. */
static sl_jbuf text_of(const http_answer *a, bool *done) {
    sl_jbuf text = sl_jbuf_init();
    *done = false;
    /* Line by line: sanitizers look at all that follows when strstr is called. */
    for (const char *at = a->body.data, *end; (end = strchr(at, '\n')); at = end + 1) {
        if (strncmp(at, "data: ", 6) != 0) continue;
        *done = !strncmp(at, "data: [DONE]", 12);
        if (*done) break;
        sl_json_doc *doc = json_of(at + 6, (size_t)(end - at) - 6);
        sl_json choice = sl_json_at(sl_json_get(sl_json_root(doc), "choices"), 0);
        sl_span piece = {0};
        if (sl_json_as_span(sl_json_get(choice, "text"), &piece))
            sl_jbuf_put(&text, (const char *)piece.data, piece.len);
        sl_json_doc_free(doc);
    }
    return text;
}

static void check_same_stream(http_answer *a, http_answer *b) {
    bool done[2];
    sl_jbuf first = text_of(a, &done[0]), second = text_of(b, &done[1]);
    assert_true(first.len > 0 && done[0] && done[1]);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    sl_jbuf_free(&first);
    sl_jbuf_free(&second);
    http_answer_free(a);
    http_answer_free(b);
}

static void the_same_key_is_the_same_answer(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    http_answer a = post(COMPLETIONS, KEY("one"), ASK_TEXT());
    http_answer b = post(COMPLETIONS, KEY("one"), ASK_TEXT());
    assert_int_equal(a.status, 200);
    assert_false(REPLAYED(a));
    assert_int_equal(b.status, 200);
    assert_true(REPLAYED(b));
    assert_string_equal(a.body.data, b.body.data);
    http_answer_free(&a);
    http_answer_free(&b);
    check_generations(1);
    a = post(COMPLETIONS, KEY("two"), STREAM_TEXT);
    b = post(COMPLETIONS, KEY("two"), STREAM_TEXT);
    assert_true(REPLAYED(b));
    check_same_stream(&a, &b);
    check_generations(2);
    /* stop strings are met by every reader, and stop the engine once */
    SCRIPT_SET(engine, delay_us, 1000);
    for (int i = 0; i < 2; i++) {
        a = post(COMPLETIONS, KEY("three"), ASK_TEXT(",\"ignore_eos\":true,\"stop\":\"wor\""));
        assert_non_null(strstr(a.body.data, "\"text\":\"Hello, \""));
        http_answer_free(&a);
    }
    check_generations(3);
    assert_true(script_idle(engine, 3));
    assert_int_equal(script_cancelled(engine), 1);
    a = http_do(port, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(a.body.data, "\nsluice:responses_kept{model_name=\"org/m\"} 3\n"));
    assert_non_null(
        strstr(a.body.data, "\nsluice:responses_replayed_total{model_name=\"org/m\"} 3\n"));
    assert_non_null(strstr(
        a.body.data,
        "\nsluice:request_success_total{finished_reason=\"stop\",model_name=\"org/m\"} 3\n"));
    assert_non_null(strstr(a.body.data,
                           "\nsluice:e2e_request_latency_seconds_count{model_name=\"org/m\"} 3\n"));
    http_answer_free(&a);
}

static void nothing_is_kept_unless_asked_for(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        http_answer a = post(COMPLETIONS, KEY("one"), ASK_TEXT());
        assert_int_equal(a.status, 200);
        assert_false(REPLAYED(a));
        http_answer_free(&a);
    }
    check_generations(2);
    check_error("GET", COMPLETIONS "/cmpl-1", NULL, NULL, 404, NULL, "response_not_found");
}

/* Leaves in the middle of a stream. */
static void leave_early(const char *headers, const char *body) {
    int fd = http_connect(port);
    char some[64];
    http_request(fd, "POST", COMPLETIONS, headers, body);
    assert_true(recv(fd, some, sizeof some, 0) > 0);
    close(fd);
}

static void who_comes_back_hears_all_of_it(void **state) {
    (void)state;
    keep((sl_server_opts){.max_unread_tokens = 20});
    SCRIPT_SET(engine, delay_us, 3000);
    leave_early(KEY("one"), STREAM_LONG);
    usleep(100000);
    http_answer a = post(COMPLETIONS, KEY("one"), STREAM_LONG); /* it still runs */
    assert_true(REPLAYED(a));
    http_answer b = post(COMPLETIONS, KEY("one"), STREAM_LONG); /* it has ended */
    bool done;
    sl_jbuf text = text_of(&a, &done);
    assert_int_equal(text.len, 200);
    sl_jbuf_free(&text);
    check_same_stream(&a, &b);
    check_generations(1);
    assert_int_equal(script_cancelled(engine), 0);
}

/* Tokens of an answer that no socket holds, each an event of some 200 bytes. */
#define MANY_TOKENS (SL_SLOW_BUILD ? 60000 : 300000)

/* More than socket and server hold for one connection waits in the answer. */
static void who_reads_slowly_loses_nothing(void **state) {
    (void)state;
    keep((sl_server_opts){.max_unread_tokens = 20, .context = 1000000});
    SCRIPT_SET(engine, per_event, 250);
    int fd = http_connect_with(port, 4096);
    char body[160];
    snprintf(body, sizeof body,
             "{\"model\":\"org/m\",\"prompt\":\"x\",\"stream\":true,\"ignore_eos\":true,"
             "\"return_token_ids\":true,\"max_tokens\":%d}",
             MANY_TOKENS);
    http_request(fd, "POST", COMPLETIONS, KEY("one"), body);
    assert_true(script_idle(engine, 1)); /* it is made before anyone reads */
    http_answer a = http_read(fd);
    bool done;
    sl_jbuf text = text_of(&a, &done);
    assert_true(done);
    assert_int_equal(text.len, MANY_TOKENS);
    for (size_t i = 0; i < text.len; i++) assert_int_equal(text.data[i], "Hello, world."[i % 13]);
    assert_int_equal(script_cancelled(engine), 0);
    sl_jbuf_free(&text);
    http_answer_free(&a);
    close(fd);
}

static void two_at_once_read_one_answer(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    SCRIPT_SET(engine, delay_us, 1000);
    int fd[2] = {http_connect(port), http_connect(port)};
    for (int i = 0; i < 2; i++) http_request(fd[i], "POST", COMPLETIONS, KEY("one"), STREAM_LONG);
    http_answer a = http_read(fd[0]), b = http_read(fd[1]);
    check_same_stream(&a, &b);
    check_generations(1);
    close(fd[0]);
    close(fd[1]);
}

static void nobody_comes_back(void **state) {
    (void)state;
    keep((sl_server_opts){.responses_grace_s = 1});
    SCRIPT_SET(engine, silent, true);
    SCRIPT_SET(engine, delay_us, 1000);
    int fd = http_connect(port);
    http_request(fd, "POST", COMPLETIONS, KEY("one"), STREAM_LONG);
    assert_true(script_busy(engine, 1));
    close(fd);
    uint64_t left_ns = sl_now_ns();
    usleep(200000);
    bool late = script_cancelled(engine) > 0;
    assert_true(!late || sl_now_ns() - left_ns > 900000000u);
    assert_true(script_busy(engine, 0));
    assert_int_equal(script_cancelled(engine), 1);
    SCRIPT_SET(engine, silent, false);
    http_answer a = post(COMPLETIONS, KEY("one"), STREAM_LONG);
    assert_int_equal(a.status, 200);
    assert_false(REPLAYED(a));
    http_answer_free(&a);
    check_generations(2);
}

static void a_key_belongs_to_one_body_and_one_caller(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    static const char mine[] = KEY("one") "Authorization: Bearer me\r\n";
    http_answer a = post(COMPLETIONS, mine, ASK_TEXT());
    sl_json_doc *doc = json_of(a.body.data, a.body.len);
    sl_span id = {0};
    assert_true(sl_json_as_span(sl_json_get(sl_json_root(doc), "id"), &id));
    char path[128];
    snprintf(path, sizeof path, COMPLETIONS "/%.*s", (int)id.len, (const char *)id.data);
    sl_json_doc_free(doc);
    check_error("POST", COMPLETIONS, mine, ASK_TEXT(",\"n\":2"), 422, NULL,
                "idempotency_key_reused");
    check_error("POST", CHAT, mine,
                "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 422,
                NULL, "idempotency_key_reused");
    check_generations(1);
    /* by its id: whole, or as a stream */
    http_answer b = http_do(port, "GET", path, "Authorization: Bearer me\r\n", NULL);
    assert_int_equal(b.status, 200);
    assert_string_equal(a.body.data, b.body.data);
    http_answer_free(&b);
    char stream[160];
    snprintf(stream, sizeof stream, "%s?stream=true", path);
    b = http_do(port, "GET", stream, "Authorization: Bearer me\r\n", NULL);
    bool done;
    sl_jbuf text = text_of(&b, &done);
    assert_true(done && text.len == 13 && !memcmp(text.data, "Hello, world.", 13));
    sl_jbuf_free(&text);
    http_answer_free(&b);
    /* to others it is not there */
    check_error("GET", path, "Authorization: Bearer you\r\n", NULL, 404, NULL,
                "response_not_found");
    check_error("GET", path, NULL, NULL, 404, NULL, "response_not_found");
    snprintf(path, sizeof path, CHAT "/%.*s", (int)id.len, strstr(stream, "cmpl-"));
    check_error("GET", path, "Authorization: Bearer me\r\n", NULL, 404, NULL, "response_not_found");
    b = post(COMPLETIONS, KEY("one") "Authorization: Bearer you\r\n", ASK_TEXT(",\"n\":2"));
    assert_int_equal(b.status, 200);
    assert_false(REPLAYED(b));
    http_answer_free(&b);
    http_answer_free(&a);
    check_generations(3);
}

static void what_fails_is_not_kept(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    SCRIPT_SET(engine, fail_after, 5);
    for (int i = 0; i < 2; i++)
        check_error("POST", COMPLETIONS, KEY("one"), ASK_TEXT(), 503, NULL, "worker_lost");
    check_generations(2);
    SCRIPT_SET(engine, refuse, SL_ERR_OVERLOADED);
    check_error("POST", COMPLETIONS, KEY("one"), ASK_TEXT(",\"n\":3"), 429, NULL, "overloaded");
    SCRIPT_SET(engine, refuse, SL_OK);
    SCRIPT_SET(engine, fail_after, 0);
    http_answer a = post(COMPLETIONS, KEY("one"), ASK_TEXT());
    assert_int_equal(a.status, 200);
    assert_false(REPLAYED(a));
    http_answer_free(&a);
    check_generations(3);
}

static void answer_is_new(const char *headers, bool new) {
    http_answer a = post(COMPLETIONS, headers, ASK_TEXT());
    assert_int_equal(a.status, 200);
    assert_int_equal(REPLAYED(a), !new);
    http_answer_free(&a);
}

static void the_oldest_give_way(void **state) {
    (void)state;
    keep((sl_server_opts){.responses = 2});
    answer_is_new(KEY("one"), true);
    answer_is_new(KEY("two"), true);
    answer_is_new(KEY("one"), false);
    answer_is_new(KEY("three"), true);
    answer_is_new(KEY("two"), false);
    answer_is_new(KEY("three"), false);
    answer_is_new(KEY("one"), true);
    /* those that run do not */
    SCRIPT_SET(engine, silent, true);
    SCRIPT_SET(engine, delay_us, 1000);
    int fd[2] = {http_connect(port), http_connect(port)};
    http_request(fd[0], "POST", COMPLETIONS, KEY("four"), ASK_TEXT());
    http_request(fd[1], "POST", COMPLETIONS, KEY("five"), ASK_TEXT());
    assert_true(script_busy(engine, 2));
    check_error("POST", COMPLETIONS, KEY("six"), ASK_TEXT(), 503, NULL, "too_many_responses");
    SCRIPT_SET(engine, silent, false);
    for (int i = 0; i < 2; i++) {
        http_answer a = http_read(fd[i]);
        assert_int_equal(a.status, 200);
        http_answer_free(&a);
        close(fd[i]);
    }
    /* nor do small ones for one that could never fit */
    keep((sl_server_opts){.responses_bytes = 5000});
    answer_is_new(KEY("one"), true);
    answer_is_new(KEY("two"), true);
    check_error("POST", COMPLETIONS, KEY("three"), ASK_TEXT(",\"n\":10"), 400, NULL,
                "answer_too_large");
    answer_is_new(KEY("two"), false);
    for (int i = 0; i < 20; i++) {
        char key[64];
        snprintf(key, sizeof key, KEY("many-%d"), i);
        answer_is_new(key, true);
    }
    answer_is_new(KEY("two"), true);
}

/* Who has an answer may ask for the next one at once: it has ended by then, whatever the engine's
 * thread still does with it. */
static void who_is_answered_has_made_room(void **state) {
    (void)state;
    keep((sl_server_opts){.responses = 1});
    for (int i = 0; i < 300; i++) {
        char key[64];
        snprintf(key, sizeof key, KEY("next-%d"), i);
        answer_is_new(key, true);
    }
}

/* Who has heard all of an answer reads it no longer, though its connection may not know that yet:
 * what ended first gives way, not what nobody has just read. */
static void who_has_heard_it_all_keeps_nothing(void **state) {
    (void)state;
    keep((sl_server_opts){.responses = 2});
    for (int i = 0; i < 100; i++) {
        static const struct {
            int key;
            bool new;
        } asked[] = {{0, true}, {1, true}, {0, false}, {2, true}, {1, false}};
        for (size_t j = 0; j < SL_LEN(asked); j++) {
            char key[64];
            snprintf(key, sizeof key, KEY("%d-%d"), i, asked[j].key);
            http_answer a = post(COMPLETIONS, key, i % 2 ? STREAM_TEXT : ASK_TEXT());
            assert_int_equal(REPLAYED(a), !asked[j].new);
            http_answer_free(&a);
        }
    }
}

static void time_ends_them(void **state) {
    (void)state;
    keep((sl_server_opts){.responses_ttl_s = 1});
    answer_is_new(KEY("one"), true);
    bool kept = true;
    for (int i = 0; kept && i < 1000; i++) {
        http_answer a = http_do(port, "GET", "/metrics", NULL, NULL);
        kept = !strstr(a.body.data, "\nsluice:responses_kept{model_name=\"org/m\"} 0\n");
        http_answer_free(&a);
        if (kept) usleep(10000);
    }
    assert_false(kept);
    answer_is_new(KEY("one"), true);
}

static void keys_that_are_none_are_refused(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    char headers[400], body[] = ASK_TEXT();
    for (size_t n = 254; n <= 257; n++) {
        memset(headers, 0, sizeof headers);
        strcpy(headers, "Idempotency-Key: ");
        memset(headers + strlen(headers), 'k', n);
        strcat(headers, "\r\n");
        if (n <= 255)
            answer_is_new(headers, true);
        else
            check_error("POST", COMPLETIONS, headers, body, 400, NULL, "invalid_idempotency_key");
    }
    static const char *const bad[] = {KEY(""), KEY("\xC3\xA9"), KEY("a\xff"), KEY("one") KEY("two"),
                                      KEY("one") KEY("one")};
    for (size_t i = 0; i < SL_LEN(bad); i++)
        check_error("POST", COMPLETIONS, bad[i], body, 400, NULL, "invalid_idempotency_key");
    answer_is_new(KEY("\"8e03978e-40d5-43dd-bc93-6894a57f9324\""), true);
    answer_is_new(KEY("a key; with=marks, %00 and ../spaces"), true);
    answer_is_new(KEY("a key; with=marks, %00 and ../spaces"), false);
}

static void a_stop_ends_what_nobody_reads(void **state) {
    (void)state;
    keep((sl_server_opts){0});
    SCRIPT_SET(engine, delay_us, 3000);
    leave_early(KEY("one"), STREAM_LONG);
    int fd = http_connect(port);
    http_request(fd, "POST", COMPLETIONS, KEY("two"), STREAM_LONG);
    assert_true(script_busy(engine, 2));
    sl_server_free(server);
    server = NULL;
    http_answer a = http_read(fd);
    assert_non_null(strstr(a.body.data, "the server is stopping"));
    http_answer_free(&a);
    close(fd);
    assert_true(script_busy(engine, 0));
    assert_int_equal(script_cancelled(engine), 2);
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(the_same_key_is_the_same_answer),
        TEST(nothing_is_kept_unless_asked_for),
        TEST(who_comes_back_hears_all_of_it),
        TEST(who_reads_slowly_loses_nothing),
        TEST(two_at_once_read_one_answer),
        TEST(nobody_comes_back),
        TEST(a_key_belongs_to_one_body_and_one_caller),
        TEST(what_fails_is_not_kept),
        TEST(the_oldest_give_way),
        TEST(who_is_answered_has_made_room),
        TEST(who_has_heard_it_all_keeps_nothing),
        TEST(time_ends_them),
        TEST(keys_that_are_none_are_refused),
        TEST(a_stop_ends_what_nobody_reads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

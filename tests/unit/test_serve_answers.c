/* What answers hold, and what they may cost, over real sockets in front of a scripted engine. */
#include "serve_http.h"

#include <poll.h>

#define ASK(rest)                                                                                  \
    "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" rest "}"

/* A chat's first chunk names the role and shows the prompt; tokens come after it. */
static void the_role_counts_no_token(void **state) {
    (void)state;
    SCRIPT_SET(engine, per_event, 3);
    http_answer a = http_do(port, "POST", CHAT, NULL,
                            ASK(",\"stream\":true,\"return_token_ids\":true,\"stream_options\":"
                                "{\"include_usage\":true,\"continuous_usage_stats\":true}"));
    sl_json_doc *doc;
    sl_json role = event_at(&a, 0, &doc), choice = sl_json_at(sl_json_get(role, "choices"), 0);
    assert_int_equal(number_at(sl_json_get(role, "usage"), "completion_tokens"), 0);
    assert_int_equal(sl_json_count(sl_json_get(role, "prompt_token_ids")), 18);
    assert_null(sl_json_get(choice, "prompt_token_ids").value);
    assert_null(sl_json_get(choice, "token_ids").value);
    sl_json_doc_free(doc);
    sl_json text = event_at(&a, 1, &doc);
    choice = sl_json_at(sl_json_get(text, "choices"), 0);
    size_t n = sl_json_count(sl_json_get(choice, "token_ids"));
    assert_true(n > 0);
    assert_int_equal(number_at(sl_json_get(text, "usage"), "completion_tokens"), n);
    assert_null(sl_json_get(text, "prompt_token_ids").value);
    sl_json_doc_free(doc);
    http_answer_free(&a);
}

static void a_chat_has_one_prompt(void **state) {
    (void)state;
    http_answer a = http_do(port, "POST", CHAT, NULL, ASK(",\"n\":2,\"return_token_ids\":true"));
    sl_json_doc *doc = json_of(a.body.data, a.body.len);
    sl_json root = sl_json_root(doc), choice = sl_json_at(sl_json_get(root, "choices"), 1);
    assert_int_equal(sl_json_count(sl_json_get(root, "prompt_token_ids")), 18);
    assert_null(sl_json_get(choice, "prompt_token_ids").value);
    assert_int_equal(sl_json_count(sl_json_get(choice, "token_ids")), 14);
    sl_json_doc_free(doc);
    http_answer_free(&a);
}

static void hosts_may_have_brackets(void **state) {
    (void)state;
    sl_err err = {0};
    sl_server *other = NULL;
    sl_server_opts o = {
        .engine = engine, .tokenizer = tok, .served_model_name = "m", .host = "[127.0.0.1]"};
    assert_int_equal(sl_server_create(&o, &other, &err), SL_OK);
    assert_non_null(strstr(sl_server_url(other), "http://127.0.0.1:"));
    sl_server_free(other);
    o.host = "[::1]"; /* as in a URL; not every machine has IPv6 */
    sl_status st = sl_server_create(&o, &other, &err);
    assert_true(st == SL_OK || (st == SL_ERR_IO && strstr(err.msg, "cannot listen on ::1")));
    if (st != SL_OK) return;
    assert_non_null(strstr(sl_server_url(other), "http://[::1]:"));
    sl_server_free(other);
}

/* Bodies that take long to read: a chat whose encoding is held. */
static char large[40000];

static void hold_large_ones(void) {
    atomic_store(&script_hold, true);
    atomic_store(&script_held, 0);
    atomic_store(&script_encoded, 0);
    int n = snprintf(large, sizeof large, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    memset(large + n, 'x', 30000);
    strcpy(large + n + 30000, "\"}]}");
}

static void await(const atomic_uint *count, unsigned n) {
    for (int i = 0; i < 10000 && atomic_load(count) < n; i++) usleep(1000);
    assert_true(atomic_load(count) >= n);
}

static int send_large(void) {
    int fd = http_connect(port);
    http_request(fd, "POST", "/tokenize", NULL, large);
    return fd;
}

static void expect_answer(int fd, int status, const char *text) {
    http_answer a = http_read(fd);
    if (a.status != status) printf("%d %s\n", a.status, a.body.data);
    assert_int_equal(a.status, status);
    assert_non_null(strstr(a.body.data, text));
    http_answer_free(&a);
    close(fd);
}

static void large_bodies_leave_others_alone(void **state) {
    (void)state;
    hold_large_ones();
    int fd[6];
    for (size_t i = 0; i < SL_LEN(fd); i++) fd[i] = send_large();
    await(&script_held, 2);
    for (int i = 0; i < 8; i++) { /* over all threads that serve connections */
        http_answer a = http_do(port, "POST", CHAT, NULL, ASK(",\"stream\":true"));
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body.data, "[DONE]"));
        http_answer_free(&a);
        a = http_do(port, "POST", "/tokenize", NULL, "{\"prompt\":\"ab\"}");
        assert_int_equal(a.status, 200);
        http_answer_free(&a);
    }
    assert_int_equal(atomic_load(&script_encoded), 0);
    atomic_store(&script_hold, false);
    for (size_t i = 0; i < SL_LEN(fd); i++) expect_answer(fd[i], 200, "\"count\":30017,");
}

static void large_bodies_that_wait_have_a_limit(void **state) {
    (void)state;
    restart(&(sl_server_opts){.work_threads = 1, .max_work = 1});
    hold_large_ones();
    int first = send_large();
    await(&script_held, 1);
    int fd[2] = {send_large(), send_large()}; /* one waits, whichever comes first */
    struct pollfd ready[2] = {{.fd = fd[0], .events = POLLIN}, {.fd = fd[1], .events = POLLIN}};
    assert_int_equal(poll(ready, 2, 10000), 1);
    int refused = ready[1].revents != 0;
    http_answer a = http_read(fd[refused]);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.head, "Retry-After: 1\r\n"));
    assert_non_null(strstr(a.body.data, "too_many_bodies"));
    http_answer_free(&a);
    close(fd[refused]);
    atomic_store(&script_hold, false);
    expect_answer(first, 200, "30017");
    expect_answer(fd[!refused], 200, "30017");
}

/* A client that leaves while its body waits costs nothing more; one that leaves while it is read
 * stops nobody. */
static void who_leaves_is_not_read(void **state) {
    (void)state;
    restart(&(sl_server_opts){.work_threads = 1});
    hold_large_ones();
    int first = send_large();
    await(&script_held, 1);
    int gone = send_large(), stays = send_large();
    http_answer a = http_do(port, "GET", "/health", NULL, NULL);
    http_answer_free(&a);
    close(gone);
    close(first);
    usleep(100000); /* until that is noticed; if it is not, the count below is what is allowed */
    atomic_store(&script_hold, false);
    expect_answer(stays, 200, "30017");
    assert_in_range(atomic_load(&script_encoded), 2, 3);
}

static void *let_go(void *arg) {
    usleep(100000);
    atomic_store(&script_hold, false);
    return arg;
}

static void a_stop_waits_for_what_is_read(void **state) {
    (void)state;
    restart(&(sl_server_opts){.work_threads = 1});
    hold_large_ones();
    int running = send_large();
    await(&script_held, 1);
    int waiting = send_large();
    usleep(50000);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
    sl_server_free(server);
    server = NULL;
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&script_encoded), 1);
    expect_answer(running, 503, "stopping");
    close(waiting);
}

static void whole_answers_have_a_limit(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_answer_bytes = 5000, .context = 100000000});
    static const char rest[] =
        "{\"model\":\"org/m\",\"prompt\":\"x\",\"n\":3,\"ignore_eos\":true,\"max_tokens\":";
    char body[256];
    snprintf(body, sizeof body, "%s1000}", rest);
    http_answer a = http_do(port, "POST", COMPLETIONS, NULL, body);
    assert_int_equal(a.status, 200);
    assert_true(a.body.len > 3000 && a.body.len <= 5000);
    http_answer_free(&a);
    /* ended long before its end */
    uint64_t cancelled = script_cancelled(engine);
    snprintf(body, sizeof body, "%s90000000}", rest);
    check_error("POST", COMPLETIONS, NULL, body, 400, NULL, "answer_too_large");
    assert_true(script_idle(engine, 6));
    assert_int_equal(script_cancelled(engine), cancelled + 3);
    /* escapes count as they are written */
    SCRIPT_SET(engine, text, "\x01\x02\x03");
    snprintf(body, sizeof body, "%s1000}", rest);
    check_error("POST", COMPLETIONS, NULL, body, 400, NULL, "answer_too_large");
    /* a stream is nowhere whole */
    snprintf(body, sizeof body, "%s2000,\"stream\":true}", rest);
    a = http_do(port, "POST", COMPLETIONS, NULL, body);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "[DONE]"));
    http_answer_free(&a);
}

/* A stream that nothing comes of says so, others never do. */
static void quiet_streams_stay_open(void **state) {
    (void)state;
    restart(&(sl_server_opts){.keepalive_s = 1});
    SCRIPT_SET(engine, delay_us, 1000);
    SCRIPT_SET(engine, silent, true);
    int stream = http_connect(port), whole = http_connect(port);
    http_request(whole, "POST", CHAT, NULL, ASK());
    http_request(stream, "POST", CHAT, NULL, ASK(",\"stream\":true"));
    assert_true(script_busy(engine, 2));
    char came[2048] = "";
    while (!strstr(came, "keep-alive\n")) { /* the head comes first */
        ssize_t n = recv(stream, came, sizeof came - 1, MSG_PEEK);
        assert_true(n > 0);
        came[n] = '\0';
        usleep(1000);
    }
    SCRIPT_SET(engine, silent, false);
    http_answer a = http_read(stream), b = http_read(whole);
    assert_int_equal(a.status, 200);
    assert_memory_equal(a.body.data, ": keep-alive\n", 13);
    assert_non_null(strstr(a.body.data, "[DONE]"));
    assert_int_equal(b.status, 200);
    assert_int_equal(b.body.data[0], '{');
    http_answer_free(&a);
    http_answer_free(&b);
    close(stream);
    close(whole);
}

/* Reads what comes, as it is sent, until there is `text`. */
static void read_until(int fd, sl_jbuf *b, const char *text) {
    char some[4096];
    while (!b->data || !strstr(b->data, text)) {
        ssize_t n = recv(fd, some, sizeof some, 0);
        if (n <= 0) fail_msg("no %s came", text);
        sl_jbuf_put(b, some, (size_t)n);
    }
}

/* While the engine recovers, streams that have begun say so soon; one that has not waits for its
 * status. */
static void streams_tell_of_a_recovery(void **state) {
    (void)state;
    restart(&(sl_server_opts){.keepalive_s = 60});
    SCRIPT_SET(engine, delay_us, 1000);
    int begun = http_connect(port), waits = http_connect(port);
    sl_jbuf a = sl_jbuf_init();
    http_request(begun, "POST", CHAT, NULL,
                 ASK(",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":500"));
    read_until(begun, &a, "data: ");
    SCRIPT_SET(engine, silent, true);
    SCRIPT_SET(engine, recovering, true);
    http_request(waits, "POST", CHAT, NULL, ASK(",\"stream\":true"));
    read_until(begun, &a, ": recovering\n");
    SCRIPT_SET(engine, recovering, false);
    SCRIPT_SET(engine, silent, false);
    read_until(begun, &a, "[DONE]");
    http_answer b = http_read(waits);
    assert_null(strstr(a.data, "keep-alive"));
    assert_memory_equal(b.body.data, "data: ", 6);
    assert_null(strstr(b.body.data, "recovering"));
    sl_jbuf_free(&a);
    http_answer_free(&b);
    close(begun);
    close(waits);
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(the_role_counts_no_token),
        TEST(a_chat_has_one_prompt),
        TEST(hosts_may_have_brackets),
        TEST(large_bodies_leave_others_alone),
        TEST(large_bodies_that_wait_have_a_limit),
        TEST(who_leaves_is_not_read),
        TEST(a_stop_waits_for_what_is_read),
        TEST(whole_answers_have_a_limit),
        TEST(quiet_streams_stay_open),
        TEST(streams_tell_of_a_recovery),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

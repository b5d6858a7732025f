/* Answers in a journal: a server that is gone leaves them to the next one, over real sockets in
 * front of a scripted engine. */
#include "serve_http.h"

#include "base/log.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define ASK(rest)                                                                                  \
    "{\"model\":\"org/m\",\"prompt\":\"x\",\"max_tokens\":200,\"ignore_eos\":true" rest "}"
#define KEY(k)       "Idempotency-Key: " k "\r\n"
#define ME           "Authorization: Bearer me\r\n"
#define TEXT_OF(a)   (strstr((a).body.data, "\"text\":\""))
#define SLOW_US      50000 /* no answer ends before somebody says so, on any machine */
#define N_TEXT_BYTES (8 + 200)

static char folder[] = "/tmp/sluice-journal-XXXXXX", path[64], copy[80];
static sl_journal *journal;

static void open_journal(const char *at) {
    sl_err err = {0};
    sl_journal_about about;
    const sl_generation_spec gen = {0};
    assert_int_equal(sl_server_about(sl_engine_spec(engine), tok, &gen, &about, &err), SL_OK);
    if (sl_journal_open(at, &about, &journal, &err) != SL_OK) fail_msg("%s", err.msg);
}

/* What runs is left to whoever opens the journal next. */
static void stop(void) {
    sl_server_free(server);
    server = NULL;
    assert_true(script_idle(engine, 0));
    sl_journal_close(journal);
    journal = NULL;
}

static void go(sl_server_opts o, const char *at) {
    stop();
    open_journal(at);
    if (!o.responses) o.responses = 64;
    o.journal = journal;
    start(&o);
}

static int end(void **state) {
    sl_server_free(server);
    server = NULL;
    script_engine_free(engine);
    sl_journal_close(journal);
    journal = NULL;
    unlink(path);
    unlink(copy);
    (void)state;
    return 0;
}

static http_answer ask(const char *headers, const char *body) {
    return http_do(port, "POST", COMPLETIONS, headers, body);
}

/* As a killed process would leave it. */
static void take_copy(void) {
    char line[256];
    snprintf(line, sizeof line, "cp -p %s %s", path, copy);
    assert_int_equal(system(line), 0);
}

/* A stream that has some tokens, and the id of its answer. */
static int begin(const char *headers, const char *body, char id[64]) {
    char some[2048] = "";
    int fd = http_connect(port);
    size_t n = 0;
    http_request(fd, "POST", COMPLETIONS, headers, body);
    for (const char *at = NULL; !at || !strstr(at, "\n\n"); at = strstr(some, "\"id\":\"cmpl-")) {
        ssize_t got = recv(fd, some + n, sizeof some - 1 - n, 0);
        assert_true(got > 0);
        n += (size_t)got;
    }
    sscanf(strstr(some, "\"id\":\"") + 6, "%63[^\"]", id);
    return fd;
}

static http_answer fetch(const char *headers, const char *id) {
    char at[128];
    snprintf(at, sizeof at, COMPLETIONS "/%s", id);
    return http_do(port, "GET", at, headers, NULL);
}

static double metric(const char *name) {
    char line[128];
    http_answer a = http_do(port, "GET", "/metrics", NULL, NULL);
    snprintf(line, sizeof line, "\nsluice:%s{model_name=\"org/m\"} ", name);
    const char *at = strstr(a.body.data, line);
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    http_answer_free(&a);
    return value;
}

static void what_was_accepted_is_made_to_its_end(void **state) {
    (void)state;
    char keyed[64], alone[64];
    go((sl_server_opts){0}, path);
    http_answer whole = ask(ME KEY("whole"), ASK());
    assert_int_equal(whole.status, 200);
    SCRIPT_SET(engine, delay_us, SLOW_US);
    int fd[] = {begin(ME KEY("one"), ASK(",\"stream\":true,\"seed\":7"), keyed),
                begin(ME, ASK(",\"stream\":true"), alone)};
    take_copy();
    SCRIPT_SET(engine, delay_us, 0);
    close(fd[0]);
    close(fd[1]);
    go((sl_server_opts){0}, copy);
    assert_int_equal((int)metric("responses_resumed_total"), 2);
    pthread_mutex_lock(&engine->lock);
    assert_true(engine->last_sampling.seed != 0 && engine->last_max_tokens == 200);
    pthread_mutex_unlock(&engine->lock);
    assert_true(script_idle(engine, 5)); /* nobody came for them */
    http_answer again = ask(ME KEY("whole"), ASK());
    assert_string_equal(again.body.data, whole.body.data);
    const char *ids[] = {keyed, alone};
    for (int i = 0; i < 2; i++) {
        http_answer a = fetch(ME, ids[i]);
        assert_int_equal(a.status, 200);
        assert_memory_equal(TEXT_OF(a), TEXT_OF(whole), N_TEXT_BYTES);
        http_answer_free(&a);
        a = fetch("Authorization: Bearer you\r\n", ids[i]);
        assert_int_equal(a.status, 404);
        http_answer_free(&a);
    }
    check_error("POST", COMPLETIONS, ME KEY("one"), ASK(), 422, NULL, "idempotency_key_reused");
    http_answer_free(&again);
    http_answer_free(&whole);
}

/* It resumes as often as it takes; what nobody waits for any more does not. */
static void a_resumed_one_may_be_resumed(void **state) {
    (void)state;
    char id[64], gone[64];
    go((sl_server_opts){0}, path);
    http_answer want = ask(NULL, ASK());
    SCRIPT_SET(engine, delay_us, SLOW_US);
    int fd = begin(NULL, ASK(",\"stream\":true"), gone);
    close(fd); /* a client without a key that leaves ends it */
    begin(KEY("one"), ASK(",\"stream\":true"), id);
    assert_true(script_busy(engine, 1));
    for (int i = 0; i < 3; i++) {
        go((sl_server_opts){.responses_grace_s = 1}, path);
        assert_int_equal((int)metric("responses_resumed_total"), 1);
        usleep(20000);
    }
    SCRIPT_SET(engine, delay_us, 0);
    http_answer a = fetch(NULL, id);
    assert_memory_equal(TEXT_OF(a), TEXT_OF(want), N_TEXT_BYTES);
    http_answer_free(&a);
    a = fetch(NULL, gone);
    assert_int_equal(a.status, 404);
    http_answer_free(&a);
    http_answer_free(&want);
}

static size_t bytes_of_file(void) {
    struct stat is;
    assert_int_equal(stat(path, &is), 0);
    return (size_t)is.st_size;
}

/* Many answers pass, few are kept: the file is written anew beside what runs. */
static void its_size_is_bounded(void **state) {
    (void)state;
    char id[64];
    char body[1 << 16];
    go((sl_server_opts){.responses = 4}, path);
    snprintf(body, sizeof body, ASK(",\"user\":\"%060000d\""), 1);
    SCRIPT_SET(engine, delay_us, 20000);
    int fd = begin(KEY("long"), ASK(",\"stream\":true"), id);
    for (int i = 0; i < 100; i++) {
        if (i == 60) usleep(1300000); /* the keeper looks once a second */
        char ask_one[128];
        snprintf(ask_one, sizeof ask_one, KEY("key %d"), i);
        SCRIPT_SET(engine, delay_us, 0);
        http_answer a = ask(ask_one, body);
        assert_int_equal(a.status, 200);
        http_answer_free(&a);
    }
    /* 6 MB were written; twice what counts, about 0.4 MB, and 1 MB may stay (keeper.c), which looks
     * once a second */
    for (int i = 0; i < 600 && bytes_of_file() >= 3000000; i++) usleep(100000);
    assert_true(bytes_of_file() < 3000000);
    close(fd);
    go((sl_server_opts){.responses = 4}, path);
    assert_int_equal((int)metric("responses_kept"), 4);
    http_answer a = ask(KEY("key 99"), body), gone = fetch(NULL, id);
    assert_non_null(strstr(a.head, "Idempotent-Replayed: true"));
    assert_int_equal(gone.status, 404);
    http_answer_free(&a);
    http_answer_free(&gone);
}

/* Whether tokens wait for the disk or not. */
static void fill_disk(sl_sync sync) {
    char id[64];
    struct rlimit was, small;
    go((sl_server_opts){.journal_sync = sync}, path);
    http_answer want = ask(NULL, ASK());
    SCRIPT_SET(engine, delay_us, SLOW_US);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    int fd = begin(KEY("one"), ASK(",\"stream\":true"), id);
    small = was;
    small.rlim_cur = bytes_of_file() + 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 1000 && metric("journal_broken") != 1; i++) usleep(2000);
    check_error("POST", COMPLETIONS, NULL, ASK(), 503, NULL, "journal_unwritable");
    SCRIPT_SET(engine, delay_us, 0);
    http_answer a = ask(KEY("one"), ASK(",\"stream\":true")); /* what ran goes on */
    assert_true(a.whole && strstr(a.body.data, "[DONE]"));
    http_answer_free(&a);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    for (int i = 0; i < 1000 && metric("journal_broken") != 0; i++) usleep(5000);
    SCRIPT_SET(engine, delay_us, 0);
    a = ask(NULL, ASK());
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    close(fd);
    go((sl_server_opts){0}, path);
    a = fetch(NULL, id);
    assert_memory_equal(TEXT_OF(a), TEXT_OF(want), N_TEXT_BYTES);
    http_answer_free(&a);
    http_answer_free(&want);
}

static void a_full_disk_refuses_what_is_new(void **state) {
    (void)state;
    fill_disk(SL_SYNC_NEVER);
}

static void a_full_disk_ends_no_wait_for_it(void **state) {
    (void)state;
    fill_disk(SL_SYNC_EACH);
}

static void each_token_waits_for_the_disk(void **state) {
    (void)state;
    go((sl_server_opts){.journal_sync = SL_SYNC_EACH}, path);
    http_answer want = ask(NULL, ASK()), a = ask(KEY("one"), ASK(",\"stream\":true,\"n\":3"));
    assert_true(a.whole && strstr(a.body.data, "[DONE]"));
    http_answer_free(&a);
    go((sl_server_opts){.journal_sync = SL_SYNC_SECOND}, path);
    a = ask(KEY("one"), ASK(",\"stream\":true,\"n\":3"));
    assert_true(a.whole && strstr(a.head, "Idempotent-Replayed: true"));
    http_answer_free(&a);
    http_answer_free(&want);
}

static void what_cannot_go_on_is_forgotten(void **state) {
    (void)state;
    char id[64];
    sl_err err = {0};
    sl_server_opts o = {.engine = engine, .tokenizer = tok, .served_model_name = "org/m"};
    go((sl_server_opts){0}, path);
    SCRIPT_SET(engine, delay_us, SLOW_US);
    close(begin(KEY("one"), ASK(",\"stream\":true"), id));
    SCRIPT_SET(engine, refuse, SL_ERR_LIMIT);
    go((sl_server_opts){0}, path);
    SCRIPT_SET(engine, refuse, SL_OK);
    assert_int_equal((int)metric("responses_resumed_total"), 0);
    http_answer a = fetch(NULL, id);
    assert_int_equal(a.status, 404);
    http_answer_free(&a);
    stop();
    open_journal(path);
    o.journal = journal;
    assert_int_equal(sl_server_create(&o, &server, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "--responses"));
    server = NULL;
}

#define KEPT(f) cmocka_unit_test_setup_teardown(f, set_up, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        KEPT(what_was_accepted_is_made_to_its_end),
        KEPT(a_resumed_one_may_be_resumed),
        KEPT(its_size_is_bounded),
        KEPT(a_full_disk_refuses_what_is_new),
        KEPT(a_full_disk_ends_no_wait_for_it),
        KEPT(each_token_waits_for_the_disk),
        KEPT(what_cannot_go_on_is_forgotten),
    };
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/journal", folder);
    snprintf(copy, sizeof copy, "%s/copy", folder);
    tok = script_tokenizer();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    rmdir(folder);
    return failed;
}

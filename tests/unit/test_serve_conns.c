/* Who may be connected to the server, for how long, and what it does when there is no more room. */
#include "serve_http.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if !defined(__SANITIZE_THREAD__)
/* Slow in the thread of the test, as on a machine where others want the core: libmicrohttpd's own
 * way to stop listening aborts the process when its threads remove the socket meanwhile. */
static atomic_bool slow_removal;
static pthread_t slow_thread;
int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event) {
    if (op == EPOLL_CTL_DEL && atomic_load(&slow_removal) &&
        pthread_equal(pthread_self(), slow_thread))
        usleep(3000);
    return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}
#endif

static atomic_bool connecting;

static void *connect_often(void *arg) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*(uint16_t *)arg)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (atomic_load(&connecting)) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) usleep(1000);
        close(fd);
    }
    return NULL;
}

static void a_stop_beside_new_clients_is_clean(void **state) {
    (void)state;
#if !defined(__SANITIZE_THREAD__)
    slow_thread = pthread_self();
    atomic_store(&slow_removal, true);
#endif
    for (int i = 0; i < 8; i++) {
        pthread_t t[2];
        atomic_store(&connecting, true);
        for (int k = 0; k < 2; k++)
            assert_int_equal(pthread_create(&t[k], NULL, connect_often, &port), 0);
        usleep(3000);
        sl_server_free(server);
        server = NULL;
        atomic_store(&connecting, false);
        for (int k = 0; k < 2; k++) pthread_join(t[k], NULL);
        start(NULL);
    }
#if !defined(__SANITIZE_THREAD__)
    atomic_store(&slow_removal, false);
#endif
}

static void check_get(const char *path, int status) {
    http_answer a = http_do(port, "GET", path, NULL, NULL);
    assert_int_equal(a.status, status);
    http_answer_free(&a);
}

/* Whether the server has closed this connection, after `ms` at most. */
static bool is_closed(int fd, int ms) {
    char bytes[512];
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) return n == 0 || errno == ECONNRESET;
    }
}

/* More connections than the server takes, which ask nothing, or not all of it. */
static void idle_clients_give_way(void **state) {
    (void)state;
    enum { N = 200 };
    int fd[N];
    restart(&(sl_server_opts){.max_connections = 8});
    SCRIPT_SET(engine, silent, true);
    int running = http_connect(port);
    http_request(running, "POST", COMPLETIONS, NULL, "{\"model\":\"org/m\",\"prompt\":\"x\"}");
    assert_true(script_busy(engine, 1));
    for (int i = 0; i < N; i++) {
        fd[i] = http_connect(port);
        if (i % 4 == 1) http_send(fd[i], "GET /health HT", 14);
        if (i % 4 == 2) http_request(fd[i], "GET", "/health", NULL, NULL);
        if (i % 4 == 3) http_send(fd[i], "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n", 41);
    }
    for (int i = 0; i < 5; i++) {
        check_get("/health", 200);
        check_get("/metrics", 200);
    }
    assert_true(script_busy(engine, 1)); /* who waits for an answer stays */
    SCRIPT_SET(engine, silent, false);
    http_answer a = http_read(running);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    /* idle ones are not counted among those with requests */
    a = http_do(port, "POST", COMPLETIONS, NULL, "{\"model\":\"org/m\",\"prompt\":\"x\"}");
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    assert_true(is_closed(fd[0], 5000)); /* the oldest */
    for (int i = 0; i < N; i++) close(fd[i]);
    close(running);
}

static int connect_from(const char *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)}, from = to;
    struct timeval limit = {.tv_sec = 10};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    from.sin_port = 0;
    inet_pton(AF_INET, address, &from.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Who has many of them loses his own. */
static void one_address_does_not_push_out_another(void **state) {
    (void)state;
    enum { N = 120 };
    int fd[N];
    restart(&(sl_server_opts){.max_connections = 8});
    int other = connect_from("127.0.0.2");
    http_request(other, "GET", "/health", NULL, NULL);
    http_answer a = http_read(other);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    for (int i = 0; i < N; i++) fd[i] = http_connect(port);
    check_get("/health", 200);
    http_request(other, "GET", "/health", NULL, NULL);
    a = http_read(other);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    for (int i = 0; i < N; i++) close(fd[i]);
    close(other);
}

/* One byte now and then is no reason to wait longer. */
static void slow_heads_are_closed(void **state) {
    (void)state;
    restart(&(sl_server_opts){.idle_timeout_s = 1});
    int fd = http_connect(port);
    bool closed = false;
    http_send(fd, "GET /health HTTP/1.1\r\nX: ", 25);
    for (int i = 0; i < 100 && !closed; i++) {
        http_send(fd, "y", 1);
        closed = is_closed(fd, 200);
    }
    assert_true(closed);
    close(fd);
}

/* Part of a body: `n` of 3900 bytes. */
static int begin_body(int fd, size_t n) {
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               "Content-Length: 3900\r\n\r\n";
    static char part[3900];
    memset(part, ' ', sizeof part);
    http_send(fd, head, sizeof head - 1);
    for (size_t at = 0; at < n; at += 500) { /* libmicrohttpd may leave some unread */
        usleep(1000);
        http_send(fd, part, SL_MIN(n - at, 500u));
    }
    return fd;
}

static void check_dropped(int fd, int status, const char *code) {
    http_answer a = http_read(fd);
    assert_int_equal(a.status, status);
    assert_true(a.whole);
    assert_non_null(strstr(a.body.data, code));
    http_answer_free(&a);
    assert_true(is_closed(fd, 10000));
    close(fd);
}

static bool has_answer(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

/* Whole requests are answered, however much the bodies on `a` and `b` hold; one of these is told
 * so, once they have arrived. */
static void gives_way(const char *address, const char *body, int a, int b) {
    for (int tries = 0; tries < 5000 && !has_answer(a) && !has_answer(b); tries++) {
        int fd = connect_from(address);
        http_request(fd, "POST", COMPLETIONS, NULL, body);
        http_answer done = http_read(fd);
        assert_int_equal(done.status, 200);
        http_answer_free(&done);
        close(fd);
    }
    int given_up = has_answer(a) ? a : b;
    check_dropped(given_up, 503, "too_many_bytes");
    close(given_up == a ? b : a);
}

/* Bodies that never end hold what all may hold together: who sends less, or holds less at another
 * address, goes on. */
static void large_unfinished_bodies_give_way(void **state) {
    (void)state;
    restart(&(sl_server_opts){.max_body_bytes = 4000, .max_held_bytes = 6000});
    char small[601], large[2901];
    snprintf(small, sizeof small, "{\"model\":\"org/m\",\"prompt\":\"x\"%560s}", "");
    snprintf(large, sizeof large, "{\"model\":\"org/m\",\"prompt\":\"x\"%2860s}", "");
    for (int i = 0; i < 20; i++) {
        int a = begin_body(http_connect(port), 3400), b = begin_body(http_connect(port), 2300);
        gives_way("127.0.0.1", small, a, b);
        a = begin_body(http_connect(port), 3400);
        b = begin_body(http_connect(port), 2300);
        gives_way("127.0.0.2", large, a, b);
    }
}

static void stalled_bodies_are_given_up(void **state) {
    (void)state;
    restart(&(sl_server_opts){.stall_timeout_s = 1});
    int fd = begin_body(http_connect(port), 3500);
    for (int i = 0; i < 200 && recv(fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) < 0; i++) {
        http_send(fd, " ", 1);
        usleep(100000);
    }
    check_dropped(fd, 408, "request_timeout");
    check_get("/health", 200);
}

/* This process stands still before it first looks at its clients. The rest of the body comes
 * meanwhile, or soon after: who sends it was not slow. */
static void a_server_that_stood_still_reads_what_comes(void **state) {
    (void)state;
    char body[401];
    snprintf(body, sizeof body, "{\"model\":\"org/m\",\"prompt\":\"x\"%370s}", "");
    for (int after = 0; after < 2; after++) {
        char head[200];
        restart(&(sl_server_opts){.stall_timeout_s = 2});
        const int fd = http_connect(port);
        const size_t n = strlen(body);
        snprintf(head, sizeof head,
                 "POST " COMPLETIONS
                 " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                 n);
        http_send(fd, head, strlen(head));
        http_send(fd, body, 100);
        usleep(100000);
        const pid_t parent = getpid(), child = fork();
        if (child == 0) {
            kill(parent, SIGSTOP);
            usleep(3500000);
            if (after) kill(parent, SIGCONT);
            usleep(100000);
            if (send(fd, body + 100, n - 100, MSG_NOSIGNAL) < 0) _exit(1);
            usleep(100000);
            if (!after) kill(parent, SIGCONT);
            _exit(0);
        }
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, 0);
        char answer[64] = {0};
        assert_true(recv(fd, answer, 12, MSG_WAITALL) == 12);
        assert_string_equal(answer, "HTTP/1.1 200");
        close(fd);
    }
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(a_stop_beside_new_clients_is_clean),         TEST(idle_clients_give_way),
        TEST(one_address_does_not_push_out_another),      TEST(slow_heads_are_closed),
        TEST(large_unfinished_bodies_give_way),           TEST(stalled_bodies_are_given_up),
        TEST(a_server_that_stood_still_reads_what_comes),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

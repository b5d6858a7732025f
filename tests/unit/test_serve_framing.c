/* Requests that another reader may take for one request more or less: each is refused, or at least
 * the last on its connection. */
#include "serve_http.h"

#define HOST   "Host: localhost\r\n"
#define BODY   "{\"prompt\":\"a\"}"
#define HIDDEN "GET /version HTTP/1.1\r\n" HOST "\r\n"
#define POST   "POST /tokenize HTTP/1.1\r\n" HOST

typedef struct raw {
    int status; /* 0: closed without an answer */
    const char *text;
    size_t n;
} raw;

#define RAW(status, text)                                                                          \
    { status, text, sizeof text - 1 }

/* Sends all of it, reads until the server closes; the caller frees *out. */
static void exchange(const raw *r, sl_jbuf *out) {
    char bytes[4096];
    int fd = http_connect(port);
    ssize_t n;
    *out = sl_jbuf_init();
    sl_jbuf_put(out, "", 0);
    http_send(fd, r->text, r->n);
    http_send(fd, HIDDEN, sizeof HIDDEN - 1);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) sl_jbuf_put(out, bytes, (size_t)n);
    if (n < 0 && errno != ECONNRESET) fail_msg("not closed after: %s\n%s", r->text, out->data);
    close(fd);
}

static void check_alone(const raw *r) {
    sl_jbuf got;
    int status = 0, answers = 0;
    exchange(r, &got);
    sscanf(got.data, "HTTP/1.1 %d", &status);
    for (const char *at = got.data; (at = strstr(at, "HTTP/1.1 ")); at++)
        answers += at[9] >= '0' && at[9] <= '9';
    /* libmicrohttpd refuses a Content-Length itself, and writes the head of that answer twice */
    if (answers == 2 && strstr(got.data, "<b>Content-Length</b>")) answers = 1;
    if (status != r->status || answers != (r->status != 0) || strstr(got.data, "\"version\""))
        fail_msg("%d answers, %d instead of %d: %s\n%s", answers, status, r->status, r->text,
                 got.data);
    if (status && !strcasestr(got.data, "\r\nConnection: close\r\n"))
        fail_msg("does not say that it closes: %s\n%s", r->text, got.data);
    sl_jbuf_free(&got);
}

static void ambiguous_requests_are_refused(void **state) {
    (void)state;
    static const raw cases[] = {
        /* how long the body is */
        RAW(400, POST "Content-Length: 14\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 14\r\nContent-Length: 0\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 0\r\ncontent-length: 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 14, 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: +14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: -14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 0x0e\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 14 \r\n\r\n" BODY),
        RAW(400, POST "Content-Length: \r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 1e1\r\n\r\n" BODY),
        RAW(413, POST "Content-Length: 99999999999999999999999\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n" BODY
                      "\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\ne\r\n" BODY
                      "\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"
                      "0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: identity\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Transfer-Encoding: xchunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Transfer-Encoding: chunked \r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
        RAW(400, POST "Transfer-Encoding : chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Transfer-Encoding\t: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST " Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Transfer\x0b-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length : 14\r\n\r\n" BODY),
        RAW(400, "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n"),
        /* where a line ends */
        RAW(400, "GET /health HTTP/1.1\nHost: localhost\n\n"),
        RAW(400, "GET /health HTTP/1.1\n" HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "X: y\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "\n"),
        RAW(400, POST "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X: y\rTransfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X: y\r\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X: y\r\n folded\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X: y\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length:\r\n 14\r\n\r\n" BODY),
        RAW(400, "GET /health HTTP/1.1\r\n X: y\r\n" HOST "\r\n"),
        /* bytes that end a line, or a word, for some */
        RAW(400, POST "X: a\0b\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X\0: b\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "X: a\0\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, POST "Content-Length: 14\0\r\n\r\n" BODY),
        RAW(400, POST "Transfer-Encoding: chunked\0\r\nContent-Length: 14\r\n\r\n" BODY),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "X: \x01\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "X y\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST ": y\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "X(: y\r\n\r\n"),
        /* who is asked */
        RAW(400, "GET /health HTTP/1.1\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\nX-Host: localhost\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\n" HOST "Host: other\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.0\r\n" HOST HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\nHost: localhost, other\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\nHost: me@localhost\r\n\r\n"),
        RAW(400, "GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n"),
        /* the first line */
        RAW(400, "GET  /health HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health  HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.1 \r\n" HOST "\r\n"),
        RAW(400, "GET /health a HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health?a b HTTP/1.1\r\n" HOST "\r\n"),
        RAW(0, "GET\t/health\tHTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health\x0bHTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health%00x HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health\x7f HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.2\r\n" HOST "\r\n"),
        RAW(400, "GET /health http/1.1\r\n" HOST "\r\n"),
        RAW(400, "GET /health HTTP/1.1x\r\n" HOST "\r\n"),
        RAW(505, "GET /health HTTP/2.0\r\n" HOST "\r\n"),
        RAW(400, "GET /health\r\n" HOST "\r\n"),
        RAW(400, "G(T /health HTTP/1.1\r\n" HOST "\r\n"),
        RAW(400, "G\0T /health HTTP/1.1\r\n" HOST "\r\n"),
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) check_alone(&cases[i]);
}

/* libmicrohttpd reads these without a word about how they were written. */
static void chunked_requests_are_the_last(void **state) {
    (void)state;
    static const raw cases[] = {
#define CHUNKED(status, body) RAW(status, POST "Transfer-Encoding: chunked\r\n\r\n" body)
        CHUNKED(200, "e\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(200, "E;x=y\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(200, "e\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(200, "e\r\n" BODY "\n0\r\n\r\n"),
        CHUNKED(200, "e;\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(200, "e\r\n" BODY "\r\n0\r\nX: y\r\n\r\n"),
        CHUNKED(400, "0x0e\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "+e\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "-1\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, " e\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "e \r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, ";x\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "g\r\n" BODY "\r\n0\r\n\r\n"),
        CHUNKED(400, "e\r\n" BODY "x\r\n0\r\n\r\n"),
        CHUNKED(400, "e\r\n" BODY "\r\r\n0\r\n\r\n"),
        CHUNKED(413, "fffffffffffffffff\r\n" BODY "\r\n0\r\n\r\n"),
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) check_alone(&cases[i]);
}

/* The rules of the table refuse nothing that clients do send. */
static void plain_requests_are_kept(void **state) {
    (void)state;
    static const raw cases[] = {
        RAW(200, "GET /health HTTP/1.1\r\n" HOST "\r\n"),
        RAW(200, "\r\nGET /health HTTP/1.1\r\n" HOST "\r\n"),
        RAW(200, "GET /health?a=b&c HTTP/1.1\r\nhost:localhost\r\n\r\n"),
        RAW(200, "GET /he%61lth HTTP/1.1\r\nX:\r\nY: \r\nZ: a \t b \r\n" HOST "\r\n"),
        RAW(200, "GET /health HTTP/1.1\r\nHost: \t localhost\r\nCookie: a=b; c=d\r\n\r\n"),
        RAW(200, "GET /health HTTP/1.1\r\n" HOST "X: \xc3\xa9\r\nX: y\r\n\r\n"),
        RAW(200, POST "Content-Length: 14\r\n\r\n" BODY),
        RAW(200, POST "CONTENT-LENGTH:014\r\n\r\n" BODY),
        RAW(200, "GET /health HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n"),
        RAW(404, "GET /v1/models/\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n"),
        RAW(200, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    };
    int fd = http_connect(port);
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        http_send(fd, cases[i].text, cases[i].n);
        http_answer a = http_read(fd);
        if (a.status != cases[i].status) fail_msg("%d: %s\n", a.status, cases[i].text);
        http_answer_free(&a);
    }
    /* all at once, and each byte alone */
    for (size_t i = 0; i + 1 < SL_LEN(cases); i++) http_send(fd, cases[i].text, cases[i].n);
    for (size_t i = 0; i + 1 < SL_LEN(cases); i++)
        for (size_t at = 0; at < cases[i].n; at++) http_send(fd, cases[i].text + at, 1);
    for (size_t i = 0; i < 2 * (SL_LEN(cases) - 1); i++) {
        http_answer a = http_read(fd);
        const raw *r = &cases[i % (SL_LEN(cases) - 1)];
        if (a.status != r->status) fail_msg("%d: %s\n", a.status, r->text);
        http_answer_free(&a);
    }
    /* a head that libmicrohttpd makes room for as it arrives */
    char line[1100];
    memset(line, 'a', sizeof line);
    memcpy(line, "X: ", 3);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    http_send(fd, "GET /health HTTP/1.1\r\n" HOST, 39);
    for (int i = 0; i < 16; i++) http_send(fd, line, sizeof line);
    http_send(fd, "\r\n", 2);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    http_answer_free(&a);
    close(fd);
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(ambiguous_requests_are_refused),
        TEST(chunked_requests_are_the_last),
        TEST(plain_requests_are_kept),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}

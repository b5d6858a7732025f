/* The smallest HTTP client: one request to a server of ours, in the clear or over TLS, with a
 * deadline. */
#include "cmd.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_ANSWER ((size_t)16 << 20)
#define FIRST_ROOM ((size_t)16 << 10)

typedef struct place {
    char host[256], port[8], authority[300];
    bool secure;             /* https */
    struct sockaddr_un file; /* sun_path not empty: there */
} place;

/* unix:PATH */
static sl_status parse_file(const char *path, place *out, sl_err *err) {
    if (path[0] != '/' || strlen(path) >= sizeof out->file.sun_path)
        return sl_fail(err, SL_ERR_ARG,
                       "--url: 'unix:%.100s' is not unix:/PATH of at most %zu bytes", path,
                       sizeof out->file.sun_path - 1);
    *out = (place){.authority = "localhost", .file.sun_family = AF_UNIX};
    memcpy(out->file.sun_path, path, strlen(path));
    return SL_OK;
}

static sl_status parse_url(const char *url, place *out, sl_err *err) {
    static const char clear[] = "http://", secure[] = "https://";
    if (strncmp(url, "unix:", 5) == 0) return parse_file(url + 5, out, err);
    *out = (place){.secure = strncasecmp(url, secure, strlen(secure)) == 0};
    if (!out->secure && strncasecmp(url, clear, strlen(clear)) != 0)
        return sl_fail(err, SL_ERR_ARG,
                       "--url: '%.100s' is not http://HOST:PORT or https://HOST:PORT", url);
    const char *at = url + strlen(out->secure ? secure : clear);
    size_t n = strcspn(at, "/");
    bool bracket = *at == '[';
    const char *close = bracket ? memchr(at, ']', n) : NULL, *end = at + n;
    const char *colon = bracket ? (close ? close + 1 : NULL) : memchr(at, ':', n);
    if (n == 0 || n >= sizeof out->authority || (bracket && !close) || (at[n] && at[n + 1]))
        return sl_fail(err, SL_ERR_ARG, "--url: '%.100s' is not http%s://HOST:PORT", url,
                       out->secure ? "s" : "");
    const char *host_end = bracket ? close : colon ? colon : end;
    bool has_port = colon && colon < end;
    snprintf(out->authority, sizeof out->authority, "%.*s", (int)n, at);
    snprintf(out->host, sizeof out->host, "%.*s", (int)(host_end - at - bracket), at + bracket);
    if (has_port)
        snprintf(out->port, sizeof out->port, "%.*s", (int)SL_MIN(end - colon - 1, 7), colon + 1);
    else
        snprintf(out->port, sizeof out->port, "%s", out->secure ? "443" : "80");
    return SL_OK;
}

/* Until the descriptor is ready or the time is over. */
static sl_status await(int fd, short events, uint64_t until_ns, const char *url, sl_err *err) {
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        uint64_t now = sl_now_ns();
        int ms = now < until_ns ? (int)SL_MIN((until_ns - now) / 1000000 + 1, 60000u) : 0;
        int rc = poll(&p, 1, ms);
        if (rc > 0) return SL_OK;
        if (rc < 0 && errno != EINTR)
            return sl_fail(err, SL_ERR_IO, "%s: %s", url, strerror(errno));
        if (sl_now_ns() >= until_ns)
            return sl_fail(err, SL_ERR_TIMEOUT, "%s does not answer in time", url);
    }
}

static sl_status try_connect(const struct addrinfo *a, uint64_t until_ns, const char *url, int *fd,
                             sl_err *err) {
    int why = 0;
    socklen_t n = sizeof why;
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", url, strerror(errno));
    sl_status st = SL_OK;
    if (connect(*fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) why = errno;
        if (!why) st = await(*fd, POLLOUT, until_ns, url, err);
        if (st == SL_OK && !why && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0)
            why = errno;
    }
    if (st == SL_OK && why) st = sl_fail(err, SL_ERR_IO, "%s: %s", url, strerror(why));
    if (st != SL_OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

static sl_status open_socket(const place *p, uint64_t until_ns, const char *url, int *fd,
                             sl_err *err) {
    struct addrinfo *all = NULL;
    const struct addrinfo there = {.ai_family = AF_UNIX,
                                   .ai_addr = (struct sockaddr *)(uintptr_t)&p->file,
                                   .ai_addrlen = sizeof p->file};
    if (p->file.sun_path[0]) return try_connect(&there, until_ns, url, fd, err);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(p->host, p->port, &hints, &all);
    if (rc != 0) return sl_fail(err, SL_ERR_ARG, "--url: %s: %s", url, gai_strerror(rc));
    sl_status st = sl_fail(err, SL_ERR_IO, "%s: no address", url);
    for (const struct addrinfo *a = all; a && st != SL_OK; a = a->ai_next)
        st = try_connect(a, until_ns, url, fd, err);
    freeaddrinfo(all);
    return st;
}

/* ---- bytes, in the clear or over TLS ---- */

typedef struct line {
    int fd;
    sl_tls_session *tls; /* NULL: in the clear */
    uint64_t until_ns;
    const char *url;
} line;

static sl_status secure(line *l, const char *host, const char *cacert, sl_err *err) {
    const char *trusted = cacert[0] ? cacert : sl_options_hub(SL_SSL_CERT_FILE);
    short wants = POLLIN;
    sl_status st = sl_tls_session_open(l->fd, host, trusted, &l->tls, err);
    if (st == SL_ERR_ARG && trusted)
        return sl_err_prefix(err, cacert[0] ? "--cacert" : "SSL_CERT_FILE");
    if (st != SL_OK) return st;
    while ((st = sl_tls_session_shake(l->tls, &wants, err)) == SL_ERR_AGAIN)
        if ((st = await(l->fd, wants, l->until_ns, l->url, err)) != SL_OK) return st;
    return st == SL_OK ? st : sl_err_prefix(err, "%s", l->url);
}

/* *n bytes, and how many went, which may be none. */
static sl_status send_some(line *l, const char *text, size_t *n, sl_err *err) {
    short wants = POLLOUT;
    sl_status st = SL_OK;
    if (l->tls) {
        st = sl_tls_session_send(l->tls, text, n, &wants, err);
        if (st != SL_OK && st != SL_ERR_AGAIN) return sl_err_prefix(err, "%s", l->url);
    } else {
        const ssize_t sent = send(l->fd, text, *n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return sl_fail(err, SL_ERR_IO, "%s: %s", l->url, strerror(errno));
        *n = sent > 0 ? (size_t)sent : 0;
    }
    return *n > 0 ? SL_OK : await(l->fd, wants, l->until_ns, l->url, err);
}

/* The same of what came; *end: no more will. */
static sl_status receive_some(line *l, char *out, size_t *n, bool *end, sl_err *err) {
    short wants = POLLIN;
    sl_status st = SL_OK;
    if (l->tls) {
        st = sl_tls_session_receive(l->tls, out, n, &wants, err);
        if (st != SL_OK && st != SL_ERR_AGAIN) return sl_err_prefix(err, "%s", l->url);
        *end = st == SL_OK && *n == 0;
    } else {
        const ssize_t got = recv(l->fd, out, *n, 0);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return sl_fail(err, SL_ERR_IO, "%s: %s", l->url, strerror(errno));
        *n = got > 0 ? (size_t)got : 0;
        *end = got == 0;
    }
    return *n > 0 || *end ? SL_OK : await(l->fd, wants, l->until_ns, l->url, err);
}

static sl_status send_all(line *l, const char *text, size_t n, sl_err *err) {
    sl_status st = SL_OK;
    for (size_t went; st == SL_OK && n > 0; text += went, n -= went) {
        went = n;
        st = send_some(l, text, &went, err);
    }
    return st;
}

/* To the end of the connection: the request asks for that. */
static sl_status receive_all(line *l, char **out, size_t *len, sl_err *err) {
    size_t cap = 0;
    bool end = false;
    sl_status st = SL_OK;
    *len = 0;
    while (st == SL_OK && !end) {
        if (cap - *len < 2) {
            size_t more = cap ? 2 * cap : FIRST_ROOM;
            if (more > MAX_ANSWER)
                return sl_fail(err, SL_ERR_LIMIT, "%s: more than %zu bytes", l->url, MAX_ANSWER);
            char *bigger = sl_grow(*out, cap, more, 1);
            if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "answer of %zu bytes", more);
            *out = bigger;
            cap = more;
        }
        size_t got = cap - *len - 1;
        st = receive_some(l, *out + *len, &got, &end, err);
        *len += st == SL_OK ? got : 0;
        (*out)[*len] = '\0';
    }
    return st;
}

/* "HTTP/1.1 200 OK", headers, the body as it is: chunks are not asked for. */
static sl_status split_answer(char *text, const char *url, sl_http_answer *out, sl_err *err) {
    char *body = text ? strstr(text, "\r\n\r\n") : NULL, *end;
    bool http = body && strncmp(text, "HTTP/1.", 7) == 0 && text[8] == ' ';
    unsigned long status = http ? strtoul(text + 9, &end, 10) : 0;
    if (status < 100 || status > 599)
        return sl_fail(err, SL_ERR_FORMAT, "%s: that is no HTTP answer", url);
    out->status = (unsigned)status;
    out->body = sl_strdup(body + 4);
    return out->body ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "answer");
}

sl_status sl_http_ask(const sl_http_server *to, const char *path, const char *body,
                      double timeout_s, sl_http_answer *out, sl_err *err) {
    place p;
    char *answer = NULL, head[1024];
    size_t len = 0;
    line l = {.fd = -1, .url = to->url, .until_ns = sl_now_ns() + (uint64_t)(1e9 * timeout_s)};
    *out = (sl_http_answer){0};
    sl_status st = parse_url(to->url, &p, err);
    if (st == SL_OK && to->cacert[0] && !p.secure)
        st = sl_fail(err, SL_ERR_ARG, "--cacert: %.100s has no certificate", to->url);
    if (st == SL_OK) st = open_socket(&p, l.until_ns, to->url, &l.fd, err);
    if (st != SL_OK) return st;
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n",
                     body ? "POST" : "GET", path, p.authority, to->key, body ? strlen(body) : 0);
    SL_ASSERT(n > 0 && (size_t)n < sizeof head);
    if (p.secure) st = secure(&l, p.host, to->cacert, err);
    if (st == SL_OK) st = send_all(&l, head, (size_t)n, err);
    if (st == SL_OK && body) st = send_all(&l, body, strlen(body), err);
    if (st == SL_OK) st = receive_all(&l, &answer, &len, err);
    if (st == SL_OK) st = split_answer(answer, to->url, out, err);
    sl_free(answer);
    sl_tls_session_free(l.tls);
    close(l.fd);
    return st;
}

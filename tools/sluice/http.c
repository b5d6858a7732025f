/* The smallest HTTP client: one request to a server of ours, with a deadline. */
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
    static const char scheme[] = "http://";
    const char *at = url + strlen(scheme);
    if (strncmp(url, "unix:", 5) == 0) return parse_file(url + 5, out, err);
    *out = (place){0};
    if (strncasecmp(url, "https://", 8) == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "--url: %.100s: https is not spoken here; ask on the server's machine, or "
                       "through a tunnel",
                       url);
    if (strncasecmp(url, scheme, strlen(scheme)) != 0)
        return sl_fail(err, SL_ERR_ARG, "--url: '%.100s' is not http://HOST:PORT", url);
    size_t n = strcspn(at, "/");
    bool bracket = *at == '[';
    const char *close = bracket ? memchr(at, ']', n) : NULL, *end = at + n;
    const char *colon = bracket ? (close ? close + 1 : NULL) : memchr(at, ':', n);
    if (n == 0 || n >= sizeof out->authority || (bracket && !close) || (at[n] && at[n + 1]))
        return sl_fail(err, SL_ERR_ARG, "--url: '%.100s' is not http://HOST:PORT", url);
    const char *host_end = bracket ? close : colon ? colon : end;
    bool has_port = colon && colon < end;
    snprintf(out->authority, sizeof out->authority, "%.*s", (int)n, at);
    snprintf(out->host, sizeof out->host, "%.*s", (int)(host_end - at - bracket), at + bracket);
    snprintf(out->port, sizeof out->port, "%.*s", has_port ? (int)SL_MIN(end - colon - 1, 7) : 2,
             has_port ? colon + 1 : "80");
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

static sl_status send_all(int fd, const char *text, size_t n, uint64_t until_ns, const char *url,
                          sl_err *err) {
    sl_status st = SL_OK;
    while (st == SL_OK && n > 0) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return sl_fail(err, SL_ERR_IO, "%s: %s", url, strerror(errno));
        if (sent < 0) {
            st = await(fd, POLLOUT, until_ns, url, err);
            continue;
        }
        text += sent;
        n -= (size_t)sent;
    }
    return st;
}

/* To the end of the connection: the request asks for that. */
static sl_status receive_all(int fd, uint64_t until_ns, const char *url, char **out, size_t *len,
                             sl_err *err) {
    size_t cap = 0;
    *len = 0;
    for (;;) {
        if (cap - *len < 2) {
            size_t more = cap ? 2 * cap : FIRST_ROOM;
            if (more > MAX_ANSWER)
                return sl_fail(err, SL_ERR_LIMIT, "%s: more than %zu bytes", url, MAX_ANSWER);
            char *bigger = sl_grow(*out, cap, more, 1);
            if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "answer of %zu bytes", more);
            *out = bigger;
            cap = more;
        }
        ssize_t got = recv(fd, *out + *len, cap - *len - 1, 0);
        if (got == 0) return SL_OK;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return sl_fail(err, SL_ERR_IO, "%s: %s", url, strerror(errno));
        sl_status st = got < 0 ? await(fd, POLLIN, until_ns, url, err) : SL_OK;
        if (st != SL_OK) return st;
        if (got > 0) *len += (size_t)got;
        (*out)[*len] = '\0';
    }
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

sl_status sl_http_ask(const char *url, const char *path, const char *key, const char *body,
                      double timeout_s, sl_http_answer *out, sl_err *err) {
    place p;
    char *answer = NULL, head[1024];
    size_t len = 0;
    int fd = -1;
    uint64_t until_ns = sl_now_ns() + (uint64_t)(1e9 * timeout_s);
    *out = (sl_http_answer){0};
    sl_status st = parse_url(url, &p, err);
    if (st == SL_OK) st = open_socket(&p, until_ns, url, &fd, err);
    if (st != SL_OK) return st;
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n",
                     body ? "POST" : "GET", path, p.authority, key, body ? strlen(body) : 0);
    SL_ASSERT(n > 0 && (size_t)n < sizeof head);
    st = send_all(fd, head, (size_t)n, until_ns, url, err);
    if (st == SL_OK && body) st = send_all(fd, body, strlen(body), until_ns, url, err);
    if (st == SL_OK) st = receive_all(fd, until_ns, url, &answer, &len, err);
    if (st == SL_OK) st = split_answer(answer, url, out, err);
    sl_free(answer);
    close(fd);
    return st;
}

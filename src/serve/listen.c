/* Where the server listens: at an address, or at a file of this machine (unix:PATH). */
#include "serve/server_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define UNSENT_BYTES                                                                               \
    (128 << 10)      /* a connection inherits it: what the kernel holds for a slow client */
#define BACKLOG 4096 /* connections that wait to be accepted, if the system allows */
#define UNIX    "unix:"

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static sl_status resolve_host(const sl_server *s, const char *host, struct addrinfo **out,
                              sl_err *err) {
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    snprintf(service, sizeof service, "%u", s->o.port);
    int rc = getaddrinfo(host, service, &hints, out);
    if (rc != 0)
        return sl_fail(err, SL_ERR_ARG, "host: \"%s\" is not an address (%s)", host,
                       gai_strerror(rc));
    if (is_loopback((*out)->ai_addr)) return SL_OK;
    if (s->keyed && !s->o.tls)
        sl_log(SL_LOG_WARN, "serve",
               "host: %s can be reached from other machines, and keys and texts come there in the "
               "clear: --tls-cert and --tls-key, or a proxy or a tunnel with TLS",
               host);
    if (s->keyed) return SL_OK;
    freeaddrinfo(*out);
    *out = NULL;
    return sl_fail(err, SL_ERR_ARG,
                   "host: %s can be reached from other machines; give an API key, or listen on "
                   "127.0.0.1",
                   host);
}

static sl_status read_port(sl_server *s, bool v6, const char *host, sl_err *err) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char url[128];
    if (getsockname(s->listen_fd, (struct sockaddr *)&a, &n) != 0)
        return sl_fail(err, SL_ERR_IO, "getsockname: %s", strerror(errno));
    s->port =
        ntohs(v6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
    snprintf(url, sizeof url, v6 ? "http%s://[%s]:%u" : "http%s://%s:%u", s->o.tls ? "s" : "", host,
             s->port);
    s->url = sl_strdup(url);
    return s->url ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
}

static sl_status listen_at(sl_server *s, const char *host, sl_err *err) {
    char bare[INET6_ADDRSTRLEN + 32]; /* a link-local address names its interface, too */
    const char *address = !strcmp(host, "localhost") ? "127.0.0.1" : host;
    size_t len = strlen(host);
    bool bracket = len > 2 && len < sizeof bare && host[0] == '[' && host[len - 1] == ']';
    if (bracket) { /* as in a URL */
        snprintf(bare, sizeof bare, "%.*s", (int)len - 2, host + 1);
        host = address = bare;
    }
    struct addrinfo *a = NULL;
    int one = 1, unsent = UNSENT_BYTES;
    sl_status st = resolve_host(s, address, &a, err);
    if (st != SL_OK) return st;
    bool v6 = a->ai_family == AF_INET6;
    s->listen_fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0 ||
        setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        setsockopt(s->listen_fd, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof unsent) != 0 ||
        (v6 && setsockopt(s->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) != 0) ||
        bind(s->listen_fd, a->ai_addr, a->ai_addrlen) != 0 || listen(s->listen_fd, BACKLOG) != 0)
        st = sl_fail(err, SL_ERR_IO, "cannot listen on %s port %u: %s", host, s->o.port,
                     strerror(errno));
    else
        st = read_port(s, v6, host, err);
    freeaddrinfo(a);
    return st;
}

/* ---- a socket of this machine ---- */

/* A socket file that nobody listens at any more may be replaced, and nothing else. */
static sl_status check_place(const struct sockaddr_un *a, sl_err *err) {
    struct stat what;
    if (lstat(a->sun_path, &what) != 0) return SL_OK; /* binding says what is wrong */
    if (!S_ISSOCK(what.st_mode))
        return sl_fail(err, SL_ERR_ARG, "host: " UNIX "%s is there, and is no socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool dead =
        fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    if (dead) return SL_OK;
    return sl_fail(err, SL_ERR_IO, "host: somebody listens on " UNIX "%s", a->sun_path);
}

/* Bound under a name beside it, so that nobody finds it before its mode is right. With an API key
 * the group may ask, too. */
static sl_status bind_unix(sl_server *s, const struct sockaddr_un *a, sl_err *err) {
    struct sockaddr_un part = {.sun_family = AF_UNIX};
    const int unsent = UNSENT_BYTES;
    const int n = snprintf(part.sun_path, sizeof part.sun_path, "%s.%d", a->sun_path, getpid());
    if (n < 0 || (size_t)n >= sizeof part.sun_path)
        return sl_fail(err, SL_ERR_LIMIT, "host: the path of %s is longer than %zu bytes",
                       a->sun_path, sizeof part.sun_path - 12);
    unlink(part.sun_path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = s->listen_fd >= 0 &&
              setsockopt(s->listen_fd, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof unsent) == 0 &&
              bind(s->listen_fd, (const struct sockaddr *)&part, sizeof part) == 0 &&
              chmod(part.sun_path, s->keyed ? 0660 : 0600) == 0 &&
              listen(s->listen_fd, BACKLOG) == 0 && rename(part.sun_path, a->sun_path) == 0;
    if (ok) return SL_OK;
    const int why = errno;
    unlink(part.sun_path);
    return sl_fail(err, SL_ERR_IO, "cannot listen on " UNIX "%s: %s", a->sun_path, strerror(why));
}

static sl_status listen_at_file(sl_server *s, const char *host, sl_err *err) {
    const char *path = host + sizeof UNIX - 1;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (s->o.tls)
        return sl_fail(err, SL_ERR_ARG,
                       "host: " UNIX "%.80s: TLS is spoken at an address, not at a file of this "
                       "machine",
                       path);
    if (path[0] != '/')
        return sl_fail(err, SL_ERR_ARG, "host: " UNIX "%.80s: the path has to begin with /", path);
    if (strlen(path) >= sizeof a.sun_path)
        return sl_fail(err, SL_ERR_LIMIT, "host: " UNIX "%.80s...: %zu bytes, at most %zu", path,
                       strlen(path), sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    sl_status st = check_place(&a, err);
    if (st == SL_OK) st = bind_unix(s, &a, err);
    if (st != SL_OK) return st;
    s->socket_path = sl_strdup(path);
    s->url = sl_strdup(host);
    return s->socket_path && s->url ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
}

sl_status sl_server_listen(sl_server *s, const char *host, sl_err *err) {
    const bool file = strncmp(host, UNIX, sizeof UNIX - 1) == 0;
    return file ? listen_at_file(s, host, err) : listen_at(s, host, err);
}

void sl_server_unlisten(sl_server *s) {
    if (s->socket_path) unlink(s->socket_path);
    if (s->listen_fd >= 0) close(s->listen_fd);
    sl_free(s->socket_path);
}

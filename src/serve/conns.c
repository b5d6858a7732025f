/* Connections: how many, of whom, which idle one gives way. */
#include "serve/conns.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define MOST_AT_ONCE 64          /* accepted in a row: the caller has other things to do */
#define TELL_NS      60000000000 /* between two lines of the log about the same */
#define YOUNG_NS     250000000   /* to ask something, however many others come */
#define LATE_NS      2000000000  /* between two sweeps: this process stood still */
#define MOST_UNREAD  3 /* times that a body is waited for because it was not read in time */

/* Where connections come from: an IPv4 address or the network half of an IPv6 one, as whoever has
 * one address of such a network has all of them. */
struct sl_peer {
    sl_peer *prev, *next;
    uint8_t address[8];
    bool v6;
    uint32_t refs;
    uint32_t n_waiting; /* of its connections in c->first */
    size_t kept;        /* of their bodies */
};

struct sl_conn {
    sl_conn *prev, *next;
    sl_peer *peer;
    int fd;
    sl_conn_state state;
    bool dropped;
    size_t leaving;    /* of c->leaving */
    uint64_t since_ns; /* in this state */

    /* of the body that is on the way */
    size_t n_body, kept; /* bytes so far; of them held */
    size_t n_marked;     /* n_body at marked_ns */
    uint64_t marked_ns;
    uint32_t n_unread; /* how often part of it had come and lay unread */
};

static sl_peer *find_peer(sl_conns *c, const struct sockaddr *a) {
    sl_peer key = {.v6 = a->sa_family == AF_INET6};
    if (key.v6)
        memcpy(key.address, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 8);
    else if (a->sa_family == AF_INET) /* all callers of a file are one */
        memcpy(key.address, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    sl_peer *p = c->peers;
    while (p && (p->v6 != key.v6 || memcmp(p->address, key.address, sizeof key.address) != 0))
        p = p->next;
    if (p || !(p = sl_alloc(1, sizeof *p))) return p;
    *p = key;
    p->next = c->peers;
    if (c->peers) c->peers->prev = p;
    c->peers = p;
    return p;
}

static void unref_peer(sl_conns *c, sl_peer *p) {
    if (--p->refs > 0) return;
    *(p->prev ? &p->prev->next : &c->peers) = p->next;
    if (p->next) p->next->prev = p->prev;
    sl_free(p);
}

static void link_waiting(sl_conns *c, sl_conn *conn) {
    conn->prev = c->last;
    conn->next = NULL;
    *(c->last ? &c->last->next : &c->first) = conn;
    c->last = conn;
    conn->peer->n_waiting++;
}

static void unlink_waiting(sl_conns *c, sl_conn *conn) {
    *(conn->prev ? &conn->prev->next : &c->first) = conn->next;
    *(conn->next ? &conn->next->prev : &c->last) = conn->prev;
    conn->peer->n_waiting--;
}

static void keep(sl_conn *conn, size_t bytes) {
    conn->peer->kept += bytes - conn->kept;
    conn->kept = bytes;
}

/* libmicrohttpd hears of it from the socket, and then gives back what its body holds. */
static void drop(sl_conns *c, sl_conn *conn) {
    size_t kept = conn->kept;
    unlink_waiting(c, conn);
    keep(conn, 0);
    conn->dropped = true;
    conn->leaving = kept;
    c->leaving += kept;
    c->n_dropped++;
    shutdown(conn->fd, SHUT_RDWR);
}

/* Drops one whose body is on the way, so nothing else was sent to it. What does not fit into the
 * socket at once is not worth waiting for. */
static void refuse(sl_conns *c, sl_conn *conn, const char *status, const char *type,
                   const char *code, const char *message) {
    char body[256], answer[512];
    int n_body = snprintf(body, sizeof body,
                          "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                          "\"code\":\"%s\"}}",
                          message, type, code);
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 %s\r\nConnection: close\r\nRetry-After: 1\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                     status, n_body, body);
    if (send(conn->fd, answer, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
        sl_log(SL_LOG_DEBUG, "serve", "%s: not told", code);
    drop(c, conn);
}

/* Of the address with most of them an idle one before one that sends, then the oldest; NULL if that
 * began after `before_ns`. */
static sl_conn *least_wanted(const sl_conns *c, uint64_t before_ns) {
    sl_conn *least = c->first;
    for (sl_conn *k = c->first; k; k = k->next)
        if (k->peer == least->peer ? k->state < least->state && k->since_ns < before_ns
                                   : k->peer->n_waiting > least->peer->n_waiting)
            least = k;
    return least && least->since_ns < before_ns ? least : NULL;
}

static void tell(sl_conns *c) {
    uint64_t now = sl_now_ns();
    if (c->told_ns && now - c->told_ns < TELL_NS) return;
    c->told_ns = now;
    sl_log(SL_LOG_WARN, "serve",
           "%u connections are open, more than fit (--max-connections %u, or open files): those "
           "that wait for no answer give way",
           c->n_open, c->o.limit);
}

/* Closes one that waits for no answer, if there is any that had its time. */
static bool make_room(sl_conns *c, uint64_t had_ns) {
    sl_conn *least = least_wanted(c, sl_now_ns() - had_ns);
    if (least) drop(c, least);
    tell(c);
    return least != NULL;
}

static void trim(sl_conns *c) {
    while (c->n_begun - c->n_dropped > c->o.limit && make_room(c, YOUNG_NS)) continue;
}

void sl_conns_init(sl_conns *c) {
    *c = (sl_conns){0};
    pthread_mutex_init(&c->lock, NULL);
}

void sl_conns_free(sl_conns *c) {
    pthread_mutex_destroy(&c->lock);
}

static bool count(sl_conns *c, int change) {
    pthread_mutex_lock(&c->lock);
    if (change > 0) trim(c);
    bool room = change < 0 || c->n_open < c->o.limit + SL_CONNS_SPARE;
    if (room) c->n_open += (uint32_t)change;
    pthread_mutex_unlock(&c->lock);
    return room;
}

/* The socket at which the client who waited speaks in the clear; -1, with errno: there is none. */
static int accept_one(int listen_fd, sl_tls_front *tls, struct sockaddr *from, socklen_t *n) {
    const int fd = accept4(listen_fd, from, n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd >= 0 && tls ? sl_tls_front_take(tls, fd, from) : fd;
}

bool sl_conns_accept(sl_conns *c, int listen_fd, sl_tls_front *tls, struct MHD_Daemon *d) {
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        struct sockaddr *a = (struct sockaddr *)&from;
        socklen_t n = sizeof from;
        if (!count(c, 1)) return false;
        int fd = accept_one(listen_fd, tls, a, &n);
        /* libmicrohttpd closes what it does not take */
        if (fd >= 0 && MHD_add_connection(d, fd, a, n) == MHD_YES) continue;
        int why = errno;
        count(c, -1);
        if (fd >= 0 || why == ECONNABORTED || why == EINTR) continue;
        if (why == EAGAIN || why == EINVAL) return true; /* nobody waits; no longer listening */
        pthread_mutex_lock(&c->lock); /* no files or memory: what others have comes back soon */
        make_room(c, 0);
        pthread_mutex_unlock(&c->lock);
        return false;
    }
    return true;
}

/* Whether it is our threads that are late, which had no core: what came lies in the socket. A few
 * times a body, as a byte that comes right before each look would do as well. */
static bool lies_unread(sl_conn *conn) {
    int n = 0;
    if (conn->n_unread >= MOST_UNREAD || ioctl(conn->fd, FIONREAD, &n) != 0 || n <= 0) return false;
    conn->n_unread++;
    return true;
}

static void check_progress(sl_conns *c, sl_conn *conn, uint64_t now) {
    if (now - conn->marked_ns < c->o.stall_ms * 1000000ull) return;
    if (conn->n_body - conn->n_marked < (size_t)SL_CONNS_BODY_RATE * c->o.stall_ms / 1000 &&
        !lies_unread(conn)) {
        refuse(c, conn, "408 Request Timeout", "invalid_request_error", "request_timeout",
               "the body of the request comes too slowly");
        return;
    }
    conn->marked_ns = now;
    conn->n_marked = conn->n_body;
}

void sl_conns_sweep(sl_conns *c, uint64_t gap_ns) {
    const uint64_t now = sl_now_ns(), late = gap_ns > LATE_NS ? gap_ns : 0;
    pthread_mutex_lock(&c->lock);
    for (sl_conn *conn = c->first, *next; conn; conn = next) {
        next = conn->next;
        conn->since_ns = SL_MIN(conn->since_ns + late, now);
        conn->marked_ns = SL_MIN(conn->marked_ns + late, now);
        if (conn->state == SL_CONN_BODY)
            check_progress(c, conn, now);
        else if (now - conn->since_ns > c->o.idle_ms * 1000000ull)
            drop(c, conn);
    }
    trim(c);
    pthread_mutex_unlock(&c->lock);
}

uint32_t sl_conns_open(sl_conns *c) {
    pthread_mutex_lock(&c->lock);
    uint32_t n = c->n_open;
    pthread_mutex_unlock(&c->lock);
    return n;
}

sl_conn *sl_conn_begin(sl_conns *c, struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    int socket_fd = fd->connect_fd;
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    sl_conn *conn = sl_alloc(1, sizeof *conn);
    if (!conn) return NULL;
    conn->fd = socket_fd;
    conn->since_ns = sl_now_ns();
    pthread_mutex_lock(&c->lock);
    conn->peer = find_peer(c, from->client_addr);
    if (conn->peer) {
        conn->peer->refs++;
        link_waiting(c, conn);
        c->n_begun++;
    }
    pthread_mutex_unlock(&c->lock);
    if (conn->peer) return conn;
    sl_free(conn);
    return NULL;
}

void sl_conn_end(sl_conns *c, sl_conn *conn) {
    pthread_mutex_lock(&c->lock);
    c->n_open--;
    if (conn) {
        c->n_begun--;
        c->n_dropped -= conn->dropped;
        c->leaving -= conn->leaving;
        keep(conn, 0);
        if (!conn->dropped && conn->state != SL_CONN_ANSWER) unlink_waiting(c, conn);
        unref_peer(c, conn->peer);
    }
    pthread_mutex_unlock(&c->lock);
    sl_free(conn);
}

bool sl_conn_enter(sl_conns *c, sl_conn *conn, sl_conn_state state) {
    pthread_mutex_lock(&c->lock);
    bool open = !conn->dropped;
    if (open && conn->state != SL_CONN_ANSWER) unlink_waiting(c, conn);
    conn->state = state;
    conn->since_ns = conn->marked_ns = sl_now_ns();
    conn->n_body = conn->n_marked = 0;
    conn->n_unread = 0;
    keep(conn, 0);
    if (open && state != SL_CONN_ANSWER) link_waiting(c, conn);
    pthread_mutex_unlock(&c->lock);
    return open;
}

/* Whose body gives way to that of `conn`; NULL: nobody's. */
static sl_conn *largest_body(const sl_conns *c, const sl_conn *conn) {
    sl_conn *most = NULL;
    for (sl_conn *k = c->first; k; k = k->next) {
        bool gives =
            k->peer != conn->peer ? k->peer->kept > conn->peer->kept : k->kept / 2 >= conn->kept;
        if (k == conn || k->kept == 0 || !gives) continue;
        if (!most ||
            (k->peer == most->peer ? k->kept > most->kept : k->peer->kept > most->peer->kept))
            most = k;
    }
    return most;
}

bool sl_conn_receive(sl_conns *c, sl_conn *conn, size_t n, size_t kept, size_t excess) {
    pthread_mutex_lock(&c->lock);
    bool fits = true;
    conn->n_body += n;
    if (!conn->dropped) keep(conn, kept);
    while (fits && excess > c->leaving) {
        sl_conn *most = largest_body(c, conn);
        fits = most != NULL;
        if (most)
            refuse(
                c, most, "503 Service Unavailable", "server_error", "too_many_bytes",
                "request bodies of all clients: too many bytes, the largest gives way; try again");
    }
    if (!fits) keep(conn, 0);
    pthread_mutex_unlock(&c->lock);
    return fits;
}

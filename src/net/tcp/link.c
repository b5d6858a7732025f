/* One link over a TCP connection: pieces out, messages in, the end. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/address.h"
#include "net/tcp/tcp_int.h"

#define MAX_MESSAGES                                                                               \
    64u /* of one link in one progress, so that others and timers get their turn                   \
         */
#define MAX_READS     8
#define MAX_LINGERING 128u /* links: who is turned away in a flood may not hear why */
#define MAX_PIECES    16   /* of one write */

static sl_block_pool *pool_of(const tcp_link *l) {
    return &l->t->base.net->pool;
}

/* ---- opening and failing ---- */

static void set_options(int fd) {
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Twice the longest that the session waits: the kernel shall not retry for many minutes after it.
 * On this machine it has nothing to retry, and who is stopped may be so for long. */
static void limit_retries(const tcp_link *l) {
    unsigned ms = SL_MAX(l->t->base.net->silence_limit_us, SL_NET_COORDINATOR_US) / 500;
    (void)setsockopt(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

tcp_link *sl_tcp_link_create(tcp_transport *t, int fd, tcp_link_state state) {
    tcp_link *l = sl_alloc(1, sizeof *l);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = l};
    if (!l || epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        close(fd);
        sl_free(l);
        return NULL;
    }
    set_options(fd);
    l->t = t;
    l->fd = fd;
    l->state = state;
    l->readable = l->writable = state == TCP_LINK_UP;
    l->next = t->links;
    t->links = l;
    return l;
}

void sl_tcp_link_place(tcp_link *l) {
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_len = sizeof own, peer_len = sizeof peer;
    bool known = getsockname(l->fd, (struct sockaddr *)&own, &own_len) == 0 &&
                 getpeername(l->fd, (struct sockaddr *)&peer, &peer_len) == 0;
    l->conn->place =
        known && sl_address_same_host(&own, &peer) ? SL_PEER_ON_THIS_MACHINE : SL_PEER_ELSEWHERE;
    if (l->conn->place == SL_PEER_ELSEWHERE) limit_retries(l);
}

static void link_fail(tcp_link *l, sl_status why, const char *text) {
    if (l->failed) return;
    l->failed = true;
    l->why = why;
    snprintf(l->text, sizeof l->text, "%s", text);
    l->t->any_to_tend = true;
}

static void lost(tcp_link *l, const char *what, int error) {
    char text[sizeof l->text];
    snprintf(text, sizeof text, "%s: %s", what, strerror(error));
    link_fail(l, SL_ERR_PEER_DOWN, text);
}

/* ---- sending ---- */

/* The pieces of the queue that are still to leave, header and payload of each message. */
static int gather_pieces(const tcp_link *l, struct iovec *iov) {
    size_t skip = l->sent_bytes;
    int n = 0;
    for (sl_block *b = l->queue.head; b && n + 2 <= MAX_PIECES; b = b->next) {
        if (skip < sizeof b->header)
            iov[n++] = (struct iovec){b->header + skip, sizeof b->header - skip};
        skip = skip < sizeof b->header ? 0 : skip - sizeof b->header;
        if (b->buf.len > skip) iov[n++] = (struct iovec){b->buf.data + skip, b->buf.len - skip};
        skip = 0;
    }
    return n;
}

static void count_sent(tcp_link *l, size_t n) {
    l->sent_bytes += n;
    while (l->queue.head) {
        size_t all = sizeof l->queue.head->header + l->queue.head->buf.len;
        if (l->sent_bytes < all) return;
        l->sent_bytes -= all;
        sl_block_give(pool_of(l), sl_block_pop(&l->queue));
    }
}

static void write_queue(tcp_link *l) {
    while (l->queue.head && l->writable && !l->failed) {
        struct iovec iov[MAX_PIECES];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)gather_pieces(l, iov)};
        ssize_t n = sendmsg(l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            count_sent(l, (size_t)n);
        else if (errno == EAGAIN)
            l->writable = false;
        else if (errno != EINTR)
            l->writable = false, l->readable = l->t->more = true; /* reading finds why, or a BYE */
    }
}

sl_status sl_tcp_link_send(tcp_link *l, sl_block *b) {
    if (l->failed) {
        sl_block_give(pool_of(l), b);
        return SL_ERR_PEER_DOWN;
    }
    sl_block_push(&l->queue, b);
    if (l->queue.head == b && l->state == TCP_LINK_UP) write_queue(l);
    return l->failed ? SL_ERR_PEER_DOWN : SL_OK;
}

/* ---- receiving ---- */

/* True when a message has begun: its header is complete, and fine as far as it is used here. */
static bool begin_message(tcp_link *l) {
    if (l->end - l->at < SL_WIRE_HEADER_BYTES) return false;
    const uint8_t *head = l->stage + l->at;
    bool begins;
    size_t len = sl_wire_header_peek(head, &begins), limit = sl_net_payload_limit(l->conn);
    if (!begins) {
        link_fail(l, SL_ERR_PROTOCOL, "bytes that begin no message");
        return false;
    }
    if (len > limit) {
        char text[96];
        snprintf(text, sizeof text, "a payload of %zu bytes, limit %zu", len, limit);
        link_fail(l, SL_ERR_PROTOCOL, text);
        return false;
    }
    l->partial = sl_block_take(pool_of(l), len);
    if (!l->partial) {
        link_fail(l, SL_ERR_NOMEM, "out of memory");
        return false;
    }
    memcpy(l->partial->header, head, SL_WIRE_HEADER_BYTES);
    l->at += SL_WIRE_HEADER_BYTES;
    l->got_bytes = 0;
    return true;
}

/* True when the message is whole. */
static bool take_staged(tcp_link *l) {
    sl_buf *b = &l->partial->buf;
    size_t n = SL_MIN(b->len - l->got_bytes, l->end - l->at);
    if (n) memcpy(b->data + l->got_bytes, l->stage + l->at, n);
    l->at += n;
    l->got_bytes += n;
    return l->got_bytes == b->len;
}

/* Hands on every whole message, *budget at most; false when the link ended with it. */
static bool deliver(tcp_link *l, uint32_t *budget) {
    while (*budget && (l->partial || begin_message(l)) && take_staged(l)) {
        sl_block *b = l->partial;
        l->partial = NULL;
        --*budget;
        sl_net_arrived(l->conn, b);
        if (l->state != TCP_LINK_UP || l->failed) return false;
    }
    return !l->failed;
}

/* One read: the rest of a payload straight into its block, and what follows into the stage. False:
 * nothing came. */
static bool read_more(tcp_link *l) {
    struct iovec iov[2];
    int n_iov = 0;
    size_t want = 0;
    if (l->at > 0) memmove(l->stage, l->stage + l->at, l->end - l->at);
    l->end -= l->at;
    l->at = 0;
    if (l->partial) {
        want = l->partial->buf.len - l->got_bytes;
        iov[n_iov++] = (struct iovec){l->partial->buf.data + l->got_bytes, want};
    }
    iov[n_iov++] = (struct iovec){l->stage + l->end, sizeof l->stage - l->end};
    ssize_t n = readv(l->fd, iov, n_iov);
    if (n > 0) {
        size_t direct = SL_MIN((size_t)n, want);
        l->got_bytes += direct;
        l->end += (size_t)n - direct;
        sl_net_heard(l->conn);
        return true;
    }
    if (n == 0)
        link_fail(l, SL_ERR_PEER_DOWN, "the peer is gone");
    else if (errno == EAGAIN)
        l->readable = false;
    else if (errno != EINTR)
        lost(l, "connection lost", errno);
    return false;
}

static void receive(tcp_link *l) {
    uint32_t budget = MAX_MESSAGES;
    bool there = deliver(l, &budget);
    for (int i = 0; there && budget && i < MAX_READS && l->readable && read_more(l); i++)
        there = deliver(l, &budget);
    bool staged = l->end - l->at >= SL_WIRE_HEADER_BYTES && !budget;
    if (l->state == TCP_LINK_UP && !l->failed && (l->readable || staged)) l->t->more = true;
}

/* Whatever the peer still sends is not wanted any more, but its end is. */
static void read_away(tcp_link *l) {
    for (int i = 0; i < MAX_READS && l->readable && !l->failed; i++) {
        ssize_t n = recv(l->fd, l->stage, sizeof l->stage, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            link_fail(l, SL_ERR_PEER_DOWN, "the peer is gone");
        else if (n < 0 && errno == EAGAIN)
            l->readable = false;
    }
}

/* ---- events and progress ---- */

void sl_tcp_link_event(tcp_link *l, uint32_t events) {
    if (l->state == TCP_LINK_CONNECTING && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        int error = 0;
        socklen_t len = sizeof error;
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) error = errno;
        if (error) {
            lost(l, "cannot connect", error);
        } else {
            l->state = TCP_LINK_UP;
            if (l->conn) sl_tcp_link_place(l);
        }
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) l->readable = true;
    if (events & EPOLLOUT) l->writable = true;
}

void sl_tcp_link_progress(tcp_link *l) {
    if (l->failed || (l->state != TCP_LINK_UP && l->state != TCP_LINK_LINGERING)) return;
    write_queue(l);
    if (l->failed) return;
    if (l->state == TCP_LINK_UP && (l->readable || l->end > l->at)) receive(l);
    if (l->state == TCP_LINK_LINGERING) read_away(l);
}

/* ---- closing ---- */

static void close_link(tcp_link *l) {
    if (l->state == TCP_LINK_LINGERING) l->t->n_lingering--;
    l->state = TCP_LINK_CLOSED;
    l->conn = NULL;
    l->t->any_to_tend = true;
    sl_block_give_all(pool_of(l), &l->queue);
    sl_block_give(pool_of(l), l->partial);
    l->partial = NULL;
    /* A child that is being started may still hold the socket: close alone would leave it watched.
     */
    (void)epoll_ctl(l->t->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
    close(l->fd);
}

void sl_tcp_link_drop(tcp_link *l, bool flush) {
    l->conn = NULL;
    if (!flush || l->failed || l->state != TCP_LINK_UP || l->t->n_lingering >= MAX_LINGERING) {
        close_link(l);
        return;
    }
    sl_block_give(pool_of(l), l->partial);
    l->partial = NULL;
    l->at = l->end = 0;
    l->readable = true; /* what is there already makes no edge */
    l->state = TCP_LINK_LINGERING;
    l->deadline_ns = sl_now_ns() + 1000ull * SL_NET_LINGER_US;
    l->t->n_lingering++;
}

static void tend(tcp_link *l, uint64_t now_ns) {
    switch (l->state) {
    case TCP_LINK_CONNECTING:
    case TCP_LINK_UP:
        if (l->failed) sl_net_link_down(l->conn, l->why, l->text);
        break;
    case TCP_LINK_LINGERING:
        /* Closing with unread bytes here would reset the stream and destroy what the peer has not
         * read yet, so its end is awaited. */
        if (!l->queue.head && !l->finished) {
            (void)shutdown(l->fd, SHUT_WR);
            l->finished = true;
        }
        if (l->failed || now_ns >= l->deadline_ns) close_link(l);
        break;
    case TCP_LINK_CLOSED:
        break;
    }
}

void sl_tcp_links_tend(tcp_transport *t) {
    if (!t->any_to_tend && !t->n_lingering) return;
    uint64_t now_ns = sl_now_ns();
    t->any_to_tend = false;
    for (tcp_link **at = &t->links; *at;) {
        tcp_link *l = *at;
        tend(l, now_ns);
        if (l->state != TCP_LINK_CLOSED) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        sl_free(l);
    }
    t->any_to_tend = false; /* set by the links just freed */
}

void sl_tcp_links_free(tcp_transport *t) {
    while (t->links) {
        tcp_link *l = t->links;
        t->links = l->next;
        if (l->state != TCP_LINK_CLOSED) close_link(l);
        sl_free(l);
    }
}

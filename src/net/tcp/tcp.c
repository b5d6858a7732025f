/* The transport over TCP: listening, epoll, timers. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/address.h"
#include "net/sleep.h"
#include "net/tcp/tcp_int.h"

#define MAX_EVENTS 64
#define BACKLOG    256
#define POLL_NS    50000u /* a sleep and a wake take longer here */

static tcp_transport *of(sl_transport *base) {
    return (tcp_transport *)base;
}

/* ---- set-up ---- */

static sl_status watch(tcp_transport *t, int fd, int *which, sl_err *err) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = which};
    return epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_IO, "epoll: %s", strerror(errno));
}

static sl_status listen_on(tcp_transport *t, const char *host, uint16_t port, sl_err *err) {
    struct sockaddr_storage a;
    socklen_t len;
    int one = 1;
    sl_status st = sl_address_choose(host, port, &a, &len, err);
    if (st != SL_OK) return st;
    t->listen_fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->listen_fd < 0) return sl_fail(err, SL_ERR_IO, "socket: %s", strerror(errno));
    (void)setsockopt(t->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(t->listen_fd, (struct sockaddr *)&a, len) != 0 || listen(t->listen_fd, BACKLOG) != 0)
        return sl_fail(err, SL_ERR_IO, "listening on %s: %s", host, strerror(errno));
    sl_net *n = t->base.net;
    sl_address_advertise(&a, n->hello.address, sizeof n->hello.address);
    return watch(t, t->listen_fd, &t->listen_fd, err);
}

/* ---- transport calls ---- */

static void tcp_destroy(sl_transport *base) {
    tcp_transport *t = of(base);
    sl_tcp_links_free(t);
    if (t->listen_fd >= 0) close(t->listen_fd);
    if (t->wake_fd >= 0) close(t->wake_fd);
    if (t->epoll_fd >= 0) close(t->epoll_fd);
    sl_free(t);
}

static sl_status tcp_connect(sl_transport *base, sl_conn *c, const char *address, sl_err *err) {
    struct sockaddr_storage a;
    socklen_t len;
    sl_status st = sl_address_resolve(address, NULL, &a, &len, err);
    if (st != SL_OK) return st;
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&a, len) != 0 && errno != EINPROGRESS) {
        st = sl_fail(err, SL_ERR_PEER_DOWN, "connection to %s: %s", address, strerror(errno));
        close(fd);
        return st;
    }
    tcp_link *l = sl_tcp_link_create(of(base), fd, TCP_LINK_CONNECTING);
    if (!l) return sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
    l->conn = c;
    c->link = l;
    return SL_OK;
}

static sl_status tcp_send(sl_transport *base, sl_conn *c, sl_block *b) {
    (void)base;
    return sl_tcp_link_send(c->link, b);
}

static void tcp_drop(sl_transport *base, sl_conn *c, bool flush) {
    (void)base;
    sl_tcp_link_drop(c->link, flush);
}

static void take_calls(tcp_transport *t) {
    sl_err err = {0};
    for (uint32_t i = 0; i < SL_NET_MAX_CALLS; i++) {
        struct sockaddr_storage a = {0};
        socklen_t len = sizeof a;
        int fd = accept4(t->listen_fd, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        sl_origin from = sl_address_origin(&a);
        tcp_link *l = sl_tcp_link_create(t, fd, TCP_LINK_UP);
        if (!l) continue;
        l->conn = sl_net_accept(t->base.net, &t->base, l, &from, &err);
        if (l->conn)
            sl_tcp_link_place(l);
        else
            sl_tcp_link_drop(l, false);
    }
}

static void poll_sockets(tcp_transport *t, int timeout_ms) {
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(t->epoll_fd, events, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        uint64_t count;
        if (events[i].data.ptr == &t->listen_fd)
            take_calls(t);
        else if (events[i].data.ptr == &t->wake_fd)
            (void)!read(t->wake_fd, &count, sizeof count);
        else if (events[i].data.ptr) /* NULL: the owner's */
            sl_tcp_link_event(events[i].data.ptr, events[i].events);
    }
}

static void tcp_progress(sl_transport *base) {
    tcp_transport *t = of(base);
    t->more = false;
    poll_sockets(t, 0);
    for (tcp_link *l = t->links; l; l = l->next) sl_tcp_link_progress(l);
    sl_tcp_links_tend(t);
}

/* ---- waiting ---- */

static void tcp_wait(sl_transport *base, uint64_t timeout_us) {
    tcp_transport *t = of(base);
    uint64_t now_ns = sl_now_ns();
    uint64_t until_ns = now_ns + 1000u * SL_MIN(timeout_us, (uint64_t)3600000000u);
    if (t->any_to_tend || t->more) return;
    if (t->n_lingering) until_ns = SL_MIN(until_ns, now_ns + 1000000u);
    sl_poll poll = sl_poll_begin(&base->net->polled, SL_MAX(base->net->poll_ns, POLL_NS), until_ns);
    do {
        if (sl_sleep_on(&t->epoll_fd, 1, 0)) return;
    } while (sl_poll_again(&poll));
    (void)sl_sleep_on(&t->epoll_fd, 1, until_ns);
}

static void tcp_wake(sl_transport *base) {
    sl_sleep_end(of(base)->wake_fd);
}

static sl_status tcp_watch(sl_transport *base, int fd, sl_err *err) {
    return watch(of(base), fd, NULL, err);
}

static bool tcp_is_flushing(sl_transport *base) {
    return of(base)->n_lingering > 0;
}

static const sl_transport_ops tcp_ops = {
    .destroy = tcp_destroy,
    .connect = tcp_connect,
    .send = tcp_send,
    .drop = tcp_drop,
    .progress = tcp_progress,
    .wait = tcp_wait,
    .wake = tcp_wake,
    .watch = tcp_watch,
    .is_flushing = tcp_is_flushing,
};

sl_status sl_tcp_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) {
    tcp_transport *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "TCP transport");
    t->base = (sl_transport){.ops = &tcp_ops, .net = n};
    t->listen_fd = -1;
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sl_status st = SL_OK;
    if (t->epoll_fd < 0 || t->wake_fd < 0)
        st = sl_fail(err, SL_ERR_IO, "epoll, eventfd: %s", strerror(errno));
    if (st == SL_OK) st = watch(t, t->wake_fd, &t->wake_fd, err);
    if (st == SL_OK && o->host) st = listen_on(t, o->host, o->port, err);
    if (st == SL_OK)
        *out = &t->base;
    else
        tcp_destroy(&t->base);
    return st;
}

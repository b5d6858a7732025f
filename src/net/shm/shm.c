/* The transport over shared memory. */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/shm/shm_int.h"
#include "net/sleep.h"

#define POLL_NS    500000u /* how often a busy net looks at its sockets */
#define MAX_EVENTS 64

static shm_transport *of(sl_transport *base) {
    return (shm_transport *)base;
}

/* ---- calls ---- */

static void take_greeting(shm_link *l) {
    shm_transport *t = l->t;
    sl_err err = {0};
    shm_area *area = NULL;
    sl_status st = sl_shm_greeted(l->fd, &area, &err);
    if (st == SL_ERR_AGAIN) return;
    if (st != SL_OK) {
        sl_shm_link_fail(l, st, err.msg);
        return;
    }
    const sl_origin from = {.text = "this user's process"};
    sl_conn *c = sl_net_accept(t->base.net, &t->base, l, &from, &err);
    if (!c) {
        sl_shm_area_free(area);
        sl_shm_link_fail(l, err.code, err.msg);
        return;
    }
    l->conn = c;
    c->place = SL_PEER_ON_THIS_MACHINE;
    sl_shm_link_attach(l, area, 1);
}

static void take_calls(shm_transport *t) {
    int fd;
    for (uint32_t i = 0; i < SL_NET_MAX_CALLS && (fd = sl_shm_accept(t->listen_fd)) >= 0; i++) {
        if (t->n_greeting >= SL_NET_MAX_PENDING) {
            close(fd);
            continue;
        }
        shm_link *l = sl_shm_link_create(t, fd);
        if (l) take_greeting(l);
    }
}

static void poll_sockets(shm_transport *t) {
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(t->epoll_fd, events, MAX_EVENTS, 0);
    t->next_poll_ns = sl_now_ns() + POLL_NS;
    for (int i = 0; i < n; i++) {
        uint64_t count;
        shm_link *l = events[i].data.ptr;
        if (events[i].data.ptr == &t->listen_fd)
            take_calls(t);
        else if (events[i].data.ptr == &t->wake_fd)
            (void)!read(t->wake_fd, &count, sizeof count);
        else if (!l) /* the owner's */
            continue;
        else if (l->state == SHM_LINK_GREETING)
            take_greeting(l);
        else if (l->state != SHM_LINK_CLOSED)
            sl_shm_link_read_socket(l);
    }
}

/* ---- transport calls ---- */

static void shm_destroy(sl_transport *base) {
    shm_transport *t = of(base);
    sl_shm_links_free(t);
    if (t->listen_fd >= 0) close(t->listen_fd);
    if (t->wake_fd >= 0) close(t->wake_fd);
    if (t->epoll_fd >= 0) close(t->epoll_fd);
    sl_free(t);
}

static sl_status shm_connect(sl_transport *base, sl_conn *c, const char *address, sl_err *err) {
    int fd = -1;
    shm_area *area = NULL;
    sl_status st = sl_shm_dial(address, &fd, err);
    if (st != SL_OK) return st;
    st = sl_shm_greet(fd, &area, err);
    if (st != SL_OK) {
        close(fd);
        return st;
    }
    shm_link *l = sl_shm_link_create(of(base), fd);
    if (!l) {
        sl_shm_area_free(area);
        return sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
    }
    l->conn = c;
    sl_shm_link_attach(l, area, 0);
    c->link = l;
    c->place = SL_PEER_ON_THIS_MACHINE;
    return SL_OK;
}

static sl_status shm_send(sl_transport *base, sl_conn *c, sl_block *b) {
    (void)base;
    return sl_shm_link_send(c->link, b);
}

static void shm_drop(sl_transport *base, sl_conn *c, bool flush) {
    (void)base;
    sl_shm_link_drop(c->link, flush);
}

static void shm_progress(sl_transport *base) {
    shm_transport *t = of(base);
    if (sl_now_ns() >= t->next_poll_ns) poll_sockets(t);
    for (shm_link *l = t->links; l; l = l->next) sl_shm_link_progress(l);
    sl_shm_links_tend(t);
}

/* ---- waiting ---- */

static bool has_work(const shm_transport *t) {
    if (t->any_to_tend) return true;
    for (const shm_link *l = t->links; l; l = l->next)
        if (sl_shm_link_is_ready(l)) return true;
    return false;
}

static void shm_wait(sl_transport *base, uint64_t timeout_us) {
    shm_transport *t = of(base);
    uint64_t until_ns = sl_now_ns() + 1000u * SL_MIN(timeout_us, (uint64_t)3600000000u);
    sl_poll poll = sl_poll_begin(&base->net->polled, base->net->poll_ns, until_ns);
    do {
        if (has_work(t)) return;
    } while (sl_poll_again(&poll));
    for (shm_link *l = t->links; l; l = l->next) sl_shm_link_announce(l);
    if (!has_work(t)) (void)sl_sleep_on(&t->epoll_fd, 1, until_ns);
    for (shm_link *l = t->links; l; l = l->next) sl_shm_link_awake(l);
    t->next_poll_ns = 0;
}

static void shm_wake(sl_transport *base) {
    sl_sleep_end(of(base)->wake_fd);
}

static bool watch(shm_transport *t, int fd, int *which) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = which};
    return epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

static sl_status shm_watch(sl_transport *base, int fd, sl_err *err) {
    return watch(of(base), fd, NULL) ? SL_OK
                                     : sl_fail(err, SL_ERR_IO, "epoll: %s", strerror(errno));
}

static bool shm_is_flushing(sl_transport *base) {
    return of(base)->n_lingering > 0;
}

static const sl_transport_ops shm_ops = {
    .destroy = shm_destroy,
    .connect = shm_connect,
    .send = shm_send,
    .drop = shm_drop,
    .progress = shm_progress,
    .wait = shm_wait,
    .wake = shm_wake,
    .watch = shm_watch,
    .is_flushing = shm_is_flushing,
};

static bool watch_own(shm_transport *t, int *fd) {
    return *fd < 0 || watch(t, *fd, fd);
}

sl_status sl_shm_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) {
    shm_transport *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "shm transport");
    t->base = (sl_transport){.ops = &shm_ops, .net = n, .inside = true};
    t->listen_fd = -1;
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sl_status st = SL_OK;
    if (o->host) st = sl_shm_listen(&t->listen_fd, n->hello.address, sizeof n->hello.address, err);
    if (st == SL_OK && (t->wake_fd < 0 || t->epoll_fd < 0 || !watch_own(t, &t->wake_fd) ||
                        !watch_own(t, &t->listen_fd)))
        st = sl_fail(err, SL_ERR_IO, "event descriptors: %s", strerror(errno));
    if (st == SL_OK)
        *out = &t->base;
    else
        shm_destroy(&t->base);
    return st;
}

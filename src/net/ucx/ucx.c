/* The transport over UCX. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/address.h"
#include "net/sleep.h"
#include "net/ucx/ucx_int.h"

#define MAX_EVENTS 64 /* of one progress, so that timers get their turn */

static ucx_transport *of(sl_transport *base) {
    return (ucx_transport *)base;
}

/* ---- set-up ---- */

static void on_call(ucp_conn_request_h request, void *arg) {
    ucx_transport *t = arg;
    if (t->n_calls < SL_UCX_MAX_CALLS)
        t->calls[t->n_calls++] = request;
    else
        ucp_listener_reject(t->listener, request);
}

static ucs_status_t ignore_message(void *arg, const void *header, size_t header_length, void *data,
                                   size_t length, const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length;
    return param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? UCS_ERR_REJECTED : UCS_OK;
}

/* UCX looks a peer's id up without a bound and trusts what it finds, so each possible id gets a
 * handler, the last one first: that sizes the table at once. */
static sl_status set_handlers(ucx_transport *t, sl_err *err) {
    ucp_am_handler_param_t am = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .arg = t,
    };
    for (uint32_t id = UINT16_MAX + 1u; id-- > 0;) {
        am.id = id;
        am.cb = id == SL_UCX_AM_ID ? sl_ucx_on_message : ignore_message;
        ucs_status_t st = ucp_worker_set_am_recv_handler(t->worker, &am);
        if (st != UCS_OK)
            return sl_fail(err, SL_ERR_INTERNAL, "UCX handler %u: %s", id, ucs_status_string(st));
    }
    return SL_OK;
}

static sl_status open_worker(ucx_transport *t, sl_err *err) {
    ucp_config_t *config = NULL;
    ucs_status_t st = ucp_config_read(NULL, NULL, &config);
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_INTERNAL, "UCX configuration: %s", ucs_status_string(st));
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    st = ucp_init(&params, config, &t->context);
    ucp_config_release(config);
    if (st != UCS_OK) return sl_fail(err, SL_ERR_INTERNAL, "UCX: %s", ucs_status_string(st));
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                              .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    st = ucp_worker_create(t->context, &wp, &t->worker);
    if (st != UCS_OK) return sl_fail(err, SL_ERR_INTERNAL, "UCX worker: %s", ucs_status_string(st));
    st = ucp_worker_get_efd(t->worker, &t->event_fd);
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_INTERNAL, "UCX event descriptor: %s", ucs_status_string(st));
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    st = ucp_worker_query(t->worker, &attr);
    if (st != UCS_OK || attr.max_am_header < SL_WIRE_HEADER_BYTES)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "UCX headers hold %zu bytes, %d needed",
                       attr.max_am_header, SL_WIRE_HEADER_BYTES);
    return set_handlers(t, err);
}

static sl_status listen_on(ucx_transport *t, const char *host, uint16_t port, sl_err *err) {
    struct sockaddr_storage a;
    socklen_t len;
    sl_status st = sl_address_choose(host, port, &a, &len, err);
    if (st != SL_OK) return st;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (struct sockaddr *)&a, .addrlen = len},
        .conn_handler = {.cb = on_call, .arg = t},
    };
    ucs_status_t us = ucp_listener_create(t->worker, &params, &t->listener);
    if (us != UCS_OK)
        return sl_fail(err, SL_ERR_IO, "listening on %s: %s", host, ucs_status_string(us));
    sl_net *n = t->base.net;
    sl_address_advertise(&a, n->hello.address, sizeof n->hello.address);
    t->own = a;
    return SL_OK;
}

/* ---- transport calls ---- */

static void ucx_destroy(sl_transport *base) {
    ucx_transport *t = of(base);
    if (t->worker) {
        for (size_t i = 0; i < t->n_calls; i++) ucp_listener_reject(t->listener, t->calls[i]);
        if (t->listener) ucp_listener_destroy(t->listener);
        sl_ucx_links_end(t);
        for (ucx_link *l = t->links; l; l = l->next) sl_ucx_windows_close(l);
        sl_ucx_mapper_close(t);
        ucp_worker_destroy(t->worker);
    }
    if (t->context) ucp_cleanup(t->context);
    sl_block_give_all(&base->net->pool, &t->inbox);
    while (t->links) {
        ucx_link *next = t->links->next;
        sl_free(t->links);
        t->links = next;
    }
    if (t->wake_fd >= 0) close(t->wake_fd);
    sl_free(t);
}

/* Who has this net's own address is on this machine. */
static sl_peer_place place_of(const ucx_transport *t, const struct sockaddr_storage *peer) {
    if (!t->own.ss_family) return SL_PEER_ELSEWHERE;
    return sl_address_same_host(&t->own, peer) ? SL_PEER_ON_THIS_MACHINE : SL_PEER_ELSEWHERE;
}

static sl_status ucx_connect(sl_transport *base, sl_conn *c, const char *address, sl_err *err) {
    struct sockaddr_storage a;
    socklen_t len;
    sl_status st = sl_address_resolve(address, NULL, &a, &len, err);
    if (st != SL_OK) return st;
    ucx_link *l = sl_ucx_link_create(of(base));
    if (!l) return sl_fail(err, SL_ERR_NOMEM, "connection to %s", address);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (struct sockaddr *)&a, .addrlen = len},
    };
    st = sl_ucx_link_open(l, &params, address, err);
    if (st != SL_OK) return st;
    l->conn = c;
    c->link = l;
    c->place = place_of(of(base), &a);
    return SL_OK;
}

static sl_status ucx_send(sl_transport *base, sl_conn *c, sl_block *b) {
    (void)base;
    return sl_ucx_link_send(c->link, b);
}

static void ucx_drop(sl_transport *base, sl_conn *c, bool flush) {
    (void)base;
    sl_ucx_link_drop(c->link, flush);
}

/* *peer: its address; without a family when that is not known. */
static sl_origin origin_of(ucp_conn_request_h request, struct sockaddr_storage *peer) {
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    *peer = (struct sockaddr_storage){0};
    if (ucp_conn_request_query(request, &attr) != UCS_OK) return (sl_origin){.text = "unknown"};
    *peer = attr.client_address;
    return sl_address_origin(peer);
}

static void take_call(ucx_transport *t, ucp_conn_request_h request) {
    sl_err err = {0};
    ucx_link *l = sl_ucx_link_create(t);
    struct sockaddr_storage peer;
    sl_origin from = origin_of(request, &peer);
    if (l && !(l->conn = sl_net_accept(t->base.net, &t->base, l, &from, &err))) {
        sl_ucx_link_free_unopened(l);
        l = NULL;
    }
    if (!l) {
        ucp_listener_reject(t->listener, request);
        return;
    }
    sl_conn *c = l->conn;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                              .conn_request = request};
    c->place = place_of(t, &peer);
    if (sl_ucx_link_open(l, &params, "incoming connection", &err) == SL_OK) return;
    c->link = NULL;
    sl_net_link_down(c, SL_ERR_PEER_DOWN, err.msg);
}

static void deliver(ucx_transport *t) {
    size_t n = 0;
    for (sl_block *b = t->inbox.head; b; b = b->next) n++;
    for (; n > 0; n--) {
        sl_block *b = sl_block_pop(&t->inbox);
        if (!b) break;
        ucx_link *l = b->link;
        l->n_queued--;
        sl_net_arrived(l->conn, b);
    }
}

static void ucx_progress(sl_transport *base) {
    ucx_transport *t = of(base);
    for (int i = 0; i < MAX_EVENTS && ucp_worker_progress(t->worker); i++) {
    }
    for (size_t i = 0; i < t->n_calls; i++) take_call(t, t->calls[i]);
    t->n_calls = 0;
    deliver(t);
    sl_ucx_links_tend(t);
}

/* ---- waiting ---- */

static bool has_work(const ucx_transport *t) {
    return t->inbox.head || t->n_calls || t->any_failed;
}

static bool drain_wake(ucx_transport *t) {
    uint64_t n;
    return read(t->wake_fd, &n, sizeof n) == (ssize_t)sizeof n;
}

static void ucx_wait(sl_transport *base, uint64_t timeout_us) {
    ucx_transport *t = of(base);
    uint64_t until_ns = sl_now_ns() + 1000u * SL_MIN(timeout_us, (uint64_t)3600000000u);
    sl_poll poll = sl_poll_begin(&base->net->polled, base->net->poll_ns, until_ns);
    do {
        int made = 0;
        while (!has_work(t) && made < MAX_EVENTS && ucp_worker_progress(t->worker)) made++;
        if (has_work(t) || made == MAX_EVENTS) return;
        if (sl_poll_again(&poll)) continue;
        const int fds[] = {t->event_fd, t->wake_fd, t->owner_fd};
        if (drain_wake(t) || sl_sleep_on(&t->owner_fd, 1, 0)) return;
        if (ucp_worker_arm(t->worker) == UCS_OK) (void)sl_sleep_on(fds, SL_LEN(fds), until_ns);
        /* Busy: something is pending that may need the peer, who may need this core. */
        else
            sched_yield();
    } while (sl_now_ns() < until_ns);
}

static void ucx_wake(sl_transport *base) {
    sl_sleep_end(of(base)->wake_fd);
}

static sl_status ucx_watch(sl_transport *base, int fd, sl_err *err) {
    (void)err;
    of(base)->owner_fd = fd;
    return SL_OK;
}

static bool ucx_is_flushing(sl_transport *base) {
    return of(base)->n_leaving > 0;
}

static const sl_transport_ops ucx_ops = {
    .destroy = ucx_destroy,
    .connect = ucx_connect,
    .send = ucx_send,
    .drop = ucx_drop,
    .progress = ucx_progress,
    .wait = ucx_wait,
    .wake = ucx_wake,
    .watch = ucx_watch,
    .is_flushing = ucx_is_flushing,
    .open_window = sl_ucx_open_window,
    .use_window = sl_ucx_use_window,
};

sl_status sl_ucx_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                  sl_err *err) {
    ucx_transport *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "UCX transport");
    t->base = (sl_transport){.ops = &ucx_ops, .net = n};
    t->owner_fd = -1;
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sl_status st = SL_OK;
    if (t->wake_fd < 0) st = sl_fail(err, SL_ERR_IO, "eventfd: %s", strerror(errno));
    if (st == SL_OK) st = open_worker(t, err);
    if (st == SL_OK && o->host) st = listen_on(t, o->host, o->port, err);
    if (st == SL_OK)
        *out = &t->base;
    else
        ucx_destroy(&t->base);
    return st;
}

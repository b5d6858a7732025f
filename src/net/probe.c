/* A peer that echoes, and the times of its echoes. */
#include "net/probe.h"

#include "base/clock.h"

#include <string.h>

#define WAIT_US 50000u

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    sl_probe *p = ctx;
    (void)peer;
    if (p->alone && p->conn)
        return sl_fail(err, SL_ERR_OVERLOADED, "a measurement with another peer is under way");
    p->conn = c;
    p->opened++;
    return p->window_slots ? sl_net_open_window(p->net, c, p->window_slots, p->window_bytes, err)
                           : SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    sl_probe *p = ctx;
    p->returned++;
    if (!p->echo) {
        sl_net_buf_give(p->net, payload);
        return SL_OK;
    }
    if (payload && payload->len && payload->data[0]) sl_probe_think(p->think_ns);
    sl_status st = sl_net_send(p->net, c, (sl_wire_header){.kind = h->kind}, payload);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "echo");
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    sl_probe *p = ctx;
    (void)why, (void)text;
    p->downs++;
    if (p->conn != c) return;
    p->conn = NULL;
    p->closed++;
}

sl_status sl_probe_start(sl_probe *p, const char *transport, sl_loop_hub *hub, const char *secret,
                         uint32_t id, sl_err *err) {
    return sl_probe_start_at(p, transport, hub, "127.0.0.1", 0, secret, id, err);
}

sl_status sl_probe_start_at(sl_probe *p, const char *transport, sl_loop_hub *hub, const char *host,
                            uint16_t port, const char *secret, uint32_t id, sl_err *err) {
    const sl_net_opts o = {.transport = transport,
                           .hub = hub,
                           .host = host,
                           .port = port,
                           .secret = {(const uint8_t *)secret, strlen(secret)},
                           .hello = {.worker = SL_NO_WORKER, .incarnation = id},
                           .clock = sl_clock_real(),
                           .sums = p->sums,
                           .encrypt = p->encrypt,
                           .windows = p->window_slots > 0,
                           .on = {on_open, on_message, on_down},
                           .ctx = p};
    sl_status st = sl_net_create(&o, &p->net, err);
    if (st == SL_OK) sl_net_set_poll(p->net, SL_NET_POLL_US);
    return st;
}

void sl_probe_think(uint64_t ns) {
    uint64_t until_ns = sl_now_ns() + ns;
    while (ns && sl_now_ns() < until_ns) {
    }
}

void sl_probe_step(sl_probe *p) {
    if (!sl_net_progress(p->net)) sl_net_wait(p->net, WAIT_US);
}

bool sl_probe_await(sl_probe *p, const uint32_t *counter, uint32_t want, uint64_t until_ns) {
    while (*counter < want && !p->downs && sl_now_ns() < until_ns) sl_probe_step(p);
    return *counter >= want;
}

sl_status sl_probe_send(sl_probe *p, sl_conn *to, size_t bytes, int fill, sl_err *err) {
    sl_buf *b = sl_net_buf_take(p->net, bytes);
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "message of %zu bytes", bytes);
    if (bytes) b->data[0] = (uint8_t)fill;
    sl_status st = sl_net_send(p->net, to, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "message of %zu bytes", bytes);
}

/* One end of a benchmark of the fabric: counts what it is told, and sends messages back if it is
 * the one that echoes. */
#ifndef SL_BENCH_NODE_H
#define SL_BENCH_NODE_H

#include "net/net.h"

#include <stdio.h>
#include <unistd.h>

#define NODE_WAIT_US 50000u

typedef struct node {
    sl_net *net;
    bool echo;
    uint32_t opened, returned, downs;
} node;

static inline sl_status node_on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    (void)c, (void)peer, (void)err;
    ((node *)ctx)->opened++;
    return SL_OK;
}

static inline sl_status node_on_message(void *ctx, sl_conn *c, const sl_wire_header *h,
                                        sl_buf *payload, sl_err *err) {
    node *n = ctx;
    n->returned++;
    if (!n->echo) {
        sl_net_buf_give(n->net, payload);
        return SL_OK;
    }
    sl_status st = sl_net_send(n->net, c, (sl_wire_header){.kind = h->kind}, payload);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "echo");
}

static inline void node_on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)c, (void)why, (void)text;
    ((node *)ctx)->downs++;
}

static inline sl_status node_start(node *n, const char *transport, sl_err *err) {
    sl_net_opts o = {.transport = transport, .host = "127.0.0.1", .clock = sl_clock_real()};
    o.secret = (sl_span){(const uint8_t *)"benchmark", 9};
    o.hello = (sl_hello){.worker = SL_NO_WORKER, .incarnation = (uint32_t)getpid()};
    o.on = (sl_net_events){node_on_open, node_on_message, node_on_down};
    o.ctx = n;
    return sl_net_create(&o, &n->net, err);
}

static inline void node_step(node *n) {
    if (!sl_net_progress(n->net)) sl_net_wait(n->net, NODE_WAIT_US);
}

#endif

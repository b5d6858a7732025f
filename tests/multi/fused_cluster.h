/* n x m ranks of the fused collectives in one thread, each with a net of its own, and experts for
 * them: used by the test and by the benchmark. */
#ifndef SL_TESTS_FUSED_CLUSTER_H
#define SL_TESTS_FUSED_CLUSTER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "net/fused.h"

#define FC_MAX_RANKS 16u

typedef struct fc_cluster fc_cluster;

typedef struct fc_rank {
    fc_cluster *all;
    uint32_t id;
    sl_net *net;
    sl_fused *fused;
    sl_conn *peer[FC_MAX_RANKS];
    uint32_t open, needed;
} fc_rank;

struct fc_cluster {
    uint32_t n, m;
    sl_loop_hub *hub;
    fc_rank rank[FC_MAX_RANKS];
    sl_status failed;
    sl_err err;
};

static inline bool fc_are_peers(const fc_cluster *c, uint32_t a, uint32_t b) {
    return a != b && (a / c->m == b / c->m || a % c->m == b % c->m);
}

static inline void fc_fail(fc_cluster *c, sl_status st, const char *text) {
    if (c->failed == SL_OK) c->failed = sl_fail(&c->err, st, "%s", text);
}

static inline sl_status fc_on_open(void *ctx, sl_conn *conn, const sl_hello *peer, sl_err *err) {
    fc_rank *r = ctx;
    (void)err;
    r->peer[peer->worker] = conn;
    r->open++;
    return SL_OK;
}

static inline sl_status fc_on_message(void *ctx, sl_conn *conn, const sl_wire_header *h,
                                      sl_buf *payload, sl_err *err) {
    fc_rank *r = ctx;
    sl_status st = sl_fused_on_message(r->fused, sl_conn_hello(conn)->worker, h, payload, err);
    if (st != SL_OK) fc_fail(r->all, st, err->msg);
    return st;
}

static inline void fc_on_down(void *ctx, sl_conn *conn, sl_status why, const char *text) {
    fc_rank *r = ctx;
    (void)conn;
    if (why != SL_OK) fc_fail(r->all, why, text);
}

static inline sl_status fc_send(void *ctx, uint32_t rank, sl_wire_header h, sl_buf *payload) {
    fc_rank *r = ctx;
    return sl_net_send(r->net, r->peer[rank], h, payload);
}

static inline void fc_progress(fc_cluster *c) {
    for (uint32_t r = 0; r < c->n * c->m; r++) sl_net_progress(c->rank[r].net);
}

static inline void fc_stop(fc_cluster *c) {
    for (uint32_t r = 0; r < c->n * c->m; r++) {
        sl_fused_free(c->rank[r].fused);
        c->rank[r].fused = NULL;
    }
    for (uint32_t r = 0; r < c->n * c->m; r++) sl_net_abandon(c->rank[r].net);
    if (c->hub) sl_loop_hub_free(c->hub);
    c->hub = NULL;
}

static inline sl_status fc_start_rank(fc_cluster *c, fc_rank *r, const char *transport) {
    sl_net_opts o = {.transport = transport, .hub = c->hub, .host = "127.0.0.1"};
    o.clock = sl_clock_real();
    o.silence_limit_us = 20000000; /* one thread plays all: no silence of a peer's own */
    o.secret = (sl_span){(const uint8_t *)"a secret of fused nets", 22};
    o.hello = (sl_hello){.worker = r->id, .incarnation = r->id + 1};
    o.on = (sl_net_events){fc_on_open, fc_on_message, fc_on_down};
    o.ctx = r;
    return sl_net_create(&o, &r->net, &c->err);
}

/* like: n_nodes, n_tp and the sizes; the rest is filled in here. send NULL: straight through the
 * net. */
static inline sl_status fc_start(fc_cluster *c, const char *transport, uint64_t seed,
                                 uint32_t delay_us, const sl_fused_opts *like) {
    *c = (fc_cluster){.n = like->n_nodes, .m = like->n_tp};
    uint32_t ranks = c->n * c->m;
    sl_status st = SL_OK;
    if (strcmp(transport, "loop") == 0) st = sl_loop_hub_create(seed, delay_us, &c->hub, &c->err);
    for (uint32_t i = 0; st == SL_OK && i < ranks; i++) {
        fc_rank *r = &c->rank[i];
        *r = (fc_rank){.all = c, .id = i};
        st = fc_start_rank(c, r, transport);
        sl_fused_opts o = *like;
        o.net = r->net;
        o.node = i / c->m;
        o.tp = i % c->m;
        if (!o.send) o.send = fc_send;
        o.ctx = r;
        if (st == SL_OK) st = sl_fused_create(&o, &r->fused, &c->err);
    }
    for (uint32_t a = 0; st == SL_OK && a < ranks; a++)
        for (uint32_t b = 0; st == SL_OK && b < ranks; b++) {
            sl_conn *conn;
            if (!fc_are_peers(c, a, b)) continue;
            c->rank[a].needed++;
            if (a < b)
                st = sl_net_connect(c->rank[a].net, sl_net_address(c->rank[b].net), NULL, &conn,
                                    &c->err);
        }
    uint64_t end_ns = sl_now_ns() + 20000000000ull;
    bool open = false;
    while (st == SL_OK && c->failed == SL_OK && !open && sl_now_ns() < end_ns) {
        fc_progress(c);
        open = true;
        for (uint32_t r = 0; r < ranks; r++) open = open && c->rank[r].open == c->rank[r].needed;
    }
    if (st == SL_OK && !open)
        st = sl_fail(&c->err, SL_ERR_TIMEOUT, "ranks not connected: %s", c->err.msg);
    return st;
}

#endif

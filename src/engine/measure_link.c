/* A message there and back between two nets of this process, each with a thread, as workers have.
 */
#include "base/clock.h"
#include "engine/measure.h"
#include "net/net.h"

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_BYTES 64u
#define ROUNDS      15
#define BUDGET_NS   300000000ull
#define WAIT_US     20000u

typedef struct end {
    sl_net *net;
    sl_conn *conn;
    bool echo;
    uint32_t opened, returned, downs;
    /* of the echo's thread */
    pthread_t thread;
    atomic_bool stop; /* relaxed: nothing is published with it */
} end;

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    end *e = ctx;
    (void)peer, (void)err;
    e->conn = c;
    e->opened++;
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    end *e = ctx;
    e->returned++;
    if (!e->echo) {
        sl_net_buf_give(e->net, payload);
        return SL_OK;
    }
    sl_status st = sl_net_send(e->net, c, (sl_wire_header){.kind = h->kind}, payload);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "echo");
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)c, (void)why, (void)text;
    ((end *)ctx)->downs++;
}

static sl_status start(end *e, const char *transport, sl_loop_hub *hub, const char *secret,
                       sl_err *err) {
    sl_net_opts o = {
        .transport = transport, .hub = hub, .host = "127.0.0.1", .clock = sl_clock_real()};
    o.secret = (sl_span){(const uint8_t *)secret, strlen(secret)};
    o.hello = (sl_hello){.worker = SL_NO_WORKER, .incarnation = 1u + e->echo};
    o.on = (sl_net_events){on_open, on_message, on_down};
    o.ctx = e;
    return sl_net_create(&o, &e->net, err);
}

static void *echo_main(void *arg) {
    end *e = arg;
    while (!atomic_load_explicit(&e->stop, memory_order_relaxed)) {
        if (!sl_net_progress(e->net)) sl_net_wait(e->net, WAIT_US);
    }
    return NULL;
}

static bool step_until(end *e, const uint32_t *counter, uint32_t want, uint64_t until_ns) {
    while (*counter < want && !e->downs && sl_now_ns() < until_ns) {
        if (!sl_net_progress(e->net)) sl_net_wait(e->net, WAIT_US);
    }
    return *counter >= want;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median half round trip in microseconds. */
static sl_status half_trip(end *e, size_t bytes, double *out, sl_err *err) {
    uint64_t ns[ROUNDS], until_ns = sl_now_ns() + BUDGET_NS;
    int n = 0;
    for (int i = -2; i < ROUNDS && (n == 0 || sl_now_ns() < until_ns); i++) {
        sl_buf *b = sl_net_buf_take(e->net, bytes);
        if (!b) return sl_fail(err, SL_ERR_NOMEM, "message of %zu bytes", bytes);
        memset(b->data, i, bytes);
        uint64_t began_ns = sl_now_ns();
        uint32_t want = e->returned + 1;
        sl_wire_header h = {.kind = SL_MSG_DISPATCH};
        sl_status st = sl_net_send(e->net, e->conn, h, b);
        if (st != SL_OK || !step_until(e, &e->returned, want, began_ns + 4 * BUDGET_NS))
            return sl_fail(err, SL_ERR_TIMEOUT, "a message of %zu bytes did not come back", bytes);
        if (i >= 0) ns[n++] = sl_now_ns() - began_ns;
    }
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    *out = (double)ns[n / 2] / 2e3;
    return SL_OK;
}

static sl_status measure(end *e, size_t bytes, sl_link_cost *out, sl_err *err) {
    double small = 0, large = 0;
    sl_status st = half_trip(e, SHORT_BYTES, &small, err);
    if (st == SL_OK) st = half_trip(e, bytes, &large, err);
    if (st == SL_OK)
        *out = (sl_link_cost){.alpha_us = small,
                              .byte_us = large > small ? (large - small) / (double)bytes : 0};
    return st;
}

sl_status sl_measure_link(const char *transport, size_t bytes, uint64_t seed, uint32_t delay_us,
                          sl_link_cost *out, sl_err *err) {
    end pair[2] = {{.echo = false}, {.echo = true}};
    sl_loop_hub *hub = NULL;
    uint8_t raw[16];
    char secret[33];
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    randombytes_buf(raw, sizeof raw);
    sodium_bin2hex(secret, sizeof secret, raw, sizeof raw);
    sl_status st = sl_loop_hub_create(seed, delay_us, &hub, err);
    if (st == SL_OK) st = start(&pair[1], transport, hub, secret, err);
    if (st == SL_OK) st = start(&pair[0], transport, hub, secret, err);
    bool echoes = st == SL_OK && pthread_create(&pair[1].thread, NULL, echo_main, &pair[1]) == 0;
    if (st == SL_OK && !echoes) st = sl_fail(err, SL_ERR_IO, "thread of a measurement");
    if (st == SL_OK)
        st = sl_net_connect(pair[0].net, sl_net_address(pair[1].net), NULL, &pair[0].conn, err);
    if (st == SL_OK && !step_until(pair, &pair[0].opened, 1, sl_now_ns() + 4 * BUDGET_NS))
        st = sl_fail(err, SL_ERR_TIMEOUT, "no connection over %s", transport);
    if (st == SL_OK) st = measure(pair, bytes, out, err);
    atomic_store_explicit(&pair[1].stop, true, memory_order_relaxed);
    if (echoes) {
        sl_net_wake(pair[1].net);
        pthread_join(pair[1].thread, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (pair[i].net) sl_net_free(pair[i].net);
    sl_loop_hub_free(hub);
    return st;
}

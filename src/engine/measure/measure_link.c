/* A message there and back between two nets of this process, each with a thread, as workers have.
 */
#include "base/clock.h"
#include "engine/measure/measure.h"
#include "net/probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_BYTES 64u
#define ROUNDS      15
#define BUDGET_NS   300000000ull

/* The end that echoes has a thread of its own. */
typedef struct echo {
    sl_probe probe;
    pthread_t thread;
    atomic_bool stop; /* relaxed: nothing is published with it */
} echo;

static void *echo_main(void *arg) {
    echo *e = arg;
    while (!atomic_load_explicit(&e->stop, memory_order_relaxed)) sl_probe_step(&e->probe);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median half round trip in microseconds. */
static sl_status half_trip(sl_probe *p, size_t bytes, double *out, sl_err *err) {
    uint64_t ns[ROUNDS], until_ns = sl_now_ns() + BUDGET_NS;
    int n = 0;
    for (int i = -2; i < ROUNDS && (n == 0 || sl_now_ns() < until_ns); i++) {
        uint64_t began_ns = sl_now_ns();
        uint32_t want = p->returned + 1;
        sl_status st = sl_probe_send(p, p->conn, bytes, i, err);
        if (st != SL_OK) return st;
        if (!sl_probe_await(p, &p->returned, want, began_ns + 4 * BUDGET_NS))
            return sl_fail(err, SL_ERR_TIMEOUT, "a message of %zu bytes did not come back", bytes);
        if (i >= 0) ns[n++] = sl_now_ns() - began_ns;
    }
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    *out = (double)ns[n / 2] / 2e3;
    return SL_OK;
}

static sl_status measure(sl_probe *p, size_t bytes, sl_link_cost *out, sl_err *err) {
    double small = 0, large = 0;
    sl_status st = half_trip(p, SHORT_BYTES, &small, err);
    if (st == SL_OK) st = half_trip(p, bytes, &large, err);
    if (st == SL_OK)
        *out = (sl_link_cost){.alpha_us = small,
                              .byte_us = large > small ? (large - small) / (double)bytes : 0};
    return st;
}

sl_status sl_measure_link(const char *transport, size_t bytes, uint64_t seed, uint32_t delay_us,
                          sl_link_cost *out, sl_err *err) {
    sl_probe here = {0};
    echo there = {.probe.echo = true};
    sl_loop_hub *hub = NULL;
    char secret[SL_SECRET_MAX + 1];
    sl_status st = sl_secret_make(secret, err);
    if (st == SL_OK) st = sl_loop_hub_create(seed, delay_us, &hub, err);
    if (st == SL_OK) st = sl_probe_start(&there.probe, transport, hub, secret, 1, err);
    if (st == SL_OK) st = sl_probe_start(&here, transport, hub, secret, 2, err);
    bool echoes = st == SL_OK && pthread_create(&there.thread, NULL, echo_main, &there) == 0;
    if (st == SL_OK && !echoes) st = sl_fail(err, SL_ERR_IO, "thread of a measurement");
    if (st == SL_OK)
        st = sl_net_connect(here.net, sl_net_address(there.probe.net), NULL, &here.conn, err);
    if (st == SL_OK && !sl_probe_await(&here, &here.opened, 1, sl_now_ns() + 4 * BUDGET_NS))
        st = sl_fail(err, SL_ERR_TIMEOUT, "no connection over %s", transport);
    if (st == SL_OK) st = measure(&here, bytes, out, err);
    atomic_store_explicit(&there.stop, true, memory_order_relaxed);
    if (echoes) {
        sl_net_wake(there.probe.net);
        pthread_join(there.thread, NULL);
    }
    sl_net_free(here.net);
    sl_net_free(there.probe.net);
    sl_loop_hub_free(hub);
    return st;
}

/* A message there and back between two nets of this process, each with a thread, as workers have.
 */
#include "base/clock.h"
#include "engine/measure/measure.h"
#include "net/probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_NS 300000000ull
#define LEAST     ((size_t)4096)

size_t sl_measure_long(double row_bytes, uint32_t rows) {
    const double bytes = row_bytes * SL_MAX(rows / 2, 1u);
    return bytes >= (double)SL_MEASURE_MOST ? SL_MEASURE_MOST : SL_MAX((size_t)bytes, LEAST);
}

sl_link_cost sl_measured_link(double short_us, double long_us, size_t long_bytes) {
    const double more_us = long_us > short_us ? long_us - short_us : 0;
    return (sl_link_cost){.alpha_us = short_us, .byte_us = more_us / (double)long_bytes};
}

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
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sl_measured_median(double *us, uint32_t n) {
    qsort(us, n, sizeof *us, by_value);
    return us[n / 2];
}

/* Median half round trip in microseconds. */
static sl_status half_trip(sl_probe *p, size_t bytes, double *out, sl_err *err) {
    double us[SL_MEASURE_ROUNDS];
    uint64_t until_ns = sl_now_ns() + BUDGET_NS;
    uint32_t n = 0;
    for (int i = -(int)SL_MEASURE_WARM;
         i < (int)SL_MEASURE_ROUNDS && (n == 0 || sl_now_ns() < until_ns); i++) {
        uint64_t began_ns = sl_now_ns();
        uint32_t want = p->returned + 1;
        sl_status st = sl_probe_send(p, p->conn, bytes, i, err);
        if (st != SL_OK) return st;
        if (!sl_probe_await(p, &p->returned, want, began_ns + 4 * BUDGET_NS))
            return sl_fail(err, SL_ERR_TIMEOUT, "a message of %zu bytes did not come back", bytes);
        if (i >= 0) us[n++] = (double)(sl_now_ns() - began_ns) / 2e3;
    }
    *out = sl_measured_median(us, n);
    return SL_OK;
}

static sl_status measure(sl_probe *p, size_t bytes, sl_link_cost *out, sl_err *err) {
    double small = 0, large = 0;
    sl_status st = half_trip(p, SL_MEASURE_SHORT, &small, err);
    if (st == SL_OK) st = half_trip(p, bytes, &large, err);
    if (st == SL_OK) *out = sl_measured_link(small, large, bytes);
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

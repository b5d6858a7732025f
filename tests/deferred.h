/* A device for tests: the CPU's stages, but a call is computed some time after submit and said to
 * be through some time after that; a seed decides when, and in which order among queues. What an
 * engine reads too early or changes too soon shows in bits. Time is the number of polls, so that it
 * also runs on a virtual clock. Thread: as of any device. */
#ifndef SL_TESTS_DEFERRED_H
#define SL_TESTS_DEFERRED_H

#include "base/rng.h"
#include "deferred_windows.h"
#include "stateful.h"

#include <stdatomic.h>

#define DEFERRED_MOST 256u /* calls in flight in one queue */

typedef struct deferred_queue {
    sl_stage_call call[DEFERRED_MOST]; /* ring */
    uint64_t given, computed, done;
} deferred_queue;

/* Who makes such devices. */
typedef struct deferred_maker {
    _Atomic uint64_t seed; /* of the next one */
    bool stateful;         /* they compute as stateful.h does */
    bool windows;          /* they reach memory of each other */
} deferred_maker;

typedef struct deferred {
    around in;
    uint64_t rng;
    deferred_queue queue[SL_STAGE_QUEUES];
    deferred_windows windows;
} deferred;

static bool deferred_once_in(deferred *d, uint32_t n) {
    return sl_rng_below(&d->rng, n) == 0;
}

static void deferred_compute(deferred *d, deferred_queue *q) {
    const sl_stage_call *c = &q->call[q->computed++ % DEFERRED_MOST];
    deferred_windows_look(&d->windows, c);
    sl_device_submit(d->in.inner, c);
}

static void deferred_submit(sl_device *base, const sl_stage_call *c) {
    deferred *d = (deferred *)base;
    deferred_queue *q = &d->queue[c->queue];
    SL_ASSERT(q->given - q->done < DEFERRED_MOST);
    q->call[q->given++ % DEFERRED_MOST] = *c;
    if (q->computed + 1 == q->given && deferred_once_in(d, 4)) deferred_compute(d, q);
}

/* Of the queues with calls in flight, which there are. */
static uint32_t deferred_pick(deferred *d) {
    uint32_t busy[SL_STAGE_QUEUES], n = 0;
    for (uint32_t i = 0; i < SL_STAGE_QUEUES; i++)
        if (d->queue[i].done < d->queue[i].given) busy[n++] = i;
    return busy[sl_rng_below(&d->rng, n)];
}

/* Once in two times nothing; else one queue gets a little further. */
static void deferred_poll(sl_device *base) {
    deferred *d = (deferred *)base;
    if (deferred_once_in(d, 2)) return;
    uint32_t i = deferred_pick(d);
    deferred_queue *q = &d->queue[i];
    bool compute = q->computed < q->given && (q->computed == q->done || deferred_once_in(d, 2));
    if (compute) {
        deferred_compute(d, q);
        return;
    }
    sl_device_drain(d->in.inner); /* ranks on machines begin when they are polled */
    q->done++;
    around_done(base, i);
}

static sl_status deferred_offer(sl_device *base, size_t bytes, sl_mem *out, sl_device_key *key,
                                sl_err *err) {
    return deferred_windows_offer(&((deferred *)base)->windows, bytes, out, key, err);
}

static sl_status deferred_join(sl_device *base, sl_span key, sl_mem *out, sl_err *err) {
    return deferred_windows_join(&((deferred *)base)->windows, key, out, err);
}

static void deferred_part(sl_device *base, sl_mem m) {
    sl_device_drain(base);
    deferred_windows_part(&((deferred *)base)->windows, (const uint8_t *)(uintptr_t)m.at);
}

static void deferred_close(sl_device *base) {
    deferred_windows *w = &((deferred *)base)->windows;
    while (w->n) deferred_windows_part(w, w->at[0]->p);
    around_close(base);
}

/* For sl_device_maker: ctx is a deferred_maker. */
static inline sl_status deferred_open(void *ctx, const sl_device_opts *o, sl_device **out,
                                      sl_err *err) {
    static const sl_device_ops ops = {.close = deferred_close,
                                      .offer = deferred_offer,
                                      .join = deferred_join,
                                      .part = deferred_part,
                                      .submit = deferred_submit,
                                      .poll = deferred_poll,
                                      .take = around_take,
                                      .give = around_give,
                                      .host = around_host,
                                      .read_page = around_read_page,
                                      .write_page = around_write_page};
    deferred_maker *maker = ctx;
    sl_device_opts inner = *o;
    inner.tick = NULL; /* no fabric while a drain computes */
    around *a;
    sl_status st = around_open(sizeof(deferred), &ops,
                               maker->stateful ? stateful_open : sl_device_open, &inner, &a, err);
    if (st != SL_OK) return st;
    deferred *d = (deferred *)a;
    d->rng = atomic_fetch_add(&maker->seed, 1) * 7919 + 1;
    /* Who uses a device that does not has to copy more. */
    d->in.base.in_place = d->in.base.in_place && deferred_once_in(d, 2);
    d->in.base.windows = maker->windows;
    d->windows.top_k = d->in.base.spec->top_k;
    *out = &d->in.base;
    return SL_OK;
}

#endif

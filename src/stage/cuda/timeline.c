/* Marks around calls, and what they say on the host's clock. */
#include "stage/cuda/timeline.h"

#include "base/clock.h"
#include "base/log.h"

#define TRIES     8u
#define RENEW_NS  1000000000u
#define NS_PER_MS 1e6

static bool make(sl_cuda_timeline *t, sl_cuda_event **event) {
    sl_err err;
    if (*event) return true;
    if (sl_cuda_event_create(t->c, event, &err) == SL_OK) return true;
    sl_log(SL_LOG_WARN, "cuda", "calls are not timed: %s", err.msg);
    t->failed = true;
    return false;
}

static uint64_t after(const sl_cuda_timeline *t, const sl_cuda_event *e) {
    const double ns = (double)sl_cuda_event_ms(t->c, t->origin, e) * NS_PER_MS;
    return t->origin_ns + (ns > 0 ? (uint64_t)ns : 0);
}

static bool begin(sl_cuda_timeline *t) {
    sl_cuda_event *other = NULL;
    uint64_t least = UINT64_MAX;
    if (!make(t, &t->origin) || !make(t, &other)) return false;
    sl_cuda_drain(t->c);
    for (uint32_t i = 0; i < TRIES; i++) {
        const uint64_t before = sl_now_ns();
        sl_cuda_event_record(t->c, other);
        sl_cuda_event_wait(t->c, other);
        const uint64_t took = sl_now_ns() - before;
        if (took >= least) continue;
        sl_cuda_event *best = other;
        other = t->origin;
        t->origin = best;
        t->origin_ns = before + took / 2;
        least = took;
    }
    sl_cuda_event_free(t->c, other);
    t->goes = true;
    return true;
}

bool sl_cuda_timeline_begin(sl_cuda_timeline *t, uint64_t number) {
    sl_cuda_timed *at = &t->timed[number % SL_CUDA_TIMED];
    if (t->failed || (!t->goes && !begin(t))) return false;
    if (at->number || !make(t, &at->from) || !make(t, &at->to)) return false;
    sl_cuda_event_record(t->c, at->from);
    return true;
}

void sl_cuda_timeline_end(sl_cuda_timeline *t, uint64_t number, sl_cuda_event *mark) {
    sl_cuda_timed *at = &t->timed[number % SL_CUDA_TIMED];
    sl_cuda_event_record(t->c, at->to);
    if (mark) sl_cuda_event_record(t->c, mark);
    at->number = number;
}

/* The mark at->to, at that time, is the origin from now on. */
static void renew(sl_cuda_timeline *t, sl_cuda_timed *at, uint64_t ns) {
    sl_cuda_event *old = t->origin;
    t->origin = at->to;
    t->origin_ns = ns;
    at->to = old;
}

void sl_cuda_timeline_tell(sl_cuda_timeline *t, uint64_t number, const sl_device *d,
                           const sl_stage_call *c, bool whole) {
    sl_cuda_timed *at = &t->timed[number % SL_CUDA_TIMED];
    SL_ASSERT(at->number == number);
    at->number = 0;
    const uint64_t end_ns = SL_MIN(after(t, at->to), sl_now_ns());
    const uint64_t begin_ns = SL_MIN(after(t, at->from), end_ns);
    if (d->watch.ran) d->watch.ran(d->watch.ctx, c, whole, begin_ns, end_ns);
    if (end_ns >= t->origin_ns + RENEW_NS) renew(t, at, end_ns);
}

void sl_cuda_timeline_free(sl_cuda_timeline *t) {
    if (!t->c) return;
    sl_cuda_event_free(t->c, t->origin);
    for (uint32_t i = 0; i < SL_CUDA_TIMED; i++) {
        sl_cuda_event_free(t->c, t->timed[i].from);
        sl_cuda_event_free(t->c, t->timed[i].to);
    }
}

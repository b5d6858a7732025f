/* What is to happen, in order of time. */
#include "sim/events.h"

#include "base/mem.h"

#define CHILDREN  4u
#define FIRST_CAP 1024u

static bool sooner(const sl_sim_event *a, const sl_sim_event *b) {
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sl_sim_events_push(sl_sim_events *e, double at, uint32_t kind, uint32_t who, uint64_t what) {
    SL_ASSERT(at >= e->now);
    if (e->n == e->cap) {
        size_t cap = SL_MAX(e->cap * 2, (size_t)FIRST_CAP);
        sl_sim_event *bigger = sl_grow(e->heap, e->cap, cap, sizeof *bigger);
        if (!bigger) {
            e->failed = true;
            return;
        }
        e->heap = bigger;
        e->cap = cap;
    }
    const sl_sim_event new = {
        .at = at, .order = e->pushed++, .kind = kind, .who = who, .what = what};
    size_t i = e->n++;
    for (; i > 0 && sooner(&new, &e->heap[(i - 1) / CHILDREN]); i = (i - 1) / CHILDREN)
        e->heap[i] = e->heap[(i - 1) / CHILDREN];
    e->heap[i] = new;
}

bool sl_sim_events_pop(sl_sim_events *e, sl_sim_event *out) {
    if (e->n == 0) return false;
    *out = e->heap[0];
    SL_ASSERT(out->at >= e->now);
    e->now = out->at;
    e->popped++;
    const sl_sim_event last = e->heap[--e->n];
    size_t i = 0;
    for (size_t first = 1; first < e->n; first = CHILDREN * i + 1) {
        size_t best = first, end = SL_MIN(first + CHILDREN, e->n);
        for (size_t c = first + 1; c < end; c++)
            if (sooner(&e->heap[c], &e->heap[best])) best = c;
        if (!sooner(&e->heap[best], &last)) break;
        e->heap[i] = e->heap[best];
        i = best;
    }
    e->heap[i] = last;
    return true;
}

bool sl_sim_events_at_once(const sl_sim_events *e) {
    return e->n > 0 && e->heap[0].at == e->now;
}

void sl_sim_events_free(sl_sim_events *e) {
    sl_free(e->heap);
    *e = (sl_sim_events){0};
}

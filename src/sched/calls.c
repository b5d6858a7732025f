/* Calls outside of rounds: places, their order, what is left of those who go. */
#include "sched/calls.h"

#include <inttypes.h>

#include "base/mem.h"

enum { EMPTY, WAITS, RUNS, LEFT /* RUNS, and its sender went */ };

sl_status sl_calls_create(const sl_idset *members, uint32_t each, sl_calls *out, sl_err *err) {
    size_t n = members->n * (size_t)each;
    *out = (sl_calls){.members = members, .each = each, .running = SL_CALLS_NONE};
    if (n >= SL_CALLS_NONE)
        return sl_fail(err, SL_ERR_LIMIT, "%" PRIu32 " calls of each of %zu members", each,
                       members->n);
    out->arrays = sl_alloc_arrays(SL_ARRAY(out->state, n + 1), SL_ARRAY(out->queue, n + 1));
    return out->arrays ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%zu calls", n);
}

void sl_calls_free(sl_calls *c) {
    sl_free(c->arrays);
    *c = (sl_calls){0};
}

/* The first place of a member that is in this state. */
static uint32_t find(const sl_calls *c, size_t member, uint8_t state) {
    uint32_t first = (uint32_t)member * c->each;
    for (uint32_t p = first; p < first + c->each; p++)
        if (c->state[p] == state) return p;
    return SL_CALLS_NONE;
}

sl_status sl_calls_on_call(sl_calls *c, uint32_t member, uint32_t *place, sl_err *err) {
    size_t at;
    *place = SL_CALLS_NONE;
    if (!sl_idset_find(c->members, member, &at))
        return sl_fail(err, SL_ERR_PROTOCOL, "call of worker %" PRIu32, member);
    *place = find(c, at, EMPTY);
    if (*place == SL_CALLS_NONE)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %" PRIu32 " has %" PRIu32 " calls here that are not answered",
                       member, c->each);
    c->state[*place] = WAITS;
    c->queue[(c->head + c->n++) % sl_calls_places(c)] = *place;
    return SL_OK;
}

uint32_t sl_calls_begin(sl_calls *c) {
    SL_ASSERT(c->running == SL_CALLS_NONE);
    if (c->n == 0) return SL_CALLS_NONE;
    c->running = c->queue[c->head];
    c->head = (c->head + 1) % sl_calls_places(c);
    c->n--;
    c->state[c->running] = RUNS;
    return c->running;
}

bool sl_calls_is_owed(const sl_calls *c) {
    return c->running != SL_CALLS_NONE && c->state[c->running] == RUNS;
}

void sl_calls_end(sl_calls *c) {
    c->state[c->running] = EMPTY;
    c->running = SL_CALLS_NONE;
}

/* Out of the ring, which keeps its order. */
static void unqueue(sl_calls *c, uint32_t place) {
    uint32_t places = sl_calls_places(c), kept = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t p = c->queue[(c->head + i) % places];
        if (p != place) c->queue[(c->head + kept++) % places] = p;
    }
    c->n = kept;
}

uint32_t sl_calls_drop(sl_calls *c, uint32_t member) {
    size_t at;
    if (!sl_idset_find(c->members, member, &at)) return SL_CALLS_NONE;
    uint32_t place = find(c, at, RUNS);
    if (place != SL_CALLS_NONE) c->state[place] = LEFT;
    place = find(c, at, WAITS);
    if (place == SL_CALLS_NONE) return place;
    c->state[place] = EMPTY;
    unqueue(c, place);
    return place;
}

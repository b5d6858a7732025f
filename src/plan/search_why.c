/* What a search found, in words: layouts, what binds, why one wins. */
#include "plan/search.h"

#include <stdio.h>

const char *sl_layout_name(sl_layout_kind k) {
#define SL_PLANNED(id, name, why)                                        [SL_LAYOUT_##id] = name,
#define SL_SCHEDULE(id, name, where, how, lanes, chunks, chunking, anew) SL_PLANNED(id, name, )
    static const char *const names[SL_LAYOUT_COUNT] = {
#include "spec/schedules.def"
    };
#undef SL_SCHEDULE
#undef SL_PLANNED
    return names[k];
}

const char *sl_binding_name(sl_binding b) {
    static const char *const names[SL_BINDING_COUNT] = {"KV memory", "TPOT", "TTFT", "clients",
                                                        "gain"};
    return names[b];
}

const char *sl_station_name(sl_station s) {
    static const char *const names[SL_STATION_COUNT] = {"attention", "experts", "link", "round"};
    return names[s];
}

/* What the experts of the winner have, against those of the runner-up. */
static size_t experts_text(const sl_candidate *w, const sl_candidate *r, char *out, size_t room) {
    const char *state = w->expert_rows < w->expert_knee ? "weight-bound" : "compute-bound";
    int n = w->expert_knee >= 1
                ? snprintf(out, room, "experts are weight-bound below %.0f rows and get %.0f (%s)",
                           w->expert_knee, w->expert_rows, state)
                : snprintf(out, room, "experts are never weight-bound and get %.0f rows",
                           w->expert_rows);
    if (r && n > 0) n += snprintf(out + n, room - (size_t)n, " against %.0f", r->expert_rows);
    return n > 0 ? (size_t)n : 0;
}

static size_t stop_text(const sl_candidate *w, char *out, size_t room) {
    static const char *const texts[SL_BINDING_COUNT] = {
        "KV memory stops the batch at", "the TPOT objective stops the batch at",
        "the TTFT objective stops the batch at", "there are requests for no more than",
        "tok/s hardly grow beyond"};
    return (size_t)snprintf(out, room, "; %s %u rows a lane", texts[w->binding], w->rows);
}

void sl_search_about(const sl_candidate *c, const sl_candidate *other, char out[SL_SEARCH_TEXT]) {
    static const char *const busy[SL_STATION_COUNT] = {"attention is busiest",
                                                       "experts are busiest", "the link is busiest",
                                                       "no station is busy all the time"};
    size_t room = SL_SEARCH_TEXT, n = experts_text(c, other, out, room);
    n += (size_t)snprintf(out + n, room - n, "; %s in a layer's %.0f us", busy[c->bottleneck],
                          c->layer_us);
    if (c->link_us > 0)
        n += (size_t)snprintf(out + n, room - n, ", %.0f %% of transfers beside computing",
                              100 * c->hidden);
    stop_text(c, out + n, room - n);
}

void sl_search_why(const sl_search_problem *p, const sl_search_result *r,
                   char out[SL_SEARCH_TEXT]) {
    static const char *const units[] = {"tok/s", "tok/s/$", "tok/s a device"};
    const sl_candidate *w = sl_search_winner(r), *next = sl_search_runner_up(r);
    char about[SL_SEARCH_TEXT];
    size_t n = 0, room = SL_SEARCH_TEXT;
    out[0] = '\0';
    if (!w) return;
    n += (size_t)snprintf(out, room, "%s wins", sl_layout_name(w->layout.kind));
    if (next && w->per_cost < 1.005 * next->per_cost)
        n += (size_t)snprintf(out + n, room - n, ", %s is as good",
                              sl_layout_name(next->layout.kind));
    else if (next)
        n += (size_t)snprintf(out + n, room - n, " with %.2f times the %s of %s",
                              w->per_cost / next->per_cost, units[p->objective],
                              sl_layout_name(next->layout.kind));
    sl_search_about(w, next, about);
    n += (size_t)snprintf(out + n, room - n, ": ");
    snprintf(out + n, room - n, "%.*s", (int)(room - n - 1), about);
}

#include "plan/search.h"

#include <math.h>
#include <stdio.h>

const char *sl_layout_name(sl_layout_kind k) {
    static const char *const names[SL_LAYOUT_COUNT] = {"ep",  "eps",      "hybrid", "pipeline",
                                                       "dep", "pingpong", "findep", "aep"};
    return names[k];
}

const char *sl_binding_name(sl_binding b) {
    static const char *const names[SL_BINDING_COUNT] = {"KV memory", "TPOT", "TTFT", "clients"};
    return names[b];
}

const char *sl_station_name(sl_station s) {
    static const char *const names[SL_STATION_COUNT] = {"attention", "experts", "link", "round"};
    return names[s];
}

/* What the experts of the winner have, against those of the runner-up. */
static size_t experts_text(const sl_candidate *w, const sl_candidate *r, char *out, size_t room) {
    const char *state = w->expert_rows < w->expert_knee ? "weight-bound" : "compute-bound";
    int n = snprintf(out, room, "experts are weight-bound below %.0f rows and get %.0f (%s)",
                     w->expert_knee, w->expert_rows, state);
    if (r && n > 0) n += snprintf(out + n, room - (size_t)n, " against %.0f", r->expert_rows);
    return n > 0 ? (size_t)n : 0;
}

void sl_search_why(const sl_search_problem *p, const sl_search_result *r,
                   char out[SL_SEARCH_TEXT]) {
    static const char *const units[] = {"tok/s", "tok/s/$", "tok/s a device"};
    const sl_candidate *w = sl_search_winner(r), *next = sl_search_runner_up(r);
    size_t n = 0;
    out[0] = '\0';
    if (!w) return;
    const sl_layout *l = &w->layout;
    n += (size_t)snprintf(out + n, SL_SEARCH_TEXT - n, "%s wins", sl_layout_name(l->kind));
    if (next)
        n += (size_t)snprintf(out + n, SL_SEARCH_TEXT - n, " with %.2f times the %s of %s",
                              w->per_cost / next->per_cost, units[p->objective],
                              sl_layout_name(next->layout.kind));
    n += (size_t)snprintf(out + n, SL_SEARCH_TEXT - n, ": ");
    n += experts_text(w, next, out + n, SL_SEARCH_TEXT - n);
    n += (size_t)snprintf(
        out + n, SL_SEARCH_TEXT - n,
        "; %.0f %% of transfers are hidden%s; %s takes most of a layer's %.0f us; "
        "%s stops the batch at %u rows a lane",
        100 * w->hidden, w->bound ? " (optimistic: no law)" : "", sl_station_name(w->bottleneck),
        w->layer_us, sl_binding_name(w->binding), w->rows);
}

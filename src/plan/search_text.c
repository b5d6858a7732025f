#include "plan/search.h"

#include <math.h>
#include <stdio.h>

const char *sl_layout_name(sl_layout_kind k) {
#define SL_PLANNED(id, name)                                       [SL_LAYOUT_##id] = name,
#define SL_SCHEDULE(id, name, where, how, lanes, chunks, chunking) SL_PLANNED(id, name)
    static const char *const names[SL_LAYOUT_COUNT] = {
#include "spec/schedules.def"
    };
#undef SL_SCHEDULE
#undef SL_PLANNED
    return names[k];
}

const char *sl_layout_not_run(const sl_layout *l) {
    if (l->kind == SL_LAYOUT_PIPELINE) return "pipeline stages";
    if (l->tp_a > 1 || l->tp_e > 1) return "tensor parallelism";
    if (l->kind == SL_LAYOUT_HYBRID) return "schedule hybrid";
    uint64_t workers = (uint64_t)l->n_a + (sl_layout_is_apart(l->kind) ? l->n_e : 0);
    return workers > SL_PLAN_MAX_WORKERS ? "more than 64 workers" : NULL;
}

static void lower(double *least, double x) {
    if (*least == 0 || x < *least) *least = x;
}

void sl_search_note_slow(sl_search_lack *l, const sl_workload *w, double tpot_us, double ttft_us) {
    if (w->slo_tpot_us > 0 && tpot_us > w->slo_tpot_us)
        lower(&l->tpot_us, tpot_us);
    else
        lower(&l->ttft_us, ttft_us);
}

void sl_search_note_short(sl_search_lack *l, double bytes) {
    lower(&l->bytes, bytes);
}

sl_status sl_search_infeasible(const sl_search_problem *p, const sl_search_lack *l, sl_err *err) {
    const sl_workload *w = p->workload;
    if (l->rate > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%.3g requests/s are too many: this cluster serves %.3g with these "
                       "objectives; nearest change: %.1f times the devices",
                       w->arrival.rate, l->rate, w->arrival.rate / l->rate);
    if (l->ttft_us > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "no deployment gives the first token in %.0f ms; nearest change: "
                       "--slo-ttft %.0fms",
                       w->slo_ttft_us / 1e3, ceil(l->ttft_us / 1e3));
    if (l->tpot_us > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "no deployment gives a token every %.3g ms; nearest change: --slo-tpot "
                       "%.1fms",
                       w->slo_tpot_us / 1e3, ceil(l->tpot_us / 100) / 10);
    if (l->bytes > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%s does not fit: nearest change: %.1f GB more memory a device, or more "
                       "devices",
                       p->shape->name, l->bytes / 1e9 / (1 - p->reserve));
    return sl_fail(err, SL_ERR_INFEASIBLE, "%s: the cluster has too few devices", p->shape->name);
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

void sl_search_why(const sl_search_problem *p, const sl_search_result *r,
                   char out[SL_SEARCH_TEXT]) {
    static const char *const units[] = {"tok/s", "tok/s/$", "tok/s a device"};
    static const char *const busy[SL_STATION_COUNT] = {"attention is busiest",
                                                       "experts are busiest", "the link is busiest",
                                                       "no station is busy all the time"};
    const sl_candidate *w = sl_search_winner(r), *next = sl_search_runner_up(r);
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
    n += (size_t)snprintf(out + n, room - n, ": ");
    n += experts_text(w, next, out + n, room - n);
    n += (size_t)snprintf(out + n, room - n, "; %s in a layer's %.0f us", busy[w->bottleneck],
                          w->layer_us);
    if (w->link_us > 0)
        n += (size_t)snprintf(out + n, room - n, ", %.0f %% of transfers beside computing",
                              100 * w->hidden);
    stop_text(w, out + n, room - n);
}

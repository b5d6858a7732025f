/* Expert-parallel groups side by side: their law, its best point, what they gain. */
#include "plan/eps.h"

#include <math.h>

static double slowest(double a, double b, double c) {
    return fmax(fmax(a, b), c);
}

double sl_eps_time(const sl_eps_times *t, uint32_t n) {
    double most = slowest(t->dispatch, t->compute, t->combine);
    double rest = t->dispatch + t->compute + t->combine - most;
    return rest / n + most + (n + 2) * t->overhead;
}

double sl_eps_best_real(const sl_eps_times *t) {
    double most = slowest(t->dispatch, t->compute, t->combine);
    return sqrt((t->dispatch + t->compute + t->combine - most) / t->overhead);
}

double sl_eps_published_gain(double communication, double computation, double k, double b,
                             uint32_t n) {
    double c = fmin(communication, computation);
    return c - b - (c / n + k * n);
}

double sl_eps_published_best(double communication, double computation, double k) {
    return sqrt(fmin(communication, computation) / k);
}

double sl_eps_replay(const double *dispatch, const double *compute, const double *combine,
                     uint32_t n, bool shared_link) {
    double out = 0, work = 0, back = 0, all = 0;
    for (uint32_t i = 0; i < n && shared_link; i++) all += dispatch[i];
    back = all;
    for (uint32_t i = 0; i < n; i++) {
        out += dispatch[i];
        work = fmax(work, out) + compute[i];
        back = fmax(back, work) + combine[i];
    }
    return back;
}

/* The recurrence for equal groups. */
static double line(const sl_eps_cut *c, bool shared_link) {
    double out = 0, work = 0, back = shared_link ? c->n * c->dispatch : 0;
    for (uint32_t i = 0; i < c->n; i++) {
        out += c->dispatch;
        work = fmax(work, out) + c->compute;
        back = fmax(back, work) + c->combine;
    }
    return back;
}

double sl_eps_layer(const sl_eps_cut *c, const sl_eps_beside *beside, bool shared_link) {
    const double away = beside->lag + line(c, shared_link);
    return beside->attention + fmax(away, beside->shared + c->n * c->compute);
}

sl_status sl_eps_choose(sl_eps_cut *cut, uint32_t n_cuts, const sl_eps_beside *beside,
                        bool shared_link, uint32_t *out, sl_err *err) {
    uint32_t best = 0;
    if (n_cuts == 0) return sl_fail(err, SL_ERR_ARG, "expert groups: no way to cut was given");
    for (uint32_t i = 0; i < n_cuts; i++) {
        const sl_eps_cut *c = &cut[i];
        if (c->n == 0 || c->n > SL_EPS_MAX_GROUPS)
            return sl_fail(err, SL_ERR_ARG, "%u expert groups, 1 to %u", c->n, SL_EPS_MAX_GROUPS);
        if (!(c->dispatch >= 0 && c->compute >= 0 && c->combine >= 0))
            return sl_fail(err, SL_ERR_ARG, "a stage of %u expert groups takes %g, %g, %g", c->n,
                           c->dispatch, c->compute, c->combine);
        cut[i].time = beside ? sl_eps_layer(c, beside, shared_link) : line(c, shared_link);
        if (cut[i].time < cut[best].time) best = i;
    }
    *out = best;
    return SL_OK;
}

sl_status sl_eps_best(const sl_eps_times *t, uint32_t experts, bool shared_link, sl_eps_cut *out,
                      sl_err *err) {
    sl_eps_cut cut[SL_EPS_MAX_GROUPS];
    uint32_t n = 0, best = 0;
    for (uint32_t d = 1; d <= SL_MIN(experts, SL_EPS_MAX_GROUPS); d++) {
        if (experts % d) continue;
        cut[n++] = (sl_eps_cut){.n = d,
                                .dispatch = t->dispatch / d + t->overhead,
                                .compute = t->compute / d + t->overhead,
                                .combine = t->combine / d + t->overhead};
    }
    sl_status st = sl_eps_choose(cut, n, NULL, shared_link, &best, err);
    if (st == SL_OK) *out = cut[best];
    return st;
}

bool sl_eps_gains(const sl_eps_cut *whole, const sl_eps_cut *group) {
    double n = group->n, d = n * group->dispatch, g = n * group->compute, c = n * group->combine;
    double more = d + g + c - (whole->dispatch + whole->compute + whole->combine);
    return more < (n - 1) / n * (d + g + c - slowest(d, g, c));
}

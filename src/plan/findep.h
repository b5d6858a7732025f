/* FinDEP, corrected: r1 micro-batches of r2 chunks each pass T layers over four stations, the
 * attention side, the link out, the experts and the link back, each of which runs one task at a
 * time, first come first served.
 *
 *   A -> S on the attention side; A -> C_j -> E_j -> D_j for each chunk j; the next layer's A needs
 *   all D and S of this one. Layers run A0 S0 A1 S1 ... (ASAS) or A0 A1 ... S0 S1 ... (AASS).
 *
 * With equal micro-batches and equal chunks the makespan has a closed form for either order; what
 * the paper prints (Eq. 13) has (r2-1)Y once too often and no form for AASS. Pure. Thread: any. */
#ifndef SL_PLAN_FINDEP_H
#define SL_PLAN_FINDEP_H

#include "base/status.h"
#include "spec/findep.h"

/* Duration of one task of each kind, milliseconds (any one unit will do). */
typedef struct sl_findep_times {
    double a, s;    /* attention, shared experts: of a micro-batch */
    double c, e, d; /* to the experts, experts, back: of a chunk */
    double lag;     /* of a way there and back: what passes while no station works on it */
} sl_findep_times;

/* Makespan of `layers` layers: all counts >= 1, all times >= 0. ASAS: (T-1)L + max(X,G) + (r1-1)F.
 * AASS: the maximum over its critical paths, the cycle over two layers included. */
double sl_findep_makespan(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                          sl_order order);
/* The same when both directions of the link share one medium, e.g. colocated workers: a model, not
 * exact, with c + d in the place of either where the link is what limits. */
double sl_findep_makespan_half(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                               sl_order order);
/* Eq. 13 as printed, for ASAS; the paper has none for AASS. */
double sl_findep_published(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2);
/* No order of the tasks is faster, not even another one than ASAS and AASS. */
double sl_findep_bound(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2);
/* Time per layer when there are many. */
double sl_findep_period(const sl_findep_times *t, uint32_t r1, uint32_t r2, sl_order order);

/* The makespan by the recurrence "a task starts when its station is free and its input is there",
 * O(layers r1 r2), for micro-batches that differ: lane [r1], chunks [r1] (>= 1 each). Scratch:
 * ready, done [r1]. */
double sl_findep_replay(const sl_findep_times *lane, const uint32_t *chunks, uint32_t layers,
                        uint32_t r1, sl_order order, double *ready, double *done);

/* The times of a point. Chunks by expert group have all of a
 * micro-batch's rows of their experts, and r2 of them read all weights once. */
sl_findep_times sl_findep_times_at(const sl_findep_problem *p, const sl_findep_point *at);

/* Most micro-batches of `ma` samples that fit: the batch, r1_max, memory. 0: not one; then *why is
 * what binds. *r2_min: fewest chunks that fit the expert workers' slots (UINT32_MAX: none). */
uint32_t sl_findep_max_r1(const sl_findep_problem *p, uint32_t ma, uint32_t *r2_min,
                          const char **why);

typedef struct sl_findep_result {
    sl_findep_point at;
    double tokens; /* per expert and chunk */
    double makespan_ms;
    double published_ms; /* Eq. 13 of it; 0 for AASS */
    double bound_ms;
    double samples_per_s; /* of all attention workers */
} sl_findep_result;

/* One point, whether or not batch and memory allow it. SL_ERR_ARG: every time is 0. */
sl_status sl_findep_evaluate(const sl_findep_problem *p, const sl_findep_point *at,
                             sl_findep_result *out, sl_err *err) SL_MUST_CHECK;
/* The point with most samples per second over all (ma, r1, r2, order, cut). For given ma the
 * largest r1 is best, as every critical path's constant part is >= 0 (the paper's Theorem 3); no
 * such rule holds for ma and r2 once tokens are integers, so all are tried. `published`: searches
 * ASAS by Eq. 13 instead, as the paper does. SL_ERR_INFEASIBLE: not one sample fits, and why. */
sl_status sl_findep_solve(const sl_findep_problem *p, bool published, sl_findep_result *out,
                          sl_err *err) SL_MUST_CHECK;

#endif

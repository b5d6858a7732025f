/* EPS-MoE: the experts of a colocated worker in N groups, a group's transfer beside the others'
 * computation. One MoE layer is a line of three stages, dispatch, experts, combine; the paper's
 * formulas know two. Any unit of time. Pure. Thread: any. */
#ifndef SL_PLAN_EPS_H
#define SL_PLAN_EPS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_eps_times {
    double dispatch, compute, combine; /* of the layer in one piece, without overhead */
    double overhead;                   /* of each stage and group: launch, message, wake-up */
} sl_eps_times;

/* T(N) = (Sd + G + Sc - M) / N + M + (N + 2) o, M = max(Sd, G, Sc): N equal groups, directions that
 * do not share a link. n >= 1. */
double sl_eps_time(const sl_eps_times *t, uint32_t n);
/* The real N with the least T; may be below 1 or above the number of experts. */
double sl_eps_best_real(const sl_eps_times *t);

/* What the paper prints: benefit of N >= 2 groups, C - b - (C/N + kN) with C = min(communication,
 * computation), which is largest at N = sqrt(C / k). It counts two stages; for N = 1 it gives a
 * cost that the plain path does not have. */
double sl_eps_published_gain(double communication, double computation, double k, double b,
                             uint32_t n);
double sl_eps_published_best(double communication, double computation, double k);

/* The line by recurrence, groups of any size: times of group i of each stage [n]. With
 * shared_link dispatch and combine take turns on one link, all dispatches are there at once and
 * a combine waits for what came before it. */
double sl_eps_replay(const double *dispatch, const double *compute, const double *combine,
                     uint32_t n, bool shared_link);

/* One way to cut: n groups whose stages take so long each, as measured or modelled (S(m/N),
 * G(m/N, E/N)); `time` is filled in. */
typedef struct sl_eps_cut {
    uint32_t n;
    double dispatch, compute, combine; /* of one group */
    double time;
} sl_eps_cut;

/* What else a layer of the same worker takes: attention before the groups, shared experts while
 * they are away, and what passes there and back while no station works on it. */
typedef struct sl_eps_beside {
    double attention, shared, lag;
} sl_eps_beside;

/* A whole layer cut so: a + max(lag + line, s + N e), as one worker computes all but the transfers;
 * the line is the recurrence for equal groups. */
double sl_eps_layer(const sl_eps_cut *c, const sl_eps_beside *beside, bool shared_link);

/* Index of the fastest of n_cuts cuts by the recurrence; ties: the first. Any n up to
 * SL_EPS_MAX_GROUPS; beside: NULL, or of whole layers. SL_ERR_ARG: none, or one of 0 or too many
 * groups, or a negative time. */
#define SL_EPS_MAX_GROUPS 1024u
sl_status sl_eps_choose(sl_eps_cut *cut, uint32_t n_cuts, const sl_eps_beside *beside,
                        bool shared_link, uint32_t *out, sl_err *err) SL_MUST_CHECK;

/* The fastest N among the divisors of `experts` (of one worker), as weights are cut by expert. */
sl_status sl_eps_best(const sl_eps_times *t, uint32_t experts, bool shared_link, sl_eps_cut *out,
                      sl_err *err) SL_MUST_CHECK;

/* Whether N groups of which each stage takes `group` gain over one piece that takes `whole`,
 * exactly: with eps0 = N S(m/N) / S(m) - 1 and eps1 of computation likewise, eps0 (Sd + Sc) + eps1
 * G < (N-1)/N (Sd' + Sc' + G' - max(Sd', Sc', G')), X' = (1 + eps) X. */
bool sl_eps_gains(const sl_eps_cut *whole, const sl_eps_cut *group);

#endif

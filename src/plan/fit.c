/* Lines through measured times of stages and links, robust against bad ones. */
#include "plan/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_VARS       6 /* fixed, floor, row, key, padded row, row on the floor */
#define ROUNDS       12
#define BIWEIGHT     4.685 /* of scales: 95 % efficient on normal noise */
#define SMALLEST     0.002 /* scale of relative errors that counts as exact */
#define MAX_SPLITS   24
#define OUTLIER_FROM 1e-9 /* weight below which a point counts as an outlier */
#define MAX_STEP     64u  /* groups of 2, 4, ... rows */
#define WORTH_IT     0.9  /* what the error has to shrink to for a step or a rate... */
#define WORTH_A_KNEE 0.6  /* ...or for a knee, which a few outliers look like */
#define BEYOND       3u   /* sizes above a knee */

typedef struct sl_fit {
    const sl_profile_point *p;
    uint32_t n, step;
    bool slopes; /* the floor may have a slope: not where keys would have to share it */
    double weight[SL_PROFILE_MAX_POINTS];
    bool on_floor[SL_PROFILE_MAX_POINTS];
    double error[SL_PROFILE_MAX_POINTS], sorted[SL_PROFILE_MAX_POINTS];
} sl_fit;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Row after row, and whole groups: a row that only fills a group costs no more than one. A floor
 * that never ends is a line. */
static sl_stage_cost cost_of(const sl_fit *f, const double x[N_VARS]) {
    if (x[5] > 0 && x[2] + x[3] + x[4] <= 0)
        return (sl_stage_cost){.fixed_us = x[0] + x[1], .row_us = x[5], .step = f->step};
    return (sl_stage_cost){.fixed_us = x[0],
                           .floor_us = x[1],
                           .slope_us = x[5],
                           .row_us = x[2] + x[4],
                           .key_us = x[3],
                           .pad_us = x[4],
                           .step = f->step};
}

static double padded(const sl_fit *f, double rows) {
    return f->step > 1 ? ceil(rows / f->step) * f->step : 0;
}

/* ---- least squares with all variables >= 0 ---- */

/* Solves a m x m system in place by elimination with pivots; false: singular. */
static bool solve(double a[N_VARS][N_VARS + 1], uint32_t m) {
    for (uint32_t c = 0; c < m; c++) {
        uint32_t pivot = c;
        for (uint32_t r = c + 1; r < m; r++)
            if (fabs(a[r][c]) > fabs(a[pivot][c])) pivot = r;
        if (fabs(a[pivot][c]) < 1e-12) return false;
        for (uint32_t k = 0; k <= m; k++) {
            double t = a[c][k];
            a[c][k] = a[pivot][k];
            a[pivot][k] = t;
        }
        for (uint32_t r = 0; r < m; r++) {
            if (r == c) continue;
            double f = a[r][c] / a[c][c];
            for (uint32_t k = c; k <= m; k++) a[r][k] -= f * a[c][k];
        }
    }
    return true;
}

/* gram, moment: normal equations, scaled to a unit diagonal. Tries every set of variables that may
 * be positive and keeps the least squares among those whose solution is. */
static void solve_nonnegative(const double gram[N_VARS][N_VARS], const double moment[N_VARS],
                              double out[N_VARS]) {
    double best = 0;
    memset(out, 0, N_VARS * sizeof *out);
    for (uint32_t set = 1; set < 1u << N_VARS; set++) {
        double a[N_VARS][N_VARS + 1], gain = 0;
        uint32_t var[N_VARS], m = 0;
        for (uint32_t v = 0; v < N_VARS; v++)
            if (set >> v & 1) var[m++] = v;
        for (uint32_t i = 0; i < m; i++) {
            for (uint32_t j = 0; j < m; j++) a[i][j] = gram[var[i]][var[j]];
            a[i][m] = moment[var[i]];
        }
        if (!solve(a, m)) continue;
        bool feasible = true;
        for (uint32_t i = 0; i < m; i++) {
            double v = a[i][m] / a[i][i];
            feasible = feasible && v >= 0;
            gain += v * moment[var[i]];
        }
        /* A variable more has to be worth something. */
        if (!feasible || gain <= best * (1 + 1e-9)) continue;
        best = gain;
        memset(out, 0, N_VARS * sizeof *out);
        for (uint32_t i = 0; i < m; i++) out[var[i]] = a[i][m] / a[i][i];
    }
}

static void weighted_fit(const sl_fit *f, double out[N_VARS]) {
    double gram[N_VARS][N_VARS] = {{0}}, moment[N_VARS] = {0}, scale[N_VARS];
    for (uint32_t i = 0; i < f->n; i++) {
        const sl_profile_point *p = &f->p[i];
        bool flat = f->on_floor[i];
        const double x[N_VARS] = {1,
                                  flat,
                                  flat ? 0 : p->rows,
                                  flat ? 0 : p->keys,
                                  flat ? 0 : padded(f, p->rows),
                                  flat && f->slopes ? p->rows : 0};
        double w = f->weight[i] / (p->us * p->us); /* relative errors */
        for (uint32_t a = 0; a < N_VARS; a++) {
            moment[a] += w * x[a] * p->us;
            for (uint32_t b = 0; b < N_VARS; b++) gram[a][b] += w * x[a] * x[b];
        }
    }
    for (uint32_t a = 0; a < N_VARS; a++) scale[a] = gram[a][a] > 0 ? 1 / sqrt(gram[a][a]) : 0;
    for (uint32_t a = 0; a < N_VARS; a++) {
        moment[a] *= scale[a];
        for (uint32_t b = 0; b < N_VARS; b++) gram[a][b] *= scale[a] * scale[b];
    }
    solve_nonnegative(gram, moment, out);
    for (uint32_t a = 0; a < N_VARS; a++) out[a] *= scale[a];
}

/* ---- robustness ---- */

/* Sets errors and weights from the model. */
static void reweight(sl_fit *f, const double x[N_VARS]) {
    sl_stage_cost c = cost_of(f, x);
    for (uint32_t i = 0; i < f->n; i++) {
        f->error[i] = sl_stage_cost_us(&c, f->p[i].rows, f->p[i].keys) / f->p[i].us - 1;
        f->sorted[i] = fabs(f->error[i]);
    }
    double scale = fmax(1.4826 * median_of(f->sorted, f->n), SMALLEST);
    for (uint32_t i = 0; i < f->n; i++) {
        double u = f->error[i] / (BIWEIGHT * scale);
        f->weight[i] = fabs(u) < 1 ? (1 - u * u) * (1 - u * u) : 0;
    }
}

/* Mean of |error|, each cut at `cut`: what fits are compared by. */
static double loss(const sl_fit *f, double cut) {
    double sum = 0;
    for (uint32_t i = 0; i < f->n; i++) sum += fmin(fabs(f->error[i]), cut);
    return sum / f->n;
}

static void assign_branches(sl_fit *f, const double x[N_VARS]) {
    for (uint32_t i = 0; i < f->n; i++)
        f->on_floor[i] = x[1] + x[5] * f->p[i].rows >
                         x[2] * f->p[i].rows + x[3] * f->p[i].keys + x[4] * padded(f, f->p[i].rows);
}

/* From a first assignment of points to branches to a fixed point of (fit, weights, assignment). */
static void refine(sl_fit *f, double x[N_VARS]) {
    for (uint32_t i = 0; i < f->n; i++) f->weight[i] = 1;
    for (int round = 0; round < ROUNDS; round++) {
        weighted_fit(f, x);
        assign_branches(f, x);
        reweight(f, x);
    }
}

static sl_status check_points(const sl_profile_point *p, uint32_t n, sl_err *err) {
    if (n < 2 || n > SL_PROFILE_MAX_POINTS)
        return sl_fail(err, SL_ERR_ARG, "%u points to fit, allowed: 2 to %d", n,
                       SL_PROFILE_MAX_POINTS);
    for (uint32_t i = 0; i < n; i++)
        if (!(p[i].us > 0) || !isfinite(p[i].us) || !isfinite(p[i].rows) || !isfinite(p[i].keys))
            return sl_fail(err, SL_ERR_ARG, "point %u has %g rows, %g keys, %g us", i, p[i].rows,
                           p[i].keys, p[i].us);
    return SL_OK;
}

/* f->error and f->weight are those of the chosen model. */
static void measure_quality(sl_fit *f, sl_fit_quality *q) {
    double mean = 0, total = 0, rest = 0;
    *q = (sl_fit_quality){.n_points = f->n};
    for (uint32_t i = 0; i < f->n; i++) mean += f->p[i].us / f->n;
    for (uint32_t i = 0; i < f->n; i++) {
        double miss = f->error[i] * f->p[i].us;
        total += (f->p[i].us - mean) * (f->p[i].us - mean);
        rest += miss * miss;
        f->sorted[i] = fabs(f->error[i]);
        if (f->sorted[i] > q->worst_error) q->worst_error = f->sorted[i];
        q->n_outliers += f->weight[i] < OUTLIER_FROM;
    }
    /* Equal times have nothing to explain. */
    q->r2 = total > 1e-18 * mean * mean * f->n ? 1 - rest / total : 1;
    q->median_error = median_of(f->sorted, f->n);
}

/* Best of all ends that the floor may have: at each of the points' rows, or nowhere. */
static double fit_with_step(sl_fit *f, double best[N_VARS]) {
    double best_loss = INFINITY, split[MAX_SPLITS + 1];
    uint32_t splits = SL_MIN(f->n, (uint32_t)MAX_SPLITS);
    for (uint32_t i = 0; i < f->n; i++) f->sorted[i] = f->p[i].rows + f->p[i].keys;
    qsort(f->sorted, f->n, sizeof *f->sorted, by_value);
    for (uint32_t s = 0; s <= splits; s++)
        split[s] = s == 0 ? -1 : f->sorted[(size_t)(f->n - 1) * s / splits];
    for (uint32_t s = 0; s <= splits; s++) {
        double x[N_VARS];
        for (uint32_t i = 0; i < f->n; i++)
            f->on_floor[i] = f->p[i].rows + f->p[i].keys <= split[s];
        refine(f, x);
        double l = loss(f, 0.5);
        if (l >= best_loss * (1 - 1e-6)) continue;
        best_loss = l;
        memcpy(best, x, N_VARS * sizeof *best);
    }
    return best_loss;
}

/* Points can tell groups of so many rows from single rows. */
static bool sees_step(const sl_profile_point *p, uint32_t n, uint32_t step) {
    uint32_t between = 0;
    for (uint32_t i = 0; i < n; i++) between += p[i].rows > step && fmod(p[i].rows, step) > 0;
    return between >= 3;
}

sl_status sl_fit_stage(const sl_profile_point *p, uint32_t n, sl_stage_cost *out,
                       sl_fit_quality *quality, sl_err *err) {
    sl_status st = check_points(p, n, err);
    if (st != SL_OK) return st;
    sl_fit f = {.p = p, .n = n, .slopes = true};
    double best[N_VARS] = {0}, best_loss = INFINITY;
    uint32_t best_step = 0;
    for (uint32_t i = 0; i < n; i++) f.slopes = f.slopes && p[i].keys <= 0;
    for (uint32_t step = 0; step <= MAX_STEP; step = step ? 2 * step : 2) {
        double x[N_VARS];
        if (step && !sees_step(p, n, step)) continue;
        f.step = step;
        double l = fit_with_step(&f, x);
        if (l >= best_loss * (step ? WORTH_IT : 1)) continue;
        best_loss = l;
        best_step = step;
        memcpy(best, x, sizeof best);
    }
    f.step = best_step;
    reweight(&f, best);
    measure_quality(&f, quality);
    *out = cost_of(&f, best);
    return SL_OK;
}

/* What a link may look like: alpha alone, with a rate, with a knee of the rate. */
static void set_bytes(sl_profile_point *at, const sl_profile_point *p, uint32_t n, bool rate,
                      double knee) {
    for (uint32_t i = 0; i < n; i++)
        at[i] = (sl_profile_point){.rows = rate ? p[i].rows : 0,
                                   .keys = p[i].rows > knee ? p[i].rows - knee : 0,
                                   .us = p[i].us};
}

sl_status sl_fit_link(const sl_profile_point *p, uint32_t n, sl_link_cost *out,
                      sl_fit_quality *quality, sl_err *err) {
    sl_profile_point at[SL_PROFILE_MAX_POINTS];
    double best[N_VARS] = {0}, best_loss = INFINITY, best_knee = INFINITY;
    sl_status st = check_points(p, n, err);
    if (st != SL_OK) return st;
    sl_fit f = {.p = at, .n = n};
    bool best_rate = false;
    for (uint32_t k = 0; k < 2 || k - 1 + BEYOND <= n; k++) {
        double x[N_VARS], knee = k < 2 ? INFINITY : p[k - 2].rows;
        set_bytes(at, p, n, k > 0, knee);
        memset(f.on_floor, 0, sizeof f.on_floor);
        refine(&f, x);
        double l = loss(&f, 0.5);
        if (l >= best_loss * (k < 2 ? WORTH_IT : WORTH_A_KNEE)) continue;
        best_loss = l;
        best_knee = knee;
        best_rate = k > 0;
        memcpy(best, x, sizeof best);
    }
    set_bytes(at, p, n, best_rate, best_knee);
    reweight(&f, best);
    measure_quality(&f, quality);
    *out = (sl_link_cost){.alpha_us = best[0] + best[1],
                          .byte_us = best[2],
                          .knee_bytes = best[3] > 0 ? best_knee : 0,
                          .beyond_us = best[3]};
    return SL_OK;
}

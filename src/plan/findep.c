/* FinDEP's makespan in closed form, its bound, and by recurrence. */
#include "plan/findep.h"

#include <math.h>

/* What all forms are made of, in the paper's letters. */
typedef struct parts {
    double x; /* attention side of a micro-batch */
    double y; /* slowest station of a chunk */
    double f; /* slowest station of a micro-batch */
    double g; /* round trip of a micro-batch that is alone */
} parts;

/* No NaN comes here; fmax would be a call. */
static double max2(double a, double b) {
    return a > b ? a : b;
}

static double max3(double a, double b, double c) {
    return max2(max2(a, b), c);
}

/* `link`: how long a chunk keeps the link, at least the longer direction. */
static parts parts_of(const sl_findep_times *t, uint32_t r2, double link) {
    parts p = {.x = t->a + t->s, .y = max2(link, t->e)};
    p.f = max2(p.x, r2 * p.y);
    p.g = t->a + t->c + t->e + t->d + t->lag + (r2 - 1) * p.y;
    return p;
}

static double asas(const parts *p, uint32_t layers, uint32_t r1) {
    double l = max2(p->g, r1 * p->f);
    return (layers - 1) * l + max2(p->x, p->g) + (r1 - 1) * p->f;
}

/* k layers at the cheapest period that the critical cycles allow. */
static double cycles(double k, double one, double two) {
    if (k <= 0) return 0;
    double pairs = floor(k / 2);
    return max2(k * one, pairs * two + (k - 2 * pairs) * one);
}

static double aass(const sl_findep_times *t, const parts *p, uint32_t layers, uint32_t r1,
                   uint32_t r2) {
    double f = max2(t->a, r2 * p->y);
    double w = (r1 - 1) * f + t->a + r1 * t->s; /* attention side of a layer, all of it */
    double one = max3(p->g, r1 * p->x, (double)r1 * r2 * p->y);
    double k = layers;
    double most = max2(p->g + (r1 - 1) * f + cycles(k - 1, one, p->g + w), k * r1 * p->x);
    return layers >= 2 ? max2(most, p->g + w + cycles(k - 2, one, p->g + w)) : most;
}

static double makespan(const sl_findep_times *t, double link, uint32_t layers, uint32_t r1,
                       uint32_t r2, sl_order order) {
    parts p = parts_of(t, r2, link);
    return order == SL_ORDER_ASAS ? asas(&p, layers, r1) : aass(t, &p, layers, r1, r2);
}

double sl_findep_makespan(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                          sl_order order) {
    return makespan(t, max2(t->c, t->d), layers, r1, r2, order);
}

double sl_findep_makespan_half(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                               sl_order order) {
    return makespan(t, t->c + t->d, layers, r1, r2, order);
}

double sl_findep_published(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2) {
    parts p = parts_of(t, r2, max2(t->c, t->d));
    return asas(&p, layers, r1) + (r2 - 1) * p.y;
}

double sl_findep_bound(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2) {
    parts p = parts_of(t, r2, max2(t->c, t->d));
    double n = (double)layers * r1 * r2, way = t->a + t->c + t->e + t->d + t->lag;
    double attention = max2((r1 - 1) * t->a + layers * p.g, (double)layers * r1 * p.x);
    double chunks = max3(n * t->c - t->c, n * t->e - t->e, n * t->d - t->d);
    return max2(attention, way + chunks);
}

double sl_findep_period(const sl_findep_times *t, uint32_t r1, uint32_t r2, sl_order order) {
    parts p = parts_of(t, r2, max2(t->c, t->d));
    if (order == SL_ORDER_ASAS) return max2(p.g, r1 * p.f);
    double w = (r1 - 1) * max2(t->a, r2 * p.y) + t->a + r1 * t->s;
    return max2(max3(p.g, r1 * p.x, (double)r1 * r2 * p.y), (p.g + w) / 2);
}

/* ---- by recurrence ---- */

typedef struct stations {
    double ag, out, eg, back; /* when each is free */
} stations;

/* All chunks of a micro-batch whose attention ended at `from`; when the last one is back. */
static double pass_chunks(stations *s, const sl_findep_times *t, uint32_t chunks, double from) {
    for (uint32_t j = 0; j < chunks; j++) {
        s->out = max2(s->out, from) + t->c;
        s->eg = max2(s->eg, s->out) + t->e;
        s->back = max2(s->back, s->eg) + t->d;
    }
    return s->back + t->lag;
}

double sl_findep_replay(const sl_findep_times *lane, const uint32_t *chunks, uint32_t layers,
                        uint32_t r1, sl_order order, double *ready, double *done) {
    stations s = {0};
    double last = 0;
    for (uint32_t i = 0; i < r1; i++) ready[i] = done[i] = 0;
    for (uint32_t t = 0; t < layers; t++) {
        for (uint32_t i = 0; i < r1; i++) {
            double end = max2(s.ag, ready[i]) + lane[i].a;
            s.ag = end;
            if (order == SL_ORDER_ASAS) s.ag = done[i] = end + lane[i].s;
            ready[i] = pass_chunks(&s, &lane[i], chunks[i], end);
        }
        for (uint32_t i = 0; i < r1; i++) {
            if (order == SL_ORDER_AASS) s.ag = done[i] = s.ag + lane[i].s;
            ready[i] = max2(ready[i], done[i]);
            last = max2(last, ready[i]);
        }
    }
    return last;
}

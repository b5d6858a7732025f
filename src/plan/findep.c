#include "plan/findep.h"

#include <math.h>

/* What all forms are made of, in the paper's letters. */
typedef struct parts {
    double x; /* attention side of a micro-batch */
    double y; /* slowest station of a chunk */
    double f; /* slowest station of a micro-batch */
    double g; /* round trip of a micro-batch that is alone */
} parts;

static double fmax3(double a, double b, double c) {
    return fmax(fmax(a, b), c);
}

/* `link`: how long a chunk keeps the link, at least the longer direction. */
static parts parts_of(const sl_findep_times *t, uint32_t r2, double link) {
    parts p = {.x = t->a + t->s, .y = fmax(link, t->e)};
    p.f = fmax(p.x, r2 * p.y);
    p.g = t->a + t->c + t->e + t->d + (r2 - 1) * p.y;
    return p;
}

static double asas(const parts *p, uint32_t layers, uint32_t r1) {
    double l = fmax(p->g, r1 * p->f);
    return (layers - 1) * l + fmax(p->x, p->g) + (r1 - 1) * p->f;
}

/* k layers at the cheapest period that the critical cycles allow. */
static double cycles(double k, double one, double two) {
    if (k <= 0) return 0;
    return fmax(k * one, floor(k / 2) * two + (fmod(k, 2) != 0 ? one : 0));
}

static double aass(const sl_findep_times *t, const parts *p, uint32_t layers, uint32_t r1,
                   uint32_t r2) {
    double f = fmax(t->a, r2 * p->y);
    double w = (r1 - 1) * f + t->a + r1 * t->s; /* attention side of a layer, all of it */
    double one = fmax3(p->g, r1 * p->x, (double)r1 * r2 * p->y);
    double k = layers;
    double most = fmax(p->g + (r1 - 1) * f + cycles(k - 1, one, p->g + w), k * r1 * p->x);
    return layers >= 2 ? fmax(most, p->g + w + cycles(k - 2, one, p->g + w)) : most;
}

static double makespan(const sl_findep_times *t, double link, uint32_t layers, uint32_t r1,
                       uint32_t r2, sl_order order) {
    parts p = parts_of(t, r2, link);
    return order == SL_ORDER_ASAS ? asas(&p, layers, r1) : aass(t, &p, layers, r1, r2);
}

double sl_findep_makespan(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                          sl_order order) {
    return makespan(t, fmax(t->c, t->d), layers, r1, r2, order);
}

double sl_findep_makespan_half(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2,
                               sl_order order) {
    return makespan(t, t->c + t->d, layers, r1, r2, order);
}

double sl_findep_published(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2) {
    parts p = parts_of(t, r2, fmax(t->c, t->d));
    return asas(&p, layers, r1) + (r2 - 1) * p.y;
}

double sl_findep_bound(const sl_findep_times *t, uint32_t layers, uint32_t r1, uint32_t r2) {
    parts p = parts_of(t, r2, fmax(t->c, t->d));
    double n = (double)layers * r1 * r2, way = t->a + t->c + t->e + t->d;
    double attention = fmax((r1 - 1) * t->a + layers * p.g, (double)layers * r1 * p.x);
    double chunks = fmax3(n * t->c - t->c, n * t->e - t->e, n * t->d - t->d);
    return fmax(attention, way + chunks);
}

double sl_findep_period(const sl_findep_times *t, uint32_t r1, uint32_t r2, sl_order order) {
    parts p = parts_of(t, r2, fmax(t->c, t->d));
    if (order == SL_ORDER_ASAS) return fmax(p.g, r1 * p.f);
    double w = (r1 - 1) * fmax(t->a, r2 * p.y) + t->a + r1 * t->s;
    return fmax(fmax3(p.g, r1 * p.x, (double)r1 * r2 * p.y), (p.g + w) / 2);
}

/* ---- by recurrence ---- */

typedef struct stations {
    double ag, out, eg, back; /* when each is free */
} stations;

/* All chunks of a micro-batch whose attention ended at `from`; when the last one is back. */
static double pass_chunks(stations *s, const sl_findep_times *t, uint32_t chunks, double from) {
    for (uint32_t j = 0; j < chunks; j++) {
        s->out = fmax(s->out, from) + t->c;
        s->eg = fmax(s->eg, s->out) + t->e;
        s->back = fmax(s->back, s->eg) + t->d;
    }
    return s->back;
}

double sl_findep_replay(const sl_findep_times *lane, const uint32_t *chunks, uint32_t layers,
                        uint32_t r1, sl_order order, double *ready, double *done) {
    stations s = {0};
    double last = 0;
    for (uint32_t i = 0; i < r1; i++) ready[i] = done[i] = 0;
    for (uint32_t t = 0; t < layers; t++) {
        for (uint32_t i = 0; i < r1; i++) {
            double end = fmax(s.ag, ready[i]) + lane[i].a;
            s.ag = end;
            if (order == SL_ORDER_ASAS) s.ag = done[i] = end + lane[i].s;
            ready[i] = pass_chunks(&s, &lane[i], chunks[i], end);
        }
        for (uint32_t i = 0; i < r1; i++) {
            if (order == SL_ORDER_AASS) s.ag = done[i] = s.ag + lane[i].s;
            ready[i] = fmax(ready[i], done[i]);
            last = fmax(last, ready[i]);
        }
    }
    return last;
}

/* Times of tasks by their size, and lines through them. Of resolve.c and resolve_groups.c. */
#include "sched/resolve_int.h"

#include <math.h>

uint32_t sl_resolve_class_of(double rows) {
    uint32_t c = 0;
    for (double most = 1; rows > most && c + 1 < SL_RESOLVE_CLASSES; most *= 2) c++;
    return c;
}

void sl_resolve_learn(const sl_resolve *r, sl_resolve_meter *m, double rows, double us) {
    sl_resolve_class *c = &m->of[sl_resolve_class_of(rows)];
    c->n = SL_MIN(c->n + 1, r->memory);
    c->rows += (rows - c->rows) / c->n;
    c->us += (us - c->us) / c->n;
}

/* Not the mean but the shortest: what is longer has waited. */
void sl_resolve_learn_least(const sl_resolve *r, sl_resolve_meter *m, double rows, double us) {
    sl_resolve_class *c = &m->of[sl_resolve_class_of(rows)];
    c->us = c->n == 0 || us < c->us ? us : c->us;
    c->n = SL_MIN(c->n + 1, r->memory);
    c->rows += (rows - c->rows) / c->n;
}

uint32_t sl_resolve_count(const sl_resolve_meter *m) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) n += m->of[c].n;
    return n;
}

/* alpha + beta x through the means, each off by as large a share as the others. Of one size alone
 * nobody knows what another costs: as much, until it is tried. */
sl_findep_line sl_resolve_line(const sl_resolve_meter *m) {
    double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) {
        const sl_resolve_class *k = &m->of[c];
        const double us = fmax(k->us, 0.5), by = k->n / (us * us);
        w += by;
        wx += by * k->rows;
        wy += by * us;
        wxx += by * k->rows * k->rows;
        wxy += by * k->rows * us;
    }
    if (!(w > 0)) return (sl_findep_line){0};
    const double det = w * wxx - wx * wx;
    double beta = det > 1e-9 * w * wxx ? (w * wxy - wx * wy) / det : 0;
    beta = fmin(fmax(beta, 0), wx > 0 ? wy / wx : 0);
    return (sl_findep_line){.alpha = fmax((wy - beta * wx) / w, 0), .beta = beta};
}

/* Rows that an expert gets when all attention workers send so many pairs. */
double sl_resolve_each(const sl_resolve *r, double pairs) {
    return pairs * r->attention_workers / r->n_experts;
}

/* Tasks of the busiest expert worker over the mean: others wait for it once a layer. */
double sl_resolve_skew(const sl_resolve *r) {
    double sum = 0, most = 0;
    for (uint32_t x = 0; x < r->expert_workers; x++) {
        sum += r->mean_us[x];
        most = fmax(most, r->mean_us[x]);
    }
    return sum > 0 ? most * r->expert_workers / sum : 1;
}

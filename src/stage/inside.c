/* A block with experts from its router on, where all of it is in one place: the stages that others
 * ask for one by one, with the same order of additions. */
#include "stage/stage_int.h"

#include <string.h>

/* Pairs of row and expert, by expert, those of one expert in the order of rows. A row has chosen
 * its experts in ascending order, so its results are added in the order of its choices. */
typedef struct pairs {
    uint32_t *group, *first; /* experts that are asked, and where their pairs begin */
    uint32_t *end;           /* [experts] */
    uint32_t *row;
    float *gate;
    uint8_t *adds;
    uint32_t n_groups;
} pairs;

static size_t padded(size_t bytes) {
    return bytes + 64;
}

size_t sl_stage_inside_bytes(const sl_model_spec *m, uint32_t max_rows) {
    const size_t n = (size_t)max_rows * m->top_k, e = m->n_experts + 1u;
    const size_t word = sizeof(uint32_t);
    return padded((size_t)max_rows * m->d_model * sizeof(float)) + 3 * padded(e * word) +
           2 * padded(n * word) + padded(n);
}

static void take(pairs *p, sl_arena *a, size_t n, size_t experts) {
    p->group = sl_arena_take(a, experts, sizeof *p->group);
    p->first = sl_arena_take(a, experts + 1, sizeof *p->first);
    p->end = sl_arena_take(a, experts, sizeof *p->end);
    p->row = sl_arena_take(a, n, sizeof *p->row);
    p->gate = sl_arena_take(a, n, sizeof *p->gate);
    p->adds = sl_arena_take(a, n, sizeof *p->adds);
    SL_ASSERT(p->group && p->first && p->end && p->row && p->gate && p->adds);
}

static void sort(pairs *p, const sl_rowset *r, uint32_t k, uint32_t experts) {
    const uint32_t n = r->n * k;
    uint32_t at = 0;
    memset(p->end, 0, experts * sizeof *p->end);
    for (uint32_t i = 0; i < n; i++) p->end[r->expert[i]]++;
    p->n_groups = 0;
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t rows = p->end[e];
        p->end[e] = at;
        if (rows == 0) continue;
        p->group[p->n_groups] = e;
        p->first[p->n_groups++] = at;
        at += rows;
    }
    p->first[p->n_groups] = at;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t to = p->end[r->expert[i]]++;
        p->row[to] = i / k;
        p->gate[to] = r->gate[i];
        p->adds[to] = i % k != 0;
    }
}

/* y onto x, in columns that are there. */
static void add(const sl_stage_model *s, uint32_t n, float *x, const float *y) {
    const uint32_t d = sl_model_stored_of(s->model)->d_model;
    const sl_extent has = sl_model_columns(s->model);
    const sl_exec alone = {.k = s->exec->k};
    if (has.n == d) {
        sl_vec_add(s->exec, x, y, (size_t)n * d);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * d + has.first;
        sl_vec_add(&alone, x + at, y + at, has.n);
    }
}

void sl_stage_run_inside(const sl_stage_model *s, const sl_stage_call *c) {
    const sl_rowset *r = &c->rows;
    const sl_model_spec *m = sl_model_stored_of(s->model);
    const size_t level = s->scratch->used, values = (size_t)r->n * m->d_model;
    float *x = sl_mem_at(r->x), *h = sl_mem_at(r->h);
    pairs p;
    if (r->n == 0) return;
    sl_stage_call part = *c;
    part.op = SL_OP_ROUTE;
    (void)sl_stage_run_model(s, &part);
    take(&p, s->scratch, (size_t)r->n * m->top_k, m->n_experts);
    float *y = sl_arena_take(s->scratch, values, sizeof *y);
    SL_ASSERT(y != NULL);
    sort(&p, r, m->top_k, m->n_experts);
    const sl_stage_part result = {sl_mem_host(y, values * sizeof *y), r->n};
    part.op = SL_OP_EXPERTS;
    part.experts = (sl_stage_experts){.n_groups = p.n_groups,
                                      .expert = p.group,
                                      .first = p.first,
                                      .row = p.row,
                                      .gate = p.gate,
                                      .n_rows = r->n,
                                      .x = r->h,
                                      .to = p.row,
                                      .adds = p.adds,
                                      .part = &result,
                                      .n_parts = 1};
    (void)sl_stage_run_model(s, &part);
    if (m->d_ff_shared) {
        part.op = SL_OP_SHARED;
        (void)sl_stage_run_model(s, &part);
        add(s, r->n, y, h);
    }
    add(s, r->n, x, y);
    s->scratch->used = level;
}

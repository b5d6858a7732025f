/* Routers: logits become experts with weights (docs/numbers.md, "Routers"). */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"
#include "kernel/scalar.h"

#include <math.h>
#include <string.h>

typedef struct routing {
    const sl_kernels *k;
    const sl_route_args *a;
} routing;

/* The k largest of p by value, ties to the lower id, then in the order of ids. NaN never wins over
 * a number, but k distinct experts always come out. */
static void pick_experts(const float *p, uint32_t n, uint32_t k, uint32_t *expert) {
    uint32_t got = 0;
    for (uint32_t e = 0; e < n; e++) {
        uint32_t at = got;
        while (at > 0 && sl_outranks(p[e], p[expert[at - 1]])) at--;
        if (at == k) continue;
        if (got < k) got++;
        for (uint32_t j = got - 1; j > at; j--) expert[j] = expert[j - 1];
        expert[at] = e;
    }
    for (uint32_t i = 1; i < k; i++) {
        uint32_t id = expert[i], j = i;
        for (; j > 0 && expert[j - 1] > id; j--) expert[j] = expert[j - 1];
        expert[j] = id;
    }
}

/* Experts outside the top_groups best groups, by the sum of a group's `of` (1, 2) best, are out. */
static void keep_groups(const sl_model_spec *m, uint32_t of, float *rank) {
    uint32_t size = m->n_experts / m->n_groups, kept[SL_MAX_GROUPS], at = 0;
    float best[SL_MAX_GROUPS] = {0};
    for (uint32_t g = 0; g < m->n_groups; g++) {
        uint32_t two[2] = {0};
        const float *p = rank + (size_t)g * size;
        pick_experts(p, size, of, two);
        best[g] = of == 1 ? p[two[0]] : p[two[0]] + p[two[1]];
    }
    pick_experts(best, m->n_groups, m->top_groups, kept);
    for (uint32_t g = 0; g < m->n_groups; g++) {
        if (at < m->top_groups && kept[at] == g) {
            at++;
            continue;
        }
        for (uint32_t e = 0; e < size; e++) rank[(size_t)g * size + e] = -INFINITY;
    }
}

static void route_rows(void *ctx, size_t begin, size_t end) {
    const sl_route_args *a = ((const routing *)ctx)->a;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        float *p = a->logit + r * n, *gate = a->gate + r * k, sum = 0;
        uint32_t *expert = a->expert + r * k;
        sl_softmax(((const routing *)ctx)->k, p, n, p);
        if (a->m->n_groups > 1) keep_groups(a->m, 1, p);
        pick_experts(p, n, k, expert);
        for (uint32_t j = 0; j < k; j++) sum += gate[j] = p[expert[j]];
        for (uint32_t j = 0; a->m->norm_topk && j < k; j++) gate[j] /= sum;
        for (uint32_t j = 0; a->m->route_scale > 0 && j < k; j++) gate[j] *= a->m->route_scale;
    }
}

static void route_logits(void *ctx, size_t begin, size_t end) {
    const sl_route_args *a = ((const routing *)ctx)->a;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        const float *p = a->logit + r * n;
        uint32_t *expert = a->expert + r * k;
        pick_experts(p, n, k, expert);
        for (uint32_t j = 0; j < k; j++) a->gate[r * k + j] = sl_sigmoid_scalar(p[expert[j]]);
    }
}

static void route_sigmoid(void *ctx, size_t begin, size_t end) {
    const sl_route_args *a = ((const routing *)ctx)->a;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        float *p = a->logit + r * n, *rank = a->rank + r * n, *gate = a->gate + r * k, sum = 0;
        uint32_t *expert = a->expert + r * k;
        for (uint32_t e = 0; e < n; e++) {
            p[e] = sl_sigmoid_scalar(p[e]);
            rank[e] = p[e] + a->bias[e];
        }
        keep_groups(a->m, 2, rank);
        pick_experts(rank, n, k, expert);
        for (uint32_t j = 0; j < k; j++) sum += gate[j] = p[expert[j]];
        for (uint32_t j = 0; a->m->norm_topk && j < k; j++) gate[j] /= sum + 1e-20f;
        for (uint32_t j = 0; j < k; j++) gate[j] *= a->m->route_scale;
    }
}

static void zero_broken(const sl_route_args *a) {
    const size_t k = a->m->top_k, d = a->m->d_model;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        bool finite = true;
        for (size_t j = 0; j < k; j++) finite = finite && isfinite(a->gate[i * k + j]);
        if (!finite) memset(a->h + i * d, 0, d * sizeof *a->h);
    }
}

void sl_host_route(const sl_exec *ex, const sl_route_args *a) {
    routing c = {.k = ex->k, .a = a};
    sl_pool_fn route = a->router == SL_ROUTER_SIGMOID_GROUPS ? route_sigmoid
                       : a->router == SL_ROUTER_SIGMOID_TOPK ? route_logits
                                                             : route_rows;
    if (ex->pool && a->n_rows > 16)
        sl_pool_run(ex->pool, a->n_rows, 16, route, &c);
    else
        route(&c, 0, a->n_rows);
    if (a->h) zero_broken(a);
}

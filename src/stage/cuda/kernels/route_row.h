/* One row of a router's logits, with the bits of docs/numbers.md, "Routers": its experts and gates.
 */
#ifndef SL_STAGE_CUDA_ROUTE_ROW_H
#define SL_STAGE_CUDA_ROUTE_ROW_H

#include "kernel/formula.h"
#include "spec/model.h"
#include "stage/cuda/kernels/args_attention.h"
#include "stage/cuda/kernels/lanes.h"

/* What ranks higher has the larger key, what ties an equal one; a number has more than NaN, and
 * that more than what was taken. */
#define SL_ROUTE_TAKEN 0u
#define SL_ROUTE_NAN   1u
SL_DEV uint32_t sl_route_key_of(float v) {
    const uint32_t u = sl_f32_bits(v + 0.0f); /* -0 becomes +0 */
    if (v != v) return SL_ROUTE_NAN;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The probabilities of a row of logits. */
SL_DEV void sl_route_softmax(const float *logit, uint32_t n, float *p) {
    const uint32_t lane = sl_lane();
    float top = -INFINITY, s = 0;
    for (uint32_t e = lane; e < n; e += SL_WARP) {
        p[e] = logit[e];
        top = p[e] > top ? p[e] : top;
    }
    top = sl_lanes_max(top);
    for (uint32_t e = lane; e < n; e += SL_WARP) p[e] = sl_exp_scalar(p[e] - top);
    __syncwarp();
    for (uint32_t e = lane; lane < SL_DOT_LANES && e < n; e += SL_DOT_LANES) s = s + p[e];
    s = __shfl_sync(SL_ALL, sl_lanes_tree(s), 0);
    __syncwarp(); /* p was read */
    for (uint32_t e = lane; e < n; e += SL_WARP) p[e] = p[e] / s;
}

/* What a group of experts is ranked by: the sum of its `of` (1, 2) best. */
SL_DEV float sl_route_group_best(const float *rank, uint32_t size, uint32_t of) {
    float first = rank[0], second = first;
    uint32_t key = sl_route_key_of(first), key2 = SL_ROUTE_TAKEN;
    for (uint32_t e = 1; e < size; e++) {
        const float v = rank[e];
        const uint32_t k = sl_route_key_of(v);
        const bool best = k > key, next = !best && k > key2;
        second = best ? first : next ? v : second;
        key2 = best ? key : next ? k : key2;
        first = best ? v : first;
        key = best ? k : key;
    }
    return of == 1 ? first : first + second;
}

/* Experts outside the best groups are out. */
SL_DEV void sl_route_keep_groups(const sl_k_route_args *a, uint32_t of, float *rank, float *best) {
    const uint32_t size = a->n / a->groups;
    for (uint32_t g = sl_lane(); g < a->groups; g += SL_WARP)
        best[g] = sl_route_group_best(rank + g * size, size, of);
    __syncwarp();
    for (uint32_t g = sl_lane(); g < a->groups; g += SL_WARP) {
        uint32_t before = 0;
        for (uint32_t h = 0; h < a->groups; h++) {
            const bool ties = !sl_outranks(best[g], best[h]) && h < g;
            if (sl_outranks(best[h], best[g]) || ties) before++;
        }
        if (before < a->top_groups) continue;
        for (uint32_t e = 0; e < size; e++) rank[g * size + e] = -INFINITY;
    }
    __syncwarp();
}

/* The best of this thread's experts: lane, lane + 32, ... */
SL_DEV uint32_t sl_route_best_of_mine(const uint32_t *key, uint32_t n, uint32_t *expert) {
    uint32_t most = SL_ROUTE_TAKEN;
    for (uint32_t e = sl_lane(); e < n; e += SL_WARP) {
        if (key[e] <= most) continue;
        most = key[e];
        *expert = e;
    }
    return most;
}

/* Takes the k best, ties to the lower id: their keys say so. */
SL_DEV void sl_route_take_best(uint32_t *key, uint32_t n, uint32_t k) {
    uint32_t mine = 0, most = sl_route_best_of_mine(key, n, &mine);
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t top = sl_lanes_most(most);
        const uint32_t expert = sl_lanes_least(most == top ? mine : UINT32_MAX);
        if (expert % SL_WARP != sl_lane()) continue;
        key[expert] = SL_ROUTE_TAKEN;
        most = sl_route_best_of_mine(key, n, &mine);
    }
}

/* The experts that were taken, in the order of ids. */
SL_DEV void sl_route_list_taken(const uint32_t *key, uint32_t n, uint32_t *expert) {
    uint32_t got = 0;
    for (uint32_t first = 0; first < n; first += SL_WARP) {
        const uint32_t e = first + sl_lane();
        const bool taken = e < n && key[e] == SL_ROUTE_TAKEN;
        const uint32_t all = __ballot_sync(SL_ALL, taken);
        if (taken) expert[got + __popc(all & ((1u << sl_lane()) - 1))] = e;
        got += __popc(all);
    }
    __syncwarp();
}

/* The weight of an expert whose value is v, of those whose values have this sum. */
SL_DEV float sl_route_gate_of(const sl_k_route_args *a, float v, float sum) {
    if (a->router == SL_ROUTER_SIGMOID_TOPK) return sl_sigmoid_scalar(v);
    if (a->router == SL_ROUTER_SIGMOID_GROUPS) {
        if (a->norm_topk) v = v / (sum + 1e-20f);
        return v * a->scale;
    }
    if (a->norm_topk) v = v / sum;
    return a->scale > 0 ? v * a->scale : v;
}

/* By all lanes of a warp; room: sl_cuda_route_room bytes of shared memory. */
SL_DEV void sl_route_row(const sl_k_route_args *a, uint32_t row, float *room) {
    const float *logit = a->logit + (size_t)row * a->n;
    float *value = room; /* what weighs */
    uint32_t *expert = (uint32_t *)(room + 3 * a->n);
    float *best = room + 3 * a->n + SL_MAX_TOP_K;
    const bool biased = a->router == SL_ROUTER_SIGMOID_GROUPS;
    float *rank = biased ? value + a->n : value, sum = 0; /* what decides */
    uint32_t *key = (uint32_t *)(value + 2 * a->n);
    if (a->router == SL_ROUTER_SOFTMAX_TOPK) sl_route_softmax(logit, a->n, value);
    for (uint32_t e = sl_lane(); e < a->n; e += SL_WARP) {
        if (biased) {
            value[e] = sl_sigmoid_scalar(logit[e]);
            rank[e] = value[e] + a->bias[e];
        } else if (a->router == SL_ROUTER_SIGMOID_TOPK) {
            value[e] = logit[e];
        }
    }
    __syncwarp();
    if (a->groups > 1) sl_route_keep_groups(a, biased ? 2 : 1, rank, best);
    for (uint32_t e = sl_lane(); e < a->n; e += SL_WARP) key[e] = sl_route_key_of(rank[e]);
    sl_route_take_best(key, a->n, a->k);
    __syncwarp();
    sl_route_list_taken(key, a->n, expert);
    for (uint32_t j = 0; j < a->k; j++) sum = sum + value[expert[j]];
    bool broken = false;
    for (uint32_t j = sl_lane(); j < a->k; j += SL_WARP) {
        const size_t at = (size_t)row * a->k + j;
        const float gate = sl_route_gate_of(a, value[expert[j]], sum);
        broken |= (sl_f32_bits(gate) & 0x7f800000u) == 0x7f800000u;
        a->expert[at] = expert[j];
        a->gate[at] = gate;
    }
    if (!a->h || !__any_sync(SL_ALL, broken)) return;
    for (uint32_t i = sl_lane(); i < a->d; i += SL_WARP) a->h[(size_t)row * a->d + i] = 0;
}

#endif

/* Lists of a batch of routed experts, in numerics fast: pairs of a row and an expert are sorted by
 * expert, by one block. Where a pair comes to lie among those of its expert is drawn by atomics: no
 * bit of a result depends on it, since the kernels treat the columns of a tile alike and the sum of
 * a row goes by pairs. */
#include "stage/cuda/kernels/sort_lists.h"

#define SL_SORT_THREADS 1024u

/* Sums of the lanes up to this one. */
SL_DEV uint32_t sl_sort_scan(uint32_t v) {
    SL_UNROLL for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t o = __shfl_up_sync(SL_ALL, v, by);
        if (sl_lane() >= by) v += o;
    }
    return v;
}

/* Turns counts of experts into where their pairs begin, and writes all lists. One warp. */
SL_DEV void sl_sort_plan(const sl_fast_sort_args *a, uint32_t *count) {
    uint32_t pairs = 0, groups = 0, pieces = 0, widest = 0;
    for (uint32_t from = 0; from < a->n_experts; from += 32) {
        const uint32_t e = from + sl_lane(), n = e < a->n_experts ? count[e] : 0;
        const uint32_t g = sl_sort_groups(a, n), p = sl_sort_pieces(a, n);
        const uint32_t all = sl_sort_scan(n), all_g = sl_sort_scan(g), all_p = sl_sort_scan(p);
        if (n) {
            sl_sort_lists(a, e, pairs + all - n, n, groups + all_g - g, pieces + all_p - p);
            count[e] = pairs + all - n;
        }
        if (p && (n + p - 1) / p > widest) widest = (n + p - 1) / p;
        pairs += __shfl_sync(SL_ALL, all, 31);
        groups += __shfl_sync(SL_ALL, all_g, 31);
        pieces += __shfl_sync(SL_ALL, all_p, 31);
    }
    SL_UNROLL for (uint32_t by = 16; by > 0; by /= 2) {
        const uint32_t o = __shfl_xor_sync(SL_ALL, widest, by);
        widest = o > widest ? o : widest;
    }
    if (sl_lane()) return;
    sl_sort_counts(a, groups, pieces, widest);
}

SL_DEV void sl_sort_put(const sl_fast_sort_args *a, uint32_t *next, uint32_t pair, uint32_t id,
                        float gate) {
    uint32_t at = SL_SORT_NOWHERE;
    if (id < a->n_experts) {
        at = atomicAdd(next + id, 1);
        a->x_row[at] = a->pair_row ? __ldcg(a->pair_row + pair) : pair / a->top_k;
        a->weight[at] = gate;
    }
    a->place[pair] = at;
    if (a->heard) a->heard[pair] = id;
}

SL_KERNEL_BOUNDS(sl_k_fast_sort, sl_fast_sort_args, SL_SORT_THREADS, 1) {
    SL_SHARED(uint32_t, count, SL_FAST_EXPERTS);
    const uint32_t fours = a.n_pairs / 4;
    for (uint32_t i = threadIdx.x; i < a.n_experts; i += SL_SORT_THREADS) count[i] = 0;
    __syncthreads();
    sl_fast_wait();
    sl_fast_let_next();
    for (uint32_t i = threadIdx.x; i < fours; i += SL_SORT_THREADS) {
        const uint4 v = __ldcg((const uint4 *)a.id + i);
        if (v.x < a.n_experts) atomicAdd(count + v.x, 1);
        if (v.y < a.n_experts) atomicAdd(count + v.y, 1);
        if (v.z < a.n_experts) atomicAdd(count + v.z, 1);
        if (v.w < a.n_experts) atomicAdd(count + v.w, 1);
    }
    const uint32_t rest = fours * 4 + threadIdx.x;
    if (rest < a.n_pairs && a.id[rest] < a.n_experts) atomicAdd(count + a.id[rest], 1);
    __syncthreads();
    if (sl_warp() == 0) sl_sort_plan(&a, count);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < fours; i += SL_SORT_THREADS) {
        const uint4 v = __ldcg((const uint4 *)a.id + i);
        const float4 g = __ldcg((const float4 *)a.gate + i);
        sl_sort_put(&a, count, 4 * i, v.x, g.x);
        sl_sort_put(&a, count, 4 * i + 1, v.y, g.y);
        sl_sort_put(&a, count, 4 * i + 2, v.z, g.z);
        sl_sort_put(&a, count, 4 * i + 3, v.w, g.w);
    }
    if (rest < a.n_pairs) sl_sort_put(&a, count, rest, a.id[rest], a.gate[rest]);
}

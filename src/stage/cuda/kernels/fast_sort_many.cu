/* Lists of a batch of many routed experts, in numerics fast: pairs of a row and an expert are
 * sorted by expert. A block has SL_FAST_SORT_PAIRS of them. Where there are more, blocks of a
 * launch before count theirs, expert by expert, and each block of the sort adds up what lies before
 * its own; what is rounded to bf16 for the products is so beside the counting. Where a pair comes
 * to lie among those of its expert and its block is drawn by atomics: no bit of a result depends on
 * it, since the kernels treat the columns of a tile alike and the sum of a row goes by pairs. */
#include "stage/cuda/kernels/sort_lists.h"

#define SL_SORT_EXPERTS (SL_FAST_EXPERTS / SL_FAST_SORT_THREADS) /* of a thread */

/* What a thread has of its block's pairs: four. */
SL_DEV uint4 sl_sort_ids(const uint32_t *id, uint32_t n_pairs, uint32_t first) {
    if (first + 4 <= n_pairs) return __ldcg((const uint4 *)(id + first));
    uint4 v = make_uint4(SL_SORT_NOWHERE, SL_SORT_NOWHERE, SL_SORT_NOWHERE, SL_SORT_NOWHERE);
    if (first < n_pairs) v.x = id[first];
    if (first + 1 < n_pairs) v.y = id[first + 1];
    if (first + 2 < n_pairs) v.z = id[first + 2];
    return v;
}

SL_DEV uint32_t sl_sort_next(uint32_t *count, uint32_t id, uint32_t n_experts) {
    return id < n_experts ? atomicAdd(count + id, 1) : SL_SORT_NOWHERE;
}

/* How many of the same expert came before each, in this block. */
SL_DEV uint4 sl_sort_ranks(uint32_t *count, uint4 id, uint32_t n) {
    return make_uint4(sl_sort_next(count, id.x, n), sl_sort_next(count, id.y, n),
                      sl_sort_next(count, id.z, n), sl_sort_next(count, id.w, n));
}

SL_DEV uint32_t sl_sort_first(void) {
    return blockIdx.x * SL_FAST_SORT_PAIRS + 4 * threadIdx.x;
}

SL_DEV void sl_sort_round(const sl_fast_round_args *a, uint64_t block) {
    SL_UNROLL for (uint32_t j = 0; j < SL_FAST_ROUND_VALUES / 8; j++) {
        const uint64_t at = block * SL_FAST_ROUND_VALUES + j * 8;
        const uint64_t i = at * SL_FAST_SORT_THREADS + threadIdx.x * 8;
        if (i >= a->n) return;
        const float4 lo = __ldcg((const float4 *)(a->x + i));
        const float4 hi = __ldcg((const float4 *)(a->x + i + 4));
        const float f[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        *(uint4 *)(a->y + i) = sl_fast_pack8(f);
    }
}

SL_KERNEL_BOUNDS(sl_k_fast_count, sl_fast_count_args, SL_FAST_SORT_THREADS, 4) {
    SL_SHARED(uint32_t, count, SL_FAST_EXPERTS);
    const uint32_t wide = (a.n_experts + 3) / 4 * 4;
    sl_fast_wait();
    sl_fast_let_next();
    if (blockIdx.x >= a.blocks) {
        sl_sort_round(&a.round, blockIdx.x - a.blocks);
        return;
    }
    for (uint32_t i = threadIdx.x; i < wide; i += SL_FAST_SORT_THREADS) count[i] = 0;
    __syncthreads();
    const uint32_t first = sl_sort_first();
    const uint4 rank = sl_sort_ranks(count, sl_sort_ids(a.id, a.n_pairs, first), a.n_experts);
    if (first < a.n_pairs) *(uint4 *)(a.rank + first) = rank;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < wide; i += SL_FAST_SORT_THREADS)
        a.count[(size_t)blockIdx.x * wide + i] = count[i];
}

/* Pairs of each expert in all blocks, and in those before this one. */
SL_DEV void sl_sort_add_up(const sl_fast_sort_args *a, uint32_t *all, uint32_t *before) {
    const uint32_t fours = (a->n_experts + 3) / 4, step = SL_FAST_SORT_THREADS / fours;
    const uint32_t mine = threadIdx.x % fours;
    for (uint32_t b = threadIdx.x / fours; b < a->blocks && threadIdx.x < step * fours; b += step) {
        const uint4 v = __ldcg((const uint4 *)a->count + (size_t)b * fours + mine);
        const uint32_t n[4] = {v.x, v.y, v.z, v.w};
        SL_UNROLL for (uint32_t i = 0; i < 4; i++) {
            if (n[i]) atomicAdd(all + 4 * mine + i, n[i]);
            if (n[i] && b < blockIdx.x) atomicAdd(before + 4 * mine + i, n[i]);
        }
    }
}

/* Sums up to this thread's, of the whole block; *end: of all. */
SL_DEV uint32_t sl_sort_scan(uint32_t v, uint32_t *part, uint32_t *end) {
    uint32_t sum = v, base = 0, all = 0;
    SL_UNROLL for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t o = __shfl_up_sync(SL_ALL, sum, by);
        if (sl_lane() >= by) sum += o;
    }
    if (sl_lane() == 31) part[sl_warp()] = sum;
    __syncthreads();
    SL_UNROLL for (uint32_t w = 0; w < SL_FAST_SORT_THREADS / 32; w++) {
        base += w < sl_warp() ? part[w] : 0;
        all += part[w];
    }
    *end = all;
    return base + sum;
}

/* Turns counts of experts into where their pairs begin; each block writes the lists of some. */
SL_DEV void sl_sort_plan(const sl_fast_sort_args *a, uint32_t *count) {
    SL_SHARED2(uint32_t, part, 3, SL_FAST_SORT_THREADS / 32);
    SL_SHARED(uint32_t, widest, 1);
    uint32_t n[SL_SORT_EXPERTS], pairs = 0, groups = 0, pieces = 0, most = 0, end[3];
    if (threadIdx.x == 0) widest[0] = 0;
    SL_UNROLL for (uint32_t i = 0; i < SL_SORT_EXPERTS; i++) {
        const uint32_t e = threadIdx.x * SL_SORT_EXPERTS + i;
        n[i] = e < a->n_experts ? count[e] : 0;
        const uint32_t p = sl_sort_pieces(a, n[i]);
        pairs += n[i];
        groups += sl_sort_groups(a, n[i]);
        pieces += p;
        if (p && (n[i] + p - 1) / p > most) most = (n[i] + p - 1) / p;
    }
    uint32_t at = sl_sort_scan(pairs, part[0], &end[0]) - pairs;
    uint32_t group = sl_sort_scan(groups, part[1], &end[1]) - groups;
    uint32_t piece = sl_sort_scan(pieces, part[2], &end[2]) - pieces;
    SL_UNROLL for (uint32_t i = 0; i < SL_SORT_EXPERTS; i++) {
        const uint32_t e = threadIdx.x * SL_SORT_EXPERTS + i;
        if (!n[i]) continue;
        count[e] = at;
        if (e % gridDim.x == blockIdx.x) sl_sort_lists(a, e, at, n[i], group, piece);
        at += n[i];
        group += sl_sort_groups(a, n[i]);
        piece += sl_sort_pieces(a, n[i]);
    }
    if (most) atomicMax(widest, most);
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) sl_sort_counts(a, end[1], end[2], widest[0]);
}

/* Where a pair comes to lie. */
SL_DEV uint32_t sl_sort_put(const sl_fast_sort_args *a, const uint32_t *begin,
                            const uint32_t *before, uint32_t pair, uint32_t id, uint32_t rank) {
    if (pair >= a->n_pairs || id >= a->n_experts) return SL_SORT_NOWHERE;
    const uint32_t at = begin[id] + before[id] + rank;
    a->x_row[at] = a->pair_row ? __ldcg(a->pair_row + pair) : pair / a->top_k;
    a->weight[at] = __ldcg(a->gate + pair);
    return at;
}

/* Four words of pairs that follow one another, as far as there are any. */
SL_DEV void sl_sort_store(uint32_t *to, uint32_t n_pairs, uint32_t first, uint4 v) {
    if (first + 4 <= n_pairs) {
        *(uint4 *)(to + first) = v;
        return;
    }
    if (first < n_pairs) to[first] = v.x;
    if (first + 1 < n_pairs) to[first + 1] = v.y;
    if (first + 2 < n_pairs) to[first + 2] = v.z;
}

SL_KERNEL_BOUNDS(sl_k_fast_sort_many, sl_fast_sort_args, SL_FAST_SORT_THREADS, 4) {
    SL_SHARED(uint32_t, count, SL_FAST_EXPERTS);
    SL_SHARED(uint32_t, before, SL_FAST_EXPERTS);
    const uint32_t first = sl_sort_first();
    for (uint32_t i = threadIdx.x; i < SL_FAST_EXPERTS; i += SL_FAST_SORT_THREADS)
        count[i] = before[i] = 0;
    __syncthreads();
    sl_fast_wait();
    sl_fast_let_next();
    const uint4 id = sl_sort_ids(a.id, a.n_pairs, first);
    uint4 rank = make_uint4(0, 0, 0, 0);
    if (!a.blocks)
        rank = sl_sort_ranks(count, id, a.n_experts);
    else if (first < a.n_pairs)
        rank = __ldcg((const uint4 *)(a.rank + first));
    if (a.blocks) sl_sort_add_up(&a, count, before);
    __syncthreads();
    sl_sort_plan(&a, count);
    const uint4 at = make_uint4(sl_sort_put(&a, count, before, first, id.x, rank.x),
                                sl_sort_put(&a, count, before, first + 1, id.y, rank.y),
                                sl_sort_put(&a, count, before, first + 2, id.z, rank.z),
                                sl_sort_put(&a, count, before, first + 3, id.w, rank.w));
    sl_sort_store(a.place, a.n_pairs, first, at);
    if (a.heard) sl_sort_store(a.heard, a.n_pairs, first, id);
}

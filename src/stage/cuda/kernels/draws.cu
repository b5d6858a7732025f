/* What draws seek of logits (model/seek.h), found where the logits are: the first tokens in the
 * order of draws, and sums of weights with the CPU's bits, added in its order. */
#include "model/draw_rule.h"
#include "stage/cuda/kernels/args_draws.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/lanes.h"

/* ---- order ---- */

#define NOTHING 0u

/* Larger numbers have larger ones. */
SL_DEV uint32_t draw_rank(float logit) {
    const uint32_t u = sl_f32_bits(logit + 0.0f); /* -0 becomes +0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

SL_DEV float draw_ranked(uint32_t rank) {
    return sl_f32_of_bits(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

/* Tokens in order have falling keys, all of them above NOTHING. */
SL_DEV uint64_t draw_key(float logit, uint32_t id) {
    return (uint64_t)(logit != logit ? 1u : draw_rank(logit)) << 32 | (0xffffffffu - id);
}

SL_DEV uint32_t draw_id(uint64_t key) {
    return 0xffffffffu - (uint32_t)key;
}

SL_DEV void draw_larger_first(uint64_t *a, uint64_t *b) {
    const uint64_t x = *a, y = *b;
    if (x >= y) return;
    *a = y;
    *b = x;
}

/* Of the t-th pair whose members are `step` apart, the first. */
SL_DEV uint32_t draw_first_of(uint32_t t, uint32_t step) {
    return 2 * t - (t & (step - 1));
}

/* Runs of 1 << log keys, n in all, each in order. By all threads of a block. */
SL_DEV void draw_sort(uint64_t *key, uint32_t n, uint32_t log) {
    for (uint32_t size = 2; size <= 1u << log; size *= 2)
        for (uint32_t step = size / 2; step; step /= 2) {
            for (uint32_t t = threadIdx.x; t < n / 2; t += SL_CUDA_DRAW_THREADS) {
                const uint32_t i = draw_first_of(t, step);
                if (size == 1u << log || !(i & size))
                    draw_larger_first(key + i, key + i + step);
                else
                    draw_larger_first(key + i + step, key + i);
            }
            __syncthreads();
        }
}

/* The first 1 << log keys of so many runs of that length, each in order, become the first run. Of
 * two runs those are the larger ones of pairs from either end: they rise and fall, which a merge
 * puts in order. */
SL_DEV void draw_merge(uint64_t *key, uint32_t runs, uint32_t log) {
    const uint32_t length = 1u << log;
    for (uint32_t apart = 1; apart < runs; apart *= 2) {
        const uint32_t pairs = (runs - apart + 2 * apart - 1) / (2 * apart);
        for (uint32_t t = threadIdx.x; t < pairs << log; t += SL_CUDA_DRAW_THREADS) {
            const uint32_t i = t & (length - 1);
            uint64_t *a = key + ((size_t)(t >> log) * 2 * apart << log);
            const uint64_t other = a[((size_t)apart << log) + length - 1 - i];
            if (other > a[i]) a[i] = other;
        }
        __syncthreads();
        for (uint32_t step = length / 2; step; step /= 2) {
            for (uint32_t t = threadIdx.x; t < pairs << log >> 1; t += SL_CUDA_DRAW_THREADS) {
                const uint32_t i = draw_first_of(t & (length / 2 - 1), step);
                uint64_t *a = key + ((size_t)(t >> (log - 1)) * 2 * apart << log);
                draw_larger_first(a + i, a + i + step);
            }
            __syncthreads();
        }
    }
}

SL_KERNEL_BOUNDS(sl_k_seek_part, sl_k_seek_args, SL_CUDA_DRAW_THREADS, 2) {
    SL_SHARED(uint64_t, key, SL_CUDA_DRAW_PART);
    const uint32_t part = blockIdx.x, row = blockIdx.y, list = 1u << a.list_log;
    const float *logits = a.logits + (size_t)row * a.vocab;
    if (!(a.seeks >> row & 1)) return;
    for (uint32_t i = threadIdx.x; i < SL_CUDA_DRAW_PART; i += SL_CUDA_DRAW_THREADS) {
        const uint32_t id = part * SL_CUDA_DRAW_PART + i;
        key[i] = id < a.vocab ? draw_key(logits[id], id) : NOTHING;
    }
    __syncthreads();
    draw_sort(key, SL_CUDA_DRAW_PART, a.list_log);
    draw_merge(key, SL_CUDA_DRAW_PART >> a.list_log, a.list_log);
    uint64_t *to = a.key + ((size_t)row * a.parts + part) * list;
    for (uint32_t i = threadIdx.x; i < list; i += SL_CUDA_DRAW_THREADS) to[i] = key[i];
}

#define SEEK_KEYS (2 * SL_CUDA_DRAW_PART) /* of runs that are merged at a time */
#define SEEK_IDS  SL_CUDA_SEEK_IDS

/* The first run of all parts' lists. */
SL_DEV void seek_first(const sl_k_seek_args *a, uint32_t row, uint64_t *key) {
    const uint64_t *from = a->key + ((size_t)row * a->parts << a->list_log);
    uint32_t have = 0; /* runs: the first of those so far is one */
    for (uint32_t at = 0; at < a->parts;) {
        const uint32_t room = (SEEK_KEYS >> a->list_log) - have, left = a->parts - at;
        const uint32_t more = room < left ? room : left;
        for (uint32_t i = threadIdx.x; i < more << a->list_log; i += SL_CUDA_DRAW_THREADS)
            key[(have << a->list_log) + i] = from[((size_t)at << a->list_log) + i];
        __syncthreads();
        draw_merge(key, have + more, a->list_log);
        at += more;
        have = 1;
    }
}

/* Those of the list and single ones behind its edge, so that none is there twice, by id. */
SL_DEV void seek_ids(const sl_sought *q, const float *logits, const uint64_t *key, uint64_t *id) {
    const uint64_t edge = key[q->n_list - 1];
    for (uint32_t i = threadIdx.x; i < SEEK_IDS; i += SL_CUDA_DRAW_THREADS) {
        const uint32_t single = i - q->n_list;
        id[i] = NOTHING;
        if (i < q->n_list)
            id[i] = (uint32_t)key[i];
        else if (single < q->n_ids && draw_key(logits[q->id[single]], q->id[single]) < edge)
            id[i] = 0xffffffffu - q->id[single];
    }
    __syncthreads();
    draw_sort(id, SEEK_IDS, SL_CUDA_SEEK_IDS_LOG);
}

SL_KERNEL_BOUNDS(sl_k_seek, sl_k_seek_args, SL_CUDA_DRAW_THREADS, 2) {
    SL_SHARED(uint64_t, key, SEEK_KEYS);
    SL_SHARED(uint64_t, id, SEEK_IDS);
    SL_SHARED(sl_sought, q, 1);
    const uint32_t row = blockIdx.x;
    const float *logits = a.logits + (size_t)row * a.vocab;
    sl_found *f = a.found + row;
    if (!(a.seeks >> row & 1)) return;
    if (threadIdx.x == 0) *q = a.sought[row]; /* once over the bus */
    seek_first(&a, row, key);
    seek_ids(q, logits, key, id);
    for (uint32_t i = threadIdx.x; i < q->n_list + q->n_ids; i += SL_CUDA_DRAW_THREADS) {
        const bool last = id[i] != NOTHING && id[i + 1] == NOTHING;
        if (last) f->n = i + 1;
        if (id[i] == NOTHING) continue;
        f->id[i] = draw_id(id[i]);
        f->logit[i] = logits[draw_id(id[i])];
    }
    if (threadIdx.x) return;
    f->edge = draw_id(key[q->n_list - 1]);
    f->edge_logit = logits[f->edge];
    f->sum = f->mass_sum = 0;
    sl_k_draw_row *r = a.row + row;
    r->mass = q->mass;
    r->top = logits[draw_id(key[0])];
    r->sum = 0;
    r->least = r->came = 0;
}

/* ---- sums ---- */

#define SUM_CHUNK 4096u /* weights in shared memory at a time, twice */
#define SUM_STEPS 8u

/* One row, as its sums are made. */
typedef struct draw_row {
    const float *logits;
    uint32_t vocab;
    float top, temperature, sum;
    float floor; /* weights below it are dropped */
} draw_row;

SL_DEV draw_row draw_row_of(const sl_k_seek_args *a, uint32_t row) {
    const sl_k_draw_row *k = a->row + row;
    draw_row r = {a->logits + (size_t)row * a->vocab,
                  a->vocab,
                  k->top,
                  k->mass.temperature,
                  k->sum,
                  k->floor};
    return r;
}

SL_DEV float draw_e(const draw_row *r, uint32_t id) {
    return sl_exp_scalar(sl_draw_power(r->logits[id], r->top, r->temperature));
}

SL_DEV float draw_weight(const draw_row *r, uint32_t id) {
    return sl_draw_kept(draw_e(r, id) / r->sum, r->floor);
}

/* By threads from `first` on. */
SL_DEV void sum_load(const draw_row *r, uint32_t at, uint32_t first, float *to) {
    const uint32_t left = at < r->vocab ? r->vocab - at : 0;
    const uint32_t n = left < SUM_CHUNK ? left : SUM_CHUNK;
    for (uint32_t i = threadIdx.x - first; i < n; i += SL_CUDA_SUM_THREADS - first)
        to[i] = draw_e(r, at + i);
}

/* One lane's next steps. */
SL_DEV float sum_chain(const float *x, uint32_t n, float s) {
    uint32_t i = sl_lane();
    for (; i + (SUM_STEPS - 1) * SL_DOT_LANES < n; i += SUM_STEPS * SL_DOT_LANES) {
        float v[SUM_STEPS];
        SL_UNROLL
        for (uint32_t j = 0; j < SUM_STEPS; j++) v[j] = x[i + j * SL_DOT_LANES];
        SL_UNROLL
        for (uint32_t j = 0; j < SUM_STEPS; j++) s = s + v[j];
    }
    for (; i < n; i += SL_DOT_LANES) s = s + x[i];
    return s;
}

/* The sum of softmax, as of sl_softmax: the first warp adds while the others raise. */
SL_DEV float sum_all(const draw_row *r) {
    SL_SHARED(float, part, 2 * SUM_CHUNK);
    SL_SHARED(float, sum, 1);
    const bool adds = sl_warp() == 0;
    float s = 0;
    sum_load(r, 0, 0, part);
    __syncthreads();
    for (uint32_t at = 0, which = 0; at < r->vocab; at += SUM_CHUNK, which ^= 1) {
        const uint32_t left = r->vocab - at;
        if (!adds)
            sum_load(r, at + SUM_CHUNK, SL_WARP, part + (which ^ 1) * SUM_CHUNK);
        else if (sl_lane() < SL_DOT_LANES)
            s = sum_chain(part + which * SUM_CHUNK, left < SUM_CHUNK ? left : SUM_CHUNK, s);
        __syncthreads();
    }
    if (adds) s = sl_lanes_tree(s);
    if (threadIdx.x == 0) sum[0] = s;
    __syncthreads();
    return sum[0];
}

SL_KERNEL_BOUNDS(sl_k_seek_sums, sl_k_seek_args, SL_CUDA_SUM_THREADS, 1) {
    const uint32_t row = blockIdx.x;
    const bool of_mass = blockIdx.y == 1;
    if (!((of_mass ? a.mass : a.sums) >> row & 1)) return;
    draw_row r = draw_row_of(&a, row);
    /* an infinite or undefined maximum leaves no distribution */
    if ((sl_f32_bits(r.top) & 0x7f800000u) == 0x7f800000u) return;
    if (!of_mass) r.temperature = 1;
    const float sum = sum_all(&r);
    if (threadIdx.x) return;
    if (!of_mass) {
        a.found[row].sum = sum;
        return;
    }
    sl_k_draw_row *k = a.row + row;
    k->sum = sum;
    /* the likeliest token's, e^0 over the sum, is the largest */
    k->floor = sl_draw_least(k->mass.share, sl_exp_scalar(0) / sum);
}

/* ---- masses ---- */

/* Eight threads have a block of tokens, each a lane of it. */
SL_KERNEL_BOUNDS(sl_k_seek_blocks, sl_k_seek_args, SL_CUDA_DRAW_THREADS, 2) {
    const uint32_t row = blockIdx.y, lane = threadIdx.x % SL_PEAK_LANES;
    const uint32_t b = blockIdx.x * SL_CUDA_MASS_BLOCKS + threadIdx.x / SL_PEAK_LANES;
    if (!(a.mass >> row & 1)) return;
    const draw_row r = draw_row_of(&a, row);
    if (!(r.sum > 0)) return;
    const uint32_t at = b * SL_PEAK_BLOCK, n = sl_draw_in_block(a.vocab, b);
    const uint32_t whole = n / SL_PEAK_LANES * SL_PEAK_LANES;
    double s = 0, sum = 0;
    for (uint32_t i = lane; i < whole; i += SL_PEAK_LANES) s += draw_weight(&r, at + i);
    for (uint32_t i = whole; i < n; i++) sum += draw_weight(&r, at + i);
    for (uint32_t j = 0; j < SL_PEAK_LANES; j++)
        sum += __shfl_sync(SL_ALL, s, (sl_lane() & ~(SL_PEAK_LANES - 1)) + j);
    if (n && lane == 0) a.block[(size_t)row * sl_draw_blocks(a.vocab) + b] = sum;
}

/* Of all blocks, in order: they come to shared memory some at a time, and one thread adds. */
SL_DEV double mass_all(const double *block, uint32_t n) {
    SL_SHARED(double, part, SL_CUDA_DRAW_THREADS);
    SL_SHARED(double, all, 1);
    double sum = 0;
    for (uint32_t at = 0; at < n; at += SL_CUDA_DRAW_THREADS) {
        const uint32_t left = n - at, m = left < SL_CUDA_DRAW_THREADS ? left : SL_CUDA_DRAW_THREADS;
        if (threadIdx.x < m) part[threadIdx.x] = block[at + threadIdx.x];
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < m; i++) sum += part[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) all[0] = sum;
    __syncthreads();
    return all[0];
}

/* Which token u means, by id. */
SL_DEV void mass_pick(const draw_row *r, const double *block, double goal, sl_found *f) {
    SL_SHARED(float, weight, SL_PEAK_BLOCK);
    SL_SHARED(uint32_t, in, 1);
    SL_SHARED(double, before, 1);
    if (threadIdx.x == 0) in[0] = sl_draw_block(block, sl_draw_blocks(r->vocab), goal, before);
    __syncthreads();
    const uint32_t at = in[0] * SL_PEAK_BLOCK, n = sl_draw_in_block(r->vocab, in[0]);
    for (uint32_t i = threadIdx.x; i < n; i += SL_CUDA_DRAW_THREADS)
        weight[i] = draw_weight(r, at + i);
    __syncthreads();
    if (threadIdx.x) return;
    const uint32_t i = sl_draw_walk(weight, NULL, n, before[0], goal);
    f->pick = i < n ? at + i : 0xffffffffu; /* none has a weight: nobody takes it */
    f->pick_logit = i < n ? r->logits[at + i] : 0;
}

SL_KERNEL_BOUNDS(sl_k_seek_mass, sl_k_seek_args, SL_CUDA_DRAW_THREADS, 2) {
    const uint32_t row = blockIdx.x;
    if (!(a.mass >> row & 1)) return;
    const draw_row r = draw_row_of(&a, row);
    sl_k_draw_row *k = a.row + row;
    sl_found *f = a.found + row;
    if (!(r.sum > 0)) return;
    const double *block = a.block + (size_t)row * sl_draw_blocks(a.vocab);
    const double all = mass_all(block, sl_draw_blocks(a.vocab));
    if (k->mass.kind == SL_MASS_ANY) mass_pick(&r, block, k->mass.u * all, f);
    if (threadIdx.x) return;
    k->likely = sl_draw_likely(k->mass.top_p, all, a.vocab);
    f->mass = all;
    f->mass_sum = r.sum;
}

SL_KERNEL_BOUNDS(sl_k_seek_least, sl_k_seek_args, SL_CUDA_DRAW_THREADS, 2) {
    const uint32_t row = blockIdx.y, first = blockIdx.x * SL_CUDA_MASS_BLOCKS * SL_PEAK_BLOCK;
    if (!(a.top >> row & 1)) return;
    const draw_row r = draw_row_of(&a, row);
    sl_k_draw_row *k = a.row + row;
    const double likely = k->likely;
    uint32_t least = 0; /* the largest of ranks that are turned round */
    if (!(r.sum > 0)) return;
    for (uint32_t i = threadIdx.x; i < SL_CUDA_MASS_BLOCKS * SL_PEAK_BLOCK;
         i += SL_CUDA_DRAW_THREADS) {
        const float w = first + i < a.vocab ? draw_weight(&r, first + i) : 0;
        const uint32_t rank = w > 0 && w >= likely ? ~draw_rank(r.logits[first + i]) : 0;
        least = rank > least ? rank : least;
    }
    least = sl_lanes_most(least);
    if (sl_lane() == 0 && least) atomicMax(&k->least, least);
    if (sl_fast_is_last(&k->came, gridDim.x) && threadIdx.x == 0)
        a.found[row].least = draw_ranked(~__ldcg(&k->least));
}

/* Attention of many rows of one request over its pages on warp groups' tensor cores, numerics fast,
 * sm_90a. Its pages become bf16 first, values turned round, so that the copy engine can bring both.
 *
 * A block takes 128 queries, rows times the query heads of a kv head, each of two warp groups half
 * of them in registers; another one keeps a ring of steps of 64 positions filled. A group begins
 * the scores of a step, then the sums of values of the step before, and makes weights of the scores
 * while the latter are under way. */
#include "stage/cuda/kernels/args_prompt.h"
#include "stage/cuda/kernels/attention_block.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/ring.h"

#define DIM   128u /* at most */
#define KEYS  SL_PROMPT_KEYS
#define LOG2E 1.44269504f
#define APART 40u /* positions between rows of values that are turned round */

typedef char prompt_room_fits[sizeof(sl_ring) <= SL_PROMPT_ROOM ? 1 : -1];

/* ---- pages to bf16 ---- */

/* Four values from number `i` of a page's rows on. */
SL_DEV uint2 four_of(uint32_t type, const uint8_t *page, uint32_t i) {
    if (type == SL_KV_BF16) return *(const uint2 *)(page + 2 * i);
    const float4 f = *(const float4 *)(page + 4 * i);
    return make_uint2(sl_pack_bf16(f.x, f.y), sl_pack_bf16(f.z, f.w));
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_keys, sl_prompt_keys_args, SL_PROMPT_KEYS_THREADS, 4) {
    SL_SHARED(uint16_t, turned, DIM * APART);
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t head = blockIdx.y, first = blockIdx.x * PAGE, base = a.origin + first;
    const bool any = base <= a.to && base + PAGE > a.from;
    const size_t at = any ? a.page[blockIdx.x] * a.page_bytes + head * a.head_bytes : 0;
    for (uint32_t i = 4 * threadIdx.x; i < PAGE * a.dim; i += 4 * SL_PROMPT_KEYS_THREADS) {
        const uint32_t p = i / a.dim, d = i % a.dim;
        const bool there = base + p >= a.from && base + p <= a.to;
        const uint2 zero = make_uint2(0, 0);
        const uint2 k = there ? four_of(a.type, a.k + at, i) : zero;
        const uint2 v = there ? four_of(a.type, a.v + at, i) : zero;
        *(uint2 *)(a.keys + ((size_t)head * a.span + first + p) * a.dim + d) = k;
        turned[d * APART + p] = (uint16_t)v.x;
        turned[(d + 1) * APART + p] = (uint16_t)(v.x >> 16);
        turned[(d + 2) * APART + p] = (uint16_t)v.y;
        turned[(d + 3) * APART + p] = (uint16_t)(v.y >> 16);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.dim * (PAGE / 8); i += SL_PROMPT_KEYS_THREADS) {
        const uint32_t d = i / (PAGE / 8), p = i % (PAGE / 8) * 8;
        *(uint4 *)(a.values + ((size_t)head * a.dim + d) * a.span + first + p) =
            *(const uint4 *)(turned + d * APART + p);
    }
}

/* ---- attention ---- */

/* Steps of a block. */
typedef struct steps {
    uint32_t first, n;
} steps;

SL_DEV steps steps_of(const sl_prompt_args *a, const block_queries *b) {
    const uint32_t first = (b->walk.first * PAGE - a->origin) / KEYS;
    const uint32_t last = (b->walk.last * PAGE - a->origin) / KEYS;
    const steps s = {first, last - first + 1};
    return s;
}

/* One thread. */
SL_DEV void feed(const sl_prompt_args *a, const block_queries *b, sl_ring *ring, sl_ring_turn turn,
                 const uint32_t dim) {
    const steps s = steps_of(a, b);
    for (uint32_t i = 0; i < s.n; i++) {
        uint8_t *stage = sl_ring_stage(&turn);
        sl_mbar *full = &ring->full[turn.slot];
        const uint32_t at = (s.first + i) * KEYS;
        sl_mbar_wait(&ring->empty[turn.slot], turn.parity ^ 1);
        sl_mbar_expect(full, 2 * KEYS * dim * 2);
        SL_UNROLL for (uint32_t d = 0; d < dim; d += 64)
            sl_tensor_keep(stage + d * KEYS * 2, (const sl_tensor_map *)&a->keys, d,
                           b->kv_head * a->span + at, full);
        sl_tensor_keep(stage + dim * KEYS * 2, (const sl_tensor_map *)&a->values, at,
                       b->kv_head * dim, full);
        sl_ring_next(&turn);
    }
}

/* Queries g and g + 8 of this warp: which they are, and how far they have come. */
typedef struct two_queries {
    uint32_t u[2], low[2], pos[2];
    float max[2], sum[2];
} two_queries;

SL_DEV void begin(const sl_k_attention_args *a, const block_queries *b, const uint32_t dim,
                  two_queries *w, uint32_t q[DIM / 16][4]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
        const uint32_t u = (sl_warp() - 4) * 16 + sl_lane() / 4 + 8 * i;
        const bool there = u < b->n;
        const uint32_t row = there ? row_of_query(b, u) : 0;
        const float *from = a->q + (size_t)row * a->q_stride +
                            (size_t)(there ? head_of_query(b, u) : 0) * dim + 2 * t;
        w->u[i] = u;
        w->low[i] = there ? a->low[row] : 1;
        w->pos[i] = there ? a->pos[row] : 0;
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
        SL_UNROLL for (uint32_t c = 0; c < dim / 16; c++) {
            const float2 x = there ? *(const float2 *)(from + 16 * c) : make_float2(0, 0);
            const float2 y = there ? *(const float2 *)(from + 16 * c + 8) : make_float2(0, 0);
            q[c][i] = sl_pack_bf16(x.x, x.y);
            q[c][i + 2] = sl_pack_bf16(y.x, y.y);
        }
    }
}

/* s[4 n ..]: of keys 8 n + 2 t and one more, queries g and g + 8. */
SL_DEV void begin_scores(const uint8_t *stage, const uint32_t dim, uint32_t q[DIM / 16][4],
                         float s[KEYS / 2]) {
    SL_UNROLL for (uint32_t c = 0; c < dim / 16; c++) {
        const uint64_t k = sl_wgmma_tile(stage + c / 4 * (KEYS * 128));
        sl_wgmma_regs(KEYS, s, q[c], k + 2 * (c % 4), c);
    }
    sl_wgmma_commit();
}

SL_DEV void begin_values(const uint8_t *stage, const uint32_t dim, uint32_t p[KEYS / 16][4],
                         float o[DIM / 2]) {
    const uint64_t v = sl_wgmma_tile(stage + dim * KEYS * 2);
    SL_UNROLL for (uint32_t k = 0; k < KEYS / 16; k++) sl_wgmma_regs(dim, o, p[k], v + 2 * k, 1);
    sl_wgmma_commit();
}

SL_DEV float max_of_four(float v) {
    v = fmaxf(v, __shfl_xor_sync(SL_ALL, v, 1));
    return fmaxf(v, __shfl_xor_sync(SL_ALL, v, 2));
}

/* Positions of a step that a query does not see. */
SL_DEV void hide(uint32_t base, const two_queries *w, float s[KEYS / 2]) {
    SL_UNROLL for (uint32_t i = 0; i < KEYS / 2; i++) {
        const uint32_t at = base + i / 4 * 8 + sl_lane() % 4 * 2 + i % 2, of = i / 2 % 2;
        if (at < w->low[of] || at > w->pos[of]) s[i] = -INFINITY;
    }
}

/* Scores become weights of a step; factor: by which what was summed up shrinks. A query that has
 * seen nothing yet has no maximum. */
SL_DEV void make_weights(float scale, uint32_t base, bool even, two_queries *w, float s[KEYS / 2],
                         float factor[2]) {
    if (!even) hide(base, w, s);
    SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
        float most = -INFINITY, sum = 0;
        SL_UNROLL for (uint32_t n = 0; n < KEYS / 8; n++) {
            SL_UNROLL for (uint32_t j = 2 * i; j < 2 * i + 2; j++) {
                most = fmaxf(most, s[4 * n + j]);
            }
        }
        most = fmaxf(max_of_four(most) * scale, w->max[i]);
        const float top = most == -INFINITY ? 0.0f : most;
        SL_UNROLL for (uint32_t n = 0; n < KEYS / 8; n++) {
            SL_UNROLL for (uint32_t j = 2 * i; j < 2 * i + 2; j++) {
                s[4 * n + j] = sl_exp2_fast(fmaf(s[4 * n + j], scale, -top));
                sum += s[4 * n + j];
            }
        }
        factor[i] = sl_exp2_fast(w->max[i] - top);
        w->sum[i] = w->sum[i] * factor[i] + sum;
        w->max[i] = most;
    }
}

SL_DEV void pack_weights(const float s[KEYS / 2], uint32_t p[KEYS / 16][4]) {
    SL_UNROLL for (uint32_t k = 0; k < KEYS / 16; k++) {
        SL_UNROLL for (uint32_t i = 0; i < 4; i++) p[k][i] =
            sl_pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
}

/* The sums of values are waited for, and shrink: most steps have no new maximum. A branch of its
 * own for each, which keeps weights in front of the wait. */
SL_DEV void settle(const uint32_t dim, const float factor[2], float o[DIM / 2]) {
    if (__all_sync(SL_ALL, factor[0] == 1 && factor[1] == 1)) {
        sl_wgmma_wait(0);
        sl_wgmma_settle(o, dim / 2);
    } else {
        sl_wgmma_wait(0);
        sl_wgmma_settle(o, dim / 2);
        SL_UNROLL for (uint32_t i = 0; i < dim / 2; i++) o[i] *= factor[i / 2 % 2];
    }
}

SL_DEV void end(const sl_k_attention_args *a, const block_queries *b, uint16_t *rounded,
                const uint32_t dim, const two_queries *w, const float o[DIM / 2]) {
    SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
        float sum = w->sum[i];
        sum += __shfl_xor_sync(SL_ALL, sum, 1);
        sum += __shfl_xor_sync(SL_ALL, sum, 2);
        if (w->u[i] >= b->n) continue;
        float f = 1;
        if (a->sink) {
            const float sink = a->sink[head_of_query(b, w->u[i])] * LOG2E;
            const float most = fmaxf(w->max[i], sink);
            f = sl_exp2_fast(w->max[i] - most);
            sum = sum * f + sl_exp2_fast(sink - most);
        }
        f /= sum;
        float *to = out_of_query(a, b, w->u[i]) + sl_lane() % 4 * 2;
        uint16_t *to16 = rounded + (to - a->o);
        SL_UNROLL for (uint32_t n = 0; n < dim / 8; n++) {
            const float x = f * o[4 * n + 2 * i], y = f * o[4 * n + 2 * i + 1];
            *(float2 *)(to + 8 * n) = make_float2(x, y);
            *(uint32_t *)(to16 + 8 * n) = sl_pack_bf16(x, y);
        }
    }
}

SL_DEV bool is_even(const block_queries *b, uint32_t base) {
    return base >= b->walk.even_from && base + KEYS - 1 <= b->walk.even_to;
}

SL_DEV void attend(const sl_prompt_args *a, const block_queries *b, sl_ring *ring,
                   sl_ring_turn turn, const uint32_t dim) {
    const steps all = steps_of(a, b);
    const float scale = a->attn.scale * LOG2E;
    uint32_t q[DIM / 16][4], p[KEYS / 16][4], base = a->origin + all.first * KEYS;
    float o[DIM / 2], s[KEYS / 2], factor[2];
    two_queries w;
    begin(&a->attn, b, dim, &w, q);
    SL_UNROLL for (uint32_t i = 0; i < dim / 2; i++) o[i] = 0;
    sl_mbar_wait(&ring->full[turn.slot], turn.parity);
    sl_wgmma_begin();
    begin_scores(sl_ring_stage(&turn), dim, q, s);
    sl_wgmma_wait(0);
    sl_wgmma_settle(s, KEYS / 2);
    make_weights(scale, base, is_even(b, base), &w, s, factor);
    pack_weights(s, p);
    for (uint32_t i = 1; i < all.n; i++) {
        const sl_ring_turn before = turn;
        base += KEYS;
        sl_ring_next(&turn);
        sl_mbar_wait(&ring->full[turn.slot], turn.parity);
        sl_wgmma_begin();
        begin_scores(sl_ring_stage(&turn), dim, q, s);
        begin_values(sl_ring_stage(&before), dim, p, o);
        sl_wgmma_wait(1);
        sl_wgmma_settle(s, KEYS / 2);
        make_weights(scale, base, is_even(b, base), &w, s, factor);
        sl_wgmma_settle(s, KEYS / 2);
        settle(dim, factor, o);
        sl_ring_release(ring, before.slot, 1);
        pack_weights(s, p);
    }
    sl_wgmma_begin();
    begin_values(sl_ring_stage(&turn), dim, p, o);
    sl_wgmma_wait(0);
    sl_wgmma_settle(o, dim / 2);
    end(&a->attn, b, a->o, dim, &w, o);
}

SL_DEV void prompt(const sl_prompt_args *a, const uint32_t dim) {
    SL_DYNAMIC(uint8_t, memory);
    uint8_t *room = memory + (0u - (uint32_t)(uintptr_t)memory) % 1024;
    sl_ring *ring = (sl_ring *)room;
    const block_queries b = queries_of_block(&a->attn);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SL_RING_STAGES; i++) {
            sl_mbar_init(&ring->full[i], 1);
            sl_mbar_init(&ring->empty[i], 8);
        }
        sl_mbar_ready();
    }
    __syncthreads();
    const sl_ring_turn turn =
        sl_ring_first(room + SL_PROMPT_ROOM, SL_PROMPT_STAGES, 2 * KEYS * dim * 2);
    sl_fast_wait();
    sl_fast_let_next();
    if (sl_warp() < 4) {
        sl_registers_less(40);
        if (threadIdx.x == 0 && b.n) feed(a, &b, ring, turn, dim);
    } else {
        sl_registers_more(232);
        if (b.n) attend(a, &b, ring, turn, dim);
    }
    __syncwarp();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define prompt(a, dim) ((void)(a), sl_trap())
#endif

SL_KERNEL_BOUNDS(sl_k_fast_prompt_wide_64, sl_prompt_args, SL_PROMPT_THREADS, 1) {
    prompt(&a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_wide_128, sl_prompt_args, SL_PROMPT_THREADS, 1) {
    prompt(&a, 128);
}

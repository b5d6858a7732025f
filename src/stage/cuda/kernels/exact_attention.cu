/* Attention of numerics exact: one arithmetic for rows of prompts and single rows, products on
 * tensor cores in bf16 or f16 (fast_kv.h), sums in f32. Positions are cut into parts of 256,
 * aligned to absolute positions. In a part pages go one after another, as docs/numbers.md says;
 * what parts make is merged in their order, by the block that walked them all, or by another kernel
 * where each had a block of its own: the same numbers either way. A block takes 128 queries, rows
 * times the query heads of a kv head; who is beside a query changes nothing, since what it does not
 * see has weight zero. Compiled without contraction of products and sums. */
#include "stage/cuda/kernels/args_exact_attention.h"
#include "stage/cuda/kernels/attention_pages.h"
#include "stage/cuda/kernels/fast.h"

/* A query's sums so far. */
typedef struct whole {
    float max, sum;
} whole;

/* By how much what was summed up before, and what a part has, shrink. A part without a maximum had
 * no score above -infinity. */
SL_DEV void merge(whole *w, float max, float sum, float *before, float *now) {
    const float most = fmaxf(w->max, max), top = most == -INFINITY ? 0.0f : most;
    *before = sl_exp2_fast(w->max - top);
    *now = sl_exp2_fast(max - top);
    w->sum = fmaf(sum, *now, w->sum * *before);
    w->max = most;
}

/* What a sum of values is multiplied with at the end. */
SL_DEV float end_factor(whole w, const float *sink, uint32_t head) {
    if (!sink) return 1.0f / w.sum;
    const float s = sink[head] * SL_FAST_LOG2E, most = fmaxf(w.max, s);
    const float f = sl_exp2_fast(w.max - most);
    return f / fmaf(w.sum, f, sl_exp2_fast(s - most));
}

/* Scores become weights of this page; factor: by which what was summed up shrinks. A query that has
 * seen nothing yet has no maximum. */
SL_DEV void exact_weights(float scale, uint32_t base, bool even, two_queries *w, float s[4][4],
                          float factor[2]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        float most = w->max[i];
        SL_UNROLL
        for (uint32_t n = 0; n < 4; n++) {
            SL_UNROLL
            for (uint32_t j = 2 * i; j < 2 * i + 2; j++) {
                const uint32_t at = base + 8 * n + 2 * t + j % 2;
                const bool in = even || (at >= w->low[i] && at <= w->pos[i]);
                s[n][j] = in ? s[n][j] * scale : -INFINITY;
                most = fmaxf(most, s[n][j]);
            }
        }
        most = max_of_four(most);
        const float top = most == -INFINITY ? 0.0f : most;
        float sum = 0;
        SL_UNROLL
        for (uint32_t n = 0; n < 4; n++) {
            SL_UNROLL
            for (uint32_t j = 2 * i; j < 2 * i + 2; j++) {
                s[n][j] = sl_exp2_fast(s[n][j] - top);
                sum += s[n][j];
            }
        }
        factor[i] = sl_exp2_fast(w->max[i] - top);
        w->sum[i] = fmaf(w->sum[i], factor[i], sum);
        w->max[i] = most;
    }
}

/* What a block knows of its way. */
typedef struct way {
    const sl_exact_attn_args *x;
    block_queries b;
    two_queries w;
    whole all[2];
    float *total; /* [DIM / 2][THREADS] of shared memory: this thread's columns of the sums */
} way;

/* Whether query i of this warp's two sees any position of a part: of this alone, never of values,
 * depends which parts are summed up. */
SL_DEV bool sees_part(const way *y, uint32_t i, uint32_t part) {
    const uint32_t each = PAGE * SL_EXACT_ATTN_PAGES;
    return y->w.u[i] < y->b.n && part >= y->w.low[i] / each && part <= y->w.pos[i] / each;
}

/* Sums of query i of this warp's two to the slot of its part. */
SL_DEV void put_part(const way *y, uint32_t dim, uint32_t i, uint32_t part, float sum,
                     const float o[DIM / 8][4]) {
    const sl_k_attention_args *a = &y->x->of;
    const uint32_t t = sl_lane() % 4, row = row_of_query(&y->b, y->w.u[i]);
    const size_t slot = y->x->slot[row] + part - y->w.low[i] / (PAGE * SL_EXACT_ATTN_PAGES);
    const size_t at = slot * a->n_heads + head_of_query(&y->b, y->w.u[i]);
    float *to = y->x->part + at * dim + 2 * t;
    SL_UNROLL
    for (uint32_t n = 0; n < dim / 8; n++)
        *(float2 *)(to + 8 * n) = make_float2(o[n][2 * i], o[n][2 * i + 1]);
    if (t == 0) *(float2 *)(y->x->state + 2 * at) = make_float2(y->w.max[i], sum);
}

SL_DEV void add_part(way *y, uint32_t dim, uint32_t i, float sum, const float o[DIM / 8][4]) {
    float before, now;
    merge(&y->all[i], y->w.max[i], sum, &before, &now);
    SL_UNROLL
    for (uint32_t n = 0; n < dim / 8; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            float *to = y->total + (4 * n + 2 * i + j) * THREADS + threadIdx.x;
            *to = fmaf(o[n][2 * i + j], now, *to * before);
        }
    }
}

/* A part has ended: its sums go on, and the next one begins with none. */
SL_DEV void end_part(way *y, uint32_t dim, uint32_t part, float o[DIM / 8][4]) {
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        float sum = y->w.sum[i];
        sum += __shfl_xor_sync(SL_ALL, sum, 1);
        sum += __shfl_xor_sync(SL_ALL, sum, 2);
        if (sees_part(y, i, part)) {
            if (y->x->slot)
                put_part(y, dim, i, part, sum, o);
            else
                add_part(y, dim, i, sum, o);
        }
        y->w.max[i] = -INFINITY;
        y->w.sum[i] = 0;
    }
    SL_UNROLL
    for (uint32_t n = 0; n < DIM / 8; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) o[n][j] = 0;
    }
}

SL_DEV void end_all(const way *y, uint32_t dim) {
    const sl_k_attention_args *a = &y->x->of;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        if (y->w.u[i] >= y->b.n) continue;
        const float f = end_factor(y->all[i], a->sink, head_of_query(&y->b, y->w.u[i]));
        float *to = out_of_query(a, &y->b, y->w.u[i]) + 2 * (sl_lane() % 4);
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n++) {
            const float *from = y->total + (4 * n + 2 * i) * THREADS + threadIdx.x;
            *(float2 *)(to + 8 * n) = make_float2(f * from[0], f * from[THREADS]);
        }
    }
}

SL_DEV void attend(uint32_t type, const sl_exact_attn_args *x, uint32_t dim) {
    SL_SHARED(uint16_t, keys, PAGE * APART);
    SL_SHARED(uint16_t, values, PAGE * APART);
    SL_DYNAMIC(float, total);
    sl_fast_wait();
    sl_fast_let_next();
    const sl_k_attention_args *a = &x->of;
    const float scale = a->scale * SL_FAST_LOG2E;
    way y;
    y.x = x, y.b = queries_of_block(a), y.total = total;
    if (y.b.n == 0) return;
    const uint8_t *const k = a->k + y.b.kv_head * a->head_bytes;
    const uint8_t *const v = a->v + y.b.kv_head * a->head_bytes;
    uint32_t q[DIM / 16][4];
    float o[DIM / 8][4];
    page_part part;
    page_numbers numbers = first_numbers(a, &y.b);
    size_t at = page_at(a, &y.b, 0, &numbers);
    fetch(type, &y.b, k + at, v + at, y.b.walk.first * PAGE, dim, &part);
    begin(type, a, &y.b, dim, &y.w, q);
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) y.all[i].max = -INFINITY, y.all[i].sum = 0;
    for (uint32_t i = 0; !x->slot && i < dim / 2; i++) total[i * THREADS + threadIdx.x] = 0;
    SL_UNROLL
    for (uint32_t n = 0; n < DIM / 8; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) o[n][j] = 0;
    }
    for (uint32_t g = y.b.walk.first; g <= y.b.walk.last; g++) {
        const uint32_t base = g * PAGE;
        const bool even = base >= y.b.walk.even_from && base + PAGE - 1 <= y.b.walk.even_to;
        float s[4][4], factor[2];
        __syncthreads(); /* the page before has been read */
        put(type, &part, dim, keys, values);
        __syncthreads();
        if (g < y.b.walk.last) {
            at = page_at(a, &y.b, g + 1 - y.b.walk.first, &numbers);
            fetch(type, &y.b, k + at, v + at, base + PAGE, dim, &part);
        }
        if (16 * sl_warp() >= y.b.n) continue; /* it has no queries, and brings pages alone */
        page_scores(type, keys, q, dim, s);
        exact_weights(scale, base, even, &y.w, s, factor);
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n++) {
            SL_UNROLL
            for (uint32_t j = 0; j < 4; j++) o[n][j] *= factor[j / 2];
        }
        page_values(type, values, s, dim, o);
        if ((g + 1) % SL_EXACT_ATTN_PAGES == 0 || g == y.b.walk.last)
            end_part(&y, dim, g / SL_EXACT_ATTN_PAGES, o);
    }
    if (!x->slot) end_all(&y, dim);
}

#define ATTEND(name, type, dim)                                                                    \
    SL_KERNEL_BOUNDS(name, sl_exact_attn_args, 256, 1) {                                           \
        attend(type, &a, dim);                                                                     \
    }
ATTEND(sl_k_exact_attn_64, SL_KV_F32, 64)
ATTEND(sl_k_exact_attn_128, SL_KV_F32, 128)
ATTEND(sl_k_exact_attn_f16_64, SL_KV_F16, 64)
ATTEND(sl_k_exact_attn_f16_128, SL_KV_F16, 128)
ATTEND(sl_k_exact_attn_bf16_64, SL_KV_BF16, 64)
ATTEND(sl_k_exact_attn_bf16_128, SL_KV_BF16, 128)
ATTEND(sl_k_exact_attn_q8_0_64, SL_KV_Q8_0, 64)
ATTEND(sl_k_exact_attn_q8_0_128, SL_KV_Q8_0, 128)
ATTEND(sl_k_exact_attn_fp8_64, SL_KV_FP8, 64)
ATTEND(sl_k_exact_attn_fp8_128, SL_KV_FP8, 128)

/* Parts of row blockIdx.x, in their order: a head a warp, so many columns a lane. */
SL_DEV void merge_parts(const sl_exact_attn_args *x, uint32_t columns) {
    const sl_k_attention_args *a = &x->of;
    const uint32_t row = blockIdx.x, head = blockIdx.y * SL_EXACT_ATTN_HEADS + sl_warp();
    const uint32_t each = PAGE * SL_EXACT_ATTN_PAGES;
    sl_fast_wait();
    sl_fast_let_next();
    const uint32_t n = a->pos[row] / each - a->low[row] / each + 1;
    if (head >= a->n_heads) return;
    const size_t first = (size_t)x->slot[row] * a->n_heads + head;
    float o[4] = {0, 0, 0, 0};
    whole w = {-INFINITY, 0};
#ifdef __CUDACC__
#pragma unroll 4
#endif
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = first + (size_t)i * a->n_heads;
        const float2 state = *(const float2 *)(x->state + 2 * at);
        const float *from = x->part + at * a->dim + sl_lane() * columns;
        float before, now;
        merge(&w, state.x, state.y, &before, &now);
        SL_UNROLL
        for (uint32_t j = 0; j < columns; j++) o[j] = fmaf(from[j], now, o[j] * before);
    }
    const float f = end_factor(w, a->sink, head);
    float *to = a->o + (size_t)row * a->o_stride + (size_t)head * a->v_dim + sl_lane() * columns;
    SL_UNROLL
    for (uint32_t j = 0; j < columns; j++) to[j] = f * o[j];
}

SL_KERNEL(sl_k_exact_merge, sl_exact_attn_args) {
    if (a.of.dim == 64)
        merge_parts(&a, 2);
    else
        merge_parts(&a, 4);
}

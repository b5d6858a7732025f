/* Attention of many rows of one request over its pages, numerics fast: products on tensor cores in
 * bf16, or in f16 (fast_kv.h), sums in f32. A block takes 128 queries, rows times the query heads
 * of a kv head, a warp 16 of them; all walk the pages together. A page of 16 bits goes into shared
 * memory as it is, any other one is rounded on its way; the next one is on its way in
 * registers meanwhile. `type` is a constant everywhere. */
#include "stage/cuda/kernels/attention_block.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/fast_kv.h"

#define DIM     128u /* at most */
#define THREADS SL_CUDA_ATTN_PROMPT_THREADS
#define WARPS   (THREADS / SL_WARP)
#define APART   (DIM + 8u) /* values between rows in shared memory: 8 rows lie in different banks */
#define LOG2E   1.44269504f

/* A page on its way: this thread's pieces of keys and of values. */
typedef struct page_part {
    uint4 k[PAGE * DIM / 4 / THREADS], v[PAGE * DIM / 4 / THREADS];
} page_part;

/* Rows that nobody sees are zeros: what lies there may be no number. */
SL_DEV void fetch(uint32_t type, const block_queries *b, const uint8_t *k, const uint8_t *v,
                  uint32_t base, uint32_t dim, page_part *p) {
    const uint32_t each = sl_fast_kv_piece(type);
    const size_t row = sl_kv_part_bytes((sl_kv_type)type, dim);
    SL_UNROLL
    for (uint32_t i = 0; i < PAGE * dim / each / THREADS; i++) {
        const uint32_t at = each * (i * THREADS + threadIdx.x), position = base + at / dim;
        const bool there = position >= b->walk.from && position <= b->walk.to;
        p->k[i] = p->v[i] = make_uint4(0, 0, 0, 0);
        if (!there) continue;
        p->k[i] = sl_fast_kv_load(type, k + at / dim * row, at % dim);
        p->v[i] = sl_fast_kv_load(type, v + at / dim * row, at % dim);
    }
}

SL_DEV void put(uint32_t type, const page_part *p, uint32_t dim, uint16_t *k, uint16_t *v) {
    const uint32_t each = sl_fast_kv_piece(type);
    SL_UNROLL
    for (uint32_t i = 0; i < PAGE * dim / each / THREADS; i++) {
        const uint32_t at = each * (i * THREADS + threadIdx.x), to = at / dim * APART + at % dim;
        sl_fast_kv_put(type, p->k[i], k + to);
        sl_fast_kv_put(type, p->v[i], v + to);
    }
}

/* Queries g and g + 8 of this warp: which they are, and how far they have come. */
typedef struct two_queries {
    uint32_t u[2], low[2], pos[2];
    float max[2], sum[2];
} two_queries;

SL_DEV void begin(uint32_t type, const sl_k_attention_args *a, const block_queries *b, uint32_t dim,
                  two_queries *w, uint32_t q[DIM / 16][4]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t u = sl_warp() * 16 + sl_lane() / 4 + 8 * i;
        const bool there = u < b->n;
        const uint32_t row = there ? row_of_query(b, u) : 0;
        const float *from = a->q + (size_t)row * a->q_stride +
                            (size_t)(there ? head_of_query(b, u) : 0) * dim + 2 * t;
        w->u[i] = u;
        w->low[i] = there ? a->low[row] : 1;
        w->pos[i] = there ? a->pos[row] : 0;
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 16; c++) {
            const float2 x = there ? *(const float2 *)(from + 16 * c) : make_float2(0, 0);
            const float2 y = there ? *(const float2 *)(from + 16 * c + 8) : make_float2(0, 0);
            q[c][i] = sl_fast_kv_query(type, x.x, x.y);
            q[c][i + 2] = sl_fast_kv_query(type, y.x, y.y);
        }
    }
}

/* s[n]: of keys 8n + 2t and one more, queries g and g + 8. */
SL_DEV void page_scores(uint32_t type, const uint16_t *k, const uint32_t q[DIM / 16][4],
                        uint32_t dim, float s[4][4]) {
    const uint32_t matrix = sl_lane() / 8, row = sl_lane() % 8;
    SL_UNROLL
    for (uint32_t n = 0; n < 4; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) s[n][j] = 0;
    }
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 16; c++) {
        SL_UNROLL
        for (uint32_t n = 0; n < 4; n += 2) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, k + (8 * (n + matrix / 2) + row) * APART + 16 * c + 8 * (matrix % 2));
            sl_fast_kv_mma(type, s[n], q[c], b);
            sl_fast_kv_mma(type, s[n + 1], q[c], b + 2);
        }
    }
}

SL_DEV float max_of_four(float v) {
    v = fmaxf(v, __shfl_xor_sync(SL_ALL, v, 1));
    return fmaxf(v, __shfl_xor_sync(SL_ALL, v, 2));
}

/* Scores become weights of this page; factor: by which what was summed up shrinks. A query that has
 * seen nothing yet has no maximum. */
SL_DEV void page_weights(float scale, uint32_t base, bool even, two_queries *w, float s[4][4],
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
        w->sum[i] = w->sum[i] * factor[i] + sum;
        w->max[i] = most;
    }
}

/* o[n]: columns 8n + 2t and one more, queries g and g + 8. */
SL_DEV void page_values(uint32_t type, const uint16_t *v, const float s[4][4], uint32_t dim,
                        float o[DIM / 8][4]) {
    const uint32_t matrix = sl_lane() / 8, row = sl_lane() % 8;
    SL_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t p[4] = {sl_fast_kv_pack(type, s[2 * j][0], s[2 * j][1]),
                               sl_fast_kv_pack(type, s[2 * j][2], s[2 * j][3]),
                               sl_fast_kv_pack(type, s[2 * j + 1][0], s[2 * j + 1][1]),
                               sl_fast_kv_pack(type, s[2 * j + 1][2], s[2 * j + 1][3])};
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n += 2) {
            uint32_t b[4];
            sl_ldmatrix_x4_trans(b, v + (16 * j + 8 * (matrix % 2) + row) * APART +
                                        8 * (n + matrix / 2));
            sl_fast_kv_mma(type, o[n], p, b);
            sl_fast_kv_mma(type, o[n + 1], p, b + 2);
        }
    }
}

SL_DEV void end(const sl_k_attention_args *a, const block_queries *b, uint32_t dim,
                const two_queries *w, const float o[DIM / 8][4]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
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
        float *to = out_of_query(a, b, w->u[i]) + 2 * t;
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n++)
            *(float2 *)(to + 8 * n) = make_float2(f * o[n][2 * i], f * o[n][2 * i + 1]);
    }
}

SL_DEV void prompt(uint32_t type, const sl_k_attention_args *a, uint32_t dim) {
    SL_SHARED(uint16_t, keys, PAGE * APART);
    SL_SHARED(uint16_t, values, PAGE * APART);
    const block_queries b = queries_of_block(a);
    if (b.n == 0) return;
    const uint8_t *const k = a->k + b.kv_head * a->head_bytes;
    const uint8_t *const v = a->v + b.kv_head * a->head_bytes;
    const float scale = a->scale * LOG2E;
    uint32_t q[DIM / 16][4];
    float o[DIM / 8][4];
    two_queries w;
    page_part part;
    page_numbers numbers = first_numbers(a, &b);
    size_t at = page_at(a, &b, 0, &numbers);
    fetch(type, &b, k + at, v + at, b.walk.first * PAGE, dim, &part);
    begin(type, a, &b, dim, &w, q);
    SL_UNROLL
    for (uint32_t n = 0; n < DIM / 8; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) o[n][j] = 0;
    }
    for (uint32_t g = b.walk.first; g <= b.walk.last; g++) {
        const uint32_t base = g * PAGE;
        const bool even = base >= b.walk.even_from && base + PAGE - 1 <= b.walk.even_to;
        float s[4][4], factor[2];
        __syncthreads(); /* the page before has been read */
        put(type, &part, dim, keys, values);
        __syncthreads();
        if (g < b.walk.last) {
            at = page_at(a, &b, g + 1 - b.walk.first, &numbers);
            fetch(type, &b, k + at, v + at, base + PAGE, dim, &part);
        }
        page_scores(type, keys, q, dim, s);
        page_weights(scale, base, even, &w, s, factor);
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n++) {
            SL_UNROLL
            for (uint32_t j = 0; j < 4; j++) o[n][j] *= factor[j / 2];
        }
        page_values(type, values, s, dim, o);
    }
    end(a, &b, dim, &w, o);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_64, sl_k_attention_args, 256, 2) {
    prompt(SL_KV_F32, &a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_128, sl_k_attention_args, 256, 1) {
    prompt(SL_KV_F32, &a, 128);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_f16_64, sl_k_attention_args, 256, 2) {
    prompt(SL_KV_F16, &a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_f16_128, sl_k_attention_args, 256, 1) {
    prompt(SL_KV_F16, &a, 128);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_bf16_64, sl_k_attention_args, 256, 2) {
    prompt(SL_KV_BF16, &a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_bf16_128, sl_k_attention_args, 256, 1) {
    prompt(SL_KV_BF16, &a, 128);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_q8_0_64, sl_k_attention_args, 256, 2) {
    prompt(SL_KV_Q8_0, &a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_q8_0_128, sl_k_attention_args, 256, 1) {
    prompt(SL_KV_Q8_0, &a, 128);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_fp8_64, sl_k_attention_args, 256, 2) {
    prompt(SL_KV_FP8, &a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_prompt_fp8_128, sl_k_attention_args, 256, 1) {
    prompt(SL_KV_FP8, &a, 128);
}

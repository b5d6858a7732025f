/* Attention of many rows of one request over its pages, numerics fast: products on tensor cores in
 * bf16, or in f16 (fast_kv.h), sums in f32. A block takes 128 queries, rows times the query heads
 * of a kv head, a warp 16 of them; all walk the pages together. A page of 16 bits goes into shared
 * memory as it is, any other one is rounded on its way; the next one is on its way in
 * registers meanwhile. `type` is a constant everywhere. */
#include "stage/cuda/kernels/attention_pages.h"
#include "stage/cuda/kernels/fast.h"

#define LOG2E 1.44269504f

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

#define PROMPT(name, type, dim, blocks)                                                            \
    SL_KERNEL_BOUNDS(name, sl_k_attention_args, 256, blocks) {                                     \
        prompt(type, &a, dim);                                                                     \
    }
PROMPT(sl_k_fast_prompt_64, SL_KV_F32, 64, 2)
PROMPT(sl_k_fast_prompt_128, SL_KV_F32, 128, 1)
PROMPT(sl_k_fast_prompt_f16_64, SL_KV_F16, 64, 2)
PROMPT(sl_k_fast_prompt_f16_128, SL_KV_F16, 128, 1)
PROMPT(sl_k_fast_prompt_bf16_64, SL_KV_BF16, 64, 2)
PROMPT(sl_k_fast_prompt_bf16_128, SL_KV_BF16, 128, 1)
PROMPT(sl_k_fast_prompt_q8_0_64, SL_KV_Q8_0, 64, 2)
PROMPT(sl_k_fast_prompt_q8_0_128, SL_KV_Q8_0, 128, 1)
PROMPT(sl_k_fast_prompt_fp8_64, SL_KV_FP8, 64, 2)
PROMPT(sl_k_fast_prompt_fp8_128, SL_KV_FP8, 128, 1)

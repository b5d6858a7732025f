/* A kernel of attention (attention.cu), once for each variant: no guard. What a variant is lies in
 * ATTN_*, which end here. */

#define ATTN_WARPS   (ATTN_THREADS / SL_WARP)
#define ATTN_QUERIES (ATTN_WARPS * ATTN_MINE)

#include "stage/cuda/kernels/attention_sums.h"

/* Query i of this warp; warps take turns, so that few queries are spread over all of them. */
SL_DEV uint32_t ATTN_OF(_query)(uint32_t i) {
    return i * ATTN_WARPS + sl_warp();
}

/* How this warp's queries begin. Returns how many it has. */
SL_DEV uint32_t ATTN_OF(_begin)(const sl_k_attention_args *a, const block_queries *b,
                                attn_state state[ATTN_MINE]) {
    uint32_t mine = 0;
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_MINE; i++) {
        const uint32_t u = ATTN_OF(_query)(i);
        state[i].max = -INFINITY;
        state[i].sum = 0;
        state[i].low = 1; /* sees nothing */
        state[i].pos = 0;
        if (u >= b->n) continue;
        const uint32_t row = row_of_query(b, u), head = head_of_query(b, u);
        const size_t at = (size_t)row * a->n_heads + head;
        mine = i + 1;
        state[i].low = a->low[row];
        state[i].pos = a->pos[row];
        if (a->goes_on || a->sink) {
            state[i].max = a->goes_on ? a->max[at] : a->sink[head];
            state[i].sum = a->goes_on ? a->sum[at] : 1.0f;
        }
    }
    return mine;
}

/* The lanes of the dot products of this warp's first n queries, a constant, with this thread's key.
 */
SL_DEV void ATTN_OF(_scores_of)(const float *q, const block_page *page, uint32_t n, uint32_t width,
                                float s[ATTN_MINE][16]) {
    const float *const key = page->keys + sl_lane() * page->apart;
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_MINE; i++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 16; j++) s[i][j] = 0;
    }
    for (uint32_t e = 0; e < width; e += 16) {
        float4 w[4];
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            w[j] = ATTN_STAGED ? *(const float4 *)(key + e + 4 * j) : key_part(page, e + 4 * j);
        SL_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            const float *x = q + ATTN_OF(_query)(i) * width + e;
            SL_UNROLL
            for (uint32_t j = 0; j < 4; j++)
                four_steps(s[i] + 4 * j, *(const float4 *)(x + 4 * j), w[j]);
        }
    }
}

SL_DEV void ATTN_OF(_scores)(const float *q, const block_page *page, uint32_t mine, uint32_t width,
                             float s[ATTN_MINE][16]) {
    if (mine == 0) return;
    if (mine == 1)
        ATTN_OF(_scores_of)(q, page, 1, width, s);
    else if (mine == 2 && ATTN_MINE > 2)
        ATTN_OF(_scores_of)(q, page, 2, width, s);
    else
        ATTN_OF(_scores_of)(q, page, ATTN_MINE, width, s);
}

/* What they see of the page from position `base` on becomes weights, for everyone to read. */
SL_DEV void ATTN_OF(_weigh)(attn_state state[ATTN_MINE], uint32_t mine, uint32_t base, float scale,
                            float s[ATTN_MINE][16], const block_page *page) {
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_MINE; i++) {
        const uint32_t u = ATTN_OF(_query)(i);
        if (i >= mine) continue;
        float p = 0, less = 1;
        const uint32_t seen = __ballot_sync(SL_ALL, sees_key(&state[i], base));
        if (seen) less = take_page(&state[i], base, sl_tree16(s[i]) * scale, &p);
        page->weight[u * PAGE + sl_lane()] = p;
        if (sl_lane() != 0) continue;
        page->shrink[u] = less;
        page->sees[u] = seen;
    }
}

/* Results, or sums and states that go on. total: of each query, where all threads read it. */
SL_DEV void ATTN_OF(_end)(const sl_k_attention_args *a, const block_queries *b,
                          const attn_state state[ATTN_MINE], uint32_t mine,
                          const ATTN_OF(_sums) * s, float *total) {
    SL_UNROLL
    for (uint32_t i = 0; i < ATTN_MINE; i++) {
        const uint32_t u = ATTN_OF(_query)(i);
        if (i >= mine || sl_lane() != 0) continue;
        const size_t to = (size_t)row_of_query(b, u) * a->n_heads + head_of_query(b, u);
        total[u] = state[i].sum;
        if (a->more) a->max[to] = state[i].max;
        if (a->more) a->sum[to] = state[i].sum;
    }
    __syncthreads();
    ATTN_OF(_store)(a, b, s, total);
}

SL_KERNEL_BOUNDS(ATTN_OF(), sl_k_attention_args, ATTN_THREADS, ATTN_FIT) {
    SL_DYNAMIC(float, room);
    const block_queries b = queries_of_block(&a);
    if (b.n == 0) return;
    const bool apart = a.k != a.v, widens = ATTN_STAGED && a.type != SL_KV_F32;
    const sl_cuda_attention_room r =
        sl_cuda_attention_room_of(a.dim, ATTN_QUERIES, ATTN_STAGED, apart);
    const uint8_t *const k = a.k + b.kv_head * a.head_bytes;
    const uint8_t *const v = a.v + b.kv_head * a.head_bytes;
    float *const number = room + r.number;
    block_page page = {room + r.p, number, (uint32_t *)number + ATTN_QUERIES};
    attn_state state[ATTN_MINE];
    ATTN_OF(_sums) sums;
    page_numbers numbers = first_numbers(&a, &b);
    size_t at = page_at(&a, &b, 0, &numbers);
    load_queries(&a, &b, r.key, room + r.q);
    page.shape = shape_of_rows(&a);
    if (ATTN_STAGED) {
        for (uint32_t i = 0; i < (widens ? 1 : 2); i++)
            clear_tail(a.dim, r.key, stage_of(&r, apart, room + r.stage, i), r.apart, threadIdx.x,
                       ATTN_THREADS);
        copy_page(&a, &r, apart, k + at, v + at, room + r.stage, false, ATTN_THREADS);
    }
    const uint32_t mine = ATTN_OF(_begin)(&a, &b, state);
    ATTN_OF(_begin_sums)(&a, &b, threadIdx.x, &sums);
    for (uint32_t g = b.walk.first; g <= b.walk.last; g++) {
        const uint32_t base = g * PAGE, which = (g - b.walk.first) & 1;
        page.key_rows = k + at;
        page.value_rows = v + at;
        page.values = (const float *)page.value_rows;
        page.apart = a.dim;
        if (g < b.walk.last) at = page_at(&a, &b, g + 1 - b.walk.first, &numbers);
        if (ATTN_STAGED) stand_at(&r, apart, room + r.stage, which && !widens, &page);
        __syncthreads(); /* this page is here, and the one before has been read */
        if (ATTN_STAGED && g < b.walk.last)
            copy_page(&a, &r, apart, k + at, v + at, room + r.stage, !which, ATTN_THREADS);
        if (widens) {
            widen_page(&a, &r, apart, room + r.stage, which, ATTN_THREADS);
            __syncthreads();
        }
        float s[ATTN_MINE][16];
        ATTN_OF(_scores)(room + r.q, &page, mine, r.key, s);
        ATTN_OF(_weigh)(state, mine, base, a.scale, s, &page);
        __syncthreads();
        const bool even = base >= b.walk.even_from && base + PAGE - 1 <= b.walk.even_to;
        ATTN_OF(_add)(&sums, ATTN_STAGED ? SL_KV_F32 : a.type, b.n, a.v_dim, even, &page);
    }
    ATTN_OF(_end)(&a, &b, state, mine, &sums, number + 2 * ATTN_QUERIES);
}

#undef ATTN_OF
#undef ATTN_THREADS
#undef ATTN_MINE
#undef ATTN_COLUMNS
#undef ATTN_STAGED
#undef ATTN_FIT
#undef ATTN_WARPS
#undef ATTN_QUERIES

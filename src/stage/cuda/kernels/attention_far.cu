/* Attention of few queries over many pages: the bits of attention.cu, sooner where there are not
 * blocks enough for a GPU.
 *
 * What cannot be cut is the chain of a column over its positions. So half of a block does nothing
 * else, and the other half makes weights ahead of it: four warps take a page each, agree on the
 * maxima of the four, and hand over weights, what they add up to, and by how much sums shrink.
 * Weights of two times four pages have room, so neither half waits for the other's last step. */
#include "stage/cuda/kernels/attention_block.h"

#define WARPS   SL_CUDA_ATTN_FAR_WARPS
#define QUERIES SL_CUDA_ATTN_FAR_QUERIES
#define VALUES  SL_CUDA_ATTN_FAR_VALUES
#define HALF    (SL_WARP * WARPS) /* threads of either half */

/* Barriers: of either half; weights are there, and have been read, of either of the two rooms. */
enum { OF_MAKERS = 1, OF_ADDERS, FULL, EMPTY = FULL + 2 };

#define ATTN_OF(part) sl_k_attention_far##part
#define ATTN_THREADS  HALF
#define ATTN_QUERIES  QUERIES
#define ATTN_COLUMNS  1
#include "stage/cuda/kernels/attention_sums.h"

/* What the halves share. The numbers of page p of one of the rooms begin at (room * WARPS + p) *
 * QUERIES of each array. */
typedef struct far_block {
    const sl_k_attention_args *a;
    block_queries b;
    sl_cuda_far_room r;
    float *q, *keys, *values, *weight, *most, *shrink, *sum;
    uint32_t *sees;
    const uint8_t *k, *v;
    uint32_t pages;
    bool widens;
    sl_kv_shape shape;
} far_block;

SL_DEV far_block far_begin(const sl_k_attention_args *a, float *room) {
    const uint32_t numbers = 2 * WARPS * QUERIES;
    far_block f;
    f.a = a;
    f.b = queries_of_block(a);
    f.r = sl_cuda_far_room_of(a->dim, a->v_dim);
    f.q = room;
    f.keys = room + f.r.k;
    f.values = room + f.r.v;
    f.weight = room + f.r.weight;
    f.most = room + f.r.number;
    f.shrink = f.most + numbers;
    f.sum = f.shrink + numbers;
    f.sees = (uint32_t *)(f.sum + numbers);
    f.k = a->k + f.b.kv_head * a->head_bytes;
    f.v = a->v + f.b.kv_head * a->head_bytes;
    f.pages = f.b.walk.last - f.b.walk.first + 1;
    f.widens = a->type != SL_KV_F32;
    f.shape = shape_of_rows(a);
    return f;
}

/* ---- weights ---- */

/* Of the two pages of keys of a warp, whose room begins at `tiles`: where they lie as in memory.
 * Then the first one's place has the page that was widened last. */
SL_DEV uint8_t *key_rows(const far_block *f, float *tiles, uint32_t which) {
    return (uint8_t *)(tiles + f->r.tile + which * (f->r.tile / 2));
}

/* Asks for page i of the walk, if there is one, for this warp alone. */
SL_DEV void ask_keys(const far_block *f, uint32_t i, page_numbers *numbers, float *tiles,
                     uint32_t which) {
    if (i < f->pages) {
        const uint8_t *from = f->k + page_at(f->a, &f->b, i, numbers);
        if (f->widens)
            sl_kv_copy_tile(from, PAGE * f->a->row, key_rows(f, tiles, which), sl_lane(), SL_WARP);
        else
            copy_tile((const float *)from, f->a->dim, f->a->dim, f->a->wide,
                      tiles + which * f->r.tile, f->r.apart, f->a->k_log, sl_lane(), SL_WARP);
    }
    sl_cp_async_commit();
}

/* The page of keys that has come, as floats. */
SL_DEV const float *keys_here(const far_block *f, float *tiles, uint32_t which) {
    if (!f->widens) return tiles + which * f->r.tile;
    sl_kv_widen_tile(&f->shape, key_rows(f, tiles, which), f->a->dim, PAGE, tiles, f->r.apart,
                     sl_lane(), SL_WARP);
    __syncwarp();
    return tiles;
}

/* Of n queries, a constant: those that a block lacks are computed from what lies there. */
SL_DEV void far_scores_of(const far_block *f, const float *key, uint32_t n, float s[QUERIES][16]) {
    SL_UNROLL
    for (uint32_t u = 0; u < QUERIES; u++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 16; j++) s[u][j] = 0;
    }
    for (uint32_t e = 0; e < f->r.key; e += 16) {
        float4 w[4];
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) w[j] = *(const float4 *)(key + e + 4 * j);
        SL_UNROLL
        for (uint32_t u = 0; u < n; u++) {
            const float *x = f->q + u * f->r.key + e;
            SL_UNROLL
            for (uint32_t j = 0; j < 4; j++)
                four_steps(s[u] + 4 * j, *(const float4 *)(x + 4 * j), w[j]);
        }
    }
}

SL_DEV void far_scores(const far_block *f, const float *key, float s[QUERIES][16]) {
    if (f->b.n == 1)
        far_scores_of(f, key, 1, s);
    else if (f->b.n == 2)
        far_scores_of(f, key, 2, s);
    else
        far_scores_of(f, key, QUERIES, s);
}

/* Of query u, whose maximum so far is max, what this warp's page gives, once all four have said
 * their maxima; `at` is where the first of the four has its numbers. Returns the maximum behind
 * them. */
SL_DEV float far_weigh(const far_block *f, uint32_t u, uint32_t at, bool in, float score,
                       float max) {
    const uint32_t w = sl_warp(), mine = at + w * QUERIES + u;
    const uint32_t seen = __ballot_sync(SL_ALL, in);
    float before = max, top = max, less = 1, p = 0, sum = 0;
    SL_UNROLL
    for (uint32_t i = 0; i < WARPS; i++) {
        const float most = f->most[at + i * QUERIES + u];
        max = most > max ? most : max;
        if (i < w) before = max;
        if (i <= w) top = max;
    }
    if (seen) {
        less = sl_exp_scalar(before - top);
        p = weight_of_key(in, score, top);
        sum = sum_of_page(p);
    }
    f->weight[mine * PAGE + sl_lane()] = p;
    if (sl_lane() == 0) {
        f->shrink[mine] = less;
        f->sum[mine] = sum;
        f->sees[mine] = seen;
    }
    return max;
}

SL_DEV void make_weights(const far_block *f) {
    const uint32_t w = sl_warp(), groups = (f->pages + WARPS - 1) / WARPS;
    float *const tiles = f->keys + 2 * w * f->r.tile, max[QUERIES];
    page_numbers numbers = first_numbers(f->a, &f->b);
    attn_state state[QUERIES];
    SL_UNROLL
    for (uint32_t u = 0; u < QUERIES; u++) {
        state[u].low = 1; /* sees nothing */
        state[u].pos = 0;
        max[u] = -INFINITY;
        if (u >= f->b.n) continue;
        state[u].low = f->a->low[row_of_query(&f->b, u)];
        state[u].pos = f->a->pos[row_of_query(&f->b, u)];
        if (f->a->sink) max[u] = f->a->sink[head_of_query(&f->b, u)];
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (i == 0 || !f->widens)
            clear_tail(f->a->dim, f->r.key, tiles + i * f->r.tile, f->r.apart, sl_lane(), SL_WARP);
        ask_keys(f, i * WARPS + w, &numbers, tiles, i);
    }
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t g = i * WARPS + w, which = i & 1, at = which * WARPS * QUERIES;
        const uint32_t base = (f->b.walk.first + g) * PAGE;
        float s[QUERIES][16], score[QUERIES];
        bool in[QUERIES];
        sl_cp_async_wait(1);
        __syncwarp();
        const float *const tile = keys_here(f, tiles, which);
        far_scores(f, tile + sl_lane() * f->r.apart, s); /* of no page at last: nobody sees it */
        __syncwarp();
        ask_keys(f, g + 2 * WARPS, &numbers, tiles, which);
        SL_UNROLL
        for (uint32_t u = 0; u < QUERIES; u++) {
            if (u >= f->b.n) continue;
            in[u] = g < f->pages && sees_key(&state[u], base);
            score[u] = sl_tree16(s[u]) * f->a->scale;
            const float most = most_of_page(in[u], score[u]);
            if (sl_lane() == 0) f->most[at + w * QUERIES + u] = most;
        }
        sl_barrier(OF_MAKERS, HALF);
        if (i >= 2) sl_barrier(EMPTY + which, 2 * HALF);
        SL_UNROLL
        for (uint32_t u = 0; u < QUERIES; u++)
            if (u < f->b.n) max[u] = far_weigh(f, u, at, in[u], score[u], max[u]);
        sl_barrier_arrive(FULL + which, 2 * HALF);
    }
}

/* ---- sums ---- */

/* Page i of values: floats, or as they lie, and then they are widened as they are read. */
SL_DEV float *values_at(const far_block *f, uint32_t i) {
    return f->values + i % VALUES * f->r.v_tile;
}

SL_DEV void ask_values(const far_block *f, uint32_t i, page_numbers *numbers) {
    const uint32_t thread = threadIdx.x - HALF;
    if (i < f->pages) {
        const uint8_t *from = f->v + page_at(f->a, &f->b, i, numbers);
        if (f->widens)
            sl_kv_copy_tile(from, PAGE * f->a->row, (uint8_t *)values_at(f, i), thread, HALF);
        else
            copy_tile((const float *)from, f->a->dim, f->a->v_dim, f->a->wide, values_at(f, i),
                      f->r.v_apart, f->a->v_log, thread, HALF);
    }
    sl_cp_async_commit();
}

/* Adds what a page weighs, for each type by loads of its own. */
SL_DEV void add_page(const far_block *f, sl_k_attention_far_sums *sums, bool even,
                     const block_page *page) {
    const uint32_t n = f->b.n, dim = f->a->v_dim;
    if (f->shape.type == SL_KV_F32)
        sl_k_attention_far_add(sums, SL_KV_F32, n, dim, even, page);
    else if (f->shape.type == SL_KV_F16)
        sl_k_attention_far_add(sums, SL_KV_F16, n, dim, even, page);
    else if (f->shape.type == SL_KV_BF16)
        sl_k_attention_far_add(sums, SL_KV_BF16, n, dim, even, page);
    else if (f->shape.type == SL_KV_Q8_0)
        sl_k_attention_far_add(sums, SL_KV_Q8_0, n, dim, even, page);
    else
        sl_k_attention_far_add(sums, SL_KV_FP8, n, dim, even, page);
}

SL_DEV void add_values(const far_block *f, float *total) {
    const uint32_t groups = (f->pages + WARPS - 1) / WARPS, thread = threadIdx.x - HALF;
    const sl_cuda_walk *walk = &f->b.walk;
    page_numbers numbers = first_numbers(f->a, &f->b);
    sl_k_attention_far_sums sums;
    float sum[QUERIES];
    sl_k_attention_far_begin_sums(f->a, &f->b, thread, &sums);
    SL_UNROLL
    for (uint32_t u = 0; u < QUERIES; u++) sum[u] = f->a->sink ? 1.0f : 0.0f;
    for (uint32_t i = 0; i + 1 < VALUES; i++) ask_values(f, i, &numbers);
    for (uint32_t i = 0; i < f->pages; i++) {
        const uint32_t which = i / WARPS & 1, base = (walk->first + i) * PAGE;
        const uint32_t at = (which * WARPS + i % WARPS) * QUERIES;
        const float *const values = values_at(f, i);
        const block_page page = {
            f->weight + at * PAGE,   f->shrink + at, f->sees + at, NULL, values, f->r.v_apart, NULL,
            (const uint8_t *)values, f->shape};
        if (i % WARPS == 0) sl_barrier(FULL + which, 2 * HALF);
        sl_cp_async_wait(VALUES - 2);
        sl_barrier(OF_ADDERS, HALF); /* the page is here, and the one before has been read */
        ask_values(f, i + VALUES - 1, &numbers);
        SL_UNROLL
        for (uint32_t u = 0; u < QUERIES; u++)
            if (u < f->b.n && page.sees[u]) sum[u] = fmaf(sum[u], page.shrink[u], f->sum[at + u]);
        const bool even = base >= walk->even_from && base + PAGE - 1 <= walk->even_to;
        add_page(f, &sums, even, &page);
        const bool last = i % WARPS == WARPS - 1;
        if (last && i / WARPS + 2 < groups) sl_barrier_arrive(EMPTY + which, 2 * HALF);
    }
    SL_UNROLL
    for (uint32_t u = 0; u < QUERIES; u++) total[u] = sum[u];
    sl_k_attention_far_store(f->a, &f->b, &sums, total);
}

SL_KERNEL_BOUNDS(sl_k_attention_far, sl_k_attention_args, SL_CUDA_ATTN_FAR_THREADS, 1) {
    SL_DYNAMIC(float, room);
    const far_block f = far_begin(&a, room);
    if (f.b.n == 0) return;
    load_queries(&a, &f.b, f.r.key, f.q);
    __syncthreads();
    if (threadIdx.x < HALF) {
        make_weights(&f);
    } else {
        float total[QUERIES];
        add_values(&f, total);
    }
}

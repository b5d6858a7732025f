/* What blocks of attention have in common (attention.cu, attention_far.cu): which queries are
 * theirs, pages by number, the steps of docs/numbers.md for a page whose keys are the threads of a
 * warp. */
#ifndef SL_STAGE_CUDA_ATTENTION_BLOCK_H
#define SL_STAGE_CUDA_ATTENTION_BLOCK_H

#include "kernel/formula.h"
#include "stage/cuda/kernels/args_attention.h"
#include "stage/cuda/kernels/kv_rows.h"

#define PAGE 32u /* SL_KV_PAGE_TOKENS: a thread of a warp each */

/* Which queries a block has: query u is row u / heads of its walk, head u % heads of its slice. */
typedef struct block_queries {
    sl_cuda_walk walk;
    uint32_t kv_head, head, heads, n;
} block_queries;

SL_DEV block_queries queries_of_block(const sl_k_attention_args *a) {
    block_queries b;
    b.walk = a->walk[blockIdx.x];
    b.kv_head = blockIdx.y / a->slices;
    const uint32_t slice = blockIdx.y - b.kv_head * a->slices, end = (b.kv_head + 1) * a->group;
    uint32_t h0 = b.kv_head * a->group + slice * a->heads, h1 = h0 + a->heads;
    h1 = h1 < end ? h1 : end;
    h1 = h1 < a->skip + a->n_heads ? h1 : a->skip + a->n_heads;
    h0 = h0 > a->skip ? h0 : a->skip;
    b.head = h0 - a->skip;
    b.heads = h1 > h0 ? h1 - h0 : 0;
    b.n = b.walk.n * b.heads;
    return b;
}

SL_DEV uint32_t row_of_query(const block_queries *b, uint32_t u) {
    return b->walk.row + u / b->heads;
}

SL_DEV uint32_t head_of_query(const block_queries *b, uint32_t u) {
    return b->head + u % b->heads;
}

SL_DEV float *out_of_query(const sl_k_attention_args *a, const block_queries *b, uint32_t u) {
    return a->o + (size_t)row_of_query(b, u) * a->o_stride + (size_t)head_of_query(b, u) * a->v_dim;
}

/* Queries to shared memory, zeros where a key's last step of lanes has none. */
SL_DEV void load_queries(const sl_k_attention_args *a, const block_queries *b, uint32_t key,
                         float *to) {
    for (uint32_t u = sl_warp(); u < b->n; u += blockDim.x / SL_WARP) {
        const float *q =
            a->q + (size_t)row_of_query(b, u) * a->q_stride + (size_t)head_of_query(b, u) * a->dim;
        for (uint32_t i = sl_lane(); i < key; i += SL_WARP)
            to[u * key + i] = i < a->dim ? q[i] : 0.0f;
    }
}

/* `width` values of each of a page's rows, which are `dim` apart, to rows `apart` from one another:
 * asynchronously, by thread `thread` of so many, 1 << log of them a row. */
SL_DEV void copy_tile(const float *from, uint32_t dim, uint32_t width, bool wide, float *to,
                      uint32_t apart, uint32_t log, uint32_t thread, uint32_t threads) {
    const uint32_t first = thread >> log, step = threads >> log;
    const uint32_t lane = thread & ((1u << log) - 1), unit = wide ? 4 : 1;
    for (uint32_t i = unit * lane; i < width; i += unit << log) {
        const float *x = from + first * dim + i;
        float *y = to + first * apart + i;
        if (wide)
            for (uint32_t j = first; j < PAGE; j += step, x += step * dim, y += step * apart)
                sl_cp_async16(y, x);
        else
            for (uint32_t j = first; j < PAGE; j += step, x += step * dim, y += step * apart)
                sl_cp_async4(y, x);
    }
}

/* Zeros behind the values of keys of a tile, up to a whole step of lanes: copies leave them. */
SL_DEV void clear_tail(uint32_t dim, uint32_t key, float *tile, uint32_t apart, uint32_t thread,
                       uint32_t threads) {
    const uint32_t n = key - dim;
    for (uint32_t i = thread; i < n * PAGE; i += threads) tile[i / n * apart + dim + i % n] = 0;
}

SL_DEV sl_kv_shape shape_of_rows(const sl_k_attention_args *a) {
    const sl_kv_shape s = {a->type, a->v_dim, a->dim, a->row};
    return s;
}

/* A page as a block works on it: rows of keys and of values as floats, `apart` from one another, or
 * as they lie; of each query its weights, by how much its sums shrink before, and bits of what it
 * sees. */
typedef struct block_page {
    float *weight, *shrink;
    uint32_t *sees;
    const float *keys, *values;
    uint32_t apart;
    const uint8_t *key_rows, *value_rows;
    sl_kv_shape shape;
} block_page;

/* Value `column` of the page's position j; of another type than f32 it lies there as in memory. */
SL_DEV float value_of_page(const block_page *p, uint32_t type, uint32_t j, uint32_t column) {
    if (type == SL_KV_F32) return p->values[j * p->apart + column];
    return sl_kv_one(type, p->value_rows + j * p->shape.row, column);
}

/* Numbers of pages are far away: a warp has those of 32 pages, and the next 32 on their way. */
typedef struct page_numbers {
    uint32_t now, next, end; /* behind those that there are now */
} page_numbers;

SL_DEV uint32_t numbers_from(const sl_k_attention_args *a, const block_queries *b, uint32_t i) {
    const uint32_t n = b->walk.last - b->walk.first + 1, at = i + sl_lane();
    return a->page && at < n ? a->page[b->walk.pages + at] : 0;
}

SL_DEV page_numbers first_numbers(const sl_k_attention_args *a, const block_queries *b) {
    page_numbers p;
    p.now = 0;
    p.end = 0;
    p.next = numbers_from(a, b, 0);
    return p;
}

/* Bytes from page 0 to the walk's page i; i goes up by at most 32, from less than 32 on. */
SL_DEV size_t page_at(const sl_k_attention_args *a, const block_queries *b, uint32_t i,
                      page_numbers *p) {
    if (!a->page) return (size_t)(b->walk.first + i) * a->page_bytes;
    if (i >= p->end) {
        p->now = p->next;
        p->next = numbers_from(a, b, p->end += SL_WARP);
    }
    return (size_t)__shfl_sync(SL_ALL, p->now, i % SL_WARP) * a->page_bytes;
}

/* A query on its way through the pages: every thread of its warp has the same. */
typedef struct attn_state {
    float max, sum;
    uint32_t low, pos;
} attn_state;

SL_DEV bool sees_key(const attn_state *q, uint32_t base) {
    return base + sl_lane() >= q->low && base + sl_lane() <= q->pos;
}

/* The largest score of the keys that are seen, of which this thread has s; NaN is no maximum. */
SL_DEV float most_of_page(bool in, float s) {
    return sl_lanes_max(in && s > -INFINITY ? s : -INFINITY);
}

SL_DEV float weight_of_key(bool in, float s, float top) {
    return in ? sl_exp_scalar(s - top) : 0.0f;
}

SL_DEV float sum_of_page(float weight) {
    return sl_lanes_tree(weight + __shfl_xor_sync(SL_ALL, weight, 16));
}

/* Four lanes of a dot product take their next step. */
SL_DEV void four_steps(float s[4], float4 x, float4 w) {
    s[0] = fmaf(x.x, w.x, s[0]);
    s[1] = fmaf(x.y, w.y, s[1]);
    s[2] = fmaf(x.z, w.z, s[2]);
    s[3] = fmaf(x.w, w.w, s[3]);
}

#endif

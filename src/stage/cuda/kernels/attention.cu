/* Kernels of attention over pages of keys and values, with the bits of docs/numbers.md,
 * "Attention".
 *
 * A block takes some queries that walk the same pages: query heads of one kv head, of rows of one
 * request. Each warp has queries of its own; its 32 threads are the 32 keys of a page, and each has
 * the 16 lanes of its dot product in registers. So a page's scores, their maximum and their sum are
 * a warp's affair. Their weights go through shared memory to all threads, which own columns of the
 * values: the chain of a column over ascending positions is one thread's. Pages arrive in shared
 * memory while the one before is worked on. */
#include "stage/cuda/kernels/attention_block.h"

/* Of the two places of a page: keys, and values behind them where they are apart. */
SL_DEV float *stage_of(const sl_cuda_attention_room *r, bool apart, float *stage, bool second) {
    return stage + (second ? (apart ? 2 : 1) * r->tile : 0);
}

/* Of pages that are widened the first place has the page, the second one room for two as they lie:
 * keys of one of them, and values half a tile behind. */
SL_DEV uint8_t *rows_of(const sl_cuda_attention_room *r, bool apart, float *stage, bool second) {
    const uint32_t half = (apart ? 2 : 1) * r->tile / 2;
    return (uint8_t *)(stage_of(r, apart, stage, true) + (second ? half : 0));
}

/* Keys and values of a page to one of them. */
SL_DEV void copy_page(const sl_k_attention_args *a, const sl_cuda_attention_room *r, bool apart,
                      const uint8_t *k, const uint8_t *v, float *stage, bool second,
                      uint32_t threads) {
    if (a->type != SL_KV_F32) {
        uint8_t *to = rows_of(r, apart, stage, second);
        sl_kv_copy_tile(k, PAGE * a->row, to, threadIdx.x, threads);
        if (apart)
            sl_kv_copy_tile(v, PAGE * a->row, to + r->tile / 2 * sizeof(float), threadIdx.x,
                            threads);
    } else {
        float *to = stage_of(r, apart, stage, second);
        copy_tile((const float *)k, a->dim, a->dim, a->wide, to, r->apart, a->k_log, threadIdx.x,
                  threads);
        if (apart)
            copy_tile((const float *)v, a->dim, a->v_dim, a->wide, to + r->tile, r->apart, a->v_log,
                      threadIdx.x, threads);
    }
    sl_cp_async_commit();
}

/* A page that is there as it lies becomes the page of the first place. */
SL_DEV void widen_page(const sl_k_attention_args *a, const sl_cuda_attention_room *r, bool apart,
                       float *stage, bool second, uint32_t threads) {
    const sl_kv_shape shape = shape_of_rows(a);
    const uint8_t *from = rows_of(r, apart, stage, second);
    sl_kv_widen_tile(&shape, from, a->dim, PAGE, stage, r->apart, threadIdx.x, threads);
    if (apart)
        sl_kv_widen_tile(&shape, from + r->tile / 2 * sizeof(float), a->v_dim, PAGE,
                         stage + r->tile, r->apart, threadIdx.x, threads);
}

/* Waits for this thread's part of the page that was asked for last. */
SL_DEV void stand_at(const sl_cuda_attention_room *r, bool apart, float *stage, bool second,
                     block_page *page) {
    page->keys = stage_of(r, apart, stage, second);
    page->values = apart ? page->keys + r->tile : page->keys;
    page->apart = r->apart;
    sl_cp_async_wait(0);
}

/* Four values of this thread's key where it lies, from value d on, zeros past its end. */
SL_DEV float4 key_part(const block_page *p, uint32_t d) {
    const uint8_t *row = p->key_rows + sl_lane() * p->shape.row;
    float v[4];
    SL_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        v[j] = d + j < p->shape.dim ? sl_kv_value(&p->shape, row, d + j) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* The step of a page from position `base` on, of which this thread has score s: *p becomes its
 * weight. Returns by how much what was summed up shrinks. */
SL_DEV float take_page(attn_state *q, uint32_t base, float s, float *p) {
    const bool in = sees_key(q, base);
    const float most = most_of_page(in, s), top = most > q->max ? most : q->max;
    const float shrink = sl_exp_scalar(q->max - top);
    *p = weight_of_key(in, s, top);
    q->sum = fmaf(q->sum, shrink, sum_of_page(*p));
    q->max = top;
    return shrink;
}

/* Variants: names of parts; threads of a block; queries of a warp; columns of a thread; whether
 * pages are staged; how many blocks shall fit a multiprocessor. */
#define ATTN_OF(part) sl_k_attention_few##part
#define ATTN_THREADS  SL_CUDA_ATTN_FEW_THREADS
#define ATTN_MINE     SL_CUDA_ATTN_FEW_MINE
#define ATTN_COLUMNS  SL_CUDA_ATTN_FEW_COLUMNS
#define ATTN_STAGED   true
#define ATTN_FIT      3
#include "stage/cuda/kernels/attention_walk.h"

#define ATTN_OF(part) sl_k_attention_many##part
#define ATTN_THREADS  SL_CUDA_ATTN_MANY_THREADS
#define ATTN_MINE     SL_CUDA_ATTN_MANY_MINE
#define ATTN_COLUMNS  SL_CUDA_ATTN_MANY_COLUMNS
#define ATTN_STAGED   true
#define ATTN_FIT      2
#include "stage/cuda/kernels/attention_walk.h"

#define ATTN_OF(part) sl_k_attention_wide##part
#define ATTN_THREADS  SL_CUDA_ATTN_WIDE_THREADS
#define ATTN_MINE     SL_CUDA_ATTN_WIDE_MINE
#define ATTN_COLUMNS  SL_CUDA_ATTN_WIDE_COLUMNS
#define ATTN_STAGED   true
#define ATTN_FIT      1
#include "stage/cuda/kernels/attention_walk.h"

#define ATTN_OF(part) sl_k_attention_any##part
#define ATTN_THREADS  SL_CUDA_ATTN_ANY_THREADS
#define ATTN_MINE     SL_CUDA_ATTN_ANY_MINE
#define ATTN_COLUMNS  SL_CUDA_ATTN_ANY_COLUMNS
#define ATTN_STAGED   false
#define ATTN_FIT      1
#include "stage/cuda/kernels/attention_walk.h"

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

/* Keys and values of a page to one of them. */
SL_DEV void copy_page(const sl_k_attention_args *a, const sl_cuda_attention_room *r, bool apart,
                      const float *k, const float *v, float *to, uint32_t threads) {
    copy_tile(k, a->dim, a->dim, a->wide, to, r->apart, a->k_log, threadIdx.x, threads);
    if (apart)
        copy_tile(v, a->dim, a->v_dim, a->wide, to + r->tile, r->apart, a->v_log, threadIdx.x,
                  threads);
    sl_cp_async_commit();
}

/* Waits for this thread's part of the page that was asked for last. */
SL_DEV void stand_at(const sl_cuda_attention_room *r, bool apart, float *stage, bool second,
                     block_page *page) {
    page->keys = stage_of(r, apart, stage, second);
    page->values = apart ? page->keys + r->tile : page->keys;
    page->apart = r->apart;
    sl_cp_async_wait(0);
}

/* Four values of a key in global memory from value d on, zeros past its end. */
SL_DEV float4 key_part(const float *key, uint32_t d, uint32_t dim) {
    return make_float4(d < dim ? key[d] : 0.0f, d + 1 < dim ? key[d + 1] : 0.0f,
                       d + 2 < dim ? key[d + 2] : 0.0f, d + 3 < dim ? key[d + 3] : 0.0f);
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

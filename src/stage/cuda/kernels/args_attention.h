/* Arguments of the kernels of attention and of routers. Pointers are addresses that the GPU reads;
 * those called lists came through sl_cuda_list. */
#ifndef SL_STAGE_CUDA_ARGS_ATTENTION_H
#define SL_STAGE_CUDA_ARGS_ATTENTION_H

#include "base/fn.h"
#include "spec/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Variants: threads of a block, queries of each of its warps, columns of values of a thread. The
 * first three keep pages in shared memory; the last one reads them where they lie. */
#define SL_CUDA_ATTN_FEW_THREADS  128
#define SL_CUDA_ATTN_FEW_MINE     2
#define SL_CUDA_ATTN_FEW_COLUMNS  1
#define SL_CUDA_ATTN_MANY_THREADS 128
#define SL_CUDA_ATTN_MANY_MINE    4
#define SL_CUDA_ATTN_MANY_COLUMNS 1
#define SL_CUDA_ATTN_WIDE_THREADS 256
#define SL_CUDA_ATTN_WIDE_MINE    2
#define SL_CUDA_ATTN_WIDE_COLUMNS 2
#define SL_CUDA_ATTN_ANY_THREADS  256
#define SL_CUDA_ATTN_ANY_MINE     1
#define SL_CUDA_ATTN_ANY_COLUMNS  4

/* The variant for few queries on a long way: warps that make weights, a page each at a time, and as
 * many threads that add up values behind them; pages of values that are here or on their way. */
#define SL_CUDA_ATTN_FAR_THREADS 256
#define SL_CUDA_ATTN_FAR_WARPS   4
#define SL_CUDA_ATTN_FAR_QUERIES 4
#define SL_CUDA_ATTN_FAR_VALUES  4

/* Of numerics fast, for the rows of a prompt (fast_prompt.cu): 16 queries a warp. */
#define SL_CUDA_ATTN_PROMPT_THREADS 256

/* Rows row .. row + n - 1, which share a list of pages, walk pages first .. last of their request
 * together; the number of page g is page[pages + g - first]. Positions even_from to even_to are
 * seen by all of them. */
typedef struct sl_cuda_walk {
    uint32_t row, n, first, last, pages, even_from, even_to;
    uint32_t from, to; /* positions that any of them sees lie between */
} sl_cuda_walk;

/* A walk a block in x, and a slice of the query heads of a kv head in y. Keys and values of page g
 * and kv head h are at h * head_bytes + page[..] * page_bytes, or + g * page_bytes where there
 * is no list. */
typedef struct sl_k_attention_args {
    const sl_cuda_walk *walk; /* list */
    const uint32_t *page;     /* list, or NULL */
    const uint32_t *pos;      /* list: row r sees positions low[r] .. pos[r] */
    const uint32_t *low;      /* list */
    const float *q;
    float *o;
    const float *sink;    /* of a query head; NULL: none has one */
    const uint8_t *k, *v; /* the same where the values lead the keys */
    uint64_t page_bytes, head_bytes;
    uint32_t type, row; /* sl_kv_type of keys and values; bytes of a key */
    float *max, *sum; /* [rows][n_heads]: read where `goes_on`, written where `more`, and then o is
                       * not divided yet */
    uint32_t goes_on, more;
    uint32_t q_stride, o_stride;
    uint32_t dim, v_dim;
    uint32_t group, skip, n_heads; /* query heads of a kv head; not here before the first; here */
    uint32_t heads, slices;        /* of a slice; of a kv head */
    uint32_t wide;                 /* of f32: they are multiples of 16 bytes apart */
    uint32_t k_log, v_log;         /* 1 << log threads copy a row of f32 of keys, of values */
    float scale;
} sl_k_attention_args;

/* Shared memory of a block: queries, two pages of keys and values where they are staged, and of
 * each query its weights on a page, and three numbers. */
typedef struct sl_cuda_attention_room {
    uint32_t key;   /* floats of a key: whole steps of the 16 lanes, zeros at the end */
    uint32_t apart; /* between keys in shared memory: threads of a warp read theirs at once */
    uint32_t tile;  /* of a page: keys, and values where they are not the same */
    uint32_t q, stage, p, number, floats; /* where each begins; all of it */
} sl_cuda_attention_room;

/* Whether rows as they lie fit half a row of shared memory: pages of another type than f32 come
 * there first, two of them in the room of one, and are widened into the other one. */
SL_FN bool sl_cuda_rows_fit(uint32_t row, uint32_t apart) {
    return row <= apart * sizeof(float) / 2;
}

SL_FN sl_cuda_attention_room sl_cuda_attention_room_of(uint32_t dim, uint32_t queries, bool staged,
                                                       bool apart) {
    sl_cuda_attention_room r;
    r.key = (dim + 15) / 16 * 16;
    r.apart = r.key + 4;
    r.tile = 32 * r.apart;
    r.q = 0;
    r.stage = queries * r.key;
    r.p = r.stage + (staged ? 2 * r.tile * (apart ? 2 : 1) : 0);
    r.number = r.p + queries * 32;
    r.floats = r.number + queries * 4;
    return r;
}

/* The same of the far variant: queries, two pages of keys of each warp that makes weights, pages of
 * values; then twice, of as many pages as there are such warps, weights, and four numbers of each
 * query. */
typedef struct sl_cuda_far_room {
    uint32_t key, apart, tile;  /* as above, of keys */
    uint32_t v_apart, v_tile;   /* of values */
    uint32_t v, weight, number; /* where they begin, keys behind queries at `k` */
    uint32_t k, floats;
} sl_cuda_far_room;

SL_FN sl_cuda_far_room sl_cuda_far_room_of(uint32_t dim, uint32_t v_dim) {
    const uint32_t pages = 2 * SL_CUDA_ATTN_FAR_WARPS * SL_CUDA_ATTN_FAR_QUERIES;
    sl_cuda_far_room r;
    r.key = (dim + 15) / 16 * 16;
    r.apart = r.key + 4;
    r.tile = 32 * r.apart;
    r.v_apart = (v_dim + 3) / 4 * 4;
    r.v_tile = 32 * r.v_apart;
    r.k = SL_CUDA_ATTN_FAR_QUERIES * r.key;
    r.v = r.k + 2 * SL_CUDA_ATTN_FAR_WARPS * r.tile;
    r.weight = r.v + SL_CUDA_ATTN_FAR_VALUES * r.v_tile;
    r.number = r.weight + 32 * pages;
    r.floats = r.number + 4 * pages;
    return r;
}

/* Routers (docs/numbers.md, "Routers"): a row of n logits a block, which is a warp, becomes k of
 * expert and gate. groups: 0 where a router looks at none. */
typedef struct sl_k_route_args {
    const float *logit, *bias;
    uint32_t *expert;
    float *gate;
    uint32_t n, k, groups, top_groups;
    uint32_t router; /* sl_router */
    uint32_t norm_topk;
    float scale;
    float *h; /* rows of d values: one whose gates are not finite becomes zero; NULL: none does */
    uint32_t d;
} sl_k_route_args;

/* Bytes of dynamic shared memory. */
SL_FN uint32_t sl_cuda_route_room(uint32_t n) {
    return (3 * n + SL_MAX_TOP_K + SL_MAX_GROUPS) * (uint32_t)sizeof(float);
}

#endif

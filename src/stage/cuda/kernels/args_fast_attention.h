/* Arguments of attention in numerics fast (fast_attention.cu). Pointers are addresses that the GPU
 * reads; those called lists came through sl_cuda_list. */
#ifndef SL_STAGE_CUDA_ARGS_FAST_ATTENTION_H
#define SL_STAGE_CUDA_ARGS_FAST_ATTENTION_H

#include <stdint.h>

#define SL_FAST_ATTN_ROWS   64u /* of a launch */
#define SL_FAST_ATTN_HEADS  8u  /* of a block: query heads of one kv head */
#define SL_FAST_ATTN_WARPS  4u  /* of a block */
#define SL_FAST_ATTN_SPLITS 32u /* parts of a row's positions */

/* Row `row` sees positions low .. pos; the numbers of its pages, from that of low on, begin at
 * page[pages]. Its parts are blocks first_block .. of the launch. */
typedef struct sl_fast_attn_row {
    uint32_t first_block, row, low, pos, pages;
} sl_fast_attn_row;

/* How positions of rows are split: pages of a part, parts of all rows. */
typedef struct sl_fast_attn_list {
    uint32_t per, blocks, pad[2];
    sl_fast_attn_row row[SL_FAST_ATTN_ROWS];
} sl_fast_attn_list;

/* A kv head and a slice of its query heads a block in x, a part of a row's pages in y. */
typedef struct sl_fast_attn_args {
    const uint32_t *page; /* list */
    /* In the GPU's memory, where a launch is for every step of so many rows: blocks behind its
     * parts have nothing to do. NULL: `of` is it. */
    const sl_fast_attn_list *list;
    const float *q;
    const uint8_t *k, *v;
    const float *sink; /* of a query head; NULL: none has one */
    float *o;
    /* Of every part of a row that has several: what it adds up, [heads][dim], and of each head its
     * largest score and the sum of its weights. done: counters, zero before and after. */
    float *part, *state;
    uint32_t *done;
    uint64_t page_bytes, head_bytes;
    uint32_t q_stride, o_stride;
    uint32_t n_rows, group, skip, n_heads, heads, slices;
    float scale; /* of scores, as powers of 2 */
    sl_fast_attn_list of;
} sl_fast_attn_args;

#endif

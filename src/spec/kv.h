/* Layout of a KV page: public, because pages travel (prefill/decode split, prefix cache).
 *
 * A page holds SL_KV_PAGE_TOKENS consecutive positions of one request, aligned to absolute
 * positions, for every block: [layer][K or V][kv_head][token], a row of head_dim values of the
 * model's kv_type each (spec/kv_type.h). Position p lives in page p / SL_KV_PAGE_TOKENS of its
 * request at token p % SL_KV_PAGE_TOKENS.
 *
 * With MLA (DeepSeek-V2, arXiv:2405.04434 sec. 2.1) all heads share one row of a position, the
 * normalised latent and the rotated key, in two parts: [layer][token]. The row is the key of every
 * head; its first kv_lora values are the value. */
#ifndef SL_SPEC_KV_H
#define SL_SPEC_KV_H

#include "spec/model.h"

#include <stddef.h>

#define SL_KV_PAGE_TOKENS 32u

/* Bytes of one position's row of a tile. */
static inline size_t sl_kv_row_bytes(const sl_model_spec *m) {
    return sl_kv_row_of(m->kv_type, m->kv_lora ? m->kv_lora : m->head_dim, m->head_dim);
}

/* Where in a row the part begins whose first value is number `column`: 0, or kv_lora. */
static inline size_t sl_kv_column_offset(const sl_model_spec *m, uint32_t column) {
    return column ? sl_kv_part_bytes(m->kv_type, column) : 0;
}

/* Bytes of the rows of one head on one side in a page, the unit that attention reads: a multiple of
 * 32. */
static inline size_t sl_kv_tile_bytes(const sl_model_spec *m) {
    return SL_KV_PAGE_TOKENS * sl_kv_row_bytes(m);
}

/* Tiles that a kv head keeps of a block: keys and values, or the row that is both. */
static inline uint32_t sl_kv_sides(const sl_model_spec *m) {
    return m->kv_lora ? 1 : 2;
}

/* Leading values of a row that attention sums up. */
static inline uint32_t sl_kv_value_dim(const sl_model_spec *m) {
    return m->kv_lora ? m->kv_lora : m->head_dim;
}

/* Those of `n` blocks from `first` on that have keys and values: blocks of linear attention have
 * none (model/delta.c). Blocks behind the last have some. */
static inline uint32_t sl_kv_blocks(const sl_model_spec *m, uint32_t first, uint32_t n) {
    uint32_t has = n;
    for (uint32_t i = first; i < first + n; i++) has -= sl_model_is_linear(m, i);
    return has;
}

/* Bytes that a position takes. */
static inline size_t sl_kv_token_bytes(const sl_model_spec *m) {
    return (size_t)(m->n_layers - m->n_linear) * sl_kv_sides(m) * m->n_kv_heads *
           sl_kv_row_bytes(m);
}

/* Offset in bytes of the tile of (layer, is_v, kv_head) inside a page. */
static inline size_t sl_kv_tile_offset(const sl_model_spec *m, uint32_t layer, uint32_t is_v,
                                       uint32_t kv_head) {
    uint32_t sides = sl_kv_sides(m), side = sides == 1 ? 0 : is_v;
    layer -= m->linear_before[layer];
    return (((size_t)layer * sides + side) * m->n_kv_heads + kv_head) * sl_kv_tile_bytes(m);
}

/* Bytes of one block in a page: consecutive blocks lie one behind the other. */
static inline size_t sl_kv_block_bytes(const sl_model_spec *m) {
    return (size_t)sl_kv_sides(m) * m->n_kv_heads * sl_kv_tile_bytes(m);
}

static inline size_t sl_kv_page_bytes(const sl_model_spec *m) {
    return SL_KV_PAGE_TOKENS * sl_kv_token_bytes(m);
}

/* The pages of an attention worker, by number. */
typedef struct sl_kv_pool {
    uint8_t *base;
    size_t page; /* bytes of one */
} sl_kv_pool;

static inline uint8_t *sl_kv_page(const sl_kv_pool *p, uint32_t number) {
    return p->base + number * p->page;
}

/* Offset in bytes from `base` of what a request whose pages these are has at position `pos`: row
 * of a tile whose offset in its page is still to be added. */
static inline size_t sl_kv_row_offset(const sl_model_spec *m, const sl_kv_pool *p,
                                      const uint32_t *pages, uint32_t pos) {
    return pages[pos / SL_KV_PAGE_TOKENS] * p->page +
           (size_t)(pos % SL_KV_PAGE_TOKENS) * sl_kv_row_bytes(m);
}

static inline sl_kv_pool sl_kv_pool_of(const sl_model_spec *m, void *base) {
    return (sl_kv_pool){.base = base, .page = sl_kv_page_bytes(m)};
}

/* Pages of blocks first to first + n - 1 alone, which lie at `base`: the pool's own base is where
 * block 0 would be, and nothing before `base` is ever asked for. */
static inline sl_kv_pool sl_kv_pool_of_blocks(const sl_model_spec *m, void *base, uint32_t first,
                                              uint32_t n) {
    const size_t block = sl_kv_block_bytes(m), before = sl_kv_blocks(m, 0, first);
    return (sl_kv_pool){.base = (uint8_t *)((uintptr_t)base - before * block),
                        .page = sl_kv_blocks(m, first, n) * block};
}

/* Positions of a request of so many tokens that draws up to `more` (1 at least): the last one drawn
 * goes through no block. */
static inline uint64_t sl_kv_positions(uint64_t tokens, uint64_t more) {
    return tokens + more - 1;
}

static inline uint32_t sl_kv_pages_for(uint64_t positions) {
    return (uint32_t)((positions + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS);
}

#endif

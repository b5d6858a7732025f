/* Layout of a KV page: public, because pages travel (prefill/decode split, prefix cache).
 *
 * A page holds SL_KV_PAGE_TOKENS consecutive positions of one request, aligned to absolute
 * positions, for every block: [layer][K or V][kv_head][token][head_dim] f32. Position p lives in
 * page p / SL_KV_PAGE_TOKENS of its request at token p % SL_KV_PAGE_TOKENS. */
#ifndef SL_SPEC_KV_H
#define SL_SPEC_KV_H

#include "spec/model.h"

#include <stddef.h>

#define SL_KV_PAGE_TOKENS 32u

/* Floats of one [token][head_dim] tile, the unit that attention reads. */
static inline size_t sl_kv_tile_floats(const sl_model_spec *m) {
    return (size_t)SL_KV_PAGE_TOKENS * m->head_dim;
}

/* Offset in floats of the tile of (layer, is_v, kv_head) inside a page. */
static inline size_t sl_kv_tile_offset(const sl_model_spec *m, uint32_t layer, uint32_t is_v,
                                       uint32_t kv_head) {
    return (((size_t)layer * 2 + is_v) * m->n_kv_heads + kv_head) * sl_kv_tile_floats(m);
}

static inline size_t sl_kv_page_bytes(const sl_model_spec *m) {
    return (size_t)m->n_layers * 2 * m->n_kv_heads * sl_kv_tile_floats(m) * sizeof(float);
}

static inline uint32_t sl_kv_pages_for(uint64_t positions) {
    return (uint32_t)((positions + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS);
}

#endif

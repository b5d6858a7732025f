/* How the blocks of a model are cut among the ranks of a pipeline. */
#include "spec/pipeline.h"

#include "base/status.h"

/* Values of the matrices of a block of that kind. What is left out is the same in all blocks, or
 * little. */
static uint64_t weight_as(const sl_model_spec *m, sl_ffn_kind kind) {
    const uint64_t d = m->d_model, q = (uint64_t)m->n_heads * sl_query_dim(m);
    uint64_t n;
    if (m->kv_lora)
        n = (m->q_lora ? m->q_lora * (d + q) : d * q) + d * m->head_dim +
            (uint64_t)m->n_heads * m->kv_lora * (m->nope_dim + m->v_dim) +
            (uint64_t)m->n_heads * m->v_dim * d;
    else
        n = 2 * d * ((uint64_t)m->n_heads + m->n_kv_heads) * m->head_dim;
    if (kind == SL_FFN_DENSE) return n + 3 * d * m->d_ff_dense;
    return n + 3 * d * ((uint64_t)m->n_experts * m->d_ff_expert + m->d_ff_shared);
}

static uint64_t weight_of(const sl_model_spec *m, uint32_t layer) {
    return weight_as(m, (sl_ffn_kind)m->ffn[layer]);
}

/* Ranks that share the blocks, and whether the last one has the block behind the last besides. */
typedef struct sharing {
    const sl_model_spec *m;
    uint32_t ranks;
    bool mtp;
} sharing;

/* What rank r has besides its blocks: the first one the embedding and the head, where that is
 * another matrix, the last one perhaps a block, with the product that it begins with. */
static uint64_t weight_beside(const sharing *s, uint32_t r) {
    const uint64_t d = s->m->d_model;
    const uint64_t ends = (s->m->tied_head ? 1u : 2u) * (uint64_t)s->m->vocab * d;
    const bool last = s->mtp && r + 1 == s->ranks;
    return (r == 0 ? ends : 0) + (last ? 2 * d * d + weight_as(s->m, SL_FFN_MOE) : 0);
}

/* How many ranks it takes if none may have more than `most`, each as many blocks as fit, but so
 * that one is left for every rank behind it. end[i]: the first block that is not of ranks up to
 * i. */
static uint32_t ranks_for(const sharing *s, uint64_t most, uint32_t *end) {
    const sl_model_spec *m = s->m;
    const uint32_t ranks = s->ranks;
    uint32_t layer = 0, r = 0;
    for (; r < ranks && layer < m->n_layers; r++) {
        uint64_t has = weight_beside(s, r) + weight_of(m, layer++);
        if (has > most) return ranks + 1;
        while (layer < m->n_layers - (ranks - r - 1) && has + weight_of(m, layer) <= most)
            has += weight_of(m, layer++);
        end[r] = layer;
    }
    return layer == m->n_layers ? r : ranks + 1;
}

static void cut(const sharing *s, uint32_t *end) {
    const sl_model_spec *m = s->m;
    uint64_t low = 0, high = weight_beside(s, 0) + weight_beside(s, s->ranks - 1);
    SL_ASSERT(s->ranks > 1 && s->ranks <= SL_MAX_RANKS && s->ranks <= m->n_layers);
    for (uint32_t l = 0; l < m->n_layers; l++) high += weight_of(m, l);
    while (low < high) { /* the least that is enough */
        const uint64_t middle = low + (high - low) / 2;
        if (ranks_for(s, middle, end) <= s->ranks)
            high = middle;
        else
            low = middle + 1;
    }
    (void)ranks_for(s, high, end);
}

sl_extent sl_pipeline_blocks(const sl_model_spec *m, sl_rank r, bool mtp) {
    const sharing s = {m, r.of, mtp};
    uint32_t end[SL_MAX_RANKS];
    if (sl_rank_alone(r)) return (sl_extent){0, m->n_layers};
    cut(&s, end);
    const uint32_t first = r.index ? end[r.index - 1] : 0;
    return (sl_extent){first, end[r.index] - first};
}

/* Rows by block and expert: counted, sent with a report, added up. */
#include "engine/host/counts.h"

#include "base/mem.h"

static size_t n_pairs(const sl_counts *c) {
    return (size_t)c->n_moe * c->n_experts;
}

sl_status sl_counts_create(const sl_model_spec *m, sl_counts *out, sl_err *err) {
    *out = (sl_counts){.n_layers = m->n_layers, .n_moe = m->n_moe, .n_experts = m->n_experts};
    out->layer = sl_alloc(m->n_layers, sizeof *out->layer);
    out->expert = sl_alloc(n_pairs(out), sizeof *out->expert);
    out->seen = sl_alloc(m->n_experts, sizeof *out->seen);
    if (out->layer && out->expert && out->seen) return SL_OK;
    sl_counts_free(out);
    return sl_fail(err, SL_ERR_NOMEM, "counters of %u layers and %u experts", m->n_layers,
                   m->n_experts);
}

void sl_counts_free(sl_counts *c) {
    sl_free(c->layer);
    sl_free(c->expert);
    sl_free(c->seen);
    *c = (sl_counts){0};
}

void sl_counts_task(sl_counts *c, const sl_trace_event *e) {
    if (e->layer >= c->n_layers) return;
    sl_layer_stats *l = &c->layer[e->layer];
    uint64_t ns = e->end_ns - e->begin_ns - e->poll_ns;
    switch ((sl_trace_kind)e->kind) {
    case SL_TRACE_EXPERT:
        l->tasks++;
        l->rows += e->rows;
        l->queued_us += e->queued_us;
        l->expert_ns += ns;
        break;
    case SL_TRACE_ATTENTION:
    case SL_TRACE_ROUTER:
    case SL_TRACE_SHARED:
    case SL_TRACE_BRANCH:
    case SL_TRACE_DENSE:
        l->attention_ns += ns;
        break;
    case SL_TRACE_FLIGHT:
        l->flights++;
        l->away_ns += ns;
        break;
    default:
        break;
    }
}

/* A call of `rows` rows, of block < n_moe. */
static void one_call(sl_counts *c, uint32_t block, uint32_t expert, uint32_t rows) {
    uint32_t b = 0;
    if (expert >= c->n_experts || rows == 0) return;
    sl_expert_stats *of = c->expert + (size_t)block * c->n_experts + expert;
    of->rows += rows;
    of->calls++;
    while (b < SL_BATCH_BUCKETS - 1 && rows > 1u << b) b++;
    c->batch[b]++;
}

void sl_counts_experts(sl_counts *c, uint32_t block, const uint32_t *expert, const uint32_t *first,
                       uint32_t n) {
    if (block >= c->n_moe) return;
    for (uint32_t i = 0; i < n; i++) one_call(c, block, expert[i], first[i + 1] - first[i]);
}

void sl_counts_routed(sl_counts *c, uint32_t layer, uint32_t block, const uint32_t *expert,
                      size_t n) {
    if (layer >= c->n_layers || block >= c->n_moe) return;
    c->layer[layer].rows += n;
    for (size_t i = 0; i < n; i++)
        if (expert[i] < c->n_experts) c->seen[expert[i]]++;
    for (size_t i = 0; i < n; i++) {
        if (expert[i] >= c->n_experts) continue;
        one_call(c, block, expert[i], c->seen[expert[i]]);
        c->seen[expert[i]] = 0;
    }
}

size_t sl_counts_bytes(const sl_counts *c) {
    return 12 + c->n_layers * sizeof *c->layer + n_pairs(c) * SL_EXPERT_STATS_BYTES +
           sizeof c->batch;
}

void sl_counts_encode(const sl_counts *c, sl_wr *w) {
    sl_wr_u32(w, c->n_layers);
    sl_wr_u32(w, c->n_moe);
    sl_wr_u32(w, c->n_experts);
    for (uint32_t i = 0; i < c->n_layers; i++) {
#define SL_LAYER_WRITE(name) sl_wr_u64(w, c->layer[i].name);
        SL_LAYER_COUNTERS(SL_LAYER_WRITE)
#undef SL_LAYER_WRITE
    }
    for (size_t i = 0; i < n_pairs(c); i++) {
        sl_wr_u64(w, c->expert[i].rows);
        sl_wr_u64(w, c->expert[i].calls);
        sl_wr_u32(w, c->expert[i].waits);
    }
    for (uint32_t i = 0; i < SL_BATCH_BUCKETS; i++) sl_wr_u64(w, c->batch[i]);
}

sl_status sl_counts_decode(sl_cur *c, sl_counts *out, sl_err *err) {
    uint32_t n_layers = sl_cur_u32(c), n_moe = sl_cur_u32(c), n_experts = sl_cur_u32(c);
    if (!c->ok || n_layers != out->n_layers || n_moe != out->n_moe || n_experts != out->n_experts ||
        sl_cur_left(c) != sl_counts_bytes(out) - 12)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "statistics of %u layers, %u MoE blocks and %u experts, the model has %u, "
                       "%u and %u",
                       n_layers, n_moe, n_experts, out->n_layers, out->n_moe, out->n_experts);
    for (uint32_t i = 0; i < n_layers; i++) {
#define SL_LAYER_READ(name) out->layer[i].name = sl_cur_u64(c);
        SL_LAYER_COUNTERS(SL_LAYER_READ)
#undef SL_LAYER_READ
    }
    for (size_t i = 0; i < n_pairs(out); i++) {
        out->expert[i].rows = sl_cur_u64(c);
        out->expert[i].calls = sl_cur_u64(c);
        out->expert[i].waits = sl_cur_u32(c);
    }
    for (uint32_t i = 0; i < SL_BATCH_BUCKETS; i++) out->batch[i] = sl_cur_u64(c);
    return SL_OK;
}

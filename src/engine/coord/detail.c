/* Counters by layer and by expert that the coordinator knows of all workers. */
#include "engine/coord/coord_int.h"

static void add_worker(const sl_counts *c, sl_engine_detail *out) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
#define SL_LAYER_ADD(name) out->layer[i].name += c->layer[i].name;
        SL_LAYER_COUNTERS(SL_LAYER_ADD)
#undef SL_LAYER_ADD
        out->most_rows[i] = SL_MAX(out->most_rows[i], c->layer[i].rows);
    }
    for (uint32_t b = 0; b < c->n_moe; b++) {
        const sl_expert_stats *of_block = c->expert + (size_t)b * c->n_experts;
        for (uint32_t i = 0; i < c->n_experts; i++) {
            out->expert[i].rows += of_block[i].rows;
            out->expert[i].calls += of_block[i].calls;
        }
    }
}

sl_status sl_engine_detail_get(sl_engine *e, sl_engine_detail *out, sl_err *err) {
    *out = (sl_engine_detail){.n_workers = e->plan.n_workers,
                              .n_layers = e->spec.n_layers,
                              .n_experts = e->spec.n_experts};
    out->arrays = sl_alloc_arrays(
        SL_ARRAY(out->worker, out->n_workers), SL_ARRAY(out->layer, out->n_layers),
        SL_ARRAY(out->most_rows, out->n_layers), SL_ARRAY(out->expert, out->n_experts));
    if (!out->arrays) {
        *out = (sl_engine_detail){0};
        return sl_fail(err, SL_ERR_NOMEM, "figures of %u workers, %u layers and %u experts",
                       e->plan.n_workers, e->spec.n_layers, e->spec.n_experts);
    }
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        out->worker[i] = e->worker[i].stats;
        add_worker(&e->worker[i].counts, out);
        out->n_expert_workers += (e->worker[i].stats.roles & SL_ROLE_EXPERT) != 0;
    }
    pthread_mutex_unlock(&e->lock);
    return SL_OK;
}

void sl_engine_detail_free(sl_engine_detail *d) {
    sl_free(d->arrays);
    *d = (sl_engine_detail){0};
}

/* How steps are cut into chunks. */
#include "sched/cut.h"

#include "base/mem.h"
#include "spec/schedules.h"

/* Each expert worker's experts, in order of id, are cut into as many even groups as there are
 * chunks. An expert counts where its first copy is: any rule would do. */
static sl_status group_experts(const sl_plan *p, sl_cut *c, sl_err *err) {
    uint32_t n_workers = 0;
    for (uint32_t e = 0; e < p->n_experts; e++)
        n_workers = SL_MAX(n_workers, sl_plan_host_of(p, 0, e, 0) + 1);
    uint32_t *hosted = sl_alloc(2 * (size_t)n_workers, sizeof *hosted);
    c->group = sl_alloc(p->n_experts, sizeof *c->group);
    if (!hosted || !c->group) {
        sl_free(hosted);
        return sl_fail(err, SL_ERR_NOMEM, "groups of %u experts", p->n_experts);
    }
    uint32_t *seen = hosted + n_workers;
    for (uint32_t e = 0; e < p->n_experts; e++) hosted[sl_plan_host_of(p, 0, e, 0)]++;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t w = sl_plan_host_of(p, 0, e, 0);
        c->group[e] = (uint32_t)((uint64_t)seen[w]++ * p->chunks / hosted[w]);
    }
    sl_free(hosted);
    return SL_OK;
}

sl_status sl_cut_create(const sl_plan *p, const sl_model_spec *m, size_t row_bytes, sl_cut *out,
                        sl_err *err) {
    *out =
        (sl_cut){.n_chunks = p->chunks, .chunking = p->chunks > 1 ? p->chunking : SL_CHUNK_TOKENS};
    const bool may = p->chunking == SL_CHUNK_EXPERTS || (p->resolve && sl_plan_regroups(p));
    if (p->chunks > 1 && may) {
        sl_status st = group_experts(p, out, err);
        if (st != SL_OK) return st;
    }
    if (!p->has_costs || sl_schedule_traits_of(p->schedule)->chunks <= 1) return SL_OK;
    sl_choose_describe(p, m, row_bytes, 0, &out->load);
    /* A group's rows come back as sums of its experts: without exact other groups, other bits. */
    if (out->chunking == SL_CHUNK_EXPERTS && !out->load.regroup) return SL_OK;
    out->costs = &p->costs;
    out->choice = (sl_choice){.schedule = p->schedule,
                              .lanes = p->lanes,
                              .chunks = p->chunks,
                              .chunking = out->chunking,
                              .order = p->order};
    return SL_OK;
}

void sl_cut_free(sl_cut *c) {
    sl_free(c->group);
    *c = (sl_cut){0};
}

uint32_t sl_cut_choose(const sl_cut *c, uint32_t rows, double keys) {
    const bool groups = c->chunking == SL_CHUNK_EXPERTS;
    if (!c->costs) return groups || rows == 0 ? c->n_chunks : SL_MIN(c->n_chunks, rows);
    if (rows == 0) return c->n_chunks;
    return sl_choose_chunks(c->costs, &c->load, &c->choice, rows, keys);
}

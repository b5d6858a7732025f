/* What it takes to give experts to other workers: what src/sched/rehost estimates, from what
 * changes of plans give to whom and how long they took. */
#include "engine/coord/coord_int.h"

#include "format/placement.h"

/* The most that a worker of the plan that holds gets, of what is in rooming.added. One that joins
 * has mapped its share before. */
static uint64_t most_bytes(const sl_engine *e) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (e->plan.worker[i].roles) most = SL_MAX(most, e->rooming.added[i]);
    return most * e->o.expert_bytes;
}

uint64_t sl_rehosting_us(const sl_engine *e) {
    return sl_rehost_us(&e->rehosting.rule, most_bytes(e));
}

uint64_t sl_rehosting_among_us(sl_engine *e, const uint8_t *there) {
    sl_err err;
    if (sl_rooming_among(e, there, &err) != SL_OK) return SL_REHOST_NEVER;
    return sl_rehosting_us(e);
}

void sl_rehosting_begin(sl_engine *e, const sl_plan *to) {
    sl_placement_added(&e->plan, to, e->spec.n_moe, e->rooming.added);
    e->rehosting.bytes = most_bytes(e);
}

void sl_rehosting_end(sl_engine *e, uint64_t took_us) {
    sl_rehost_learn(&e->rehosting.rule, e->rehosting.bytes, took_us);
}

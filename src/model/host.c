/* Experts that a model hosts while it computes: others come, some MB at a time, and some go. */
#include "model/model_int.h"

/* Of one call: fractions of a millisecond. */
#define PIECES 2u
#define DROPS  8u

static bool is_near(const sl_model *m, const sl_expert_weights *w) {
    return m->home.put || w->touched >= sl_expert_pieces(w);
}

/* Maps the expert, if it is not, and touches up to *budget pieces of it. *waits: some are not in
 * memory yet. */
static sl_status bring(sl_model *m, size_t expert, bool patient, uint32_t *budget, bool *waits,
                       sl_err *err) {
    sl_expert_weights *w = &m->expert[expert];
    bool more;
    size_t copies = m->copies.n;
    sl_status st = sl_model_bind_expert(m, expert, &more, err);
    if (st != SL_OK) return st;
    if (m->home.put) {
        if (more) *budget = 0;
        if (more) st = sl_settle_expert(m, expert, err);
        if (st != SL_OK) sl_model_unbind_expert(m, expert); /* half of it would pass for all */
        return st;
    }
    uint32_t all = sl_expert_pieces(w), due = all > w->touched ? all - w->touched : 0;
    uint32_t most = SL_MIN(due, *budget), n = sl_expert_touch(w, w->touched, most, patient);
    w->touched += n;
    *waits |= n < most;
    *budget -= n;
    if (m->copies.n != copies) *budget = 0; /* values were computed, which takes longer */
    return SL_OK;
}

sl_status sl_model_host(sl_model *m, const uint8_t *hosted, bool patient, sl_hosting *left,
                        sl_err *err) {
    size_t n = (size_t)m->spec.n_moe * m->spec.n_experts;
    uint32_t budget = PIECES, drops = DROPS;
    bool waits = false;
    *left = SL_HOSTING_GOES_ON;
    for (size_t i = 0; i < n; i++) {
        const sl_expert_weights *w = &m->expert[i];
        if (!hosted[i] || !sl_extent_has(m->held, m->spec.moe_layer[i / m->spec.n_experts]) ||
            (w->down.data && is_near(m, w)))
            continue;
        if (budget == 0) return SL_OK;
        sl_status st = bring(m, i, patient, &budget, &waits, err);
        if (st != SL_OK) return st;
    }
    if (waits) {
        *left = SL_HOSTING_WAITS;
        return SL_OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (hosted[i] || !m->expert[i].down.data) continue;
        if (drops-- == 0) return SL_OK;
        sl_model_unbind_expert(m, i);
    }
    *left = SL_HOSTING_DONE;
    return SL_OK;
}

/* Plans in memory (format/plan_json.h): copies, more workers, their ends. */
#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "spec/schedules.h"

#include <string.h>

void sl_plan_free(sl_plan *p) {
    sl_placement_free(&p->place);
    sl_placement_free(&p->prefill_place);
    sl_free(p->worker);
    *p = (sl_plan){0};
}

sl_status sl_plan_copy(const sl_plan *p, sl_plan *out, sl_err *err) {
    sl_plan copy = *p;
    copy.place = copy.prefill_place = (sl_placement){0};
    copy.worker = sl_alloc(p->n_workers, sizeof *copy.worker);
    sl_status st = copy.worker ? sl_placement_copy(&p->place, p->n_experts, &copy.place, err)
                               : sl_fail(err, SL_ERR_NOMEM, "plan of %u workers", p->n_workers);
    if (st == SL_OK && p->prefill_place.n_layers)
        st = sl_placement_copy(&p->prefill_place, p->n_experts, &copy.prefill_place, err);
    if (st == SL_OK) {
        memcpy(copy.worker, p->worker, p->n_workers * sizeof *copy.worker);
        *out = copy;
    } else {
        sl_plan_free(&copy);
    }
    return st;
}

/* Every worker has both roles. */
static bool is_colocated(const sl_plan *p) {
    return sl_schedule_traits_of(p->schedule)->sides == SL_SIDES_TOGETHER ||
           (p->n_workers > 0 && p->worker[0].roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT));
}

sl_status sl_plan_grow(uint32_t attention, uint32_t experts, const sl_plan_worker *is,
                       const char *whose, sl_plan *p, sl_err *err) {
    const uint32_t n = p->n_workers;
    const bool together = is_colocated(p);
    const uint64_t more = (uint64_t)attention + experts;
    if (together && experts)
        return sl_fail(err, SL_ERR_ARG, "plan: its workers have both roles, and so have %s", whose);
    if (n + more > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: %u workers and places for %llu more, %u are possible", n,
                       (unsigned long long)more, SL_MAX_WORKERS);
    if (more == 0) return SL_OK;
    sl_plan_worker *bigger = sl_grow(p->worker, n, n + more, sizeof *bigger);
    if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "plan of %u workers", n + (uint32_t)more);
    p->worker = bigger;
    p->n_workers = n + (uint32_t)more;
    for (uint32_t i = n; i < p->n_workers; i++) {
        const uint32_t role = i - n < attention ? SL_ROLE_ATTENTION : SL_ROLE_EXPERT;
        p->worker[i] = *is;
        p->worker[i].id = i;
        p->worker[i].roles = together ? SL_ROLE_ATTENTION | SL_ROLE_EXPERT : role;
    }
    return SL_OK;
}

sl_status sl_plan_add_spares(uint32_t attention, uint32_t experts, sl_plan *p, sl_err *err) {
    const sl_plan_worker is = {.cpu = -1, .spare = true};
    return sl_plan_grow(attention, experts, &is,
                        "those that may come: they are counted as attention workers", p, err);
}

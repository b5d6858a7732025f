/* Copies of plans (format/plan_json.h), and their ends. */
#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"

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

/* What an expert worker of any schedule asks of the rows that it is sent. */
#include "engine/expert/expert.h"

uint32_t sl_worker_pairs_by(const sl_worker *w, const sl_plan *p, const sl_model_spec *m) {
    return sl_worker_pairs(w, p, m, sl_plan_n_hosted(p, w->id));
}

uint32_t sl_worker_max_pairs(const sl_worker *w, const sl_model_spec *m) {
    return sl_worker_pairs_by(w, &w->plan, m);
}

sl_status sl_worker_check_rows(const sl_worker *w, const sl_wire_header *h,
                               const sl_wire_dispatch *v, uint32_t held, uint32_t most,
                               sl_err *err) {
    if (h->rows > most - held)
        return sl_fail(err, SL_ERR_PROTOCOL, "%u rows in flight, %u are reserved", held + h->rows,
                       most);
    for (uint32_t r = 0; r < v->rows; r++) {
        for (uint32_t i = v->first[r]; i < v->first[r + 1]; i++) {
            if (!sl_plan_is_host(&w->plan, h->layer, v->expert[i], w->id))
                return sl_fail(err, SL_ERR_PROTOCOL, "expert %u of layer %u is at worker %u",
                               v->expert[i], h->layer,
                               sl_plan_host_of(&w->plan, h->layer, v->expert[i], 0));
            /* An expert twice would make more pairs than there is room for. */
            if (i > v->first[r] && v->expert[i] <= v->expert[i - 1])
                return sl_fail(err, SL_ERR_PROTOCOL, "row %u names expert %u after expert %u", r,
                               v->expert[i], v->expert[i - 1]);
        }
    }
    return SL_OK;
}

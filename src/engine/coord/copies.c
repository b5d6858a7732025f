/* Copies of KV pages at other attention workers (sched/copies.h): who is told to fetch what, and
 * what became of it. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "spec/buddy.h"

void sl_copying_pair(sl_engine *e) {
    for (uint32_t i = 0; e->plan.kv_replicas && i < e->plan.n_workers; i++)
        sl_admit_pair(&e->admit, i, sl_plan_buddy(&e->plan, i));
}

void sl_copying_tell(sl_engine *e, sl_request *r, const sl_admit_decision *d) {
    const sl_wire_fetch f = {.transfer = d->transfer,
                             .key = sl_prefix_key(&e->admit.request[d->request].text, d->index),
                             .request = r->id,
                             .index = d->index,
                             .page = d->page,
                             .from = d->from};
    sl_buf *b = sl_net_buf_take(e->net, sizeof f);
    if (!b) { /* nobody answers what was not said */
        sl_admit_copied(&e->admit, d->worker, d->transfer, false);
        return;
    }
    sl_wire_fetches_encode(&f, 1, b->data);
    const sl_wire_header h = {.kind = SL_MSG_KV_FETCH, .epoch = e->plan.epoch, .rows = 1};
    sl_net_send(e->net, e->worker[d->worker].conn, h, b); /* a lost one has lost its copies */
}

static sl_status check(const sl_engine *e, uint32_t id, const sl_wire_pair *p, sl_err *err) {
    if (p->value < SL_KV_FATES && p->request && p->request <= e->admit.copies.transfers)
        return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL, "worker %u says %llu of transfer %llu", id,
                   (unsigned long long)p->value, (unsigned long long)p->request);
}

sl_status sl_copying_on_here(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                             sl_err *err) {
    const sl_wire_pair *pair;
    sl_status st = sl_wire_pairs_decode(h, payload, &pair, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++) {
        st = check(e, id, &pair[i], err);
        if (st != SL_OK) break;
        bool here = pair[i].value == SL_KV_HERE;
        sl_admit_copied(&e->admit, id, pair[i].request, here);
        if (pair[i].value == SL_KV_DAMAGED)
            sl_log(SL_LOG_WARN, "engine", "a KV page came damaged to worker %u", id);
    }
    return st;
}

/* Signs of life: when a suspect starts alone, all workers that serve are asked for one. A worker
 * that ends before it has answered may have ended before the start, unheard of as yet, and then its
 * end says nothing of the suspect (blame.c). */
#include "engine/coord/coord_int.h"

/* Numbers of these questions; smaller numbers are those of collect.c. */
#define FIRST_SIGN (1ull << 32)

void sl_sign_ask(sl_engine *e) {
    const sl_wire_header h = {
        .kind = SL_MSG_CLOCK, .epoch = e->plan.epoch, .number = FIRST_SIGN + e->n_signs++};
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_member_worker *w = &e->worker[i];
        if (!sl_roster_serves(&e->roster, i) || !w->conn) continue;
        w->sign = h.number;
        sl_buf *b = sl_net_buf_take(e->net, 0);
        if (b) sl_net_send(e->net, w->conn, h, b); /* who is not asked has not answered */
    }
}

bool sl_sign_is(const sl_wire_header *h) {
    return h->number >= FIRST_SIGN;
}

sl_status sl_sign_on_answer(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_err *err) {
    sl_member_worker *w = &e->worker[id];
    if (h->number - FIRST_SIGN >= e->n_signs)
        return sl_fail(err, SL_ERR_PROTOCOL, "answer to question %llu, which nobody asked",
                       (unsigned long long)h->number);
    if (h->number == w->sign) w->sign = 0;
    return SL_OK;
}

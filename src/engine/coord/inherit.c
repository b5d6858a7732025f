/* What workers kept of the KV of a coordinator that is gone (sched/estate.h): they say so when they
 * join, and requests that come again go on with it. */
#include "engine/coord/coord_int.h"

#include "base/log.h"

#define KEPT_US 60000000u /* so long requests may take to come again */

/* Rows that need not be computed once more for their own sake: with those of the prompt goes what
 * was asked about its tokens. */
static uint32_t rows_to_spare(const sl_request *r, uint32_t known) {
    bool reports = r->p.prompt_logprobs && r->n_prompt_reported + 1 < r->p.n_prompt;
    if (r->p.on_logits) return 0;
    return reports ? r->n_prompt_reported : known;
}

void sl_inherit_look(sl_engine *e, const sl_request *r) {
    if (!e->kept_until_us) return;
    uint32_t known = sl_admit_known(sl_request_books(e, r));
    uint32_t n = sl_admit_inherit(&e->admit, r->place, r->tokens, rows_to_spare(r, known));
    if (n)
        sl_log_request(SL_LOG_INFO, "engine", r->name,
                       "request %llu of %u tokens has %u pages at worker %u",
                       (unsigned long long)r->id, known, n, e->admit.copies.of[r->place].at);
}

static sl_status read_texts(const sl_engine *e, const sl_wire_header *h, sl_span payload,
                            sl_estate *out, sl_err *err) {
    size_t at = 0;
    for (uint32_t i = 0; i < h->rows; i++) {
        sl_wire_kept t;
        sl_status st = sl_wire_kept_decode(payload, &at, e->spec.vocab, &t, err);
        if (st != SL_OK) return st;
        if (!sl_estate_add(out, t.tokens, t.pages, t.n_pages))
            return sl_fail(err, SL_ERR_NOMEM, "texts of %u kept pages", t.n_pages);
    }
    if (at == payload.len && out->n) return SL_OK;
    return sl_fail(err, SL_ERR_PROTOCOL, "%u texts in %zu of %zu bytes", h->rows, at, payload.len);
}

/* Those that wait already ran there, and the worker has come back. */
static void look_at_waiting(sl_engine *e) {
    uint32_t at = e->admit.waiting.first;
    for (; at != SL_ADMIT_NONE; at = e->admit.request[at].link[SL_ADMIT_PLACE].next)
        if (e->admit.request[at].starts > 0) sl_inherit_look(e, e->ledger.at[at]);
}

sl_status sl_inherit_on_kept(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                             sl_err *err) {
    sl_estate estate = {0};
    if (e->roster.worker[id].state != SL_ROSTER_JOINING ||
        !(e->roster.worker[id].roles & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_PROTOCOL, "unexpected KV_KEPT of %u texts", h->rows);
    sl_status st = read_texts(e, h, payload, &estate, err);
    uint32_t n = estate.n, pages = estate.n_pages;
    if (st == SL_OK && !sl_admit_take_estate(&e->admit, id, &estate))
        st = sl_fail(err, SL_ERR_PROTOCOL,
                     "worker %u kept %u pages, of which one is twice or none of its %u", id, pages,
                     e->admit.worker[id].pages.n_total);
    sl_estate_clear(&estate, NULL);
    if (st != SL_OK) return st;
    sl_log(SL_LOG_INFO, "engine", "worker %u kept %u KV pages of %u requests", id, pages, n);
    e->kept_until_us = sl_clock_now_us(&e->clock) + KEPT_US;
    look_at_waiting(e);
    return SL_OK;
}

void sl_inherit_step(sl_engine *e) {
    if (!e->kept_until_us || sl_clock_now_us(&e->clock) < e->kept_until_us) return;
    e->kept_until_us = 0;
    sl_admit_drop_estates(&e->admit);
}

/* The coordinator's requests: what was asked, and which one has an id or a place in the books. */
#include "engine/coord/coord_int.h"

#include <stdio.h>
#include <string.h>

static void copy_sampling(sl_request *r, const sl_sampling *s) {
    if (s->n_bias) memcpy(r->bias, s->bias, s->n_bias * sizeof *r->bias);
    if (s->n_allowed) memcpy(r->allowed, s->allowed, s->n_allowed * sizeof *r->allowed);
    if (s->n_bad) memcpy(r->bad, s->bad, s->n_bad * sizeof *r->bad);
    r->p.sampling.bias = r->bias;
    r->p.sampling.allowed = r->allowed;
    r->p.sampling.bad = r->bad;
}

sl_request *sl_request_create(const sl_request_params *p, uint64_t id) {
    sl_request *r = sl_alloc(1, sizeof *r);
    if (!r) return NULL;
    r->arrays = sl_alloc_arrays(
        SL_ARRAY(r->stop, p->n_stop), SL_ARRAY(r->tokens, (size_t)p->n_prompt + p->max_tokens),
        SL_ARRAY(r->bias, p->sampling.n_bias), SL_ARRAY(r->allowed, p->sampling.n_allowed),
        SL_ARRAY(r->bad, p->sampling.n_bad), SL_ARRAY(r->scored, p->report.n_scored));
    if (!r->arrays) {
        sl_request_free(r);
        return NULL;
    }
    memcpy(r->tokens, p->prompt, p->n_prompt * sizeof *r->tokens);
    if (p->n_drawn) memcpy(r->tokens + p->n_prompt, p->drawn, p->n_drawn * sizeof *p->drawn);
    if (p->n_stop) memcpy(r->stop, p->stop, p->n_stop * sizeof *r->stop);
    r->id = id;
    r->p = *p;
    snprintf(r->name, sizeof r->name, "%s", p->name ? p->name : "");
    r->p.name = r->name;
    r->p.prompt = r->tokens;
    r->p.drawn = r->tokens + p->n_prompt;
    r->n_prompt_reported = p->n_prompt_reported;
    r->p.stop = r->stop;
    copy_sampling(r, &p->sampling);
    if (p->report.n_scored)
        memcpy(r->scored, p->report.scored, p->report.n_scored * sizeof *r->scored);
    r->p.report.scored = r->scored;
    r->p.shape = sl_shared_hold(p->shape);
    return r;
}

void sl_request_free(sl_request *r) {
    if (!r) return;
    sl_shared_let_go(r->p.shape);
    sl_free(r->arrays);
    sl_free(r);
}

sl_status sl_ledger_add(sl_ledger *l, sl_request *r, uint32_t place, sl_err *err) {
    if (place >= l->cap) {
        uint32_t cap = SL_MAX(2 * l->cap, place + 1);
        sl_request **bigger = sl_grow(l->at, l->cap, cap, sizeof *bigger);
        if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "ledger of %u requests", cap);
        l->at = bigger;
        l->cap = cap;
    }
    r->place = place;
    l->at[place] = r;
    sl_request **bucket = &l->bucket[r->id % SL_REQUEST_BUCKETS];
    r->chain = *bucket;
    *bucket = r;
    return SL_OK;
}

void sl_ledger_remove(sl_ledger *l, sl_request *r) {
    l->at[r->place] = NULL;
    sl_request **at = &l->bucket[r->id % SL_REQUEST_BUCKETS];
    while (*at != r) at = &(*at)->chain;
    *at = r->chain;
}

sl_request *sl_ledger_find(const sl_ledger *l, uint64_t id) {
    sl_request *r = l->bucket[id % SL_REQUEST_BUCKETS];
    while (r && r->id != id) r = r->chain;
    return r;
}

void sl_ledger_free(sl_ledger *l) {
    sl_free(l->at);
    *l = (sl_ledger){0};
}

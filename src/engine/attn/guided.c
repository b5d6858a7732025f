/* Requests whose answers have a shape: they wait for its guide, and then it says which tokens may
 * be drawn. Guides are compiled by a thread of their store, and used by the worker's own. */
#include "engine/attn/attn_int.h"

#include "base/log.h"
#include "grammar/guide.h"

static void wake(void *worker) {
    sl_worker *w = worker;
    sl_net_wake(w->net);
}

/* The store is made with the first that asks. Where time is the caller's nothing is compiled beside
 * the worker: what comes when is a matter of its clock alone. */
static sl_status open_store(sl_attn *a, sl_err *err) {
    const sl_guides_opts o = {.model = a->model,
                              .vocab = a->m->vocab,
                              .ends = a->m->eos,
                              .n_ends = a->m->n_eos,
                              .at_once = a->w->virtual_time,
                              .ready = wake,
                              .ctx = a->w};
    return a->guides ? SL_OK : sl_guides_create(&o, &a->guides, err);
}

sl_status sl_guided_ask(sl_attn *a, sl_slot *s, sl_span shape, sl_err *err) {
    sl_status st = open_store(a, err);
    if (st != SL_OK) return st;
    s->guide = sl_guides_ask(a->guides, shape);
    if (!s->guide) return sl_fail(err, SL_ERR_NOMEM, "shape of %zu bytes", shape.len);
    s->life->waits = true;
    a->n_waiting++;
    return SL_OK;
}

/* Why it cannot go on, for the coordinator; it ends like one that was cancelled. */
static void fail(sl_slot *s, sl_status st, const char *why) {
    if (s->life->ends) return;
    sl_log(SL_LOG_WARN, "worker", "request %llu: %s", (unsigned long long)s->request, why);
    s->life->ends = s->shapeless = true;
    s->fate = st == SL_ERR_LIMIT || st == SL_ERR_NOMEM ? SL_SHAPE_LIMIT
              : st == SL_ERR_ARG                       ? SL_SHAPE_STRANGE
                                                       : SL_SHAPE_REFUSED;
}

/* From the beginning of its answer through what of it was drawn before it came here. */
static sl_status read_again(sl_slot *s, sl_err *err) {
    s->guide_at = sl_guide_begin(s->guide);
    return sl_guide_take(s->guide, s->tokens + s->n_prompt, s->life->tokens - s->n_prompt,
                         &s->guide_at, err);
}

static void begin(sl_attn *a, sl_slot *s) {
    sl_err err = {0};
    sl_status st = sl_guide_state(s->guide, &err);
    if (st == SL_ERR_AGAIN) return;
    if (st == SL_OK) st = read_again(s, &err);
    s->life->waits = false;
    a->n_waiting--;
    if (st == SL_OK) {
        a->ops->wake(a->side, s);
        return;
    }
    fail(s, st, err.msg);
    sl_slot_end(a, s); /* no step has rows of it */
    sl_attn_flush(a);
}

void sl_guided_look(sl_attn *a) {
    for (uint32_t i = 0; a->n_waiting && i < a->n_lanes * a->max_slots; i++)
        if (a->slot[i].life->used && a->slot[i].life->waits) begin(a, &a->slot[i]);
}

sl_guided_may sl_guided_mask(sl_slot *s) {
    sl_err err = {0};
    sl_grammar_allowed allowed = {0};
    sl_status st = sl_guide_mask(s->guide, s->guide_at, &s->sampling.allowed, &allowed, &err);
    if (st == SL_OK && allowed.n == 0 && allowed.end) return SL_GUIDED_END;
    if (st == SL_OK && allowed.n > 0) return SL_GUIDED_DRAW;
    fail(s, st, st == SL_OK ? "no token goes on with its answer" : err.msg);
    if (st == SL_OK) s->fate = SL_SHAPE_STUCK;
    return SL_GUIDED_STUCK;
}

bool sl_guided_take(sl_slot *s, uint32_t token) {
    sl_err err = {0};
    const uint32_t *mask = s->sampling.allowed;
    /* none of those that are allowed has a finite logit */
    bool is = mask[token / 32] >> token % 32 & 1;
    s->sampling.allowed = NULL; /* it is the store's, and changes */
    sl_status st = is ? sl_guide_take(s->guide, &token, 1, &s->guide_at, &err) : SL_ERR_ARG;
    if (st == SL_OK) return true;
    fail(s, st, is ? err.msg : "no allowed token has a finite logit");
    if (!is) s->fate = SL_SHAPE_STUCK;
    return false;
}

/* Requests whose answers have a shape: they wait for its guide, and then it says which tokens may
 * be drawn. Guides are compiled by a thread of their store, and used by the worker's own. */
#include "engine/attn/attn_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "grammar/guide.h"

#include <string.h>

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
    s->may = sl_alloc(sl_id_words(a->m->vocab), sizeof *s->may);
    if (!s->guide || !s->may) return sl_fail(err, SL_ERR_NOMEM, "shape of %zu bytes", shape.len);
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

/* SL_OK: s->may and s->n_may are of where it is. */
static sl_status look_up(sl_attn *a, sl_slot *s, sl_err *err) {
    const uint32_t *mask;
    if (s->knows_may) return SL_OK;
    const sl_status st = sl_guide_mask(s->guide, s->guide_at, &mask, &s->n_may, err);
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < sl_id_words(a->m->vocab); i++)
        s->may[i] = s->only ? mask[i] & s->only[i] : mask[i];
    s->knows_may = true;
    return SL_OK;
}

sl_guided_may sl_guided_mask(sl_attn *a, sl_slot *s) {
    sl_err err = {0};
    const sl_status st = look_up(a, s, &err);
    s->sampling.allowed = s->may;
    s->sampling.n_allowed = sl_id_words(a->m->vocab);
    if (st == SL_OK && s->n_may.n == 0 && s->n_may.end) return SL_GUIDED_END;
    if (st == SL_OK && s->n_may.n > 0) return SL_GUIDED_DRAW;
    fail(s, st, st == SL_OK ? "no token goes on with its answer" : err.msg);
    if (st == SL_OK) s->fate = SL_SHAPE_STUCK;
    return SL_GUIDED_STUCK;
}

bool sl_guided_take(sl_slot *s, uint32_t token) {
    sl_err err = {0};
    s->knows_may = false;
    const sl_status st = sl_guide_take(s->guide, &token, 1, &s->guide_at, &err);
    if (st == SL_OK) return true;
    fail(s, st, err.msg);
    return false;
}

void sl_guided_stick(sl_attn *a, sl_slot *s, const sl_history *past) {
    const bool all = sl_sampler_excludes_all(&s->sampling, a->m->vocab, past, &a->scratch);
    if (all && s->guide && s->n_may.end) {
        sl_slot_finish(a, s);
    } else if (all || s->guide) {
        fail(s, SL_OK, all ? "all tokens are excluded" : "no allowed token has a finite logit");
        s->fate = all ? SL_SHAPE_EXCLUDED : SL_SHAPE_STUCK;
    } else {
        sl_slot_break(s, a->m->n_layers, s->life->tokens - 1);
    }
}

/* Whether what it draws is a matter of its shape alone. */
static bool may_go_on(const sl_slot *s) {
    return s->guide && s->life->used && !s->life->ends && !s->want_logprobs && !s->want_logits &&
           !s->sampling.thought_close && sl_life_leads(s->life);
}

void sl_guided_go_on(sl_attn *a, sl_slot *s) {
    while (may_go_on(s)) {
        const sl_guided_may may = sl_guided_mask(a, s);
        if (may == SL_GUIDED_END) sl_slot_finish(a, s);
        if (may != SL_GUIDED_DRAW || s->n_may.n != 1 || s->n_may.only >= a->m->vocab) return;
        const uint32_t only = s->n_may.only;
        const sl_history past = {s->tokens, s->life->tokens, s->n_prompt};
        if (sl_sampler_excludes(&s->sampling, only, &past) || !sl_guided_take(s, only)) return;
        a->w->n.tokens_forced++;
        sl_slot_append(a, s, only, NULL, 0);
    }
}

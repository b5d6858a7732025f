/* Tokens of several requests at once: what may be drawn is found out first, then tokens are drawn
 * side by side by the device's threads, and then what follows from each is done, one after the
 * other in the order of rows. A draw is a pure function (model/sampler.h), so no bit depends on who
 * makes it. Where a device has found what a row sought (model/seek.h) and that is not enough, all
 * its logits are fetched and it draws again: no bit depends on what was sought, either. */
#include "engine/attn/attn_int.h"

#include <math.h>
#include <stdatomic.h>

/* A row that draws. */
typedef struct drawing {
    sl_slot *slot;
    uint32_t part; /* of the step */
    uint32_t row;  /* of the head's call, whose logits are: */
    sl_logits logits;
    bool done; /* it has drawn: */
    sl_drawn drawn;
    sl_logprob logprobs[SL_MAX_REPORTED];
} drawing;

struct sl_draws {
    sl_attn *attn;
    uint32_t n, n_scratch;
    drawing of[SL_HEAD_ROWS];
    sl_arena scratch[SL_HEAD_ROWS];
    _Atomic uint32_t taken; /* a bit for each scratch that somebody has */
};

sl_status sl_draws_create(sl_attn *a, sl_err *err) {
    const size_t bytes = sl_sampler_scratch_bytes(a->m->vocab);
    const uint32_t most = SL_MIN(SL_MAX(a->w->device->sharers, 1u), SL_HEAD_ROWS);
    sl_status st = SL_OK;
    a->draws = sl_alloc(1, sizeof *a->draws);
    if (!a->draws) return sl_fail(err, SL_ERR_NOMEM, "draws of an attention worker");
    a->draws->attn = a;
    for (; st == SL_OK && a->draws->n_scratch < most; a->draws->n_scratch++)
        st = sl_arena_create(bytes, &a->draws->scratch[a->draws->n_scratch], err);
    return st;
}

void sl_draws_free(sl_attn *a) {
    for (uint32_t i = 0; a->draws && i < a->draws->n_scratch; i++)
        sl_arena_free(&a->draws->scratch[i]);
    sl_free(a->draws);
    a->draws = NULL;
}

static sl_history past_of(const sl_slot *s) {
    return (sl_history){s->tokens, s->life->tokens, s->n_prompt};
}

/* ---- side by side ---- */

/* There are as many as threads. */
static uint32_t take_scratch(struct sl_draws *d) {
    uint32_t had = atomic_load(&d->taken);
    for (;;) {
        const uint32_t i = (uint32_t)__builtin_ctz(~had);
        SL_ASSERT(i < d->n_scratch);
        if (atomic_compare_exchange_weak(&d->taken, &had, had | 1u << i)) return i;
    }
}

/* Whether its logits say which token comes, and how likely it was. */
static bool draw(drawing *w, sl_arena *scratch) {
    const sl_slot *s = w->slot;
    const sl_history past = past_of(s);
    if (!sl_sample_of(&s->sampling, &w->logits, s->life->tokens, &past, scratch, &w->drawn))
        return false;
    if (!s->want_logprobs || !isfinite(w->drawn.logit)) return true;
    return sl_logprobs_of(&w->logits, w->drawn.id, &s->report, scratch, w->logprobs);
}

static void draw_some(void *ctx, size_t begin, size_t end) {
    struct sl_draws *d = ctx;
    const uint32_t mine = take_scratch(d);
    for (size_t i = begin; i < end; i++)
        if (!d->of[i].done) d->of[i].done = draw(&d->of[i], &d->scratch[mine]);
    atomic_fetch_and(&d->taken, ~(1u << mine));
}

/* ---- logits that are elsewhere ---- */

void sl_draws_seek(sl_attn *a, sl_slot *s, uint32_t pos, sl_sought *out) {
    const sl_history past = past_of(s);
    sl_slot_spare_stops(s, pos + 1);
    sl_sampler_seeks(&s->sampling, &past, a->m->vocab, pos + 1,
                     s->want_logprobs ? &s->report : NULL, s->guide != NULL, out);
}

static float *row_of(const sl_attn *a, uint32_t row) {
    return a->logits + (size_t)row * a->m->vocab;
}

static sl_logits logits_of(const sl_attn *a, uint32_t row) {
    if (!a->seeks || a->found[row].all) return sl_logits_all(row_of(a, row), a->m->vocab);
    return sl_logits_found(&a->sought[row], &a->found[row], a->m->vocab);
}

/* All logits of rows that could not draw; whether there are any. */
static bool fetch(struct sl_draws *d) {
    sl_attn *a = d->attn;
    sl_device *device = a->w->device;
    bool any = false;
    for (uint32_t i = 0; i < d->n; i++) {
        drawing *w = &d->of[i];
        if (w->done) continue;
        device->ops->read_logits(device, w->row, row_of(a, w->row));
        a->found[w->row].all = true;
        w->logits = logits_of(a, w->row);
        any = true;
    }
    return any;
}

/* ---- before and after ---- */

/* False: nothing is drawn, it ends. */
static bool may_draw(sl_attn *a, sl_slot *s) {
    sl_slot_spare_stops(s, s->life->tokens);
    const sl_guided_may may = s->guide ? sl_guided_mask(a, s) : SL_GUIDED_DRAW;
    if (may == SL_GUIDED_END) sl_slot_finish(a, s);
    return may == SL_GUIDED_DRAW;
}

static void has_drawn(sl_attn *a, const drawing *d) {
    sl_slot *s = d->slot;
    const sl_history past = past_of(s);
    if (!isfinite(d->drawn.logit)) { /* it is the largest: there is nothing to draw from */
        sl_slot_break(s, a->m->n_layers, s->life->tokens - 1);
        return;
    }
    if (sl_sampler_excludes(&s->sampling, d->drawn.id, &past)) {
        sl_guided_stick(a, s, &past);
        return;
    }
    if (s->guide && !sl_guided_take(s, d->drawn.id)) return;
    sl_slot_append(a, s, d->drawn.id, d->logprobs, s->want_logprobs ? sl_reported(&s->report) : 0);
    sl_guided_go_on(a, s);
}

bool sl_draws_wait(const sl_attn *a, const sl_slot *s) {
    for (uint32_t i = 0; i < a->draws->n; i++)
        if (a->draws->of[i].slot == s) return true;
    return false;
}

void sl_draws_add(sl_attn *a, sl_slot *s, uint32_t part, uint32_t row) {
    struct sl_draws *d = a->draws;
    SL_ASSERT(d->n < SL_HEAD_ROWS && !sl_draws_wait(a, s));
    if (!may_draw(a, s)) return;
    drawing *w = &d->of[d->n++];
    w->slot = s;
    w->part = part;
    w->row = row;
    w->logits = logits_of(a, row);
    w->done = false;
}

void sl_draws_make(sl_pass *p) {
    sl_attn *a = p->attn;
    struct sl_draws *d = a->draws;
    const uint32_t n = d->n;
    if (n == 0) return;
    sl_device_share(a->w->device, n, draw_some, d);
    const bool again = fetch(d);
    d->n = 0;
    if (again && a->w->device->failed != SL_OK) return; /* nothing was fetched */
    if (again) sl_device_share(a->w->device, n, draw_some, d);
    for (uint32_t i = 0; i < n; i++)
        if (sl_step_is_open(&p->step, d->of[i].part)) has_drawn(a, &d->of[i]);
}

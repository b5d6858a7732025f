/* Requests at their slots: what the coordinator hears of them, and how they end. */
#include "engine/attn/attn_int.h"

#include "grammar/guide.h"

#include <string.h>

/* ---- tokens to the coordinator ---- */

void sl_attn_flush(sl_attn *a) {
    if (a->n_out == 0) return;
    sl_buf *b = sl_worker_buf(a->w, sl_wire_tokens_bytes(a->n_out, a->n_pairs));
    if (!b) return;
    sl_wire_tokens_encode(a->out, a->n_out, a->pairs, a->n_pairs, b->data);
    sl_wire_header h = {.kind = SL_MSG_TOKENS, .rows = a->n_out};
    sl_worker_send(a->w, SL_NO_WORKER, h, b); /* a lost coordinator ends the worker */
    a->n_out = 0;
    a->n_pairs = 0;
}

static bool has_room(const sl_attn *a, uint32_t pairs) {
    return a->n_out < a->out_cap && pairs <= a->pairs_cap - a->n_pairs;
}

void sl_attn_emit(sl_attn *a, const sl_slot *s, uint32_t position, uint32_t token, sl_finish finish,
                  const sl_logprob *logprobs, uint32_t n) {
    if (!has_room(a, n)) sl_attn_flush(a);
    if (!has_room(a, n)) return; /* out of memory: the worker stops */
    const bool drawn = token != UINT32_MAX && finish <= SL_FINISH_LENGTH;
    a->out[a->n_out++] = (sl_wire_token){.request = s->request,
                                         .position = position,
                                         .token = token,
                                         .finish = (uint16_t)finish,
                                         .behind = drawn ? sl_life_behind(s->life, position) : 0,
                                         .n_logprobs = n,
                                         .made_us = sl_clock_now_us(&a->w->clock)};
    if (n) memcpy(a->pairs + a->n_pairs, logprobs, n * sizeof *logprobs);
    a->n_pairs += n;
}

/* ---- slots ---- */

/* Looked for from where the last one was found: lists of requests come in the order of slots. */
sl_slot *sl_slot_of(sl_attn *a, uint64_t request) {
    uint32_t n = a->n_lanes * a->max_slots;
    for (uint32_t i = 0; i < n; i++) {
        if (++a->look >= n) a->look = 0;
        sl_slot *s = &a->slot[a->look];
        if (s->life->used && s->request == request) return s;
    }
    return NULL;
}

void sl_slot_release(sl_attn *a, sl_slot *s) {
    a->n_waiting -= s->life->waits;
    sl_guide_let_go(s->guide);
    sl_free(s->may);
    sl_draft_close(&s->draft);
    sl_free(s->tokens);
    sl_free(s->pages);
    sl_free(s->bias);
    sl_free(s->bad);
    sl_free(s->only);
    sl_free(s->scored);
    sl_slots_release(&a->slots, s->life);
    *s = (sl_slot){.life = s->life};
}

void sl_slot_break(sl_slot *s, uint32_t block, uint32_t position) {
    if (s->life->ends) return; /* cancelled by its client, or for an earlier row */
    s->life->ends = s->broken = true;
    s->broken_block = block;
    s->broken_position = position;
}

void sl_slot_end(sl_attn *a, sl_slot *s) {
    if (s->broken)
        sl_attn_emit(a, s, s->broken_position, s->broken_block, SL_FINISH_NOT_FINITE, NULL, 0);
    else if (s->shapeless)
        sl_attn_emit(a, s, s->life->tokens, s->fate, SL_FINISH_SHAPE, NULL, 0);
    else
        sl_attn_emit(a, s, s->life->tokens, UINT32_MAX, SL_FINISH_STOP, NULL, 0);
    sl_slot_release(a, s);
}

void sl_slot_finish(sl_attn *a, sl_slot *s) {
    sl_attn_emit(a, s, s->life->tokens, UINT32_MAX, SL_FINISH_STOP, NULL, 0);
    sl_slot_release(a, s);
}

void sl_slot_spare_stops(sl_slot *s, uint32_t at) {
    s->sampling.never = s->stop;
    s->sampling.n_never = at - s->n_prompt < s->min_tokens ? s->n_stop : 0;
}

static bool ends(const sl_slot *s, uint32_t token) {
    for (uint32_t i = 0; i < s->n_stop; i++) {
        if (s->stop[i] == token) return true;
    }
    return false;
}

void sl_slot_append(sl_attn *a, sl_slot *s, uint32_t token, const sl_logprob *logprobs,
                    uint32_t n) {
    uint32_t position = s->life->tokens;
    sl_draft_judge_aside(&s->draft, s->draft.aside == token);
    if (s->life->guessed) {
        const bool right = s->tokens[position] == token && position < s->unfit;
        sl_draft_judge(&s->draft, right);
        sl_life_judge(s->life, right);
    }
    bool last = sl_life_append(s->life);
    s->tokens[position] = token;
    a->w->n.tokens++;
    sl_finish finish = SL_FINISH_NONE;
    if (ends(s, token))
        finish = SL_FINISH_STOP;
    else if (last)
        finish = SL_FINISH_LENGTH;
    sl_attn_emit(a, s, position, token, finish, logprobs, n);
    if (finish != SL_FINISH_NONE) sl_slot_release(a, s);
}

/* Whether guesses may be looked up for it. */
static bool may_look_up(sl_attn *a, sl_slot *s) {
    sl_err err;
    if (!a->guesses || !sl_speculates_by_lookup(a->w->plan.speculate) || s->want_logits)
        return false;
    return s->draft.behind ||
           sl_draft_open(&s->draft, s->life->given + s->life->max_new, &err) == SL_OK;
}

bool sl_slot_looks_up(sl_attn *a, sl_slot *s) {
    return may_look_up(a, s) && sl_draft_looks_up(&s->draft, s->tokens, s->life->tokens);
}

void sl_slot_guess(sl_attn *a, sl_slot *s) {
    sl_life *l = s->life;
    if (!may_look_up(a, s)) return;
    if (a->mtp && l->guessed) { /* the block has made them (mtp.c) */
        sl_draft_look_aside(&s->draft, s->tokens, l->tokens);
        return;
    }
    l->guessed = sl_draft_guess(&s->draft, s->tokens, l->tokens, sl_life_most_guesses(l));
    l->chance = sl_draft_chance(&s->draft);
    l->made = false;
    s->unfit = UINT32_MAX;
}

/* ---- steps that cannot end ---- */

void sl_attn_give_up(sl_attn *a) {
    if (a->given_up) return;
    a->given_up = true;
    sl_device_drain(a->w->device); /* nothing here is in use any more */
    if (sl_worker_has_no_device(a->w)) return;
    a->ops->give_up(a->side);
    sl_hedge_reset(&a->hedge);
    for (uint32_t i = 0; i < a->n_lanes * a->max_slots; i++)
        if (a->slot[i].life->used && a->slot[i].life->ends) sl_slot_end(a, &a->slot[i]);
    sl_attn_flush(a);
}

/* Guesses of simulated requests, which have no text: after a share of steps there are some, or the
 * block makes them (sim_mtp.c), and the next one is right in a share of cases, as the load says.
 * How many are run, what is learnt from them, and what they cost is src/sched (draft.h, batcher.h,
 * step.h, parts.h), as in the engine (src/engine/attn/head.c, slot.c). */
#include "sim/deployment_int.h"

#define LOOKED_UP 0u /* kind of all matches */

static bool happens(sim *s, double chance) {
    return sim_uniform(&s->guess_rng) <= chance;
}

/* The first guess of the request, of the token behind those that it knows. */
static bool is_right(sim *s, uint32_t request, const sl_life *life) {
    const sl_workload *load = s->s->load;
    if (!life->made) return happens(s, load->guess_right);
    if (s->s->guess) return s->s->guess(s->s->route_ctx, s->req[request].number, life->tokens);
    return happens(s, load->guess_block > 0 ? load->guess_block : load->guess_right);
}

void sim_guess_begin_step(sim_lane *l) {
    for (size_t i = 0; l->draft && i < l->step.n_parts; i++)
        l->first_pos[i] = l->life[l->step.part[i].slot].done;
}

void sim_guess_begin(sim_attn *a, const sl_life *life) {
    const sim_lane *l = &a->lane[sl_slots_lane(&a->slots, life)];
    if (l->draft) sl_draft_begin(&l->draft[sl_slots_index(&a->slots, life)], &a->prior);
}

bool sim_guess_looks_up(sim *s, sim_lane *l, const sl_step_part *part) {
    const double *chance = l->draft[part->slot].chance;
    if (!part->sample || !sl_speculates_by_lookup(s->p->speculate)) return false;
    l->found[part->slot] = happens(s, s->s->load->guess_found);
    return l->found[part->slot] && chance[LOOKED_UP] > chance[SL_DRAFT_MTP];
}

void sim_guess(sim *s, sim_lane *l, const sl_step_part *part) {
    if (!l->draft || !part->sample || !sl_speculates_by_lookup(s->p->speculate)) return;
    sl_life *life = &l->life[part->slot];
    sl_draft *d = &l->draft[part->slot];
    const bool block = sl_speculates_by_mtp(s->p->speculate);
    const bool found = block ? l->found[part->slot] : happens(s, s->s->load->guess_found);
    if (block && life->guessed) { /* the block has made them */
        if (found) d->aside_kind = LOOKED_UP;
        return;
    }
    life->guessed = found ? SL_MIN(sl_life_most_guesses(life), SL_DRAFT_MOST) : 0;
    life->made = false;
    d->kind = found ? LOOKED_UP : d->kind;
    life->chance = sl_draft_chance(d);
}

/* Where row `row` of the step is in its request. */
static uint32_t position(const sim_lane *l, uint32_t part, uint32_t row) {
    for (uint32_t i = 0; i < part; i++) row -= l->step.part[i].rows;
    return l->first_pos[part] + row;
}

bool sim_guess_draws(sim *s, sim_lane *l, uint32_t part, uint32_t row) {
    const uint32_t slot = l->step.part[part].slot;
    sl_life *life = &l->life[slot];
    bool right;
    if (!l->draft) return true;
    const bool draws = sl_life_draws(life, position(l, part, row), &right);
    s->result.guesses_right += right;
    if (draws && l->draft[slot].aside_kind != SL_DRAFT_MTP)
        sl_draft_judge_aside(&l->draft[slot], happens(s, s->s->load->guess_right));
    if (!draws || !life->guessed) return draws;
    const bool next = is_right(s, l->request[slot], life);
    sl_draft_judge(&l->draft[slot], next);
    sl_life_judge(life, next);
    return true;
}

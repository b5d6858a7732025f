/* Guesses of simulated requests, which have no text: after a share of steps there are some, or the
 * block makes them (sim_mtp.c), and the next one is right in a share of cases, as the load says.
 * How many are run, what is learnt from them, and what they cost is src/sched (draft.h, batcher.h,
 * step.h, parts.h), as in the engine (src/engine/attn/head.c, slot.c). */
#include "sim/deployment_int.h"

static bool happens(sim *s, double chance) {
    return sim_uniform(&s->guess_rng) <= chance;
}

/* The first guess of the request, of the token behind those that it knows. */
static bool is_right(sim *s, uint32_t request, const sl_life *life) {
    if (s->s->guess) return s->s->guess(s->s->route_ctx, s->req[request].number, life->tokens);
    return happens(s, s->s->load->guess_right);
}

void sim_guess_begin_step(sim_lane *l) {
    for (size_t i = 0; l->draft && i < l->step.n_parts; i++)
        l->first_pos[i] = l->life[l->step.part[i].slot].done;
}

void sim_guess_begin(sim_lane *l, uint32_t slot) {
    if (l->draft) sl_draft_begin(&l->draft[slot]);
}

void sim_guess(sim *s, sim_lane *l, const sl_step_part *part) {
    sl_life *life = &l->life[part->slot];
    if (!l->draft || !part->sample || sl_speculates_by_mtp(s->p->speculate)) return;
    const bool found = happens(s, s->s->load->guess_found);
    life->guessed = found ? SL_MIN(sl_life_most_guesses(life), SL_DRAFT_MOST) : 0;
    life->chance = sl_draft_chance(&l->draft[part->slot]);
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
    if (!draws || !life->guessed) return draws;
    const bool next = is_right(s, l->request[slot], life);
    sl_draft_judge(&l->draft[slot], next);
    sl_life_judge(life, next);
    return true;
}

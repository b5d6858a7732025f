/* Guesses of the block that predicts a further token, with counts where the engine
 * (src/engine/attn/mtp.c) has rows. Whose guesses it makes, how many, and in how many calls is
 * sched/guessers.h's; whether a guess is right is the load's word (sim_guess.c); what a call costs
 * is spec/mtp_cost.h's. */
#include "sched/guessers.h"
#include "sim/deployment_int.h"
#include "spec/mtp_cost.h"

struct sim_mtp {
    bool runs;
    uint32_t rows; /* of the call */
    double keys;   /* that they attend to */
    uint64_t began_us;
    sl_guessers who;
};

/* ---- which rows, whose guesses ---- */

static void add_rows(struct sim_mtp *t, uint32_t pos, uint32_t n) {
    t->rows += n;
    t->keys += (double)n * pos + n * (n + 1.0) / 2;
}

/* Rows of part i that are sure and whose next token is known. */
static void collect(sim *s, sim_worker *w, sim_lane *l, uint32_t i, uint32_t decoding) {
    struct sim_mtp *t = w->attn->mtp;
    const sl_step_part *part = &l->step.part[i];
    sl_life *life = &l->life[part->slot];
    const uint32_t first = l->first_pos[i];
    if (part->sample) life->guessed = 0;
    const bool looks_up = sim_guess_looks_up(s, l, part);
    const uint32_t ahead =
        sl_draft_ahead(&l->draft[part->slot], l->price, decoding, SL_DRAFT_AHEAD);
    if (ahead == 0) return;
    const uint32_t rows = sl_guessers_rows(life, first, part->rows), next = first + rows;
    add_rows(t, first, rows);
    const uint32_t want = sl_guessers_want(&t->who, part, life, next, ahead);
    if (want && !looks_up) sl_guessers_add(&t->who, i, next - 1, want);
}

bool sim_mtp_open(sim *s, sim_worker *w, sim_lane *l) {
    struct sim_mtp *t = w->attn->mtp;
    if (!t) return false;
    const uint32_t decoding = sl_slots_decoding(&w->attn->slots, (uint32_t)(l - w->attn->lane));
    t->rows = t->who.n = t->who.made = 0;
    t->keys = 0;
    for (uint32_t i = 0; i < l->step.n_parts; i++)
        if (sl_step_is_open(&l->step, i)) collect(s, w, l, i, decoding);
    t->runs = t->rows > 0;
    t->began_us = (uint64_t)sim_now(s);
    return t->runs;
}

bool sim_mtp_runs(const sim_attn *a) {
    return a->mtp && a->mtp->runs;
}

void sim_mtp_drop(sim_attn *a) {
    if (a->mtp) a->mtp->runs = false;
}

/* ---- calls ---- */

void sim_mtp_start(sim *s, sim_worker *w) {
    const struct sim_mtp *t = w->attn->mtp;
    const sl_costs *c = s->s->attention;
    double us = sl_mtp_cost_us(c->stage, c->grouped, s->m, t->rows, t->keys);
    us += sim_carried_us(s, SL_ROLE_ATTENTION, t->rows, 0);
    if (s->pipe > 1) us += sim_pipeline_last_us(s, w, us, t->who.n);
    if (t->who.n) us += sl_stage_cost_us(&c->stage[SL_COST_HEAD], t->who.n, 0);
    sim_kernel_add(s, w, SL_TRACE_HEAD, &(sl_stage_cost){.fixed_us = us}, t->rows, 0);
    s->result.block_calls++;
    s->result.block_rows += t->rows;
}

/* Each guesser has its guess; who wants more has the rows of the next call. */
static void take(sim *s, sim_worker *w, sim_lane *l) {
    struct sim_mtp *t = w->attn->mtp;
    const uint32_t n = t->who.n;
    t->rows = t->who.n = 0;
    t->keys = 0;
    for (uint32_t i = 0; i < n; i++) {
        const sl_guesser g = t->who.of[i];
        const uint32_t slot = l->step.part[g.part].slot;
        if (!sl_step_is_open(&l->step, g.part)) continue;
        s->result.block_guesses++;
        if (sl_guessers_go_on(&t->who, &g, &l->life[slot], &l->draft[slot]))
            add_rows(t, g.pos + 1, 1);
    }
}

bool sim_mtp_end(sim *s, sim_worker *w, sim_lane *l) {
    struct sim_mtp *t = w->attn->mtp;
    take(s, w, l);
    t->runs = t->rows > 0;
    if (t->runs) return false;
    sl_guessers_close(&t->who, &l->step, l->price, (uint64_t)sim_now(s) - t->began_us);
    return true;
}

/* ---- life ---- */

sl_status sim_mtp_create(sim *s, sim_worker *w) {
    if (!sl_speculates_by_mtp(s->p->speculate)) return SL_OK;
    w->attn->mtp = sl_alloc(1, sizeof *w->attn->mtp);
    return w->attn->mtp ? SL_OK : sim_oom(s, "guesses");
}

void sim_mtp_free(sim_attn *a) {
    sl_free(a->mtp);
}

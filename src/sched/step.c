/* Forming a lane's step, and its end. */
#include "sched/step.h"

#include "base/mem.h"
#include "sched/intake.h"

#define MIN_CHUNK 16u /* rows of a step that decoding requests leave to prompts */

sl_status sl_step_create(sl_slots *slots, const sl_cut *cut, uint32_t lane, uint32_t max_rows,
                         double stretch, sl_step *out, sl_err *err) {
    *out = (sl_step){.slots = slots,
                     .cut = cut,
                     .lane = lane,
                     .max_rows = max_rows,
                     .pacer = {.stretch = stretch}};
    out->need = sl_alloc(slots->per_lane, sizeof *out->need);
    out->part = sl_alloc(slots->per_lane + 1u, sizeof *out->part);
    if (out->need && out->part) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "steps of %u slots", slots->per_lane);
}

void sl_step_free(sl_step *s) {
    sl_free(s->need);
    sl_free(s->part);
    *s = (sl_step){0};
}

/* ---- who gets rows ---- */

/* One row, of the guess that is likeliest to be right. */
static void try_guess(sl_step *s) {
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    sl_slot_need *best = NULL;
    double chance = SL_DRAFT_TRIED;
    for (uint32_t i = 0; i < s->slots->per_lane; i++) {
        sl_slot_need *n = &s->need[i];
        if (n->state != SL_SLOT_DECODE || !of[i].guessed || n->max_rows <= n->left) continue;
        if (of[i].chance < chance) continue;
        best = n;
        chance = of[i].chance;
    }
    if (best) best->guesses = 1;
}

/* Which guesses are worth a row depends on how many rows there are without them. */
static void fill_guesses(sl_step *s, uint32_t decoding) {
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    const double price[] = {sl_draft_price_of(&s->price, decoding, false),
                            sl_draft_price_of(&s->price, decoding, true)};
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->slots->per_lane; i++)
        n += s->need[i].guesses = sl_draft_worth(of[i].chance, price[of[i].made], of[i].guessed);
    if (n == 0 && sl_draft_price_tries(&s->price)) try_guess(s);
}

static void fill_needs(sl_step *s) {
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    for (uint32_t i = 0; i < s->slots->per_lane; i++) {
        const sl_life *l = &of[i];
        const uint32_t left = l->tokens - l->done;
        s->need[i] = (sl_slot_need){.state = SL_SLOT_EMPTY};
        if (!l->used) continue;
        s->need[i] = (sl_slot_need){.state = sl_life_prefills(l) ? SL_SLOT_PREFILL : SL_SLOT_DECODE,
                                    .left = left,
                                    .max_rows = sl_life_room(l),
                                    .arrival = s->formed % 2 ? l->arrival : left};
    }
}

/* The prompt whose turn it is, as the batcher picks it; NULL: none can run. */
static const sl_life *next_prompt(const sl_step *s) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < s->slots->per_lane; i++) {
        const sl_slot_need *n = &s->need[i];
        if (n->state != SL_SLOT_PREFILL || n->max_rows == 0) continue;
        if (best == UINT32_MAX || n->arrival < s->need[best].arrival) best = i;
    }
    return best == UINT32_MAX ? NULL : &sl_slots_of(s->slots, s->lane)[best];
}

static uint32_t count_decoding(const sl_step *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->slots->per_lane; i++)
        n += s->need[i].state == SL_SLOT_DECODE && s->need[i].max_rows > 0;
    return n;
}

/* Leaves prompts no more than their first `rows` rows in this step. */
static void limit_prompts(sl_step *s, uint32_t rows) {
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    for (uint32_t i = 0; i < s->slots->per_lane; i++) {
        sl_slot_need *n = &s->need[i];
        if (n->state == SL_SLOT_PREFILL)
            n->max_rows = SL_MIN(n->max_rows, rows - SL_MIN(of[i].done, rows));
    }
}

/* How many rows of prompts may ride along. */
static uint32_t pace(sl_step *s) {
    const sl_life *prompt = next_prompt(s);
    uint32_t decoding = count_decoding(s);
    if (decoding) fill_guesses(s, decoding);
    s->burst = prompt && decoding && prompt->done < SL_PREFILL_BURST;
    if (!prompt || !decoding) return UINT32_MAX;
    if (s->burst) {
        limit_prompts(s, SL_PREFILL_BURST);
        return SL_PREFILL_BURST;
    }
    uint32_t chunk = sl_pacer_chunk(&s->pacer, decoding);
    if (chunk == 0) limit_prompts(s, 0);
    return chunk;
}

/* ---- the step ---- */

static void clear(sl_step *s) {
    s->n_parts = 0;
    s->apart_us = 0;
    s->rows = s->decode_rows = s->samples = s->known = s->guesses = 0;
}

static void count_part(sl_step *s, const sl_step_part *part) {
    sl_life *l = &sl_slots_of(s->slots, s->lane)[part->slot];
    l->in_step = true;
    l->samples = part->sample;
    l->astray = false;
    s->rows += part->rows;
    s->decode_rows += !part->prefill;
    s->known += part->prefill ? 0 : part->rows - part->guesses - 1;
    s->guesses += part->guesses;
    s->samples += part->sample;
}

void sl_step_open(sl_step *s) {
    clear(s);
    s->burst = s->teaches = false;
}

void sl_step_add(sl_step *s, const sl_step_part *part) {
    s->part[s->n_parts++] = *part;
    count_part(s, part);
}

/* Mean over its rows of the positions that they attend to. */
static double mean_keys(const sl_step *s) {
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    double keys = 0;
    for (size_t i = 0; i < s->n_parts; i++) {
        double n = s->part[i].rows;
        keys += n * of[s->part[i].slot].done + n * (n + 1) / 2;
    }
    return s->rows ? keys / s->rows : 0;
}

static void tell(const sl_step *s) {
    const sl_watch *watch = s->slots->watch;
    const sl_life *of = sl_slots_of(s->slots, s->lane);
    sl_watch_tell(watch, STEP, s->began_us, s->lane, s->rows, s->decode_rows, s->n_parts, s->n_cut);
    for (size_t i = 0; watch && i < s->n_parts; i++) {
        const sl_step_part *p = &s->part[i];
        sl_watch_tell(watch, STEP_PART, p->slot, of[p->slot].done, p->rows, p->sample);
    }
}

static uint32_t max_rows(const sl_step *s) {
    return s->resolve ? sl_resolve_rows(s->resolve, s->max_rows) : s->max_rows;
}

static void choose_cut(sl_step *s) {
    s->n_cut = sl_cut_choose(s->cut, s->rows, mean_keys(s));
    s->chunking = s->cut->chunking;
    if (s->resolve)
        sl_resolve_form(s->resolve, s->lane, s->rows, s->round, &s->n_cut, &s->chunking);
}

void sl_step_form(sl_step *s, uint64_t now_us) {
    sl_err err;
    const uint32_t most = max_rows(s);
    sl_lane_step step = {.parts = s->part, .cap = s->slots->per_lane + 1u};
    clear(s);
    fill_needs(s);
    const sl_batch_limits limits = {
        .max_rows = most, .max_chunk = pace(s), .min_chunk = SL_MIN(most, MIN_CHUNK)};
    sl_status st = sl_batcher_step(s->need, s->slots->per_lane, &limits, s->turn, &step, &err);
    SL_ASSERT(st == SL_OK);
    s->turn = step.turn;
    s->formed++;
    s->n_parts = step.n_parts;
    s->began_us = now_us;
    for (size_t i = 0; i < s->n_parts; i++) count_part(s, &s->part[i]);
    s->teaches = !s->burst && s->known + s->guesses == 0;
    choose_cut(s);
    tell(s);
}

void sl_step_advance(sl_step *s) {
    sl_life *of = sl_slots_of(s->slots, s->lane);
    for (size_t i = 0; i < s->n_parts; i++)
        sl_life_advance(&of[s->part[i].slot], s->part[i].rows - s->part[i].guesses);
}

static void leave(sl_step *s) {
    sl_life *of = sl_slots_of(s->slots, s->lane);
    for (size_t i = 0; i < s->n_parts; i++) of[s->part[i].slot].in_step = false;
    clear(s);
}

void sl_step_end(sl_step *s, uint64_t now_us) {
    const uint64_t us = now_us - s->began_us - s->apart_us;
    const uint32_t prompts = s->rows - s->decode_rows - s->known - s->guesses;
    if (s->teaches) sl_pacer_learn(&s->pacer, s->decode_rows, prompts, us);
    if (s->decode_rows && s->known + prompts == 0) sl_draft_price_learn(&s->price, s->guesses, us);
    leave(s);
}

void sl_step_drop(sl_step *s) {
    leave(s);
}

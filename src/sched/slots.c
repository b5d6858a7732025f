/* Slots of an attention worker: who takes which, and who has work. */
#include "sched/slots.h"

#include "base/mem.h"

#define GENERATIONS 0xFFFFFFFu /* as many as a row's tag tells apart, and 0 */

sl_status sl_slots_create(uint32_t n_lanes, uint32_t per_lane, sl_slots *out, sl_err *err) {
    *out = (sl_slots){.n_lanes = n_lanes, .per_lane = per_lane, .open = n_lanes};
    out->arrays = sl_alloc_arrays(SL_TABLE(out->life, n_lanes, per_lane),
                                  SL_ARRAY(out->n_used, n_lanes), SL_ARRAY(out->look, n_lanes));
    if (out->arrays) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "%u slots in each of %u lanes", per_lane, n_lanes);
}

void sl_slots_free(sl_slots *t) {
    sl_free(t->arrays);
    *t = (sl_slots){0};
}

/* ---- who comes and goes ---- */

static uint32_t emptiest_lane(const sl_slots *t) {
    uint32_t best = 0;
    for (uint32_t l = 1; l < t->open; l++)
        if (t->n_used[l] < t->n_used[best]) best = l;
    return best;
}

static uint32_t next_generation(sl_slots *t) {
    t->last_generation = t->last_generation == GENERATIONS ? 1 : t->last_generation + 1;
    return t->last_generation;
}

/* A free slot of the lane, which has one. */
static sl_life *find_free(sl_slots *t, uint32_t lane) {
    sl_life *of = sl_slots_of(t, lane);
    uint32_t *look = &t->look[lane];
    do {
        if (++*look >= t->per_lane) *look = 0;
    } while (of[*look].used);
    t->n_used[lane]++;
    return &of[*look];
}

sl_life *sl_slots_take(sl_slots *t, uint32_t given, uint32_t max_new, uint32_t pages) {
    const uint32_t lane = emptiest_lane(t);
    if (t->n_used[lane] == t->per_lane) return NULL;
    sl_life *l = find_free(t, lane);
    sl_watch_tell(t->watch, SLOT, lane, sl_slots_index(t, l), given, pages);
    *l = (sl_life){.used = true,
                   .generation = next_generation(t),
                   .arrival = ++t->arrivals,
                   .given = given,
                   .tokens = given,
                   .max_new = max_new,
                   .pages = pages};
    return l;
}

sl_life *sl_slots_move(sl_slots *t, uint32_t lane, sl_life **from) {
    const uint32_t to = emptiest_lane(t);
    const bool stays = lane < t->open && t->n_used[lane] < t->n_used[to] + 2;
    sl_life *of = sl_slots_of(t, lane);
    if (lane == to || stays || t->n_used[to] == t->per_lane) return NULL;
    for (uint32_t i = 0; i < t->per_lane; i++) {
        if (!of[i].used || of[i].in_step || of[i].waits) continue;
        sl_life *l = find_free(t, to);
        sl_watch_tell(t->watch, MOVE, lane, i, to, sl_slots_index(t, l));
        *l = of[i];
        *from = &of[i];
        of[i] = (sl_life){0};
        t->n_used[lane]--;
        return l;
    }
    return NULL;
}

void sl_slots_release(sl_slots *t, sl_life *life) {
    t->n_used[sl_slots_lane(t, life)] -= life->used;
    *life = (sl_life){0};
}

/* ---- who has work ---- */

static bool is_heard(const sl_life *l, uint32_t generated) {
    return generated < l->acked + SL_MAX_AHEAD;
}

/* With so many generated it gets no more rows. */
static bool is_parked(const sl_life *l, uint32_t generated) {
    return l->parks && generated > 0;
}

bool sl_life_leads(const sl_life *l) {
    return is_heard(l, sl_life_generated(l) + 1);
}

uint32_t sl_life_most_guesses(const sl_life *l) {
    const uint64_t generated = sl_life_generated(l);
    const uint64_t lead = l->acked + SL_MAX_AHEAD - SL_MIN(generated + 1, l->acked + SL_MAX_AHEAD);
    const uint64_t left = l->max_new - SL_MIN(generated + 1, l->max_new);
    return (uint32_t)SL_MIN(lead, left);
}

uint32_t sl_life_most_made(const sl_life *l) {
    const uint64_t room = (uint64_t)l->pages * SL_KV_PAGE_TOKENS + 1 - l->done;
    return (uint32_t)SL_MIN(room, sl_life_most_guesses(l));
}

uint32_t sl_life_room(const sl_life *l) {
    uint64_t paged = (uint64_t)l->pages * SL_KV_PAGE_TOKENS;
    if (!l->used || l->ends || l->waits || l->done >= paged || !is_heard(l, sl_life_generated(l)) ||
        is_parked(l, sl_life_generated(l)))
        return 0;
    return (uint32_t)SL_MIN(paged - l->done, UINT32_MAX);
}

uint32_t sl_life_max_pages(const sl_life *l) {
    return sl_kv_pages_for(sl_kv_positions(l->given, l->max_new));
}

bool sl_slots_have_work(const sl_slots *t, uint32_t lane) {
    const sl_life *of = sl_slots_of(t, lane);
    for (uint32_t i = 0; i < t->per_lane; i++)
        if (sl_life_has_work(&of[i])) return true;
    return false;
}

bool sl_slots_will_stay(const sl_slots *t, uint32_t lane) {
    const sl_life *of = sl_slots_of(t, lane);
    for (uint32_t i = 0; i < t->per_lane; i++) {
        const sl_life *l = &of[i];
        if (!l->used || l->ends || l->waits) continue;
        uint32_t generated = sl_life_generated(l) + (l->in_step && l->samples);
        if (generated < l->max_new && is_heard(l, generated) && !is_parked(l, generated))
            return true;
    }
    return false;
}

uint32_t sl_slots_decoding(const sl_slots *t, uint32_t lane) {
    const sl_life *of = sl_slots_of(t, lane);
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->per_lane; i++)
        n += of[i].used && !of[i].ends && !sl_life_prefills(&of[i]);
    return n;
}

void sl_slots_prompts(const sl_slots *t, uint64_t *rows, uint64_t *done) {
    *rows = *done = 0;
    for (uint32_t i = 0; i < t->n_lanes * t->per_lane; i++) {
        const sl_life *l = &t->life[i];
        if (!l->used || l->ends || !sl_life_prefills(l)) continue;
        *rows += l->given;
        *done += l->done;
    }
}

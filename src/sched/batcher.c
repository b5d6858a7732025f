/* Rows of a step: decodes first, then prompts, oldest first. */
#include "sched/batcher.h"

#include "sched/draft.h"

#include <inttypes.h>

_Static_assert(1 + SL_BATCH_MORE + SL_DRAFT_MOST <= SL_GUESSED_ROWS, "so many rows can be dropped");

static bool prefills(const sl_slot_need *s) {
    return s->state == SL_SLOT_PREFILL && s->max_rows > 0;
}

/* Of two that came together the lower slot is the older. */
static bool is_older(const sl_slot_need *slots, size_t a, size_t b) {
    return slots[a].arrival != slots[b].arrival ? slots[a].arrival < slots[b].arrival : a < b;
}

/* The oldest slot that may prefill now and is younger than `last` (n_slots: than nobody), or
 * n_slots. */
static size_t next_prefill(const sl_slot_need *slots, size_t n_slots, size_t last) {
    size_t best = n_slots;
    for (size_t i = 0; i < n_slots; i++) {
        if (!prefills(&slots[i]) || (last < n_slots && !is_older(slots, last, i))) continue;
        if (best == n_slots || is_older(slots, i, best)) best = i;
    }
    return best;
}

static bool decodes(const sl_slot_need *s) {
    return s->state == SL_SLOT_DECODE && s->max_rows > 0;
}

static sl_status check(const sl_slot_need *slots, size_t n_slots, const sl_batch_limits *limits,
                       size_t cap, sl_err *err) {
    if (limits->max_rows == 0) return sl_fail(err, SL_ERR_ARG, "lane step: max_rows is 0");
    if (limits->min_chunk > limits->max_rows)
        return sl_fail(err, SL_ERR_ARG,
                       "lane step: min_chunk %" PRIu32 " is above max_rows %" PRIu32,
                       limits->min_chunk, limits->max_rows);
    if (n_slots > UINT32_MAX)
        return sl_fail(err, SL_ERR_ARG, "lane step: %zu slots, at most %" PRIu32, n_slots,
                       UINT32_MAX);
    if (cap < SL_MIN(n_slots, (size_t)limits->max_rows))
        return sl_fail(err, SL_ERR_ARG,
                       "lane step: room for %zu parts, %zu slots, %" PRIu32 " rows", cap, n_slots,
                       limits->max_rows);
    for (size_t i = 0; i < n_slots; i++)
        if (slots[i].state != SL_SLOT_EMPTY && slots[i].left == 0)
            return sl_fail(err, SL_ERR_ARG, "lane step: slot %zu has no token left to run", i);
    return SL_OK;
}

/* Rows the prompts may have if nothing else ran. */
static uint32_t chunk_want(const sl_slot_need *slots, size_t n_slots,
                           const sl_batch_limits *limits) {
    uint32_t most =
        limits->max_chunk > 0 ? SL_MIN(limits->max_chunk, limits->max_rows) : limits->max_rows;
    uint32_t want = 0;
    for (size_t i = 0; i < n_slots && want < most; i++) {
        if (!prefills(&slots[i])) continue;
        want += SL_MIN(SL_MIN(slots[i].left, slots[i].max_rows), most - want);
    }
    return want;
}

/* Decoding slots in table order: those among the first `budget` met on the way round from `turn`.
 */
static void take_decodes(const sl_slot_need *slots, size_t n_slots, uint32_t budget, size_t turn,
                         sl_lane_step *out) {
    uint32_t left = budget;
    size_t met = 0; /* slots passed on the way round */
    while (left > 0 && met < n_slots) {
        left -= decodes(&slots[(turn + met) % n_slots]);
        met++;
    }
    for (size_t i = 0; i < n_slots; i++) {
        if (!decodes(&slots[i]) || (i + n_slots - turn) % n_slots >= met) continue;
        out->parts[out->n_parts++] =
            (sl_step_part){.slot = (uint32_t)i, .rows = 1, .sample = slots[i].left == 1};
        out->rows++;
    }
    if (left == 0 && n_slots > 0) out->turn = (uint32_t)((turn + met) % n_slots);
}

static void grow(sl_step_part *part, uint32_t n, uint32_t *more, sl_lane_step *out) {
    part->rows += n;
    out->rows += n;
    *more -= n;
}

/* Parts of decoding slots, which are all that there are yet, grow: by what is known, and then by
 * guesses. */
static void take_more(const sl_slot_need *slots, uint32_t budget, bool guesses, sl_lane_step *out) {
    uint32_t more = SL_MIN(budget, SL_MAX(SL_BATCH_MORE, out->rows));
    for (size_t i = 0; i < out->n_parts && more > 0; i++) {
        sl_step_part *part = &out->parts[i];
        const sl_slot_need *s = &slots[part->slot];
        grow(part, SL_MIN(SL_MIN(s->left, s->max_rows) - 1, more), &more, out);
        part->sample = part->rows == s->left;
    }
    for (size_t i = 0; i < out->n_parts && guesses && more > 0; i++) {
        sl_step_part *part = &out->parts[i];
        const sl_slot_need *s = &slots[part->slot];
        if (!part->sample || part->rows > 1 + SL_BATCH_MORE) continue;
        part->guesses = SL_MIN(SL_MIN(s->guesses, s->max_rows - part->rows), more);
        grow(part, part->guesses, &more, out);
    }
}

static void take_prompts(const sl_slot_need *slots, size_t n_slots, uint32_t budget,
                         sl_lane_step *out) {
    size_t p = n_slots;
    while (budget > 0 && (p = next_prefill(slots, n_slots, p)) < n_slots) {
        uint32_t rows = SL_MIN(SL_MIN(slots[p].left, slots[p].max_rows), budget);
        out->parts[out->n_parts++] = (sl_step_part){
            .slot = (uint32_t)p, .rows = rows, .prefill = true, .sample = rows == slots[p].left};
        out->rows += rows;
        budget -= rows;
    }
}

sl_status sl_batcher_step(const sl_slot_need *slots, size_t n_slots, const sl_batch_limits *limits,
                          uint32_t turn, sl_lane_step *out, sl_err *err) {
    sl_status st = check(slots, n_slots, limits, out->cap, err);
    if (st != SL_OK) return st;
    size_t start = n_slots > 0 ? turn % n_slots : 0;
    uint32_t want = chunk_want(slots, n_slots, limits);
    out->n_parts = 0;
    out->rows = 0;
    out->turn = (uint32_t)start;
    const uint32_t budget = limits->max_rows - SL_MIN(want, limits->min_chunk);
    take_decodes(slots, n_slots, budget, start, out);
    take_more(slots, budget - out->rows, want == 0, out);
    take_prompts(slots, n_slots, SL_MIN(want, limits->max_rows - out->rows), out);
    return SL_OK;
}

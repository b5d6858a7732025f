#include "sched/batcher.h"

#include <inttypes.h>

/* The oldest slot that may prefill now, or n_slots. */
static size_t oldest_prefill(const sl_slot_need *slots, size_t n_slots) {
    size_t best = n_slots;
    for (size_t i = 0; i < n_slots; i++) {
        if (slots[i].state != SL_SLOT_PREFILL || slots[i].max_rows == 0) continue;
        if (best == n_slots || slots[i].arrival < slots[best].arrival) best = i;
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
        if (slots[i].state == SL_SLOT_PREFILL && slots[i].prompt_left == 0)
            return sl_fail(err, SL_ERR_ARG, "lane step: slot %zu prefills a prompt that is done",
                           i);
    return SL_OK;
}

/* Rows the prompt chunk may have if nothing else ran. */
static uint32_t chunk_want(const sl_slot_need *s, const sl_batch_limits *limits) {
    uint32_t want = SL_MIN(s->prompt_left, s->max_rows);
    if (limits->max_chunk > 0) want = SL_MIN(want, limits->max_chunk);
    return SL_MIN(want, limits->max_rows);
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
        out->parts[out->n_parts++] = (sl_step_part){.slot = (uint32_t)i, .rows = 1, .sample = true};
        out->rows++;
    }
    if (left == 0 && n_slots > 0) out->turn = (uint32_t)((turn + met) % n_slots);
}

sl_status sl_batcher_step(const sl_slot_need *slots, size_t n_slots, const sl_batch_limits *limits,
                          uint32_t turn, sl_lane_step *out, sl_err *err) {
    sl_status st = check(slots, n_slots, limits, out->cap, err);
    if (st != SL_OK) return st;
    size_t start = n_slots > 0 ? turn % n_slots : 0;
    size_t p = oldest_prefill(slots, n_slots);
    uint32_t want = p < n_slots ? chunk_want(&slots[p], limits) : 0;
    out->n_parts = 0;
    out->rows = 0;
    out->turn = (uint32_t)start;
    take_decodes(slots, n_slots, limits->max_rows - SL_MIN(want, limits->min_chunk), start, out);
    uint32_t rows = SL_MIN(want, limits->max_rows - out->rows);
    if (rows == 0) return SL_OK;
    out->parts[out->n_parts++] = (sl_step_part){
        .slot = (uint32_t)p, .rows = rows, .prefill = true, .sample = rows == slots[p].prompt_left};
    out->rows += rows;
    return SL_OK;
}

/* What a lane's next step contains: a row of every decoding request, more of those that know what
 * comes after it, and chunks of prompts. A pure function of its arguments. Thread: any.
 *
 * Rules, in this order:
 *   1. rows of the step <= max_rows;
 *   2. if prompts wait, min_chunk rows (or what they still need, if less) are kept for them, so
 *      that decoding requests cannot starve them;
 *   3. decoding slots get one row each, taken round the table from `turn` on, so that no slot
 * starves when there are more of them than rows;
 *   4. who knows more tokens gets rows of these, too, the first of the table first, but all
 *      together no more than SL_BATCH_MORE, or than decode: others wait for this step;
 *   5. what is left of these may be guesses of what follows (sched/draft.h), if no prompt waits,
 * and of who has no more than SL_BATCH_MORE known tokens besides;
 *   6. what is left, at most max_chunk, goes to the prefilling slots that may take rows, the oldest
 *      first: many short prompts share a step. */
#ifndef SL_SCHED_BATCHER_H
#define SL_SCHED_BATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_BATCH_MORE 8u

typedef enum sl_slot_state {
    SL_SLOT_EMPTY,
    SL_SLOT_PREFILL, /* of what came with it `left` tokens are not in the KV cache yet */
    SL_SLOT_DECODE,  /* what was drawn last is to be run, and what is known to follow it */
} sl_slot_state;

/* One slot of the lane's table. */
typedef struct sl_slot_need {
    sl_slot_state state;
    uint32_t left; /* known tokens that are not in the KV cache; > 0 but for EMPTY */
    uint32_t
        max_rows;     /* rows its KV pages and its lead over the coordinator allow now; 0: parked */
    uint64_t arrival; /* admission number: lower is older */
    uint32_t guesses; /* behind the known ones, that are worth a row */
} sl_slot_need;

typedef struct sl_batch_limits {
    uint32_t max_rows;  /* max-num-batched-tokens of this lane, > 0 */
    uint32_t max_chunk; /* most prompt rows in a step; 0: no limit of its own */
    uint32_t min_chunk; /* rows kept for waiting prompts; <= max_rows; 0: decoding goes first */
} sl_batch_limits;

/* rows consecutive rows of one slot. */
typedef struct sl_step_part {
    uint32_t slot;
    uint32_t rows;
    bool prefill;
    bool sample;      /* the last of these rows needs logits: of no later token it is known */
    uint32_t guesses; /* the last rows are these; each of them, and the one before, needs logits */
} sl_step_part;

/* parts: caller's memory, cap >= min(n_slots, max_rows). Decoding parts first, by slot number, then
 * prompts by arrival. */
typedef struct sl_lane_step {
    sl_step_part *parts;
    size_t cap;
    size_t n_parts;
    uint32_t rows; /* of all parts; 0: nothing to do */
    uint32_t turn; /* to be given to the next call */
} sl_lane_step;

/* slots [n_slots]; turn: 0 at first, then out->turn of the step before (any value is safe).
 * SL_ERR_ARG: max_rows is 0, min_chunk above max_rows, a slot that is not EMPTY with no token left,
 * or cap too small. */
sl_status sl_batcher_step(const sl_slot_need *slots, size_t n_slots, const sl_batch_limits *limits,
                          uint32_t turn, sl_lane_step *out, sl_err *err);

#endif

/* A lane's step: which slots get rows, how many, into how many chunks they go, and what the end of
 * the step teaches the next ones. One call forms it, one ends it; between them the driver runs the
 * rows through the blocks and draws tokens (sched/head.h has the order). The rules that the
 * batcher and the pacer leave open:
 *
 *   - every other step goes to the prompt that is nearest its end, the others to the oldest: short
 *     prompts do not queue behind a long one, which still gets the steps between;
 *   - while requests decode, a prompt's first SL_PREFILL_BURST rows are not held back: a short
 *     prompt costs the others one pause, a long one would cost them many. What follows is paced;
 *   - a step with such first rows teaches the pacer nothing: a row among many costs less than one
 *     among few. Nor does one with rows of what is known, or guessed, to follow a drawn token; how
 *     many guesses are worth a row such steps teach (sched/draft.h).
 *
 * No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_STEP_H
#define SL_SCHED_STEP_H

#include "sched/batcher.h"
#include "sched/cut.h"
#include "sched/draft.h"
#include "sched/pacer.h"
#include "sched/resolve.h"
#include "sched/slots.h"

typedef struct sl_step {
    sl_slots *slots;     /* borrowed, as... */
    const sl_cut *cut;   /* ...this is... */
    sl_resolve *resolve; /* ...and this; NULL: nothing is chosen anew */
    uint32_t lane, max_rows;
    sl_pacer pacer;
    sl_draft_price price;
    uint32_t formed, turn; /* steps so far; of the batcher */
    uint64_t round;        /* of the next step; the driver's */
    sl_slot_need *need;    /* [per_lane] scratch */

    /* the running step */
    sl_step_part *part; /* [per_lane + 1] */
    size_t n_parts;
    uint32_t rows, decode_rows, samples;
    uint32_t known, guesses; /* rows behind those of decoding requests' drawn tokens */
    uint32_t n_cut;          /* its rows are in so many of the chunks... */
    sl_chunking chunking;    /* ...which are these */
    bool burst;              /* first rows of prompts ride beside decoding requests */
    bool teaches;            /* the pacer learns how long it took */
    uint64_t began_us;
    uint64_t apart_us; /* of its time: guesses of the block, which are for steps to come */
} sl_step;

/* max_rows > 0; stretch: of the pacer. Without guesses, as long as price.speculate says nothing
 * else. SL_ERR_NOMEM; *out can be freed then, too. */
sl_status sl_step_create(sl_slots *slots, const sl_cut *cut, uint32_t lane, uint32_t max_rows,
                         double stretch, sl_step *out, sl_err *err) SL_MUST_CHECK;
void sl_step_free(sl_step *s); /* zeroed is fine */

/* The next step of the lane, of what its slots can run now: maybe without rows. */
void sl_step_form(sl_step *s, uint64_t now_us);
/* A step of parts that were chosen elsewhere (aep) and have been through the blocks: it only ends,
 * and teaches nothing. */
void sl_step_open(sl_step *s);
void sl_step_add(sl_step *s, const sl_step_part *part);

/* Its rows have been through the last block: they are in the cache. */
void sl_step_advance(sl_step *s);
/* Whether part i still is of the request that it was formed for, and that goes on: another one may
 * have the slot since. */
static inline bool sl_step_is_open(const sl_step *s, size_t i) {
    const sl_life *l = &sl_slots_of(s->slots, s->lane)[s->part[i].slot];
    return l->in_step && !l->ends;
}
/* Whether the request of part i ends now, with the step: the driver releases it before
 * sl_step_end. */
static inline bool sl_step_ends(const sl_step *s, size_t i) {
    const sl_life *l = &sl_slots_of(s->slots, s->lane)[s->part[i].slot];
    return l->in_step && l->ends;
}
/* The step is over. */
void sl_step_end(sl_step *s, uint64_t now_us);
/* The step is given up; its requests stay where they were before it. */
void sl_step_drop(sl_step *s);

#endif

/* Schedule aep: which parts of requests enter block 0 next, and with how many rows. A part is a row
 * of a decoding request, with what is known to follow it, or a chunk of a prompt; rows in flight
 * have a limit. sched/parts.h keeps the lists of who waits; the rules are these. Pure. Thread: any.
 *
 *   1. decoding requests get one row each, as long as there is room, but for PROMPT_ROWS that are
 *      kept for a waiting prompt when none is in flight: they cannot starve it;
 *   2. while requests decode, first rows of prompts (SL_PREFILL_BURST of each) share a budget of as
 *      many, so that short prompts start together;
 *   3. of what follows them there is one chunk at a time, as long as the pacer says, and none while
 *      a step of decoding requests alone is to be measured. */
#ifndef SL_SCHED_INTAKE_H
#define SL_SCHED_INTAKE_H

#include "sched/pacer.h"

#define SL_PREFILL_BURST 256u /* rows of a prompt that are not paced */

typedef enum sl_part_kind {
    SL_PART_DECODE,
    SL_PART_PROMPT, /* of a prompt's first SL_PREFILL_BURST rows */
    SL_PART_REST,   /* of what follows them: paced */
    SL_PART_KINDS
} sl_part_kind;

typedef struct sl_intake {
    uint32_t rows[SL_PART_KINDS]; /* in flight */
    bool hold_rest;               /* until a step of decoding requests alone was measured */
} sl_intake;

/* Of a request with `done` rows in the cache, of `given` tokens that are known. */
sl_part_kind sl_intake_kind(uint32_t done, uint32_t given);

/* Rows of max_rows that decoding requests leave free; whether such parts wait. */
uint32_t sl_intake_keep(const sl_intake *in, bool prompt_waits, bool rest_waits, uint32_t max_rows);

/* Rows of the next chunk of a prompt: of `given - done`, as its pages (`room` positions) and n_free
 * rows allow; `decoding` requests wait for rows beside those in flight. 0: it waits. */
uint32_t sl_intake_chunk(sl_intake *in, sl_pacer *pacer, sl_part_kind kind, uint32_t done,
                         uint32_t given, uint32_t room, uint32_t decoding, uint32_t n_free);

/* Of a part that enters: what goes on takes the wave after its last one, a newcomer the wave after
 * the latest that entered: it overtakes nobody. */
static inline uint64_t sl_intake_wave(bool goes_on, uint64_t last, uint64_t wave) {
    return (goes_on ? last : wave) + 1;
}

/* Of a batch whose lowest is `lowest`, where expert workers have met `seen`: nobody stays more than
 * a wave behind other attention workers, since one that was idle would overtake them all. */
static inline uint64_t sl_intake_batch_wave(uint64_t lowest, uint64_t seen) {
    return seen > 0 && seen - 1 > lowest ? seen - 1 : lowest;
}

#endif

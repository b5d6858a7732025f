/* Whose guesses the block that predicts a further token makes (model/mtp.c), behind a step's head:
 * which of the step's rows go through it, who guesses by its own last one, and who goes on guessing
 * in calls behind the first. Rows and what they say are the driver's: the engine has them
 * (engine/attn/mtp.c), the simulator counts them (sim/sim_mtp.c). How many guesses are worth it is
 * draft.h's.
 *
 * No I/O, clock, threads or memory. Thread: owner. */
#ifndef SL_SCHED_GUESSERS_H
#define SL_SCHED_GUESSERS_H

#include "sched/head.h"

typedef struct sl_guesser {
    uint32_t part; /* of the step */
    uint32_t pos;  /* of the block's last row of it */
    uint32_t want; /* guesses, those that are made counted */
} sl_guesser;

/* Of one step, zeroed when its tokens are drawn; others that would guess wait for another one. */
typedef struct sl_guessers {
    uint32_t n;    /* of the running call: rows that say a guess */
    uint32_t made; /* in all calls so far */
    sl_guesser of[SL_HEAD_ROWS];
} sl_guessers;

/* Of so many rows of a part from position `first` on those that are sure and whose next token is
 * known: the first ones go through the block. */
uint32_t sl_guessers_rows(const sl_life *l, uint32_t first, uint32_t rows);
/* Guesses that the request of a part has of it, of `ahead` that are worth it, when rows before
 * position `next` go through; 0: none. */
uint32_t sl_guessers_want(const sl_guessers *g, const sl_step_part *part, const sl_life *l,
                          uint32_t next, uint32_t ahead);
/* It does: one more, whose last row is at `pos`. */
void sl_guessers_add(sl_guessers *g, uint32_t part, uint32_t pos, uint32_t want);

/* A call is through, of which `who` was one of the guessers; these are in g no more, and those who
 * still are go on in the next call. Its request has one more guess behind what it knows. True: it
 * goes on, as the last one so far. */
bool sl_guessers_go_on(sl_guessers *g, const sl_guesser *who, sl_life *l, sl_draft *d);
/* That was the last call. All of them took so long, which is no time of the step's own. */
void sl_guessers_close(const sl_guessers *g, sl_step *s, sl_draft_price *price, uint64_t us);

#endif

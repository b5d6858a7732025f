/* Guesses of what a request says next (speculative decoding, arXiv:2211.17192): what followed where
 * its last tokens stood before, in its prompt or in what it said (prompt lookup: a look into a
 * table), or what the checkpoint's own block predicts (model/mtp.c). A guess is a row of the step
 * of the token before it (sched/batcher.h), and counts as far as it is what is drawn there: no
 * token depends on it.
 *
 * How many are worth their rows is measured. A guess behind i others is right in about chance^(i+1)
 * of all cases, and then spares its request a step, of which one of `decoding` requests pays its
 * share: it runs where that is more than what a row adds to a step, and making the guess took,
 *
 *   chance^(i+1) plain_us / decoding > row_us + made_us.
 *
 * `chance` is learnt from every guess, also from those that did not run: what was drawn says
 * whether they were right. plain_us and row_us are learnt from steps without and with rows of
 * guesses; every SL_DRAFT_PROBEth step has none, so that the former stays fresh. made_us is 0 of
 * lookups, and learnt of the block. The block makes no guess that would not run; then its chance
 * would never be learnt again, so that it makes one in SL_DRAFT_WAKE of SL_DRAFT_REST steps.
 *
 * No I/O, clock or threads; only open allocates. Thread: owner. */
#ifndef SL_SCHED_DRAFT_H
#define SL_SCHED_DRAFT_H

#include "base/status.h"
#include "spec/speculate.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_DRAFT_TOKENS 3u  /* the last ones, that are looked for */
#define SL_DRAFT_MOST   8u  /* guesses at a time */
#define SL_DRAFT_PROBE  32u /* steps */
#define SL_DRAFT_MTP    3u  /* kind of the block's guesses; those before it: by a match's length */
#define SL_DRAFT_KINDS  4u
#define SL_DRAFT_AHEAD  4u  /* guesses of the block at a time: each takes it once, and the head */
#define SL_DRAFT_REST   64u /* steps, of which a request that is hard to guess... */
#define SL_DRAFT_WAKE   8u  /* ...has the block in so many */

/* Of a request. */
typedef struct sl_draft {
    uint32_t *behind; /* [mask + 1] by hash of so many tokens: the position behind the last place
                       * where they stood; 0: nowhere */
    uint32_t mask;
    uint32_t read;  /* positions before this one are in it */
    uint32_t kind;  /* of the last guesses: how much stood before them as it did there, or the
                     * block's */
    uint32_t rests; /* steps in which the block had nothing to do for it */
    double chance[SL_DRAFT_KINDS];
} sl_draft;

/* Chances before anything is known; nothing else of *d is there (the simulator's requests have no
 * text). */
void sl_draft_begin(sl_draft *d);
/* For a request of at most `tokens` tokens. SL_ERR_NOMEM. */
sl_status sl_draft_open(sl_draft *d, uint32_t tokens, sl_err *err) SL_MUST_CHECK;
void sl_draft_close(sl_draft *d); /* zeroed is fine */
/* Writes up to `most` guesses behind its n tokens, which go on from what they were before; returns
 * how many. tokens: room for n + most. */
uint32_t sl_draft_guess(sl_draft *d, uint32_t *tokens, uint32_t n, uint32_t most);
/* The first of the last guesses that is not judged yet was right, or was not, and none behind it is
 * of any use. */
void sl_draft_judge(sl_draft *d, bool right);
/* How often one of the last guesses will be right. */
static inline double sl_draft_chance(const sl_draft *d) {
    return d->chance[d->kind];
}

/* What rows of guesses cost, of one lane or of all parts of aep. */
typedef struct sl_draft_price {
    sl_speculate speculate;  /* whether there are any */
    double plain_us, row_us; /* 0: not measured yet */
    double made_us;          /* of a guess that the block makes; 0: looked up, or not measured */
    uint32_t since;          /* steps since the last one without */
} sl_draft_price;

/* Of a request whose guesses are the block's, which needs no sl_draft_open: how many it is to make
 * of what comes next, up to `most`, when so many requests decode; 0: it has nothing to do. */
uint32_t sl_draft_ahead(sl_draft *d, const sl_draft_price *p, uint32_t decoding, uint32_t most);
/* Tokens of one request that a guess's row has to be worth, in the step that is formed now; above
 * 1: it has none. */
double sl_draft_price_of(const sl_draft_price *p, uint32_t decoding);
/* Of `most` guesses, each right in so many cases, those that are worth that. */
uint32_t sl_draft_worth(double chance, double price, uint32_t most);
/* The block made so many guesses in so long. */
void sl_draft_price_made(sl_draft_price *p, uint32_t guesses, uint64_t us);
/* A step of decoding rows and so many of guesses took so long, making guesses aside. */
void sl_draft_price_learn(sl_draft_price *p, uint32_t guesses, uint64_t step_us);

#endif

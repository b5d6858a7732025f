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
 * whether they were right; the first few weigh as in a mean. A request begins with what guesses of
 * requests before it came to, which counts as one guess. plain_us and row_us are learnt from
 * steps without and with rows of guesses; every SL_DRAFT_PROBEth step has none, so that the former
 * stays fresh. made_us is 0 of lookups, and learnt of the block. The block makes no guess that
 * would not run; then its chance would never be learnt again, so that it makes one in SL_DRAFT_WAKE
 * of SL_DRAFT_REST steps, the first ones of a request among them.
 *
 * Where both kinds are asked for, a request has what was looked up if guesses of its kind were
 * right more often than the block's, else the block's. Beside these the first token that was looked
 * up is judged, too, or its kind would never be likelier. Who looks up pays no made_us.
 *
 * Where no guess ran for SL_DRAFT_TRIAL steps, one row of one request's is tried, whatever is
 * thought of its price: before the first row that is a mere guess, which many requests multiply,
 * and one slow step must not say for ever what rows cost. A row costs less than a step of others
 * does, so that trials take less than a part in SL_DRAFT_TRIAL.
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
#define SL_DRAFT_AHEAD  4u   /* guesses of the block at a time: each takes it once, and the head */
#define SL_DRAFT_REST   128u /* steps, of which a request that is hard to guess... */
#define SL_DRAFT_WAKE   4u   /* ...has the block in so many */
#define SL_DRAFT_TRIAL  128u /* steps without guesses, after which a row is tried... */
#define SL_DRAFT_TRIED  0.25 /* ...of one that is right at least so often */

/* How often guesses were right, of all requests of one owner; zeroed: nothing is known. */
typedef struct sl_draft_prior {
    double chance[SL_DRAFT_KINDS];
    uint32_t judged[SL_DRAFT_KINDS]; /* the first ones, which weigh more in it */
} sl_draft_prior;

/* Of a request. */
typedef struct sl_draft {
    sl_draft_prior *prior; /* learns what it learns; the owner's */
    uint32_t *behind; /* [mask + 1] by hash of so many tokens: the position behind the last place
                       * where they stood; 0: nowhere */
    uint32_t mask;
    uint32_t read; /* positions before this one are in it */
    uint32_t kind; /* of the last guesses: how much stood before them as it did there, or the
                    * block's; beside those... */
    uint32_t aside, aside_kind; /* ...the first that was looked up, and its kind; SL_DRAFT_MTP: none
                                 * was, or it is judged */
    uint32_t rests;             /* steps in which the block had nothing to do for it */
    double chance[SL_DRAFT_KINDS];
    uint32_t judged[SL_DRAFT_KINDS]; /* the first few guesses, which weigh more in it */
} sl_draft;

/* Chances before anything is known of it; nothing else of *d is there (the simulator's requests
 * have no text, nor need the block's guesses any). prior: borrowed until nothing is judged. */
void sl_draft_begin(sl_draft *d, sl_draft_prior *prior);
/* One that has begun, of a request of at most `tokens` tokens, is going to look up. SL_ERR_NOMEM.
 */
sl_status sl_draft_open(sl_draft *d, uint32_t tokens, sl_err *err) SL_MUST_CHECK;
void sl_draft_close(sl_draft *d); /* zeroed is fine */
/* Writes up to `most` guesses behind its n tokens, which go on from what they were before; returns
 * how many. tokens: room for n + most. */
uint32_t sl_draft_guess(sl_draft *d, uint32_t *tokens, uint32_t n, uint32_t most);
/* Whether such guesses are likelier to be right than the block's. */
bool sl_draft_looks_up(sl_draft *d, const uint32_t *tokens, uint32_t n);
/* The block has made a guess. */
void sl_draft_made(sl_draft *d);
/* The block has made guesses of what follows n tokens: what would have been looked up is judged
 * beside them. */
void sl_draft_look_aside(sl_draft *d, const uint32_t *tokens, uint32_t n);
/* The first of the last guesses that is not judged yet was right, or was not, and none behind it is
 * of any use. */
void sl_draft_judge(sl_draft *d, bool right);
/* So was the one beside them. */
void sl_draft_judge_aside(sl_draft *d, bool right);
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
    uint32_t idle;           /* steps since the last one with some, ... */
    uint32_t asked;          /* ...and what that was when the block made one to be tried */
} sl_draft_price;

/* How many guesses the block is to make of what comes next, up to `most`, when so many requests
 * decode; 0: it has nothing to do. */
uint32_t sl_draft_ahead(sl_draft *d, const sl_draft_price *p, uint32_t decoding, uint32_t most);
/* Tokens of one request that a guess's row has to be worth, in the step that is formed now; above
 * 1: it has none. made: the block has made it. */
double sl_draft_price_of(const sl_draft_price *p, uint32_t decoding, bool made);
/* Whether the step that is formed now may have a row of a guess that is not worth it. */
bool sl_draft_price_tries(const sl_draft_price *p);
/* It has one, and is not the only one that is under way (aep): others wait as long again. */
void sl_draft_price_tried(sl_draft_price *p);
/* Of `most` guesses, each right in so many cases, those that are worth that. */
uint32_t sl_draft_worth(double chance, double price, uint32_t most);
/* The block was asked for what it made of a step's rows. */
void sl_draft_price_asked(sl_draft_price *p);
/* It made so many guesses in so long. */
void sl_draft_price_made(sl_draft_price *p, uint32_t guesses, uint64_t us);
/* A step of decoding rows and so many of guesses took so long, making guesses aside. */
void sl_draft_price_learn(sl_draft_price *p, uint32_t guesses, uint64_t step_us);

#endif

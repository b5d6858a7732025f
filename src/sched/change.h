/* The change from one plan to the next in a deployment that runs: who does what before whom, so
 * that no row is ever on its way when somebody takes the new plan.
 *
 *   coordinator                                  worker
 *     PLAN to all                                  maps what the new plan gives it, calls peers
 *     <- READY of all                              all goes on by the old plan
 *     HOLD to attention workers                    no lane joins a round, none stays in one
 *     <- QUIET of all of them                      its last step is over, or given up
 *     TAKE to all                                  rounds, queues and lanes begin anew; slots stay
 *     <- TAKEN of all                              what it hosted before is dropped
 *     GO to all                                    lanes join again
 *
 * Until TAKE nothing has happened that GO, with the old plan's epoch, does not undo: a worker that
 * is unable to host what it should, or a deadline, ends the change there. TAKE is not undone. When
 * it is said all attention workers are quiet, and until GO is said all have taken the plan: nobody
 * works on rows of two epochs. What arrives from another epoch was given up, or is from somebody
 * who is gone, and is dropped.
 *
 * Where something broke, steps may never end: replies are missing, or members of rounds. Then HOLD
 * says so, and steps in flight are given up: their requests begin them again after GO.
 *
 * Workers that are to join know the plan that holds and take this one like the others; they have
 * nothing to hold. So do those that were left out of plans and live: GO of a change that ends
 * before TAKE names a plan that they never had.
 *
 * A worker that is lost owes nothing any more: the others finish the change. Whether the deployment
 * can go on without it is not decided here.
 *
 * The number of an epoch is never given twice, not even to a plan that was given up, so that what
 * was said about that is stale.
 *
 * No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_CHANGE_H
#define SL_SCHED_CHANGE_H

#include "sched/roster.h"

/* ---- at the coordinator ---- */

typedef enum sl_change_phase {
    SL_CHANGE_RESTS,
    SL_CHANGE_PREPARES, /* READY is owed */
    SL_CHANGE_HOLDS,    /* QUIET is */
    SL_CHANGE_TAKES,    /* TAKEN is */
} sl_change_phase;

/* What the driver does now, in the order in which it is asked for. */
typedef enum sl_change_word {
    SL_CHANGE_NOTHING,
    SL_CHANGE_PLAN, /* tells every worker that owes an answer the new plan, */
    SL_CHANGE_HOLD, /* to hold, */
    SL_CHANGE_TAKE, /* to take it; from now on it is the deployment's plan */
    SL_CHANGE_GO,   /* all that serve: go on with the plan that holds; the change is over */
} sl_change_word;

typedef struct sl_change {
    const sl_roster *roster; /* borrowed: who serves, and as what */
    sl_change_phase phase;
    bool told;            /* the word of this phase */
    uint32_t epoch;       /* of the new plan, or of the last one tried */
    uint64_t deadline_us; /* of what comes before TAKE */
    bool breaks;          /* HOLD gives up steps in flight */
    uint8_t *there;       /* [n] who takes the plan */
    uint8_t *owes;        /* [n] */
    uint32_t n_owed;
    sl_status status; /* not SL_OK: it is given up, and why, */
    sl_err err;
    uint32_t culprit; /* and for whom; SL_ROSTER_NONE: nobody of there[] */
} sl_change;

/* For the workers of the roster, whose plan has this epoch. SL_ERR_NOMEM. */
sl_status sl_change_create(const sl_roster *roster, uint32_t epoch, sl_change *out,
                           sl_err *err) SL_MUST_CHECK;
void sl_change_free(sl_change *c); /* zeroed is fine */

/* Whether a deployment that runs `from` can take `to`: the same but for which workers are there
 * (those without roles are not) and which host which experts. SL_ERR_UNSUPPORTED names what else
 * differs. */
sl_status sl_change_check(const sl_plan *from, const sl_plan *to, sl_err *err) SL_MUST_CHECK;

/* The change begins; the new plan's epoch is c->epoch then. Only when it rests. there[n]: who takes
 * it, everybody who serves among them; NULL: nobody else. */
void sl_change_begin(sl_change *c, const uint8_t *there, bool breaks, uint64_t deadline_us);
/* READY, QUIET or TAKEN of a worker, as phase and epoch say. False: nobody asked, or no more. */
bool sl_change_answer(sl_change *c, uint32_t worker, sl_change_phase to, uint32_t epoch);
/* The worker cannot do what it is to. False: nobody asked, or no more. */
bool sl_change_unable(sl_change *c, uint32_t worker, uint32_t epoch, const char *why);
/* The roster says that it is gone. */
void sl_change_lost(sl_change *c, uint32_t worker);
/* The deployment cannot go on: the change ends here, wherever it is. Nothing if it rests. */
void sl_change_fail(sl_change *c, sl_status status, const char *why);
/* To be asked until it says NOTHING. After GO c->status and c->err say how the change went. */
sl_change_word sl_change_next(sl_change *c, uint64_t now_us);

/* ---- at a worker ---- */

typedef struct sl_taker {
    uint32_t epoch; /* of the plan that holds */
    uint32_t next;  /* of the one that it is to take; 0: none */
    bool holds;     /* no step begins */
    bool quiet;     /* and that was said */
    bool joins;     /* the others run already: it has taken no plan with them yet */
} sl_taker;

/* The coordinator's words. False: it contradicts what it said before. */
bool sl_taker_plan(sl_taker *t, uint32_t epoch);
bool sl_taker_hold(sl_taker *t, uint32_t epoch);
bool sl_taker_take(sl_taker *t, uint32_t epoch);
bool sl_taker_go(sl_taker *t, uint32_t epoch);
/* `rests`: no row of this worker is on its way and no lane of it is in a round. True, once: to be
 * said. */
bool sl_taker_rests(sl_taker *t, bool rests);

#endif

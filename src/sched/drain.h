/* Workers that leave because somebody wants it, and come back: who is wanted, beside recovery
 * (sched/recover.h), which sees to it that those who are wanted are there.
 *
 * A place:
 *
 *                   no request runs there,        a plan without it      it has
 *            leave  or any longer                 is taken               ended
 *   WANTED --------> EMPTIES ---------> HANDS ---------------> STOPS ---------> DRAINED
 *    ^  ^              |    |             |                    ^    |             |
 *    |  +--------------+    +-------------|--------------------+    |             |
 *    |  OPEN: given up, or wanted again   |  no experts             |             |
 *    |  +---------------------------------+                         |             |
 *    +--+-----------------------------------------------------------+-------------+
 *                                       comes back by itself (restart)   return
 *
 * What leaves loses nothing: requests end at the worker while its grace lasts, then they give way
 * (MOVE) and go on elsewhere; others have its experts before it is told to stop. Who dies
 * meanwhile is simply gone. The last worker of a role does not leave; it may restart, and what
 * needs it waits until it is back.
 *
 * Every wait has an end: EMPTIES and HANDS are given up after a while, as if nothing had been
 * asked; who does not end although it was told to is killed.
 *
 * The driver tells the roster first, then this machine, then recovery, and asks this machine for
 * words after those of recovery, at each event and while anything is busy now and then. No I/O,
 * clock or threads; only create allocates. Times are microseconds of one clock. Thread: owner. */
#ifndef SL_SCHED_DRAIN_H
#define SL_SCHED_DRAIN_H

#include "sched/recover.h"

typedef enum sl_drain_state {
    SL_DRAIN_WANTED,  /* whoever is there serves */
    SL_DRAIN_EMPTIES, /* no request starts there; some may run */
    SL_DRAIN_HANDS,   /* a change gives its experts to others */
    SL_DRAIN_STOPS,   /* it is told to stop, and has not ended yet */
    SL_DRAIN_DRAINED, /* nobody is there, and nobody comes */
} sl_drain_state;

/* What the driver does now. */
typedef enum sl_drain_word {
    SL_DRAIN_NOTHING,
    SL_DRAIN_MOVE, /* the requests that run there give way */
    SL_DRAIN_STOP, /* tells the worker to stop */
    SL_DRAIN_KILL, /* ends it */
    SL_DRAIN_OPEN, /* it stays: requests may start there again */
} sl_drain_word;

typedef struct sl_drain_opts {
    uint64_t move_us; /* for requests that were told to give way */
    uint64_t hand_us; /* for a change that is taken */
    uint64_t stop_us; /* from STOP to KILL */
} sl_drain_opts;

#define SL_DRAIN_OPTS                                                                              \
    ((sl_drain_opts){.move_us = 60000000, .hand_us = 60000000, .stop_us = 5000000})

typedef struct sl_drain_place {
    sl_drain_state state;
    bool again;      /* somebody comes in its place when it has ended */
    bool alone;      /* nobody else has what it does: it is not handed over, others wait */
    bool said;       /* the word of this state */
    bool opens;      /* OPEN is to be said */
    bool comes;      /* wanted again, and does not serve yet */
    bool spare;      /* DRAINED, and nobody was ever wanted there */
    uint64_t due_us; /* of this state's word, or end */
    /* What was asked last: */
    uint32_t n;       /* its number; 0: nothing */
    bool done;        /* it is over, and how: */
    sl_status status; /* not SL_OK: all is as before, and why */
    sl_err err;
} sl_drain_place;

typedef struct sl_drain {
    sl_drain_opts o;
    sl_recover *recover;   /* borrowed; its places are released and wanted here */
    sl_drain_place *place; /* [n] by id; for reading */
    uint32_t n_asked;      /* so far */
    uint32_t n_busy;       /* places between WANTED and DRAINED, or that open or come */
    uint32_t n_drained;    /* places that somebody has left; spare ones do not count */
} sl_drain;

/* For the workers of the recovery's roster, all wanted. SL_ERR_NOMEM. */
sl_status sl_drain_create(sl_recover *recover, const sl_drain_opts *o, sl_drain *out,
                          sl_err *err) SL_MUST_CHECK;
void sl_drain_free(sl_drain *d); /* zeroed is fine */
/* Before anybody comes: nobody is wanted at this place, until sl_drain_return. */
void sl_drain_spare(sl_drain *d, uint32_t id);

/* Whether worker `id` may leave, or restart (`again`). *hands: others take over what it does, so
 * somebody may have to ask whether they can. SL_ERR_NOTFOUND: there is no such worker. SL_ERR_ARG:
 * it is drained already. SL_ERR_INFEASIBLE: it is the last one that does what it does.
 * SL_ERR_AGAIN: lost workers are being made good, or it leaves or comes already. */
sl_status sl_drain_may_leave(const sl_drain *d, uint32_t id, bool again, bool *hands,
                             sl_err *err) SL_MUST_CHECK;
/* It is to leave; its requests have grace_us to end there. None starts there from now on. One that
 * is lost is not awaited any more. Errors as of sl_drain_may_leave; nothing has changed then. */
sl_status sl_drain_leave(sl_drain *d, uint32_t id, bool again, uint64_t grace_us, uint64_t now_us,
                         sl_err *err) SL_MUST_CHECK;
/* Worker `id` is wanted: somebody comes to a place that is drained, who leaves stays where that can
 * be, else comes back. SL_ERR_NOTFOUND. SL_ERR_ARG: it was not drained. */
sl_status sl_drain_return(sl_drain *d, uint32_t id, uint64_t now_us, sl_err *err) SL_MUST_CHECK;

/* No request runs at this worker, and no change of plans counts with it. Of others than those in
 * EMPTIES it is no news. */
void sl_drain_empty(sl_drain *d, uint32_t id, uint64_t now_us);
/* A change that left out workers in HANDS was given up, and why: who could not do without them. */
void sl_drain_refused(sl_drain *d, sl_status status, const char *why, uint64_t now_us);
/* The worker is gone. True: as it was told to; it is not lost. Before sl_recover_lost. */
bool sl_drain_ended(sl_drain *d, uint32_t id, uint64_t now_us);
/* It serves. */
void sl_drain_served(sl_drain *d, uint32_t id);

/* To be asked until it says NOTHING. */
sl_drain_word sl_drain_next(sl_drain *d, uint64_t now_us, uint32_t *id);

/* It is to be there, and to stay. */
static inline bool sl_drain_wants(const sl_drain *d, uint32_t id) {
    return d->place[id].state == SL_DRAIN_WANTED;
}
/* Everybody is wanted, and nobody leaves or comes back. */
static inline bool sl_drain_rests(const sl_drain *d) {
    return d->n_busy == 0 && d->n_drained == 0;
}

#endif

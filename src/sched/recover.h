/* What a deployment does about workers that are gone, until everybody serves again by the plan that
 * it was started with: when another plan is taken, by whom, which places get a new process, and
 * when nobody can be waited for any more.
 *
 * A place:
 *
 *         START, coming             joined              a change takes it in
 *   AWAY ---------------> COMING ------------> READY ---------------------------> HERE
 *    ^ ^                    | lost, DROP         | lost, DROP                       | lost, DROP
 *    | +--------------------+--------------------+                                  |
 *    +------------------------------------------------------------------------------+
 *
 * Service as a whole:
 *
 *             an expert worker is lost, or the             patience is over:
 *             last attention worker, or a link             GIVE_UP is said
 *   SERVES ------------------------------------> WAITS ----------------------> GAVE_UP
 *      ^                                           |                              |
 *      +-------------------------------------------+------------------------------+
 *                    a change is taken after which all that it needs is here
 *
 * A link that breaks again, or cannot be made again, has an end at fault: the one whose links break
 * more often, of equals the one without attention, then the later one; but only one that the others
 * can do without. It is left out of the next change. Without attention it rests: it lives, keeps
 * its weights mapped, and is taken in again after a while, so that a wrong verdict costs little.
 * Requests run at one with attention, who is ended: somebody comes in its place.
 *
 * An expert worker that others wait for too long (sched/hedge.h) rests in the same way, if it runs
 * no attention, is one of few, and others can do without it: a change without it is due, and none
 * takes it in again before it has answered.
 *
 * Where it hosts something alone, that is missed from then on: service WAITS until others have it.
 *
 * What a lost expert worker hosted alone goes to others at once, or waits for the process that
 * takes its place, whichever is expected sooner (sched/rehost.h): before such a change WEIGH asks
 * for what it takes. It waits only for a first start that was not in vain, and not beyond a
 * deadline; a loss meanwhile is weighed anew.
 *
 * Streams move first: while a change is due and can be begun nothing is started, and while one is
 * under way neither. Requests keep while service WAITS; those that come after GIVE_UP are for the
 * driver to refuse until it SERVES again, which is tried on and on.
 *
 * The driver tells the roster first, then this machine. It asks for words after each event and when
 * due_us has come. A place is open to newcomers (sl_roster_reopen) when it is lost, if it is not
 * started from here, and at START. A place that is released (sched/drain.h) is nobody's: who is
 * there stays until a change without it is taken, and nobody comes.
 *
 * No I/O, clock or threads; only create allocates. Times are microseconds of one clock.
 * Thread: owner. */
#ifndef SL_SCHED_RECOVER_H
#define SL_SCHED_RECOVER_H

#include "sched/rehost.h"
#include "sched/roster.h"

#define SL_RECOVER_NEVER UINT64_MAX

/* Pauses double from the first to the longest with each time that it was in vain; those before
 * starts stay at the first while service WAITS. */
typedef struct sl_recover_opts {
    uint64_t patience_us; /* how long requests wait while nobody can serve them; NEVER: for ever */
    uint64_t start_pause_us, start_pause_max_us; /* before a second start of a place, and later */
    uint64_t coming_us; /* from START to coming, from that to joined; then it is dropped */
    uint64_t retry_pause_us, retry_pause_max_us; /* before a change is tried again */
    uint64_t served_us; /* after so long without a fault earlier ones count no more */
    uint32_t links;     /* of one worker break meanwhile: one end is at fault */
    uint64_t same_us;   /* what breaks of one worker within so long counts once: one break often */
                        /* makes others, and both ends tell */
    uint64_t rest_us, rest_max_us; /* before one that rests is taken in again */
    uint64_t rest_alone_us; /* instead of the former, where others had to map what it hosts */
    uint32_t slow; /* one of so many expert workers, at least one, rests because it is slow */
} sl_recover_opts;

#define SL_RECOVER_OPTS                                                                            \
    ((sl_recover_opts){.patience_us = 30000000,                                                    \
                       .start_pause_us = 1000000,                                                  \
                       .start_pause_max_us = 60000000,                                             \
                       .coming_us = 30000000,                                                      \
                       .retry_pause_us = 100000,                                                   \
                       .retry_pause_max_us = 2000000,                                              \
                       .served_us = 60000000,                                                      \
                       .links = 2,                                                                 \
                       .same_us = 1000000,                                                         \
                       .rest_us = 2000000,                                                         \
                       .rest_max_us = 60000000,                                                    \
                       .rest_alone_us = 10000000,                                                  \
                       .slow = 4})

/* What the driver does now, in the order in which it is asked for. */
typedef enum sl_recover_word {
    SL_RECOVER_NOTHING,
    SL_RECOVER_GIVE_UP, /* ends the requests: nobody can serve them. Once per outage */
    SL_RECOVER_DROP,    /* ends whoever is at this place or on its way to it, and says lost */
    SL_RECOVER_WEIGH,   /* says what a change to those in there[] takes: sl_recover_weighed */
    SL_RECOVER_CHANGE,  /* begins a change to the plan of those in there[], and says how it went */
    SL_RECOVER_START,   /* starts a process for this place; lost if there is none */
} sl_recover_word;

typedef enum sl_recover_service {
    SL_RECOVER_SERVES,  /* there is attention, and a host here for every expert */
    SL_RECOVER_WAITS,   /* not so: requests wait */
    SL_RECOVER_GAVE_UP, /* nor in time */
} sl_recover_service;

typedef struct sl_recover_place {
    bool can_start; /* a process can be started for it from here; else somebody has to come */
    bool coming;    /* one was, or somebody came by itself, and is not ready yet */
    bool doomed;    /* DROP is to be said of it... */
    bool dropped;   /* ...or was */
    bool planned;   /* who is there serves by the plan that holds */
    bool missed;    /* experts that this plan has there are nowhere */
    bool asked;     /* the plan that is being taken has the place */
    bool rests;     /* it lives, and no change takes it in; for reading */
    bool slow;      /* it rests because others waited for it; for reading */
    bool answered;  /* since then */
    bool released;  /* nobody is wanted there: no change asks it, nobody is started */
    uint32_t starts, breaks, rested; /* that still count */
    uint64_t rest_us;                /* when its rest ends */
    uint64_t next_us;    /* of the next start; while it comes, when that takes too long */
    uint64_t since_us;   /* planned, or lost */
    uint64_t started_us; /* START, of who is not planned yet; 0: it came by itself */
    uint64_t broke_us;   /* a link of it, last */
    uint64_t serve_us;   /* its last start took so long; 0: there was none */
} sl_recover_place;

typedef struct sl_recover {
    sl_recover_opts o;
    const sl_roster *roster;    /* borrowed */
    sl_recover_place *place;    /* [n] by id; can_start is the driver's to set, at any time */
    uint8_t *there;             /* [n] of the last CHANGE or WEIGH, less who was lost since */
    sl_recover_service service; /* for reading */
    uint64_t due_us;            /* when something is to be done by itself; for reading */
    uint32_t n_away;            /* workers that do not serve by the plan that holds; for reading */
    bool begun, changing;
    bool stirred;       /* somebody came or went since the change began */
    bool mend, mending; /* a change is due although nobody came or went; is under way */
    uint32_t n_failed;  /* changes, since one was taken */
    uint64_t retry_us;  /* not before, after a change that failed */
    uint64_t mend_us;   /* nor this, for a broken link alone */
    uint64_t waits_since_us;
    bool weighed; /* what is missed, since the last loss */
    uint64_t
        await_us; /* until then a change waits for who takes a lost one's place; 0: it does not */
    uint64_t serve_us; /* from START to serving, the last time; for reading */
} sl_recover;

/* For the workers of a roster, none of whom can be started. SL_ERR_NOMEM. */
sl_status sl_recover_create(const sl_roster *roster, const sl_recover_opts *o, sl_recover *out,
                            sl_err *err) SL_MUST_CHECK;
void sl_recover_free(sl_recover *r); /* zeroed is fine */

/* The deployment serves for the first time, everybody by the plan that it was started with. Until
 * then whatever happens is not for this machine, and no word is said. */
void sl_recover_begin(sl_recover *r, uint64_t now_us);
/* The worker is gone, or the process that was to come to this place is. */
void sl_recover_lost(sl_recover *r, uint32_t id, uint64_t now_us);
/* A start took so long, from START until it served; as first known. */
void sl_recover_measured(sl_recover *r, uint64_t took_us);
/* Somebody has come to this place and gets ready. */
void sl_recover_coming(sl_recover *r, uint32_t id, uint64_t now_us);
/* It is ready and waits for a change that takes it in. */
void sl_recover_joined(sl_recover *r, uint32_t id, uint64_t now_us);
/* A link between two workers that live broke, or could not be made again: where both serve, rows
 * wait, and a change begins the links anew. Of each pair both ends may say so. */
void sl_recover_ailing(sl_recover *r, uint32_t id, uint32_t other, uint64_t now_us);
/* Others wait for an expert worker for too long. True: it rests, until it has answered at least.
 * alone: something that it hosts is nowhere else. */
bool sl_recover_slow(sl_recover *r, uint32_t id, bool alone, uint64_t now_us) SL_MUST_CHECK;
/* It has answered what it was asked. */
void sl_recover_answered(sl_recover *r, uint32_t id, uint64_t now_us);
/* Whether a worker that rests as it is slow is in the plan that holds still. */
bool sl_recover_has_slow(const sl_recover *r);
/* The change is over. taken: who is left of there[] serves by it. Else `culprit` kept it from being
 * taken, SL_ROSTER_NONE if nobody did: a newcomer is dropped, so that the others need not wait for
 * it. */
void sl_recover_changed(sl_recover *r, bool taken, uint32_t culprit, uint64_t now_us);

/* Whether it was left out not long ago, and has not served well since. */
static inline bool sl_recover_was_left_out(const sl_recover *r, uint32_t id, uint64_t now_us) {
    return r->place[id].rested > 0 && now_us - r->place[id].since_us < r->o.served_us;
}

/* The change that WEIGH asks about takes so long, or SL_REHOST_NEVER. For how long it waits for who
 * takes the places of the lost; 0: it does not. */
uint64_t sl_recover_weighed(sl_recover *r, uint64_t rehost_us, uint64_t now_us);
/* In how long all are expected to serve without whom experts are nowhere. */
uint64_t sl_recover_lack_us(const sl_recover *r, uint64_t now_us);

/* In how long who takes the place of a lost worker is expected to serve: as long as its last start
 * took, or the last one of any; one that is late already, as much later. NEVER: nobody is started
 * there from here. */
uint64_t sl_recover_back_us(const sl_recover *r, uint32_t id, uint64_t now_us);

/* Whether a request of a lost attention worker waits for who takes its place, because its KV is
 * there still, or goes on elsewhere at once, computed again from its tokens: whichever is sooner.
 * rows: that it has there, and those of all that went elsewhere before it; row_us: what one costs,
 * as measured; others: attention workers that share that work, 0 if there is none; back_us: as of
 * sl_recover_back_us. Pure. */
static inline bool sl_recover_stays(uint64_t rows, double row_us, uint32_t others,
                                    uint64_t back_us) {
    if (others == 0) return true;
    return back_us != SL_RECOVER_NEVER && (double)rows * row_us / others >= (double)back_us;
}

/* Nobody is wanted at this place any more: its experts go to others by the next change, which is
 * due where it has any. */
void sl_recover_release(sl_recover *r, uint32_t id, uint64_t now_us);
/* Somebody is again: who is there stays, or somebody is started at once. */
void sl_recover_want(sl_recover *r, uint32_t id, uint64_t now_us);

/* A time so much later; NEVER is never over. */
static inline uint64_t sl_recover_later(uint64_t now_us, uint64_t by_us) {
    return by_us > SL_RECOVER_NEVER - now_us ? SL_RECOVER_NEVER : now_us + by_us;
}

/* To be asked until it says NOTHING. *id: of the place, for DROP and START. */
sl_recover_word sl_recover_next(sl_recover *r, uint64_t now_us, uint32_t *id);

#endif

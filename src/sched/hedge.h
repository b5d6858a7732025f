/* Which expert workers let others wait for too long, as an attention worker sees it: hedging.
 *
 * Of each worker it is known what it owes, by lane, and since when. Time counts against a worker
 * from when another one has answered in the same lane: before that all may have a reason in common,
 * such as a member of the round that has not sent yet, or a machine that is busy. How long it may
 * take from then on is `times` the longest of what is usual for it, what the other one took, and
 * what so many rows of this sender's usually take there. Longer is overdue, unless the worker has
 * said that it has so much to do, for others too (sched/busy.h). Time that is overdue is added up,
 * and forgotten at the rate `leak` of all other time: so one long silence makes a worker slow, and
 * so do many short ones, but not what happens now and then.
 *
 *   sent        another answers           allowed over          wasted: floor_us
 *    |-------------->|------------------------>|----------------------->| SLOW is said
 *    |  doubt_us, and twice as much each time: DOUBT is said of all that owe
 *
 * Without one that hosts something alone nobody goes on before others have mapped that. So SLOW is
 * said of it from alone_us on, and with how much it has wasted (sl_hedge_wasted_us), again and
 * again: whether it is left out is weighed against what that costs (sched/rehost.h). Meanwhile its
 * answers that are overdue hardly change what is usual, or it would seem well before long. What it
 * has wasted is known up to most_us, and a part of it, one in forget_us, is forgotten.
 *
 * Whoever owes for long may as well stand still under much work, or nobody answers, or nobody else
 * could, as of a JOIN. Then somebody else has to tell whether a worker lives: DOUBT asks for that.
 * SLOW is not repeated before pause_us have passed.
 *
 * What is usual is learnt from answers, of each worker by itself, one by one and from none very
 * much, and kept over plans. At first it is as long as makes nobody suspect. Time in which this
 * machine was not asked, as its process was busy or stood still, counts as blink_us at most. Where
 * this process itself is run late, as others want its core, others may be late as well: they are
 * given SL_HEDGE_LATE times as much more.
 *
 * No I/O, clock or threads; only create allocates. Times are microseconds of one clock. Thread:
 * owner. */
#ifndef SL_SCHED_HEDGE_H
#define SL_SCHED_HEDGE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_hedge_opts {
    double times;
    double leak;
    uint64_t floor_us, doubt_us, pause_us, blink_us;
    uint64_t alone_us, most_us, forget_us;
} sl_hedge_opts;

#define SL_HEDGE_OPTS                                                                              \
    ((sl_hedge_opts){.times = 4,                                                                   \
                     .leak = 0.25,                                                                 \
                     .floor_us = 150000,                                                           \
                     .doubt_us = 100000,                                                           \
                     .pause_us = 1000000,                                                          \
                     .blink_us = 20000,                                                            \
                     .alone_us = 1000000,                                                          \
                     .most_us = 60000000,                                                          \
                     .forget_us = 20000000})

/* While anybody owes something time is to pass (sl_hedge_pass) as often as this. */
#define SL_HEDGE_LOOK_US 10000u

/* Of what this process is run late, others may be later. */
#define SL_HEDGE_LATE 4u

/* Heartbeats leave every quarter of a second, also from a process that computes: who is not heard
 * for so long, and was asked about so long ago, stands still. */
#define SL_HEDGE_SILENT_US 350000u
#define SL_HEDGE_ASKED_US  50000u

/* Whether the worker that somebody has doubts about since asked_us, and that was not heard for so
 * long, stands still; late_us: how late this process is run. */
static inline bool sl_hedge_stands_still(uint64_t silent_us, uint64_t asked_us, uint64_t late_us,
                                         uint64_t now_us) {
    return silent_us >= SL_HEDGE_SILENT_US + SL_HEDGE_LATE * late_us &&
           now_us >= asked_us + SL_HEDGE_ASKED_US;
}

typedef enum sl_hedge_word {
    SL_HEDGE_NOTHING,
    SL_HEDGE_SLOW,  /* others answered long before it */
    SL_HEDGE_DOUBT, /* it has not answered for long: does it live? */
} sl_hedge_word;

/* What a worker owes a lane. */
typedef struct sl_hedge_debt {
    uint64_t owed;      /* answers, or positions of rows; 0: nothing */
    uint64_t got;       /* since nobody owed the lane anything */
    double rows;        /* that are not answered */
    bool evident;       /* another one has answered what it owes */
    uint64_t waited_us; /* since then; else since it was sent, or its last answer */
    uint64_t first_us;  /* evident: what the other one took */
    uint64_t doubt_us;  /* it is doubted when it was waited for so long in all */
} sl_hedge_debt;

typedef struct sl_hedge_worker {
    double usual_us;   /* from another one's answer to its own */
    double row_us;     /* that a row usually takes; 0: none was met */
    double wasted_us;  /* that it was overdue, less what was forgotten; twice the floor at most */
    bool overdue;      /* it is */
    bool alone;        /* it hosts something that nobody else does */
    uint32_t n_late;   /* answers that were overdue, meanwhile */
    uint64_t quiet_us; /* it is not said to be slow before */
    uint64_t busy_us;  /* until then it has to do, as it said */
} sl_hedge_worker;

typedef struct sl_hedge {
    sl_hedge_opts o;
    uint32_t n_lanes, n_workers;
    sl_hedge_debt *debt;     /* [n_lanes][n_workers] */
    sl_hedge_worker *worker; /* [n_workers] */
    uint64_t now_us;         /* until then time has passed */
    uint64_t late_us;        /* how late this process is run */
    uint32_t n_owing;        /* debts */
    bool wasted;             /* by anybody, and not forgotten */
} sl_hedge;

/* Nobody owes anything. SL_ERR_NOMEM. */
sl_status sl_hedge_create(uint32_t n_lanes, uint32_t n_workers, const sl_hedge_opts *o,
                          sl_hedge *out, sl_err *err) SL_MUST_CHECK;
void sl_hedge_free(sl_hedge *h); /* zeroed is fine */
/* Nobody owes anything any more, as steps were given up, or another plan holds. */
void sl_hedge_reset(sl_hedge *h);

/* n answers, or positions of rows, are due from the worker, for so many rows; 0: for none. */
void sl_hedge_sent(sl_hedge *h, uint32_t lane, uint32_t worker, uint64_t n, uint64_t rows);
/* n of them have come. */
void sl_hedge_answered(sl_hedge *h, uint32_t lane, uint32_t worker, uint64_t n);
/* It has to do for so long, as it says. */
void sl_hedge_busy(sl_hedge *h, uint32_t worker, uint64_t us, uint64_t now_us);
/* Whether it hosts something that nobody else does. */
void sl_hedge_alone(sl_hedge *h, uint32_t worker, bool alone);
/* It is gone, or counts as gone: it owes nothing. */
void sl_hedge_forgive(sl_hedge *h, uint32_t worker);

static inline bool sl_hedge_is_owed(const sl_hedge *h) {
    return h->n_owing > 0;
}
/* It is now_us, and this process was run late_us late lately. What has come until then is to be
 * told before. False: that changes nothing, as nobody owes anything or it is too soon after the
 * last time. */
bool sl_hedge_pass(sl_hedge *h, uint64_t now_us, uint64_t late_us);
/* How long others have waited for it in vain, less what was forgotten. */
static inline uint64_t sl_hedge_wasted_us(const sl_hedge *h, uint32_t worker) {
    return (uint64_t)h->worker[worker].wasted_us;
}
/* To be asked until it says NOTHING. */
sl_hedge_word sl_hedge_next(sl_hedge *h, uint32_t *worker);

#endif

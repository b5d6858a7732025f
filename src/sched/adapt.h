/* When experts move while a deployment serves: their load is counted in windows, and another
 * placement (plan/rebalance.h) is taken when it pays for itself.
 *
 * What an expert x of block b got in a window are the rows that came for it: those that its hosts
 * computed, and by how much their queues grew (schedule aep, AMoE 3.2; without queues nothing
 * does):
 *
 *   rows(b, x) = sum over hosts w of max(0, computed(w, b, x) + queue'(w, b, x) - queue(w, b, x))
 *
 * A worker that has no time left computes the same in every window, however much more comes. What
 * waits there is what shows it, and it counts when it comes: not again when it is computed, nor in
 * each window in which it waits. (AMoE's cluster manager, 3.1, moves no experts; this is ours.)
 *
 * At the end of a window, when another one came before it:
 *
 *   1. The load of earlier windows (those further back count less) is uneven by the placement that
 *      holds, and so is that of the last one.
 *   2. A placement is made from the earlier windows alone, block after block.
 *   3. It has to be better on these AND on the last window, which it has not seen: what was chance,
 *      or went as it came, is not followed.
 *   4. What it saves in `horizon_us` has to be more than the pause and the mapping of weights cost.
 *   5. What it adds has to fit into the memory of each machine (sched/room.h). A device with memory
 *      of its own, as a GPU, is given no more than it has room for in the first place. It is never
 *      filled: one place in eight stays free, since what comes stands beside what goes. So what
 *      belongs there comes by several changes where it does not by one. With no room at all
 *      nothing can come, and when something would, that is said as what does not fit.
 *
 * After a change the next one is at least rest_us away. One that did not keep in the windows after
 * it half of what was promised doubles that time, up to 2^max_doublings; one that did halves it.
 * So who makes loads on purpose that change whenever experts move gets ever fewer changes.
 *
 * The driver adds what workers report, and asks once for each turn of its loop. The same calls give
 * the same words. No I/O, clock or threads; only create allocates. Times are microseconds of one
 * clock. Thread: owner. */
#ifndef SL_SCHED_ADAPT_H
#define SL_SCHED_ADAPT_H

#include "plan/rebalance.h"
#include "sched/room.h"

typedef struct sl_adapt_opts {
    uint64_t window_us;
    double window_rows; /* a window lasts until it has so many (row, expert) pairs a block, too */
    double decay;       /* what a window counts beside the one after it */
    double uneven;      /* least cost over the bound at which anything is thought about */
    double worth;       /* least cost over that of the new placement */
    uint64_t rest_us;   /* least time between changes */
    uint32_t max_doublings; /* of it */
    uint64_t horizon_us;    /* within which a change has to pay */
    double pause_us;        /* of all streams by a change, at first; then as the last one took */
    double touch_us;        /* a MiB of weights that are mapped, at the worker that gets them */
    uint64_t expert_bytes;  /* of one expert of one block; 0: devices without weights. The engine
                               has its own */
} sl_adapt_opts;

#define SL_ADAPT_OPTS                                                                              \
    ((sl_adapt_opts){.window_us = 2000000,                                                         \
                     .window_rows = 256,                                                           \
                     .decay = 0.5,                                                                 \
                     .uneven = 1.08,                                                               \
                     .worth = 1.03,                                                                \
                     .rest_us = 10000000,                                                          \
                     .max_doublings = 6,                                                           \
                     .horizon_us = 60000000,                                                       \
                     .pause_us = 20000,                                                            \
                     .touch_us = 100})

typedef enum sl_adapt_word {
    SL_ADAPT_NOTHING,
    SL_ADAPT_CHANGE,  /* begins a change to `next`, and says how it went */
    SL_ADAPT_REFUSED, /* it would pay, and does not fit: `why`. Said ever more rarely */
} sl_adapt_word;

/* What there is when the driver asks. All borrowed. */
typedef struct sl_adapt_view {
    const sl_placement *now; /* by which everybody works */
    const uint32_t *host;    /* [n_hosts] the expert workers, ascending */
    uint32_t n_hosts;
    sl_room room;
} sl_adapt_view;

/* Of the last thought that came to a word, for reading: steps' waiting for experts over the bound,
 * before and after, on the last window. */
typedef struct sl_adapt_promise {
    double before, after;
    double saved;     /* share of all time, of what experts cost */
    uint32_t n_moved; /* (block, expert) at a worker that had it not */
} sl_adapt_promise;

typedef enum sl_adapt_phase { SL_ADAPT_COUNTS, SL_ADAPT_THINKS, SL_ADAPT_CHANGES } sl_adapt_phase;

typedef struct sl_adapt {
    sl_adapt_opts o;
    sl_rebalance balance;
    sl_adapt_phase phase;
    sl_rebalance_load earlier, last, open; /* windows: decayed sum; closed last; that grows */
    uint32_t n_closed;                     /* windows so far, at most 2 */
    double open_rows, last_rows;           /* of all blocks */
    uint64_t opened_us, last_us;           /* the open window's begin; the last one's length */
    sl_spread now, next, before;           /* before: the last change */
    sl_adapt_promise promise;              /* for reading */
    double imbalance; /* of the last window, cost over the bound; 0: none. For reading */
    double pause_us;
    uint32_t block;             /* that is thought about */
    uint32_t *added;            /* [n_workers] */
    sl_rebalance_limits limits; /* of what is thought about; */
    bool limited;               /* there are some */
    uint64_t rests_until_us;
    uint32_t n_doublings, n_waits;
    uint32_t to_judge; /* windows until the last change is judged; 0: it was */
    double promised;   /* old cost over new */
    double kept;       /* mean of what it is above 1 in the windows so far */
    uint64_t changed_us;
    char why[200];
    void *arrays;
} sl_adapt;

/* SL_ERR_NOMEM, SL_ERR_UNSUPPORTED: too many workers. */
sl_status sl_adapt_create(const sl_rebalance_shape *s, const sl_adapt_opts *o, uint64_t now_us,
                          sl_adapt *out, sl_err *err) SL_MUST_CHECK;
void sl_adapt_free(sl_adapt *a); /* zeroed is fine */

/* What a worker says of an expert of a block. */
typedef struct sl_adapt_said {
    uint64_t rows, calls; /* computed since it spoke the last time */
    int64_t queued;       /* rows that wait there, more than did then; 0 without queues */
} sl_adapt_said;
void sl_adapt_add(sl_adapt *a, uint32_t block, uint32_t expert, sl_adapt_said said);
/* Whether next has something to do: a window is full, or a placement is being made. */
bool sl_adapt_is_due(const sl_adapt *a, uint64_t now_us);
/* Once a turn, while the deployment is whole and no change is under way. Milliseconds at most. */
sl_adapt_word sl_adapt_next(sl_adapt *a, const sl_adapt_view *v, uint64_t now_us);
/* The change that CHANGE began is over: `next` holds, or what held before. */
void sl_adapt_changed(sl_adapt *a, bool taken, uint64_t pause_us, uint64_t now_us);
/* Somebody else has changed who hosts what, or is about to: what was counted by the old placement
 * in the open window is dropped. */
void sl_adapt_disturbed(sl_adapt *a, uint64_t now_us);

#endif

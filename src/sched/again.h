/* What a lane has with the experts for one layer, and what of it goes there again: rows that an
 * expert worker owes when it is lost, or done without as it lets others wait, are sent to replicas
 * of its experts, outside of the barrier, while all else of the step goes on.
 *
 * Rows are counted in groups: those of one chunk that have one owner. A group is answered as a
 * whole, by its owner or by an attempt, which is as many messages as it takes workers to stand in
 * for the owner. The first whole answer counts, also that of an owner who is done without; whatever
 * else was asked for is late: it is dropped when it comes, or forgotten with its worker. So no row
 * is ever made of parts of two answers, whose sums may be grouped otherwise, and none is counted
 * twice.
 *
 *            sent                       replied
 *   REST ----------> AWAY --------------------------------> HERE --close--> REST
 *                     |                                      ^
 *                     | lost or spared: the owner, or one    | answered, all messages of
 *                     v who stands in                        | the attempt; or replied, by an
 *                    DUE --begin, with...--> TRIED ----------+ owner who was spared (DUE, too)
 *                     ^                        |
 *                     +------------------------+ lost or spared: one who stands in
 *
 * An attempt of which one who stands in is lost or spared is void: all of it is late. Attempts are
 * numbered from 1 in each plan; a message of one carries its number, and the answer repeats it. No
 * worker that is asked has two messages for a group: where one still owes an answer that would be
 * late, the next attempt waits, unless that one was spared, of whom nothing more is asked. Workers
 * are named by their index among the expert workers.
 *
 * Events in, verdicts out; the driver keeps payloads, by call. No I/O, clock or threads; calls take
 * memory when there are more at once than ever before. Thread: owner. */
#ifndef SL_SCHED_AGAIN_H
#define SL_SCHED_AGAIN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_AGAIN_NONE UINT32_MAX

typedef enum sl_again_phase {
    SL_AGAIN_REST,
    SL_AGAIN_AWAY,  /* with its owner */
    SL_AGAIN_DUE,   /* to be sent again */
    SL_AGAIN_TRIED, /* sent again */
    SL_AGAIN_HERE,
} sl_again_phase;

/* What the owner of a group owes beside the phase. */
typedef enum sl_again_debt {
    SL_DEBT_NONE,
    SL_DEBT_OPEN, /* DUE, TRIED: its answer, which counts if it is first */
    SL_DEBT_LATE, /* its answer, for which another one has counted */
} sl_again_debt;

typedef struct sl_again_group {
    sl_again_phase phase;
    sl_again_debt debt;
    uint32_t rows;    /* of its owner's answer */
    uint32_t missing; /* TRIED: messages of the attempt that are not answered */
    uint64_t attempt; /* the latest */
} sl_again_group;

/* A message of an attempt, at its place until it is answered and the group closed. */
typedef struct sl_again_call {
    enum { SL_CALL_FREE, SL_CALL_AWAY, SL_CALL_HERE, SL_CALL_LATE } state;
    uint32_t group, worker;
    uint64_t attempt;
} sl_again_call;

typedef enum sl_again_verdict {
    SL_AGAIN_KEPT,  /* it counts, and more of its group is to come */
    SL_AGAIN_WHOLE, /* with it the group is here */
    SL_AGAIN_LATE,  /* another one counted: to be dropped */
    SL_AGAIN_WRONG, /* nobody asked for it */
} sl_again_verdict;

typedef struct sl_again {
    uint32_t n_workers, n_groups; /* group = chunk * n_workers + owner */
    sl_again_group *group;        /* [n_groups] */
    uint8_t *spared;              /* [n_workers] it lives, and nothing more is asked of it */
    sl_again_call *call;          /* [n_calls], of room for cap */
    uint32_t n_calls, cap;
    uint32_t n_due;      /* groups */
    uint64_t n_attempts; /* begun */
    /* The payload of a call that was answered is needed no more. */
    void (*drop)(void *ctx, uint32_t call);
    void *ctx;
} sl_again;

/* SL_ERR_NOMEM; *out can be freed then, too. */
sl_status sl_again_create(uint32_t chunks, uint32_t n_workers,
                          void (*drop)(void *ctx, uint32_t call), void *ctx, sl_again *out,
                          sl_err *err) SL_MUST_CHECK;
void sl_again_free(sl_again *a); /* zeroed is fine; drops nothing */
/* Everything is forgotten; what was answered is dropped. */
void sl_again_reset(sl_again *a);

/* ---- a layer ---- */

/* The group, so many rows, is with its owner from now on; lost: nothing is sent there. */
void sl_again_sent(sl_again *a, uint32_t group, bool lost, uint32_t rows);
/* Its owner has answered it. */
sl_again_verdict sl_again_replied(sl_again *a, uint32_t group);
/* Whether that would be late: it need not fit into what the lane awaits now. */
static inline bool sl_again_is_late(const sl_again *a, uint32_t group) {
    return a->group[group].debt == SL_DEBT_LATE;
}
/* The worker has answered its message of this attempt; *call: of which group, to be kept there. */
sl_again_verdict sl_again_answered(sl_again *a, uint32_t worker, uint64_t attempt, uint32_t *call);
/* All groups are here, and what came was used: the next layer may begin. */
void sl_again_close(sl_again *a);

/* ---- losses ---- */

/* The worker is gone, with all that it owed. */
void sl_again_lost(sl_again *a, uint32_t worker);
/* The worker is done without, though it lives and may still answer what it owes. */
void sl_again_spare(sl_again *a, uint32_t worker);
/* A group that can be sent again now; NONE. */
uint32_t sl_again_next(const sl_again *a);
/* It is: number of the attempt. */
uint64_t sl_again_begin(sl_again *a, uint32_t group);
/* One of its messages goes to this worker. SL_ERR_NOMEM: as if nothing had been asked. */
sl_status sl_again_with(sl_again *a, uint32_t group, uint32_t worker, sl_err *err) SL_MUST_CHECK;
/* That were all. True: there are none, as it has no rows, and so it is here. */
bool sl_again_end(sl_again *a, uint32_t group);
/* Whether the attempt is still to be sent: nobody who stands in was lost or spared since, and the
 * owner has not answered. */
static inline bool sl_again_is_tried(const sl_again *a, uint32_t group, uint64_t attempt) {
    return a->group[group].phase == SL_AGAIN_TRIED && a->group[group].attempt == attempt;
}
/* It was not: nobody owes anything of it. */
void sl_again_withdraw(sl_again *a, uint64_t attempt);

#endif

/* Who of a plan is there: the life of each worker, as its coordinator knows it.
 *
 *              hello           ready           silent
 *      ABSENT -------> JOINING ------> SERVING ------> SUSPECT
 *         ^               |               |  <------      |
 *         | reopen        | ended         | ended  heard  | ended
 *         |               v               v               v
 *         +--------------------------- GONE
 *
 * A life is known by id and incarnation, the number that a process draws when it starts: who is
 * given up does not come back, a process that takes its place is another one, and what is said of
 * an earlier one is stale. Also a worker that never came may end, when its process does.
 *
 * What follows from an end is said as duties of whoever can see to them; who cannot gives up what
 * depends on the worker. No I/O, clock or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_ROSTER_H
#define SL_SCHED_ROSTER_H

#include "base/status.h"
#include "spec/plan.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_ROSTER_NONE UINT32_MAX /* no place; any place */
#define SL_ROSTER_ANY  UINT64_MAX /* whatever the incarnation */

typedef enum sl_roster_state {
    SL_ROSTER_ABSENT,  /* its place is free */
    SL_ROSTER_JOINING, /* it is connected and gets ready */
    SL_ROSTER_SERVING,
    SL_ROSTER_SUSPECT, /* it lives and is left out for a while: links broke, or others waited */
    SL_ROSTER_GONE,
} sl_roster_state;

/* After the end of a worker that served. */
typedef enum sl_roster_duty {
    SL_ROSTER_ANNOUNCE = 1, /* it was in rounds: whoever waits for it there has to know */
    SL_ROSTER_RESET = 2,    /* rows were with it: lanes go back to where their steps began */
    SL_ROSTER_REHOST = 4,   /* its experts need other hosts */
} sl_roster_duty;

typedef struct sl_roster_worker {
    sl_roster_state state;
    sl_roster_state reached; /* ABSENT, JOINING or SERVING, since its place was opened */
    uint32_t roles;          /* of the plan */
    bool prompts;            /* of the side for prompts, without which others serve */
    uint64_t incarnation;    /* who is there or was last; SL_ROSTER_ANY: nobody yet */
} sl_roster_worker;

typedef struct sl_roster {
    sl_roster_worker *worker; /* [n] by id; for reading */
    uint32_t n;
    uint32_t n_came, n_ready; /* that have reached JOINING, SERVING; they may be gone since */
} sl_roster;

/* n workers, all absent, without roles. SL_ERR_NOMEM. */
sl_status sl_roster_create(uint32_t n, sl_roster *out, sl_err *err) SL_MUST_CHECK;
void sl_roster_free(sl_roster *r); /* zeroed is fine */
/* Bits SL_ROLE_*. Before anybody comes. */
void sl_roster_expect(sl_roster *r, uint32_t id, uint32_t roles);

void sl_roster_set_prompts(sl_roster *r, uint32_t id);

/* Somebody asks for the place `wanted`, or for any. The place that it has now; SL_ROSTER_NONE: that
 * is not free, or was its own until it was given up. */
uint32_t sl_roster_hello(sl_roster *r, uint32_t wanted, uint64_t incarnation);

/* The others take an id of the plan. False: that is no news, or stale. */
bool sl_roster_ready(sl_roster *r, uint32_t id, uint64_t incarnation);
bool sl_roster_silent(sl_roster *r, uint32_t id, uint64_t incarnation);
bool sl_roster_heard(sl_roster *r, uint32_t id, uint64_t incarnation);
/* Its connection or its process ended, in good order or not. *duties: bits sl_roster_duty. */
bool sl_roster_ended(sl_roster *r, uint32_t id, uint64_t incarnation, uint32_t *duties);
/* Somebody else may come in place of one that is gone. */
void sl_roster_reopen(sl_roster *r, uint32_t id);

/* It can be told and asked things. */
static inline bool sl_roster_serves(const sl_roster *r, uint32_t id) {
    return r->worker[id].state == SL_ROSTER_SERVING || r->worker[id].state == SL_ROSTER_SUSPECT;
}

#endif

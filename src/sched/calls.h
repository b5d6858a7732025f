/* Rows that come to an expert worker outside of rounds: they stand in for those that another worker
 * owes, which is lost (sched/again.h). Each message is a call of its own, which waits for nobody
 * and runs before what rounds have ready; its sender gets one answer.
 *
 * A call has a place, one of those of its sender; what lies there, the driver keeps. No I/O, clock
 * or threads; only create allocates. Thread: owner. */
#ifndef SL_SCHED_CALLS_H
#define SL_SCHED_CALLS_H

#include "sched/idset.h"

#define SL_CALLS_NONE UINT32_MAX

typedef struct sl_calls {
    const sl_idset *members; /* attention workers; borrowed */
    uint32_t each;           /* places of one of them */
    uint8_t *state;          /* [members->n * each] */
    uint32_t *queue;         /* [members->n * each] ring: places in the order in which they came */
    uint32_t head, n;
    uint32_t running; /* place; NONE */
    void *arrays;     /* what they are in */
} sl_calls;

/* each: most calls that a member may have here. SL_ERR_NOMEM; *out can be freed then, too. */
sl_status sl_calls_create(const sl_idset *members, uint32_t each, sl_calls *out,
                          sl_err *err) SL_MUST_CHECK;
void sl_calls_free(sl_calls *c); /* zeroed is fine */
static inline uint32_t sl_calls_places(const sl_calls *c) {
    return (uint32_t)c->members->n * c->each;
}

/* A member's call. SL_ERR_PROTOCOL: it has as many here as it may have, or is no member. */
sl_status sl_calls_on_call(sl_calls *c, uint32_t member, uint32_t *place, sl_err *err);
/* The oldest runs from now on: its place; NONE: there is none. Not while one runs. */
uint32_t sl_calls_begin(sl_calls *c);
/* Whether the running call is to be answered: its member has not gone. */
bool sl_calls_is_owed(const sl_calls *c);
/* It ran: its place is free. */
void sl_calls_end(sl_calls *c);
/* The member is gone: the next of its calls that wait, whose place is free from now on; NONE: no
 * more. To be asked until then. */
uint32_t sl_calls_drop(sl_calls *c, uint32_t member);

#endif

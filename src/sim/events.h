/* The clock of a simulation: events in the order of their times, and of those at one time in the
 * order in which they were pushed. That is a total order, so a run is a function of its inputs. A
 * heap with four children a node in one flat array. Times are of any unit. Thread: owner. */
#ifndef SL_SIM_EVENTS_H
#define SL_SIM_EVENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_sim_event {
    double at;
    uint64_t order;
    uint32_t kind, who; /* the caller's */
    uint64_t what;
} sl_sim_event;

/* Zero-initialise; free with sl_sim_events_free. */
typedef struct sl_sim_events {
    sl_sim_event *heap;
    size_t n, cap;
    uint64_t pushed, popped;
    double now;  /* of the event popped last */
    bool failed; /* out of memory: an event is missing */
} sl_sim_events;

/* `at` before `now` is our bug. Out of memory: `failed`. */
void sl_sim_events_push(sl_sim_events *e, double at, uint32_t kind, uint32_t who, uint64_t what);
/* False: there is none. */
bool sl_sim_events_pop(sl_sim_events *e, sl_sim_event *out);
/* Whether the next event is at the time of the one popped last. */
bool sl_sim_events_at_once(const sl_sim_events *e);
void sl_sim_events_free(sl_sim_events *e);

/* A server that takes one task at a time, first come first served: a port, or one direction of a
 * link. */
typedef struct sl_sim_port {
    double free_at, busy;
} sl_sim_port;

/* A task that comes now and takes so long; returns when it is done. */
static inline double sl_sim_port_take(sl_sim_port *p, double now, double takes) {
    double begin = p->free_at > now ? p->free_at : now;
    p->busy += takes;
    p->free_at = begin + takes;
    return p->free_at;
}

#endif

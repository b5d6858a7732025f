/* The clock of a simulation: events in the order of their times, and of those at one time in the
 * order in which they were pushed. That is a total order, so a run is a function of its inputs. A
 * heap with four children a node in one flat array. Times are of any unit. Thread: owner. */
#ifndef SL_SIM_EVENTS_H
#define SL_SIM_EVENTS_H

#include "base/status.h"
#include "spec/costs.h"

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

/* A message of so many bytes leaves now through its sender's out-port, over links that cost c and
 * travel for travel_us: returns when its first byte is at the receiver's in-port. */
static inline double sl_sim_leave(sl_sim_port *out, double now, const sl_link_cost *c,
                                  double travel_us, double bytes) {
    double takes = sl_link_cost_port_us(c, bytes), end = sl_sim_port_take(out, now, takes);
    return SL_MAX(end - takes, now) + travel_us; /* rounding must not take it into the past */
}

/* It is there now: returns when the receiver, with links that cost c, has it all, which is when the
 * in-port has been occupied for as long as the message takes, and when the last byte has come. */
static inline double sl_sim_come(sl_sim_port *in, double now, const sl_link_cost *sender,
                                 const sl_link_cost *c, double bytes) {
    double end = sl_sim_port_take(in, now, sl_link_cost_port_us(c, bytes));
    return SL_MAX(end, now + sl_link_cost_port_us(sender, bytes));
}

#endif

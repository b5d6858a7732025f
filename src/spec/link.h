/* What a message between two devices costs in time, measured or from a data sheet. Plain numbers.
 * Thread: any. */
#ifndef SL_SPEC_LINK_H
#define SL_SPEC_LINK_H

#include <stdbool.h>

/* One message of x bytes between two devices: alpha + byte * (x + half) + beyond * max(0, x - knee)
 * microseconds; without a knee that is alpha + x * byte / U(x) with the utilisation U(x) = x / (x +
 * half) of MegaScale-Infer 4.1. */
typedef struct sl_link_cost {
    double alpha_us;   /* of any message, also an empty one, until its receiver has it in hand */
    double byte_us;    /* per byte at full utilisation: 1e6 / (bytes/s) */
    double half_bytes; /* message size that reaches half the bandwidth; 0: all do */
    double knee_bytes; /* what a message has above this... */
    double beyond_us;  /* ...costs so much more per byte: it leaves the caches */
    double work_us;    /* of alpha, at either end: the worker's own time for the message */
    bool half_duplex;  /* both directions share the bandwidth */
} sl_link_cost;

/* How long a message occupies a port. */
static inline double sl_link_cost_port_us(const sl_link_cost *c, double bytes) {
    double beyond = bytes > c->knee_bytes ? bytes - c->knee_bytes : 0;
    return bytes > 0 ? c->byte_us * (bytes + c->half_bytes) + c->beyond_us * beyond : 0;
}

static inline double sl_link_cost_us(const sl_link_cost *c, double bytes) {
    return c->alpha_us + sl_link_cost_port_us(c, bytes);
}

#endif

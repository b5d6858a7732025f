/* What stages and links cost in time: measured (sluice profile) or estimated from data sheets
 * (src/plan/roofline.h). Planner, solver, simulator and the emulated device evaluate costs with
 * these functions and no others. Thread: any. */
#ifndef SL_SPEC_COSTS_H
#define SL_SPEC_COSTS_H

#include <math.h>

#include "spec/device.h"

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

/* Of one device of a deployment. A stage is one block's: attention of `rows` rows whose contexts
 * sum to `keys` keys, the router, dense and shared feed-forward of `rows` rows, one expert with its
 * `rows` rows, the head for `rows` rows. */
typedef struct sl_costs {
    sl_stage_cost stage[SL_COST_COUNT];
    /* A stage takes so many times longer while another worker computes in the same machine's
     * memory, and as much again for each further one; 0 or 1: no longer. */
    double beside[SL_COST_COUNT];
    sl_link_cost link; /* to a device of the other role */
    bool estimated;    /* not measured: outputs have to say so */
} sl_costs;

/* Microseconds of a stage for a known number of rows. */
static inline double sl_stage_cost_us(const sl_stage_cost *c, double rows, double keys) {
    double work = c->row_us * rows + c->key_us * keys;
    if (c->step > 1) work += c->pad_us * (ceil(rows / c->step) * c->step - rows);
    return c->fixed_us + (work > c->floor_us ? work : c->floor_us);
}

/* What the last group of rows costs on top when all remainders are as likely. */
static inline double sl_stage_cost_mean_pad_us(const sl_stage_cost *c) {
    return c->step > 1 ? c->pad_us * (c->step - 1) / 2 : 0;
}

/* How long a message occupies a port. */
static inline double sl_link_cost_port_us(const sl_link_cost *c, double bytes) {
    double beyond = bytes > c->knee_bytes ? bytes - c->knee_bytes : 0;
    return bytes > 0 ? c->byte_us * (bytes + c->half_bytes) + c->beyond_us * beyond : 0;
}

static inline double sl_link_cost_us(const sl_link_cost *c, double bytes) {
    return c->alpha_us + sl_link_cost_port_us(c, bytes);
}

/* Rows from which on a stage costs more than its floor; 0: from the first. */
static inline double sl_stage_cost_knee(const sl_stage_cost *c) {
    return c->row_us > 0 ? c->floor_us / c->row_us : 0;
}

#endif

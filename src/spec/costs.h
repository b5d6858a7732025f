/* What stages and links cost in time: measured (sluice profile) or estimated from data sheets
 * (src/plan/roofline.h). Planner, solver, simulator and the emulated device evaluate costs with
 * these functions and no others. Thread: any. */
#ifndef SL_SPEC_COSTS_H
#define SL_SPEC_COSTS_H

#include "spec/lab.h"

/* One message of x bytes between two devices: alpha + byte * (x + half) microseconds, which is
 * alpha + x * byte / U(x) with the utilisation U(x) = x / (x + half) of MegaScale-Infer 4.1. */
typedef struct sl_link_cost {
    double alpha_us;   /* of any message, also an empty one */
    double byte_us;    /* per byte at full utilisation: 1e6 / (bytes/s) */
    double half_bytes; /* message size that reaches half the bandwidth; 0: all do */
    bool half_duplex;  /* both directions share the bandwidth */
} sl_link_cost;

/* Of one device of a deployment. A stage is one block's: attention of `rows` rows whose contexts
 * sum to `keys` keys, the router, dense and shared feed-forward of `rows` rows, one expert with its
 * `rows` rows, the head for `rows` rows. */
typedef struct sl_costs {
    sl_stage_cost stage[SL_COST_COUNT];
    sl_link_cost link; /* to a device of the other role */
    bool estimated;    /* not measured: outputs have to say so */
} sl_costs;

/* fixed + max(floor, row * rows + key * keys), microseconds. */
static inline double sl_stage_cost_us(const sl_stage_cost *c, double rows, double keys) {
    double work = c->row_us * rows + c->key_us * keys;
    return c->fixed_us + (work > c->floor_us ? work : c->floor_us);
}

static inline double sl_link_cost_us(const sl_link_cost *c, double bytes) {
    return c->alpha_us + (bytes > 0 ? c->byte_us * (bytes + c->half_bytes) : 0);
}

/* Rows from which on a stage costs more than its floor; 0: from the first. */
static inline double sl_stage_cost_knee(const sl_stage_cost *c) {
    return c->row_us > 0 ? c->floor_us / c->row_us : 0;
}

#endif

/* What stages and links cost in time: measured (sluice profile) or estimated from data sheets
 * (src/plan/roofline.h). Planner, solver, simulator and the emulated device evaluate costs with
 * these functions and no others. Thread: any. */
#ifndef SL_SPEC_COSTS_H
#define SL_SPEC_COSTS_H

#include <math.h>

#include "spec/device.h"
#include "spec/link.h"

/* Of one device of a deployment. A stage is one block's: attention of `rows` rows whose contexts
 * sum to `keys` keys, the router, dense and shared feed-forward of `rows` rows, one expert with its
 * `rows` rows, the head for `rows` rows. */
typedef struct sl_costs {
    sl_stage_cost stage[SL_COST_COUNT];
    /* A stage takes so many times longer while another worker computes in the same machine's
     * memory, and as much again for each further one; 0 or 1: no longer. */
    double beside[SL_COST_COUNT];
    /* What a stage reads of weights, in bytes, and how many bytes of them the machine's largest
     * cache keeps, as it was measured; 0: weights always come from memory. */
    double bytes[SL_COST_COUNT], cache_bytes;
    sl_link_cost link; /* to a device of the other role */
    bool estimated;    /* not measured: outputs have to say so */
    bool grouped;      /* all experts of a task are one launch, whose fixed part is there once */
} sl_costs;

/* What a stage takes besides what is fixed, however little its rows compute. */
static inline double sl_stage_cost_least_us(const sl_stage_cost *c, double rows) {
    return c->floor_us + c->slope_us * rows;
}

/* Microseconds of a stage for a known number of rows. */
static inline double sl_stage_cost_us(const sl_stage_cost *c, double rows, double keys) {
    double work = c->row_us * rows + c->key_us * keys;
    if (c->step > 1) work += c->pad_us * (ceil(rows / c->step) * c->step - rows);
    return c->fixed_us + fmax(work, sl_stage_cost_least_us(c, rows)) + c->task_us + c->sum_us +
           c->sum_row_us * rows;
}

/* The share of weights that is still in a cache after `since` other bytes came from memory: a line
 * that comes puts out any other, as likely as the next. */
static inline double sl_cache_keeps(double cache_bytes, double since) {
    return cache_bytes > 0 ? exp(-since / cache_bytes) : 0;
}

/* The stage where reading takes so much less: that is the floor, or else part of what is fixed. */
static inline sl_stage_cost sl_stage_cost_less(const sl_stage_cost *c, double us) {
    sl_stage_cost less = *c;
    const double of_floor = us < c->floor_us ? us : c->floor_us;
    less.floor_us -= of_floor;
    less.fixed_us = fmax(less.fixed_us - (us - of_floor), 0);
    return less;
}

/* The stage where such a share of its weights is near. */
static inline sl_stage_cost sl_stage_cost_near(const sl_stage_cost *c, double share) {
    return sl_stage_cost_less(c, c->again_us * share);
}

/* All of it takes so many times longer. */
static inline sl_stage_cost sl_stage_cost_scaled(const sl_stage_cost *c, double times) {
    return (sl_stage_cost){.fixed_us = times * c->fixed_us,
                           .floor_us = times * c->floor_us,
                           .slope_us = times * c->slope_us,
                           .row_us = times * c->row_us,
                           .key_us = times * c->key_us,
                           .pad_us = times * c->pad_us,
                           .step = c->step,
                           .read_us = times * c->read_us,
                           .sum_us = times * c->sum_us,
                           .sum_row_us = times * c->sum_row_us,
                           .task_us = times * c->task_us,
                           .again_us = times * c->again_us};
}

/* One expert's rows of a task; first: of its experts. A task begins, and a gang adds up, once. */
static inline double sl_expert_cost_us(const sl_stage_cost *expert, bool grouped, double rows,
                                       bool first) {
    double us = sl_stage_cost_us(expert, rows, 0);
    if (first) return us;
    return us - expert->task_us - expert->sum_us - (grouped ? expert->fixed_us : 0);
}

/* What the last group of rows costs on top when all remainders are as likely. */
static inline double sl_stage_cost_mean_pad_us(const sl_stage_cost *c) {
    return c->step > 1 ? c->pad_us * (c->step - 1) / 2 : 0;
}

/* Rows from which on a stage costs more than its floor; 0: from the first. */
static inline double sl_stage_cost_knee(const sl_stage_cost *c) {
    return c->row_us > c->slope_us ? c->floor_us / (c->row_us - c->slope_us) : 0;
}

#endif

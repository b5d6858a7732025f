/* What a deployment may replace for experiments (docs/laboratory.md): the router's choice by draws
 * of a known skew, and the computations by waiting for a modelled time. Plain numbers of plan.json.
 */
#ifndef SL_SPEC_LAB_H
#define SL_SPEC_LAB_H

#include <stdbool.h>
#include <stdint.h>

#define SL_SKEW_MAX_THETA 20.0
#define SL_STAGE_MAX_STEP 65536

/* p_e ~ exp(-theta * e), as AMoE fits expert popularity (docs/numbers.md, "Route skew"). */
typedef struct sl_route_skew {
    bool on;
    bool permuted; /* which expert has rank e differs from MoE block to MoE block */
    double theta;  /* 0 (uniform) to SL_SKEW_MAX_THETA */
    uint64_t seed;
} sl_route_skew;

typedef enum sl_cost_kind {
    SL_COST_ATTENTION, /* of one block, with its norms and projections */
    SL_COST_ROUTER,
    SL_COST_DENSE,
    SL_COST_SHARED,
    SL_COST_EXPERT, /* one expert's rows of one task */
    SL_COST_HEAD,   /* with sampling */
    SL_COST_COUNT
} sl_cost_kind;

/* Microseconds of a stage: fixed + max(floor, row * rows + pad * (rows that fill the last group of
 * `step` rows) + key * keys). */
typedef struct sl_stage_cost {
    double fixed_us;
    double floor_us; /* e.g. reading the weights, which takes as long for one row as for many */
    double row_us;
    double key_us; /* attention: per key of a row's context */
    double pad_us; /* <= row_us: kernels compute whole groups of rows */
    uint32_t step; /* rows of such a group; 0, 1: there are none */
} sl_stage_cost;

/* What executes the stages: the CPU, or nothing but the clock. */
typedef struct sl_device {
    bool emulated;
    double time_scale; /* every emulated stage takes so many times its cost */
    sl_stage_cost cost[SL_COST_COUNT];
} sl_device;

#endif

/* What a deployment may replace for experiments besides its device (spec/device.h): the router's
 * choice, by draws of a known skew (docs/laboratory.md). Plain numbers of plan.json. */
#ifndef SL_SPEC_LAB_H
#define SL_SPEC_LAB_H

#include <stdbool.h>
#include <stdint.h>

#define SL_SKEW_MAX_THETA 20.0

/* p_e ~ exp(-theta * e), as AMoE fits expert popularity (docs/numbers.md, "Route skew"). */
typedef struct sl_route_skew {
    bool on;
    bool permuted; /* which expert has rank e differs from MoE block to MoE block */
    double theta;  /* 0 (uniform) to SL_SKEW_MAX_THETA */
    uint64_t seed;
} sl_route_skew;

#endif

/* Inside of lab_load: load.c reads the configuration, drive.c drives the requests. */
#ifndef SL_BENCH_LAB_LOAD_INT_H
#define SL_BENCH_LAB_LOAD_INT_H

#include "engine/coord/engine.h"
#include "format/json.h"

#define LOAD_MAX_OPEN 65536u

typedef struct load_spec {
    bool open;            /* open loop: Poisson arrivals of `rate` a second */
    uint32_t concurrency; /* closed: requests in flight; open: at most so many */
    double rate;
    uint64_t requests; /* in all; 0: until the time is over */
    double warmup_s, measure_s;
    uint32_t prompt[2], output[2]; /* tokens, uniform from least to most */
    uint64_t seed;
    uint32_t vocab;
    double time_scale;
    double slo_ttft_ms, slo_tpot_ms; /* objectives of a request; 0: none */
} load_spec;

/* Runs the load and prints the result on stdout. Fails when a request does. */
sl_status load_run(sl_engine *e, const load_spec *l, sl_err *err) SL_MUST_CHECK;

#endif

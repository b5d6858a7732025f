/* What clients ask for: lengths, arrivals, latency objectives. Read by src/format/workload_file.h,
 * freed by sl_workload_free there; means and quantiles are in src/plan/lengths.h.
 * Thread: immutable after filling. */
#ifndef SL_SPEC_WORKLOAD_H
#define SL_SPEC_WORKLOAD_H

#include "spec/lab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_WORKLOAD_NAME       64
#define SL_WORKLOAD_MAX_LENGTH (1u << 24) /* tokens of one prompt or answer */

typedef enum sl_length_kind {
    SL_LENGTH_FIXED,     /* always `low` */
    SL_LENGTH_UNIFORM,   /* every integer from `low` to `high` alike */
    SL_LENGTH_LOGNORMAL, /* round(median * exp(sigma z)), z standard normal, cut to low..high */
    SL_LENGTH_TRACE,     /* the `n` values seen */
} sl_length_kind;

/* A distribution of numbers of tokens, each >= 1. */
typedef struct sl_length {
    sl_length_kind kind;
    uint32_t low, high;
    double median, sigma;
    uint32_t *sorted; /* trace: ascending, owned by the workload */
    size_t n;
} sl_length;

typedef enum sl_arrival_kind {
    SL_ARRIVAL_CLOSED,  /* `concurrency` requests at all times: one ends, the next comes; 0: as many
                           as the deployment has room for (a plan's, not a simulation's) */
    SL_ARRIVAL_POISSON, /* `rate` requests a second */
    SL_ARRIVAL_TRACE,   /* when the trace's came, `speed` times as fast */
} sl_arrival_kind;

typedef struct sl_arrival {
    sl_arrival_kind kind;
    uint32_t concurrency;
    double rate;
    double speed;
} sl_arrival;

typedef struct sl_trace_request {
    uint64_t at_us; /* since the first */
    uint32_t input, output;
} sl_trace_request;

typedef struct sl_workload {
    char name[SL_WORKLOAD_NAME];
    sl_length input, output; /* tokens of prompts and of answers */
    sl_arrival arrival;
    uint64_t n_requests;             /* of a simulation; 0: not given. A trace: n_trace */
    double slo_ttft_us, slo_tpot_us; /* 0: none */
    double slo_quantile;             /* share of requests that has to keep them, (0, 1] */
    sl_route_skew skew;              /* popularity of experts */
    /* Of guesses of what is said next (sched/draft.h): how often the next one is right, and after
     * how many steps there are any, where they are looked up; and how often one of a checkpoint's
     * block, 0: as guess_right. guess_right 0: nobody said. */
    double guess_right, guess_found, guess_block;
    sl_trace_request *trace; /* owned, by arrival; NULL: no trace */
    size_t n_trace;
} sl_workload;

#endif

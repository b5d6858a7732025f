/* A deployment in virtual time: the engine's schedulers (src/sched: admission and KV pages, slots,
 * turns, membership and barriers, queues, policies, batching, pacing) on modelled costs. What
 * decides is the code that ships; what takes time is sl_costs. The rest of the engine (lanes,
 * rounds, messages) is followed rule by rule, and tests/decide holds every decision against the
 * engine's. docs/planner.md says what is modelled and what is not.
 *
 * Servers: each worker's compute, its out-port and in-port (one port for both with half duplex),
 * under schedule hybrid so many for each of its ranks, over which long messages of rows go in
 * stripes. A message occupies the sender's out-port for byte_us a byte, travels alpha_us, and
 * occupies the receiver's in-port as it comes; all are first in, first out. A worker takes up
 * between its tasks what came meanwhile; who can do something at one time does it in the order of
 * ids, the coordinator last. Deterministic: a run is a function of its setup. Times in
 * microseconds. Thread: owner. */
#ifndef SL_SIM_DEPLOYMENT_H
#define SL_SIM_DEPLOYMENT_H

#include <stdio.h>

#include "base/trace.h"
#include "sched/watch.h"
#include "spec/costs.h"
#include "spec/model.h"
#include "spec/plan.h"
#include "spec/workload.h"

/* What a lane's step without rows takes. A lane whose requests wait for pages goes from round to
 * round with such steps; if they took no time, none would ever pass at a worker that is all there
 * is. */
#define SL_SIM_EMPTY_STEP_US 1.0

/* A worker that dies. Its rows and requests are lost; others notice `notice_us` later: what runs at
 * a dead attention worker ends with errors, a dead expert worker ends everything, as the engine
 * has it today. */
typedef struct sl_sim_death {
    uint32_t worker;
    double at_us;
} sl_sim_death;

/* Everything is borrowed for the call of sl_sim_run. */
typedef struct sl_sim_setup {
    const sl_model_spec *model; /* blocks, experts, top_k, widths */
    const sl_plan *plan;  /* schedule, placement, limits; its workers unless `roles` is set: */
                          /* those who are there at first, nobody comes to a free place */
    uint32_t n_workers;   /* with `roles` [n_workers]: more than a plan can name */
    const uint8_t *roles; /* as in sl_plan_worker */
    const sl_costs *attention, *expert; /* of the workers of each role, as wholes: of gangs */
    sl_link_cost rank_link;             /* between ranks, of pipelines and of... */
    bool ranks_apart; /* ...gangs whose ranks are on machines: the first carries rows to the others,
                         but under hybrid (docs/schedules.md) */
    bool shared_ports; /* messages at a port have it in equal parts, as flows of TCP do; else it is
                          first come, first served */
    const sl_link_cost *rail_link; /* hybrid: [ranks - 1] of the other ranks' ports; NULL: as the
                                      workers' */
    double time_scale;             /* of stages and what is between ranks; 0: 1 */
    size_t row_bytes;              /* of a row between workers */
    const double *popularity;      /* [n_layers][n_experts], >= 0; NULL: uniform */
    uint32_t n_layers;             /* of popularity: 1 or the model's MoE blocks */
    double jitter;                 /* coefficient of variation of a task's time, lognormal */
    double control_us;             /* one way between coordinator and worker */
    double message_us; /* of the worker's own time for each message that it sends or gets; 0: the
                          links' work_us */
    const sl_sim_death *death;
    uint32_t n_deaths;
    double notice_us;
    const sl_workload *load; /* with guess_right, where the plan guesses */
    uint32_t max_open;       /* requests in the system; further ones are refused; 0: no limit */
    double warmup_us, measure_us; /* measure_us 0: until all requests have ended */
    /* Instead of times: what is measured begins after warmup_tokens and lasts so many more; 0: no.
     */
    uint64_t warmup_tokens, measure_tokens;
    uint64_t max_events; /* it ends after so many at the latest; 0: no limit */
    uint64_t seed;
    uint64_t trace_events; /* kept of each worker; 0: no trace */
    /* Where a row goes, instead of by draws: the experts [top_k] of the row at `position` of the
     * load's request-th request, of which `known` tokens are known (others are guesses), in a MoE
     * block. Returns the key that splits it among replicas. */
    uint32_t (*route)(void *ctx, uint64_t request, uint32_t position, uint32_t known, uint32_t moe,
                      uint32_t *expert);
    /* Whether a guess of the token at `position` is right, instead of by draws of guess_right. */
    bool (*guess)(void *ctx, uint64_t request, uint32_t position);
    void *route_ctx;       /* of both */
    const sl_watch *watch; /* [workers + 1], the last the coordinator's; NULL: nobody watches */
} sl_sim_setup;

typedef struct sl_sim_dist {
    uint64_t n;
    double mean, p50, p90, p99, max;
} sl_sim_dist;

typedef struct sl_sim_worker_stats {
    uint32_t roles;
    double busy, out, in;         /* share of the measured time, of ports the busiest; half duplex:
                                     in is out */
    double depth_mean, depth_max; /* rows that are ready and wait for the worker */
    uint64_t tasks, rows;         /* in the whole run; rows: (row, block) or (row, expert) pairs */
} sl_sim_worker_stats;

typedef struct sl_sim_result {
    double from_us, to_us; /* what was measured */
    double end_us;
    uint64_t tokens, finished;                      /* in that time */
    uint64_t submitted, failed, refused, preempted; /* in all */
    uint64_t handed;                                /* prompts that went on at another worker */
    uint64_t too_long; /* of the refused: they need more positions or pages than there are */
    double tokens_per_s, requests_per_s;
    double goodput_per_s; /* requests a second that kept the objectives of the load */
    sl_sim_dist ttft_us, itl_us, tpot_us, queued_us;
    uint64_t events, messages;
    double message_bytes;
    uint64_t rows_created, rows_merged, rows_cancelled, rows_lost; /* of MoE blocks */
    uint64_t guesses, guesses_right; /* rows of guesses that were run, in the whole run; right */
    uint64_t block_calls, block_rows, block_guesses; /* of the block that guesses: calls, rows of
                                                        it, guesses that it made */
    uint32_t n_workers;
    sl_sim_worker_stats *worker; /* owned */
    sl_trace **trace;            /* [n_workers], owned; NULL: none was asked for */
} sl_sim_result;

/* SL_ERR_ARG: the setup contradicts itself; SL_ERR_INFEASIBLE: all requests were too long for the
 * plan; SL_ERR_NOMEM; SL_ERR_INTERNAL: a conservation law is
 * broken, which is a bug (rows created = merged + cancelled + lost, no page twice, no two tasks at
 * once). */
sl_status sl_sim_run(const sl_sim_setup *s, sl_sim_result *out, sl_err *err) SL_MUST_CHECK;
void sl_sim_result_free(sl_sim_result *r); /* zeroed is fine */

/* What a message of the simulation is called, by its kind in SEND and RECV events of traces; NULL:
 * there is none. */
const char *sl_sim_message_name(uint16_t kind);

#endif

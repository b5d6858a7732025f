/* One deployment and its load, run twice: through the engine on a virtual clock, and through
 * src/sim; and what was decided on either side, worker by worker. Thread: one. */
#ifndef SL_TESTS_DECIDE_H
#define SL_TESTS_DECIDE_H

#include "sched/watch.h"
#include "sim/deployment.h"
#include "stage/stage.h"

#define MAX_WORKERS 64u /* of a drawn deployment */

/* Times are whole microseconds, so that sums are the same in any order. */
typedef struct scene {
    const char *folder;
    const sl_model_spec *model;
    sl_plan plan;
    sl_costs attention, expert;
    sl_link_cost rail[SL_MAX_RANKS - 1]; /* hybrid: of the ports of ranks beside the first */
    double control_us;
    sl_trace_request *arrival; /* [n], by time */
    uint32_t n;
    uint32_t **token; /* [n]: ids of prompt and answer, which the engine's run fills in */
    uint64_t striped; /* messages that went in stripes in the engine's run */
} scene;

/* What one worker, or the coordinator, decided. */
typedef struct decisions {
    sl_decision *of;
    size_t n, cap;
    uint64_t origin_us; /* of its clock: taken off */
    bool failed;        /* out of memory */
} decisions;

/* As sl_watch.saw, ctx: decisions. */
void decisions_saw(void *ctx, const sl_decision *d);
/* False: prints the first difference between what the engine and the simulator decided, and what
 * stands around it; who NULL: prints nothing. */
bool decisions_equal(const decisions *engine, const decisions *simulator, const char *who);
void decisions_free(decisions *d);

/* The engine's run. log: [workers + 1], zeroed, the last the coordinator's. False: says why. */
bool world_run(scene *x, decisions *log);

/* What the stages of one worker cost, and who lets that time pass: `pass` returns so much later. */
typedef struct stage_times {
    const sl_costs *costs;
    void (*pass)(void *ctx, double us);
    void *ctx;
} stage_times;

/* What says tokens, and takes no time. */
extern const sl_device_spec decide_device;

/* For sl_device_maker, ctx: stage_times. A device that computes nothing and is through when submit
 * returns, at a later time. */
sl_status timed_open(void *ctx, const sl_device_opts *o, sl_device **out, sl_err *err);

#endif

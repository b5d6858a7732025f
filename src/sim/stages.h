/* One attention and one expert worker with a link between them in virtual time, every task of a
 * kind taking a given time: the orders that ship (turns, policy) against the closed
 * forms of the papers (docs/planner.md).
 *
 * Servers, each first in, first out: attention side, link to the experts, experts, link back. With
 * the colocated schedules (ep, eps) attention and experts share one server, where experts go first;
 * with half duplex both directions share one link. Thread: any. */
#ifndef SL_SIM_STAGES_H
#define SL_SIM_STAGES_H

#include "base/status.h"
#include "spec/stage_run.h"

typedef struct sl_stage_result {
    double makespan_ms;          /* until the last task has ended */
    double period_ms;            /* steady state: time in which all lanes advance by one layer */
    double busy[SL_STAGE_COUNT]; /* share of the makespan that tasks of this kind ran */
    uint64_t events;
} sl_stage_result;

/* SL_ERR_ARG: a count or time out of its range, or that the schedule does not have; SL_ERR_NOMEM.
 */
sl_status sl_stage_run_check(const sl_stage_run *r, sl_err *err) SL_MUST_CHECK;
/* Checks, runs, and runs once more for longer when the period is wanted. */
sl_status sl_stage_run_simulate(const sl_stage_run *r, sl_stage_result *out,
                                sl_err *err) SL_MUST_CHECK;
/* Makespan and busy alone. */
sl_status sl_stage_run_makespan(const sl_stage_run *r, sl_stage_result *out,
                                sl_err *err) SL_MUST_CHECK;

#endif

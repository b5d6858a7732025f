/* The schedule of a plan in JSON.
 *
 *   "schedule": "findep", "lanes": 2, "chunks": 4, "chunk_by": "tokens", "order": "asas",
 *   "resolve": 32
 *   "schedule": "aep", "policy": "defrag", "lookahead": 2, "delta": 1
 *   "schedule": "hybrid", "rail_bytes": 32768
 *
 * Thread: any. */
#ifndef SL_FORMAT_PLAN_SCHEDULE_H
#define SL_FORMAT_PLAN_SCHEDULE_H

#include "base/status.h"
#include "format/json.h"
#include "spec/plan.h"

/* Of the plan `v`, what is left out by sl_plan_set_schedule. */
sl_status sl_plan_schedule_from_json(sl_json v, sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* Whether the schedule has so many lanes and chunks (SL_ERR_ARG), and can be chosen anew where that
 * is wanted (SL_ERR_UNSUPPORTED). */
sl_status sl_plan_check_schedule(const sl_plan *p, sl_err *err) SL_MUST_CHECK;

#endif

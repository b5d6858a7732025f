/* Sides of a plan: workers that compute prompts apart from those that decode (MegaScale 3's
 * separate prefill cluster; docs/prefill.md).
 *
 *   "workers": [{"roles": ["attention"]}, {"roles": ["expert"]},
 *               {"roles": ["attention"], "prefill": true}, {"roles": ["expert"], "prefill": true}],
 *   "prefill_rows": 256
 *
 * The side for prompts has attention, and experts of its own, all of them, or none: then both sides
 * send rows to the same experts. Its own are spread evenly, one host each.
 *
 * A worker sees the plan of its own side (sl_plan_view): rounds, sequencers, hosts and losses of
 * the other one are not its business. The coordinator alone has the whole. Thread: any. */
#ifndef SL_FORMAT_PLAN_SIDES_H
#define SL_FORMAT_PLAN_SIDES_H

#include "base/status.h"
#include "format/json.h"
#include "spec/plan.h"

#include <jansson.h>

#define SL_PLAN_PREFILL_ROWS 256u /* unless the plan says otherwise */

/* So many workers for prompts more, behind those that there are. experts 0: as many workers with
 * both roles where the plan's have both or `both` says so, else without experts of their own.
 * SL_ERR_ARG, SL_ERR_NOMEM. */
sl_status sl_plan_add_prefill(uint32_t attention, uint32_t experts, bool both, sl_plan *p,
                              sl_err *err) SL_MUST_CHECK;
/* Hosts for the side's own experts, if it has any. When all workers are known. */
sl_status sl_plan_spread_prefill(sl_plan *p, sl_err *err) SL_MUST_CHECK;

/* The plan as workers of one side see it: all of the other side have no role, if the sides have
 * experts of their own, and those with attention there are marked `pages`. Of a plan without sides
 * a copy. Free with sl_plan_free. SL_ERR_NOMEM. */
sl_status sl_plan_view(const sl_plan *p, bool prefill, sl_plan *out, sl_err *err) SL_MUST_CHECK;
/* That view in print, as sl_plan_print; free with sl_free. NULL: no memory. */
char *sl_plan_print_view(const sl_plan *p, bool prefill) SL_MUST_CHECK;
/* `to` gets the schedule of `from`, and what it was chosen by. */
void sl_plan_take_schedule(const sl_plan *from, sl_plan *to);

/* ---- JSON ---- */

/* in_file: it is not what a side sees. */
sl_status sl_sides_of_worker(sl_json row, bool in_file, sl_plan_worker *w,
                             sl_err *err) SL_MUST_CHECK;
void sl_sides_print_worker(const sl_plan_worker *w, json_t *row);
sl_status sl_sides_from_json(sl_json v, sl_plan *p, sl_err *err) SL_MUST_CHECK;
void sl_sides_print(const sl_plan *p, json_t *doc);
/* What cannot be together with sides. */
sl_status sl_sides_check(const sl_plan *p, sl_err *err) SL_MUST_CHECK;

#endif

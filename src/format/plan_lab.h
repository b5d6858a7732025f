/* The experiments of a plan in text and JSON: route skew, emulated device, pinning.
 *
 *   "route_skew": "exp:0.6:permuted:7"
 *   "device": {"time_scale": 20, "attention": {"fixed": 150, "row": 1}, "expert": {...}, ...}
 *
 * A cost has "fixed", "floor", "row" and (attention) "key", in microseconds, 0 when left out;
 * stages are attention, router, dense, shared, expert, head. Thread: any. */
#ifndef SL_FORMAT_PLAN_LAB_H
#define SL_FORMAT_PLAN_LAB_H

#include "base/status.h"
#include "format/json.h"
#include "spec/plan.h"

#include <jansson.h>

#define SL_SKEW_TEXT 64

/* "exp:THETA[:permuted][:SEED]", THETA 0 to SL_SKEW_MAX_THETA; seed 1 when left out. */
sl_status sl_route_skew_parse(const char *text, sl_route_skew *out, sl_err *err) SL_MUST_CHECK;
void sl_route_skew_print(const sl_route_skew *s, char out[SL_SKEW_TEXT]);

/* "cpu", or "emulated:FILE" with a JSON file of costs or a profile (format/profile_file.h). */
sl_status sl_device_parse(const char *text, sl_device_spec *out, sl_err *err) SL_MUST_CHECK;
/* `v`: time_scale and costs. */
sl_status sl_device_from_json(sl_json v, sl_device_spec *out, sl_err *err) SL_MUST_CHECK;
/* New reference; NULL: out of memory. */
/* Costs as {"attention": {"fixed", "floor", "row", "key"}, ..., "link": {"alpha", "byte", "half",
 * "half_duplex"}}, microseconds. */
sl_status sl_costs_from_json(sl_json v, sl_costs *out, sl_err *err) SL_MUST_CHECK;
/* A new reference. */
json_t *sl_costs_json(const sl_costs *c);

json_t *sl_device_json(const sl_device_spec *d);

/* "0,1": worker i runs on the (i mod n)-th of these CPUs; "auto": on cores that it chooses. */
sl_status sl_plan_pin(const char *text, sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* "on" or "off", of --numa. */
sl_status sl_numa_parse(const char *text, bool *on, sl_err *err) SL_MUST_CHECK;
/* Weights can be moved: there are some in this machine's memory, and CPUs to be near to. */
sl_status sl_plan_check_numa(const sl_plan *p, sl_err *err) SL_MUST_CHECK;

#endif

/* Gangs and pipelines of a plan in JSON: how many ranks workers have, what these are, where they
 * answer.
 *
 *   "tp": {"attention": 2, "expert": 2, "ranks": "machines"}
 *   "pp": {"degree": 2, "ranks": "machines"}
 *   "workers": [{"roles": ["attention"], "ranks": ["10.0.0.2:7100"]}, ...]
 *
 * Thread: any. */
#ifndef SL_FORMAT_PLAN_RANKS_H
#define SL_FORMAT_PLAN_RANKS_H

#include "base/status.h"
#include "format/json.h"
#include "spec/plan.h"

#include <jansson.h>

/* "threads", "processes" or "machines". */
sl_status sl_rank_kind_parse(const char *name, sl_rank_kind *out, sl_err *err) SL_MUST_CHECK;
/* "b:7100;c:7100,d:7100": of each worker in turn where its ranks beside the first are. They are
 * machines then. SL_ERR_ARG: more workers than the plan has; SL_ERR_LIMIT. */
sl_status sl_rank_hosts_parse(const char *text, sl_plan *p, sl_err *err) SL_MUST_CHECK;

/* "tp" and "pp" of the plan `v`, and "ranks" of a worker's row. */
sl_status sl_ranks_from_json(sl_json v, sl_plan *p, sl_err *err) SL_MUST_CHECK;
sl_status sl_ranks_of_worker(sl_json row, sl_plan_worker *w, sl_err *err) SL_MUST_CHECK;
/* A new reference; NULL: out of memory. */
json_t *sl_ranks_json(const sl_plan *p);
/* Into the plan's document: "pp", where there are pipelines. */
void sl_pipeline_print(const sl_plan *p, json_t *doc);
void sl_ranks_print_worker(const sl_plan_worker *w, json_t *row);

/* How many ranks a worker can be, what gangs cannot do, and whether there are as many addresses as
 * ranks; SL_ERR_ARG. */
sl_status sl_ranks_check(const sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* Whether emulated gangs have a link, which options may say, too. */
sl_status sl_ranks_check_link(const sl_plan *p, sl_err *err) SL_MUST_CHECK;

#endif

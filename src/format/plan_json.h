/* plan.json: the file form of sl_plan, and what the coordinator sends to workers.
 *
 *   {"version": 1, "schedule": "dep", "lanes": 1, "chunks": 1, "chunk_by": "tokens",
 *    "order": "asas", "policy": "defrag", "lookahead": 2, "delta": 1.0, "wire": "f32",
 *    "exact": false,
 *    "workers": [{"roles": ["attention"]}, {"roles": ["expert"], "experts": [0,1,2,3]}, ...],
 *    "limits": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "prefill_stretch": 1.6,
 * "context": 4096, "kv_pages": 8192}, "threads": 1, "progress": "inline",
 *    "activations": "int8"}
 * A worker on a GPU has "device": "cuda:0"; of all of these "gpu": {"memory": bytes, "numerics":
 * "fast"} (format/plan_gpu.h).
 * "deployment" is what sluice plan adds: degrees above 1 are refused. Left out: the schedule's
 * lanes and chunks, wire f32, activations int8, exact false, limits (engine's defaults), experts
 * (even contiguous split). A worker may have "address" and "incarnation", and in a plan that a
 * change takes no roles, [], while it is not there. */
#ifndef SL_FORMAT_PLAN_JSON_H
#define SL_FORMAT_PLAN_JSON_H

#include "base/span.h"
#include "base/status.h"
#include "format/json.h"
#include "spec/model.h"
#include "spec/schedules.h"

/* A plan of `attention` attention and `experts` expert workers; experts 0 with attention > 0: that
 * many colocated workers; both 0: one colocated worker. Experts are split evenly and contiguously.
 * Limits and numerics get their defaults. Free with sl_plan_free. */
sl_status sl_plan_local(const sl_model_spec *m, uint32_t attention, uint32_t experts, sl_plan *out,
                        sl_err *err) SL_MUST_CHECK;
/* Places for so many workers more, behind those that there are, where nobody is at first
 * (sl_plan_worker.spare). Of a plan whose workers have both roles `attention` counts them all, and
 * experts is 0. SL_ERR_ARG, SL_ERR_NOMEM. */
sl_status sl_plan_add_spares(uint32_t attention, uint32_t experts, sl_plan *p,
                             sl_err *err) SL_MUST_CHECK;
/* So many workers more that are else as *is, behind those that there are. Where all have both roles
 * `attention` counts them all, and experts is 0: `whose` says in an error who has them, too, and
 * what follows. SL_ERR_ARG, SL_ERR_NOMEM. */
sl_status sl_plan_grow(uint32_t attention, uint32_t experts, const sl_plan_worker *is,
                       const char *whose, sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* KV pages of an attention worker where nobody says how many: all that its requests can use, as
 * far as 2 GiB hold them in the plan's type, and one request's context at least. */
uint32_t sl_plan_usual_pages(const sl_plan *p, const sl_model_spec *m);
void sl_plan_free(sl_plan *p);
sl_status sl_plan_copy(const sl_plan *p, sl_plan *out, sl_err *err) SL_MUST_CHECK;
/* The plan by which those of home's workers serve that are there, there[n_workers] (1: this one
 * is): the others have no role in it, their experts are where sl_placement_rehost moves them. Free
 * with sl_plan_free. A side for prompts (format/plan_sides.h) that lacks attention or its experts
 * is left out. SL_ERR_INFEASIBLE: no attention worker, or no expert worker, is there beside it. */
sl_status sl_plan_among(const sl_plan *home, const uint8_t *there, sl_plan *out,
                        sl_err *err) SL_MUST_CHECK;

sl_status sl_plan_read(const char *path, const sl_model_spec *m, sl_plan *out,
                       sl_err *err) SL_MUST_CHECK;
/* Parses bytes; `name` is what errors call them. Checks everything against the model. */
sl_status sl_plan_parse(sl_span bytes, const char *name, const sl_model_spec *m, sl_plan *out,
                        sl_err *err) SL_MUST_CHECK;
/* The same from a parsed value. */
sl_status sl_plan_from_json(sl_json v, const sl_model_spec *m, sl_plan *out,
                            sl_err *err) SL_MUST_CHECK;
/* The same from what sl_plan_print has made of a running deployment's plan, whose workers need not
 * all be there: the plan inside a PLAN message. */
sl_status sl_plan_from_message(sl_json v, const sl_model_spec *m, sl_plan *out,
                               sl_err *err) SL_MUST_CHECK;
/* NUL-terminated JSON with ids, addresses and epoch; free with sl_free. NULL: out of memory. */
char *sl_plan_print(const sl_plan *p) SL_MUST_CHECK;

/* SL_ERR_INFEASIBLE: expert workers cannot count the rows that they would have to reserve for; such
 * a plan is for the simulator. */
sl_status sl_plan_check_size(const sl_plan *p, const sl_model_spec *m, sl_err *err) SL_MUST_CHECK;
/* Whether the plan fits the model and the limits of the wire, and every worker of it has a role;
 * INFEASIBLE or ARG with the reason. */
sl_status sl_plan_check(const sl_plan *p, const sl_model_spec *m, sl_err *err) SL_MUST_CHECK;

sl_status sl_chunking_parse(const char *name, sl_chunking *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_activations_parse(const char *name, sl_activations *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_speculate_parse(const char *name, sl_speculate *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_kv_type_parse(const char *name, sl_kv_type *out, sl_err *err) SL_MUST_CHECK;
/* "inline" or "thread": who drives the fabric while a worker computes. */
sl_status sl_progress_parse(const char *name, bool *pump, sl_err *err) SL_MUST_CHECK;
sl_status sl_order_parse(const char *name, sl_order *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_policy_parse(const char *name, sl_policy *out, sl_err *err) SL_MUST_CHECK;
/* Sets the schedule, and what belongs to it to its defaults: ep, dep and aep have one lane and one
 * chunk, pingpong two lanes, findep two lanes of two chunks of tokens, eps four expert groups. */
void sl_plan_set_schedule(sl_plan *p, sl_schedule s);
sl_status sl_wire_format_parse(const char *name, uint32_t *out, sl_err *err) SL_MUST_CHECK;

#endif

/* Which devices a deployment's workers are best on: what a plan whose workers with attention are of
 * one kind of device, and those with experts of one, takes for a step in which all requests decode
 * and for one of a prompt, and which of several plans is fastest. Nothing is measured here. Thread:
 * any. */
#ifndef SL_ENGINE_DEVICES_H
#define SL_ENGINE_DEVICES_H

#include "base/status.h"
#include "engine/measure/auto.h"
#include "engine/measure/measure.h"
#include "spec/model.h"
#include "spec/plan.h"

/* What one plan is predicted to do. */
typedef struct sl_devices_step {
    sl_auto_report schedule;    /* of its blocks with experts */
    double us;                  /* a step: all blocks, embedding and head */
    double tokens_per_s;        /* of all attention workers */
    double prompt_tokens_per_s; /* the same of steps that are full of prompts' rows */
} sl_devices_step;

/* A GPU whose experts' weights stay in its machine's memory (--offload-experts): each that is asked
 * for is copied first, as fast as rows are, while another one is computed. */
sl_kind_costs sl_devices_offloaded(const sl_kind_costs *gpu, double expert_bytes);

/* Costs of *p: of each side those of the kind that its workers are on, and a link whose messages
 * are copied at either end that is no processor. */
sl_costs sl_devices_costs(const sl_plan *p, const sl_kind_costs *attention,
                          const sl_kind_costs *expert, const sl_link_cost *link);

/* A step of *p, as sl_plan_predict has its blocks with experts; with `open` *p gets the schedule
 * that is fastest. */
sl_status sl_devices_predict(const sl_costs *c, const sl_model_spec *m, uint32_t requests,
                             bool open, sl_plan *p, sl_devices_step *out,
                             sl_err *err) SL_MUST_CHECK;

/* The one with the most tokens a second; of equal ones the first, and none that has 0: it cannot
 * be. n: none can. prompts: of those that decode within SL_DEVICES_CLOSE of it the one that
 * computes prompts fastest. */
#define SL_DEVICES_CLOSE 0.97
uint32_t sl_devices_fastest(const sl_devices_step *step, uint32_t n, bool prompts);

#endif

/* Which workers of a plan are on GPUs, in text and JSON, and what cannot be together with that.
 *
 *   "workers": [{"roles": ["attention"], "device": "cuda:0"}, {"roles": ["expert"]},
 *               {"roles": ["attention", "expert"], "device": "cuda:1", "prefill": true,
 *                "offload": true}]
 *   "gpu": {"memory": 40000000000, "numerics": "exact", "kind": "NVIDIA H200, compute
 * capability 9.0"}
 *
 * "gpu" is of all workers that are on one. Left out: as much memory as is free, and numerics fast,
 * or cpu where the plan is exact. Thread: any. */
#ifndef SL_FORMAT_PLAN_GPU_H
#define SL_FORMAT_PLAN_GPU_H

#include "base/status.h"
#include "format/json.h"
#include "spec/plan.h"

#include <jansson.h>

/* Whose device an option says. */
typedef enum sl_devices_of {
    SL_DEVICES_OF_ALL,
    SL_DEVICES_OF_ATTENTION, /* workers that have attention, with experts or without */
    SL_DEVICES_OF_EXPERTS,   /* workers that have experts alone */
} sl_devices_of;

/* This emulated device is of all workers. */
void sl_plan_set_emulated(const sl_device_spec *d, sl_plan *p);
/* "cpu", "cuda:N" or a list, "cuda:0,cuda:1,cpu": one for all of those workers, or one for each,
 * those with attention first, in the order of their numbers. Of all workers also "emulated:FILE"
 * (sl_device_parse). `option` is what errors name. SL_ERR_ARG: another number of devices than of
 * workers, no such worker, a word that is no device, as auto. */
sl_status sl_plan_set_devices(const char *option, sl_devices_of whose, const char *text, sl_plan *p,
                              sl_err *err) SL_MUST_CHECK;

/* Workers on GPUs that have experts, of the side for prompts if there is one, keep the weights of
 * these in their machine's memory. SL_ERR_ARG: there is none. */
sl_status sl_plan_set_offload(sl_plan *p, sl_err *err) SL_MUST_CHECK;

/* "fast", "exact" or "cpu". */
sl_status sl_numerics_parse(const char *name, sl_numerics *out, sl_err *err) SL_MUST_CHECK;
const char *sl_numerics_name(sl_numerics n);

/* "40GB", or a number of bytes. */
sl_status sl_gpu_memory_parse(const char *text, uint64_t *out, sl_err *err) SL_MUST_CHECK;

/* "device" and "offload" of a worker's row. */
sl_status sl_gpu_of_worker(sl_json row, sl_plan_worker *w, sl_err *err) SL_MUST_CHECK;
/* "gpu" of the plan `v`, whose `exact` is read already. */
sl_status sl_gpus_from_json(sl_json v, sl_plan *p, sl_err *err) SL_MUST_CHECK;
void sl_gpu_print_worker(const sl_plan *p, uint32_t id, json_t *row);
/* A new reference; NULL: out of memory. */
json_t *sl_gpus_json(const sl_plan *p);

/* What workers on GPUs do not do: SL_ERR_UNSUPPORTED or SL_ERR_ARG, with the option's name. */
sl_status sl_gpus_check(const sl_plan *p, sl_err *err) SL_MUST_CHECK;

#endif

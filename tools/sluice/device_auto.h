/* --device auto: the devices that somebody would have chosen who had tried them (device_auto.c).
 * Thread: main. */
#ifndef SL_TOOLS_DEVICE_AUTO_H
#define SL_TOOLS_DEVICE_AUTO_H

#include "base/options.h"
#include "engine/measure/auto.h"
#include "kernel/choice.h"
#include "spec/plan.h"

typedef struct sl_device_auto {
    sl_options options; /* as given, with the devices that were taken in place of auto; they may
                         * say --attention 1 --experts 1, too. Texts are borrowed from here */
    char kernels[SL_KERNELS_SPEC_MAX]; /* their --isa */
    char *devices;                     /* owned */
    bool scheduled;          /* a schedule was chosen with them: `plan` has it, and costs... */
    sl_plan plan;            /* ...zeroed otherwise */
    sl_auto_report schedule; /* why */
} sl_device_auto;

/* Whether --device says auto. */
bool sl_device_is_auto(const sl_options *o);

/* Compares deployments by what their stages cost here, measured or as --device-profile says, and
 * logs what each is predicted to do, which one is taken, and why another cannot be (info); that
 * there is no GPU to be used is a warning. `processes`, `requests`: as of sl_deploy_prepare.
 * SL_ERR_ARG, SL_ERR_UNSUPPORTED: an option that cannot be together with it, by name. Free with
 * sl_device_auto_free, also after an error. */
sl_status sl_device_auto_choose(const sl_options *o, bool processes, uint32_t requests,
                                sl_device_auto *out, sl_err *err) SL_MUST_CHECK;
void sl_device_auto_free(sl_device_auto *a);

#endif

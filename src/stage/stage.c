/* Which devices there are. */
#include "stage/stage_int.h"

static sl_status (*const open_kind[SL_DEVICE_KIND_COUNT])(const sl_device_opts *o, sl_device **out,
                                                          sl_err *err) = {
    [SL_DEVICE_CPU] = sl_cpu_open,
    [SL_DEVICE_EMULATED] = sl_emulated_open,
    [SL_DEVICE_CUDA] = sl_cuda_device_open,
};

sl_status sl_device_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    SL_ASSERT(o->device->kind < SL_DEVICE_KIND_COUNT);
    if (o->pipeline > 1) return sl_pipeline_open(o, out, err);
    if (o->ranks > 1 && !sl_device_is_modelled(o->device)) return sl_gang_open(o, out, err);
    return open_kind[o->device->kind](o, out, err);
}

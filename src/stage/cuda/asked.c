/* What of a device's options a GPU has, and what users ask for that no GPU has run yet. */
#include "stage/cuda/asked.h"

#include "base/options.h"

#include <string.h>

sl_status sl_cuda_asked_check(const sl_device_opts *o, sl_err *err) {
    const char *what = o->gang || o->ranks > 1                       ? "--tp above 1"
                       : o->hosts.segmented                          ? "--segments"
                       : o->activations == SL_ACTIVATIONS_BF16       ? "--activations bf16"
                       : o->activations == SL_ACTIVATIONS_BF16_PARTS ? "--activations bf16-parts"
                       : o->exact && o->device->numerics == SL_NUMERICS_FAST
                           ? "--exact with --numerics fast"
                           : NULL;
    if (!what) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda:%u: %s is not supported on a GPU",
                   o->device->index, what);
}

sl_status sl_cuda_asked_kind(const sl_cuda *c, const sl_device_spec *of, sl_err *err) {
    char own[SL_GPU_KIND_BYTES];
    if (of->numerics != SL_NUMERICS_EXACT || !of->gpu_kind[0]) return SL_OK;
    sl_cuda_kind_text(sl_cuda_info_of(c), own);
    if (strcmp(own, of->gpu_kind) == 0) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "cuda:%u is \"%s\", and the plan's numerics exact are the bits of \"%s\": all "
                   "workers have one kind of GPU, or --numerics cpu",
                   of->index, own, of->gpu_kind);
}

/* Whether somebody asks for what no GPU has run yet. */
static sl_status read_try(const char *variable, const char *asked, bool *out, sl_err *err) {
    *out = asked != NULL;
    if (!asked || strcmp(asked, "try") == 0) return SL_OK;
    return sl_fail(err, SL_ERR_ARG, "%s '%s' is unknown: try", variable, asked);
}

sl_status sl_cuda_asked_tries(sl_cuda_tries *out, sl_err *err) {
    sl_status st = read_try("SLUICE_CUDA_FORMS", sl_options_cuda_forms(), &out->forms, err);
    if (st == SL_OK)
        st = read_try("SLUICE_CUDA_GRAPHS", sl_options_cuda_graphs(), &out->graphs, err);
    if (st == SL_OK) st = read_try("SLUICE_CUDA_ROWS", sl_options_cuda_rows(), &out->rows, err);
    return st;
}

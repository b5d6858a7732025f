/* What of a device's options a GPU has, and what users ask for that no GPU has run yet. */
#ifndef SL_STAGE_CUDA_ASKED_H
#define SL_STAGE_CUDA_ASKED_H

#include "stage/cuda/cuda_int.h"
#include "stage/stage.h"

/* What this device does not do, by the names that a user knows. SL_ERR_UNSUPPORTED. */
sl_status sl_cuda_asked_check(const sl_device_opts *o, sl_err *err) SL_MUST_CHECK;
/* Numerics exact are the bits of the kind of GPU that the plan names. SL_ERR_UNSUPPORTED. */
sl_status sl_cuda_asked_kind(const sl_cuda *c, const sl_device_spec *of, sl_err *err) SL_MUST_CHECK;

typedef struct sl_cuda_tries {
    bool forms, graphs, rows; /* SLUICE_CUDA_FORMS, _GRAPHS, _ROWS */
} sl_cuda_tries;
sl_status sl_cuda_asked_tries(sl_cuda_tries *out, sl_err *err) SL_MUST_CHECK;

#endif

/* What a CUDA device is asked for by options and variables, and what of it is refused, by the names
 * that a user knows. Pure. Thread: any. */
#ifndef SL_STAGE_CUDA_ASKED_H
#define SL_STAGE_CUDA_ASKED_H

#include "stage/cuda/cuda_int.h"
#include "stage/stage.h"

/* SL_ERR_UNSUPPORTED: this device does not do it. */
sl_status sl_cuda_check_asked(const sl_device_opts *o, sl_err *err) SL_MUST_CHECK;

/* Numerics exact are the bits of the kind of GPU that the plan names: SL_ERR_UNSUPPORTED where this
 * one is another. */
sl_status sl_cuda_check_kind(const sl_cuda *c, const sl_device_spec *of, sl_err *err) SL_MUST_CHECK;

/* Whether somebody asks, by that variable, for what no GPU has run yet; asked: its value, NULL: it
 * is not set. SL_ERR_ARG: another value than `try`. */
sl_status sl_cuda_read_try(const char *variable, const char *asked, bool *out,
                           sl_err *err) SL_MUST_CHECK;

#endif

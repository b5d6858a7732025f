/* Robust fits of measured times.
 *
 * A stage takes fixed + max(floor + slope * rows, row * rows + key * keys): below the knee reading
 * the weights takes the time, and a little of each row, above it the rows do; MegaScale-Infer's straight line k1 b + k2 is right on one
 * side only, so both branches are fitted (megascale: T_a = k1 b_a + k2; FinDEP 4.1: alpha + beta
 * x). Kernels compute rows in groups: those that are missing in the last one cost up to what a row
 * costs; groups of 2, 4, ... 64 rows are tried. A link takes alpha + byte * x (alpha-beta), and
 * from a knee on more a byte; one that copies nothing has no rate. Errors count relative to each
 * time, so that short and long runs weigh the same; points far off (a neighbour took the core) are
 * given no weight by iterated re-weighting (Tukey's biweight). No number is below 0. Pure. Thread:
 * any. */
#ifndef SL_PLAN_FIT_H
#define SL_PLAN_FIT_H

#include "base/status.h"
#include "spec/profile.h"

/* SL_ERR_ARG: fewer than 2 points, more than SL_PROFILE_MAX_POINTS, or a time that is not positive
 * and finite. */
sl_status sl_fit_stage(const sl_profile_point *p, uint32_t n, sl_stage_cost *out,
                       sl_fit_quality *quality, sl_err *err) SL_MUST_CHECK;

/* half_bytes and half_duplex of *out are 0 and false: they are not seen in one direction. */
sl_status sl_fit_link(const sl_profile_point *p, uint32_t n, sl_link_cost *out,
                      sl_fit_quality *quality, sl_err *err) SL_MUST_CHECK;

#endif

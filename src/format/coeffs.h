/* A FinDEP problem as JSON (docs/planner.md): what `sluice solve --coeffs` reads. Times in ms.
 * Thread: any. */
#ifndef SL_FORMAT_COEFFS_H
#define SL_FORMAT_COEFFS_H

#include "base/span.h"
#include "base/status.h"
#include "spec/findep.h"

#define SL_COEFFS_MAX_BYTES 65536u

/* Errors name file, field, value and limit; an unknown field is one of them. */
sl_status sl_coeffs_read(const char *path, sl_findep_problem *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_coeffs_parse(const char *name, sl_span text, sl_findep_problem *out,
                          sl_err *err) SL_MUST_CHECK;

/* "ASAS,r1,ma,r2" within the same limits. */
sl_status sl_coeffs_parse_point(const char *text, sl_findep_point *out, sl_err *err) SL_MUST_CHECK;

#endif

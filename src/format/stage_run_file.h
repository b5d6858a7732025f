/* The input of `sluice simulate --stages`:
 *
 *   {"schedule": "pingpong", "layers": 32, "lanes": 3, "chunks": 1, "order": "ASAS",
 *    "iterations": 4, "duplex": "full", "policy": "defrag", "lookahead": 2, "delta": 1,
 *    "fixed_list": false,
 *    "times": {"attn": 1.0, "shared": 0, "a2e": 0.3, "expert": 1.0, "e2a": 0.3}}
 *
 * times in ms per task, those left out are 0; left out are further lanes, chunks, iterations 1,
 * order ASAS, duplex full, fixed_list false, policy defrag, lookahead 2, delta 1. Unknown fields
 * are refused. Thread: any. */
#ifndef SL_FORMAT_STAGE_RUN_FILE_H
#define SL_FORMAT_STAGE_RUN_FILE_H

#include "base/span.h"
#include "base/status.h"
#include "spec/stage_run.h"

/* SL_ERR_NOTFOUND, SL_ERR_IO, SL_ERR_LIMIT, SL_ERR_FORMAT: not JSON; SL_ERR_ARG names field, value
 * and limit. What the schedule allows is checked by sl_stage_run_check. */
sl_status sl_stage_run_load(const char *path, sl_stage_run *out, sl_err *err) SL_MUST_CHECK;
/* The same for bytes in memory. */
sl_status sl_stage_run_parse(const char *name, sl_span text, sl_stage_run *out,
                             sl_err *err) SL_MUST_CHECK;

#endif

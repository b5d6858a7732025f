/* Workload files (YAML), workload presets and request traces -> sl_workload.
 *
 *   input: 512                                   # or {uniform: [64, 1024]}
 *   output: {lognormal: {median: 160, sigma: 0.8, max: 2048}}
 *   arrival: {poisson: 12.5}       # requests/s; or {closed: 256}, {closed: full}, {trace: 2.0}
 *   requests: 5000
 *   slo: {ttft: 2s, tpot: 150ms, quantile: 0.9}
 *   guesses: {right: 0.9, found: 0.6} # speculation: how often the next one is right, and there
 *                                     # is one; `block`: how often a checkpoint's block is right
 *   routing: {exp: 0.6, permuted: true, seed: 7} # popularity of experts; left out: uniform
 *   trace: requests.jsonl                        # lengths and times; beside the file
 *
 * Traces: JSON lines with "timestamp" (ms), "input_length", "output_length" (Mooncake), or CSV with
 * the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure). A length of 0 counts as 1;
 * requests are sorted by time. A trace file also stands for a workload: its lengths, its times.
 * Thread: any. */
#ifndef SL_FORMAT_WORKLOAD_FILE_H
#define SL_FORMAT_WORKLOAD_FILE_H

#include "base/span.h"
#include "base/status.h"
#include "spec/workload.h"

#define SL_TRACE_MAX_BYTES    ((size_t)2 << 30)
#define SL_TRACE_MAX_REQUESTS 20000000u
#define SL_TRACE_MAX_LINE     (1u << 20)

/* Errors name file, line, field, value and limit. Free with sl_workload_free. */
sl_status sl_workload_parse(const char *file, sl_span text, sl_workload *out,
                            sl_err *err) SL_MUST_CHECK;

/* Requests of a trace's text, by time: JSON lines when `csv` is false. Free *out with sl_free. */
sl_status sl_trace_parse(const char *file, sl_span text, bool csv, sl_trace_request **out,
                         size_t *n, sl_err *err) SL_MUST_CHECK;

/* A .yaml file, a trace (.jsonl, .csv), or a preset. */
sl_status sl_workload_open(const char *path_or_name, sl_workload *out, sl_err *err) SL_MUST_CHECK;

void sl_workload_free(sl_workload *w); /* a zeroed one is fine */

#endif

/* profile.json: what `sluice profile` writes and plan, solve and simulate read.
 *
 *   {"version": 1, "model": "...", "machine": "...", "isa": "avx2", "cores": 2, "threads": 1,
 *    "random_weights": false, "memory_bytes": ..., "seconds": ...,
 *    "stages": {"attention": {"fixed": us, "floor": us, "row": us, "key": us,
 *                             "pad": us, "step": rows, "beside": times,
 *                             "fit": {"r2": ..., "median_error": ..., "worst_error": ...,
 *                                     "outliers": n},
 *                             "points": [[rows, keys, us], ...]}, ...},
 *    "links": [{"transport": "shm", "peers": 1, "alpha": us, "byte": us, "half_bytes": 0,
 *               "knee_bytes": 0, "beyond": us, "work": us, "half_duplex": false, "fit": {...},
 * "points": [[bytes, us], ...]}, ...]}
 *
 * "fit" and "points" may be left out: then a file of known costs stands for a measurement. A stage
 * left out is one the model does not have. Thread: any. */
#ifndef SL_FORMAT_PROFILE_FILE_H
#define SL_FORMAT_PROFILE_FILE_H

#include "base/span.h"
#include "base/status.h"
#include "spec/profile.h"

#include <jansson.h>

#define SL_PROFILE_VERSION   1u
#define SL_PROFILE_MAX_BYTES (16u << 20)

/* Name of a stage in files: attention, router, dense, shared, expert, head. */
const char *sl_cost_name(sl_cost_kind kind);

/* Errors name file, field, value and limit; free with sl_profile_free. */
sl_status sl_profile_parse(const char *file, sl_span text, sl_profile *out,
                           sl_err *err) SL_MUST_CHECK;
sl_status sl_profile_load(const char *path, sl_profile *out, sl_err *err) SL_MUST_CHECK;
/* One that has times of stages, as the planner and the simulator want it. */
sl_status sl_profile_load_stages(const char *path, sl_profile *out, sl_err *err) SL_MUST_CHECK;
void sl_profile_free(sl_profile *p); /* a zeroed one is fine */

/* New reference; NULL: out of memory. */
json_t *sl_profile_json(const sl_profile *p);

/* It is of a GPU, not of processors. */
bool sl_profile_is_of_gpu(const sl_profile *p);
/* Rows of a GPU come to the host before they leave, and go back there: of each two messages one
 * does either. Nothing where no copies were measured. */
void sl_profile_add_copies(const sl_profile *p, sl_link_cost *link);

/* Stage costs, and the link of `transport` (NULL: the first) to `peers` receivers at once: the
 * entry with the nearest number of them. SL_ERR_NOTFOUND lists the transports that are there. With
 * no links at all the link is zero. */
sl_status sl_profile_costs(const sl_profile *p, const char *transport, uint32_t peers,
                           sl_costs *out, sl_err *err) SL_MUST_CHECK;

#endif

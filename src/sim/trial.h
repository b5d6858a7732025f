/* What the search cannot tell by a law, it tries out: a short run of an aep or a hybrid deployment
 * in virtual time (sim/deployment.h), all of the model's routed blocks, since batches fall apart
 * the more the more blocks there are; dense blocks are charged with the head. Requests only decode.
 * Pure: the same trial has the same result. Thread: any. */
#ifndef SL_SIM_TRIAL_H
#define SL_SIM_TRIAL_H

#include "plan/search.h"

/* A sl_search_try: one step of all requests to warm up, and one that counts; up to four, where
 * that is little work. *out has the work also of SL_ERR_LIMIT. */
sl_status sl_sim_try(const sl_search_trial *t, sl_search_tried *out, sl_err *err) SL_MUST_CHECK;

/* The same over so many steps of warm-up and of measurement. */
sl_status sl_sim_try_steps(const sl_search_trial *t, uint32_t warm, uint32_t steps,
                           sl_search_tried *out, sl_err *err) SL_MUST_CHECK;

#endif

/* --placement: which worker is to host which expert, by rule or by measured popularity. Thread:
 * any.
 */
#ifndef SL_ENGINE_PLACE_H
#define SL_ENGINE_PLACE_H

#include "base/status.h"
#include "spec/model.h"
#include "spec/plan.h"

/* Replaces p->place by what --placement asks for: contiguous, round-robin, hot-cold:FILE (each
 * block's experts spread by load), replicas:N (each expert on N workers), replicas:FILE[:COPIES]
 * (hot ones on several workers, each with room for COPIES more than its even share). FILE has
 * measured popularity:
 * {"rows": [[rows of each expert] of each MoE block]}. */
sl_status sl_placement_make(const char *how, const sl_model_spec *m, sl_plan *p,
                            sl_err *err) SL_MUST_CHECK;

#endif

/* Routing by draws of a known skew instead of the router's choice (docs/numbers.md, "Route skew"):
 * experiments with expert popularity on any model. Thread: create/free by the owner, draw any. */
#ifndef SL_MODEL_SKEW_H
#define SL_MODEL_SKEW_H

#include "base/status.h"
#include "spec/lab.h"
#include "spec/model.h"

typedef struct sl_skew sl_skew;

sl_status sl_skew_create(const sl_route_skew *s, const sl_model_spec *m, sl_skew **out,
                         sl_err *err) SL_MUST_CHECK;
void sl_skew_free(sl_skew *s);

/* Chooses top_k distinct experts for the row of token `id` at position `pos` in MoE block `moe`
 * (its ordinal): expert[top_k] ascending, gate[top_k] = 1 / top_k. A function of (seed, id, pos,
 * moe) only. */
void sl_skew_draw(const sl_skew *s, uint32_t id, uint32_t pos, uint32_t moe, uint32_t *expert,
                  float *gate);

/* Share of the rows that each expert is drawn for first, by MoE block: out[n_moe][n_experts]. */
void sl_skew_popularity(const sl_skew *s, double *out);

#endif

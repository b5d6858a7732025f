/* Costs of a stage on one of several tensor-parallel ranks. */
#include "plan/shard.h"

#include "plan/account.h"
#include "spec/rank_cost.h"

sl_costs sl_shard_costs(const sl_costs *one, const sl_shape *s, uint32_t tp,
                        const sl_link_cost *intra, double value_bytes, bool reduce) {
    const double row_bytes = sl_account_row_bytes(s, value_bytes);
    const uint32_t kv_heads = s->attention == SL_ATTENTION_MLA ? 1 : s->n_kv_heads;
    sl_costs out = *one;
    for (int k = 0; k < SL_COST_COUNT; k++) {
        const bool summed = reduce || k != SL_COST_EXPERT;
        out.stage[k] = sl_gang_stage_cost(&one->stage[k], (sl_cost_kind)k, tp, kv_heads, intra,
                                          summed ? row_bytes : 0);
    }
    return out;
}

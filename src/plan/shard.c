/* Costs of a stage on one of several tensor-parallel ranks. */
#include "plan/shard.h"

#include "plan/account.h"
#include "spec/rank_cost.h"

sl_costs sl_shard_costs(const sl_costs *one, const sl_shape *s, uint32_t tp,
                        const sl_link_cost *intra, double value_bytes, bool reduce) {
    const sl_gang_cut cut = {.ranks = tp,
                             .n_kv_heads = s->n_kv_heads,
                             .latents = s->attention == SL_ATTENTION_MLA,
                             .link = intra,
                             .row_bytes = sl_account_row_bytes(s, value_bytes),
                             .summed_elsewhere = !reduce};
    sl_costs out = *one;
    sl_gang_stages(one->stage, &cut, out.stage);
    return out;
}

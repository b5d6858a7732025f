/* Costs of a stage on one of several tensor-parallel ranks. */
#include "plan/shard.h"

#include "plan/account.h"

sl_costs sl_shard_costs(const sl_costs *one, const sl_shape *s, uint32_t tp,
                        const sl_link_cost *intra, double value_bytes, bool reduce) {
    const sl_account_opts work = {.tp = tp, .activation_bytes = value_bytes};
    uint32_t kv_heads = s->attention == SL_ATTENTION_MLA ? 1 : s->n_kv_heads;
    sl_costs out = *one;
    for (int k = 0; k < SL_COST_COUNT && tp > 1; k++) {
        sl_stage_cost *c = &out.stage[k];
        if (k == SL_COST_ROUTER || c->fixed_us + c->floor_us + c->row_us <= 0) continue;
        c->floor_us /= tp;
        c->row_us /= tp;
        c->pad_us /= tp;
        c->key_us /= tp < kv_heads ? tp : kv_heads;
        double bytes = sl_account_stage(s, (sl_cost_kind)k, 1, 1, &work).reduce_bytes;
        if (bytes <= 0 || (k == SL_COST_EXPERT && !reduce)) continue;
        double both = intra->half_duplex ? 2 : 1, rounds = 2; /* reduce-scatter, all-gather */
        c->fixed_us += rounds * (intra->alpha_us + both * intra->byte_us * intra->half_bytes);
        c->row_us += rounds * both * bytes * (tp - 1) / tp * intra->byte_us;
    }
    return out;
}

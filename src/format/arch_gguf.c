/* Names of tensors in GGUF files: they depend on the role, but for what an architecture calls its
 * own way. */
#include "format/arch.h"

#include <stdio.h>

static const char *const names[SL_ROLE_COUNT] = {
    [SL_ROLE_EMBED] = "token_embd.weight",
    [SL_ROLE_FINAL_NORM] = "output_norm.weight",
    [SL_ROLE_LM_HEAD] = "output.weight",
    [SL_ROLE_ATTN_NORM] = "attn_norm.weight",
    [SL_ROLE_Q] = "attn_q.weight",
    [SL_ROLE_Q_A] = "attn_q_a.weight",
    [SL_ROLE_Q_A_NORM] = "attn_q_a_norm.weight",
    [SL_ROLE_Q_B] = "attn_q_b.weight",
    [SL_ROLE_KV_A] = "attn_kv_a_mqa.weight",
    [SL_ROLE_KV_A_NORM] = "attn_kv_a_norm.weight",
    [SL_ROLE_KV_B] = "attn_kv_b.weight",
    [SL_ROLE_K_B] = "attn_k_b.weight",
    [SL_ROLE_V_B] = "attn_v_b.weight",
    [SL_ROLE_K] = "attn_k.weight",
    [SL_ROLE_V] = "attn_v.weight",
    [SL_ROLE_O] = "attn_output.weight",
    [SL_ROLE_Q_BIAS] = "attn_q.bias",
    [SL_ROLE_K_BIAS] = "attn_k.bias",
    [SL_ROLE_V_BIAS] = "attn_v.bias",
    [SL_ROLE_O_BIAS] = "attn_output.bias",
    [SL_ROLE_SINKS] = "attn_sinks.weight",
    [SL_ROLE_DELTA_IN] = "ssm_in.weight",
    [SL_ROLE_DELTA_QKV] = "attn_qkv.weight",
    [SL_ROLE_DELTA_GATE] = "attn_gate.weight",
    [SL_ROLE_DELTA_SMALL] = "ssm_ba.weight",
    [SL_ROLE_DELTA_CONV] = "ssm_conv1d.weight",
    [SL_ROLE_DELTA_SHIFT] = "ssm_dt.bias",
    [SL_ROLE_DELTA_RATE] = "ssm_a",
    [SL_ROLE_DELTA_NORM] = "ssm_norm.weight",
    [SL_ROLE_DELTA_OUT] = "ssm_out.weight",
    [SL_ROLE_Q_NORM] = "attn_q_norm.weight",
    [SL_ROLE_K_NORM] = "attn_k_norm.weight",
    [SL_ROLE_FFN_NORM] = "ffn_norm.weight",
    [SL_ROLE_ROUTER] = "ffn_gate_inp.weight",
    [SL_ROLE_ROUTER_BIAS] = "exp_probs_b.bias",
    [SL_ROLE_LOGIT_BIAS] = "ffn_gate_inp.bias",
    [SL_ROLE_DENSE_GATE] = "ffn_gate.weight",
    [SL_ROLE_DENSE_UP] = "ffn_up.weight",
    [SL_ROLE_DENSE_DOWN] = "ffn_down.weight",
    [SL_ROLE_SHARED_NORM] = "ffn_norm_shexp.weight",
    [SL_ROLE_SHARED_GATE] = "ffn_gate_shexp.weight",
    [SL_ROLE_SHARED_UP] = "ffn_up_shexp.weight",
    [SL_ROLE_SHARED_DOWN] = "ffn_down_shexp.weight",
    [SL_ROLE_SHARED_SCALE] = "ffn_gate_inp_shexp.weight",
    [SL_ROLE_MTP_TOKEN_NORM] = "nextn.enorm.weight",
    [SL_ROLE_MTP_STATE_NORM] = "nextn.hnorm.weight",
    [SL_ROLE_MTP_IN] = "nextn.eh_proj.weight",
    [SL_ROLE_MTP_NORM] = "nextn.shared_head_norm.weight",
    [SL_ROLE_EXPERT_GATE] = "ffn_gate_exps.weight",
    [SL_ROLE_EXPERT_UP] = "ffn_up_exps.weight",
    [SL_ROLE_EXPERT_DOWN] = "ffn_down_exps.weight",
    [SL_ROLE_EXPERT_GATE_BIAS] = "ffn_gate_exps.bias",
    [SL_ROLE_EXPERT_UP_BIAS] = "ffn_up_exps.bias",
    [SL_ROLE_EXPERT_DOWN_BIAS] = "ffn_down_exps.bias",
};

static const char *name_of(const sl_arch *a, bool routed, sl_arch_role role) {
    for (const sl_arch_alias *own = a->gguf; own && own->name; own++)
        if (own->role == role && (routed || !own->routed)) return own->name;
    return names[role];
}

void sl_arch_gguf_name(const sl_arch *a, const sl_model_spec *m, const sl_arch_tensor *t,
                       uint32_t layer, char out[SL_ARCH_NAME_MAX]) {
    const char *name = name_of(a, m->ffn[layer] == SL_FFN_MOE, t->role);
    SL_ASSERT(name != NULL);
    if (t->scope == SL_SCOPE_MODEL)
        snprintf(out, SL_ARCH_NAME_MAX, "%s", name);
    else
        snprintf(out, SL_ARCH_NAME_MAX, "blk.%u.%s", layer, name);
}

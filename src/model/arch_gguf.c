/* Names of tensors in GGUF files: they depend on the role alone. */
#include "model/arch.h"

#include <stdio.h>

static const char *const names[SL_ROLE_COUNT] = {
    [SL_ROLE_EMBED] = "token_embd.weight",
    [SL_ROLE_FINAL_NORM] = "output_norm.weight",
    [SL_ROLE_LM_HEAD] = "output.weight",
    [SL_ROLE_ATTN_NORM] = "attn_norm.weight",
    [SL_ROLE_Q] = "attn_q.weight",
    [SL_ROLE_K] = "attn_k.weight",
    [SL_ROLE_V] = "attn_v.weight",
    [SL_ROLE_O] = "attn_output.weight",
    [SL_ROLE_Q_BIAS] = "attn_q.bias",
    [SL_ROLE_K_BIAS] = "attn_k.bias",
    [SL_ROLE_V_BIAS] = "attn_v.bias",
    [SL_ROLE_O_BIAS] = "attn_output.bias",
    [SL_ROLE_SINKS] = "attn_sinks.weight",
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
    [SL_ROLE_EXPERT_GATE] = "ffn_gate_exps.weight",
    [SL_ROLE_EXPERT_UP] = "ffn_up_exps.weight",
    [SL_ROLE_EXPERT_DOWN] = "ffn_down_exps.weight",
    [SL_ROLE_EXPERT_GATE_BIAS] = "ffn_gate_exps.bias",
    [SL_ROLE_EXPERT_UP_BIAS] = "ffn_up_exps.bias",
    [SL_ROLE_EXPERT_DOWN_BIAS] = "ffn_down_exps.bias",
};

void sl_arch_gguf_name(const sl_arch_tensor *t, uint32_t layer, char out[SL_ARCH_NAME_MAX]) {
    SL_ASSERT(names[t->role] != NULL);
    if (t->scope == SL_SCOPE_MODEL)
        snprintf(out, SL_ARCH_NAME_MAX, "%s", names[t->role]);
    else
        snprintf(out, SL_ARCH_NAME_MAX, "blk.%u.%s", layer, names[t->role]);
}

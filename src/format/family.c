/* The list of families, and which of them a file names. */
#include "format/gguf_config_int.h"
#include "format/hf_config_int.h"

#include <stdio.h>

const sl_family *const sl_families[] = {
    &sl_hf_qwen3,   &sl_hf_qwen2,  &sl_hf_mixtral,       &sl_hf_olmoe,       &sl_hf_glm4,
    &sl_hf_gpt_oss, &sl_hf_llama4, &sl_hf_llama4_nested, &sl_hf_deepseek_v2, &sl_hf_deepseek_v3,
    &sl_hf_dbrx,    &sl_hf_arctic, &sl_hf_qwen3_next,
};
const size_t sl_n_families = SL_LEN(sl_families);

const sl_family *sl_family_of_class(sl_span name) {
    for (size_t i = 0; i < sl_n_families; i++)
        if (sl_span_is(name, sl_families[i]->name)) return sl_families[i];
    return NULL;
}

const sl_arch *sl_arch_find(const char *name) {
    const sl_family *f = sl_family_of_class((sl_span){(const uint8_t *)name, strlen(name)});
    return f ? &f->arch : NULL;
}

sl_status sl_family_read(sl_json root, const char *unknown, const sl_family **out, sl_err *err) {
    sl_json list = {0};
    sl_span name = {0};
    char known[512] = "";
    sl_status st = sl_json_array(root, "architectures", SL_JSON_REQUIRED, &list, err);
    if (st != SL_OK) return st;
    if (sl_json_count(list) != 1 || !sl_json_as_span(sl_json_at(list, 0), &name))
        return sl_json_fail(root, "architectures", err, SL_ERR_FORMAT, "must be one class name");
    *out = sl_family_of_class(name);
    if (*out) return SL_OK;
    for (size_t i = 0, at = 0; i < sl_n_families && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "",
                               sl_families[i]->name);
    return sl_json_fail(root, "architectures", err, SL_ERR_UNSUPPORTED, "\"%.*s\" %s%s)",
                        (int)SL_MIN(name.len, (size_t)64), (const char *)name.data, unknown, known);
}

sl_shape sl_family_shape(const sl_family *f, const sl_model_spec *m) {
    const sl_arch_tensor *q_norm = sl_arch_tensor_of(&f->arch, SL_ROLE_Q_NORM);
    bool mla = m->kv_lora != 0;
    sl_shape s = {
        .n_layers = m->n_layers,
        .n_mtp = m->n_mtp,
        .moe_every = 1,
        .d_model = m->d_model,
        .vocab = m->vocab,
        .tied_head = m->tied_head,
        .attention = mla ? SL_ATTENTION_MLA : SL_ATTENTION_GQA,
        .n_heads = m->n_heads,
        .n_kv_heads = mla ? m->n_heads : m->n_kv_heads,
        .qk_head_dim = mla ? m->nope_dim + m->rope_dim : m->head_dim,
        .v_head_dim = mla ? m->v_dim : m->head_dim,
        .q_lora = m->q_lora,
        .kv_lora = m->kv_lora,
        .qk_nope_dim = m->nope_dim,
        .qk_rope_dim = mla ? m->rope_dim : 0,
        .window = m->sliding_window,
        .gated = m->gated,
        .n_linear_layers = m->n_linear,
        .n_experts = m->n_experts,
        .top_k = m->top_k,
        .d_ff_expert = m->d_ff_expert,
        .d_ff_shared = m->dense_branch ? 0 : m->d_ff_shared,
        .d_ff_dense = m->d_ff_dense,
        .d_ff_residual = m->dense_branch ? m->d_ff_shared : 0,
        .norms_per_layer = 2,
        .qk_norm = m->qk_norm,
        .qk_norm_wide = m->qk_norm && q_norm && q_norm->n == SL_DIM_Q,
        .qkv_bias = m->qkv_bias,
        .o_bias = m->qkv_bias && f->o_bias,
        .expert_bias = sl_arch_tensor_of(&f->arch, SL_ROLE_EXPERT_GATE_BIAS),
        .router_bias = sl_arch_tensor_of(&f->arch, SL_ROLE_ROUTER_BIAS) ||
                       sl_arch_tensor_of(&f->arch, SL_ROLE_LOGIT_BIAS),
        .shared_gate = sl_arch_tensor_of(&f->arch, SL_ROLE_SHARED_SCALE),
        .sink = sl_arch_tensor_of(&f->arch, SL_ROLE_SINKS),
        .max_position = m->max_position,
    };
    if (m->n_linear) {
        s.delta_channels = sl_delta_channels(m);
        s.delta_taps = m->delta_taps;
        s.delta_heads = m->delta_v_heads;
        s.delta_out = sl_delta_out(m);
        s.delta_state = m->delta_k_dim * s.delta_out;
    }
    for (uint32_t i = 0; i < m->n_layers; i++) {
        s.n_windowed_layers += m->sight[i] == SL_SIGHT_WINDOW;
        if (m->ffn[i] == SL_FFN_DENSE) sl_shape_make_dense(&s, i);
    }
    return s;
}

/* Snowflake Arctic: Llama's names, and a dense branch beside the experts of a routed block. */
#include "format/hf_config_int.h"

static const sl_hf_key own[] = {
    {"moe_layer_frequency", SL_HF_USED},
    {"parallel_attn_mlp_res", SL_HF_USED},
    {"use_residual", SL_HF_USED},
    {"sliding_window", SL_HF_OFF},
    {"quantization", SL_HF_OFF},
    {"auto_map", SL_HF_HARMLESS}, /* code that computes what is built in here */
    {"enable_expert_tensor_parallelism", SL_HF_HARMLESS},
    {"moe_eval_capacity_factor", SL_HF_HARMLESS}, /* of training's library, which drops tokens */
    {"moe_train_capacity_factor", SL_HF_HARMLESS},
    {"moe_min_capacity", SL_HF_HARMLESS},
    {"moe_token_dropping", SL_HF_HARMLESS},
};

/* Every so many blocks the last is routed; the others are dense, as wide as an expert. */
static sl_status read_pattern(sl_json root, sl_model_spec *m, sl_err *err) {
    uint32_t every = 2;
    sl_status st =
        sl_hf_u32(root, sl_hf_arctic.key.every, SL_JSON_OPTIONAL, 1, m->n_layers, &every, err);
    if (st == SL_OK && every > m->n_layers)
        st = sl_json_fail(root, sl_hf_arctic.key.every, err, SL_ERR_UNSUPPORTED,
                          "missing, and of %u blocks none is a second one", m->n_layers);
    if (st != SL_OK) return st;
    m->n_moe = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->ffn[i] = (i + 1) % every == 0 ? SL_FFN_MOE : SL_FFN_DENSE;
    if (every > 1) m->d_ff_dense = m->d_ff_expert;
    return sl_hf_number_blocks(root, m, err);
}

static sl_status read_own(sl_json root, sl_model_spec *m, sl_err *err) {
    bool branch = false;
    sl_status st = read_pattern(root, m, err);
    if (st == SL_OK)
        st = sl_json_bool(root, "parallel_attn_mlp_res", SL_JSON_OPTIONAL, &branch, err);
    bool again = branch;
    if (st == SL_OK) st = sl_json_bool(root, "use_residual", SL_JSON_OPTIONAL, &again, err);
    if (st == SL_OK && again != branch)
        st = sl_json_fail(root, "use_residual", err, SL_ERR_UNSUPPORTED,
                          "is not parallel_attn_mlp_res, and programs differ in which they read");
    m->dense_branch = branch;
    m->d_ff_shared = branch ? m->d_model : 0;
    return st;
}

static sl_status describe(sl_json root, sl_shape *s, sl_err *err) {
    bool residual = false;
    sl_status st = sl_json_bool(root, "parallel_attn_mlp_res", SL_JSON_OPTIONAL, &residual, err);
    if (sl_json_kind_of(sl_json_get(root, sl_hf_arctic.key.every)) <= SL_JSON_NULL)
        s->moe_every = 2;
    s->d_ff_residual = residual ? s->d_model : 0;
    return st;
}

const sl_family sl_hf_arctic = {
    .name = "ArcticForCausalLM",
    .model_type = "arctic",
    .key = {SL_LLAMA_KEYS, .experts = "num_local_experts", .expert_width = "intermediate_size",
            .dense_width = "intermediate_size", .every = "moe_layer_frequency"},
    .gguf = {.name = "arctic",
             .width = "feed_forward_length",
             .rope_pairs = true,
             .norm_topk = true,
             .has = SL_GGUF_BRANCH},
    .rope_theta = 1e6,
    .rms_eps = 1e-5,
    .rope_part = 1,
    .norm_topk = true,
    .norm_topk_fixed = true,
    .head_dim_derived = true,
    .own = own,
    .n_own = SL_LEN(own),
    .read_own = read_own,
    .describe = describe,
};

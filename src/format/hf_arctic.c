/* Snowflake Arctic: Llama's names, and a dense branch beside the experts of a routed block. */
#include "format/hf_config_int.h"
#include "format/tensors.h"

/* clang-format off */
static const sl_arch_tensor tensors[] = {
    COMMON_TENSORS,
    {SL_ROLE_ROUTER,      SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "block_sparse_moe.gate.weight",           SL_DIM_EXPERTS,   SL_DIM_MODEL},
    {SL_ROLE_DENSE_GATE,  SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w1.weight",         SL_DIM_FF_DENSE,  SL_DIM_MODEL},
    {SL_ROLE_DENSE_UP,    SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w3.weight",         SL_DIM_FF_DENSE,  SL_DIM_MODEL},
    {SL_ROLE_DENSE_DOWN,  SL_SCOPE_DENSE_BLOCK, ATTN, BLOCK "block_sparse_moe.mlp.w2.weight",         SL_DIM_MODEL,     SL_DIM_FF_DENSE},
    {SL_ROLE_SHARED_NORM, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_layernorm.weight",              SL_DIM_MODEL,     SL_DIM_NONE},
    {SL_ROLE_SHARED_GATE, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w1.weight",                 SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_UP,   SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w3.weight",                 SL_DIM_FF_SHARED, SL_DIM_MODEL},
    {SL_ROLE_SHARED_DOWN, SL_SCOPE_MOE_BLOCK,   ATTN, BLOCK "residual_mlp.w2.weight",                 SL_DIM_MODEL,     SL_DIM_FF_SHARED},
    {SL_ROLE_EXPERT_GATE, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w1.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_UP,   SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w3.weight", SL_DIM_FF_EXPERT, SL_DIM_MODEL},
    {SL_ROLE_EXPERT_DOWN, SL_SCOPE_EXPERT,      EXP,  BLOCK "block_sparse_moe.experts.{E}.w2.weight", SL_DIM_MODEL,     SL_DIM_FF_EXPERT},
};
/* clang-format on */

/* The usual names in GGUF are those of its dense branch. */
static const sl_arch_alias gguf_names[] = {{"ffn_norm_exps.weight", SL_ROLE_FFN_NORM, true},
                                           {"ffn_norm.weight", SL_ROLE_SHARED_NORM, true},
                                           {"ffn_gate.weight", SL_ROLE_SHARED_GATE, true},
                                           {"ffn_up.weight", SL_ROLE_SHARED_UP, true},
                                           {"ffn_down.weight", SL_ROLE_SHARED_DOWN, true},
                                           {0}};

static const sl_hf_key own[] = {
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

static sl_status read_own(sl_json root, sl_model_spec *m, sl_err *err) {
    bool again = m->dense_branch;
    sl_status st = sl_json_bool(root, "use_residual", SL_JSON_OPTIONAL, &again, err);
    if (st == SL_OK && again != m->dense_branch)
        st = sl_json_fail(root, "use_residual", err, SL_ERR_UNSUPPORTED,
                          "is not parallel_attn_mlp_res, and programs differ in which they read");
    return st;
}

const sl_family sl_hf_arctic = {
    .name = "ArcticForCausalLM",
    .arch = {TENSORS(tensors), .gguf = gguf_names},
    .model_type = "arctic",
    .key = {SL_LLAMA_KEYS, .experts = "num_local_experts", .expert_width = "intermediate_size",
            .dense_width = "intermediate_size", .branch = "parallel_attn_mlp_res",
            .every = "moe_layer_frequency"},
    .given = {.every = 2},
    .gguf = {.name = "arctic",
             .width = "feed_forward_length",
             .rope_pairs = true,
             .norm_topk = true,
             .has = SL_GGUF_BRANCH},
    .rope_theta = 1e6,
    .rms_eps = 1e-5,
    .norm_topk = true,
    .norm_topk_fixed = true,
    .head_dim_derived = true,
    .own = SL_HF_KEYS(own),
    .read_own = read_own,
};

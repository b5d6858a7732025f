/* config.json of DBRX: as published, and every kind of refusal. */
#include "config_test.h"

#define ATTN                                                                                       \
    "\"attn_config\":{\"clip_qkv\":8,\"kv_n_heads\":8,\"model_type\":\"\",\"rope_theta\":500000}"
#define FFN                                                                                        \
    "\"ffn_config\":{\"ffn_hidden_size\":10752,\"model_type\":\"\",\"moe_jitter_eps\":0.01,"       \
    "\"moe_loss_weight\":0.05,\"moe_num_experts\":16,\"moe_top_k\":4}"

static const char dbrx[] =
    "{\"architectures\":[\"DbrxForCausalLM\"]," ATTN
    ",\"auto_map\":{\"AutoConfig\":\"configuration_dbrx.DbrxConfig\"},\"d_model\":6144,"
    "\"emb_pdrop\":0.0," FFN
    ",\"initializer_range\":0.02,\"max_seq_len\":32768,\"model_type\":\"dbrx\",\"n_heads\":48,"
    "\"n_layers\":40,\"output_router_logits\":false,\"resid_pdrop\":0.0,"
    "\"router_aux_loss_coef\":0.05,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.38.2\",\"use_cache\":true,\"vocab_size\":100352}";

static void the_published_one_is_read(void **state) {
    (void)state;
    sl_model_spec m = config_read(dbrx);
    assert_true(m.d_model == 6144 && m.n_layers == 40 && m.n_moe == 40 && m.n_heads == 48);
    assert_true(m.n_kv_heads == 8 && m.head_dim == 128 && m.rope_dim == 128 && m.vocab == 100352);
    assert_true(m.n_experts == 16 && m.top_k == 4 && m.d_ff_expert == 10752 && m.norm_topk);
    assert_true(m.clip_qkv == 8 && m.rope_theta == 5e5f && m.rms_eps == 1e-5f);
    assert_true(m.max_position == 32768 && !m.tied_head && m.d_ff_dense == 0 && !m.qk_norm);
    assert_int_equal(m.n_params, 131596523520ull); /* the model card's 132 B, 36 B active */
    assert_int_equal(m.n_params_active, 131596523520ull - 12ull * 40 * 3 * 6144 * 10752);
}

static void options_are_read(void **state) {
    (void)state;
    const char *key = "\"moe_top_k\":4";
    assert_true(
        config_read_edited(dbrx, key, "\"moe_top_k\":4,\"moe_normalize_expert_weights\":1.0")
            .norm_topk);
    assert_false(
        config_read_edited(dbrx, key, "\"moe_top_k\":4,\"moe_normalize_expert_weights\":null")
            .norm_topk);
    assert_true(
        config_read_edited(dbrx, key, "\"moe_top_k\":4,\"ffn_act_fn\":{\"name\":\"silu\"}").top_k ==
        4);
    assert_true(config_read_edited(dbrx, "\"clip_qkv\":8,", "").clip_qkv == 0);
    assert_true(config_read_edited(dbrx, "\"clip_qkv\":8,", "\"clip_qkv\":null,").clip_qkv == 0);
    assert_true(config_read_edited(dbrx, ",\"rope_theta\":500000", "").rope_theta == 1e4f);
    assert_true(config_read_edited(dbrx, "\"kv_n_heads\":8,", "").n_kv_heads == 1);
    assert_true(
        config_read_edited(dbrx, "\"n_heads\":48", "\"n_heads\":48,\"num_key_value_heads\":8")
            .n_heads == 48);
    assert_true(
        config_read_edited(dbrx, "\"n_heads\":48", "\"n_heads\":48,\"eos_token_id\":7").eos[0] ==
        7);
}

static void options_that_change_results_are_refused(void **state) {
    (void)state;
    static const char top[] = "\"moe_top_k\":4", heads[] = "\"n_heads\":48";
    static const struct {
        const char *from, *to;
        sl_status code;
        const char *text;
    } bad[] = {
        {top, "\"moe_top_k\":4,\"moe_normalize_expert_weights\":2", SL_ERR_UNSUPPORTED,
         "ffn_config.moe_normalize_expert_weights: supported only as 1"},
        {top, "\"moe_top_k\":4,\"moe_normalize_expert_weights\":\"1\"", SL_ERR_UNSUPPORTED,
         "ffn_config.moe_normalize_expert_weights: supported only as 1"},
        {top, "\"moe_top_k\":4,\"uniform_expert_assignment\":true", SL_ERR_UNSUPPORTED,
         "ffn_config.uniform_expert_assignment: supported only when it is off"},
        {top, "\"moe_top_k\":4,\"ffn_act_fn\":{\"name\":\"gelu\"}", SL_ERR_UNSUPPORTED,
         "ffn_config.ffn_act_fn.name: \"gelu\" is not supported"},
        {top, "\"moe_top_k\":4,\"ffn_act_fn\":{\"name\":\"silu\",\"inplace\":true}",
         SL_ERR_UNSUPPORTED, "ffn_config.ffn_act_fn.inplace: unknown field"},
        {top, "\"moe_top_k\":17", SL_ERR_LIMIT, "ffn_config.moe_top_k: 17 is outside 1..16"},
        {top, "\"moe_top_k\":4,\"bias\":true", SL_ERR_UNSUPPORTED,
         "ffn_config.bias: unknown option; ignoring it could change results"},
        {"\"clip_qkv\":8", "\"clip_qkv\":-8", SL_ERR_LIMIT, "attn_config.clip_qkv: -8"},
        {"\"clip_qkv\":8", "\"clip_qkv\":8,\"qk_ln\":true", SL_ERR_UNSUPPORTED,
         "attn_config.qk_ln: unknown option"},
        {"\"clip_qkv\":8", "\"clip_qkv\":8,\"rope_scaling\":{\"factor\":2}", SL_ERR_UNSUPPORTED,
         "attn_config.rope_scaling: unknown option of DbrxForCausalLM"},
        {"\"kv_n_heads\":8", "\"kv_n_heads\":7", SL_ERR_FORMAT,
         "attn_config.kv_n_heads: 7 does not divide n_heads 48"},
        {heads, "\"n_heads\":47", SL_ERR_FORMAT, "attn_config.kv_n_heads: 8 does not divide"},
        {heads, "\"n_heads\":40", SL_ERR_FORMAT, "n_heads: 40 does not divide d_model 6144"},
        {heads, "\"n_heads\":48,\"num_key_value_heads\":4", SL_ERR_FORMAT,
         "num_key_value_heads: 4 contradicts attn_config.kv_n_heads 8"},
        {heads, "\"n_heads\":48,\"sliding_window\":4096", SL_ERR_UNSUPPORTED,
         "sliding_window: unknown option of DbrxForCausalLM"},
        {heads, "\"n_heads\":48,\"hidden_act\":\"silu\"", SL_ERR_UNSUPPORTED,
         "hidden_act: unknown option of DbrxForCausalLM"},
        {heads, "\"n_heads\":48,\"shared_ffn\":1", SL_ERR_UNSUPPORTED,
         "shared_ffn: unknown option; ignoring it could change results"},
        {"\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true", SL_ERR_UNSUPPORTED,
         "tie_word_embeddings: true is not supported"},
        {ATTN, "\"attn_config\":null", SL_ERR_FORMAT, "attn_config: missing"},
        {FFN, "\"ffn_config\":[]", SL_ERR_FORMAT, "ffn_config: an array"},
        {"\"d_model\":6144", "\"d_model\":\"6144\"", SL_ERR_FORMAT, "d_model: a string"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++)
        config_refused(dbrx, bad[i].from, bad[i].to, bad[i].code, bad[i].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_one_is_read),
        cmocka_unit_test(options_are_read),
        cmocka_unit_test(options_that_change_results_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* config.json of Snowflake Arctic: its published sizes, and every kind of refusal. */
#include "config_test.h"

static const char arctic[] =
    "{\"architectures\":[\"ArcticForCausalLM\"],\"attention_dropout\":0,"
    "\"auto_map\":{\"AutoConfig\":\"configuration_arctic.ArcticConfig\"},\"bos_token_id\":31998,"
    "\"enable_expert_tensor_parallelism\":false,\"eos_token_id\":31999,\"hidden_act\":\"silu\","
    "\"hidden_size\":7168,\"initializer_range\":0.02,\"intermediate_size\":4864,"
    "\"max_position_embeddings\":4096,\"model_type\":\"arctic\",\"moe_eval_capacity_factor\":1,"
    "\"moe_layer_frequency\":1,\"moe_min_capacity\":0,\"moe_token_dropping\":false,"
    "\"moe_train_capacity_factor\":1,\"num_attention_heads\":56,\"num_experts_per_tok\":2,"
    "\"num_hidden_layers\":35,\"num_key_value_heads\":8,\"num_local_experts\":128,"
    "\"parallel_attn_mlp_res\":true,\"quantization\":null,\"rms_norm_eps\":1e-05,"
    "\"rope_scaling\":null,\"rope_theta\":10000,\"router_aux_loss_coef\":0.001,"
    "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.39.3\",\"use_cache\":true,\"use_residual\":true,"
    "\"vocab_size\":32000}";

static void the_published_sizes_are_read(void **state) {
    (void)state;
    sl_model_spec m = config_read(arctic);
    assert_true(m.n_layers == 35 && m.n_moe == 35 && m.d_ff_dense == 0 && m.head_dim == 128);
    assert_true(m.n_experts == 128 && m.top_k == 2 && m.d_ff_expert == 4864 && m.norm_topk);
    assert_true(m.dense_branch && m.d_ff_shared == 7168 && m.rope_theta == 1e4f);
    assert_int_equal(m.n_params, 478584608768ull); /* published: 480 B, 17 B active */
    assert_int_equal(m.n_params_active, 17318647808ull);
}

static void options_are_read(void **state) {
    (void)state;
    sl_model_spec m =
        config_read_edited(arctic, "\"moe_layer_frequency\":1", "\"moe_layer_frequency\":2");
    assert_true(m.n_moe == 17 && m.ffn[0] == SL_FFN_DENSE && m.ffn[1] == SL_FFN_MOE);
    assert_true(m.d_ff_dense == 4864 && m.moe_layer[1] == 3 && m.moe_index[3] == 1);
    m = config_read_edited(arctic, "\"moe_layer_frequency\":1,",
                           ""); /* 2, as the model's own code has it */
    assert_int_equal(m.n_moe, 17);
    assert_true(config_read_edited(arctic, ",\"use_residual\":true", "").dense_branch);
    assert_true(config_read_edited(arctic, "\"rope_theta\":10000,", "").rope_theta == 1e6f);
}

static void options_that_change_results_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        sl_status code;
        const char *text;
    } bad[] = {
        {"\"use_residual\":true", "\"use_residual\":false", SL_ERR_UNSUPPORTED,
         "use_residual: is not parallel_attn_mlp_res"},
        {"\"parallel_attn_mlp_res\":true", "\"parallel_attn_mlp_res\":false", SL_ERR_UNSUPPORTED,
         "use_residual: is not parallel_attn_mlp_res"},
        {"\"sliding_window\":null", "\"sliding_window\":4096", SL_ERR_UNSUPPORTED,
         "sliding_window: supported only when it is off"},
        {"\"quantization\":null", "\"quantization\":{\"q_bits\":8}", SL_ERR_UNSUPPORTED,
         "quantization: supported only when it is off"},
        {"\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}",
         SL_ERR_UNSUPPORTED, "rope_scaling.type: \"linear\" is not supported"},
        {"\"moe_layer_frequency\":1", "\"moe_layer_frequency\":36", SL_ERR_UNSUPPORTED,
         "no block is routed to experts (moe_layer_frequency)"},
        {"\"use_cache\":true", "\"norm_topk_prob\":false", SL_ERR_UNSUPPORTED,
         "norm_topk_prob: false is not supported for ArcticForCausalLM"},
        {"\"use_cache\":true", "\"head_dim\":64", SL_ERR_UNSUPPORTED,
         "head_dim: 64 is not hidden_size / num_attention_heads"},
        {"\"use_cache\":true", "\"residual_scale\":2", SL_ERR_UNSUPPORTED,
         "residual_scale: unknown option; ignoring it could change results"},
        {"\"num_local_experts\":128", "\"num_local_experts\":1", SL_ERR_LIMIT,
         "num_experts_per_tok: 2 is outside 1..1"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++)
        config_refused(arctic, bad[i].from, bad[i].to, bad[i].code, bad[i].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_sizes_are_read),
        cmocka_unit_test(options_are_read),
        cmocka_unit_test(options_that_change_results_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

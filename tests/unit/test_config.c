/* config.json and generation_config.json: as published, and every kind of refusal. */
#include "base/mem.h"
#include "format/arch.h"
#include "format/hf_config.h"
#include "spec/kv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const char qwen3_30b_a3b[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"bos_token_id\":151643,\"decoder_sparse_step\":1,"
    "\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
    "\"initializer_range\":0.02,\"intermediate_size\":6144,\"max_position_embeddings\":40960,"
    "\"max_window_layers\":48,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\","
    "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_attention_heads\":32,"
    "\"num_experts\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":48,"
    "\"num_key_value_heads\":4,\"output_router_logits\":false,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":null,\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.001,"
    "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.51.0\",\"use_cache\":true,\"use_sliding_window\":false,"
    "\"vocab_size\":151936}";

static const char mixtral_8x7b[] =
    "{\"architectures\":[\"MixtralForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":1,"
    "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
    "\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"model_type\":\"mixtral\","
    "\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,"
    "\"num_key_value_heads\":8,\"num_local_experts\":8,\"output_router_logits\":false,"
    "\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.02,"
    "\"sliding_window\":null,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.36.0.dev0\",\"use_cache\":true,\"vocab_size\":32000}";

static const char qwen15_moe_a27b[] =
    "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"attention_dropout\":0.0,"
    "\"bos_token_id\":151643,\"decoder_sparse_step\":1,\"eos_token_id\":151643,"
    "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
    "\"intermediate_size\":5632,\"max_position_embeddings\":8192,\"max_window_layers\":21,"
    "\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":1408,\"norm_topk_prob\":false,"
    "\"num_attention_heads\":16,\"num_experts\":60,\"num_experts_per_tok\":4,"
    "\"num_hidden_layers\":24,\"num_key_value_heads\":16,\"output_router_logits\":false,"
    "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.001,"
    "\"shared_expert_intermediate_size\":5632,\"sliding_window\":32768,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.39.0.dev0\",\"use_cache\":true,"
    "\"use_sliding_window\":false,\"vocab_size\":151936}";

static const char olmoe_1b_7b[] =
    "{\"architectures\":[\"OlmoeForCausalLM\"],\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"clip_qkv\":null,\"eos_token_id\":50279,\"hidden_act\":\"silu\","
    "\"hidden_size\":2048,\"initializer_range\":0.02,\"intermediate_size\":1024,"
    "\"max_position_embeddings\":4096,\"model_type\":\"olmoe\",\"norm_topk_prob\":false,"
    "\"num_attention_heads\":16,\"num_experts\":64,\"num_experts_per_tok\":8,"
    "\"num_hidden_layers\":16,\"num_key_value_heads\":16,\"output_router_logits\":false,"
    "\"pad_token_id\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000.0,"
    "\"router_aux_loss_coef\":0.01,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.43.0.dev0\",\"use_cache\":true,\"vocab_size\":50304}";

static const char glm45_air[] =
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"attention_bias\":true,"
    "\"attention_dropout\":0.0,\"eos_token_id\":[151329,151336,151338],\"first_k_dense_replace\":1,"
    "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":4096,\"initializer_range\":0.02,"
    "\"intermediate_size\":10944,\"max_position_embeddings\":131072,\"model_type\":\"glm4_moe\","
    "\"moe_intermediate_size\":1408,\"n_group\":1,\"n_routed_experts\":128,\"n_shared_experts\":1,"
    "\"norm_topk_prob\":true,\"num_attention_heads\":96,\"num_experts_per_tok\":8,"
    "\"num_hidden_layers\":46,\"num_key_value_heads\":8,\"num_nextn_predict_layers\":1,"
    "\"pad_token_id\":151329,\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,"
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"routed_scaling_factor\":1.0,"
    "\"tie_word_embeddings\":false,\"topk_group\":1,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.54.0\",\"use_cache\":true,\"use_qk_norm\":false,"
    "\"vocab_size\":151552}";

static const char gpt_oss_tail[] =
    "\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2880,"
    "\"initial_context_length\":4096,\"initializer_range\":0.02,\"intermediate_size\":2880,"
    "\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\",\"num_attention_heads\":64,"
    "\"num_experts_per_tok\":4,\"experts_per_token\":4,\"num_key_value_heads\":8,"
    "\"output_router_logits\":false,\"pad_token_id\":199999,\"quantization_config\":{"
    "\"modules_to_not_convert\":[\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\","
    "\"model.embed_tokens\",\"lm_head\"],\"quant_method\":\"mxfp4\"},\"rms_norm_eps\":1e-05,"
    "\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"
    "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\",\"truncate\":false},"
    "\"rope_theta\":150000,\"router_aux_loss_coef\":0.9,\"sliding_window\":128,"
    "\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,\"transformers_version\":\"4.55.0.dev0\","
    "\"use_cache\":true,\"vocab_size\":201088}";

/* gpt-oss-20b (24 blocks, 32 experts) and -120b (36, 128); free the text. */
static char *gpt_oss(uint32_t layers, uint32_t experts) {
    static const char *const sight[] = {"sliding_attention", "full_attention"};
    char *text = malloc(8192);
    int at = snprintf(text, 8192,
                      "{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,"
                      "\"attention_dropout\":0.0,\"eos_token_id\":200002,\"num_hidden_layers\":%u,"
                      "\"num_local_experts\":%u,\"layer_types\":[",
                      layers, experts);
    for (uint32_t i = 0; i < layers; i++)
        at += snprintf(text + at, 8192 - (size_t)at, "%s\"%s\"", i ? "," : "", sight[i % 2]);
    snprintf(text + at, 8192 - (size_t)at, "],%s", gpt_oss_tail);
    return text;
}

static const char qwen3_generation[] =
    "{\"bos_token_id\":151643,\"do_sample\":true,\"eos_token_id\":[151645,151643],"
    "\"pad_token_id\":151643,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,"
    "\"transformers_version\":\"4.51.0\"}";

static const char deepseek_v2_lite[] =
    "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"auto_map\":{\"AutoConfig\":\"configuration_deepseek."
    "DeepseekV2Config\"},"
    "\"aux_loss_alpha\":0.001,\"bos_token_id\":100000,\"eos_token_id\":100001,"
    "\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
    "\"initializer_range\":0.02,\"intermediate_size\":10944,\"kv_lora_rank\":512,"
    "\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v2\","
    "\"moe_intermediate_size\":1408,\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":64,"
    "\"n_shared_experts\":2,\"norm_topk_prob\":false,\"num_attention_heads\":16,"
    "\"num_experts_per_tok\":6,\"num_hidden_layers\":27,\"num_key_value_heads\":16,"
    "\"pretraining_tp\":1,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
    "\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,"
    "\"mscale\":0.707,\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096,"
    "\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_scaling_factor\":1.0,"
    "\"scoring_func\":\"softmax\",\"seq_aux\":true,\"tie_word_embeddings\":false,"
    "\"topk_group\":1,\"topk_method\":\"greedy\",\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.33.1\",\"use_cache\":true,\"v_head_dim\":128,"
    "\"vocab_size\":102400}";

/* Kimi-K2: the class of DeepSeek-V3, with counts of its own. */
static const char kimi_k2[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"auto_map\":{\"AutoConfig\":\"configuration_deepseek."
    "DeepseekV3Config\"},"
    "\"aux_loss_alpha\":0.001,\"bos_token_id\":163584,\"eos_token_id\":163585,"
    "\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":7168,"
    "\"initializer_range\":0.02,\"intermediate_size\":18432,\"kv_lora_rank\":512,"
    "\"max_position_embeddings\":131072,\"model_type\":\"kimi_k2\","
    "\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":384,"
    "\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":64,"
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":64,"
    "\"num_nextn_predict_layers\":0,\"pretraining_tp\":1,\"q_lora_rank\":1536,"
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor\":32.0,\"mscale\":1.0,"
    "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"
    "\"rope_theta\":50000.0,\"routed_scaling_factor\":2.827,\"scoring_func\":\"sigmoid\","
    "\"seq_aux\":true,\"tie_word_embeddings\":false,\"topk_group\":1,\"topk_method\":\"noaux_tc\","
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.48.3\",\"use_cache\":true,"
    "\"v_head_dim\":128,\"vocab_size\":163840}";

static sl_span span(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

static sl_model_spec parse_ok(const char *text) {
    sl_model_spec m;
    sl_err err = {0};
    if (sl_hf_config_parse("config.json", span(text), &m, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_arch_count_params(sl_arch_find(m.arch), &m);
    return m;
}

/* The text with one field put first and taken out where it stood. */
static char *with(const char *text, const char *field) {
    char *out = malloc(strlen(text) + strlen(field) + 8), key[64];
    int n = (int)strcspn(field + 1, "\"") + 2;
    snprintf(key, sizeof key, "%.*s:", n, field);
    const char *old = strstr(text, key), *end = old;
    if (!old) {
        sprintf(out, "{%s,%s", field, text + 1);
        return out;
    }
    for (int depth = 0; depth > 0 || (*end != ',' && *end != '}'); end++)
        depth += (*end == '[' || *end == '{') - (*end == ']' || *end == '}');
    bool last = *end == '}';
    int before = (int)(old - text) - 1 - last; /* without the comma before the last field */
    sprintf(out, "{%s,%.*s%s", field, before, text + 1, last ? end : end + 1);
    return out;
}

static void published_configs_are_read(void **state) {
    (void)state;
    sl_model_spec q = parse_ok(qwen3_30b_a3b), m = parse_ok(mixtral_8x7b);
    assert_string_equal(q.arch, "Qwen3MoeForCausalLM");
    assert_true(q.qk_norm && q.norm_topk && !q.tied_head);
    assert_int_equal(q.n_layers, 48);
    assert_int_equal(q.n_moe, 48);
    assert_int_equal(q.d_ff_dense, 0);
    assert_int_equal(q.d_ff_expert, 768);
    assert_int_equal(q.head_dim, 128);
    assert_int_equal(q.n_eos, 1);
    assert_int_equal(q.bos, 151643);
    assert_int_equal(q.sliding_window, 0);
    assert_true(q.rope_theta == 1e6f && q.rms_eps == 1e-6f);
    assert_int_equal(q.n_params, 30532122624); /* the model card's 30.5 B, 3.3 B active */
    assert_int_equal(q.n_params_active, 3353032704);
    assert_int_equal(m.n_params, 46702792704);
    assert_int_equal(m.n_params_active, 12879925248);
    assert_int_equal(m.head_dim, 128);
    assert_true(m.norm_topk && !m.qk_norm && m.rms_eps == 1e-5f);
    assert_true(!q.qkv_bias && !m.qkv_bias && q.d_ff_shared == 0 && m.d_ff_shared == 0);
    sl_model_spec a = parse_ok(qwen15_moe_a27b);
    assert_true(a.qkv_bias && !a.qk_norm && !a.norm_topk && a.sliding_window == 0);
    assert_int_equal(a.d_ff_shared, 5632);
    assert_int_equal(a.d_ff_dense, 0);
    assert_int_equal(a.n_params, 14315784192); /* as transformers builds it: 14.3 B, 2.7 B active */
    assert_int_equal(a.n_params_active, 2689173504);
}

static void families_with_options_of_their_own_are_read(void **state) {
    (void)state;
    sl_model_spec o = parse_ok(olmoe_1b_7b), g = parse_ok(glm45_air);
    assert_true(o.qk_norm && !o.norm_topk && !o.qkv_bias && o.clip_qkv == 0);
    assert_true(o.rope_dim == 128 && o.d_ff_expert == 1024 && o.n_groups == 0);
    assert_int_equal(o.n_params,
                     6919161856ull); /* as transformers builds it: 6.9 B, 1.3 B active */
    assert_int_equal(o.n_params_active, 6919161856ull - 56ull * 16 * 3 * 2048 * 1024);
    assert_true(g.qkv_bias && !g.qk_norm && g.norm_topk && g.route_scale == 1);
    assert_true(g.rope_dim == 64 && g.head_dim == 128 && g.d_ff_shared == 1408);
    assert_true(g.n_groups == 1 && g.top_groups == 1 && g.n_mtp == 1 && g.n_eos == 3);
    assert_true(g.ffn[0] == SL_FFN_DENSE && g.n_moe == 45 && g.d_ff_dense == 10944);
    assert_int_equal(g.n_params, 106852251264ull); /* without the MTP layer */
    assert_int_equal(g.n_params_active, 106852251264ull - 120ull * 45 * 3 * 4096 * 1408);
    char *text = with(olmoe_1b_7b, "\"clip_qkv\":8.0");
    assert_true(parse_ok(text).clip_qkv == 8);
    free(text);
    text = with(qwen3_30b_a3b, "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                               "\"original_max_position_embeddings\":32768}");
    sl_model_spec y = parse_ok(text);
    assert_true(y.yarn.factor == 4 && y.yarn.beta_fast == 32 && y.yarn.beta_slow == 1);
    assert_true(y.yarn.attention > 1.1386f && y.yarn.attention < 1.1387f);
    assert_true(y.max_position == 131072 && o.yarn.factor == 0);
    free(text);
    text = with(glm45_air, "\"partial_rotary_factor\":null");
    assert_int_equal(parse_ok(text).rope_dim, 64); /* what transformers assumes */
    free(text);
    text = with(glm45_air, "\"rope_scaling\":{\"rope_type\":\"default\"}");
    assert_true(parse_ok(text).rope_theta == 1e6f);
    free(text);
}

static void latent_attention_is_read(void **state) {
    (void)state;
    sl_model_spec l = parse_ok(deepseek_v2_lite), k = parse_ok(kimi_k2);
    assert_true(l.kv_lora == 512 && l.q_lora == 0 && l.nope_dim == 128 && l.v_dim == 128);
    assert_true(l.rope_dim == 64 && l.head_dim == 576 && l.n_kv_heads == 1 && l.rope_pairs);
    assert_true(l.n_groups == 0 && l.route_scale == 1 && !l.norm_topk && l.d_ff_shared == 2816);
    assert_true(l.yarn.factor == 40 && l.yarn.attention == 1 && l.max_position == 163840);
    double gain = 0.1 * 0.707 * log(40) + 1;
    assert_true(fabs((double)l.yarn.scores - gain * gain) < 1e-6);
    assert_int_equal(l.n_params, 15706484224ull); /* the card's 15.7 B, 2.4 B active */
    assert_int_equal(l.n_params_active, 15706484224ull - 58ull * 26 * 3 * 2048 * 1408);
    assert_int_equal(sl_kv_token_bytes(&l), 27 * 576 * 4);
    assert_true(k.n_groups == 1 && k.n_mtp == 0 && k.norm_topk && k.q_lora == 1536);
    assert_int_equal(k.n_params / 1000000000, 1026); /* the card's 1 T, 32 B active */
    assert_int_equal(k.n_params_active / 1000000000, 32);
}

/* Published: 20.9 B, 3.6 B active and 116.8 B, 5.1 B active, which leave out the embedding. */
static void gpt_oss_is_read(void **state) {
    (void)state;
    char *small = gpt_oss(24, 32), *large = gpt_oss(36, 128);
    sl_model_spec m = parse_ok(small), l = parse_ok(large);
    const uint64_t embedding = 201088ull * 2880;
    assert_int_equal(m.n_params, 20914757184ull);
    assert_in_range(m.n_params_active - embedding, 3550000000ull, 3650000000ull);
    assert_int_equal(l.n_params, 116829156672ull);
    assert_in_range(l.n_params_active - embedding, 5050000000ull, 5150000000ull);
    assert_true(m.mxfp4 && m.qkv_bias && m.norm_topk && m.glu_limit == 7 && m.yarn.between);
    assert_true(m.yarn.attention > 1.3465f && m.yarn.attention < 1.3466f);
    assert_true(m.sight[0] == SL_SIGHT_WINDOW && m.sight[1] == SL_SIGHT_ALL);
    assert_int_equal(sl_sight_first(&m, 0, 200), 73);
    assert_int_equal(sl_sight_first(&m, 1, 200), 0);
    char *plain = with(small, "\"quantization_config\":null");
    assert_false(parse_ok(plain).mxfp4);
    free(small), free(large), free(plain);
}

static void keys_are_counted(void **state) {
    (void)state;
    sl_model_spec m = {.n_layers = 3, .sliding_window = 7, .attn_chunk = 5};
    for (uint32_t k = 0; k < 3; k++) m.sight[k] = (uint8_t)k;
    for (uint32_t done = 0; done < 20; done++)
        for (uint32_t rows = 0; rows < 20; rows++)
            for (uint32_t k = 0; k < 3; k++) {
                double sum = 0;
                for (uint32_t p = done; p < done + rows; p++)
                    sum += p - sl_sight_first(&m, k, p) + 1;
                assert_true(sl_sight_keys(&m, (sl_sight)k, done, rows) == sum);
            }
}

static void generation_defaults_are_read(void **state) {
    (void)state;
    sl_model_spec q = parse_ok(qwen3_30b_a3b);
    sl_generation_spec g = sl_hf_generation_none();
    sl_err err = {0};
    assert_true(isnan(g.temperature) && isnan(g.top_p) && g.top_k == -1 && g.do_sample == -1);
    if (sl_hf_generation_parse("g.json", span(qwen3_generation), &q, &g, &err) != SL_OK)
        fail_msg("%s", err.msg);
    assert_true(g.temperature == 0.6f && g.top_p == 0.95f && g.top_k == 20 && g.do_sample == 1);
    assert_int_equal(q.n_eos, 2);
    assert_int_equal(q.eos[0], 151645);
    assert_int_equal(q.eos[1], 151643);
    assert_true(isnan(g.repetition_penalty));
    assert_int_equal(
        sl_hf_generation_parse("g.json", span("{\"repetition_penalty\":1.05}"), &q, &g, &err),
        SL_OK);
    assert_true(g.repetition_penalty == 1.05f);
    assert_int_equal(
        sl_hf_generation_parse("g.json", span("{\"repetition_penalty\":0}"), &q, &g, &err),
        SL_ERR_LIMIT);
    assert_int_equal(
        sl_hf_generation_parse("g.json", span("{\"presence_penalty\":1.05}"), &q, &g, &err),
        SL_ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "g.json: presence_penalty: supported only as 0");
    assert_int_equal(
        sl_hf_generation_parse("g.json", span("{\"eos_token_id\":151936}"), &q, &g, &err),
        SL_ERR_LIMIT);
    assert_string_equal(err.msg, "g.json: eos_token_id: must be ids from 0 to 151935 (vocab_size "
                                 "151936)");
    assert_int_equal(sl_hf_generation_parse("g.json", span("{\"top_p\":1.5}"), &q, &g, &err),
                     SL_ERR_LIMIT);
    assert_int_equal(
        sl_hf_generation_parse("g.json", span("{\"stop_strings\":[\"x\"]}"), &q, &g, &err),
        SL_ERR_UNSUPPORTED);
    assert_int_equal(sl_hf_generation_parse("g.json", span("{}"), &q, &g, &err), SL_OK);
    assert_true(isnan(g.temperature) && g.do_sample == -1);
}

static void harmless_variants_are_accepted(void **state) {
    (void)state;
    static const char *const fields[] = {
        "\"rope_scaling\":{\"rope_type\":\"default\"}",
        "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"}",
        "\"eos_token_id\":[1,2,2]",
        "\"bos_token_id\":null",
        "\"_name_or_path\":\"x/y\"",
        "\"id2label\":{\"0\":\"LABEL_0\"}",
        "\"dtype\":\"bfloat16\"",
        "\"quantization_config\":null",
        "\"some_future_option\":null",
        "\"temperature\":1.0",
        "\"repetition_penalty\":1",
        "\"num_local_experts\":128",
        "\"layer_types\":[\"full_attention\"]",
        "\"sliding_window\":4096", /* off for this class unless use_sliding_window */
        "\"pruned_heads\":{}",
    };
    for (size_t i = 0; i < SL_LEN(fields); i++) {
        char *text = with(qwen3_30b_a3b, fields[i]);
        sl_model_spec m = parse_ok(text);
        assert_int_equal(m.sliding_window, 0);
        assert_true(m.rope_theta == 1e6f);
        free(text);
    }
    char *text = with(mixtral_8x7b, "\"sliding_window\":4096");
    assert_int_equal(parse_ok(text).sliding_window, 4096);
    free(text);
    text = with(qwen3_30b_a3b, "\"mlp_only_layers\":[0,5]");
    sl_model_spec m = parse_ok(text);
    assert_int_equal(m.n_moe, 46);
    assert_int_equal(m.d_ff_dense, 6144);
    assert_int_equal(m.ffn[5], SL_FFN_DENSE);
    assert_int_equal(m.moe_layer[0], 1);
    assert_int_equal(m.moe_index[6], 4);
    free(text);
    text = with(qwen15_moe_a27b, "\"qkv_bias\":false");
    assert_false(parse_ok(text).qkv_bias);
    free(text);
    text = with(qwen3_30b_a3b, "\"qkv_bias\":false");
    assert_false(parse_ok(text).qkv_bias);
    free(text);
    text = with(qwen3_30b_a3b, "\"decoder_sparse_step\":2");
    m = parse_ok(text);
    assert_int_equal(m.n_moe, 24);
    assert_int_equal(m.moe_layer[0], 1);
    free(text);
}

typedef struct refusal {
    const char *config, *field;
    sl_status code;
    const char *text;
} refusal;

static void options_that_change_results_are_refused(void **state) {
    (void)state;
    static const char *const l = deepseek_v2_lite, *const k = kimi_k2;
    char *const x = gpt_oss(2, 32);
    static const char *const q = qwen3_30b_a3b, *const m = mixtral_8x7b, *const a = qwen15_moe_a27b,
                             *const o = olmoe_1b_7b, *const g = glm45_air;
    const refusal bad[] = {
        {a, "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.rope_type: \"yarn\" is not supported"},
        {q, "\"rope_scaling\":{\"rope_type\":\"yarn\"}", SL_ERR_FORMAT,
         "config.json: rope_scaling.factor: missing"},
        {q, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.mscale: unknown field"},
        {q, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0.5}", SL_ERR_FORMAT,
         "config.json: rope_scaling.beta_fast: 0.5 is below beta_slow 1"},
        {q, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}", SL_ERR_LIMIT,
         "config.json: rope_scaling.factor: 0.5 is outside"},
        {q, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.type: \"linear\" is not supported"},
        {q, "\"rope_scaling\":{\"factor\":2}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.factor: unknown field"},
        {q, "\"rope_parameters\":{\"rope_theta\":5000.0,\"rope_type\":\"default\"}", SL_ERR_FORMAT,
         "config.json: rope_parameters.rope_theta: 5000 contradicts the rope_theta 1e+06"},
        {q, "\"hidden_act\":\"gelu\"", SL_ERR_UNSUPPORTED,
         "config.json: hidden_act: \"gelu\" is not supported (supported: \"silu\")"},
        {q, "\"attention_bias\":true", SL_ERR_UNSUPPORTED,
         "config.json: attention_bias: supported only when it is off"},
        {q, "\"use_sliding_window\":true", SL_ERR_UNSUPPORTED,
         "config.json: use_sliding_window: true is not supported for Qwen3MoeForCausalLM"},
        {q, "\"quantization_config\":{\"quant_method\":\"fp8\"}", SL_ERR_UNSUPPORTED,
         "config.json: quantization_config: quantized weights are not supported"},
        {q, "\"scoring_func\":\"sigmoid\"", SL_ERR_UNSUPPORTED,
         "config.json: scoring_func: unknown option; ignoring it could change results"},
        {q, "\"n_shared_experts\":1", SL_ERR_UNSUPPORTED, "config.json: n_shared_experts: unknown"},
        {q, "\"auto_map\":{\"AutoModel\":\"m.M\"}", SL_ERR_UNSUPPORTED, "config.json: auto_map: "},
        {q, "\"partial_rotary_factor\":0.5", SL_ERR_UNSUPPORTED,
         "config.json: partial_rotary_factor: supported only as 1"},
        {q, "\"layer_types\":[\"full_attention\",\"sliding_attention\"]", SL_ERR_UNSUPPORTED,
         "config.json: layer_types: layer 1 must be \"full_attention\""},
        {q, "\"presence_penalty\":1.1", SL_ERR_UNSUPPORTED, "config.json: presence_penalty: "},
        {q, "\"architectures\":[\"LlamaForCausalLM\"]", SL_ERR_UNSUPPORTED,
         "config.json: architectures: \"LlamaForCausalLM\" is not supported (supported: "},
        {q, "\"architectures\":[]", SL_ERR_FORMAT, "config.json: architectures: must be one class"},
        {q, "\"model_type\":\"llama\"", SL_ERR_FORMAT,
         "config.json: model_type: \"llama\" does not"},
        {q, "\"num_experts_per_tok\":129", SL_ERR_LIMIT, "config.json: num_experts_per_tok: 129"},
        {q, "\"num_experts\":0", SL_ERR_LIMIT, "config.json: num_experts: 0 is outside 1..4096"},
        {q, "\"num_local_experts\":64", SL_ERR_FORMAT,
         "config.json: num_local_experts: 64 contradicts num_experts 128"},
        {q, "\"num_key_value_heads\":5", SL_ERR_FORMAT,
         "config.json: num_key_value_heads: 5 does not divide num_attention_heads 32"},
        {q, "\"head_dim\":33", SL_ERR_LIMIT, "config.json: head_dim: 33 must be even"},
        {q, "\"hidden_size\":99999999", SL_ERR_LIMIT,
         "config.json: hidden_size: 99999999 is outside 1..131072"},
        {q, "\"num_hidden_layers\":513", SL_ERR_LIMIT, "config.json: num_hidden_layers: 513"},
        {q, "\"num_hidden_layers\":\"48\"", SL_ERR_FORMAT, "config.json: num_hidden_layers: "},
        {q, "\"hidden_size\":null", SL_ERR_FORMAT, "config.json: hidden_size: missing"},
        {q, "\"mlp_only_layers\":[48]", SL_ERR_LIMIT,
         "config.json: mlp_only_layers: entry 0 must be a block, 0 to 47"},
        {q, "\"decoder_sparse_step\":49", SL_ERR_UNSUPPORTED,
         "config.json: no block is routed to experts"},
        {q, "\"decoder_sparse_step\":0", SL_ERR_LIMIT, "config.json: decoder_sparse_step: 0"},
        {q, "\"eos_token_id\":151936", SL_ERR_LIMIT, "config.json: eos_token_id: must be ids"},
        {q, "\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", SL_ERR_LIMIT,
         "config.json: eos_token_id: more than 16 ids"},
        {q, "\"bos_token_id\":-1", SL_ERR_LIMIT, "config.json: bos_token_id: -1"},
        {q, "\"rms_norm_eps\":\"x\"", SL_ERR_FORMAT, "config.json: rms_norm_eps: a string"},
        {q, "\"qkv_bias\":true", SL_ERR_UNSUPPORTED,
         "config.json: qkv_bias: supported only when it is off"},
        {m, "\"shared_expert_intermediate_size\":64", SL_ERR_UNSUPPORTED,
         "config.json: shared_expert_intermediate_size: supported only when it is off"},
        {q, "\"clip_qkv\":8", SL_ERR_UNSUPPORTED,
         "config.json: clip_qkv: supported only when it is off"},
        {q, "\"n_group\":1", SL_ERR_UNSUPPORTED, "config.json: n_group: unknown option"},
        {o, "\"attention_bias\":true", SL_ERR_UNSUPPORTED,
         "config.json: attention_bias: supported only when it is off"},
        {o, "\"clip_qkv\":0", SL_ERR_LIMIT, "config.json: clip_qkv: 0 is outside"},
        {o, "\"head_dim\":64", SL_ERR_UNSUPPORTED,
         "config.json: head_dim: 64 is not hidden_size / num_attention_heads"},
        {o, "\"partial_rotary_factor\":0.5", SL_ERR_UNSUPPORTED,
         "config.json: partial_rotary_factor: supported only as 1"},
        {g, "\"n_group\":3", SL_ERR_FORMAT,
         "config.json: n_group: 3 does not cut 128 experts into equal groups"},
        {g, "\"n_group\":128", SL_ERR_FORMAT, "config.json: n_group: 128 does not cut"},
        {g, "\"n_group\":257", SL_ERR_LIMIT, "config.json: n_group: 257 is outside 1..256"},
        {g, "\"topk_group\":2", SL_ERR_LIMIT, "config.json: topk_group: 2 is outside 1..1"},
        {g, "\"n_group\":32", SL_ERR_FORMAT,
         "config.json: topk_group: 1 groups of 4 experts are fewer than num_experts_per_tok 8"},
        {g, "\"partial_rotary_factor\":0.01", SL_ERR_LIMIT,
         "config.json: partial_rotary_factor: rotates 1 of the 128 values of a head"},
        {g, "\"partial_rotary_factor\":2", SL_ERR_LIMIT,
         "config.json: partial_rotary_factor: 2 is outside"},
        {g, "\"rope_parameters\":{\"partial_rotary_factor\":1}", SL_ERR_FORMAT,
         "config.json: rope_parameters.partial_rotary_factor: 1 contradicts the"},
        {g, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.type: \"yarn\" is not supported"},
        {g, "\"first_k_dense_replace\":46", SL_ERR_UNSUPPORTED,
         "config.json: no block is routed to experts"},
        {g, "\"n_shared_experts\":0", SL_ERR_LIMIT, "config.json: n_shared_experts: 0"},
        {g, "\"num_experts\":64", SL_ERR_FORMAT,
         "config.json: n_routed_experts: 128 contradicts num_experts 64"},
        {g, "\"routed_scaling_factor\":0", SL_ERR_LIMIT, "config.json: routed_scaling_factor: 0"},
        {g, "\"num_nextn_predict_layers\":17", SL_ERR_LIMIT,
         "config.json: num_nextn_predict_layers: 17"},
        {g, "\"scoring_func\":\"softmax\"", SL_ERR_UNSUPPORTED,
         "config.json: scoring_func: unknown option"},
        {g, "\"qkv_bias\":true", SL_ERR_UNSUPPORTED, "config.json: qkv_bias: supported only"},
        {a, "\"use_sliding_window\":true", SL_ERR_UNSUPPORTED,
         "config.json: use_sliding_window: true is not supported for Qwen2MoeForCausalLM"},
        {a, "\"shared_expert_intermediate_size\":null", SL_ERR_FORMAT,
         "config.json: shared_expert_intermediate_size: missing"},
        {a, "\"shared_expert_intermediate_size\":0", SL_ERR_LIMIT,
         "config.json: shared_expert_intermediate_size: 0 is outside 1..1048576"},
        {a, "\"qkv_bias\":\"yes\"", SL_ERR_FORMAT, "config.json: qkv_bias: "},
        {a, "\"attention_bias\":true", SL_ERR_UNSUPPORTED,
         "config.json: attention_bias: supported only when it is off"},
        {l, "\"norm_topk_prob\":true", SL_ERR_UNSUPPORTED,
         "config.json: norm_topk_prob: true is not supported for DeepseekV2ForCausalLM"},
        {l, "\"topk_method\":\"noaux_tc\"", SL_ERR_UNSUPPORTED,
         "config.json: topk_method: \"noaux_tc\" is not supported (supported: \"greedy\", "},
        {l, "\"scoring_func\":\"sigmoid\"", SL_ERR_UNSUPPORTED,
         "config.json: scoring_func: \"sigmoid\" is not supported (supported: \"softmax\")"},
        {l, "\"attention_bias\":true", SL_ERR_UNSUPPORTED,
         "config.json: attention_bias: supported only when it is off"},
        {l, "\"moe_layer_freq\":2", SL_ERR_UNSUPPORTED,
         "config.json: moe_layer_freq: supported only as 1"},
        {l, "\"num_key_value_heads\":8", SL_ERR_UNSUPPORTED,
         "config.json: num_key_value_heads: 8 is not num_attention_heads (16)"},
        {l, "\"head_dim\":128", SL_ERR_UNSUPPORTED,
         "config.json: head_dim: 128 is not qk_rope_head_dim (64)"},
        {l, "\"kv_lora_rank\":1000", SL_ERR_LIMIT,
         "config.json: kv_lora_rank: 1000 is outside 1..960"},
        {l, "\"kv_lora_rank\":null", SL_ERR_FORMAT, "config.json: kv_lora_rank: missing"},
        {l, "\"qk_rope_head_dim\":63", SL_ERR_LIMIT,
         "config.json: qk_rope_head_dim: 63 must be even"},
        {l, "\"first_k_dense_replace\":null", SL_ERR_FORMAT,
         "config.json: first_k_dense_replace: missing"},
        {l, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.mscale_all_dim: missing: mscale and mscale_all_dim"},
        {q, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1.0}", SL_ERR_UNSUPPORTED,
         "config.json: rope_scaling.mscale: unknown field"},
        {k, "\"quantization_config\":{\"quant_method\":\"gptq\"}", SL_ERR_UNSUPPORTED,
         "config.json: quantization_config.quant_method: \"gptq\" is not supported (supported: "
         "\"fp8"},
        {k, "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}",
         SL_ERR_UNSUPPORTED, "config.json: quantization_config.fmt: supported only as e4m3"},
        {k, "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}",
         SL_ERR_UNSUPPORTED,
         "config.json: quantization_config.weight_block_size: must be [128, 128]"},
        {k, "\"quantization_config\":{\"quant_method\":\"fp8\",\"ignored_layers\":[]}",
         SL_ERR_UNSUPPORTED, "config.json: quantization_config.ignored_layers: unknown option"},
        {k, "\"topk_method\":\"greedy\"", SL_ERR_UNSUPPORTED,
         "config.json: topk_method: \"greedy\" is not supported (supported: \"noaux_tc\")"},
        {k, "\"n_group\":5", SL_ERR_FORMAT, "config.json: n_group: 5 does not cut 384 experts"},
        {k, "\"model_type\":\"kimi_k3\"", SL_ERR_FORMAT,
         "config.json: model_type: \"kimi_k3\" does not fit"},
        {x, "\"swiglu_limit\":8.0", SL_ERR_UNSUPPORTED,
         "config.json: swiglu_limit: supported only as 7"},
        {x, "\"experts_per_token\":3", SL_ERR_FORMAT,
         "config.json: experts_per_token: 3 contradicts num_experts_per_tok 4"},
        {x, "\"layer_types\":[\"full_attention\"]", SL_ERR_FORMAT,
         "config.json: layer_types: 1 entries for 2 blocks"},
        {x, "\"layer_types\":[\"full_attention\",\"chunked_attention\"]", SL_ERR_UNSUPPORTED,
         "config.json: layer_types: layer 1 must be"},
        {x, "\"sliding_window\":null", SL_ERR_FORMAT, "config.json: sliding_window: missing"},
        {x, "\"hidden_size\":2896", SL_ERR_FORMAT,
         "config.json: hidden_size: 2896 is no multiple of 32"},
        {x, "\"quantization_config\":{\"quant_method\":\"fp8\"}", SL_ERR_UNSUPPORTED,
         "config.json: quantization_config.quant_method: \"fp8\" is not supported"},
        {x, "\"quantization_config\":{\"quant_method\":\"mxfp4\",\"bits\":4}", SL_ERR_UNSUPPORTED,
         "config.json: quantization_config.bits: unknown option"},
        {x,
         "\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":["
         "\"model.layers.0.mlp.experts\"]}",
         SL_ERR_UNSUPPORTED, "config.json: quantization_config.modules_to_not_convert: \"model."},
        {x, "\"n_shared_experts\":1", SL_ERR_UNSUPPORTED, "config.json: n_shared_experts: unknown"},
        {m, "\"norm_topk_prob\":false", SL_ERR_UNSUPPORTED,
         "config.json: norm_topk_prob: false is not supported for MixtralForCausalLM"},
        {m, "\"sliding_window\":0", SL_ERR_LIMIT, "config.json: sliding_window: 0 is outside 1.."},
        {m, "\"num_attention_heads\":24", SL_ERR_FORMAT,
         "config.json: num_attention_heads: 24 does not divide hidden_size 4096"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char *text = with(bad[i].config, bad[i].field);
        sl_model_spec spec = {.n_layers = 7};
        sl_err err = {0};
        sl_status st = sl_hf_config_parse("config.json", span(text), &spec, &err);
        if (st != bad[i].code || strncmp(err.msg, bad[i].text, strlen(bad[i].text)) != 0)
            fail_msg("%s\n got %d \"%s\"\nwant %d \"%s\"", bad[i].field, st, err.msg, bad[i].code,
                     bad[i].text);
        assert_int_equal(spec.n_layers, 7);
        free(text);
    }
    free(x);
}

static void a_failed_allocation_is_reported(void **state) {
    (void)state;
    for (uint64_t nth = 1;; nth++) {
        sl_model_spec m;
        sl_err err = {0};
        sl_mem_fail_at(nth);
        sl_status st = sl_hf_config_parse("config.json", span(mixtral_8x7b), &m, &err);
        bool reached = sl_mem_count() > 0 && st != SL_OK;
        sl_mem_fail_at(0);
        if (!reached) return;
        assert_int_equal(st, SL_ERR_NOMEM);
        assert_true(nth < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configs_are_read),
        cmocka_unit_test(families_with_options_of_their_own_are_read),
        cmocka_unit_test(latent_attention_is_read),
        cmocka_unit_test(gpt_oss_is_read),
        cmocka_unit_test(keys_are_counted),
        cmocka_unit_test(generation_defaults_are_read),
        cmocka_unit_test(harmless_variants_are_accepted),
        cmocka_unit_test(options_that_change_results_are_refused),
        cmocka_unit_test(a_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

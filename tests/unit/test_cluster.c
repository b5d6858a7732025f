/* Descriptions: YAML, clusters, config.json of every family. Bad files: what the error names. */
#include "format/cluster_file.h"
#include "format/presets.h"
#include "format/shape_config.h"
#include "format/yaml.h"
#include "plan/account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <cmocka.h>

static sl_span span_of(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

/* ---- presets ---- */

static void every_preset_cluster_is_read(void **state) {
    (void)state;
    static sl_cluster c;
    sl_err err = {0};
    size_t n = 0;
    for (; sl_preset_cluster_name(n); n++) {
        sl_status st = sl_cluster_open(sl_preset_cluster_name(n), &c, &err);
        if (st != SL_OK) print_error("%s\n", err.msg);
        assert_int_equal(st, SL_OK);
        assert_true(sl_cluster_devices(&c) >= 1);
        for (uint32_t g = 0; g < c.n_groups; g++)
            assert_true(c.group[g].intra.bandwidth > 0 && c.group[g].inter.bandwidth > 0);
    }
    assert_true(n >= 12);
    assert_int_equal(sl_cluster_open("megascale-hetero", &c, &err), SL_OK);
    assert_int_equal(sl_cluster_devices(&c), 64);
    assert_string_equal(c.type[c.group[1].type].name, "L40S");
    assert_true(c.group[0].inter.bandwidth == 25e9 && c.group[0].inter.half_bytes == 131072);
    assert_true(sl_cluster_price_per_hour(&c) == 32 * 1.85 + 32 * 1.08);
    assert_int_equal(sl_cluster_open("findep-d", &c, &err), SL_OK);
    assert_int_equal(sl_cluster_devices(&c), 32);
    assert_int_equal(sl_cluster_open("no-such-rack", &c, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "findep-a"));
}

/* MegaScale-Infer, Table 3. */
static void devices_are_the_tables(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double price, memory, bandwidth, flops;
    } rows[] = {{"L20", 1.00, 48e9, 864e9, 119.5e12},
                {"H800", 5.28, 80e9, 3430.4e9, 989e12},
                {"A800", 2.26, 80e9, 2039e9, 312e12},
                {"H20", 1.85, 96e9, 4096e9, 148e12},
                {"L40S", 1.08, 48e9, 864e9, 362e12}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        const sl_device_type *d = sl_preset_device(rows[i].name);
        assert_non_null(d);
        assert_true(d->price_per_hour == rows[i].price && d->memory_bytes == rows[i].memory);
        assert_true(d->bandwidth == rows[i].bandwidth);
        assert_true(d->flops[SL_COMPUTE_BF16] == rows[i].flops);
    }
    for (size_t i = 0; sl_preset_device_name(i); i++) {
        const sl_device_type *d = sl_preset_device(sl_preset_device_name(i));
        assert_true(d->memory_bytes > 0 && d->bandwidth > 0 && d->flops[SL_COMPUTE_F32] > 0);
    }
}

static void own_devices_and_defaults(void **state) {
    (void)state;
    static sl_cluster c;
    sl_err err = {0};
    const char *text = "name: rack\n"
                       "devices:\n"
                       "  cheap: {base: h20, price: 1.2}\n"
                       "  box:\n"
                       "    memory: 64GiB\n"
                       "    bandwidth: 80 GB/s\n"
                       "    bf16: 1.5TFLOPS\n"
                       "nodes:\n"
                       "  - {device: cheap, devices_per_node: 4, count: 2,\n"
                       "     intra: {bandwidth: 1GB/s, latency: 5us},\n"
                       "     inter: {bandwidth: 10Gbit/s, latency: 0.03ms, duplex: half}}\n"
                       "  - {device: box, devices_per_node: 1, count: 1,\n"
                       "     inter: {bandwidth: 1.25GB/s, latency: 30us}}\n";
    assert_int_equal(sl_cluster_parse("f", "x", span_of(text), &c, &err), SL_OK);
    assert_string_equal(c.name, "rack");
    assert_int_equal(c.n_types, 2);
    assert_true(c.type[0].price_per_hour == 1.2 && c.type[0].memory_bytes == 96e9);
    assert_true(c.type[1].memory_bytes == 64.0 * (1 << 30) && c.type[1].bandwidth == 80e9);
    assert_true(c.type[1].flops[SL_COMPUTE_F32] == 0.75e12 && c.type[1].flops[SL_COMPUTE_FP8] == 0);
    assert_true(c.group[0].inter.half_duplex && !c.group[0].intra.half_duplex);
    assert_true(c.group[0].inter.latency_us == 30 && c.group[0].inter.bandwidth == 1.25e9);
    assert_true(c.group[1].intra.bandwidth == c.group[1].inter.bandwidth);
}

/* ---- what is wrong is named ---- */

typedef struct sl_bad {
    const char *text, *says[4];
    sl_status code;
} sl_bad;

static void bad_clusters(void **state) {
    (void)state;
    static sl_cluster c;
    static const sl_bad bad[] = {
        {"", {"f.yaml:", "empty"}, SL_ERR_FORMAT},
        {"nodes: [\n", {"f.yaml:2", "column"}, SL_ERR_FORMAT},
        {"nodes: []\n", {"f.yaml:1: nodes", "0 entries", "1 to 64"}, SL_ERR_LIMIT},
        {"nodes: 3\n", {"f.yaml:1: nodes", "a list"}, SL_ERR_FORMAT},
        {"name: a\n", {"f.yaml:1: nodes: missing"}, SL_ERR_FORMAT},
        {"- 1\n", {"f.yaml:1", "a map of name, devices, nodes"}, SL_ERR_FORMAT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 1}\nnode: 1\n",
         {"f.yaml:3", "\"node\" is unknown here"},
         SL_ERR_UNSUPPORTED},
        {"nodes:\n  - {device: H20, devices_per_node: 8, count: 1}\n",
         {"f.yaml:2: intra: missing"},
         SL_ERR_FORMAT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 2}\n",
         {"f.yaml:2: inter: missing"},
         SL_ERR_FORMAT},
        {"nodes:\n  - {device: H21, devices_per_node: 1, count: 1}\n",
         {"f.yaml:2: device", "\"H21\""},
         SL_ERR_NOTFOUND},
        {"nodes:\n  - {device: H20, devices_per_node: 0, count: 1}\n",
         {"f.yaml:2: devices_per_node: 0", "1 to 4096"},
         SL_ERR_LIMIT},
        {"nodes:\n  - {device: H20, devices_per_node: 99999999999999999999, count: 1}\n",
         {"f.yaml:2: devices_per_node: 9999", "1 to 4096"},
         SL_ERR_LIMIT},
        {"nodes:\n  - {device: H20, devices_per_node: -1, count: 1}\n",
         {"devices_per_node: \"-1\" is not a whole number"},
         SL_ERR_FORMAT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 2,\n"
         "     inter: {bandwidth: 5, latency: 1us}}\n",
         {"f.yaml:3: bandwidth: \"5\"", "25GB/s"},
         SL_ERR_FORMAT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 2,\n"
         "     inter: {bandwidth: 1GB/s, latency: 1e9s}}\n",
         {"f.yaml:3: latency: 1e9s", "0 to 1e+07"},
         SL_ERR_LIMIT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 2,\n"
         "     inter: {bandwidth: infGB/s, latency: 1us}}\n",
         {"bandwidth: \"infGB/s\""},
         SL_ERR_FORMAT},
        {"nodes:\n  - {device: H20, devices_per_node: 1, count: 2,\n"
         "     inter: {bandwidth: 1GB/s, latency: 1us, duplex: both}}\n",
         {"duplex: \"both\" is neither full nor half"},
         SL_ERR_FORMAT},
        {"devices: {a: {base: H20, memory: 0GB}}\n"
         "nodes:\n  - {device: H20, devices_per_node: 1, count: 1}\n",
         {"f.yaml:1: memory: 0GB"},
         SL_ERR_LIMIT},
        {"devices: {a: {memory: 1GB, bandwidth: 1GB/s}}\n"
         "nodes:\n  - {device: a, devices_per_node: 1, count: 1}\n",
         {"f.yaml:1", "device a needs f32 or bf16"},
         SL_ERR_FORMAT},
        {"devices: {a: {base: b}}\nnodes:\n  - {device: a, devices_per_node: 1, count: 1}\n",
         {"f.yaml:1: base: \"b\""},
         SL_ERR_NOTFOUND},
        {"a: &x 1\nb: *x\n", {"f.yaml:1", "anchors"}, SL_ERR_UNSUPPORTED},
        {"b: *x\n", {"f.yaml:1"}, SL_ERR_UNSUPPORTED},
        {"b: !!int 3\n", {"f.yaml:1", "tags"}, SL_ERR_UNSUPPORTED},
        {"name: a\nname: b\n", {"f.yaml:2", "\"name\" is there twice"}, SL_ERR_FORMAT},
        {"name: a\n---\nname: b\n", {"f.yaml:2", "more than one document"}, SL_ERR_FORMAT},
        {"{{{a: 1}: 2}: 3}\n", {"f.yaml:1", "a key must be text"}, SL_ERR_FORMAT},
        {"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", {"f.yaml:1", "deeper"}, SL_ERR_LIMIT},
        {"name: \"a\\0b\"\n", {"f.yaml:1", "NUL"}, SL_ERR_FORMAT},
        {"name: \xff\n", {"f.yaml:1"}, SL_ERR_FORMAT},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        sl_status st = sl_cluster_parse("f.yaml", "x", span_of(bad[i].text), &c, &err);
        if (st != bad[i].code) print_error("case %zu: %d %s\n", i, st, err.msg);
        assert_int_equal(st, bad[i].code);
        for (size_t k = 0; k < SL_LEN(bad[i].says) && bad[i].says[k]; k++) {
            if (!strstr(err.msg, bad[i].says[k])) print_error("case %zu: %s\n", i, err.msg);
            assert_non_null(strstr(err.msg, bad[i].says[k]));
        }
    }
}

static void too_many_values(void **state) {
    (void)state;
    sl_yaml_doc *doc = NULL;
    sl_err err = {0};
    char *text = malloc(3 * SL_YAML_MAX_NODES + 16);
    size_t n = 0;
    text[n++] = '[';
    for (uint32_t i = 0; i < SL_YAML_MAX_NODES; i++) {
        text[n++] = '1';
        text[n++] = ',';
    }
    text[n++] = ']';
    assert_int_equal(sl_yaml_parse("f", (sl_span){(uint8_t *)text, n}, &doc, &err), SL_ERR_LIMIT);
    free(text);
}

/* ---- config.json ---- */

typedef struct sl_config {
    const char *preset, *text;
} sl_config;

/* The keys that count, as the makers publish them. */
static const sl_config configs[] = {
    {"mixtral-8x7b",
     "{\"architectures\": [\"MixtralForCausalLM\"], \"hidden_size\": 4096, \"vocab_size\": 32000,"
     "\"intermediate_size\": 14336, \"num_hidden_layers\": 32, \"num_attention_heads\": 32,"
     "\"num_key_value_heads\": 8, \"num_local_experts\": 8, \"num_experts_per_tok\": 2,"
     "\"sliding_window\": null, \"max_position_embeddings\": 32768, \"torch_dtype\": \"bfloat16\","
     "\"tie_word_embeddings\": false}"},
    {"dbrx",
     "{\"architectures\": [\"DbrxForCausalLM\"], \"d_model\": 6144, \"n_heads\": 48,"
     "\"n_layers\": 40, \"max_seq_len\": 32768, \"vocab_size\": 100352,"
     "\"attn_config\": {\"kv_n_heads\": 8, \"clip_qkv\": 8},"
     "\"ffn_config\": {\"ffn_hidden_size\": 10752, \"moe_num_experts\": 16, \"moe_top_k\": 4}}"},
    {"arctic",
     "{\"architectures\": [\"ArcticForCausalLM\"], \"hidden_size\": 7168, \"vocab_size\": 32000,"
     "\"intermediate_size\": 4864, \"num_hidden_layers\": 35, \"num_attention_heads\": 56,"
     "\"num_key_value_heads\": 8, \"num_local_experts\": 128, \"num_experts_per_tok\": 2,"
     "\"moe_layer_frequency\": 1, \"parallel_attn_mlp_res\": true,"
     "\"max_position_embeddings\": 4096}"},
    {"deepseek-v2",
     "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"hidden_size\": 5120,"
     "\"vocab_size\": 102400, \"intermediate_size\": 12288, \"moe_intermediate_size\": 1536,"
     "\"num_hidden_layers\": 60, \"num_attention_heads\": 128, \"num_key_value_heads\": 128,"
     "\"n_shared_experts\": 2, \"n_routed_experts\": 160, \"q_lora_rank\": 1536,"
     "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 128,"
     "\"v_head_dim\": 128, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1,"
     "\"num_experts_per_tok\": 6, \"max_position_embeddings\": 163840}"},
    {"deepseek-v3",
     "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 7168,"
     "\"vocab_size\": 129280, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048,"
     "\"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"num_key_value_heads\": 128,"
     "\"n_shared_experts\": 1, \"n_routed_experts\": 256, \"q_lora_rank\": 1536,"
     "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 128,"
     "\"v_head_dim\": 128, \"first_k_dense_replace\": 3, \"moe_layer_freq\": 1,"
     "\"num_experts_per_tok\": 8, \"max_position_embeddings\": 163840,"
     "\"num_nextn_predict_layers\": 1, \"quantization_config\": {\"quant_method\": \"fp8\"}}"},
    {"qwen3-235b-a22b",
     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 4096,"
     "\"vocab_size\": 151936, \"intermediate_size\": 12288, \"moe_intermediate_size\": 1536,"
     "\"num_hidden_layers\": 94, \"num_attention_heads\": 64, \"num_key_value_heads\": 4,"
     "\"head_dim\": 128, \"num_experts\": 128, \"num_experts_per_tok\": 8,"
     "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"attention_bias\": false,"
     "\"max_position_embeddings\": 40960}"},
    {"qwen2-57b-a14b",
     "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"hidden_size\": 3584,"
     "\"vocab_size\": 151936, \"intermediate_size\": 18944, \"moe_intermediate_size\": 2560,"
     "\"shared_expert_intermediate_size\": 20480, \"num_hidden_layers\": 28,"
     "\"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"num_experts\": 64,"
     "\"num_experts_per_tok\": 8, \"decoder_sparse_step\": 1,"
     "\"max_position_embeddings\": 32768}"},
    {"llama4-maverick",
     "{\"architectures\": [\"Llama4ForConditionalGeneration\"], \"text_config\": {"
     "\"hidden_size\": 5120, \"vocab_size\": 202048, \"intermediate_size\": 8192,"
     "\"intermediate_size_mlp\": 16384, \"num_hidden_layers\": 48, \"num_attention_heads\": 40,"
     "\"num_key_value_heads\": 8, \"head_dim\": 128, \"num_local_experts\": 128,"
     "\"num_experts_per_tok\": 1, \"interleave_moe_layer_step\": 2, \"moe_layers\": [1,3,5,7,9,11,"
     "13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47], \"attention_bias\": false,"
     "\"use_qk_norm\": false, \"max_position_embeddings\": 1048576}}"},
    {"gpt-oss-120b",
     "{\"architectures\": [\"GptOssForCausalLM\"], \"hidden_size\": 2880, \"vocab_size\": 201088,"
     "\"intermediate_size\": 2880, \"num_hidden_layers\": 36, \"num_attention_heads\": 64,"
     "\"num_key_value_heads\": 8, \"head_dim\": 64, \"num_local_experts\": 128,"
     "\"num_experts_per_tok\": 4, \"sliding_window\": 128, \"attention_bias\": true,"
     "\"max_position_embeddings\": 131072, \"quantization_config\": {\"quant_method\": "
     "\"mxfp4\"}}"},
    {"glm-4.5",
     "{\"architectures\": [\"Glm4MoeForCausalLM\"], \"hidden_size\": 5120, \"vocab_size\": 151552,"
     "\"intermediate_size\": 12288, \"moe_intermediate_size\": 1536, \"num_hidden_layers\": 92,"
     "\"num_attention_heads\": 96, \"num_key_value_heads\": 8, \"head_dim\": 128,"
     "\"n_routed_experts\": 160, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8,"
     "\"first_k_dense_replace\": 3, \"attention_bias\": true, \"use_qk_norm\": true,"
     "\"num_nextn_predict_layers\": 1, \"max_position_embeddings\": 131072}"},
};

static void configs_are_the_presets(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(configs); i++) {
        sl_shape s;
        sl_err err = {0};
        sl_status st = sl_shape_config_parse("config.json", configs[i].preset,
                                             span_of(configs[i].text), &s, &err);
        if (st != SL_OK) print_error("%s: %s\n", configs[i].preset, err.msg);
        assert_int_equal(st, SL_OK);
        const sl_shape *want = sl_preset_model(configs[i].preset);
        sl_params a = sl_account_params(&s), b = sl_account_params(want);
        assert_memory_equal(&a, &b, sizeof a);
        sl_footprint f = sl_account_footprint(&s), g = sl_account_footprint(want);
        assert_memory_equal(&f, &g, sizeof f);
        assert_int_equal(s.max_position, want->max_position);
        assert_int_equal(s.n_windowed_layers, want->n_windowed_layers);
        assert_int_equal(s.attention, want->attention);
        for (uint32_t l = 0; l < s.n_layers; l++)
            assert_int_equal(sl_shape_is_moe(&s, l), sl_shape_is_moe(want, l));
    }
}

static void bad_configs(void **state) {
    (void)state;
    static const sl_bad bad[] = {
        {"{\"architectures\": [\"LlamaForCausalLM\"]}",
         {"c.json: architectures", "\"LlamaForCausalLM\"", "MixtralForCausalLM"},
         SL_ERR_UNSUPPORTED},
        {"{\"architectures\": []}", {"architectures", "one class name"}, SL_ERR_FORMAT},
        {"[]", {"c.json"}, SL_ERR_FORMAT},
        {"{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 100000}",
         {"c.json: num_hidden_layers", "100000", "512"},
         SL_ERR_LIMIT},
        {"{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 1,"
         "\"hidden_size\": 64, \"vocab_size\": 10, \"num_attention_heads\": 6,"
         "\"num_key_value_heads\": 4}",
         {"num_key_value_heads: 4 does not divide num_attention_heads 6"},
         SL_ERR_FORMAT},
        {"{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 1,"
         "\"hidden_size\": 64, \"vocab_size\": 10, \"num_attention_heads\": 4,"
         "\"num_local_experts\": 4, \"num_experts_per_tok\": 5, \"intermediate_size\": 8}",
         {"num_experts_per_tok: 5 is outside 1..4"},
         SL_ERR_LIMIT},
        {"{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"num_hidden_layers\": 2,"
         "\"hidden_size\": 64, \"vocab_size\": 10, \"num_attention_heads\": 4, \"kv_lora_rank\": 8,"
         "\"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 8, \"v_head_dim\": 8,"
         "\"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8,"
         "\"first_k_dense_replace\": 2}",
         {"no block is routed to experts (first_k_dense_replace)"},
         SL_ERR_UNSUPPORTED},
        {"{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 1,"
         "\"hidden_size\": 64, \"vocab_size\": 10, \"num_attention_heads\": 4,"
         "\"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"intermediate_size\": 8,"
         "\"quantization_config\": {\"quant_method\": \"awq\"}}",
         {"quantization_config.quant_method: \"awq\""},
         SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        sl_shape s;
        sl_status st = sl_shape_config_parse("c.json", "x", span_of(bad[i].text), &s, &err);
        if (st != bad[i].code) print_error("case %zu: %d %s\n", i, st, err.msg);
        assert_int_equal(st, bad[i].code);
        for (size_t k = 0; k < SL_LEN(bad[i].says) && bad[i].says[k]; k++) {
            if (!strstr(err.msg, bad[i].says[k])) print_error("case %zu: %s\n", i, err.msg);
            assert_non_null(strstr(err.msg, bad[i].says[k]));
        }
    }
}

static void models_are_opened_by_folder_and_name(void **state) {
    (void)state;
    sl_shape s;
    sl_err err = {0};
    assert_int_equal(sl_shape_open("Mixtral-8x7B", &s, &err), SL_OK);
    assert_int_equal(s.n_layers, 32);
    assert_int_equal(sl_shape_open(SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny/", &s, &err), SL_OK);
    assert_string_equal(s.name, "qwen3moe-tiny");
    assert_int_equal(sl_shape_open("no-such-model", &s, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "dbrx"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_cluster_is_read),
        cmocka_unit_test(devices_are_the_tables),
        cmocka_unit_test(own_devices_and_defaults),
        cmocka_unit_test(bad_clusters),
        cmocka_unit_test(too_many_values),
        cmocka_unit_test(configs_are_the_presets),
        cmocka_unit_test(bad_configs),
        cmocka_unit_test(models_are_opened_by_folder_and_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

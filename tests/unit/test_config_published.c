/* config.json of every published checkpoint of the families that are run, as public sources quote
 * it (tests/golden/configs, README.md there), and as transformers 5 saves it again: all are taken,
 * the two say the same, and a key that is taken for its value is refused with another one. */
#include "config_test.h"

#include "format/family.h"
#include "format/map.h"
#include "format/shape_config.h"
#include "plan/account.h"
#include "spec/delta.h"

#include <dirent.h>
#include <math.h>

#define FOLDER SL_SOURCE_DIR "/tests/golden/configs"

/* Billions of parameters, all and active, as the model cards round them, some without the
 * embedding; of Llama 4 the text's. */
static const struct published {
    const char *name, *arch;
    double total, active;
} published[] = {
    {"arctic", "ArcticForCausalLM", 480, 17},
    {"dbrx", "DbrxForCausalLM", 132, 36},
    {"dbrx-whole", "DbrxForCausalLM", 132, 36},
    {"deepseek-r1", "DeepseekV3ForCausalLM", 671, 37},
    {"deepseek-v2-lite", "DeepseekV2ForCausalLM", 15.7, 2.4},
    {"deepseek-v2.5", "DeepseekV2ForCausalLM", 236, 21},
    {"deepseek-v3", "DeepseekV3ForCausalLM", 671, 37},
    {"deepseek-v3-0324", "DeepseekV3ForCausalLM", 671, 37},
    {"deepseek-v3.1", "DeepseekV3ForCausalLM", 671, 37},
    {"glm-4.5", "Glm4MoeForCausalLM", 355, 32},
    {"glm-4.5-air", "Glm4MoeForCausalLM", 106, 12},
    {"glm-4.6", "Glm4MoeForCausalLM", 355, 32},
    {"glm-4.7", "Glm4MoeForCausalLM", 355, 32},
    {"gpt-oss-120b", "GptOssForCausalLM", 117, 5.1},
    {"gpt-oss-20b", "GptOssForCausalLM", 21, 3.6},
    {"kimi-k2-instruct", "DeepseekV3ForCausalLM", 1000, 32},
    {"llama-4-maverick", "Llama4ForConditionalGeneration", 400, 17},
    {"llama-4-scout", "Llama4ForConditionalGeneration", 108, 17},
    {"mixtral-8x22b", "MixtralForCausalLM", 141, 39},
    {"mixtral-8x7b", "MixtralForCausalLM", 46.7, 12.9},
    {"olmoe-1b-7b", "OlmoeForCausalLM", 6.9, 1.3},
    {"qwen1.5-moe-a2.7b", "Qwen2MoeForCausalLM", 14.3, 2.7},
    {"qwen2-57b-a14b", "Qwen2MoeForCausalLM", 57, 14},
    {"qwen3-235b-a22b", "Qwen3MoeForCausalLM", 235, 22},
    {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", 30.5, 3.3},
    {"qwen3-coder-480b-a35b", "Qwen3MoeForCausalLM", 480, 35},
    {"qwen3-coder-next", "Qwen3NextForCausalLM", 80, 3.9},
    {"qwen3-next-80b-a3b", "Qwen3NextForCausalLM", 80, 3.9},
};

/* The text of FOLDER/name<end>, for free(); NULL when there is no such file. */
static char *text_of(const char *name, const char *end) {
    char path[512];
    sl_map map = {0};
    snprintf(path, sizeof path, FOLDER "/%s%s", name, end);
    if (sl_map_open(path, 1 << 20, &map, NULL) != SL_OK) return NULL;
    char *text = calloc(map.bytes.len + 1, 1);
    if (!text) abort();
    memcpy(text, map.bytes.data, map.bytes.len);
    sl_map_close(&map);
    return text;
}

static char *need(const char *name) {
    char *text = text_of(name, ".json");
    if (!text) fail_msg("no " FOLDER "/%s.json", name);
    return text;
}

static void every_file_is_in_the_table(void **state) {
    (void)state;
    size_t files = 0;
    DIR *dir = opendir(FOLDER);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        files += strstr(e->d_name, ".json") && !strstr(e->d_name, ".saved5.json");
    closedir(dir);
    assert_int_equal(files, SL_LEN(published));
}

/* Both readers, that of the engine and that of the planner, count what the model's card says. */
static void published_ones_are_taken(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(published); i++) {
        const struct published *p = &published[i];
        char *text = need(p->name);
        sl_model_spec m = config_read(text);
        sl_shape shape;
        sl_err err = {0};
        if (sl_shape_config_parse("config.json", p->name,
                                  (sl_span){(const uint8_t *)text, strlen(text)}, &shape,
                                  &err) != SL_OK)
            fail_msg("%s: %s", p->name, err.msg);
        assert_string_equal(m.arch, p->arch);
        sl_params counted = sl_account_params(&shape);
        double total = (double)m.n_params / 1e9, active = (double)m.n_params_active / 1e9;
        double table = (double)m.vocab * m.d_model / 1e9;
        double off = fmin(fabs(active - p->active), fabs(active - table - p->active));
        if (fabs(total - p->total) > p->total * 0.03 || off > p->active * 0.08)
            fail_msg("%s: %.3f B, %.3f active", p->name, total, active);
        assert_int_equal(counted.total, m.n_params);
        free(text);
    }
}

static void same(const char *name, const sl_model_spec *a, const sl_model_spec *b) {
#define SAME(field)                                                                                \
    if (memcmp(&a->field, &b->field, sizeof a->field) != 0) fail_msg("%s: %s differs", name, #field)
    SAME(arch);
    SAME(n_layers);
    SAME(n_moe);
    SAME(d_model);
    SAME(n_heads);
    SAME(n_kv_heads);
    SAME(head_dim);
    SAME(kv_lora);
    SAME(q_lora);
    SAME(nope_dim);
    SAME(v_dim);
    SAME(vocab);
    SAME(d_ff_dense);
    SAME(d_ff_expert);
    SAME(d_ff_shared);
    SAME(n_experts);
    SAME(top_k);
    SAME(n_groups);
    SAME(top_groups);
    SAME(max_position);
    SAME(sliding_window);
    SAME(attn_chunk);
    SAME(rms_eps);
    SAME(rope_theta);
    SAME(rope_dim);
    SAME(yarn.factor);
    SAME(yarn.beta_fast);
    SAME(yarn.beta_slow);
    SAME(yarn.attention);
    SAME(yarn.scores);
    SAME(yarn.original);
    SAME(yarn.between);
    SAME(long_waves);
    SAME(query_floor);
    SAME(query_growth);
    SAME(clip_qkv);
    SAME(route_scale);
    SAME(glu_limit);
    SAME(n_mtp);
    SAME(fp8);
    SAME(qk_norm);
    SAME(qk_unit);
    SAME(gate_input);
    SAME(qkv_bias);
    SAME(norm_topk);
    SAME(dense_branch);
    SAME(tied_head);
    SAME(mxfp4);
    SAME(rope_pairs);
    SAME(ffn);
    SAME(sight);
    SAME(unrotated);
    SAME(linear);
    SAME(n_linear);
    SAME(delta_k_heads);
    SAME(delta_v_heads);
    SAME(delta_k_dim);
    SAME(delta_v_dim);
    SAME(delta_taps);
    SAME(gated);
    SAME(moe_index);
    SAME(moe_layer);
    SAME(n_eos);
    SAME(eos);
    SAME(bos);
    SAME(n_params);
#undef SAME
}

/* What a request of linear attention leaves behind is counted from two descriptions of a model. */
static void plans_with_what_devices_take(const sl_model_spec *m, const sl_shape *shape) {
    const sl_footprint f = sl_account_footprint(shape);
    if (!m->n_linear) assert_true(f.state == 0 && f.guessed_state == 0);
    if (!m->n_linear) return;
    assert_true(f.state == (double)sl_delta_bytes(sl_model_delta(m), m->n_linear, false));
    assert_true(f.guessed_state == (double)sl_delta_bytes(sl_model_delta(m), m->n_linear, true));
}

static void saved_again_they_say_the_same(void **state) {
    (void)state;
    size_t found = 0;
    for (size_t i = 0; i < SL_LEN(published); i++) {
        const char *name = published[i].name;
        char *saved = text_of(name, ".saved5.json"), *text = need(name);
        if (saved) {
            sl_model_spec a = config_read(text), b = config_read(saved);
            sl_shape x, y;
            sl_err err = {0};
            same(name, &a, &b);
            sl_span before = {(const uint8_t *)text, strlen(text)};
            sl_span after = {(const uint8_t *)saved, strlen(saved)};
            if (sl_shape_config_parse("config.json", name, before, &x, &err) != SL_OK ||
                sl_shape_config_parse("config.json", name, after, &y, &err) != SL_OK)
                fail_msg("%s: %s", name, err.msg);
            assert_int_equal(sl_account_params(&x).total, sl_account_params(&y).total);
            plans_with_what_devices_take(&a, &x);
            found++;
        }
        free(text);
        free(saved);
    }
    assert_int_equal(found, SL_LEN(published) - 3); /* arctic, kimi_k2, and integers for floats */
}

static void a_key_is_taken_for_its_value_alone(void **state) {
    (void)state;
    static const struct {
        const char *name, *end, *from, *to;
        sl_status code;
        const char *message;
    } bad[] = {
        {"qwen3-coder-480b-a35b", ".json", "\"use_qk_norm\": true", "\"use_qk_norm\": false",
         SL_ERR_UNSUPPORTED, "use_qk_norm: supported only as true"},
        {"gpt-oss-20b", ".saved5.json", "\"swiglu_alpha\": 1.702", "\"swiglu_alpha\": 1.7",
         SL_ERR_UNSUPPORTED, "swiglu_alpha: supported only as 1.702"},
        {"gpt-oss-20b", ".json", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": \"7\"",
         SL_ERR_UNSUPPORTED, "swiglu_limit: supported only as 7"},
        {"deepseek-v3.1", ".json", "\"ue8m0\"", "\"ue4m3\"", SL_ERR_UNSUPPORTED,
         "quantization_config.scale_fmt: supported only as ue8m0 or float"},
        {"deepseek-v3.1", ".json", "\"scale_fmt\": \"ue8m0\"", "\"scale_fmt\": 0",
         SL_ERR_UNSUPPORTED, "quantization_config.scale_fmt: supported only as ue8m0 or float"},
        {"deepseek-v3.1", ".json", "\"scale_fmt\": \"ue8m0\"", "\"expert_dtype\": \"fp4\"",
         SL_ERR_UNSUPPORTED, "quantization_config.expert_dtype: supported only as fp8"},
        {"deepseek-v3.1", ".json", "\"scale_fmt\": \"ue8m0\"", "\"dequantize\": true",
         SL_ERR_UNSUPPORTED, "quantization_config.dequantize: supported only when it is off"},
        {"dbrx", ".saved5.json", "\"hidden_size\": 6144", "\"hidden_size\": 4096",
         SL_ERR_UNSUPPORTED, "ffn_config.hidden_size: 4096 is not d_model (6144)"},
        {"dbrx", ".saved5.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0",
         SL_ERR_FORMAT, "attn_config.rope_theta: 500000 contradicts rope_parameters"},
        {"dbrx", ".saved5.json", "\"rope_type\": \"default\"",
         "\"rope_type\": \"linear\", \"factor\": 2.0", SL_ERR_UNSUPPORTED,
         "rope_parameters.rope_type: \"linear\" is not supported"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char *text = text_of(bad[i].name, bad[i].end);
        assert_non_null(text);
        config_refused(text, bad[i].from, bad[i].to, bad[i].code, bad[i].message);
        free(text);
    }
}

/* What the engine does not compute can be planned: by the same reading, which refuses nothing that
 * can be counted. */
static void what_is_refused_is_counted(void **state) {
    (void)state;
    static const struct {
        const char *name, *from, *to;
        sl_status code;
        const char *message;
    } wide[] = {
        {"qwen3-30b-a3b", "\"head_dim\": 128", "\"head_dim\": 2047", SL_ERR_LIMIT,
         "head_dim: 2047 must be even, 2 to 1024"},
        {"qwen3-30b-a3b", "\"attention_bias\": false", "\"attention_bias\": true",
         SL_ERR_UNSUPPORTED, "attention_bias: supported only when it is off"},
        {"deepseek-v3", "\"kv_lora_rank\": 512", "\"kv_lora_rank\": 4096", SL_ERR_LIMIT,
         "kv_lora_rank: 4096 is outside 1..960"},
        {"deepseek-v3", "\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2", SL_ERR_UNSUPPORTED,
         "moe_layer_freq: supported only as 1"},
        {"deepseek-v3", "\"n_shared_experts\": 1", "\"n_shared_experts\": 0", SL_ERR_LIMIT,
         "n_shared_experts: 0 is outside 1..64"},
        {"glm-4.5", "\"max_position_embeddings\"", "\"far\"", SL_ERR_UNSUPPORTED,
         "far: unknown option"},
        {"dbrx", "\"d_model\": 6144", "\"d_model\": 6140", SL_ERR_FORMAT,
         "n_heads: 48 does not divide d_model 6140"},
    };
    for (size_t i = 0; i < SL_LEN(wide); i++) {
        char *text = need(wide[i].name), *edited = config_edit(text, wide[i].from, wide[i].to);
        sl_shape was, is;
        sl_err err = {0};
        config_refused(text, wide[i].from, wide[i].to, wide[i].code, wide[i].message);
        if (sl_shape_config_parse("c", "m", (sl_span){(const uint8_t *)text, strlen(text)}, &was,
                                  &err) != SL_OK ||
            sl_shape_config_parse("c", "m", (sl_span){(const uint8_t *)edited, strlen(edited)}, &is,
                                  &err) != SL_OK)
            fail_msg("%s: %s", wide[i].to, err.msg);
        assert_memory_not_equal(&was, &is, sizeof was);
        free(edited);
        free(text);
    }
}

/* attn_config's theta is the one that the model was made with; a file without it has the other. */
static void theta_of_dbrx_is_its_own(void **state) {
    (void)state;
    char *text = text_of("dbrx", ".saved5.json");
    assert_non_null(text);
    assert_true(config_read(text).rope_theta == 5e5f);
    assert_true(config_read_edited(text, ", \"rope_theta\": 500000", "").rope_theta == 1e4f);
    assert_true(config_read_edited(text, "\"rope_theta\": 10000.0", "\"rope_theta\": 500000.0")
                    .rope_theta == 5e5f);
    free(text);
}

/* Each family has tensors, and a file here. */
static void families_are_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < sl_n_families; i++) {
        const char *name = sl_families[i]->name;
        size_t files = 0;
        for (size_t k = 0; k < SL_LEN(published); k++) files += !strcmp(published[k].arch, name);
        assert_ptr_equal(sl_arch_find(name), &sl_families[i]->arch);
        assert_true(sl_families[i]->arch.n_tensors > 0);
        if (files == 0 && strcmp(name, "Llama4ForCausalLM") != 0) /* of the one that also sees */
            fail_msg("no published file of %s", name);
        if (sl_families[i]->gguf.name)
            assert_ptr_equal(sl_gguf_arch_of_class(name), &sl_families[i]->gguf);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_whole),
        cmocka_unit_test(every_file_is_in_the_table),
        cmocka_unit_test(published_ones_are_taken),
        cmocka_unit_test(saved_again_they_say_the_same),
        cmocka_unit_test(a_key_is_taken_for_its_value_alone),
        cmocka_unit_test(what_is_refused_is_counted),
        cmocka_unit_test(theta_of_dbrx_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

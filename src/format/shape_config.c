#include "format/shape_config.h"

#include "format/json.h"
#include "format/map.h"
#include "format/presets.h"
#include "spec/model.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEAD_DIM 4096u /* wider ones than the engine's can be planned */

/* What a class calls its hyper-parameters; NULL: it has none. */
typedef struct sl_shape_class {
    const char *name;
    const char *layers, *d_model, *heads, *max_position;
    const char *experts, *top_k;
    const char *expert_width, *dense_width;
    const char *every;       /* every so many blocks are routed */
    const char *dense_first; /* so many first blocks are not */
    bool qkv_bias, o_bias;   /* what attention_bias turns on */
    bool bias_default;       /* attention_bias when the file is silent */
    bool mla, qk_norm, qk_norm_wide, router_bias;
    sl_status (*more)(sl_json root, sl_shape *s, sl_err *err);
} sl_shape_class;

static sl_status read_u32(sl_json obj, const char *key, sl_json_need need, uint32_t min,
                          uint32_t max, uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    if (!key) return SL_OK;
    sl_status st = sl_json_u64(obj, key, need, min, max, &v, err);
    if (st == SL_OK) *out = (uint32_t)v;
    return st;
}

/* ---- what families have besides ---- */

static sl_status more_mixtral(sl_json root, sl_shape *s, sl_err *err) {
    sl_status st =
        read_u32(root, "sliding_window", SL_JSON_OPTIONAL, 1, INT32_MAX, &s->window, err);
    if (s->window) s->n_windowed_layers = s->n_layers;
    return st;
}

static sl_status more_qwen2(sl_json root, sl_shape *s, sl_err *err) {
    sl_status st = sl_json_bool(root, "qkv_bias", SL_JSON_OPTIONAL, &s->qkv_bias, err);
    s->shared_gate = true;
    if (st == SL_OK)
        st = read_u32(root, "shared_expert_intermediate_size", SL_JSON_REQUIRED, 1, SL_MAX_WIDTH,
                      &s->d_ff_shared, err);
    return st;
}

static sl_status more_dbrx(sl_json root, sl_shape *s, sl_err *err) {
    sl_json attn = {0}, ffn = {0};
    sl_status st = sl_json_object(root, "attn_config", SL_JSON_REQUIRED, &attn, err);
    if (st == SL_OK)
        st = read_u32(attn, "kv_n_heads", SL_JSON_REQUIRED, 1, s->n_heads, &s->n_kv_heads, err);
    if (st == SL_OK) st = sl_json_object(root, "ffn_config", SL_JSON_REQUIRED, &ffn, err);
    if (st == SL_OK)
        st = read_u32(ffn, "ffn_hidden_size", SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_expert,
                      err);
    if (st == SL_OK)
        st = read_u32(ffn, "moe_num_experts", SL_JSON_REQUIRED, 1, SL_MAX_EXPERTS, &s->n_experts,
                      err);
    if (st == SL_OK)
        st = read_u32(ffn, "moe_top_k", SL_JSON_REQUIRED, 1, SL_MAX_TOP_K, &s->top_k, err);
    return st;
}

static sl_status more_arctic(sl_json root, sl_shape *s, sl_err *err) {
    bool residual = false;
    sl_status st = sl_json_bool(root, "parallel_attn_mlp_res", SL_JSON_OPTIONAL, &residual, err);
    if (sl_json_kind_of(sl_json_get(root, "moe_layer_frequency")) <= SL_JSON_NULL) s->moe_every = 2;
    s->d_ff_residual = residual ? s->d_model : 0;
    return st;
}

static sl_status shared_experts(sl_json root, sl_shape *s, sl_err *err) {
    uint32_t n = 0;
    sl_status st =
        read_u32(root, "n_shared_experts", SL_JSON_OPTIONAL, 0, SL_MAX_SHARED_EXPERTS, &n, err);
    if (st == SL_OK && (uint64_t)n * s->d_ff_expert > SL_MAX_WIDTH)
        return sl_json_fail(root, "n_shared_experts", err, SL_ERR_LIMIT,
                            "%u experts of width %u are wider than %u together", n, s->d_ff_expert,
                            SL_MAX_WIDTH);
    s->d_ff_shared = n * s->d_ff_expert;
    return st;
}

static sl_status more_llama4(sl_json root, sl_shape *s, sl_err *err) {
    sl_json list = {0};
    sl_status st = sl_json_array(root, "moe_layers", SL_JSON_OPTIONAL, &list, err);
    uint64_t n = sl_json_count(list);
    s->d_ff_shared = s->d_ff_expert;
    if (st == SL_OK && n && n != sl_shape_n_moe(s))
        return sl_json_fail(root, "moe_layers", err, SL_ERR_UNSUPPORTED,
                            "%llu blocks, but interleave_moe_layer_step makes %u routed",
                            (unsigned long long)n, sl_shape_n_moe(s));
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        uint64_t layer = 0;
        if (!sl_json_as_u64(sl_json_at(list, i), &layer) || layer >= s->n_layers ||
            !sl_shape_is_moe(s, (uint32_t)layer))
            st = sl_json_fail(root, "moe_layers", err, SL_ERR_UNSUPPORTED,
                              "entry %zu is no block that interleave_moe_layer_step makes routed",
                              i);
    }
    return st;
}

static sl_status more_gpt_oss(sl_json root, sl_shape *s, sl_err *err) {
    sl_json types = {0};
    s->sink = s->expert_bias = true;
    s->window = 128;
    s->n_windowed_layers = (s->n_layers + 1) / 2;
    sl_status st =
        read_u32(root, "sliding_window", SL_JSON_OPTIONAL, 1, INT32_MAX, &s->window, err);
    if (st == SL_OK) st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    if (st != SL_OK || !types.value) return st;
    s->n_windowed_layers = 0;
    for (size_t i = 0; i < sl_json_count(types) && i < s->n_layers; i++) {
        sl_span t = {0};
        const char want[] = "sliding_attention";
        if (sl_json_as_span(sl_json_at(types, i), &t) && t.len == sizeof want - 1 &&
            memcmp(t.data, want, t.len) == 0)
            s->n_windowed_layers++;
    }
    return SL_OK;
}

static sl_status more_glm(sl_json root, sl_shape *s, sl_err *err) {
    sl_status st = sl_json_bool(root, "use_qk_norm", SL_JSON_OPTIONAL, &s->qk_norm, err);
    return st == SL_OK ? shared_experts(root, s, err) : st;
}

#define LLAMA_KEYS                                                                                 \
    .layers = "num_hidden_layers", .d_model = "hidden_size", .heads = "num_attention_heads",       \
    .max_position = "max_position_embeddings", .top_k = "num_experts_per_tok"

static const sl_shape_class classes[] = {
    {"MixtralForCausalLM", LLAMA_KEYS, .experts = "num_local_experts",
     .expert_width = "intermediate_size", .more = more_mixtral},
    {"Qwen2MoeForCausalLM", LLAMA_KEYS, .experts = "num_experts",
     .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
     .every = "decoder_sparse_step", .qkv_bias = true, .bias_default = true, .more = more_qwen2},
    {"Qwen3MoeForCausalLM", LLAMA_KEYS, .experts = "num_experts",
     .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
     .every = "decoder_sparse_step", .qkv_bias = true, .o_bias = true, .qk_norm = true},
    {"DbrxForCausalLM", .layers = "n_layers", .d_model = "d_model", .heads = "n_heads",
     .max_position = "max_seq_len", .more = more_dbrx},
    {"ArcticForCausalLM", LLAMA_KEYS, .experts = "num_local_experts",
     .expert_width = "intermediate_size", .dense_width = "intermediate_size",
     .every = "moe_layer_frequency", .more = more_arctic},
    {"DeepseekV2ForCausalLM", LLAMA_KEYS, .experts = "n_routed_experts",
     .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
     .every = "moe_layer_freq", .dense_first = "first_k_dense_replace", .mla = true,
     .more = shared_experts},
    {"DeepseekV3ForCausalLM", LLAMA_KEYS, .experts = "n_routed_experts",
     .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
     .every = "moe_layer_freq", .dense_first = "first_k_dense_replace", .mla = true,
     .router_bias = true, .more = shared_experts},
    {"Llama4ForCausalLM", LLAMA_KEYS, .experts = "num_local_experts",
     .expert_width = "intermediate_size", .dense_width = "intermediate_size_mlp",
     .every = "interleave_moe_layer_step", .qkv_bias = true, .o_bias = true, .more = more_llama4},
    {"Llama4ForConditionalGeneration", LLAMA_KEYS, .experts = "num_local_experts",
     .expert_width = "intermediate_size", .dense_width = "intermediate_size_mlp",
     .every = "interleave_moe_layer_step", .qkv_bias = true, .o_bias = true, .more = more_llama4},
    {"GptOssForCausalLM", LLAMA_KEYS, .experts = "num_local_experts",
     .expert_width = "intermediate_size", .qkv_bias = true, .o_bias = true, .bias_default = true,
     .router_bias = true, .more = more_gpt_oss},
    {"OlmoeForCausalLM", LLAMA_KEYS, .experts = "num_experts", .expert_width = "intermediate_size",
     .qkv_bias = true, .o_bias = true, .qk_norm = true, .qk_norm_wide = true},
    {"Glm4MoeForCausalLM", LLAMA_KEYS, .experts = "n_routed_experts",
     .expert_width = "moe_intermediate_size", .dense_width = "intermediate_size",
     .dense_first = "first_k_dense_replace", .qkv_bias = true, .router_bias = true,
     .more = more_glm},
};

/* ---- what they share ---- */

static sl_status read_class(sl_json root, const sl_shape_class **out, sl_err *err) {
    sl_json list = {0};
    sl_span name = {0};
    char known[400] = "";
    sl_status st = sl_json_array(root, "architectures", SL_JSON_REQUIRED, &list, err);
    if (st != SL_OK) return st;
    if (sl_json_count(list) != 1 || !sl_json_as_span(sl_json_at(list, 0), &name))
        return sl_json_fail(root, "architectures", err, SL_ERR_FORMAT, "must be one class name");
    for (size_t i = 0; i < SL_LEN(classes); i++) {
        const char *c = classes[i].name;
        if (name.len == strlen(c) && memcmp(name.data, c, name.len) == 0) {
            *out = &classes[i];
            return SL_OK;
        }
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", c);
    }
    return sl_json_fail(root, "architectures", err, SL_ERR_UNSUPPORTED,
                        "\"%.*s\" is not a known family (%s)", (int)SL_MIN(name.len, (size_t)64),
                        (const char *)name.data, known);
}

static sl_status read_mla(sl_json root, sl_shape *s, sl_err *err) {
    s->attention = SL_ATTENTION_MLA;
    s->n_kv_heads = s->n_heads;
    sl_status st =
        read_u32(root, "q_lora_rank", SL_JSON_OPTIONAL, 1, SL_MAX_D_MODEL, &s->q_lora, err);
    if (st == SL_OK)
        st = read_u32(root, "kv_lora_rank", SL_JSON_REQUIRED, 1, SL_MAX_D_MODEL, &s->kv_lora, err);
    if (st == SL_OK)
        st = read_u32(root, "qk_nope_head_dim", SL_JSON_REQUIRED, 1, MAX_HEAD_DIM, &s->qk_nope_dim,
                      err);
    if (st == SL_OK)
        st = read_u32(root, "qk_rope_head_dim", SL_JSON_REQUIRED, 1, MAX_HEAD_DIM, &s->qk_rope_dim,
                      err);
    if (st == SL_OK)
        st = read_u32(root, "v_head_dim", SL_JSON_REQUIRED, 1, MAX_HEAD_DIM, &s->v_head_dim, err);
    s->qk_head_dim = s->qk_nope_dim + s->qk_rope_dim;
    return st;
}

static sl_status read_attention(sl_json root, const sl_shape_class *c, sl_shape *s, sl_err *err) {
    bool bias = c->bias_default;
    sl_status st = read_u32(root, c->heads, SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &s->n_heads, err);
    if (st == SL_OK) st = sl_json_bool(root, "attention_bias", SL_JSON_OPTIONAL, &bias, err);
    if (st != SL_OK) return st;
    s->qkv_bias = bias && c->qkv_bias;
    s->o_bias = bias && c->o_bias;
    s->qk_norm = c->qk_norm;
    s->qk_norm_wide = c->qk_norm_wide;
    if (c->mla) return read_mla(root, s, err);
    s->n_kv_heads = s->n_heads;
    st =
        read_u32(root, "num_key_value_heads", SL_JSON_OPTIONAL, 1, s->n_heads, &s->n_kv_heads, err);
    if (st != SL_OK) return st;
    if (s->n_heads % s->n_kv_heads != 0)
        return sl_json_fail(root, "num_key_value_heads", err, SL_ERR_FORMAT,
                            "%u does not divide %s %u", s->n_kv_heads, c->heads, s->n_heads);
    s->qk_head_dim = s->d_model / s->n_heads;
    st = read_u32(root, "head_dim", SL_JSON_OPTIONAL, 1, MAX_HEAD_DIM, &s->qk_head_dim, err);
    if (st == SL_OK && (s->qk_head_dim == 0 || s->qk_head_dim > MAX_HEAD_DIM))
        return sl_json_fail(root, c->heads, err, SL_ERR_LIMIT,
                            "%u heads of hidden size %u: a head's width must be 1 to %u",
                            s->n_heads, s->d_model, MAX_HEAD_DIM);
    s->v_head_dim = s->qk_head_dim;
    return st;
}

static sl_status read_mlp_only(sl_json root, sl_shape *s, sl_err *err) {
    sl_json list = {0};
    sl_status st = sl_json_array(root, "mlp_only_layers", SL_JSON_OPTIONAL, &list, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++) {
        uint64_t v = 0;
        if (!sl_json_as_u64(sl_json_at(list, i), &v) || v >= s->n_layers)
            return sl_json_fail(root, "mlp_only_layers", err, SL_ERR_LIMIT,
                                "entry %zu is no block from 0 to %u", i, s->n_layers - 1);
        sl_shape_make_dense(s, (uint32_t)v);
    }
    return st;
}

/* transformers 5 saves some classes with another name for the number of experts. */
static const char *experts_key(sl_json root, const sl_shape_class *c) {
    static const char other[] = "num_local_experts";
    bool renamed = c->experts && sl_json_kind_of(sl_json_get(root, c->experts)) <= SL_JSON_NULL &&
                   sl_json_kind_of(sl_json_get(root, other)) > SL_JSON_NULL;
    return renamed ? other : c->experts;
}

static sl_status read_ffn(sl_json root, const sl_shape_class *c, sl_shape *s, sl_err *err) {
    sl_status st = read_u32(root, experts_key(root, c), SL_JSON_REQUIRED, 1, SL_MAX_EXPERTS,
                            &s->n_experts, err);
    if (st == SL_OK)
        st = read_u32(root, c->top_k, SL_JSON_REQUIRED, 1, SL_MAX_TOP_K, &s->top_k, err);
    if (st == SL_OK)
        st = read_u32(root, c->expert_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_expert,
                      err);
    if (st == SL_OK)
        st = read_u32(root, c->every, SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS, &s->moe_every, err);
    if (st == SL_OK)
        st = read_u32(root, c->dense_first, SL_JSON_OPTIONAL, 0, s->n_layers, &s->n_dense_first,
                      err);
    if (st == SL_OK && c->every && strcmp(c->every, "decoder_sparse_step") == 0)
        st = read_mlp_only(root, s, err);
    if (st == SL_OK && c->more) st = c->more(root, s, err);
    if (st != SL_OK) return st;
    if (s->top_k > s->n_experts)
        return sl_json_fail(root, c->top_k, err, SL_ERR_LIMIT,
                            "%u exceeds the number of experts %u", s->top_k, s->n_experts);
    if (sl_shape_n_moe(s) == 0)
        return sl_json_fail(root, c->layers, err, SL_ERR_UNSUPPORTED,
                            "none of the %u blocks has routed experts", s->n_layers);
    s->router_bias = c->router_bias;
    if (sl_shape_n_dense(s) == 0) return SL_OK;
    return read_u32(root, c->dense_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_dense, err);
}

static sl_status read_bytes(sl_json root, sl_shape *s, sl_err *err) {
    static const char *const keys[] = {"torch_dtype", "dtype"};
    sl_json quant = {0};
    const char *method = NULL;
    double bytes = 2;
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(keys); i++) {
        const char *name = NULL;
        st = sl_json_string(root, keys[i], SL_JSON_OPTIONAL, &name, err);
        if (name && strcmp(name, "float32") == 0) bytes = 4;
    }
    s->attention_weight_bytes = s->expert_weight_bytes = bytes;
    s->kv_value_bytes = 2;
    if (st == SL_OK)
        st = sl_json_object(root, "quantization_config", SL_JSON_OPTIONAL, &quant, err);
    if (st != SL_OK || !quant.value) return st;
    st = sl_json_string(quant, "quant_method", SL_JSON_REQUIRED, &method, err);
    if (st != SL_OK) return st;
    if (strcmp(method, "fp8") == 0)
        s->attention_weight_bytes = s->expert_weight_bytes = 1;
    else if (strcmp(method, "mxfp4") == 0)
        s->expert_weight_bytes = 17.0 / 32; /* 32 values of 4 bits and a scale of 8 */
    else
        st = sl_json_fail(quant, "quant_method", err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\" is not known (fp8, mxfp4)", method);
    return st;
}

static sl_status read_shape(sl_json root, sl_shape *s, sl_err *err) {
    const sl_shape_class *c = NULL;
    sl_status st = read_class(root, &c, err);
    if (st == SL_OK && strcmp(c->name, "Llama4ForConditionalGeneration") == 0)
        st = sl_json_object(root, "text_config", SL_JSON_REQUIRED, &root, err);
    if (st != SL_OK) return st;
    s->moe_every = 1;
    s->norms_per_layer = 2;
    st = read_u32(root, c->layers, SL_JSON_REQUIRED, 1, SL_MAX_LAYERS, &s->n_layers, err);
    if (st == SL_OK)
        st = read_u32(root, c->d_model, SL_JSON_REQUIRED, 1, SL_MAX_D_MODEL, &s->d_model, err);
    if (st == SL_OK)
        st = read_u32(root, "vocab_size", SL_JSON_REQUIRED, 1, SL_MAX_VOCAB, &s->vocab, err);
    if (st == SL_OK)
        st = sl_json_bool(root, "tie_word_embeddings", SL_JSON_OPTIONAL, &s->tied_head, err);
    if (st == SL_OK)
        st = read_u32(root, c->max_position, SL_JSON_OPTIONAL, 1, INT32_MAX, &s->max_position, err);
    if (st == SL_OK) st = read_attention(root, c, s, err);
    if (st == SL_OK) st = read_ffn(root, c, s, err);
    if (st == SL_OK) st = read_bytes(root, s, err);
    return st;
}

sl_status sl_shape_config_parse(const char *file, const char *name, sl_span text, sl_shape *out,
                                sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_shape s = {0};
    snprintf(s.name, sizeof s.name, "%s", name);
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st == SL_OK) st = read_shape(sl_json_root(doc), &s, err);
    if (st == SL_OK) *out = s;
    sl_json_doc_free(doc);
    return st;
}

static sl_status not_found(const char *model, sl_err *err) {
    char names[320] = "";
    for (size_t i = 0; sl_preset_model_name(i); i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", sl_preset_model_name(i));
    }
    return sl_fail(err, SL_ERR_NOTFOUND, "'%.150s' is no folder, no file and no preset (%s)", model,
                   names);
}

sl_status sl_shape_open(const char *model, sl_shape *out, sl_err *err) {
    char path[4096], name[SL_SHAPE_NAME];
    struct stat info;
    sl_map map = {0};
    if (stat(model, &info) != 0) {
        const sl_shape *preset = sl_preset_model(model);
        if (!preset) return not_found(model, err);
        *out = *preset;
        return SL_OK;
    }
    int n = snprintf(path, sizeof path, "%s%s", model, S_ISDIR(info.st_mode) ? "/config.json" : "");
    if (n < 0 || (size_t)n >= sizeof path)
        return sl_fail(err, SL_ERR_LIMIT, "path of %zu bytes, limit %zu", strlen(model),
                       sizeof path - 16);
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && model[begin - 1] != '/') begin--;
    snprintf(name, sizeof name, "%.*s", (int)SL_MIN(end - begin, sizeof name - 1), model + begin);
    if (!S_ISDIR(info.st_mode) && sl_shape_in_gguf(model)) {
        sl_status st = sl_shape_of_gguf(model, out, err);
        if (st == SL_OK) memcpy(out->name, name, sizeof name);
        return st;
    }
    sl_status st = sl_map_open(path, SL_MAX_CONFIG_BYTES, &map, err);
    if (st == SL_OK) st = sl_shape_config_parse(path, name, map.bytes, out, err);
    sl_map_close(&map);
    return st;
}

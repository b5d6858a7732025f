/* config.json as the planner reads it: what counts, whether the engine runs the model or not. */
#include "format/shape_config.h"

#include "format/hf_config_int.h"
#include "format/map.h"
#include "format/presets.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEAD_DIM 4096u /* wider ones than the engine's can be planned */

static sl_status read_u32(sl_json obj, const char *key, sl_json_need need, uint32_t min,
                          uint32_t max, uint32_t *out, sl_err *err) {
    return key ? sl_hf_u32(obj, key, need, min, max, out, err) : SL_OK;
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

static sl_status read_attention(sl_json root, const sl_family *f, sl_shape *s, sl_err *err) {
    bool bias = f->small & SL_SMALL_BIAS_GIVEN;
    sl_status st =
        read_u32(root, f->key.heads, SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &s->n_heads, err);
    if (st == SL_OK) st = sl_json_bool(root, "attention_bias", SL_JSON_OPTIONAL, &bias, err);
    if (st != SL_OK) return st;
    s->qkv_bias = bias && f->small & SL_SMALL_QKV_BIAS;
    s->qk_norm = f->qk_norm;
    if (f->latent) return read_mla(root, s, err);
    s->n_kv_heads = s->n_heads;
    st =
        read_u32(root, "num_key_value_heads", SL_JSON_OPTIONAL, 1, s->n_heads, &s->n_kv_heads, err);
    if (st != SL_OK) return st;
    if (s->n_heads % s->n_kv_heads != 0)
        return sl_json_fail(root, "num_key_value_heads", err, SL_ERR_FORMAT,
                            "%u does not divide %s %u", s->n_kv_heads, f->key.heads, s->n_heads);
    s->qk_head_dim = s->d_model / s->n_heads;
    st = read_u32(root, "head_dim", SL_JSON_OPTIONAL, 1, MAX_HEAD_DIM, &s->qk_head_dim, err);
    if (st == SL_OK && (s->qk_head_dim == 0 || s->qk_head_dim > MAX_HEAD_DIM))
        return sl_json_fail(root, f->key.heads, err, SL_ERR_LIMIT,
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
static const char *experts_key(sl_json root, const sl_family *f) {
    static const char other[] = "num_local_experts";
    bool renamed = f->key.experts &&
                   sl_json_kind_of(sl_json_get(root, f->key.experts)) <= SL_JSON_NULL &&
                   sl_json_kind_of(sl_json_get(root, other)) > SL_JSON_NULL;
    return renamed ? other : f->key.experts;
}

static sl_status read_ffn(sl_json root, const sl_family *f, sl_shape *s, sl_err *err) {
    sl_status st = read_u32(root, experts_key(root, f), SL_JSON_REQUIRED, 1, SL_MAX_EXPERTS,
                            &s->n_experts, err);
    if (st == SL_OK)
        st = read_u32(root, f->key.top_k, SL_JSON_REQUIRED, 1, SL_MAX_TOP_K, &s->top_k, err);
    if (st == SL_OK)
        st = read_u32(root, f->key.expert_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_expert,
                      err);
    if (st == SL_OK)
        st = read_u32(root, f->key.every, SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS, &s->moe_every, err);
    if (st == SL_OK)
        st = read_u32(root, f->key.dense_first, SL_JSON_OPTIONAL, 0, s->n_layers, &s->n_dense_first,
                      err);
    if (st == SL_OK && f->sparse_step) st = read_mlp_only(root, s, err);
    if (st == SL_OK && f->describe) st = f->describe(root, s, err);
    if (st != SL_OK) return st;
    if (s->top_k > s->n_experts)
        return sl_json_fail(root, f->key.top_k, err, SL_ERR_LIMIT,
                            "%u exceeds the number of experts %u", s->top_k, s->n_experts);
    if (sl_shape_n_moe(s) == 0)
        return sl_json_fail(root, f->key.layers, err, SL_ERR_UNSUPPORTED,
                            "none of the %u blocks has routed experts", s->n_layers);
    if (sl_shape_n_dense(s) == 0) return SL_OK;
    return read_u32(root, f->key.dense_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &s->d_ff_dense,
                    err);
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
    const sl_family *f = NULL;
    sl_model_spec m = {0};
    sl_status st = sl_family_read(root, "is not a known family (", &f, err);
    if (st == SL_OK && f->nested)
        st = sl_json_object(root, f->nested, SL_JSON_REQUIRED, &root, err);
    if (st == SL_OK) st = sl_hf_sizes(root, f, SL_JSON_OPTIONAL, &m, err);
    if (st != SL_OK) return st;
    s->n_layers = m.n_layers;
    s->d_model = m.d_model;
    s->vocab = m.vocab;
    s->tied_head = m.tied_head;
    s->max_position = m.max_position;
    s->moe_every = 1;
    s->norms_per_layer = 2;
    st = read_attention(root, f, s, err);
    if (st == SL_OK) st = read_ffn(root, f, s, err);
    sl_family_small(f, s);
    return st == SL_OK ? read_bytes(root, s, err) : st;
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

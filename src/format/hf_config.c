/* config.json and generation_config.json as the engine reads them: beside what counts (hf_read.c)
 * what computing needs, and what it cannot compute is refused. */
#include "format/hf_config_int.h"

#include <math.h>
#include <stdio.h>

static sl_status read_class(sl_json root, const sl_family **out, sl_err *err) {
    const char *type = NULL;
    sl_status st = sl_family_read(root, "is not supported (supported: ", out, err);
    if (st == SL_OK) st = sl_json_string(root, "model_type", SL_JSON_OPTIONAL, &type, err);
    if (st != SL_OK || !type) return st;
    const sl_family *f = *out;
    if (strcmp(type, f->model_type) == 0) return SL_OK;
    if (f->other_type && strcmp(type, f->other_type) == 0) return SL_OK;
    return sl_json_fail(root, "model_type", err, SL_ERR_FORMAT,
                        "\"%.64s\" does not fit %s, which is \"%s\"", type, f->name, f->model_type);
}

/* Heads of a width that kernels do not know, or that do not follow from the width of the model. */
static sl_status check_heads(sl_json root, const sl_family *f, const sl_model_spec *m,
                             sl_err *err) {
    if (sl_json_kind_of(sl_json_get(root, "head_dim")) <= SL_JSON_NULL &&
        m->d_model % m->n_heads != 0)
        return sl_json_fail(root, f->key.heads, err, SL_ERR_FORMAT,
                            "%u does not divide %s %u, and there is no head_dim", m->n_heads,
                            f->key.d_model, m->d_model);
    if (m->head_dim > SL_HEAD_DIM_MAX || m->head_dim % 2 != 0)
        return sl_json_fail(root, "head_dim", err, SL_ERR_LIMIT, "%u must be even, 2 to %d",
                            m->head_dim, SL_HEAD_DIM_MAX);
    if (f->head_dim_derived && m->head_dim * m->n_heads != m->d_model)
        return sl_json_fail(root, "head_dim", err, SL_ERR_UNSUPPORTED,
                            "%u is not hidden_size / num_attention_heads, as it is for %s",
                            m->head_dim, f->name);
    return SL_OK;
}

/* layer_types says of each block what has been taken for granted. */
static sl_status check_types(sl_json root, const sl_family *f, const sl_model_spec *m,
                             sl_err *err) {
    sl_json types = {0};
    bool windowed = false;
    sl_status st = sl_json_bool(root, "use_sliding_window", SL_JSON_OPTIONAL, &windowed, err);
    if (st == SL_OK && windowed && !f->key.window)
        st = sl_json_fail(root, "use_sliding_window", err, SL_ERR_UNSUPPORTED,
                          "true is not supported for %s", f->name);
    if (st == SL_OK && !f->own_types)
        st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    if (st == SL_OK && f->windows && sl_json_count(types) != m->n_layers)
        st = sl_json_fail(root, "layer_types", err, SL_ERR_FORMAT, "%zu entries for %u blocks",
                          sl_json_count(types), m->n_layers);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(types); i++) {
        bool window = m->sight[SL_MIN(i, m->n_layers - (size_t)1)] == SL_SIGHT_WINDOW;
        const char *want = window ? SL_HF_SLIDING : "full_attention";
        if (!sl_json_is_text(sl_json_at(types, i), want))
            st = sl_json_fail(root, "layer_types", err, SL_ERR_UNSUPPORTED,
                              "layer %zu must be \"%s\"", i, want);
    }
    return st;
}

/* What may be missing or larger where a model is only counted. */
static sl_status check_counted(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    uint32_t n_shared = 0;
    sl_status st = sl_hf_u32(root, f->key.max_position, SL_JSON_REQUIRED, 1, SL_MAX_POSITION,
                             &m->max_position, err);
    if (st == SL_OK)
        st = f->latent ? sl_hf_check_latents(root, m, err) : check_heads(root, f, m, err);
    if (st == SL_OK && m->d_ff_shared == 0)
        st = sl_hf_u32(root, f->key.n_shared, SL_JSON_REQUIRED, 1, SL_MAX_SHARED_EXPERTS, &n_shared,
                       err);
    return st == SL_OK ? check_types(root, f, m, err) : st;
}

static sl_status read_norms(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    double eps = f->rms_eps;
    const char *act = "silu";
    sl_status st = sl_json_f64(root, "rms_norm_eps", SL_JSON_OPTIONAL, 0, 1, &eps, err);
    m->rms_eps = (float)eps;
    if (st == SL_OK && !f->apart)
        st = sl_json_string(root, "hidden_act", SL_JSON_REQUIRED, &act, err);
    if (st == SL_OK && strcmp(act, "silu") != 0)
        st = sl_json_fail(root, "hidden_act", err, SL_ERR_UNSUPPORTED,
                          "\"%.64s\" is not supported (supported: \"silu\")", act);
    return st;
}

static sl_status read_router(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    double scale = f->route_scale;
    m->norm_topk = f->norm_topk;
    sl_status st = sl_json_bool(root, "norm_topk_prob", SL_JSON_OPTIONAL, &m->norm_topk, err);
    if (st == SL_OK && f->norm_topk_fixed && m->norm_topk != f->norm_topk)
        st = sl_json_fail(root, "norm_topk_prob", err, SL_ERR_UNSUPPORTED,
                          "%s is not supported for %s", m->norm_topk ? "true" : "false", f->name);
    if (st == SL_OK && scale > 0)
        st = sl_json_f64(root, "routed_scaling_factor", SL_JSON_OPTIONAL, 1e-6, 1e6, &scale, err);
    m->route_scale = (float)scale;
    return st;
}

static sl_status add_eos(sl_json root, sl_json v, sl_model_spec *m, sl_err *err) {
    uint64_t id = 0;
    if (!sl_json_as_u64(v, &id) || id >= m->vocab)
        return sl_json_fail(root, "eos_token_id", err, SL_ERR_LIMIT,
                            "must be ids from 0 to %u (vocab_size %u)", m->vocab - 1, m->vocab);
    for (uint32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id) return SL_OK;
    if (m->n_eos == SL_MAX_EOS)
        return sl_json_fail(root, "eos_token_id", err, SL_ERR_LIMIT, "more than %d ids",
                            SL_MAX_EOS);
    m->eos[m->n_eos++] = (uint32_t)id;
    return SL_OK;
}

static sl_status read_eos(sl_json root, sl_model_spec *m, sl_err *err) {
    sl_json v = sl_json_get(root, "eos_token_id");
    sl_status st = SL_OK;
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return SL_OK;
    if (sl_json_kind_of(v) != SL_JSON_ARRAY) return add_eos(root, v, m, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(v); i++)
        st = add_eos(root, sl_json_at(v, i), m, err);
    return st;
}

static sl_status read_bos(sl_json root, sl_model_spec *m, sl_err *err) {
    uint64_t bos = UINT64_MAX;
    sl_status st = sl_json_u64(root, "bos_token_id", SL_JSON_OPTIONAL, 0, m->vocab - 1, &bos, err);
    m->bos = bos == UINT64_MAX ? -1 : (int64_t)bos;
    return st;
}

/* The object of a class that has its configuration inside another's. */
static sl_status enter(const sl_family *f, sl_json *root, sl_err *err) {
    sl_status st = sl_hf_check_keys(*root, f->outer, (sl_hf_keys){0}, err);
    return st == SL_OK ? sl_json_object(*root, f->nested, SL_JSON_REQUIRED, root, err) : st;
}

/* *quant: absent when weights are as they are. */
static sl_status check_quant(sl_json root, const sl_family *f, sl_json *quant, sl_err *err) {
    const char *method = NULL;
    sl_status st = sl_json_object(root, "quantization_config", SL_JSON_OPTIONAL, quant, err);
    if (st != SL_OK || !quant->value) return st;
    if (!f->quant)
        return sl_json_fail(root, "quantization_config", err, SL_ERR_UNSUPPORTED,
                            "quantized weights are not supported (F32, F16, BF16 are)");
    st = sl_json_string(*quant, "quant_method", SL_JSON_REQUIRED, &method, err);
    if (st == SL_OK && strcmp(method, f->quant) != 0)
        st = sl_json_fail(*quant, "quant_method", err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\" is not supported (supported: \"%s\")", method, f->quant);
    return st;
}

static sl_status read_config(sl_json root, sl_model_spec *m, sl_err *err) {
    const sl_family *f = NULL;
    sl_json quant = {0};
    sl_status st = read_class(root, &f, err);
    if (st == SL_OK && f->nested) st = enter(f, &root, err);
    if (st == SL_OK) st = sl_hf_check_family(root, f, f->own, err);
    if (st == SL_OK) st = sl_hf_read(root, f, m, err);
    if (st == SL_OK) st = check_counted(root, f, m, err);
    if (st == SL_OK) st = read_norms(root, f, m, err);
    if (st == SL_OK) st = sl_hf_rope(root, f, m, err);
    if (st == SL_OK) st = read_router(root, f, m, err);
    if (st == SL_OK && f->read_own) st = f->read_own(root, m, err);
    if (st == SL_OK) st = check_quant(root, f, &quant, err);
    if (st == SL_OK && quant.value) st = f->read_quant(root, quant, m, err);
    if (st == SL_OK) st = read_bos(root, m, err);
    return st == SL_OK ? read_eos(root, m, err) : st;
}

sl_status sl_hf_config_parse(const char *file, sl_span text, sl_model_spec *spec, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_model_spec m = {.bos = -1};
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    st = read_config(sl_json_root(doc), &m, err);
    sl_json_doc_free(doc);
    if (st == SL_OK) *spec = m;
    return st;
}

sl_generation_spec sl_hf_generation_none(void) {
    return (sl_generation_spec){
        .temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = -1, .do_sample = -1};
}

static sl_status read_generation(sl_json root, sl_model_spec *m, sl_generation_spec *gen,
                                 sl_err *err) {
    double temperature = NAN, top_p = NAN, repetition = NAN;
    uint64_t top_k = UINT64_MAX;
    bool sample = false;
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_json_fail(root, NULL, err, SL_ERR_FORMAT, "must be an object");
    sl_status st = sl_hf_check_keys(root, (sl_hf_keys){0}, sl_hf_generation_keys, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "temperature", SL_JSON_OPTIONAL, 0, SL_MAX_TEMPERATURE, &temperature,
                         err);
    if (st == SL_OK) st = sl_json_f64(root, "top_p", SL_JSON_OPTIONAL, 1e-6, 1, &top_p, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "repetition_penalty", SL_JSON_OPTIONAL, 1e-6, SL_MAX_REPETITION,
                         &repetition, err);
    if (st == SL_OK) st = sl_json_u64(root, "top_k", SL_JSON_OPTIONAL, 0, INT32_MAX, &top_k, err);
    if (st == SL_OK) st = sl_json_bool(root, "do_sample", SL_JSON_OPTIONAL, &sample, err);
    if (st == SL_OK) st = read_eos(root, m, err);
    if (st != SL_OK) return st;
    bool has_sample = sl_json_kind_of(sl_json_get(root, "do_sample")) == SL_JSON_BOOL;
    *gen = (sl_generation_spec){.temperature = (float)temperature,
                                .top_p = (float)top_p,
                                .repetition_penalty = (float)repetition,
                                .top_k = top_k == UINT64_MAX ? -1 : (int32_t)top_k,
                                .do_sample = has_sample ? sample : -1};
    return SL_OK;
}

sl_status sl_hf_generation_parse(const char *file, sl_span text, sl_model_spec *spec,
                                 sl_generation_spec *gen, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    st = read_generation(sl_json_root(doc), spec, gen, err);
    sl_json_doc_free(doc);
    return st;
}

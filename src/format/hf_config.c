/* config.json and generation_config.json as the engine reads them: what is common to all classes.
 */
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

/* Without layer_types every block sees a window if the file has one. */
static sl_status read_layer_types(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    sl_json types = {0};
    if (f->own_blocks) return SL_OK;
    sl_status st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    for (uint32_t i = 0; st == SL_OK && i < m->n_layers; i++)
        m->sight[i] = m->sliding_window ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    if (st == SL_OK && f->windows && sl_json_count(types) != m->n_layers)
        return sl_json_fail(root, "layer_types", err, SL_ERR_FORMAT, "%zu entries for %u blocks",
                            sl_json_count(types), m->n_layers);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(types); i++) {
        static const char window[] = "sliding_attention", all[] = "full_attention";
        sl_span t = {0};
        bool text = sl_json_as_span(sl_json_at(types, i), &t);
        bool is_window = text && t.len == sizeof window - 1 && !memcmp(t.data, window, t.len);
        bool is_all = text && t.len == sizeof all - 1 && !memcmp(t.data, all, t.len);
        bool wanted = m->sliding_window ? is_window || (f->windows && is_all) : is_all;
        if (!wanted)
            return sl_json_fail(root, "layer_types", err, SL_ERR_UNSUPPORTED,
                                "layer %zu must be \"%s\"", i, m->sliding_window ? window : all);
        if (i < m->n_layers) m->sight[i] = is_window ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    }
    return st;
}

static sl_status read_attention(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    bool windowed = false;
    sl_status st =
        sl_hf_u32(root, f->key.heads, SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &m->n_heads, err);
    m->n_kv_heads = m->n_heads;
    if (st == SL_OK)
        st = sl_hf_u32(root, "num_key_value_heads", SL_JSON_OPTIONAL, 1, SL_MAX_HEADS,
                       &m->n_kv_heads, err);
    if (st != SL_OK) return st;
    if (m->n_heads % m->n_kv_heads != 0)
        return sl_json_fail(root, "num_key_value_heads", err, SL_ERR_FORMAT,
                            "%u does not divide num_attention_heads %u", m->n_kv_heads, m->n_heads);
    m->head_dim = m->d_model / m->n_heads;
    if (sl_json_kind_of(sl_json_get(root, "head_dim")) <= SL_JSON_NULL &&
        m->d_model % m->n_heads != 0)
        return sl_json_fail(root, "num_attention_heads", err, SL_ERR_FORMAT,
                            "%u does not divide hidden_size %u, and there is no head_dim",
                            m->n_heads, m->d_model);
    st = sl_hf_u32(root, "head_dim", SL_JSON_OPTIONAL, 2, SL_HEAD_DIM_MAX, &m->head_dim, err);
    if (st != SL_OK) return st;
    if (m->head_dim == 0 || m->head_dim > SL_HEAD_DIM_MAX || m->head_dim % 2 != 0)
        return sl_json_fail(root, "head_dim", err, SL_ERR_LIMIT, "%u must be even, 2 to %d",
                            m->head_dim, SL_HEAD_DIM_MAX);
    if (f->head_dim_derived && m->head_dim * m->n_heads != m->d_model)
        return sl_json_fail(root, "head_dim", err, SL_ERR_UNSUPPORTED,
                            "%u is not hidden_size / num_attention_heads, as it is for %s",
                            m->head_dim, f->name);
    st = sl_json_bool(root, "use_sliding_window", SL_JSON_OPTIONAL, &windowed, err);
    if (st != SL_OK) return st;
    if (windowed && !f->window)
        return sl_json_fail(root, "use_sliding_window", err, SL_ERR_UNSUPPORTED,
                            "true is not supported for %s", f->name);
    if (f->window)
        st = sl_hf_u32(root, "sliding_window", SL_JSON_OPTIONAL, 1, INT32_MAX, &m->sliding_window,
                       err);
    return st == SL_OK ? read_layer_types(root, f, m, err) : st;
}

static sl_status read_expert_count(sl_json root, const sl_family *f, sl_model_spec *m,
                                   sl_err *err) {
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *first = NULL;
    for (size_t i = 0; i < SL_LEN(keys); i++) {
        uint32_t n = 0;
        sl_status st = sl_hf_u32(root, keys[i], SL_JSON_OPTIONAL, 1, SL_MAX_EXPERTS, &n, err);
        if (st != SL_OK) return st;
        if (n && first && n != m->n_experts)
            return sl_json_fail(root, keys[i], err, SL_ERR_FORMAT, "%u contradicts %s %u", n, first,
                                m->n_experts);
        if (n && !first) {
            first = keys[i];
            m->n_experts = n;
        }
    }
    if (!first) return sl_json_fail(root, "num_experts", err, SL_ERR_FORMAT, "missing");
    return sl_hf_u32(root, f->key.top_k, SL_JSON_REQUIRED, 1,
                     SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
}

sl_status sl_hf_number_blocks(sl_json root, sl_model_spec *m, sl_err *err) {
    for (uint32_t i = 0; i < m->n_layers; i++) {
        if (m->ffn[i] != SL_FFN_MOE) continue;
        m->moe_index[i] = (uint16_t)m->n_moe;
        m->moe_layer[m->n_moe++] = (uint16_t)i;
    }
    if (m->n_moe) return SL_OK;
    return sl_json_fail(root, NULL, err, SL_ERR_UNSUPPORTED,
                        "no block is routed to experts (mlp_only_layers, decoder_sparse_step, "
                        "first_k_dense_replace)");
}

/* Which blocks are routed: all but the first so many, or for classes with a step those i with
 * (i + 1) % step == 0 that are not listed as dense. */
static sl_status read_blocks(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    uint32_t step = 1, dense_first = 0;
    sl_json dense = {0};
    sl_status st = SL_OK;
    if (f->key.dense_first) {
        dense_first = 1;
        st = sl_hf_u32(root, f->key.dense_first, SL_JSON_OPTIONAL, 0, SL_MAX_LAYERS, &dense_first,
                       err);
    }
    if (f->sparse_step) {
        st = sl_hf_u32(root, f->key.every, SL_JSON_OPTIONAL, 1, SL_MAX_LAYERS, &step, err);
        if (st == SL_OK) st = sl_json_array(root, "mlp_only_layers", SL_JSON_OPTIONAL, &dense, err);
    }
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->ffn[i] = i >= dense_first && (i + 1) % step == 0 ? SL_FFN_MOE : SL_FFN_DENSE;
    for (size_t i = 0; i < sl_json_count(dense); i++) {
        uint64_t layer = 0;
        if (!sl_json_as_u64(sl_json_at(dense, i), &layer) || layer >= m->n_layers)
            return sl_json_fail(root, "mlp_only_layers", err, SL_ERR_LIMIT,
                                "entry %zu must be a block, 0 to %u", i, m->n_layers - 1);
        m->ffn[layer] = SL_FFN_DENSE;
    }
    st = sl_hf_number_blocks(root, m, err);
    if (st == SL_OK && m->n_moe < m->n_layers)
        st = sl_hf_u32(root, f->key.dense_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &m->d_ff_dense,
                       err);
    return st;
}

static sl_status read_experts(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    m->norm_topk = f->norm_topk;
    sl_status st = sl_json_bool(root, "norm_topk_prob", SL_JSON_OPTIONAL, &m->norm_topk, err);
    if (st == SL_OK && f->norm_topk_fixed && !m->norm_topk)
        st = sl_json_fail(root, "norm_topk_prob", err, SL_ERR_UNSUPPORTED,
                          "false is not supported for %s", f->name);
    if (st == SL_OK) st = read_expert_count(root, f, m, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, f->key.expert_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH,
                       &m->d_ff_expert, err);
    return st == SL_OK && !f->own_blocks ? read_blocks(root, f, m, err) : st;
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

static sl_status read_sizes(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    double eps = f->rms_eps;
    const char *act = NULL;
    sl_status st = sl_hf_sizes(root, f, SL_JSON_REQUIRED, m, err);
    if (st == SL_OK) st = sl_json_f64(root, "rms_norm_eps", SL_JSON_OPTIONAL, 0, 1, &eps, err);
    m->rms_eps = (float)eps;
    if (st == SL_OK) st = sl_json_string(root, "hidden_act", SL_JSON_REQUIRED, &act, err);
    if (st == SL_OK && strcmp(act, "silu") != 0)
        st = sl_json_fail(root, "hidden_act", err, SL_ERR_UNSUPPORTED,
                          "\"%.64s\" is not supported (supported: \"silu\")", act);
    return st;
}

static sl_status read_bos(sl_json root, sl_model_spec *m, sl_err *err) {
    uint64_t bos = UINT64_MAX;
    sl_status st = sl_json_u64(root, "bos_token_id", SL_JSON_OPTIONAL, 0, m->vocab - 1, &bos, err);
    m->bos = bos == UINT64_MAX ? -1 : (int64_t)bos;
    return st;
}

static sl_status read_common(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    size_t n_keys = 0;
    const sl_hf_key *keys = sl_hf_config_keys(&n_keys);
    sl_status st = sl_hf_check_keys(root, f->own, f->n_own, keys, n_keys, err);
    if (st != SL_OK) return st;
    m->qk_norm = f->qk_norm;
    st = read_sizes(root, f, m, err);
    if (st == SL_OK)
        st = f->read_attention ? f->read_attention(root, m, err) : read_attention(root, f, m, err);
    if (st == SL_OK) st = sl_hf_rope(root, f, m, err);
    if (st == SL_OK) st = read_experts(root, f, m, err);
    return st == SL_OK && f->read_own ? f->read_own(root, m, err) : st;
}

/* The object of a class that has its configuration inside another's. */
static sl_status enter(const sl_family *f, sl_json *root, sl_err *err) {
    sl_status st = sl_hf_check_keys(*root, f->outer, f->n_outer, NULL, 0, err);
    return st == SL_OK ? sl_json_object(*root, f->nested, SL_JSON_REQUIRED, root, err) : st;
}

static sl_status read_quant(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    sl_json quant = {0};
    sl_status st = sl_json_object(root, "quantization_config", SL_JSON_OPTIONAL, &quant, err);
    if (st != SL_OK || sl_json_kind_of(quant) <= SL_JSON_NULL || f->fp8) return st;
    if (!f->read_quant)
        return sl_json_fail(root, "quantization_config", err, SL_ERR_UNSUPPORTED,
                            "quantized weights are not supported (F32, F16, BF16 are)");
    return f->read_quant(root, quant, m, err);
}

static sl_status read_config(sl_json root, sl_model_spec *m, sl_err *err) {
    const sl_family *f = NULL;
    sl_status st = read_class(root, &f, err);
    if (st == SL_OK && f->nested) st = enter(f, &root, err);
    if (st != SL_OK) return st;
    memcpy(m->arch, f->name, strlen(f->name) + 1);
    st = f->read_all ? f->read_all(root, m, err) : read_common(root, f, m, err);
    if (st == SL_OK) st = read_quant(root, f, m, err);
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
    return (sl_generation_spec){.temperature = NAN, .top_p = NAN, .top_k = -1, .do_sample = -1};
}

static sl_status read_generation(sl_json root, sl_model_spec *m, sl_generation_spec *gen,
                                 sl_err *err) {
    double temperature = NAN, top_p = NAN;
    uint64_t top_k = UINT64_MAX;
    bool sample = false;
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_json_fail(root, NULL, err, SL_ERR_FORMAT, "must be an object");
    size_t n_keys = 0;
    const sl_hf_key *keys = sl_hf_generation_keys(&n_keys);
    sl_status st = sl_hf_check_keys(root, NULL, 0, keys, n_keys, err);
    if (st == SL_OK)
        st = sl_json_f64(root, "temperature", SL_JSON_OPTIONAL, 0, SL_MAX_TEMPERATURE, &temperature,
                         err);
    if (st == SL_OK) st = sl_json_f64(root, "top_p", SL_JSON_OPTIONAL, 1e-6, 1, &top_p, err);
    if (st == SL_OK) st = sl_json_u64(root, "top_k", SL_JSON_OPTIONAL, 0, INT32_MAX, &top_k, err);
    if (st == SL_OK) st = sl_json_bool(root, "do_sample", SL_JSON_OPTIONAL, &sample, err);
    if (st == SL_OK) st = read_eos(root, m, err);
    if (st != SL_OK) return st;
    bool has_sample = sl_json_kind_of(sl_json_get(root, "do_sample")) == SL_JSON_BOOL;
    *gen = (sl_generation_spec){.temperature = (float)temperature,
                                .top_p = (float)top_p,
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

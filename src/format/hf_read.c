/* What counts in config.json of any family: the one reading, for engine and planner. */
#include "format/hf_config_int.h"

#include <stdio.h>

#define MAX_HEAD_DIM 4096u /* wider ones than the engine's can be planned */

/* Enters the objects that the key names before its dots. */
static sl_status enter(sl_json *obj, const char **key, sl_err *err) {
    char name[64];
    sl_status st = SL_OK;
    for (const char *dot; st == SL_OK && (dot = strchr(*key, '.')); *key = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - *key), *key);
        st = sl_json_object(*obj, name, SL_JSON_REQUIRED, obj, err);
    }
    return st;
}

sl_status sl_hf_u32(sl_json root, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                    uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    if (!key) return SL_OK;
    sl_status st = enter(&root, &key, err);
    if (st == SL_OK) st = sl_json_u64(root, key, need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

sl_status sl_hf_expect_u32(sl_json root, const char *key, uint32_t want, const char *why,
                           sl_err *err) {
    uint32_t v = want;
    sl_status st = sl_hf_u32(root, key, SL_JSON_OPTIONAL, 0, UINT32_MAX, &v, err);
    if (st == SL_OK && v != want)
        st = sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "%u is not %s (%u)", v, why, want);
    return st;
}

/* A number that must be there unless the family gives one. */
static sl_status read_given(sl_json root, const char *key, uint32_t given, uint32_t max,
                            uint32_t *out, sl_err *err) {
    *out = given;
    return sl_hf_u32(root, key, given ? SL_JSON_OPTIONAL : SL_JSON_REQUIRED, 1, max, out, err);
}

static sl_status read_bool(sl_json root, const char *key, bool given, bool *out, sl_err *err) {
    *out = given;
    return key ? sl_json_bool(root, key, SL_JSON_OPTIONAL, out, err) : SL_OK;
}

static sl_status read_sizes(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    const sl_family_keys *k = &f->key;
    sl_status st =
        sl_hf_u32(root, k->layers, SL_JSON_REQUIRED, 1, SL_MAX_LAYERS, &m->n_layers, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->d_model, SL_JSON_REQUIRED, 1, SL_MAX_D_MODEL, &m->d_model, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "vocab_size", SL_JSON_REQUIRED, 1, SL_MAX_VOCAB, &m->vocab, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->max_position, SL_JSON_OPTIONAL, 1, SL_MAX_POSITION,
                       &m->max_position, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->further, SL_JSON_OPTIONAL, 0, SL_MAX_MTP, &m->n_mtp, err);
    return st == SL_OK ? read_bool(root, "tie_word_embeddings", false, &m->tied_head, err) : st;
}

/* What is cached of a position is one head: the latent and the key that is rotated. */
static sl_status read_latents(sl_json root, sl_model_spec *m, sl_err *err) {
    const struct {
        const char *key;
        sl_json_need need;
        uint32_t max, *out;
    } sizes[] = {
        {"q_lora_rank", SL_JSON_OPTIONAL, SL_MAX_D_MODEL, &m->q_lora},
        {"kv_lora_rank", SL_JSON_REQUIRED, SL_MAX_D_MODEL, &m->kv_lora},
        {"qk_nope_head_dim", SL_JSON_REQUIRED, MAX_HEAD_DIM, &m->nope_dim},
        {"qk_rope_head_dim", SL_JSON_REQUIRED, MAX_HEAD_DIM, &m->rope_dim},
        {"v_head_dim", SL_JSON_REQUIRED, MAX_HEAD_DIM, &m->v_dim},
    };
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(sizes); i++)
        st = sl_hf_u32(root, sizes[i].key, sizes[i].need, 1, sizes[i].max, sizes[i].out, err);
    m->head_dim = m->kv_lora + m->rope_dim;
    m->n_kv_heads = 1;
    return st;
}

static sl_status read_heads(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    const sl_family_keys *k = &f->key;
    sl_status st = read_given(root, k->kv_heads, f->given.kv_heads ? f->given.kv_heads : m->n_heads,
                              SL_MAX_HEADS, &m->n_kv_heads, err);
    if (st != SL_OK) return st;
    if (m->n_heads % m->n_kv_heads != 0)
        return sl_json_fail(root, k->kv_heads, err, SL_ERR_FORMAT, "%u does not divide %s %u",
                            m->n_kv_heads, k->heads, m->n_heads);
    m->head_dim = m->d_model / m->n_heads;
    st = sl_hf_u32(root, "head_dim", SL_JSON_OPTIONAL, 1, MAX_HEAD_DIM, &m->head_dim, err);
    if (st == SL_OK && (m->head_dim == 0 || m->head_dim > MAX_HEAD_DIM))
        st = sl_json_fail(root, k->heads, err, SL_ERR_LIMIT,
                          "%u heads of %s %u: a head's width must be 1 to %u", m->n_heads,
                          k->d_model, m->d_model, MAX_HEAD_DIM);
    return st;
}

static sl_status read_window(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    sl_json types = {0};
    m->sliding_window = f->given.window;
    sl_status st =
        sl_hf_u32(root, f->key.window, SL_JSON_OPTIONAL, 1, INT32_MAX, &m->sliding_window, err);
    if (st == SL_OK && f->windows)
        st = sl_json_array(root, "layer_types", SL_JSON_OPTIONAL, &types, err);
    for (uint32_t i = 0; st == SL_OK && i < m->n_layers && m->sliding_window; i++) {
        bool window = !f->windows || i % 2 == 0;
        if (types.value) window = sl_json_is_text(sl_json_at(types, i), SL_HF_SLIDING);
        m->sight[i] = window ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    }
    return st;
}

static sl_status read_attention(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    const sl_family_keys *k = &f->key;
    sl_status st = sl_hf_u32(root, k->heads, SL_JSON_REQUIRED, 1, SL_MAX_HEADS, &m->n_heads, err);
    if (st == SL_OK && f->read_delta) st = f->read_delta(root, m, err);
    if (st == SL_OK) st = read_bool(root, k->bias, f->bias_given, &m->qkv_bias, err);
    if (st == SL_OK) st = read_bool(root, k->qk_norm, f->qk_norm, &m->qk_norm, err);
    if (st == SL_OK) st = f->latent ? read_latents(root, m, err) : read_heads(root, f, m, err);
    return st == SL_OK ? read_window(root, f, m, err) : st;
}

/* Libraries save some classes with another class's name for the number of experts. */
static sl_status read_expert_count(sl_json root, const sl_family *f, sl_model_spec *m,
                                   sl_err *err) {
    const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                f->key.experts};
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
    if (!first) m->n_experts = f->given.experts;
    return m->n_experts ? SL_OK : sl_json_fail(root, f->key.experts, err, SL_ERR_FORMAT, "missing");
}

static sl_status mark_blocks(sl_json root, const char *key, sl_json list, sl_ffn_kind kind,
                             sl_model_spec *m, sl_err *err) {
    for (size_t i = 0; i < sl_json_count(list); i++) {
        uint64_t layer = 0;
        if (!sl_json_as_u64(sl_json_at(list, i), &layer) || layer >= m->n_layers)
            return sl_json_fail(root, key, err, SL_ERR_LIMIT, "entry %zu must be a block, 0 to %u",
                                i, m->n_layers - 1);
        m->ffn[layer] = (uint8_t)kind;
    }
    return SL_OK;
}

static sl_status read_blocks(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    const sl_family_keys *k = &f->key;
    uint32_t every = 1, first = f->given.dense_first;
    sl_json routed = {0}, dense = {0};
    sl_status st =
        read_given(root, k->every, SL_MAX(f->given.every, 1u), SL_MAX_LAYERS, &every, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->dense_first, SL_JSON_OPTIONAL, 0, SL_MAX_LAYERS, &first, err);
    if (st == SL_OK && k->routed)
        st = sl_json_array(root, k->routed, SL_JSON_OPTIONAL, &routed, err);
    if (st == SL_OK && k->dense) st = sl_json_array(root, k->dense, SL_JSON_OPTIONAL, &dense, err);
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->ffn[i] =
            !routed.value && i >= first && (i - first + 1) % every == 0 ? SL_FFN_MOE : SL_FFN_DENSE;
    st = mark_blocks(root, k->routed, routed, SL_FFN_MOE, m, err);
    if (st == SL_OK) st = mark_blocks(root, k->dense, dense, SL_FFN_DENSE, m, err);
    if (st != SL_OK) return st;
    sl_model_number_blocks(m);
    if (m->n_moe == 0)
        return sl_json_fail(root, NULL, err, SL_ERR_UNSUPPORTED,
                            "no block is routed to experts (%s)",
                            routed.value     ? k->routed
                            : k->dense_first ? k->dense_first
                                             : k->every);
    if (m->n_moe == m->n_layers) return SL_OK;
    return sl_hf_u32(root, k->dense_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH, &m->d_ff_dense, err);
}

static sl_status read_shared(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    const sl_family_keys *k = &f->key;
    uint32_t n = f->given.n_shared;
    sl_status st =
        sl_hf_u32(root, k->n_shared, SL_JSON_OPTIONAL, 0, SL_MAX_SHARED_EXPERTS, &n, err);
    if (st == SL_OK && (uint64_t)n * m->d_ff_expert > SL_MAX_WIDTH)
        return sl_json_fail(root, k->n_shared, err, SL_ERR_LIMIT,
                            "%u experts of width %u are wider than %u together", n, m->d_ff_expert,
                            SL_MAX_WIDTH);
    m->d_ff_shared = n * m->d_ff_expert;
    if (st == SL_OK) st = read_bool(root, k->branch, false, &m->dense_branch, err);
    if (m->dense_branch) m->d_ff_shared = m->d_model;
    return st == SL_OK ? sl_hf_u32(root, k->shared_width, SL_JSON_REQUIRED, 1, SL_MAX_WIDTH,
                                   &m->d_ff_shared, err)
                       : st;
}

sl_status sl_hf_read(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    memcpy(m->arch, f->name, strlen(f->name) + 1);
    sl_status st = read_sizes(root, f, m, err);
    if (st == SL_OK) st = read_attention(root, f, m, err);
    if (st == SL_OK) st = read_expert_count(root, f, m, err);
    if (st == SL_OK)
        st = read_given(root, f->key.top_k, f->given.top_k,
                        SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
    if (st == SL_OK)
        st = read_given(root, f->key.expert_width, f->given.expert_width, SL_MAX_WIDTH,
                        &m->d_ff_expert, err);
    if (st == SL_OK) st = read_shared(root, f, m, err);
    return st == SL_OK ? read_blocks(root, f, m, err) : st;
}

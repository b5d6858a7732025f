#include "format/gguf_config.h"

#include "format/hf_config.h"

#include <stdio.h>

static const sl_gguf_arch archs[] = {
    {"llama", "MixtralForCausalLM", false, true, true, false, false, "feed_forward_length"},
    {"qwen3moe", "Qwen3MoeForCausalLM", true, false, true, false, false,
     "expert_feed_forward_length"},
    {"qwen2moe", "Qwen2MoeForCausalLM", false, false, false, true, false,
     "expert_feed_forward_length"},
    {"llama4", "Llama4ForCausalLM", false, true, false, false, true, "expert_feed_forward_length"},
};

/* Keys below the name of the architecture that are read here, or that change nothing. */
static const char *const known[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "expert_gating_func",
    "interleave_moe_layer_step",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "vocab_size",
};

/* Tokens that llama.cpp takes for the end of a generation by their text, when they are control
 * tokens. */
static const char *const end_tokens[] = {
    "<|im_end|>", "<|endoftext|>",   "<|eot_id|>",    "<|eom_id|>",
    "<|end|>",    "<|end_of_text|>", "<end_of_turn>",
};

enum { TOKEN_CONTROL = 3 };

typedef struct reading {
    const sl_gguf *g;
    const sl_gguf_arch *arch;
    sl_model_spec *m;
    char key[128]; /* the last one asked for */
} reading;

static const char *key_of(reading *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch->name, name);
    return r->key;
}

static sl_status read_u32(reading *r, const char *name, sl_gguf_need need, uint32_t min,
                          uint32_t max, uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_gguf_u64(r->g, key_of(r, name), need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

const sl_gguf_arch *sl_gguf_arch_of_class(const char *class) {
    for (size_t i = 0; i < SL_LEN(archs); i++)
        if (strcmp(archs[i].class, class) == 0) return &archs[i];
    return NULL;
}

static bool is(sl_span s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static sl_status read_arch(reading *r, sl_err *err) {
    sl_span name = {0};
    char names[128] = "";
    sl_status st = sl_gguf_string(r->g, "general.architecture", SL_GGUF_REQUIRED, &name, err);
    if (st != SL_OK) return st;
    for (size_t i = 0, at = 0; i < SL_LEN(archs); i++) {
        if (is(name, archs[i].name)) r->arch = &archs[i];
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", archs[i].name);
    }
    if (!r->arch)
        return sl_gguf_fail(r->g, "general.architecture", err, SL_ERR_UNSUPPORTED,
                            "\"%.*s\" is not supported (supported: %s)",
                            (int)SL_MIN(name.len, (size_t)64), (const char *)name.data, names);
    snprintf(r->m->arch, sizeof r->m->arch, "%s", r->arch->class);
    r->m->qk_norm = r->arch->qk_norm;
    r->m->rope_pairs = r->arch->rope_pairs;
    return SL_OK;
}

static sl_status check_keys(reading *r, sl_err *err) {
    size_t prefix = strlen(r->arch->name);
    for (size_t i = 0; i < sl_gguf_keys(r->g); i++) {
        sl_span key = sl_gguf_key_at(r->g, i)->key;
        bool found = false;
        if (key.len <= prefix || memcmp(key.data, r->arch->name, prefix) != 0 ||
            key.data[prefix] != '.')
            continue;
        sl_span rest = {key.data + prefix + 1, key.len - prefix - 1};
        for (size_t j = 0; j < SL_LEN(known); j++) found = found || is(rest, known[j]);
        if (!found)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED, "%s: %.*s: unknown key; ignoring it could change results",
                sl_gguf_path(r->g), (int)SL_MIN(key.len, (size_t)200), (const char *)key.data);
    }
    return SL_OK;
}

static sl_status read_sizes(reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    double eps = 0, theta = 10000;
    const sl_gguf_tensor *embed = sl_gguf_tensor_find(r->g, "token_embd.weight");
    sl_status st = read_u32(r, "embedding_length", SL_GGUF_REQUIRED, 1, 1u << 17, &m->d_model, err);
    if (st == SL_OK)
        st = read_u32(r, "block_count", SL_GGUF_REQUIRED, 1, SL_MAX_LAYERS, &m->n_layers, err);
    if (st == SL_OK)
        st = read_u32(r, "context_length", SL_GGUF_REQUIRED, 1, 1u << 30, &m->max_position, err);
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, key_of(r, "attention.layer_norm_rms_epsilon"), SL_GGUF_REQUIRED, 0,
                         1, &eps, err);
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, key_of(r, "rope.freq_base"), SL_GGUF_OPTIONAL, 1, 1e12, &theta, err);
    if (st != SL_OK) return st;
    if (!embed || embed->n_dims != 2 || embed->dim[0] > 1u << 24)
        return sl_fail(
            err, SL_ERR_FORMAT,
            "%s: tensor \"token_embd.weight\" is %s, expected a matrix of at most %u rows",
            sl_gguf_path(r->g), embed ? "of another shape" : "missing", 1u << 24);
    m->vocab = (uint32_t)embed->dim[0];
    m->rms_eps = (float)eps;
    m->rope_theta = (float)theta;
    m->tied_head = !sl_gguf_tensor_find(r->g, "output.weight");
    m->qkv_bias = sl_gguf_tensor_find(r->g, "blk.0.attn_q.bias") != NULL;
    return SL_OK;
}

/* A number, or an array of one number a block that are all the same. */
static sl_status read_kv_heads(reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    const char *key = key_of(r, "attention.head_count_kv");
    const sl_gguf_kv *kv = sl_gguf_find(r->g, key);
    m->n_kv_heads = m->n_heads;
    if (!kv || !kv->array)
        return read_u32(r, "attention.head_count_kv", SL_GGUF_OPTIONAL, 1, 4096, &m->n_kv_heads,
                        err);
    sl_status st = sl_gguf_numbers(r->g, key, SL_GGUF_REQUIRED, &kv, err);
    if (st != SL_OK) return st;
    double first = sl_gguf_number_at(kv, 0);
    bool same = kv->count == m->n_layers && first >= 1 && first <= 4096;
    for (uint64_t i = 1; same && i < kv->count; i++) same = sl_gguf_number_at(kv, i) == first;
    if (!same)
        return sl_gguf_fail(r->g, key, err, SL_ERR_UNSUPPORTED,
                            "not the same number from 1 to 4096 for each of %u blocks",
                            m->n_layers);
    m->n_kv_heads = (uint32_t)first;
    return SL_OK;
}

/* A key that may only say what `want` says. */
static sl_status expect(reading *r, const char *name, uint32_t want, sl_err *err) {
    uint32_t v = want;
    sl_status st = read_u32(r, name, SL_GGUF_OPTIONAL, 0, UINT32_MAX, &v, err);
    if (st == SL_OK && v != want)
        st = sl_gguf_fail(r->g, key_of(r, name), err, SL_ERR_UNSUPPORTED,
                          "%u is not supported here, only %u", v, want);
    return st;
}

static sl_status read_attention(reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    sl_span scaling = {(const uint8_t *)"none", 4};
    sl_status st = read_u32(r, "attention.head_count", SL_GGUF_REQUIRED, 1, 4096, &m->n_heads, err);
    if (st == SL_OK) st = read_kv_heads(r, err);
    if (st != SL_OK) return st;
    if (m->n_heads % m->n_kv_heads != 0)
        return sl_gguf_fail(r->g, key_of(r, "attention.head_count_kv"), err, SL_ERR_FORMAT,
                            "%u does not divide the %u heads", m->n_kv_heads, m->n_heads);
    m->head_dim = m->d_model / m->n_heads;
    st = read_u32(r, "attention.key_length", SL_GGUF_OPTIONAL, 2, 1024, &m->head_dim, err);
    if (st != SL_OK) return st;
    if (m->head_dim == 0 || m->head_dim > 1024 || m->head_dim % 2 != 0)
        return sl_gguf_fail(r->g, key_of(r, "attention.key_length"), err, SL_ERR_LIMIT,
                            "%u must be even, 2 to 1024", m->head_dim);
    st = expect(r, "attention.value_length", m->head_dim, err);
    if (st == SL_OK) st = expect(r, "rope.dimension_count", m->head_dim, err);
    m->rope_dim = m->head_dim;
    if (st == SL_OK)
        st = sl_gguf_string(r->g, key_of(r, "rope.scaling.type"), SL_GGUF_OPTIONAL, &scaling, err);
    if (st == SL_OK && !is(scaling, "none"))
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_UNSUPPORTED,
                          "\"%.*s\" is not supported (supported: \"none\")",
                          (int)SL_MIN(scaling.len, (size_t)40), (const char *)scaling.data);
    if (st == SL_OK)
        st = read_u32(r, "attention.sliding_window", SL_GGUF_OPTIONAL, 0, INT32_MAX,
                      &m->sliding_window, err);
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->sight[i] = m->sliding_window ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    return st;
}

/* A block is routed when it has a router. */
static sl_status read_blocks(reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", i);
        m->ffn[i] = sl_gguf_tensor_find(r->g, name) ? SL_FFN_MOE : SL_FFN_DENSE;
        if (m->ffn[i] != SL_FFN_MOE) continue;
        m->moe_index[i] = (uint16_t)m->n_moe;
        m->moe_layer[m->n_moe++] = (uint16_t)i;
    }
    if (m->n_moe == 0)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s: no block has a router (blk.N.ffn_gate_inp.weight): not a model of experts",
            sl_gguf_path(r->g));
    if (m->n_moe == m->n_layers) return SL_OK;
    return read_u32(r, "feed_forward_length", SL_GGUF_REQUIRED, 1, 1u << 20, &m->d_ff_dense, err);
}

/* Which blocks are routed is said by their routers; the rest as llama.cpp takes it. */
static void take_llama4(reading *r) {
    sl_model_spec *m = r->m;
    bool chunks = !sl_gguf_find(r->g, key_of(r, "attention.sliding_window")) || m->sliding_window;
    m->sliding_window = 0;
    m->gate_input = true;
    m->qk_unit = m->n_experts != 128;
    m->d_ff_shared = m->d_ff_expert;
    m->attn_chunk = chunks ? SL_GGUF_LLAMA4_CHUNK : 0;
    m->query_floor = chunks ? (float)SL_GGUF_LLAMA4_CHUNK : 0;
    m->query_growth = chunks ? SL_GGUF_LLAMA4_GROWTH : 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        m->unrotated[i] = chunks && (i + 1) % SL_GGUF_LLAMA4_EVERY == 0;
        m->sight[i] = chunks && !m->unrotated[i] ? SL_SIGHT_CHUNK : SL_SIGHT_ALL;
    }
}

static sl_status read_experts(reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    double scale = 1;
    m->norm_topk = r->arch->norm_topk;
    sl_status st =
        read_u32(r, "expert_count", SL_GGUF_REQUIRED, 1, SL_MAX_EXPERTS, &m->n_experts, err);
    if (st == SL_OK)
        st = read_u32(r, "expert_used_count", SL_GGUF_REQUIRED, 1,
                      SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
    if (st == SL_OK)
        st = read_u32(r, r->arch->width, SL_GGUF_REQUIRED, 1, 1u << 20, &m->d_ff_expert, err);
    if (st == SL_OK && r->arch->shared)
        st = read_u32(r, "expert_shared_feed_forward_length", SL_GGUF_REQUIRED, 1, 1u << 20,
                      &m->d_ff_shared, err);
    if (st == SL_OK && !r->arch->shared)
        st = expect(r, "expert_shared_feed_forward_length", 0, err);
    if (st == SL_OK) st = expect(r, "expert_shared_count", 0, err);
    if (st == SL_OK)
        st = expect(r, "expert_gating_func", r->arch->llama4 ? 2 : 1, err); /* sigmoid, softmax */
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, key_of(r, "expert_weights_scale"), SL_GGUF_OPTIONAL, 1, 1, &scale,
                         err);
    if (st == SL_OK)
        st = sl_gguf_bool(r->g, key_of(r, "expert_weights_norm"), SL_GGUF_OPTIONAL, &m->norm_topk,
                          err);
    if (st == SL_OK && r->arch->llama4) take_llama4(r);
    return st == SL_OK ? read_blocks(r, err) : st;
}

static sl_status add_eos(reading *r, const char *key, uint64_t id, sl_err *err) {
    sl_model_spec *m = r->m;
    if (id >= m->vocab)
        return sl_gguf_fail(r->g, key, err, SL_ERR_LIMIT, "%llu, limit 0 to %u",
                            (unsigned long long)id, m->vocab - 1);
    for (uint32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id) return SL_OK;
    if (m->n_eos == SL_MAX_EOS)
        return sl_gguf_fail(r->g, key, err, SL_ERR_LIMIT, "more than %d ids", SL_MAX_EOS);
    m->eos[m->n_eos++] = (uint32_t)id;
    return SL_OK;
}

/* Control tokens whose text says that they end a generation. */
static sl_status add_end_tokens(reading *r, sl_err *err) {
    static const char key[] = "tokenizer.ggml.tokens";
    const sl_gguf_kv *tokens = NULL, *kinds = NULL;
    sl_status st = sl_gguf_strings(r->g, key, SL_GGUF_OPTIONAL, &tokens, err);
    if (st == SL_OK)
        st = sl_gguf_numbers(r->g, "tokenizer.ggml.token_type", SL_GGUF_OPTIONAL, &kinds, err);
    size_t at = 0;
    sl_span text;
    for (uint64_t i = 0; st == SL_OK && tokens && kinds; i++) {
        if (!sl_gguf_next_string(tokens, &at, &text)) break;
        if (text.len < 5 || text.data[0] != '<' || i >= kinds->count) continue;
        if (sl_gguf_number_at(kinds, i) != TOKEN_CONTROL) continue;
        for (size_t j = 0; st == SL_OK && j < SL_LEN(end_tokens); j++)
            if (is(text, end_tokens[j])) st = add_eos(r, key, i, err);
    }
    return st;
}

/* sluice.eos_token_ids, which `sluice convert` writes, is the whole list; other files name one or
 * two, and leave the rest to the texts of their tokens. */
static sl_status read_eos(reading *r, sl_err *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char all[] = "sluice.eos_token_ids";
    const sl_gguf_kv *list = NULL;
    uint64_t none = UINT64_MAX, id = none;
    sl_status st = sl_gguf_u64(r->g, "tokenizer.ggml.bos_token_id", SL_GGUF_OPTIONAL, 0,
                               r->m->vocab - 1, &id, err);
    r->m->bos = id == none ? -1 : (int64_t)id;
    if (st == SL_OK) st = sl_gguf_numbers(r->g, all, SL_GGUF_OPTIONAL, &list, err);
    for (uint64_t i = 0; st == SL_OK && list && i < list->count; i++)
        st = add_eos(r, all, (uint64_t)SL_MAX(sl_gguf_number_at(list, i), 0), err);
    if (st != SL_OK || list) return st;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(keys); i++) {
        id = none;
        st = sl_gguf_u64(r->g, keys[i], SL_GGUF_OPTIONAL, 0, UINT32_MAX, &id, err);
        if (st == SL_OK && id != none) st = add_eos(r, keys[i], id, err);
    }
    return st == SL_OK ? add_end_tokens(r, err) : st;
}

static sl_status read_sampling(reading *r, sl_generation_spec *gen, sl_err *err) {
    double temperature = -1, top_p = -1;
    uint64_t top_k = UINT64_MAX;
    *gen = sl_hf_generation_none();
    sl_status st =
        sl_gguf_f64(r->g, "general.sampling.temp", SL_GGUF_OPTIONAL, 0, 100, &temperature, err);
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, "general.sampling.top_p", SL_GGUF_OPTIONAL, 0, 1, &top_p, err);
    if (st == SL_OK)
        st = sl_gguf_u64(r->g, "general.sampling.top_k", SL_GGUF_OPTIONAL, 0, INT32_MAX, &top_k,
                         err);
    if (temperature >= 0) gen->temperature = (float)temperature;
    if (top_p > 0) gen->top_p = (float)top_p;
    if (top_k != UINT64_MAX) gen->top_k = (int32_t)top_k;
    return st;
}

sl_status sl_gguf_config_parse(const sl_gguf *g, sl_model_spec *spec, sl_generation_spec *gen,
                               sl_err *err) {
    sl_model_spec m = {.bos = -1};
    sl_generation_spec sampling;
    reading r = {.g = g, .m = &m};
    sl_status st = read_arch(&r, err);
    if (st == SL_OK) st = check_keys(&r, err);
    if (st == SL_OK) st = read_sizes(&r, err);
    if (st == SL_OK) st = read_attention(&r, err);
    if (st == SL_OK) st = read_experts(&r, err);
    if (st == SL_OK) st = read_eos(&r, err);
    if (st == SL_OK) st = read_sampling(&r, &sampling, err);
    if (st != SL_OK) return st;
    *spec = m;
    if (gen) *gen = sampling;
    return SL_OK;
}

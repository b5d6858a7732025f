/* Metadata of a GGUF file, but for attention (gguf_attention.c): each key is read, known or
 * refused. */
#include "format/gguf_config_int.h"

#include "format/hf_config.h"

#include <stdio.h>

/* Keys below the name of the architecture that are read here, or that change nothing; `of`: only
 * where an architecture has one of these, 0: anywhere. */
static const struct {
    const char *name;
    uint32_t of;
} known[] = {
    {"block_count", 0},
    {"context_length", 0},
    {"embedding_length", 0},
    {"feed_forward_length", 0},
    {SL_GGUF_EXPERT_WIDTH, 0},
    {"expert_shared_feed_forward_length", 0},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"expert_weights_norm", 0},
    {"expert_weights_scale", 0},
    {"expert_gating_func", 0},
    {"expert_group_count", 0},
    {"expert_group_used_count", 0},
    {"leading_dense_block_count", SL_GGUF_LEADING},
    {"nextn_predict_layers", SL_GGUF_FURTHER},
    {"interleave_moe_layer_step", SL_GGUF_LLAMA4},
    {"attention.head_count", 0},
    {"attention.head_count_kv", 0},
    {"attention.key_length", 0},
    {"attention.value_length", 0},
    {"attention.key_length_mla", SL_GGUF_LATENT},
    {"attention.value_length_mla", SL_GGUF_LATENT},
    {"attention.q_lora_rank", SL_GGUF_LATENT},
    {"attention.kv_lora_rank", SL_GGUF_LATENT},
    {"attention.layer_norm_rms_epsilon", 0},
    {"attention.layer_norm_epsilon", SL_GGUF_CLAMP},
    {"attention.clamp_kqv", SL_GGUF_CLAMP},
    {"attention.sliding_window", 0},
    {"attention.sliding_window_pattern", SL_GGUF_WINDOWS},
    {"full_attention_interval", SL_GGUF_LINEAR},
    {"attention.recurrent_layers", SL_GGUF_LINEAR},
    {"ssm.conv_kernel", SL_GGUF_LINEAR},
    {"ssm.inner_size", SL_GGUF_LINEAR},
    {"ssm.state_size", SL_GGUF_LINEAR},
    {"ssm.time_step_rank", SL_GGUF_LINEAR},
    {"ssm.group_count", SL_GGUF_LINEAR},
    {"rope.freq_base", 0},
    {"rope.dimension_count", 0},
    {"rope.scaling.type", 0},
    {"rope.scaling.factor", SL_GGUF_YARN},
    {"rope.scaling.original_context_length", SL_GGUF_YARN},
    {"rope.scaling.finetuned", SL_GGUF_YARN},
    {"rope.scaling.yarn_ext_factor", SL_GGUF_YARN},
    {"rope.scaling.yarn_beta_fast", SL_GGUF_YARN},
    {"rope.scaling.yarn_beta_slow", SL_GGUF_YARN},
    {"rope.scaling.yarn_log_multiplier", SL_GGUF_LATENT},
    {"vocab_size", 0},
};

/* Tokens that llama.cpp takes for the end of a generation by their text, when they are control
 * tokens. */
static const char *const end_tokens[] = {
    "<|im_end|>",      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<|end_of_text|>", "<end_of_turn>", "<|return|>", "<|call|>",
};

enum { TOKEN_CONTROL = 3 };

const sl_gguf_arch *sl_gguf_arch_of_class(const char *class) {
    const sl_family *f = sl_family_of_class((sl_span){(const uint8_t *)class, strlen(class)});
    return f && f->gguf.name ? &f->gguf : NULL;
}

static uint32_t gating_of(const sl_gguf_arch *a) {
    return a->gating ? a->gating : SL_GGUF_GATE_SOFTMAX;
}

static bool is_named(const sl_family *f, sl_span name) {
    return f->gguf.name && sl_span_is(name, f->gguf.name);
}

/* Of two families of one name that whose gating the file states. */
static sl_status choose_family(sl_gguf_reading *r, const sl_family *other, sl_err *err) {
    uint32_t gating = gating_of(r->arch);
    sl_status st =
        sl_gguf_read_u32(r, "expert_gating_func", SL_GGUF_OPTIONAL, 0, UINT32_MAX, &gating, err);
    if (st == SL_OK && gating == gating_of(&other->gguf))
        r->family = other;
    else if (st == SL_OK && gating != gating_of(r->arch))
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_UNSUPPORTED,
                          "%u is not supported here, only %u and %u", gating, gating_of(r->arch),
                          gating_of(&other->gguf));
    r->arch = &r->family->gguf;
    return st;
}

static sl_status refuse_name(const sl_gguf_reading *r, sl_span name, sl_err *err) {
    char names[256] = "";
    const char *last = "";
    for (size_t i = 0, at = 0; i < sl_n_families; i++) {
        const char *n = sl_families[i]->gguf.name;
        if (!n || strcmp(n, last) == 0) continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", n);
        last = n;
    }
    return sl_gguf_fail(r->g, "general.architecture", err, SL_ERR_UNSUPPORTED,
                        "\"%.*s\" is not supported (supported: %s)",
                        (int)SL_MIN(name.len, (size_t)64), (const char *)name.data, names);
}

static sl_status read_arch(sl_gguf_reading *r, sl_err *err) {
    sl_span name = {0};
    const sl_family *other = NULL;
    sl_status st = sl_gguf_string(r->g, "general.architecture", SL_GGUF_REQUIRED, &name, err);
    if (st != SL_OK) return st;
    for (size_t i = 0; i < sl_n_families; i++) {
        if (!is_named(sl_families[i], name)) continue;
        if (r->family)
            other = sl_families[i];
        else
            r->family = sl_families[i];
    }
    if (!r->family) return refuse_name(r, name, err);
    r->arch = &r->family->gguf;
    if (other) st = choose_family(r, other, err);
    snprintf(r->m->arch, sizeof r->m->arch, "%s", r->family->name);
    r->m->qk_norm = r->family->qk_norm;
    r->m->rope_pairs = r->arch->rope_pairs;
    return st;
}

static bool is_known(const sl_gguf_arch *a, sl_span name) {
    for (size_t i = 0; i < SL_LEN(known); i++)
        if ((known[i].of == 0 || known[i].of & a->has) && sl_span_is(name, known[i].name))
            return true;
    return false;
}

static sl_status check_keys(sl_gguf_reading *r, sl_err *err) {
    size_t prefix = strlen(r->arch->name);
    for (size_t i = 0; i < sl_gguf_keys(r->g); i++) {
        sl_span key = sl_gguf_key_at(r->g, i)->key;
        if (key.len <= prefix || memcmp(key.data, r->arch->name, prefix) != 0 ||
            key.data[prefix] != '.')
            continue;
        if (!is_known(r->arch, (sl_span){key.data + prefix + 1, key.len - prefix - 1}))
            return sl_fail(
                err, SL_ERR_UNSUPPORTED, "%s: %.*s: unknown key; ignoring it could change results",
                sl_gguf_path(r->g), (int)SL_MIN(key.len, (size_t)200), (const char *)key.data);
    }
    return SL_OK;
}

/* Blocks that are run; those behind them are counted in block_count, too. */
static sl_status read_block_count(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    sl_status st =
        sl_gguf_read_u32(r, "block_count", SL_GGUF_REQUIRED, 1, SL_MAX_LAYERS, &m->n_layers, err);
    if (st == SL_OK && r->arch->has & SL_GGUF_FURTHER)
        st = sl_gguf_read_u32(r, "nextn_predict_layers", SL_GGUF_OPTIONAL, 0,
                              SL_MIN(m->n_layers - 1, SL_MAX_MTP), &m->n_mtp, err);
    m->n_layers -= m->n_mtp;
    return st;
}

static sl_status read_sizes(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    double eps = 0, theta = 10000;
    const char *eps_key = r->arch->eps ? r->arch->eps : "attention.layer_norm_rms_epsilon";
    const sl_gguf_tensor *embed = sl_gguf_tensor_find(r->g, "token_embd.weight");
    sl_status st = sl_gguf_read_u32(r, "embedding_length", SL_GGUF_REQUIRED, 1, SL_MAX_D_MODEL,
                                    &m->d_model, err);
    if (st == SL_OK) st = read_block_count(r, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "context_length", SL_GGUF_REQUIRED, 1, SL_MAX_POSITION,
                              &m->max_position, err);
    if (st == SL_OK) st = sl_gguf_read_f64(r, eps_key, SL_GGUF_REQUIRED, 0, 1, &eps, err);
    if (st == SL_OK)
        st = sl_gguf_read_f64(r, "rope.freq_base", SL_GGUF_OPTIONAL, 1, 1e12, &theta, err);
    if (st != SL_OK) return st;
    if (!embed || embed->n_dims != 2 || embed->dim[0] > SL_MAX_VOCAB)
        return sl_fail(
            err, SL_ERR_FORMAT,
            "%s: tensor \"token_embd.weight\" is %s, expected a matrix of at most %u rows",
            sl_gguf_path(r->g), embed ? "of another shape" : "missing", SL_MAX_VOCAB);
    m->vocab = (uint32_t)embed->dim[0];
    m->rms_eps = (float)eps;
    m->rope_theta = (float)theta;
    m->tied_head = !sl_gguf_tensor_find(r->g, "output.weight");
    m->qkv_bias = sl_gguf_tensor_find(r->g, "blk.0.attn_q.bias") != NULL;
    if (r->arch->has & SL_GGUF_NORM_MAY)
        m->qk_norm = sl_gguf_tensor_find(r->g, "blk.0.attn_q_norm.weight") != NULL;
    return SL_OK;
}

/* A block is routed when it has a router. */
static sl_status read_blocks(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", i);
        m->ffn[i] = sl_gguf_tensor_find(r->g, name) ? SL_FFN_MOE : SL_FFN_DENSE;
    }
    sl_model_number_blocks(m);
    if (m->n_moe == 0)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s: no block has a router (blk.N.ffn_gate_inp.weight): not a model of experts",
            sl_gguf_path(r->g));
    uint32_t first = m->moe_layer[0], leading = first;
    sl_status st = SL_OK;
    if (r->arch->has & SL_GGUF_LEADING)
        st = sl_gguf_read_u32(r, "leading_dense_block_count", SL_GGUF_OPTIONAL, 0, SL_MAX_LAYERS,
                              &leading, err);
    if (st == SL_OK && leading != first)
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_FORMAT,
                          "%u, but the first block with a router is %u", leading, first);
    if (st != SL_OK || m->n_moe == m->n_layers) return st;
    return sl_gguf_read_u32(r, "feed_forward_length", SL_GGUF_REQUIRED, 1, SL_MAX_WIDTH,
                            &m->d_ff_dense, err);
}

/* Which blocks are routed is said by their routers; the rest as llama.cpp takes it. */
static void take_llama4(sl_gguf_reading *r) {
    sl_model_spec *m = r->m;
    bool chunks =
        !sl_gguf_find(r->g, sl_gguf_key(r, "attention.sliding_window")) || m->sliding_window;
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

static sl_status read_shared(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    uint32_t has = r->arch->has, n = 0;
    sl_status st = has & SL_GGUF_SHARED_WIDTH
                       ? sl_gguf_read_u32(r, "expert_shared_feed_forward_length", SL_GGUF_REQUIRED,
                                          1, SL_MAX_WIDTH, &m->d_ff_shared, err)
                       : sl_gguf_expect(r, "expert_shared_feed_forward_length", 0, err);
    if (st == SL_OK && !(has & SL_GGUF_SHARED_COUNT))
        return sl_gguf_expect(r, "expert_shared_count", 0, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "expert_shared_count", SL_GGUF_REQUIRED, 1, SL_MAX_SHARED_EXPERTS,
                              &n, err);
    m->d_ff_shared = n * m->d_ff_expert;
    return st;
}

/* Files of DeepSeek-V2 that name no groups know none; a router of sigmoids takes them for one. */
static sl_status read_groups(sl_gguf_reading *r, sl_err *err) {
    static const char count[] = "expert_group_count", used[] = "expert_group_used_count";
    sl_model_spec *m = r->m;
    uint32_t n = 1, top = 1;
    if (!(r->arch->has & SL_GGUF_GROUPS)) {
        sl_status st = sl_gguf_expect(r, count, 0, err);
        return st == SL_OK ? sl_gguf_expect(r, used, 0, err) : st;
    }
    sl_status st = sl_gguf_read_u32(r, count, SL_GGUF_OPTIONAL, 0, SL_MAX_GROUPS, &n, err);
    n = SL_MAX(n, 1u);
    if (st == SL_OK && n > 1 && (m->n_experts % n != 0 || m->n_experts / n < 2))
        return sl_gguf_fail(r->g, r->key, err, SL_ERR_FORMAT,
                            "%u does not cut %u experts into equal groups of 2 or more", n,
                            m->n_experts);
    if (st == SL_OK && n > 1) st = sl_gguf_read_u32(r, used, SL_GGUF_REQUIRED, 1, n, &top, err);
    if (st == SL_OK && top * (m->n_experts / n) < m->top_k)
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_FORMAT,
                          "%u groups of %u experts are fewer than expert_used_count %u", top,
                          m->n_experts / n, m->top_k);
    bool sigmoid = r->arch->gating == SL_GGUF_GATE_SIGMOID;
    m->n_groups = sigmoid || n > 1 ? n : 0;
    m->top_groups = sigmoid || n > 1 ? top : 0;
    return st;
}

/* How logits of a router become weights. */
static sl_status read_router(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    bool scaled = r->arch->has & SL_GGUF_SCALE;
    double scale = 1, least = scaled ? 0 : 1, most = scaled ? 1e6 : 1;
    m->norm_topk = r->arch->norm_topk;
    sl_status st = sl_gguf_expect(r, "expert_gating_func", gating_of(r->arch), err);
    if (st == SL_OK) st = read_groups(r, err);
    if (st == SL_OK)
        st =
            sl_gguf_read_f64(r, "expert_weights_scale", SL_GGUF_OPTIONAL, least, most, &scale, err);
    if (scaled) m->route_scale = scale > 0 ? (float)scale : 1; /* 0: readers leave it at 1 */
    if (st == SL_OK)
        st = sl_gguf_bool(r->g, sl_gguf_key(r, "expert_weights_norm"), SL_GGUF_OPTIONAL,
                          &m->norm_topk, err);
    return st;
}

/* What a file takes for granted by its architecture alone. */
static void take_granted(sl_gguf_reading *r) {
    sl_model_spec *m = r->m;
    if (r->arch->has & SL_GGUF_LLAMA4) take_llama4(r);
    if (r->arch->has & SL_GGUF_GPT_OSS) m->glu_limit = SL_GGUF_GPT_OSS_LIMIT;
    if (!(r->arch->has & SL_GGUF_BRANCH)) return;
    m->dense_branch = true;
    m->d_ff_shared = m->d_model;
}

static sl_status read_experts(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    sl_status st = sl_gguf_read_u32(r, "expert_count", SL_GGUF_REQUIRED, 1, SL_MAX_EXPERTS,
                                    &m->n_experts, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "expert_used_count", SL_GGUF_REQUIRED, 1,
                              SL_MIN(m->n_experts, (uint32_t)SL_MAX_TOP_K), &m->top_k, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, r->arch->width, SL_GGUF_REQUIRED, 1, SL_MAX_WIDTH, &m->d_ff_expert,
                              err);
    if (st == SL_OK) st = read_shared(r, err);
    if (st == SL_OK) st = read_router(r, err);
    if (st != SL_OK) return st;
    take_granted(r);
    return read_blocks(r, err);
}

static sl_status add_eos(sl_gguf_reading *r, const char *key, uint64_t id, sl_err *err) {
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
static sl_status add_end_tokens(sl_gguf_reading *r, sl_err *err) {
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
        if (r->arch->has & SL_GGUF_GPT_OSS && sl_span_is(text, "<|end|>"))
            continue; /* of a message, not of an answer */
        for (size_t j = 0; st == SL_OK && j < SL_LEN(end_tokens); j++)
            if (sl_span_is(text, end_tokens[j])) st = add_eos(r, key, i, err);
    }
    return st;
}

/* sluice.eos_token_ids, which `sluice convert` writes, is the whole list; other files name one or
 * two, and leave the rest to the texts of their tokens. */
static sl_status read_eos(sl_gguf_reading *r, sl_err *err) {
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

static sl_status read_sampling(sl_gguf_reading *r, sl_generation_spec *gen, sl_err *err) {
    double temperature = -1, top_p = -1, repetition = -1;
    uint64_t top_k = UINT64_MAX;
    *gen = sl_hf_generation_none();
    sl_status st = sl_gguf_f64(r->g, "general.sampling.temp", SL_GGUF_OPTIONAL, 0,
                               SL_MAX_TEMPERATURE, &temperature, err);
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, "general.sampling.top_p", SL_GGUF_OPTIONAL, 0, 1, &top_p, err);
    if (st == SL_OK)
        st = sl_gguf_u64(r->g, "general.sampling.top_k", SL_GGUF_OPTIONAL, 0, INT32_MAX, &top_k,
                         err);
    if (st == SL_OK)
        st = sl_gguf_f64(r->g, "general.sampling.penalty_repeat", SL_GGUF_OPTIONAL, 0,
                         SL_MAX_REPETITION, &repetition, err);
    if (repetition > 0) gen->repetition_penalty = (float)repetition;
    if (temperature >= 0) gen->temperature = (float)temperature;
    if (top_p > 0) gen->top_p = (float)top_p;
    if (top_k != UINT64_MAX) gen->top_k = (int32_t)top_k;
    return st;
}

sl_status sl_gguf_config_parse(const sl_gguf *g, sl_model_spec *spec, sl_generation_spec *gen,
                               sl_err *err) {
    sl_model_spec m = {.bos = -1};
    sl_generation_spec sampling;
    sl_gguf_reading r = {.g = g, .m = &m};
    sl_status st = read_arch(&r, err);
    if (st == SL_OK) st = check_keys(&r, err);
    if (st == SL_OK) st = read_sizes(&r, err);
    if (st == SL_OK) st = sl_gguf_read_attention(&r, err);
    if (st == SL_OK) st = read_experts(&r, err);
    if (st == SL_OK) st = read_eos(&r, err);
    if (st == SL_OK) st = read_sampling(&r, &sampling, err);
    if (st != SL_OK) return st;
    *spec = m;
    if (gen) *gen = sampling;
    return SL_OK;
}

/* What config.json says as keys of a GGUF file, and what of it has none. */
#include "model/convert_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct writing {
    const sl_model_spec *s;
    const sl_gguf_arch *a;
    sl_gguf_out *w;
    char key[128];
} writing;

static const char *key_of(writing *x, const char *name) {
    snprintf(x->key, sizeof x->key, "%s.%s", x->a->name, name);
    return x->key;
}

static void put_u32(writing *x, const char *name, uint32_t v) {
    sl_gguf_out_u32(x->w, key_of(x, name), v);
}

static void put_f32(writing *x, const char *name, float v) {
    sl_gguf_out_f32(x->w, key_of(x, name), v);
}

/* general.file_type of llama.cpp. */
static uint32_t file_type(sl_dtype t) {
    switch (t) {
    case SL_F32:
        return 0;
    case SL_F16:
        return 1;
    case SL_BF16:
        return 32;
    case SL_Q8_0:
        return 7;
    case SL_Q4_0:
        return 2;
    case SL_MXFP4:
        return 38;
    default:
        return 15;
    }
}

static sl_span text_of(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static void put_general(writing *x, const sl_model *m, sl_dtype type) {
    const char *folder = m->folder;
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/') begin--;
    sl_gguf_out_string(x->w, "general.architecture", text_of(x->a->name));
    sl_gguf_out_string(x->w, "general.name",
                       (sl_span){(const uint8_t *)folder + begin, end - begin});
    sl_gguf_out_u32(x->w, "general.alignment", SL_GGUF_ALIGN);
    sl_gguf_out_u32(x->w, "general.file_type", file_type(type));
    sl_gguf_out_u32(x->w, "general.quantization_version", 2);
    const sl_generation_spec *gen = &m->gen;
    if (gen->temperature >= 0) sl_gguf_out_f32(x->w, "general.sampling.temp", gen->temperature);
    if (gen->top_p >= 0) sl_gguf_out_f32(x->w, "general.sampling.top_p", gen->top_p);
    if (gen->repetition_penalty > 0)
        sl_gguf_out_f32(x->w, "general.sampling.penalty_repeat", gen->repetition_penalty);
    if (gen->top_k >= 0) sl_gguf_out_u32(x->w, "general.sampling.top_k", (uint32_t)gen->top_k);
}

/* Keys and values as they are cached, and of a head once they are expanded. llama.cpp asks for
 * q_lora_rank also where queries have no latent. */
static void put_latents(writing *x) {
    const sl_model_spec *s = x->s;
    put_u32(x, "attention.head_count_kv", 1);
    put_u32(x, "attention.q_lora_rank", s->q_lora);
    put_u32(x, "attention.kv_lora_rank", s->kv_lora);
    put_u32(x, "attention.key_length", s->head_dim);
    put_u32(x, "attention.value_length", s->kv_lora);
    put_u32(x, "attention.key_length_mla", s->nope_dim + s->rope_dim);
    put_u32(x, "attention.value_length_mla", s->v_dim);
}

static void put_yarn(writing *x) {
    const sl_yarn *y = &x->s->yarn;
    sl_gguf_out_string(x->w, key_of(x, "rope.scaling.type"), text_of("yarn"));
    put_f32(x, "rope.scaling.factor", y->factor);
    put_u32(x, "rope.scaling.original_context_length", y->original);
    put_f32(x, "rope.scaling.yarn_beta_fast", y->beta_fast);
    put_f32(x, "rope.scaling.yarn_beta_slow", y->beta_slow);
    if (x->a->has & SL_GGUF_LATENT)
        put_f32(x, "rope.scaling.yarn_log_multiplier",
                (float)(0.1 * sl_gguf_mscale_of_scores((double)y->factor, (double)y->scores)));
}

/* Each so many one block has keys and values: as the first of them says, if there is one. */
static uint32_t full_every(const sl_model_spec *s) {
    uint32_t first = 0;
    while (first < s->n_layers && s->linear[first]) first++;
    return first + 1;
}

static void put_linear(writing *x) {
    const sl_model_spec *s = x->s;
    put_u32(x, "full_attention_interval", full_every(s));
    put_u32(x, "ssm.conv_kernel", s->delta_taps);
    put_u32(x, "ssm.state_size", s->delta_k_dim);
    put_u32(x, "ssm.group_count", s->delta_k_heads);
    put_u32(x, "ssm.time_step_rank", s->delta_v_heads);
    put_u32(x, "ssm.inner_size", sl_delta_out(s));
}

static void put_attention(writing *x) {
    const sl_model_spec *s = x->s;
    const char *eps = x->a->eps ? x->a->eps : "attention.layer_norm_rms_epsilon";
    put_u32(x, "attention.head_count", s->n_heads);
    if (x->a->has & SL_GGUF_LATENT) {
        put_latents(x);
    } else {
        put_u32(x, "attention.head_count_kv", s->n_kv_heads);
        put_u32(x, "attention.key_length", s->head_dim);
        put_u32(x, "attention.value_length", s->head_dim);
    }
    put_u32(x, "rope.dimension_count", s->rope_dim);
    put_f32(x, eps, s->rms_eps);
    put_f32(x, "rope.freq_base", s->rope_theta);
    if (x->a->has & SL_GGUF_LINEAR) put_linear(x);
    if (x->a->has & SL_GGUF_CLAMP) put_f32(x, "attention.clamp_kqv", s->clip_qkv);
    if (s->sliding_window) put_u32(x, "attention.sliding_window", s->sliding_window);
    if (s->yarn.factor > 0) put_yarn(x);
}

static void put_experts(writing *x) {
    const sl_model_spec *s = x->s;
    uint32_t has = x->a->has;
    put_u32(x, "expert_count", s->n_experts);
    put_u32(x, "expert_used_count", s->top_k);
    if (has & SL_GGUF_LLAMA4) put_u32(x, "interleave_moe_layer_step", s->moe_layer[0] + 1u);
    if (has & SL_GGUF_SHARED_WIDTH) put_u32(x, "expert_shared_feed_forward_length", s->d_ff_shared);
    if (has & SL_GGUF_SHARED_COUNT)
        put_u32(x, "expert_shared_count", s->d_ff_shared / s->d_ff_expert);
    if (has & SL_GGUF_LEADING) put_u32(x, "leading_dense_block_count", s->moe_layer[0]);
    if (has & SL_GGUF_SCALE) put_f32(x, "expert_weights_scale", s->route_scale);
    if (has & SL_GGUF_GROUPS && s->n_groups > 1) {
        put_u32(x, "expert_group_count", s->n_groups);
        put_u32(x, "expert_group_used_count", s->top_groups);
    }
    if (has & SL_GGUF_GROUPS)
        put_u32(x, "expert_gating_func", x->a->gating ? x->a->gating : SL_GGUF_GATE_SOFTMAX);
    if (s->norm_topk != x->a->norm_topk)
        sl_gguf_out_bool(x->w, key_of(x, "expert_weights_norm"), s->norm_topk);
}

void sl_convert_keys(const sl_model *m, const sl_gguf_arch *a, sl_dtype type, sl_gguf_out *w) {
    const sl_model_spec *s = &m->spec;
    bool alone = strcmp(a->width, "feed_forward_length") == 0;
    writing x = {.s = s, .a = a, .w = w};
    put_general(&x, m, type);
    put_u32(&x, "block_count", s->n_layers);
    put_u32(&x, "context_length", s->max_position);
    put_u32(&x, "embedding_length", s->d_model);
    put_u32(&x, "feed_forward_length",
            alone || s->d_ff_dense == 0 ? s->d_ff_expert : s->d_ff_dense);
    if (!alone) put_u32(&x, a->width, s->d_ff_expert);
    put_u32(&x, "vocab_size", s->vocab);
    put_attention(&x);
    put_experts(&x);
}

/* ---- what has no key ---- */

/* As readers take a file of llama4. */
static const char *unsaid_llama4(const sl_model_spec *s) {
    uint32_t step = s->moe_layer[0] + 1u;
    if (s->attn_chunk != SL_GGUF_LLAMA4_CHUNK) return "attention_chunk_size other than 8192";
    if (s->query_floor != (float)SL_GGUF_LLAMA4_CHUNK || s->query_growth != SL_GGUF_LLAMA4_GROWTH)
        return "floor_scale other than 8192 or attn_scale other than 0.1";
    if (s->qk_unit != (s->n_experts != 128)) return "use_qk_norm other than 128 experts go without";
    for (uint32_t i = 0; i < s->n_layers; i++) {
        bool last = (i + 1) % SL_GGUF_LLAMA4_EVERY == 0;
        if (s->unrotated[i] != last || (s->sight[i] == SL_SIGHT_CHUNK) == last)
            return "blocks without rotation other than each fourth";
        if ((s->ffn[i] == SL_FFN_MOE) != ((i + 1) % step == 0))
            return "blocks with experts other than each so many";
    }
    return NULL;
}

static const char *unsaid_yarn(const sl_model_spec *s, const sl_gguf_arch *a) {
    const sl_yarn *y = &s->yarn;
    double factor = (double)y->factor;
    bool latent = a->has & SL_GGUF_LATENT;
    double all = latent ? sl_gguf_mscale_of_scores(factor, (double)y->scores) : 0;
    if (y->factor <= 0) return NULL;
    if (!(a->has & SL_GGUF_YARN)) return "rope_scaling";
    if (y->between != !!(a->has & SL_GGUF_GPT_OSS)) return "truncate other than its readers take";
    if (y->attention != (float)(latent ? 1 : sl_gguf_yarn_attention(factor)))
        return latent ? "mscale other than mscale_all_dim" : "attention_factor";
    if (latent && (!(all > 0) || y->scores != (float)sl_gguf_scores_of_mscale(factor, all)))
        return "mscale_all_dim of none or many digits";
    return NULL;
}

static const char *unsaid_blocks(const sl_model_spec *s, const sl_gguf_arch *a) {
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (a->has & SL_GGUF_LEADING && i > s->moe_layer[0] && s->ffn[i] == SL_FFN_DENSE)
            return "dense blocks behind routed ones";
        if (a->has & SL_GGUF_WINDOWS && (s->sight[i] == SL_SIGHT_WINDOW) == (i % 2 != 0))
            return "layer_types other than a window in every other block from the first";
        if (s->linear[i] != ((i + 1) % full_every(s) != 0))
            return "layer_types other than full attention in each so many one block";
    }
    if (a->has & SL_GGUF_BRANCH && !s->dense_branch) return "parallel_attn_mlp_res false";
    return NULL;
}

/* Where llama.cpp takes one value, whatever a file says. */
static const char *unsaid_options(const sl_model_spec *s, const sl_gguf_arch *a) {
    static const char *const fixed[] = {"olmoe", "dbrx", "arctic", "gpt-oss", "qwen3next"};
    if (s->clip_qkv > 0 && !(a->has & SL_GGUF_CLAMP)) return "clip_qkv";
    for (size_t i = 0; i < SL_LEN(fixed); i++)
        if (strcmp(a->name, fixed[i]) == 0 && s->norm_topk != a->norm_topk)
            return s->norm_topk ? "weights of the chosen experts that sum to 1"
                                : "weights of the chosen experts as they are";
    if (s->kv_lora && !s->rope_pairs) return "rope_interleave false";
    return NULL;
}

sl_status sl_convert_check(const sl_model *m, const sl_gguf_arch *a, sl_err *err) {
    const sl_model_spec *s = &m->spec;
    const char *what = unsaid_options(s, a);
    if (!what) what = unsaid_yarn(s, a);
    if (!what) what = unsaid_blocks(s, a);
    if (!what && a->has & SL_GGUF_LLAMA4) what = unsaid_llama4(s);
    if (!what) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: GGUF of %s cannot say: %s", m->folder, a->name,
                   what);
}

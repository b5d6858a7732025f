/* Which weights `sluice profile` computes with. */
#include "profile.h"

#include "base/topology.h"
#include "format/shape_config.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LEAST_BYTES ((size_t)1 << 30)
#define CACHES      6u

size_t sl_profile_weight_bytes(void) {
    return SL_MAX(LEAST_BYTES, CACHES * sl_topology_largest_cache());
}

uint64_t sl_profile_memory_available(void) {
    unsigned long long kb = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb * 1024;
}

static void latents_of(const sl_shape *s, sl_model_spec *m) {
    m->n_kv_heads = 1;
    m->q_lora = s->q_lora;
    m->kv_lora = s->kv_lora;
    m->nope_dim = s->qk_nope_dim;
    m->v_dim = s->v_head_dim;
    m->rope_dim = s->qk_rope_dim;
    m->head_dim = s->kv_lora + s->qk_rope_dim;
    m->rope_pairs = true;
    m->route_scale = 1;
    m->qk_norm = m->qkv_bias = false;
    if (s->router_bias) m->n_groups = m->top_groups = 1;
    snprintf(m->arch, sizeof m->arch, "%s",
             s->router_bias ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM");
}

/* Which blocks is not said: as in Qwen3-Next, each so many one has keys and values. */
static void linear_of(const sl_shape *s, sl_model_spec *m) {
    const uint32_t every = s->n_layers / SL_MAX(s->n_layers - s->n_linear_layers, 1u);
    m->delta_v_heads = s->delta_heads;
    m->delta_v_dim = s->delta_out / s->delta_heads;
    m->delta_k_dim = s->delta_state / s->delta_out;
    m->delta_k_heads = (s->delta_channels - s->delta_out) / 2 / m->delta_k_dim;
    m->delta_taps = s->delta_taps;
    m->gated = s->gated;
    m->norm_past_one = true;
    sl_model_make_linear(m, every);
    m->qk_norm = true;
    snprintf(m->arch, sizeof m->arch, "Qwen3NextForCausalLM");
}

/* The computations of a described model as those of an architecture that is there: one with the
 * same tensors, up to names. Arctic's dense branch runs as a shared expert. */
static sl_status spec_of(const sl_shape *s, sl_model_spec *m, sl_err *err) {
    uint32_t shared = s->d_ff_shared + s->d_ff_residual;
    bool mla = s->attention == SL_ATTENTION_MLA;
    if (mla && s->kv_lora + s->qk_rope_dim > SL_HEAD_DIM_MAX)
        return sl_fail(err, SL_ERR_LIMIT, "%s: latent rows of %u values, limit %u", s->name,
                       s->kv_lora + s->qk_rope_dim, SL_HEAD_DIM_MAX);
    *m = (sl_model_spec){.n_layers = s->n_layers,
                         .d_model = s->d_model,
                         .n_heads = s->n_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = s->qk_head_dim,
                         .rope_dim = s->qk_head_dim,
                         .vocab = s->vocab,
                         .d_ff_dense = s->d_ff_dense,
                         .d_ff_expert = s->d_ff_expert,
                         .d_ff_shared = shared,
                         .n_experts = s->n_experts,
                         .top_k = s->top_k,
                         .max_position = s->max_position,
                         .rms_eps = 1e-6f,
                         .rope_theta = 1e6f,
                         .norm_topk = true,
                         .tied_head = s->tied_head,
                         .weightless = true};
    bool like_qwen3 = !shared && (s->qk_norm || sl_shape_n_dense(s));
    m->qk_norm = like_qwen3;
    m->qkv_bias = shared && s->qkv_bias;
    snprintf(m->arch, sizeof m->arch, "%s",
             shared       ? "Qwen2MoeForCausalLM"
             : like_qwen3 ? "Qwen3MoeForCausalLM"
                          : "MixtralForCausalLM");
    if (mla) latents_of(s, m);
    if (s->n_linear_layers) linear_of(s, m);
    for (uint32_t i = 0; i < s->n_layers; i++)
        m->ffn[i] = sl_shape_is_moe(s, i) ? SL_FFN_MOE : SL_FFN_DENSE;
    sl_model_number_blocks(m);
    return SL_OK;
}

/* The largest tensor has to fit, and what fits is taken, as much as takes turns. */
static sl_status open_random(const sl_shape *s, sl_model **out, sl_err *err) {
    static sl_model_spec m;
    uint64_t available = sl_profile_memory_available(), bytes = sl_profile_weight_bytes();
    uint64_t widest = SL_MAX(SL_MAX(s->d_ff_expert, s->d_ff_dense), s->vocab);
    uint64_t largest = SL_MAX(widest, (uint64_t)s->n_heads * s->qk_head_dim) * s->d_model * 2;
    sl_status st = spec_of(s, &m, err);
    if (st != SL_OK) return st;
    bytes = SL_MAX(bytes, largest + 4096);
    if (available && bytes > available / 2) bytes = available / 2;
    if (largest > bytes)
        return sl_fail(err, SL_ERR_LIMIT,
                       "%s: its largest matrix has %.1f MB, and random weights may take %.1f MB, "
                       "half of the memory that is available",
                       s->name, (double)largest / 1e6, (double)bytes / 1e6);
    m.kv_type = SL_KV_AUTO_ON_CPUS;
    return sl_model_open_random(&m, bytes, 1, out, err);
}

void sl_profile_name(const char *model, char *out, size_t cap) {
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && model[begin - 1] != '/') begin--;
    snprintf(out, cap, "%.*s", (int)SL_MIN(end - begin, cap - 1), model + begin);
}

sl_status sl_profile_model_open(const char *model, sl_model **out, bool *random, char *name,
                                size_t name_cap, sl_err *err) {
    static sl_model_spec spec;
    const sl_stages all = {.attention = true, .experts = true, .kv_type = SL_KV_AUTO_ON_CPUS};
    struct stat at;
    sl_shape shape;
    bool checkpoint = stat(model, &at) == 0 && (S_ISDIR(at.st_mode) || sl_shape_in_gguf(model));
    sl_status st = SL_OK;
    *random = !checkpoint;
    if (checkpoint) {
        st = sl_model_read_spec(model, &spec, NULL, err);
        *random = (st == SL_OK && spec.weightless) || st == SL_ERR_UNSUPPORTED;
    }
    if (*random) {
        st = sl_shape_open(model, &shape, err);
        if (st == SL_OK) st = open_random(&shape, out, err);
        if (st == SL_OK) snprintf(name, name_cap, "%s", shape.name);
        return st;
    }
    if (st == SL_OK) st = sl_model_open(model, &all, out, err);
    sl_profile_name(model, name, name_cap);
    return st;
}

/* Attention as GGUF metadata say it: heads or latents, rotation, windows. */
#include "format/gguf_config_int.h"

#include <math.h>
#include <stdio.h>

/* A number, or an array of one number a block that are all the same. */
static sl_status read_kv_heads(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    const char *key = sl_gguf_key(r, "attention.head_count_kv");
    const sl_gguf_kv *kv = sl_gguf_find(r->g, key);
    m->n_kv_heads = m->n_heads;
    if (!kv || !kv->array)
        return sl_gguf_read_u32(r, "attention.head_count_kv", SL_GGUF_OPTIONAL, 1, SL_MAX_HEADS,
                                &m->n_kv_heads, err);
    sl_status st = sl_gguf_numbers(r->g, key, SL_GGUF_REQUIRED, &kv, err);
    if (st != SL_OK) return st;
    double first = sl_gguf_number_at(kv, 0);
    bool same = kv->count == m->n_layers && first >= 1 && first <= SL_MAX_HEADS;
    for (uint64_t i = 1; same && i < kv->count; i++) same = sl_gguf_number_at(kv, i) == first;
    if (!same)
        return sl_gguf_fail(r->g, key, err, SL_ERR_UNSUPPORTED,
                            "not the same number from 1 to %u for each of %u blocks", SL_MAX_HEADS,
                            m->n_layers);
    m->n_kv_heads = (uint32_t)first;
    return SL_OK;
}

static sl_status read_heads(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    double clamp = 0;
    sl_status st = read_kv_heads(r, err);
    if (st != SL_OK) return st;
    if (m->n_heads % m->n_kv_heads != 0)
        return sl_gguf_fail(r->g, sl_gguf_key(r, "attention.head_count_kv"), err, SL_ERR_FORMAT,
                            "%u does not divide the %u heads", m->n_kv_heads, m->n_heads);
    m->head_dim = m->d_model / m->n_heads;
    st = sl_gguf_read_u32(r, "attention.key_length", SL_GGUF_OPTIONAL, 2, SL_HEAD_DIM_MAX,
                          &m->head_dim, err);
    if (st != SL_OK) return st;
    if (m->head_dim == 0 || m->head_dim > SL_HEAD_DIM_MAX || m->head_dim % 2 != 0)
        return sl_gguf_fail(r->g, sl_gguf_key(r, "attention.key_length"), err, SL_ERR_LIMIT,
                            "%u must be even, 2 to %d", m->head_dim, SL_HEAD_DIM_MAX);
    st = sl_gguf_expect(r, "attention.value_length", m->head_dim, err);
    m->rope_dim = m->head_dim;
    if (st == SL_OK && !(r->arch->has & SL_GGUF_PARTIAL))
        st = sl_gguf_expect(r, "rope.dimension_count", m->head_dim, err);
    else if (st == SL_OK)
        st = sl_gguf_read_u32(r, "rope.dimension_count", SL_GGUF_OPTIONAL, 2, m->head_dim,
                              &m->rope_dim, err);
    if (st == SL_OK && m->rope_dim % 2 != 0)
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_LIMIT, "%u must be even", m->rope_dim);
    if (st == SL_OK && r->arch->has & SL_GGUF_CLAMP)
        st = sl_gguf_read_f64(r, "attention.clamp_kqv", SL_GGUF_OPTIONAL, 0, 1e6, &clamp, err);
    m->clip_qkv = (float)clamp;
    return st;
}

/* key_length_mla is there when W_UK and W_UV are tensors of their own: then key_length and
 * value_length are those of the cache, and there is one head of it. */
static sl_status read_latents(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    uint32_t key = 0, key_max = SL_HEAD_DIM_MAX + SL_MAX_ROPE_DIM;
    m->kv_parts = sl_gguf_find(r->g, sl_gguf_key(r, "attention.key_length_mla")) != NULL;
    sl_status st = sl_gguf_read_u32(r, "rope.dimension_count", SL_GGUF_REQUIRED, 2, SL_MAX_ROPE_DIM,
                                    &m->rope_dim, err);
    if (st == SL_OK && m->rope_dim % 2 != 0)
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_LIMIT, "%u must be even", m->rope_dim);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "attention.q_lora_rank", SL_GGUF_OPTIONAL, 0, SL_MAX_D_MODEL,
                              &m->q_lora, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "attention.kv_lora_rank", SL_GGUF_REQUIRED, 1,
                              SL_HEAD_DIM_MAX - m->rope_dim, &m->kv_lora, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r,
                              m->kv_parts ? "attention.value_length_mla" : "attention.value_length",
                              SL_GGUF_REQUIRED, 1, SL_HEAD_DIM_MAX, &m->v_dim, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, m->kv_parts ? "attention.key_length_mla" : "attention.key_length",
                              SL_GGUF_REQUIRED, m->rope_dim + 1, key_max, &key, err);
    m->nope_dim = key - m->rope_dim;
    m->head_dim = m->kv_lora + m->rope_dim;
    m->n_kv_heads = 1;
    if (st != SL_OK || !m->kv_parts)
        return st == SL_OK ? sl_gguf_expect(r, "attention.head_count_kv", m->n_heads, err) : st;
    st = sl_gguf_expect(r, "attention.head_count_kv", 1, err);
    if (st == SL_OK) st = sl_gguf_expect(r, "attention.key_length", m->head_dim, err);
    return st == SL_OK ? sl_gguf_expect(r, "attention.value_length", m->kv_lora, err) : st;
}

/* ---- rotation ---- */

/* Files hold a tenth of it, rounded: what it was has few digits. */
static double few_digits(double v) {
    return round(v * 1e4) / 1e4;
}

double sl_gguf_scores_of_mscale(double factor, double mscale) {
    double one = 0.1 * mscale * log(factor) + 1;
    return one * one;
}

double sl_gguf_mscale_of_scores(double factor, double scores) {
    return few_digits((sqrt(scores) - 1) / (0.1 * log(factor)));
}

double sl_gguf_yarn_attention(double factor) {
    return factor > 1 ? 0.1 * log(factor) + 1 : 1;
}

/* What programs take from files without the multiplier differs from what models of this kind were
 * trained with. */
static sl_status read_mscale(sl_gguf_reading *r, double factor, sl_yarn *y, sl_err *err) {
    double tenth = 0;
    sl_status st = sl_gguf_read_f64(r, "rope.scaling.yarn_log_multiplier", SL_GGUF_REQUIRED, 1e-4,
                                    10, &tenth, err);
    y->attention = 1;
    if (st == SL_OK) y->scores = (float)sl_gguf_scores_of_mscale(factor, few_digits(10 * tenth));
    return st;
}

static sl_status read_yarn(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    uint32_t original = m->max_position;
    double factor = 1, fast = 32, slow = 1, ext = 1;
    sl_status st = sl_gguf_read_f64(r, "rope.scaling.factor", SL_GGUF_REQUIRED, 1,
                                    SL_MAX_ROPE_FACTOR, &factor, err);
    if (st == SL_OK)
        st = sl_gguf_read_u32(r, "rope.scaling.original_context_length", SL_GGUF_OPTIONAL, 1,
                              SL_MAX_POSITION, &original, err);
    if (st == SL_OK)
        st = sl_gguf_read_f64(r, "rope.scaling.yarn_ext_factor", SL_GGUF_OPTIONAL, 1, 1, &ext, err);
    if (st == SL_OK)
        st = sl_gguf_read_f64(r, "rope.scaling.yarn_beta_fast", SL_GGUF_OPTIONAL, 1e-3, 1e6, &fast,
                              err);
    if (st == SL_OK)
        st = sl_gguf_read_f64(r, "rope.scaling.yarn_beta_slow", SL_GGUF_OPTIONAL, 1e-3, 1e6, &slow,
                              err);
    if (st == SL_OK && fast < slow)
        st = sl_gguf_fail(r->g, r->key, err, SL_ERR_FORMAT, "%g is above yarn_beta_fast %g", slow,
                          fast);
    if (st != SL_OK) return st;
    double reach = floor(factor * original);
    if (reach > m->max_position) m->max_position = (uint32_t)SL_MIN(reach, (double)SL_MAX_POSITION);
    m->yarn = (sl_yarn){.factor = (float)factor,
                        .beta_fast = (float)fast,
                        .beta_slow = (float)slow,
                        .attention = (float)sl_gguf_yarn_attention(factor),
                        .scores = 1,
                        .original = original,
                        .between = r->arch->has & SL_GGUF_GPT_OSS};
    return r->arch->has & SL_GGUF_LATENT ? read_mscale(r, factor, &m->yarn, err) : SL_OK;
}

static sl_status read_scaling(sl_gguf_reading *r, sl_err *err) {
    sl_span type = {(const uint8_t *)"none", 4};
    bool may = r->arch->has & SL_GGUF_YARN;
    double factor = 1;
    sl_status st =
        sl_gguf_string(r->g, sl_gguf_key(r, "rope.scaling.type"), SL_GGUF_OPTIONAL, &type, err);
    if (st != SL_OK) return st;
    if (may && sl_span_is(type, "yarn")) return read_yarn(r, err);
    if (!sl_span_is(type, "none"))
        return sl_gguf_fail(r->g, r->key, err, SL_ERR_UNSUPPORTED,
                            "\"%.*s\" is not supported (supported: \"none\"%s)",
                            (int)SL_MIN(type.len, (size_t)40), (const char *)type.data,
                            may ? ", \"yarn\"" : "");
    return sl_gguf_read_f64(r, "rope.scaling.factor", SL_GGUF_OPTIONAL, 1, 1, &factor, err);
}

/* Which blocks have the window. */
static sl_status read_windows(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    bool turns = r->arch->has & SL_GGUF_WINDOWS;
    sl_status st =
        sl_gguf_read_u32(r, "attention.sliding_window", turns ? SL_GGUF_REQUIRED : SL_GGUF_OPTIONAL,
                         0, INT32_MAX, &m->sliding_window, err);
    if (st == SL_OK && turns) st = sl_gguf_expect(r, "attention.sliding_window_pattern", 2, err);
    for (uint32_t i = 0; i < m->n_layers; i++)
        m->sight[i] = m->sliding_window && !(turns && i % 2) ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    return st;
}

/* ---- linear attention ---- */

/* Which blocks: each so many one is not, or an entry a block says it, those behind the last, too.
 */
static sl_status read_order(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    uint32_t every = 4;
    const sl_gguf_kv *list = NULL;
    sl_status st = sl_gguf_read_u32(r, "full_attention_interval", SL_GGUF_OPTIONAL, 1,
                                    SL_MAX_LAYERS, &every, err);
    if (st == SL_OK)
        st = sl_gguf_numbers(r->g, sl_gguf_key(r, "attention.recurrent_layers"), SL_GGUF_OPTIONAL,
                             &list, err);
    if (st != SL_OK) return st;
    sl_model_make_linear(m, every);
    if (!list) return SL_OK;
    if (list->count != m->n_layers + m->n_mtp)
        return sl_gguf_fail(r->g, r->key, err, SL_ERR_FORMAT, "%llu entries for %u blocks",
                            (unsigned long long)list->count, m->n_layers + m->n_mtp);
    for (uint32_t i = 0; i < list->count; i++) {
        const bool is_linear = sl_gguf_number_at(list, i) != 0;
        if (i < m->n_layers)
            m->linear[i] = is_linear;
        else if (is_linear)
            return sl_gguf_fail(r->g, r->key, err, SL_ERR_UNSUPPORTED,
                                "block %u predicts a further token and has a state", i);
    }
    sl_model_number_linear(m);
    return SL_OK;
}

/* Older files have the matrix of a checkpoint, ssm_in, where later ones have its two parts. */
static bool has_parts(const sl_gguf_reading *r) {
    char name[64];
    uint32_t first = 0;
    while (first < r->m->n_layers && !r->m->linear[first]) first++;
    snprintf(name, sizeof name, "blk.%u.ssm_in.weight", first);
    return !sl_gguf_tensor_find(r->g, name);
}

static sl_status read_linear(sl_gguf_reading *r, sl_err *err) {
    sl_model_spec *m = r->m;
    uint32_t values = 0;
    const struct {
        const char *key;
        uint32_t max, *out;
    } sizes[] = {
        {"ssm.group_count", SL_MAX_HEADS, &m->delta_k_heads},
        {"ssm.time_step_rank", SL_MAX_HEADS, &m->delta_v_heads},
        {"ssm.state_size", SL_DELTA_DIM, &m->delta_k_dim},
        {"ssm.conv_kernel", SL_DELTA_TAPS, &m->delta_taps},
        {"ssm.inner_size", SL_MAX_HEADS * SL_DELTA_DIM, &values},
    };
    sl_status st = read_order(r, err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(sizes); i++)
        st =
            sl_gguf_read_u32(r, sizes[i].key, SL_GGUF_REQUIRED, 1, sizes[i].max, sizes[i].out, err);
    if (st != SL_OK) return st;
    m->delta_v_dim = values / m->delta_v_heads;
    if (values % m->delta_v_heads != 0 || m->delta_v_dim > SL_DELTA_DIM || !sl_delta_fits(m))
        return sl_gguf_fail(r->g, r->key, err, SL_ERR_LIMIT,
                            "%u values of %u heads: must be heads of %u values at most, as many "
                            "for each of the %u of ssm.group_count, with %u values each at most",
                            values, m->delta_v_heads, SL_DELTA_DIM, m->delta_k_heads,
                            SL_DELTA_VALUES);
    m->gated = m->delta_rates = true;
    m->delta_parts = has_parts(r);
    return SL_OK;
}

sl_status sl_gguf_read_attention(sl_gguf_reading *r, sl_err *err) {
    sl_status st = sl_gguf_read_u32(r, "attention.head_count", SL_GGUF_REQUIRED, 1, SL_MAX_HEADS,
                                    &r->m->n_heads, err);
    if (st == SL_OK) st = r->arch->has & SL_GGUF_LATENT ? read_latents(r, err) : read_heads(r, err);
    if (st == SL_OK) st = read_scaling(r, err);
    if (st == SL_OK && r->arch->has & SL_GGUF_LINEAR) st = read_linear(r, err);
    return st == SL_OK ? read_windows(r, err) : st;
}

/* What follows from a family's tensors for a given model. */
#include "format/arch.h"

#include <stdio.h>
#include <string.h>

const sl_arch_tensor *sl_arch_tensor_of(const sl_arch *a, sl_arch_role role) {
    for (size_t i = 0; i < a->n_tensors; i++)
        if (a->tensor[i].role == role) return &a->tensor[i];
    return NULL;
}

const sl_arch_store *sl_arch_store_of(const sl_arch *a, sl_arch_role role) {
    for (size_t i = 0; i < a->n_stores; i++)
        if (a->store[i].role == role) return &a->store[i];
    return NULL;
}

const sl_arch_store *sl_arch_gguf_store_of(const sl_arch *a, sl_arch_role role) {
    const sl_arch_store *s = sl_arch_store_of(a, role);
    return s && s->gguf ? s : NULL;
}

uint64_t sl_arch_dim_value(const sl_model_spec *m, sl_arch_dim d) {
    switch (d) {
    case SL_DIM_NONE:
    case SL_DIM_ONE:
        return 1;
    case SL_DIM_VOCAB:
        return m->vocab;
    case SL_DIM_MODEL:
        return m->d_model;
    case SL_DIM_MODEL_TWICE:
        return 2 * (uint64_t)m->d_model;
    case SL_DIM_Q:
        return (uint64_t)m->n_heads * sl_query_dim(m);
    case SL_DIM_KV:
        return (uint64_t)m->n_kv_heads * m->head_dim;
    case SL_DIM_HEADS:
        return m->n_heads;
    case SL_DIM_Q_GATED:
        return 2 * (uint64_t)m->n_heads * m->head_dim;
    case SL_DIM_DELTA_IN:
        return (uint64_t)sl_delta_channels(m) + sl_delta_out(m);
    case SL_DIM_DELTA_SMALL:
        return 2 * (uint64_t)m->delta_v_heads;
    case SL_DIM_DELTA_CHANNELS:
        return sl_delta_channels(m);
    case SL_DIM_DELTA_TAPS:
        return m->delta_taps;
    case SL_DIM_DELTA_HEADS:
        return m->delta_v_heads;
    case SL_DIM_DELTA_V:
        return m->delta_v_dim;
    case SL_DIM_DELTA_OUT:
        return sl_delta_out(m);
    case SL_DIM_HEAD:
        return m->head_dim;
    case SL_DIM_Q_LORA:
        return m->q_lora;
    case SL_DIM_KV_LORA:
        return m->kv_lora;
    case SL_DIM_KV_A:
        return (uint64_t)m->kv_lora + m->rope_dim;
    case SL_DIM_KV_B:
        return (uint64_t)m->n_heads * (m->nope_dim + m->v_dim);
    case SL_DIM_K_B:
        return (uint64_t)m->n_heads * m->kv_lora;
    case SL_DIM_NOPE:
        return m->nope_dim;
    case SL_DIM_V:
        return (uint64_t)m->n_heads * m->v_dim;
    case SL_DIM_FF_DENSE:
        return m->d_ff_dense;
    case SL_DIM_FF_EXPERT:
        return m->d_ff_expert;
    case SL_DIM_FF_SHARED:
        return m->d_ff_shared;
    case SL_DIM_EXPERTS:
        return m->n_experts;
    }
    return 0;
}

/* What ranks have parts of: heads, widths of feed-forwards, the vocabulary. */
static bool is_split(sl_arch_dim d) {
    switch (d) {
    case SL_DIM_VOCAB:
    case SL_DIM_Q:
    case SL_DIM_KV:
    case SL_DIM_KV_B:
    case SL_DIM_K_B:
    case SL_DIM_V:
    case SL_DIM_HEADS:
    case SL_DIM_FF_DENSE:
    case SL_DIM_FF_EXPERT:
    case SL_DIM_FF_SHARED:
        return true;
    default:
        return false;
    }
}

sl_arch_axis sl_arch_tensor_axis(const sl_arch_tensor *t) {
    return is_split(t->n) ? SL_AXIS_ROWS : is_split(t->k) ? SL_AXIS_COLUMNS : SL_AXIS_WHOLE;
}

bool sl_arch_tensor_used(const sl_model_spec *m, const sl_arch_tensor *t) {
    switch (t->role) {
    case SL_ROLE_LM_HEAD:
        return !m->tied_head;
    case SL_ROLE_DELTA_IN:
        return m->n_linear > 0 && !m->delta_parts;
    case SL_ROLE_DELTA_QKV:
    case SL_ROLE_DELTA_GATE:
        return m->n_linear > 0 && m->delta_parts;
    case SL_ROLE_DELTA_SMALL:
    case SL_ROLE_DELTA_CONV:
    case SL_ROLE_DELTA_SHIFT:
    case SL_ROLE_DELTA_RATE:
    case SL_ROLE_DELTA_NORM:
    case SL_ROLE_DELTA_OUT:
        return m->n_linear > 0;
    case SL_ROLE_Q:
        return m->q_lora == 0;
    case SL_ROLE_Q_A:
    case SL_ROLE_Q_A_NORM:
    case SL_ROLE_Q_B:
        return m->q_lora > 0;
    case SL_ROLE_KV_B:
        return !m->kv_parts;
    case SL_ROLE_K_B:
    case SL_ROLE_V_B:
        return m->kv_parts;
    case SL_ROLE_SHARED_NORM:
    case SL_ROLE_SHARED_GATE:
    case SL_ROLE_SHARED_UP:
    case SL_ROLE_SHARED_DOWN:
        return m->d_ff_shared > 0;
    case SL_ROLE_Q_BIAS:
    case SL_ROLE_K_BIAS:
    case SL_ROLE_V_BIAS:
    case SL_ROLE_O_BIAS:
        return m->qkv_bias;
    case SL_ROLE_Q_NORM:
    case SL_ROLE_K_NORM:
        return m->qk_norm;
    default:
        return true;
    }
}

#define OF_BLOCK "model.layers.{L}."

void sl_arch_tensor_name(const sl_arch *a, const sl_model_spec *m, const sl_arch_tensor *t,
                         uint32_t layer, uint32_t expert, char out[SL_ARCH_NAME_MAX]) {
    const char *name = t->name;
    size_t at = 0;
    if (a->mtp_block && layer == sl_mtp_block(m) &&
        strncmp(name, OF_BLOCK, strlen(OF_BLOCK)) == 0) {
        at = (size_t)snprintf(out, SL_ARCH_NAME_MAX, "%s", a->mtp_block);
        name += strlen(OF_BLOCK);
    }
    for (const char *p = name; *p && at + 16 < SL_ARCH_NAME_MAX;) {
        uint32_t value = p[0] == '{' && p[1] == 'E' ? expert : layer;
        if (p[0] == '{') {
            at += (size_t)snprintf(out + at, SL_ARCH_NAME_MAX - at, "%u", value);
            p += 3;
        } else {
            out[at++] = *p++;
        }
    }
    out[at] = '\0';
}

void sl_arch_count_params(const sl_arch *a, sl_model_spec *m) {
    uint32_t n_dense = m->n_layers - m->n_moe;
    m->n_params = m->n_params_active = 0;
    for (size_t i = 0; i < a->n_tensors; i++) {
        const sl_arch_tensor *t = &a->tensor[i];
        if (!sl_arch_tensor_used(m, t)) continue;
        uint64_t one = sl_arch_dim_value(m, t->n) * sl_arch_dim_value(m, t->k);
        uint64_t all = 1, active = 1;
        if (t->scope == SL_SCOPE_MTP) continue; /* like all of its block */
        if (t->scope == SL_SCOPE_BLOCK) all = active = m->n_layers;
        if (t->scope == SL_SCOPE_FULL_BLOCK) all = active = m->n_layers - m->n_linear;
        if (t->scope == SL_SCOPE_LINEAR_BLOCK) all = active = m->n_linear;
        if (t->scope == SL_SCOPE_DENSE_BLOCK) all = active = n_dense;
        if (t->scope == SL_SCOPE_MOE_BLOCK) all = active = m->n_moe;
        if (t->scope == SL_SCOPE_EXPERT) {
            all = (uint64_t)m->n_moe * m->n_experts;
            active = (uint64_t)m->n_moe * m->top_k;
        }
        m->n_params += one * all;
        m->n_params_active += one * active;
    }
}

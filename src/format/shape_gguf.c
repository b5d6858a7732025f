/* The shape of a model that lies in a GGUF file. */
#include "format/family.h"
#include "format/shape_config.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool sl_shape_in_gguf(const char *path) {
    char magic[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is = fd >= 0 && read(fd, magic, sizeof magic) == sizeof magic &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    if (fd >= 0) close(fd);
    return is;
}

/* Experts of a block are one tensor "blk.7.ffn_up_exps.weight". */
static void read_bytes(const sl_gguf *g, sl_shape *s) {
    double bytes[2] = {0}, values[2] = {0};
    for (size_t i = 0; i < sl_gguf_tensors(g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        bool expert = strstr(t->name, "_exps.") != NULL;
        double n = 1;
        for (uint32_t k = 0; k < t->n_dims; k++) n *= (double)t->dim[k];
        bytes[expert] += (double)(t->end - t->begin);
        values[expert] += n;
    }
    s->attention_weight_bytes = values[0] > 0 ? bytes[0] / values[0] : 2;
    s->expert_weight_bytes = values[1] > 0 ? bytes[1] / values[1] : 2;
    s->kv_value_bytes = 2;
}

static void take_attention(const sl_model_spec *m, sl_shape *s) {
    s->n_heads = m->n_heads;
    s->n_kv_heads = m->n_kv_heads;
    s->qk_head_dim = s->v_head_dim = m->head_dim;
    s->window = m->sliding_window;
    for (uint32_t i = 0; i < m->n_layers; i++)
        s->n_windowed_layers += m->sight[i] == SL_SIGHT_WINDOW;
    if (!m->kv_lora) return;
    s->attention = SL_ATTENTION_MLA;
    s->n_kv_heads = m->n_heads;
    s->q_lora = m->q_lora;
    s->kv_lora = m->kv_lora;
    s->qk_nope_dim = m->nope_dim;
    s->qk_rope_dim = m->rope_dim;
    s->qk_head_dim = m->nope_dim + m->rope_dim;
    s->v_head_dim = m->v_dim;
}

sl_status sl_shape_of_gguf(const char *path, sl_shape *out, sl_err *err) {
    sl_gguf *g = NULL;
    sl_model_spec m = {0};
    sl_generation_spec gen;
    sl_status st = sl_gguf_open(path, &g, err);
    if (st == SL_OK) st = sl_gguf_config_parse(g, &m, &gen, err);
    if (st != SL_OK) goto out;
    sl_shape s = {.n_layers = m.n_layers,
                  .d_model = m.d_model,
                  .vocab = m.vocab,
                  .tied_head = m.tied_head,
                  .n_experts = m.n_experts,
                  .top_k = m.top_k,
                  .d_ff_expert = m.d_ff_expert,
                  .d_ff_shared = m.dense_branch ? 0 : m.d_ff_shared,
                  .d_ff_residual = m.dense_branch ? m.d_ff_shared : 0,
                  .d_ff_dense = m.d_ff_dense,
                  .moe_every = 1,
                  .norms_per_layer = 2,
                  .max_position = m.max_position};
    take_attention(&m, &s);
    s.qk_norm = m.qk_norm;
    s.qkv_bias = m.qkv_bias;
    sl_family_small(sl_family_of_class((sl_span){(const uint8_t *)m.arch, strlen(m.arch)}), &s);
    for (uint32_t i = 0; i < m.n_layers; i++)
        if (m.ffn[i] == SL_FFN_DENSE) sl_shape_make_dense(&s, i);
    read_bytes(g, &s);
    *out = s;
out:
    sl_gguf_close(g);
    return st;
}

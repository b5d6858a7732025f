/* Random tiny checkpoint folders for tests, and the means to damage them. Sizes come from a
 * config.json text, tensors from the architecture table (whose names the golden fixtures vouch
 * for). */
#ifndef SL_TESTS_MODEL_FOLDER_H
#define SL_TESTS_MODEL_FOLDER_H

#include "base/rng.h"
#include "format/hf_config.h"
#include "model/model_int.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A mix of dense and routed blocks whose widths are no multiples of 16. */
static const char folder_qwen[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":24,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":10,"
    "\"vocab_size\":50,\"intermediate_size\":36,\"moe_intermediate_size\":20,\"num_experts\":6,"
    "\"num_experts_per_tok\":3,\"norm_topk_prob\":true,\"mlp_only_layers\":[1],"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2}";

/* With biases and shared experts. */
static const char folder_qwen2[] =
    "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"model_type\":\"qwen2_moe\",\"hidden_size\":28,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"vocab_size\":50,\"intermediate_size\":36,\"moe_intermediate_size\":20,\"num_experts\":6,"
    "\"shared_expert_intermediate_size\":44,\"num_experts_per_tok\":3,\"norm_topk_prob\":true,"
    "\"mlp_only_layers\":[1],\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,"
    "\"rope_theta\":10000,\"hidden_act\":\"silu\",\"sliding_window\":40,"
    "\"use_sliding_window\":false,\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With wide norms of queries and keys, clipped. */
static const char folder_olmoe[] =
    "{\"architectures\":[\"OlmoeForCausalLM\"],\"model_type\":\"olmoe\",\"hidden_size\":24,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":50,\"intermediate_size\":20,\"num_experts\":6,\"num_experts_per_tok\":3,"
    "\"norm_topk_prob\":false,\"clip_qkv\":0.75,\"max_position_embeddings\":512,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With groups of experts, rotation of a part of each head, and all that config.json may turn on. */
static const char folder_glm4[] =
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"model_type\":\"glm4_moe\",\"hidden_size\":24,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"partial_rotary_factor\":0.5,\"attention_bias\":true,\"use_qk_norm\":true,"
    "\"vocab_size\":50,\"intermediate_size\":36,\"moe_intermediate_size\":20,"
    "\"n_routed_experts\":12,\"n_shared_experts\":2,\"num_experts_per_tok\":3,\"n_group\":4,"
    "\"topk_group\":2,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
    "\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":1,\"max_position_embeddings\":512,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With linear attention in three of four blocks, value heads of another width than keys', and gates
 * beside queries. */
static const char folder_qwen3next[] =
    "{\"architectures\":[\"Qwen3NextForCausalLM\"],\"model_type\":\"qwen3_next\",\"hidden_size\":"
    "24,"
    "\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"partial_rotary_factor\":0.5,\"full_attention_interval\":3,\"linear_num_key_heads\":3,"
    "\"linear_num_value_heads\":6,\"linear_key_head_dim\":10,\"linear_value_head_dim\":19,"
    "\"linear_conv_kernel_dim\":4,\"vocab_size\":50,\"intermediate_size\":36,"
    "\"moe_intermediate_size\":20,\"shared_expert_intermediate_size\":14,\"num_experts\":8,"
    "\"num_experts_per_tok\":3,\"norm_topk_prob\":true,\"mlp_only_layers\":[1],"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With gates on the input of experts, chunks, blocks that do not rotate, and blocks without
 * experts. */
#define FOLDER_LLAMA4                                                                              \
    "\"hidden_size\":24,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"head_dim\":10,\"vocab_size\":50,\"intermediate_size\":20,"        \
    "\"intermediate_size_mlp\":36,\"num_local_experts\":6,\"num_experts_per_tok\":1,"              \
    "\"interleave_moe_layer_step\":2,\"no_rope_layers\":[1,0,1,0],\"attention_chunk_size\":24,"    \
    "\"use_qk_norm\":true,\"attn_temperature_tuning\":true,\"floor_scale\":8,\"attn_scale\":0.2,"  \
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4.0,\"low_freq_factor\":1.0,"           \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64},"                           \
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":1e4,"                    \
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"eos_token_id\":2}"
static const char folder_llama4[] =
    "{\"architectures\":[\"Llama4ForCausalLM\"],\"model_type\":\"llama4_text\"," FOLDER_LLAMA4;
static const char folder_llama4_nested[] =
    "{\"architectures\":[\"Llama4ForConditionalGeneration\"],\"model_type\":\"llama4\","
    "\"vision_config\":{\"hidden_size\":8},\"text_config\":{\"model_type\":\"llama4_"
    "text\"," FOLDER_LLAMA4 "}";
/* With tensors that several roles or all experts share, and norms that subtract the mean. */
static const char folder_dbrx[] =
    "{\"architectures\":[\"DbrxForCausalLM\"],\"model_type\":\"dbrx\",\"d_model\":24,"
    "\"n_heads\":4,\"n_layers\":2,\"max_seq_len\":512,\"vocab_size\":50,"
    "\"attn_config\":{\"clip_qkv\":0.75,\"kv_n_heads\":2,\"rope_theta\":10000},"
    "\"ffn_config\":{\"ffn_hidden_size\":20,\"moe_num_experts\":6,\"moe_top_k\":3},"
    "\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With a dense branch beside the experts of every second block. */
static const char folder_arctic[] =
    "{\"architectures\":[\"ArcticForCausalLM\"],\"model_type\":\"arctic\",\"hidden_size\":24,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":50,\"intermediate_size\":20,\"num_local_experts\":6,"
    "\"num_experts_per_tok\":2,\"moe_layer_frequency\":2,\"parallel_attn_mlp_res\":true,"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* With latents of queries, keys and values, groups by their best expert, YaRN with both factors. */
static const char folder_deepseek2[] =
    "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\","
    "\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":3,"
    "\"num_key_value_heads\":3,\"q_lora_rank\":14,\"kv_lora_rank\":13,"
    "\"qk_nope_head_dim\":10,\"qk_rope_head_dim\":6,\"v_head_dim\":7,"
    "\"vocab_size\":50,\"intermediate_size\":36,\"moe_intermediate_size\":20,"
    "\"n_routed_experts\":12,\"n_shared_experts\":2,\"num_experts_per_tok\":3,\"n_group\":4,"
    "\"topk_group\":2,\"topk_method\":\"group_limited_greedy\",\"norm_topk_prob\":false,"
    "\"routed_scaling_factor\":4,\"scoring_func\":\"softmax\",\"first_k_dense_replace\":1,"
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":64,"
    "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.5,\"mscale_all_dim\":0.7},"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-3,\"rope_theta\":10000,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"eos_token_id\":2}";

/* The other class, with more heads than a walk of the pages takes at once. */
static const char folder_deepseek3[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"hidden_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":20,"
    "\"num_key_value_heads\":20,\"q_lora_rank\":12,\"kv_lora_rank\":16,"
    "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,\"v_head_dim\":6,"
    "\"vocab_size\":50,\"intermediate_size\":36,\"moe_intermediate_size\":20,"
    "\"n_routed_experts\":12,\"n_shared_experts\":1,\"num_experts_per_tok\":3,\"n_group\":4,"
    "\"topk_group\":2,\"topk_method\":\"noaux_tc\",\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"first_k_dense_replace\":1,"
    "\"num_nextn_predict_layers\":1,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,"
    "\"rope_theta\":10000,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"
    "\"eos_token_id\":2}";

/* With sinks, windows in every other block, YaRN between pairs, and experts in one tensor. */
static const char folder_gptoss[] =
    "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":32,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"attention_bias\":true,\"vocab_size\":50,\"intermediate_size\":32,\"num_local_experts\":6,"
    "\"num_experts_per_tok\":3,\"sliding_window\":40,\"layer_types\":[\"sliding_attention\","
    "\"full_attention\",\"sliding_attention\"],\"swiglu_limit\":7.0,\"rope_theta\":150000,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
    "\"original_max_position_embeddings\":128,\"truncate\":false},"
    "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false,\"eos_token_id\":2}";

static const char folder_mixtral[] =
    "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":32,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":1,"
    "\"vocab_size\":40,\"intermediate_size\":48,\"num_local_experts\":4,"
    "\"num_experts_per_tok\":2,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":1e6,\"sliding_window\":40,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":true,\"eos_token_id\":[2,3]}";

typedef struct folder_shard {
    char *header, *data;
    size_t header_len, data_len;
} folder_shard;

typedef struct folder_writer {
    folder_shard shard[4];
    uint32_t n_shards, next;
    uint64_t rng;
    sl_dtype dtype;
    char *index;
    size_t index_len;
} folder_writer;

static inline void folder_path(char out[512], const char *dir, const char *name) {
    snprintf(out, 512, "%s/%s", dir, name);
}

static inline void folder_write(const char *dir, const char *name, const void *data, size_t n) {
    char path[512];
    folder_path(path, dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
}

static inline char *folder_read(const char *dir, const char *name, size_t *n) {
    char path[512];
    folder_path(path, dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) abort();
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(*n + 1, 1);
    if (fread(data, 1, *n, f) != *n) abort();
    fclose(f);
    return data;
}

/* Room for a text of len bytes and its end: a power of two, since a sanitizer's realloc always
 * copies. */
static inline size_t folder_room(size_t len) {
    size_t room = 64;
    while (room < len + 1) room *= 2;
    return room;
}

/* *text: NULL with *len 0, or made by this function. */
static inline void folder_append(char **text, size_t *len, const void *more, size_t n) {
    if (!*text || folder_room(*len + n) != folder_room(*len))
        *text = realloc(*text, folder_room(*len + n));
    memcpy(*text + *len, more, n);
    *len += n;
    (*text)[*len] = 0;
}

static inline void folder_value(folder_writer *w, folder_shard *s, float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    if (w->dtype == SL_F32) {
        folder_append(&s->data, &s->data_len, &u, 4);
    } else if (w->dtype == SL_BF16) {
        uint16_t h = (uint16_t)(u >> 16);
        folder_append(&s->data, &s->data_len, &h, 2);
    } else {
        /* truncation is fine: any half in the normal range will do */
        int32_t e = (int32_t)(u >> 23 & 255) - 112;
        uint16_t h =
            (uint16_t)((u >> 16 & 0x8000) | (e < 1 ? 0 : (uint32_t)e << 10 | (u >> 13 & 1023)));
        folder_append(&s->data, &s->data_len, &h, 2);
    }
}

static inline void folder_tensor(folder_writer *w, const sl_arch_tensor *t, const char *name,
                                 const uint64_t *dim, uint32_t n_dims) {
    static const char *const dtype[] = {"F32", "F16", "BF16"};
    uint32_t file = w->next++ % w->n_shards;
    folder_shard *s = &w->shard[file];
    size_t begin = s->data_len;
    char text[512], shape[64];
    uint64_t count = 1;
    for (uint32_t i = 0; i < n_dims; i++) count *= dim[i];
    for (uint64_t i = 0; i < count; i++) {
        float u = (float)(sl_rng_below(&w->rng, 20001) / 10000.0 - 1.0);
        folder_value(w, s, t->k == SL_DIM_NONE ? 1.0f + 0.2f * u : 0.35f * u);
    }
    sl_st_shape_text(dim, n_dims, shape, sizeof shape);
    for (char *p = shape, *q = shape; (*q = *p); p++) q += *p != ' ';
    int len = snprintf(
        text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
        s->header_len > 1 ? "," : "", name, dtype[w->dtype], shape, begin, s->data_len);
    folder_append(&s->header, &s->header_len, text, (size_t)len);
    len = snprintf(text, sizeof text, "%s\"%s\":\"model-%u.safetensors\"",
                   w->index_len > 0 ? "," : "", name, file);
    folder_append(&w->index, &w->index_len, text, (size_t)len);
}

static inline void folder_write_shard(const char *dir, const char *name, const char *header,
                                      size_t header_len, const void *data, size_t data_len) {
    size_t pad = (8 - header_len % 8) % 8, n = 8 + header_len + pad + data_len;
    uint8_t *file = malloc(n);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)(header_len + pad) >> (8 * i));
    memcpy(file + 8, header, header_len);
    memset(file + 8 + header_len, ' ', pad);
    if (data_len) memcpy(file + 8 + header_len + pad, data, data_len);
    folder_write(dir, name, file, n);
    free(file);
}

/* Makes a folder below /tmp; dir receives its name. shards == 1: model.safetensors. */
static inline void folder_make(char dir[64], const char *config, sl_dtype dtype, uint32_t shards,
                               uint64_t seed) {
    folder_writer w = {.n_shards = shards, .rng = seed, .dtype = dtype};
    sl_model_spec m;
    sl_err err = {0};
    sl_span text = {(const uint8_t *)config, strlen(config)};
    snprintf(dir, 64, "/tmp/sluice-test-XXXXXX");
    if (!mkdtemp(dir)) abort();
    if (sl_hf_config_parse("config.json", text, &m, &err) != SL_OK) abort();
    const sl_arch *a = sl_arch_find(m.arch);
    for (uint32_t i = 0; i < shards; i++)
        folder_append(&w.shard[i].header, &w.shard[i].header_len, "{", 1);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const sl_arch_tensor *t = &a->tensor[i];
        if (!sl_arch_tensor_used(&m, t) || t->scope == SL_SCOPE_MTP) continue;
        for (uint32_t l = 0; l < m.n_layers; l++) {
            if (!sl_model_has(&m, t, l)) continue;
            for (uint32_t e = 0; e < (t->scope == SL_SCOPE_EXPERT ? m.n_experts : 1); e++) {
                const sl_arch_store *s = sl_arch_store_of(a, t->role);
                char name[SL_ARCH_NAME_MAX];
                uint64_t dim[3] = {sl_arch_dim_value(&m, t->n), sl_arch_dim_value(&m, t->k)};
                uint32_t n = t->k == SL_DIM_NONE ? 1 : 2;
                if (s && (s->before[0] != SL_DIM_NONE || s->phase || (s->stack && e))) continue;
                if (s) n = sl_store_shape(&(sl_model){.stored = m}, s, t, dim);
                sl_arch_tensor_name(a, &m, t, l, e, name);
                folder_tensor(&w, t, name, dim, n);
            }
        }
    }
    for (uint32_t i = 0; i < shards; i++) {
        folder_shard *s = &w.shard[i];
        char name[64];
        if (shards == 1)
            snprintf(name, sizeof name, "model.safetensors");
        else
            snprintf(name, sizeof name, "model-%u.safetensors", i);
        folder_append(&s->header, &s->header_len, "}", 1);
        folder_write_shard(dir, name, s->header, s->header_len, s->data, s->data_len);
        free(s->header);
        free(s->data);
    }
    if (shards > 1) {
        char *index = NULL;
        size_t len = 0;
        folder_append(&index, &len, "{\"metadata\":{},\"weight_map\":{", 29);
        folder_append(&index, &len, w.index, w.index_len);
        folder_append(&index, &len, "}}", 2);
        folder_write(dir, "model.safetensors.index.json", index, len);
        free(index);
    }
    free(w.index);
    folder_write(dir, "config.json", config, strlen(config));
}

static inline int folder_remove_file(const char *dir, const char *name) {
    char path[512];
    folder_path(path, dir, name);
    return unlink(path);
}

static inline void folder_remove(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') folder_remove_file(dir, e->d_name);
    closedir(d);
    rmdir(dir);
}

/* Text with the first `from` replaced by `to`; aborts when there is none. */
static inline char *folder_replace(const char *text, size_t n, const char *from, const char *to,
                                   size_t *out_n) {
    const char *at = memmem(text, n, from, strlen(from));
    if (!at) {
        fprintf(stderr, "no \"%s\" to replace\n", from);
        abort();
    }
    char *out = NULL;
    *out_n = 0;
    folder_append(&out, out_n, text, (size_t)(at - text));
    folder_append(&out, out_n, to, strlen(to));
    folder_append(&out, out_n, at + strlen(from), n - (size_t)(at - text) - strlen(from));
    return out;
}

static inline void folder_patch_text(const char *dir, const char *name, const char *from,
                                     const char *to) {
    size_t n, m;
    char *text = folder_read(dir, name, &n), *out = folder_replace(text, n, from, to, &m);
    folder_write(dir, name, out, m);
    free(text);
    free(out);
}

/* The same inside the JSON header of a safetensors file, whose data stay as they are. */
static inline void folder_patch_header(const char *dir, const char *name, const char *from,
                                       const char *to) {
    size_t n, m;
    char *file = folder_read(dir, name, &n);
    uint64_t head = 0;
    memcpy(&head, file, 8);
    char *out = folder_replace(file + 8, head, from, to, &m);
    while (m > 0 && out[m - 1] == ' ') m--;
    folder_write_shard(dir, name, out, m, file + 8 + head, n - 8 - head);
    free(file);
    free(out);
}

#endif

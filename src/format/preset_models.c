/* Published models by name, as their config.json has them. */
#include "format/presets.h"

#include <strings.h>

/* Blocks, each how many of them has experts, words, positions. */
#define MODEL(id, layers, every, words, positions)                                                 \
    .name = (id), .n_layers = (layers), .moe_every = (every), .vocab = (words),                    \
    .max_position = (positions)
/* Grouped-query attention: d_model, heads, key/value heads, head dimension. */
#define GQA_ONLY(d, h, kv, dim)                                                                    \
    .attention = SL_ATTENTION_GQA, .d_model = (d), .n_heads = (h), .n_kv_heads = (kv),             \
    .qk_head_dim = (dim), .v_head_dim = (dim)
#define GQA(d, h, kv, dim) GQA_ONLY(d, h, kv, dim), .norms_per_layer = 2
/* The latent attention that DeepSeek-V2 and V3 share: d_model, heads, width of the query latent. */
#define MLA(d, h, q)                                                                               \
    .attention = SL_ATTENTION_MLA, .d_model = (d), .n_heads = (h), .n_kv_heads = (h),              \
    .qk_head_dim = 192, .v_head_dim = 128, .q_lora = (q), .kv_lora = 512, .qk_nope_dim = 128,      \
    .qk_rope_dim = 64, .norms_per_layer = 2
#define EXPERTS(n, k, width) .n_experts = (n), .top_k = (k), .d_ff_expert = (width)
#define BF16                 .attention_weight_bytes = 2, .expert_weight_bytes = 2, .kv_value_bytes = 2
#define FP8                  .attention_weight_bytes = 1, .expert_weight_bytes = 1, .kv_value_bytes = 2

static const sl_shape models[] = {
    {MODEL("mixtral-8x7b", 32, 1, 32000, 32768), GQA(4096, 32, 8, 128), EXPERTS(8, 2, 14336), BF16},
    /* AMoE 5.2's stand-in for Llama 4: Mixtral 8x7B with 16 experts, of which one is taken. */
    {MODEL("mixtral-16e-top1", 32, 1, 32000, 32768), GQA(4096, 32, 8, 128), EXPERTS(16, 1, 14336),
     BF16},
    {MODEL("mixtral-8x22b", 56, 1, 32768, 65536), GQA(6144, 48, 8, 128), EXPERTS(8, 2, 16384),
     BF16},
    {MODEL("dbrx", 40, 1, 100352, 32768), GQA(6144, 48, 8, 128), EXPERTS(16, 4, 10752), BF16},
    /* MegaScale-Infer, Table 4; heads and vocabulary are not published: groups of 8 queries and
     * 32000 words give the stated 317 B. */
    {MODEL("scaled-moe", 48, 1, 32000, 32768), GQA(8192, 64, 8, 128), EXPERTS(32, 4, 8192), BF16},
    {MODEL("arctic", 35, 1, 32000, 4096), GQA(7168, 56, 8, 128), EXPERTS(128, 2, 4864),
     .d_ff_residual = 7168, BF16},
    {MODEL("deepseek-v2", 60, 1, 102400, 163840), .n_dense_first = 1, MLA(5120, 128, 1536),
     EXPERTS(160, 6, 1536), .d_ff_shared = 2 * 1536, .d_ff_dense = 12288, BF16},
    {MODEL("deepseek-v2-lite", 27, 1, 102400, 163840), .n_dense_first = 1, MLA(2048, 16, 0),
     EXPERTS(64, 6, 1408), .d_ff_shared = 2 * 1408, .d_ff_dense = 10944, BF16},
    {MODEL("deepseek-v3", 61, 1, 129280, 163840), .n_mtp = 1, .n_dense_first = 3,
     MLA(7168, 128, 1536), EXPERTS(256, 8, 2048), .d_ff_shared = 2048, .d_ff_dense = 18432,
     .router_bias = true, FP8},
    {MODEL("deepseek-r1", 61, 1, 129280, 163840), .n_mtp = 1, .n_dense_first = 3,
     MLA(7168, 128, 1536), EXPERTS(256, 8, 2048), .d_ff_shared = 2048, .d_ff_dense = 18432,
     .router_bias = true, FP8},
    {MODEL("qwen3-30b-a3b", 48, 1, 151936, 40960), GQA(2048, 32, 4, 128), .qk_norm = true,
     EXPERTS(128, 8, 768), BF16},
    {MODEL("qwen3-235b-a22b", 94, 1, 151936, 40960), GQA(4096, 64, 4, 128), .qk_norm = true,
     EXPERTS(128, 8, 1536), BF16},
    {MODEL("qwen3-next-80b-a3b", 48, 1, 151936, 262144), .n_mtp = 1, GQA(2048, 16, 2, 256),
     .gated = true, .qk_norm = true, .n_linear_layers = 36, .delta_channels = 8192,
     .delta_taps = 4, .delta_heads = 32, .delta_out = 4096, .delta_state = 524288,
     EXPERTS(512, 10, 512), .d_ff_shared = 512, .shared_gate = true, BF16},
    {MODEL("qwen2-57b-a14b", 28, 1, 151936, 32768), GQA(3584, 28, 4, 128), .qkv_bias = true,
     EXPERTS(64, 8, 2560), .d_ff_shared = 20480, .shared_gate = true, BF16},
    /* Language parts only. */
    {MODEL("llama4-scout", 48, 1, 202048, 10485760), GQA(5120, 40, 8, 128), EXPERTS(16, 1, 8192),
     .d_ff_shared = 8192, BF16},
    {MODEL("llama4-maverick", 48, 2, 202048, 1048576), GQA(5120, 40, 8, 128), EXPERTS(128, 1, 8192),
     .d_ff_shared = 8192, .d_ff_dense = 16384, BF16},
    {MODEL("gpt-oss-20b", 24, 1, 201088, 131072), GQA(2880, 64, 8, 64), .qkv_bias = true,
     .o_bias = true, .sink = true, .window = 128, .n_windowed_layers = 12, EXPERTS(32, 4, 2880),
     .router_bias = true, .expert_bias = true, .attention_weight_bytes = 2,
     .expert_weight_bytes = 0.53125, .kv_value_bytes = 2},
    {MODEL("gpt-oss-120b", 36, 1, 201088, 131072), GQA(2880, 64, 8, 64), .qkv_bias = true,
     .o_bias = true, .sink = true, .window = 128, .n_windowed_layers = 18, EXPERTS(128, 4, 2880),
     .router_bias = true, .expert_bias = true, .attention_weight_bytes = 2,
     .expert_weight_bytes = 0.53125, .kv_value_bytes = 2},
    {MODEL("glm-4.5", 92, 1, 151552, 131072), .n_mtp = 1, .n_dense_first = 3, GQA(5120, 96, 8, 128),
     .qkv_bias = true, .qk_norm = true, EXPERTS(160, 8, 1536), .d_ff_shared = 1536,
     .d_ff_dense = 12288, .router_bias = true, BF16},
    {MODEL("glm-4.5-air", 46, 1, 151552, 131072), .n_mtp = 1, .n_dense_first = 1,
     GQA(4096, 96, 8, 128), .qkv_bias = true, EXPERTS(128, 8, 1408), .d_ff_shared = 1408,
     .d_ff_dense = 10944, .router_bias = true, BF16},
};

const sl_shape *sl_preset_model(const char *name) {
    for (size_t i = 0; i < SL_LEN(models); i++)
        if (strcasecmp(models[i].name, name) == 0) return &models[i];
    return NULL;
}

const char *sl_preset_model_name(size_t i) {
    return i < SL_LEN(models) ? models[i].name : NULL;
}

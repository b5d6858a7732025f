/* Any bytes as config.json, and what follows a NUL as generation_config.json. */
#include "format/arch.h"
#include "format/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_model_spec m;
    sl_generation_spec gen = sl_hf_generation_none();
    sl_err err = {0};
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    if (sl_hf_config_parse("fuzz", (sl_span){data, n}, &m, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
        return 0;
    }
    SL_ASSERT(m.n_moe > 0 && m.n_moe <= m.n_layers && m.n_layers <= SL_MAX_LAYERS);
    SL_ASSERT(m.top_k > 0 && m.top_k <= m.n_experts && m.top_k <= SL_MAX_TOP_K);
    SL_ASSERT(m.n_heads % m.n_kv_heads == 0 && m.head_dim % 2 == 0 && m.head_dim > 0);
    SL_ASSERT(m.n_eos <= SL_MAX_EOS && m.vocab > 0);
    for (uint32_t i = 0; i < m.n_moe; i++) SL_ASSERT(m.moe_index[m.moe_layer[i]] == i);
    sl_arch_count_params(sl_arch_find(m.arch), &m);
    if (nul &&
        sl_hf_generation_parse("fuzz", (sl_span){nul + 1, size - n - 1}, &m, &gen, &err) != SL_OK)
        SL_ASSERT(err.msg[0] != 0);
    return 0;
}

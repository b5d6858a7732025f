/* Any bytes as a GGUF file: it is read or refused; what is read is consistent, and its model and
 * tokenizer are read or refused as well. */
#include "format/gguf_config.h"
#include "text/tokenizer_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const sl_gguf *g, size_t size) {
    uint64_t at = sl_gguf_head(g, 0).len;
    volatile double sum = 0;
    for (size_t i = 0; i < sl_gguf_tensors(g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        SL_ASSERT(t->begin >= at && t->end >= t->begin && t->end <= size);
        SL_ASSERT(t->n_dims > 0 && t->n_dims <= SL_GGUF_MAX_DIMS);
        SL_ASSERT(sl_gguf_tensor_find(g, t->name) == t);
        at = t->end;
    }
    for (size_t i = 0; i < sl_gguf_keys(g); i++) {
        const sl_gguf_kv *kv = sl_gguf_key_at(g, i);
        size_t place = 0;
        uint64_t n = 0;
        sl_span s;
        SL_ASSERT(kv->value.len <= size);
        if (kv->type != SL_GGUF_STRING) {
            for (uint64_t j = 0; j < kv->count && j < 100; j++) sum += sl_gguf_number_at(kv, j);
        } else if (kv->array) {
            while (sl_gguf_next_string(kv, &place, &s)) n++;
            SL_ASSERT(n == kv->count && place == kv->value.len);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_gguf *g = NULL;
    sl_err err = {0};
    sl_model_spec spec;
    sl_generation_spec gen;
    sl_tokenizer *tok = NULL;
    if (sl_gguf_parse("fuzz", (sl_span){data, size}, &g, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
        return 0;
    }
    walk(g, size);
    if (sl_gguf_config_parse(g, &spec, &gen, &err) == SL_OK)
        SL_ASSERT(spec.n_layers > 0 && spec.vocab > 0 && spec.n_heads % spec.n_kv_heads == 0 &&
                  spec.top_k <= spec.n_experts && spec.head_dim % 2 == 0);
    if (sl_tokenizer_from_gguf(g, &tok, &err) == SL_OK) sl_tokenizer_free(tok);
    sl_gguf_close(g);
    return 0;
}

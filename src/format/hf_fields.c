/* What readers of config.json share. */
#include "format/hf_config_int.h"

sl_status sl_hf_u32(sl_json root, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                    uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_json_u64(root, key, need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

sl_status sl_hf_expect_u32(sl_json root, const char *key, uint32_t want, const char *why,
                           sl_err *err) {
    uint32_t v = want;
    sl_status st = sl_hf_u32(root, key, SL_JSON_OPTIONAL, 0, UINT32_MAX, &v, err);
    if (st == SL_OK && v != want)
        st = sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "%u is not %s (%u)", v, why, want);
    return st;
}

sl_status sl_hf_sizes(sl_json root, const sl_family *f, sl_json_need context, sl_model_spec *m,
                      sl_err *err) {
    const sl_family_keys *k = &f->key;
    sl_status st =
        sl_hf_u32(root, k->layers, SL_JSON_REQUIRED, 1, SL_MAX_LAYERS, &m->n_layers, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->d_model, SL_JSON_REQUIRED, 1, SL_MAX_D_MODEL, &m->d_model, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, "vocab_size", SL_JSON_REQUIRED, 1, SL_MAX_VOCAB, &m->vocab, err);
    if (st == SL_OK)
        st = sl_hf_u32(root, k->max_position, context, 1, SL_MAX_POSITION, &m->max_position, err);
    return st == SL_OK
               ? sl_json_bool(root, "tie_word_embeddings", SL_JSON_OPTIONAL, &m->tied_head, err)
               : st;
}

sl_status sl_hf_shape_shared(sl_json root, sl_shape *s, sl_err *err) {
    uint32_t n = 0;
    sl_status st =
        sl_hf_u32(root, "n_shared_experts", SL_JSON_OPTIONAL, 0, SL_MAX_SHARED_EXPERTS, &n, err);
    if (st == SL_OK && (uint64_t)n * s->d_ff_expert > SL_MAX_WIDTH)
        return sl_json_fail(root, "n_shared_experts", err, SL_ERR_LIMIT,
                            "%u experts of width %u are wider than %u together", n, s->d_ff_expert,
                            SL_MAX_WIDTH);
    s->d_ff_shared = n * s->d_ff_expert;
    return st;
}

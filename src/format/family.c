/* The list of families, and which of them a file names. */
#include "format/gguf_config_int.h"
#include "format/hf_config_int.h"

#include <stdio.h>

const sl_family *const sl_families[] = {
    &sl_hf_qwen3,       &sl_hf_qwen2,       &sl_hf_mixtral, &sl_hf_olmoe,
    &sl_hf_glm4,        &sl_hf_gpt_oss,     &sl_hf_llama4,  &sl_hf_llama4_nested,
    &sl_hf_deepseek_v2, &sl_hf_deepseek_v3, &sl_hf_dbrx,    &sl_hf_arctic,
};
const size_t sl_n_families = SL_LEN(sl_families);

const sl_family *sl_family_of_class(sl_span name) {
    for (size_t i = 0; i < sl_n_families; i++)
        if (sl_gguf_is_text(name, sl_families[i]->name)) return sl_families[i];
    return NULL;
}

sl_status sl_family_read(sl_json root, const char *unknown, const sl_family **out, sl_err *err) {
    sl_json list = {0};
    sl_span name = {0};
    char known[512] = "";
    sl_status st = sl_json_array(root, "architectures", SL_JSON_REQUIRED, &list, err);
    if (st != SL_OK) return st;
    if (sl_json_count(list) != 1 || !sl_json_as_span(sl_json_at(list, 0), &name))
        return sl_json_fail(root, "architectures", err, SL_ERR_FORMAT, "must be one class name");
    *out = sl_family_of_class(name);
    if (*out) return SL_OK;
    for (size_t i = 0, at = 0; i < sl_n_families && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "",
                               sl_families[i]->name);
    return sl_json_fail(root, "architectures", err, SL_ERR_UNSUPPORTED, "\"%.*s\" %s%s)",
                        (int)SL_MIN(name.len, (size_t)64), (const char *)name.data, unknown, known);
}

void sl_family_small(const sl_family *f, sl_shape *s) {
    s->qk_norm_wide = s->qk_norm && f->small & SL_SMALL_QK_WIDE;
    s->o_bias = s->qkv_bias && f->small & SL_SMALL_O_BIAS;
    s->expert_bias = f->small & SL_SMALL_EXPERT_BIAS;
    s->router_bias = f->small & SL_SMALL_ROUTER_BIAS;
    s->shared_gate = f->small & SL_SMALL_SHARED_GATE;
    s->sink = f->small & SL_SMALL_SINK;
}

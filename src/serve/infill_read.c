/* Bodies of llama.cpp's /infill as those of completions with a suffix. */
#include "serve/dialect_int.h"
#include "serve/params_int.h"

#include <inttypes.h>

/* Ways to draw a token that are not here, at the value that means "off". */
#define OFF_FIELDS                                                                                 \
    OFF(typical_p, 1)                                                                              \
    OFF(top_n_sigma, -1)                                                                           \
    OFF(xtc_probability, 0)                                                                        \
    OFF(dynatemp_range, 0)                                                                         \
    OFF(dry_multiplier, 0)                                                                         \
    OFF(mirostat, 0)                                                                               \
    OFF(n_indent, 0)                                                                               \
    OFF(n_probs, 0)                                                                                \
    OFF(t_max_predict_ms, 0)                                                                       \
    OFF(t_max_prompt_ms, 0)

const sl_dialect_field sl_infill_fields[] = {
#define SL_SAMPLING(type, name, ...) {#name, SL_FIELD_COPY, #name},
#include "spec/sampling.def"
    {"input_prefix", SL_FIELD_OWN, "prompt"},
    {"input_suffix", SL_FIELD_OWN, "suffix"},
    {"input_extra", SL_FIELD_COPY, "input_extra"},
    {"prompt", SL_FIELD_OWN, NULL},
    {"n_predict", SL_FIELD_OWN, "max_tokens"},
    {"max_tokens", SL_FIELD_OWN, NULL},
    {"repeat_penalty", SL_FIELD_COPY, "repetition_penalty"},
    {"seed", SL_FIELD_OWN, "seed"},
    {"model", SL_FIELD_COPY, "model"},
    {"stream", SL_FIELD_COPY, "stream"},
    {"stop", SL_FIELD_COPY, "stop"},
    {"timings_per_token", SL_FIELD_COPY, "timings_per_token"},
    {"logit_bias", SL_FIELD_COPY, "logit_bias"},
    {"ignore_eos", SL_FIELD_COPY, "ignore_eos"},
    {"return_tokens", SL_FIELD_COPY, "return_token_ids"},
    {"cache_prompt", SL_FIELD_COPY, "cache"},
    {"cache_salt", SL_FIELD_COPY, "cache_salt"},
    {"grammar", SL_FIELD_COPY, "grammar"},
    {"json_schema", SL_FIELD_COPY, "json_schema"},
    {"id_slot", SL_FIELD_IGNORE, NULL}, /* where it runs changes nothing */
    {"n_keep", SL_FIELD_IGNORE, NULL},  /* of a context that is shifted: none is */
    {"samplers", SL_FIELD_REFUSE, NULL},
    {"lora", SL_FIELD_REFUSE, NULL},
    {"response_fields", SL_FIELD_REFUSE, NULL},
#define OFF(name, value) {#name, SL_FIELD_OWN, NULL},
    OFF_FIELDS
#undef OFF
};
_Static_assert(SL_LEN(sl_infill_fields) == SL_INFILL_FIELDS, "as many as the header says");

static sl_status check_off(sl_json root, sl_api_error *e) {
    static const struct {
        const char *name;
        double value;
    } fields[] = {
#define OFF(name, value) {#name, value},
        OFF_FIELDS
#undef OFF
    };
    for (size_t i = 0; i < SL_LEN(fields); i++) {
        sl_json v = sl_json_get(root, fields[i].name);
        double x = 0;
        bool off = sl_json_as_f64(v, &x) && x == fields[i].value;
        if (sl_json_kind_of(v) > SL_JSON_NULL && !off)
            return sl_api_error_bad(e, fields[i].name, "%s: only %g, which is off, is supported",
                                    fields[i].name, fields[i].value);
    }
    return SL_OK;
}

/* What is in front of the gap: `prompt` is the end of it. */
static sl_status add_texts(sl_json root, sl_jbuf *b, sl_api_error *e) {
    sl_span before = {0}, last = {0}, behind = {0};
    sl_jbuf joined = sl_jbuf_init();
    sl_json prompt = sl_json_get(root, "prompt");
    if (!sl_json_as_span(sl_json_get(root, "input_prefix"), &before))
        return sl_api_error_bad(e, "input_prefix", "input_prefix: missing or not a string");
    if (!sl_json_as_span(sl_json_get(root, "input_suffix"), &behind))
        return sl_api_error_bad(e, "input_suffix", "input_suffix: missing or not a string");
    if (sl_json_kind_of(prompt) > SL_JSON_NULL && !sl_json_as_span(prompt, &last))
        return sl_api_error_bad(e, "prompt", "prompt: not a string");
    sl_jbuf_put(&joined, (const char *)before.data, before.len);
    sl_jbuf_put(&joined, (const char *)last.data, last.len);
    sl_jbuf_fmt(b, ",\"prompt\":");
    sl_jbuf_string(b, joined.data ? joined.data : "", joined.len);
    sl_jbuf_fmt(b, ",\"suffix\":");
    sl_jbuf_string(b, (const char *)behind.data, behind.len);
    b->ok = b->ok && joined.ok;
    sl_jbuf_free(&joined);
    return SL_OK;
}

/* -1: as many as the context leaves. */
static sl_status add_length(sl_json root, sl_jbuf *b, sl_api_extra *extra, sl_api_error *e) {
    static const char *const names[] = {"n_predict", "max_tokens"};
    const char *given = NULL;
    extra->to_end = true;
    for (size_t i = 0; i < SL_LEN(names); i++) {
        sl_json v = sl_json_get(root, names[i]);
        int64_t n = 0;
        if (sl_json_kind_of(v) <= SL_JSON_NULL) continue;
        if (given)
            return sl_api_error_bad(e, names[i], "%s: beside %s, which is the same", names[i],
                                    given);
        given = names[i];
        if (sl_json_as_i64(v, &n) && n == -1) continue;
        sl_jbuf_fmt(b, ",\"max_tokens\":");
        sl_jbuf_json(b, v);
    }
    return SL_OK;
}

sl_status sl_infill_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *completion,
                              sl_api_extra *extra, sl_api_error *e) {
    (void)limits;
    sl_json seed = sl_json_get(root, "seed");
    int64_t number = 0;
    bool drawn = sl_json_as_i64(seed, &number) && number == -1;
    extra->fills = true;
    sl_status st = add_texts(root, completion, e);
    if (st == SL_OK) st = add_length(root, completion, extra, e);
    if (st == SL_OK) st = check_off(root, e);
    if (st != SL_OK || drawn || sl_json_kind_of(seed) <= SL_JSON_NULL) return st;
    sl_jbuf_fmt(completion, ",\"seed\":");
    sl_jbuf_json(completion, seed);
    return SL_OK;
}

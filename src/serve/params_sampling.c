/* How a body wants tokens drawn: the rows of spec/sampling.def, the seed, the biases, and which
 * tokens are to be drawn alone, or not at all. */
#include "serve/params_int.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

static sl_status read_f32(sl_json root, const char *name, sl_range r, float *out, sl_api_error *e) {
    sl_err err = {0};
    double x = (double)*out;
    if (sl_json_f64(root, name, SL_JSON_OPTIONAL, r.lowest, r.highest, &x, &err) != SL_OK)
        return sl_api_field_error(e, name, &err);
    if (r.above && (double)(float)x <= r.lowest)
        return sl_api_error_bad(e, name, "%s: must be above %g", name, r.lowest);
    *out = (float)x;
    return SL_OK;
}

/* -1 stands for 0, as others have it. */
static sl_status read_u32(sl_json root, const char *name, sl_range r, uint32_t *out,
                          sl_api_error *e) {
    sl_err err = {0};
    int64_t number = 0;
    uint64_t n = *out;
    if (sl_json_as_i64(sl_json_get(root, name), &number) && number == -1)
        n = 0;
    else if (sl_json_u64(root, name, SL_JSON_OPTIONAL, (uint64_t)r.lowest, (uint64_t)r.highest, &n,
                         &err) != SL_OK)
        return sl_api_field_error(e, name, &err);
    *out = (uint32_t)n;
    return SL_OK;
}

static sl_status read_seed(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    sl_json given = sl_json_get(root, "seed");
    int64_t number = 0;
    double real = 0;
    p->has_seed = sl_json_kind_of(given) > SL_JSON_NULL;
    if (sl_json_as_i64(given, &number))
        p->sampling.seed = (uint64_t)number;
    else if (sl_json_as_f64(given, &real))
        return sl_api_error_bad(e, "seed", "seed: %.17g is not an integer of %" PRId64 "..%" PRId64,
                                real, INT64_MIN, INT64_MAX);
    else if (sl_json_u64(root, "seed", SL_JSON_OPTIONAL, 0, INT64_MAX, &p->sampling.seed, &err) !=
             SL_OK)
        return sl_api_field_error(e, "seed", &err);
    return SL_OK;
}

static bool parse_id(const char *text, uint32_t vocab, uint32_t *out) {
    uint64_t id = 0;
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 10 || text[n]) return false;
    for (size_t i = 0; i < n; i++) id = 10 * id + (uint64_t)(text[i] - '0');
    *out = (uint32_t)id;
    return id < vocab;
}

/* All of them, as far as a message holds them. */
static sl_status refuse_keys(sl_json v, const sl_api_limits *limits, sl_api_error *e) {
    char list[320] = "";
    void *iter = NULL;
    const char *key;
    uint32_t id;
    size_t at = 0, n = 0, left = 0;
    for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
        if (parse_id(key, limits->vocab, &id)) continue;
        bool room = at + strnlen(key, 32) + 4 < sizeof list;
        if (room)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s\"%.32s\"", n ? ", " : "", key);
        n += room;
        left += !room;
    }
    char more[32] = "";
    if (left) snprintf(more, sizeof more, " and %zu more", left);
    return sl_api_error_bad(e, "logit_bias", "logit_bias: %s%s %s below %" PRIu32, list, more,
                            n > 1 ? "are not token ids" : "is not a token id", limits->vocab);
}

sl_status sl_api_add_bias(sl_api_params *p, uint32_t id, float bias) {
    uint32_t n = p->sampling.n_bias, at = n;
    while (at > 0 && p->bias[at - 1].id > id) at--;
    if (at > 0 && p->bias[at - 1].id == id)
        return p->bias[at - 1].bias == bias ? SL_OK : SL_ERR_ARG;
    if (n == SL_MAX_LOGIT_BIAS) return SL_ERR_LIMIT;
    if (!p->bias) p->bias = sl_alloc(SL_MAX_LOGIT_BIAS, sizeof *p->bias);
    if (!p->bias) return SL_ERR_NOMEM;
    memmove(p->bias + at + 1, p->bias + at, (n - at) * sizeof *p->bias);
    p->bias[at] = (sl_logit_bias){id, bias};
    p->sampling.bias = p->bias;
    p->sampling.n_bias++;
    return SL_OK;
}

static sl_status read_one_bias(sl_json v, const char *whose, float *out, sl_api_error *e) {
    double bias = 0;
    if (!sl_json_as_f64(v, &bias) || !(bias >= -SL_MAX_BIAS && bias <= SL_MAX_BIAS))
        return sl_api_error_bad(e, "logit_bias",
                                "logit_bias: the value of %.32s is not a number of -%d..%d", whose,
                                SL_MAX_BIAS, SL_MAX_BIAS);
    *out = (float)bias;
    return SL_OK;
}

static sl_status put_bias(sl_api_params *p, uint32_t id, float bias, sl_api_error *e) {
    sl_status st = sl_api_add_bias(p, id, bias);
    if (st == SL_ERR_ARG)
        return sl_api_error_bad(e, "logit_bias", "logit_bias: id %" PRIu32 " twice", id);
    return st == SL_OK ? SL_OK : sl_api_error_of(e, st, "logit_bias", NULL);
}

/* OpenAI's form: {"ID": number}. */
static sl_status read_bias_map(sl_json v, const sl_api_limits *limits, sl_api_params *p,
                               sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
        uint32_t id = 0;
        float bias = 0;
        if (!parse_id(key, limits->vocab, &id)) return refuse_keys(v, limits, e);
        for (uint32_t i = 0; i < p->sampling.n_bias; i++) /* "1" and "01" */
            if (p->bias[i].id == id)
                return sl_api_error_bad(e, "logit_bias", "logit_bias: id %" PRIu32 " twice", id);
        sl_status st = read_one_bias(f, key, &bias, e);
        if (st == SL_OK) st = put_bias(p, id, bias, e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* llama.cpp's: [[ID or TEXT, number]], where a text stands for each of its tokens. */
static sl_status read_bias_list(sl_json v, const sl_api_limits *limits, sl_api_params *p,
                                sl_api_error *e) {
    size_t n = sl_json_count(v);
    p->bias_text = sl_alloc(n, sizeof *p->bias_text);
    if (!p->bias_text) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    for (size_t i = 0; i < n; i++) {
        sl_json pair = sl_json_at(v, i), whose = sl_json_at(pair, 0);
        sl_api_bias *text = &p->bias_text[p->n_bias_texts];
        char name[32];
        uint64_t id = 0;
        float bias = 0;
        snprintf(name, sizeof name, "[%zu]", i);
        bool is_text = sl_json_as_span(whose, &text->text);
        bool is_id = sl_json_as_u64(whose, &id) && id < limits->vocab;
        if (sl_json_kind_of(pair) != SL_JSON_ARRAY || sl_json_count(pair) != 2 ||
            !(is_text || is_id) || (is_text && text->text.len == 0))
            return sl_api_error_bad(
                e, "logit_bias", "logit_bias%s: not [ID or TEXT, number] with an id below %" PRIu32,
                name, limits->vocab);
        sl_status st = read_one_bias(sl_json_at(pair, 1), name, &bias, e);
        if (st == SL_OK && is_id) st = put_bias(p, (uint32_t)id, bias, e);
        if (st != SL_OK) return st;
        text->bias = bias;
        p->n_bias_texts += is_text;
    }
    return SL_OK;
}

static sl_status read_bias(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                           sl_api_error *e) {
    sl_json v = sl_json_get(root, "logit_bias");
    sl_json_kind kind = sl_json_kind_of(v);
    if (kind <= SL_JSON_NULL) return SL_OK;
    if (kind != SL_JSON_OBJECT && kind != SL_JSON_ARRAY)
        return sl_api_error_bad(e, "logit_bias", "logit_bias: neither an object nor an array");
    size_t n = sl_json_count(v);
    if (n > SL_MAX_LOGIT_BIAS)
        return sl_api_error_bad(e, "logit_bias", "logit_bias: %zu ids, limit %u", n,
                                SL_MAX_LOGIT_BIAS);
    if (n == 0) return SL_OK;
    return kind == SL_JSON_OBJECT ? read_bias_map(v, limits, p, e)
                                  : read_bias_list(v, limits, p, e);
}

sl_status sl_api_id_at(sl_json array, size_t i, const char *field, uint32_t vocab, uint32_t *out,
                       sl_api_error *e) {
    uint64_t id = 0;
    if (!sl_json_as_u64(sl_json_at(array, i), &id) || id >= vocab)
        return sl_api_error_bad(e, field, "%s[%zu]: not a token id below %" PRIu32, field, i,
                                vocab);
    *out = (uint32_t)id;
    return SL_OK;
}

static sl_status read_allowed(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                              sl_api_error *e) {
    static const char field[] = "allowed_token_ids";
    sl_err err = {0};
    sl_json v = {0};
    if (sl_json_array(root, field, SL_JSON_OPTIONAL, &v, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    if (!v.value) return SL_OK;
    const size_t n = sl_json_count(v);
    if (n == 0) return sl_api_error_bad(e, field, "%s: empty, at least one id", field);
    p->allowed = sl_alloc(sl_id_words(limits->vocab), sizeof *p->allowed);
    if (!p->allowed) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    p->sampling.allowed = p->allowed;
    p->sampling.n_allowed = sl_id_words(limits->vocab);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = 0;
        if (sl_api_id_at(v, i, field, limits->vocab, &id, e) != SL_OK) return SL_ERR_ARG;
        p->allowed[id / 32] |= 1u << id % 32;
    }
    return SL_OK;
}

static sl_status read_bad_words(sl_json root, sl_api_params *p, sl_api_error *e) {
    static const char field[] = "bad_words";
    sl_err err = {0};
    sl_span word;
    if (sl_json_array(root, field, SL_JSON_OPTIONAL, &p->bad_words, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    const size_t n = p->bad_words.value ? sl_json_count(p->bad_words) : 0;
    if (n > SL_MAX_BAD_WORDS)
        return sl_api_error_bad(e, field, "%s: %zu strings, limit %u", field, n, SL_MAX_BAD_WORDS);
    for (size_t i = 0; i < n; i++) {
        if (!sl_json_as_span(sl_json_at(p->bad_words, i), &word))
            return sl_api_error_bad(e, field, "%s[%zu]: not a string", field, i);
        if (word.len == 0 || word.len > SL_STOP_MAX_BYTES)
            return sl_api_error_bad(e, field, "%s[%zu]: %zu bytes, allowed are 1..%u", field, i,
                                    word.len, SL_STOP_MAX_BYTES);
    }
    return SL_OK;
}

sl_status sl_api_read_sampling(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                               sl_api_error *e) {
    p->sampling = sl_sampling_standard(&limits->gen);
    sl_status st = SL_OK;
#define SL_SAMPLING(type, name, byte, standard, whence, allowed, asked, whose, what)               \
    if (st == SL_OK) st = read_##type(root, #name, asked, &p->sampling.name, e);
#include "spec/sampling.def"
    if (st == SL_OK) st = read_seed(root, p, e);
    if (st == SL_OK) st = read_bias(root, limits, p, e);
    if (st == SL_OK) st = read_allowed(root, limits, p, e);
    return st == SL_OK ? read_bad_words(root, p, e) : st;
}

/* ---- the same as JSON Schemas ---- */

static void write_f32(sl_jbuf *b, sl_range r) {
    sl_jbuf_fmt(b, "{\"type\":[\"number\",\"null\"],\"%s\":%g,\"maximum\":%g}",
                r.above ? "exclusiveMinimum" : "minimum", r.lowest, r.highest);
}

static void write_u32(sl_jbuf *b, sl_range r) {
    /* -1 stands for 0 */
    sl_jbuf_fmt(b, "{\"type\":[\"integer\",\"null\"],\"minimum\":%d,\"maximum\":%.0f}",
                r.lowest > 0 ? (int)r.lowest : -1, r.highest);
}

void sl_api_write_sampling(sl_jbuf *b, const char *name) {
#define SL_SAMPLING(type, row, byte, standard, whence, allowed, asked, whose, what)                \
    if (!strcmp(name, #row)) write_##type(b, asked);
#include "spec/sampling.def"
}

void sl_api_write_seed(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"type\":\"integer\",\"minimum\":%" PRId64 ",\"maximum\":%" PRId64 "}",
                INT64_MIN, INT64_MAX);
}

void sl_api_write_bias(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(
        b,
        "{\"anyOf\":[{\"type\":\"object\",\"maxProperties\":%u,\"propertyNames\":{\"pattern\":"
        "\"^[0-9]{1,10}$\"},\"additionalProperties\":{\"type\":\"number\",\"minimum\":-%d,"
        "\"maximum\":%d}},",
        SL_MAX_LOGIT_BIAS, SL_MAX_BIAS, SL_MAX_BIAS);
    sl_jbuf_fmt(b,
                "{\"type\":\"array\",\"maxItems\":%u,\"items\":{\"type\":\"array\",\"minItems\":2,"
                "\"maxItems\":2,\"prefixItems\":[{\"anyOf\":[{\"type\":\"integer\",\"minimum\":0,"
                "\"maximum\":%" PRIu32
                "},{\"type\":\"string\",\"minLength\":1}]},{\"type\":\"number\","
                "\"minimum\":-%d,\"maximum\":%d}]}}]}",
                SL_MAX_LOGIT_BIAS, limits->vocab - 1, SL_MAX_BIAS, SL_MAX_BIAS);
}

void sl_api_write_allowed(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(b,
                "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":0,"
                "\"maximum\":%" PRIu32 "}}",
                limits->vocab - 1);
}

void sl_api_write_bad_words(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(
        b,
        "{\"type\":\"array\",\"maxItems\":%u,\"items\":{\"type\":\"string\",\"minLength\":1,"
        "\"maxLength\":%u}}",
        SL_MAX_BAD_WORDS, SL_STOP_MAX_BYTES);
}

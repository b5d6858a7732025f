/* What is around a gap that the answer is to fill: the text behind it, and files beside. */
#include "serve/params_int.h"

#include "base/mem.h"

static sl_status read_file(sl_json v, size_t i, sl_fim_file *out, sl_api_error *e) {
    static const char *const known[] = {"text", "filename"};
    sl_err err = {0};
    sl_json name = sl_json_get(v, "filename");
    if (sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, "input_extra", "input_extra[%zu]: not an object", i);
    if (sl_json_only(v, known, SL_LEN(known), &err) != SL_OK)
        return sl_api_field_error(e, "input_extra", &err);
    if (!sl_json_as_span(sl_json_get(v, "text"), &out->text))
        return sl_api_error_bad(e, "input_extra", "input_extra[%zu].text: missing or not a string",
                                i);
    if (sl_json_kind_of(name) > SL_JSON_NULL && !sl_json_as_span(name, &out->name))
        return sl_api_error_bad(e, "input_extra", "input_extra[%zu].filename: not a string", i);
    return SL_OK;
}

static sl_status read_files(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    if (sl_json_array(root, "input_extra", SL_JSON_OPTIONAL, &v, &err) != SL_OK)
        return sl_api_field_error(e, "input_extra", &err);
    size_t n = v.value ? sl_json_count(v) : 0;
    if (n > SL_API_MAX_FILES)
        return sl_api_error_bad(e, "input_extra", "input_extra: %zu files, limit %u", n,
                                SL_API_MAX_FILES);
    if (n == 0) return SL_OK;
    p->file = sl_alloc(n, sizeof *p->file);
    if (!p->file) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    for (; p->n_files < n; p->n_files++) {
        size_t i = p->n_files;
        sl_status st = read_file(sl_json_at(v, i), i, &p->file[i], e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_api_read_fill(sl_json root, sl_api_params *p, sl_api_error *e) {
    sl_json v = sl_json_get(root, "suffix");
    if (sl_json_kind_of(v) > SL_JSON_NULL && !sl_json_as_span(v, &p->suffix))
        return sl_api_error_bad(e, "suffix", "suffix: not a string");
    sl_status st = read_files(root, p, e);
    if (st != SL_OK || p->suffix.len == 0) return st;
    if (p->echo)
        return sl_api_error_bad(e, "echo", "echo: not with suffix, which the answer stands before");
    if (p->truncate)
        return sl_api_error_bad(e, "truncate_prompt_tokens",
                                "truncate_prompt_tokens: not with suffix: what is cut off may be "
                                "the token that begins the prompt");
    return SL_OK;
}

void sl_api_write_suffix(sl_jbuf *b, const sl_api_limits *limits) {
    sl_jbuf_fmt(b, limits->fills ? "{\"type\":\"string\"}" : "{\"const\":\"\"}");
}

void sl_api_write_files(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(
        b,
        "{\"type\":\"array\",\"maxItems\":%u,\"items\":{\"type\":\"object\","
        "\"properties\":{\"text\":{\"type\":\"string\"},\"filename\":{\"type\":[\"string\","
        "\"null\"]}},\"required\":[\"text\"],\"additionalProperties\":{\"type\":\"null\"}}}",
        SL_API_MAX_FILES);
}

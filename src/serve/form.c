/* Forms of fields: held to, and written as JSON Schemas. */
#include "serve/form.h"

#include "serve/params_int.h"

#include <inttypes.h>

sl_status sl_form_check(const sl_form *f, sl_json root, const char *name, sl_api_error *e) {
    sl_err err = {0};
    sl_json v = {0};
    bool on;
    uint64_t n;
    double x;
    const char *text;
    sl_status st = SL_OK;
    switch (f->kind) {
    case SL_FORM_BOOL:
        st = sl_json_bool(root, name, SL_JSON_OPTIONAL, &on, &err);
        break;
    case SL_FORM_STRING:
        st = sl_json_string(root, name, SL_JSON_OPTIONAL, &text, &err);
        break;
    case SL_FORM_ARRAY:
        st = sl_json_array(root, name, SL_JSON_OPTIONAL, &v, &err);
        break;
    case SL_FORM_OBJECT:
        st = sl_json_object(root, name, SL_JSON_OPTIONAL, &v, &err);
        break;
    case SL_FORM_INTEGER:
        st = sl_json_u64(root, name, SL_JSON_OPTIONAL, (uint64_t)f->low, (uint64_t)f->high, &n,
                         &err);
        break;
    case SL_FORM_NUMBER:
        st = sl_json_f64(root, name, SL_JSON_OPTIONAL, (double)f->low, (double)f->high, &x, &err);
        break;
    case SL_FORM_ANY:
    case SL_FORM_TOKENS:
    case SL_FORM_SAMPLING:
    case SL_FORM_WRITTEN:
        break;
    }
    return st == SL_OK ? SL_OK : sl_api_field_error(e, name, &err);
}

sl_status sl_fields_check(const sl_field *fields, size_t n, sl_json root, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json v; sl_json_next(root, &iter, &key, &v);) {
        const sl_field *f = NULL;
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        for (size_t i = 0; i < n && !f; i++)
            if (!strcmp(fields[i].name, key)) f = &fields[i];
        if (!f) return sl_api_error_unknown(e, key);
        sl_status st = sl_form_check(&f->form, root, f->name, e);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* ---- schemas ---- */

void sl_form_write(sl_jbuf *b, const sl_form *f, const char *name, const sl_api_limits *limits) {
    static const char *const types[] = {
        [SL_FORM_BOOL] = "boolean",  [SL_FORM_STRING] = "string",   [SL_FORM_ARRAY] = "array",
        [SL_FORM_OBJECT] = "object", [SL_FORM_INTEGER] = "integer", [SL_FORM_NUMBER] = "number",
        [SL_FORM_TOKENS] = "integer"};
    if (f->kind == SL_FORM_ANY) {
        sl_jbuf_fmt(b, "{}");
    } else if (f->kind == SL_FORM_SAMPLING) {
        sl_api_write_sampling(b, name);
    } else if (f->kind == SL_FORM_WRITTEN) {
        sl_jbuf_fmt(b, "{\"anyOf\":[");
        f->write(b, limits);
        sl_jbuf_fmt(b, ",{\"type\":\"null\"}]}");
    } else {
        bool bounded = f->kind >= SL_FORM_INTEGER;
        int64_t high = f->kind == SL_FORM_TOKENS ? (int64_t)limits->context : f->high;
        sl_jbuf_fmt(b, "{\"type\":[\"%s\",\"null\"]", types[f->kind]);
        if (bounded) sl_jbuf_fmt(b, ",\"minimum\":%" PRId64 ",\"maximum\":%" PRId64, f->low, high);
        sl_jbuf_put(b, "}", 1);
    }
}

void sl_words_write(sl_jbuf *b, const char *const *words, size_t n) {
    sl_jbuf_put(b, "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) sl_jbuf_put(b, ",", 1);
        sl_jbuf_cstring(b, words[i]);
    }
    sl_jbuf_put(b, "]", 1);
}

void sl_schema_open(sl_jbuf *b) {
    sl_jbuf_fmt(b, "{\"type\":\"object\",\"properties\":{");
}

void sl_schema_name(sl_jbuf *b, const char *name) {
    if (b->len && b->data[b->len - 1] != '{') sl_jbuf_put(b, ",", 1);
    sl_jbuf_cstring(b, name);
    sl_jbuf_put(b, ":", 1);
}

void sl_schema_close(sl_jbuf *b, const char *const *required, size_t n_required) {
    /* what nobody knows is refused, but for null */
    sl_jbuf_fmt(b, "},\"additionalProperties\":{\"type\":\"null\"}");
    if (n_required) {
        sl_jbuf_fmt(b, ",\"required\":");
        sl_words_write(b, required, n_required);
    }
    sl_jbuf_put(b, "}", 1);
}

void sl_fields_write(sl_jbuf *b, const sl_field *fields, size_t n, const sl_api_limits *limits) {
    const char *required[16];
    size_t n_required = 0;
    sl_schema_open(b);
    for (size_t i = 0; i < n; i++) {
        sl_schema_name(b, fields[i].name);
        sl_form_write(b, &fields[i].form, fields[i].name, limits);
        if (fields[i].required && n_required < SL_LEN(required))
            required[n_required++] = fields[i].name;
    }
    sl_schema_close(b, required, n_required);
}

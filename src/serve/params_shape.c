/* What an answer is to be like: OpenAI's field, vLLM's, and llama.cpp's, each another way to say
 * the same. A body says it once. */
#include "serve/params_int.h"

#include <stdio.h>

/* One that nobody has said before. */
static sl_status take(sl_api_params *p, const char *field, sl_api_shape shape, sl_json of,
                      sl_api_error *e) {
    if (p->shape != SL_API_ANY)
        return sl_api_error_bad(e, field, "%s: the answer has a shape by %s already", field,
                                p->shape_field);
    p->shape = shape;
    p->shape_of = of;
    p->shape_field = field;
    return SL_OK;
}

/* A schema, as an object (or true and false), or as a text that is one. */
static sl_status take_schema(sl_api_params *p, const char *field, sl_json v, sl_api_error *e) {
    sl_err err = {0};
    sl_span text;
    if (sl_json_as_span(v, &text)) {
        if (p->shape_doc) return take(p, field, SL_API_SCHEMA, v, e);
        sl_status st = sl_json_parse_within(field, text, SL_API_MAX_MEMORY, &p->shape_doc, &err);
        if (st != SL_OK) return sl_api_error_of(e, st, field, err.msg);
        v = sl_json_root(p->shape_doc);
    }
    sl_json_kind kind = sl_json_kind_of(v);
    if (kind != SL_JSON_OBJECT && kind != SL_JSON_BOOL)
        return sl_api_error_bad(e, field, "%s: not a JSON Schema", field);
    return take(p, field, SL_API_SCHEMA, v, e);
}

static sl_status take_text(sl_api_params *p, const char *field, sl_api_shape shape, sl_json v,
                           sl_api_error *e) {
    if (sl_json_kind_of(v) == SL_JSON_STRING) return take(p, field, shape, v, e);
    return sl_api_error_bad(e, field, "%s: not a string", field);
}

static sl_status take_choice(sl_api_params *p, const char *field, sl_json v, sl_api_error *e) {
    sl_span text;
    for (size_t i = 0; i < sl_json_count(v); i++)
        if (!sl_json_as_span(sl_json_at(v, i), &text))
            return sl_api_error_bad(e, field, "%s: item %zu is not a string", field, i);
    if (sl_json_kind_of(v) != SL_JSON_ARRAY || sl_json_count(v) == 0)
        return sl_api_error_bad(e, field, "%s: not a list of strings", field);
    return take(p, field, SL_API_CHOICE, v, e);
}

/* {"type": ...} */
static const char format_field[] = "response_format";
static const char *const format_types[] = {"text", "json_object", "json_schema"};
static const char *const format_fields[] = {"type", "json_schema", "schema"};
static const char *const format_inner[] = {"name", "description", "schema", "strict"};

static sl_status read_format(sl_json v, sl_api_params *p, sl_api_error *e) {
    const char *field = format_field;
    sl_err err = {0};
    bool strict;
    sl_json type = sl_json_get(v, "type"), of = sl_json_get(v, "json_schema"),
            schema = sl_json_get(v, "schema");
    if (sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, field, "response_format: not an object");
    if (sl_json_only(v, format_fields, SL_LEN(format_fields), &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    if (sl_json_is_text(type, "text")) return SL_OK;
    if (sl_json_is_text(type, "json_object") && !schema.value)
        return take(p, field, SL_API_JSON, v, e);
    if (!sl_json_is_text(type, "json_schema") && !sl_json_is_text(type, "json_object"))
        return sl_api_error_bad(e, field,
                                "response_format.type: none of text, json_object, json_schema");
    if (schema.value) return take_schema(p, field, schema, e); /* llama.cpp's form */
    if (sl_json_kind_of(of) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, field, "response_format.json_schema: missing or not an object");
    if (sl_json_only(of, format_inner, SL_LEN(format_inner), &err) != SL_OK ||
        sl_json_bool(of, "strict", SL_JSON_OPTIONAL, &strict, &err) != SL_OK)
        return sl_api_field_error(e, field, &err);
    schema = sl_json_get(of, "schema");
    if (sl_json_kind_of(schema) <= SL_JSON_NULL) /* OpenAI: then any object */
        return take(p, field, SL_API_JSON, v, e);
    return take_schema(p, field, schema, e);
}

/* vLLM's: {"json" | "json_object" | "regex" | "choice" | "grammar": ...}. */
static const sl_field structured_fields[] = {
    {"json", false, SL_IS_WRITTEN(sl_api_write_any_schema)},
    {"json_object", false, SL_IS_BOOL},
    {"regex", false, SL_IS_STRING},
    {"choice", false, SL_IS_WRITTEN(sl_api_write_choices)},
    {"grammar", false, SL_IS_STRING},
    {"disable_any_whitespace", false, SL_IS_BOOL},
    {"disable_fallback", false, SL_IS_BOOL}, /* there is nothing to fall back to */
    {"disable_additional_properties", false, SL_IS_BOOL},
};
#define FIRST_OFF 6u /* of them, those that are taken only as false */

static sl_status read_structured(sl_json v, sl_api_params *p, sl_api_error *e) {
    static const char *const field = "structured_outputs";
    if (sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, field, "structured_outputs: not an object");
    sl_status st = sl_fields_check(structured_fields, SL_LEN(structured_fields), v, e);
    if (st != SL_OK) {
        snprintf(e->param, sizeof e->param, "%s", field);
        e->code = NULL;
        return st;
    }
    for (size_t i = FIRST_OFF; i < SL_LEN(structured_fields); i++) {
        bool on = false;
        (void)sl_json_as_bool(sl_json_get(v, structured_fields[i].name), &on);
        if (on)
            return sl_api_error_bad(e, field, "structured_outputs.%s: only false is supported",
                                    structured_fields[i].name);
    }
    bool object = false;
    (void)sl_json_as_bool(sl_json_get(v, "json_object"), &object);
    (void)sl_json_as_bool(sl_json_get(v, "disable_any_whitespace"), &p->compact);
    sl_json json = sl_json_get(v, "json"), regex = sl_json_get(v, "regex"),
            choice = sl_json_get(v, "choice"), grammar = sl_json_get(v, "grammar");
    if (object) st = take(p, field, SL_API_JSON, v, e);
    if (st == SL_OK && sl_json_kind_of(json) > SL_JSON_NULL) st = take_schema(p, field, json, e);
    if (st == SL_OK && sl_json_kind_of(regex) > SL_JSON_NULL)
        st = take_text(p, field, SL_API_REGEX, regex, e);
    if (st == SL_OK && sl_json_kind_of(choice) > SL_JSON_NULL)
        st = take_choice(p, field, choice, e);
    if (st == SL_OK && sl_json_kind_of(grammar) > SL_JSON_NULL)
        st = take_text(p, field, SL_API_GBNF, grammar, e);
    if (st == SL_OK && p->shape_field != field)
        return sl_api_error_bad(
            e, field, "structured_outputs: none of json, json_object, regex, choice, grammar");
    if (st == SL_OK && p->compact && p->shape != SL_API_JSON && p->shape != SL_API_SCHEMA)
        return sl_api_error_bad(e, field,
                                "structured_outputs.disable_any_whitespace: only of json and "
                                "json_object");
    return st;
}

/* A call that has to be made is the answer. OpenAI's format is of its texts, of which it has none
 * then; the others are of all that the model says. */
static sl_status check(sl_api_params *p, sl_api_error *e) {
    if (!p->forced.data && !p->required) return SL_OK;
    if (strcmp(p->shape_field, format_field) != 0)
        return sl_api_error_bad(e, p->shape_field,
                                "%s: not with a tool_choice that has a function called: the answer "
                                "is the call",
                                p->shape_field);
    p->shape = SL_API_ANY;
    p->shape_of = (sl_json){0};
    return SL_OK;
}

/* ---- the same as JSON Schemas ---- */

/* A schema, or a text that is one; true and false are some. */
void sl_api_write_any_schema(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"type\":[\"object\",\"boolean\",\"string\"]}");
}

void sl_api_write_choices(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_jbuf_fmt(b, "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}");
}

void sl_api_write_structured(sl_jbuf *b, const sl_api_limits *limits) {
    sl_fields_write(b, structured_fields, SL_LEN(structured_fields), limits);
}

void sl_api_write_format(sl_jbuf *b, const sl_api_limits *limits) {
    (void)limits;
    sl_schema_open(b);
    sl_schema_name(b, format_fields[0]);
    sl_jbuf_fmt(b, "{\"enum\":");
    sl_words_write(b, format_types, SL_LEN(format_types));
    sl_jbuf_put(b, "}", 1);
    sl_schema_name(b, format_fields[1]);
    sl_jbuf_fmt(b, "{\"type\":[\"object\",\"null\"],\"properties\":{");
    for (size_t i = 0; i < SL_LEN(format_inner); i++) {
        sl_schema_name(b, format_inner[i]);
        sl_jbuf_put(b, "{}", 2);
    }
    sl_jbuf_fmt(b, "},\"additionalProperties\":{\"type\":\"null\"}}");
    sl_schema_name(b, format_fields[2]);
    sl_jbuf_put(b, "{}", 2);
    sl_schema_close(b, format_fields, 1);
}

sl_status sl_api_read_shape(sl_json root, sl_api_params *p, sl_api_error *e) {
    static const struct {
        const char *field;
        sl_api_shape shape;
    } fields[] = {{"guided_json", SL_API_SCHEMA},  {"json_schema", SL_API_SCHEMA},
                  {"guided_regex", SL_API_REGEX},  {"guided_choice", SL_API_CHOICE},
                  {"guided_grammar", SL_API_GBNF}, {"grammar", SL_API_GBNF}};
    sl_json format = sl_json_get(root, format_field),
            structured = sl_json_get(root, "structured_outputs");
    sl_status st = SL_OK;
    if (sl_json_kind_of(format) > SL_JSON_NULL) st = read_format(format, p, e);
    if (st == SL_OK && sl_json_kind_of(structured) > SL_JSON_NULL)
        st = read_structured(structured, p, e);
    for (size_t i = 0; i < SL_LEN(fields) && st == SL_OK; i++) {
        sl_json v = sl_json_get(root, fields[i].field);
        if (sl_json_kind_of(v) <= SL_JSON_NULL) continue;
        if (fields[i].shape == SL_API_SCHEMA)
            st = take_schema(p, fields[i].field, v, e);
        else if (fields[i].shape == SL_API_CHOICE)
            st = take_choice(p, fields[i].field, v, e);
        else
            st = take_text(p, fields[i].field, fields[i].shape, v, e);
    }
    return st == SL_OK && p->shape != SL_API_ANY ? check(p, e) : st;
}

/* Shapes of calls: their arguments are JSON of a schema, or fields one by one. */
#include "serve/shapes_int.h"

#include <stdio.h>

sl_json sl_tool_function(sl_json tools, size_t i) {
    return sl_json_get(sl_json_at(tools, i), "function");
}

bool sl_tool_is_strict(sl_json function) {
    bool strict = false;
    return sl_json_as_bool(sl_json_get(function, "strict"), &strict) && strict;
}

/* ---- arguments as fields ---- */

/* Of a schema: what a reference of the form "#/$defs/NAME" means. */
static sl_json resolve(sl_json root, sl_json v) {
    for (unsigned depth = 0; depth < 8; depth++) {
        static const char *const under[] = {"$defs", "definitions"};
        sl_span ref = {0};
        sl_json to = {0};
        if (!sl_json_as_span(sl_json_get(v, "$ref"), &ref)) return v;
        for (size_t i = 0; i < SL_LEN(under); i++) {
            char prefix[24];
            size_t n = (size_t)snprintf(prefix, sizeof prefix, "#/%s/", under[i]);
            if (ref.len > n && !memcmp(ref.data, prefix, n))
                to = sl_json_get(sl_json_get(root, under[i]), (const char *)ref.data + n);
        }
        if (!to.value) return v;
        v = to;
    }
    return v;
}

/* A list of texts that no parser of fields reads as another kind of value. */
static bool are_words(sl_json values) {
    for (size_t i = 0; i < sl_json_count(values); i++) {
        sl_span text;
        if (!sl_json_as_span(sl_json_at(values, i), &text) || text.len == 0 ||
            memchr("0123456789-\"[{tfnTFN< \t\r\n", text.data[0], 25) ||
            memchr("< \t\r\n", text.data[text.len - 1], 5) || memchr(text.data, '\n', text.len))
            return false;
    }
    return sl_json_count(values) > 0;
}

/* Nothing but these words is asked of it. */
static bool is_list_alone(sl_json schema) {
    static const char *const known[] = {"type", "enum", "title", "description", "default"};
    return sl_json_only(schema, known, SL_LEN(known), NULL) == SL_OK;
}

/* Whether all references lead to definitions, which a part takes with it, and are its alone. */
static bool goes_alone(sl_json v) {
    void *iter = NULL;
    const char *key;
    sl_span ref;
    bool ok = true;
    if (sl_json_as_span(sl_json_get(v, "$ref"), &ref))
        ok = !strncmp((const char *)ref.data, "#/$defs/", 8) ||
             !strncmp((const char *)ref.data, "#/definitions/", 14);
    for (sl_json f; ok && sl_json_next(v, &iter, &key, &f);) ok = goes_alone(f);
    for (size_t i = 0; ok && sl_json_kind_of(v) == SL_JSON_ARRAY && i < sl_json_count(v); i++)
        ok = goes_alone(sl_json_at(v, i));
    return ok;
}

/* Any text: nothing else is asked of it. */
static bool is_plain_text(sl_json schema) {
    static const char *const known[] = {"type", "title", "description", "default", "examples"};
    return sl_json_is_text(sl_json_get(schema, "type"), "string") &&
           sl_json_only(schema, known, SL_LEN(known), NULL) == SL_OK;
}

/* Whether a value may be a text, as far as can be seen. */
static bool may_be_text(sl_json root, sl_json schema, unsigned depth) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    static const char *const hidden[] = {"allOf", "not", "if", "$ref", "$dynamicRef"};
    schema = resolve(root, schema);
    sl_json type = sl_json_get(schema, "type");
    if (sl_json_kind_of(type) == SL_JSON_STRING) return sl_json_is_text(type, "string");
    for (size_t i = 0; i < sl_json_count(type); i++)
        if (sl_json_is_text(sl_json_at(type, i), "string")) return true;
    if (sl_json_count(type)) return false;
    for (size_t u = 0; u < SL_LEN(unions) && depth < 8; u++) {
        sl_json list = sl_json_get(schema, unions[u]);
        for (size_t i = 0; i < sl_json_count(list); i++)
            if (may_be_text(root, sl_json_at(list, i), depth + 1)) return true;
        if (sl_json_count(list)) return false;
    }
    for (size_t i = 0; i < SL_LEN(hidden); i++)
        if (sl_json_get(schema, hidden[i]).value) return true;
    sl_json values = sl_json_get(schema, "enum");
    for (size_t i = 0; i < sl_json_count(values); i++)
        if (sl_json_kind_of(sl_json_at(values, i)) == SL_JSON_STRING) return true;
    sl_json one = sl_json_get(schema, "const");
    if (one.value) return sl_json_kind_of(one) == SL_JSON_STRING;
    return sl_json_count(values) == 0;
}

/* The value of a field, a part with a comma behind it; false: what is asked of it is not enforced
 * in a text without quotes. */
static bool put_value(sl_jbuf *b, const sl_tokenizer *tok, const sl_call_form *form, sl_json root,
                      sl_json schema) {
    sl_json meant = resolve(root, schema);
    sl_json values = sl_json_get(meant, "enum");
    if (is_plain_text(schema)) {
        sl_shape_marked(b, tok, "without", form->closing);
    } else if (are_words(values) && is_list_alone(meant) &&
               (schema.value == meant.value || sl_json_count(schema) == 1)) {
        sl_shape_put(b, "{\"choice\":");
        sl_shape_json(b, values);
        sl_shape_put(b, "}");
    } else if (sl_json_kind_of(schema) == SL_JSON_OBJECT && !may_be_text(root, schema, 0) &&
               goes_alone(schema) && !sl_json_get(schema, "$defs").value &&
               !sl_json_get(schema, "definitions").value) {
        sl_shape_schema(b, root, schema);
    } else {
        return false;
    }
    sl_shape_put(b, ",");
    return true;
}

static bool is_required(sl_json parameters, const char *key) {
    sl_json list = sl_json_get(parameters, "required");
    for (size_t i = 0; i < sl_json_count(list); i++)
        if (sl_json_is_text(sl_json_at(list, i), key)) return true;
    return false;
}

/* A strict function's arguments in the order of its schema, parts with commas behind them. */
static sl_status put_fields(sl_jbuf *b, const sl_tokenizer *tok, const sl_call_form *form,
                            sl_json function, sl_api_error *e) {
    static const char *const known[] = {"type",  "properties",  "required",
                                        "$defs", "definitions", "additionalProperties",
                                        "title", "description", "$schema"};
    sl_json parameters = sl_json_get(function, "parameters");
    sl_err err = {0};
    void *iter = NULL;
    const char *key;
    if (parameters.value && sl_json_only(parameters, known, SL_LEN(known), &err) != SL_OK)
        return sl_api_error_bad(e, "tools", "%s: not enforced where arguments are no JSON",
                                err.msg);
    sl_json properties = sl_json_get(parameters, "properties"),
            required_names = sl_json_get(parameters, "required");
    for (size_t i = 0; i < sl_json_count(required_names); i++) {
        sl_span name;
        if (sl_json_as_span(sl_json_at(required_names, i), &name) &&
            !sl_json_get(properties, (const char *)name.data).value)
            return sl_api_error_bad(e, "tools",
                                    "tools: parameter \"%.64s\" of a strict function is required "
                                    "and not listed: not enforced where arguments are no JSON",
                                    (const char *)name.data);
    }
    for (sl_json schema; sl_json_next(properties, &iter, &key, &schema);) {
        bool required = is_required(parameters, key);
        if (!sl_answer_is_plain_name((sl_span){(const uint8_t *)key, strlen(key)}))
            return sl_api_error_bad(e, "tools",
                                    "tools: parameter \"%.64s\" of a strict function has white "
                                    "space, quotes or brackets in its name",
                                    key);
        sl_shape_put(b, required ? "{\"seq\":[" : "{\"maybe\":{\"seq\":[");
        sl_shape_text(b, tok, form->key);
        sl_shape_put(b, "{\"text\":");
        sl_jbuf_cstring(b, key);
        sl_shape_put(b, "},");
        sl_shape_text(b, tok, form->value);
        if (!put_value(b, tok, form, parameters, schema))
            return sl_api_error_bad(
                e, "tools",
                "tools: parameter \"%.64s\" of a strict function: what is asked "
                "of a text is not enforced in this model's format of calls, "
                "which has no quotes",
                key);
        sl_shape_marked(b, tok, "text", form->next);
        sl_shape_put(b, required ? "]}," : "]}},");
    }
    return SL_OK;
}

/* ---- calls ---- */

/* Whether the arguments are those of the function's parameters. */
static bool is_held(sl_json function, sl_shape_how *how) {
    if (sl_tool_is_strict(function)) return true;
    how->changed = how->changed || how->held;
    return how->held;
}

/* Any object, where nothing else is asked of it. */
static void put_object(sl_jbuf *b, sl_json function, sl_shape_how *how) {
    sl_json parameters = sl_json_get(function, "parameters");
    bool any = !is_held(function, how) || sl_json_kind_of(parameters) != SL_JSON_OBJECT;
    if (any)
        sl_shape_put(b, "{\"json\":{\"type\":\"object\"}}");
    else
        sl_shape_schema(b, parameters, parameters);
}

/* Arguments and what is behind them, the last parts of a list. */
static sl_status put_arguments(sl_jbuf *b, const sl_tokenizer *tok, const sl_call_form *form,
                               sl_json function, sl_shape_how *how, sl_api_error *e) {
    if (!form->key) {
        put_object(b, function, how);
        if (form->behind[0]) {
            sl_shape_put(b, ",");
            sl_shape_marked(b, tok, "text", form->behind);
        }
        return SL_OK;
    }
    if (!is_held(function, how)) {
        sl_shape_marked(b, tok, "until", form->behind);
        return SL_OK;
    }
    sl_status st = put_fields(b, tok, form, function, e);
    sl_shape_marked(b, tok, "text", form->behind);
    return st;
}

/* gpt-oss: between the recipient, which stands in either half of a header, and the message. */
static void put_header(sl_jbuf *b, const sl_tokenizer *tok) {
    sl_shape_put(b, "{\"maybe\":");
    sl_shape_marked(b, tok, "text", "<|channel|>commentary");
    sl_shape_put(b, "},{\"maybe\":{\"or\":[{\"text\":\" json\"},");
    sl_shape_marked(b, tok, "text", " <|constrain|>json");
    sl_shape_put(b, "]}},");
    sl_shape_text(b, tok, "<|message|>");
}

sl_status sl_shape_calls(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                         sl_shape_how *how, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    const sl_tokenizer *tok = call->server->o.tokenizer;
    sl_status st = SL_OK;
    bool any = false;
    sl_shape_put(b, "{\"or\":[");
    for (size_t i = 0; i < sl_json_count(p->tools) && st == SL_OK; i++) {
        sl_span name = {0};
        sl_json f = sl_tool_function(p->tools, i);
        bool named = sl_json_as_span(sl_json_get(f, "name"), &name);
        if (!named || (p->forced.data && !sl_span_is(name, (const char *)p->forced.data))) continue;
        sl_shape_put(b, any ? ",{\"seq\":[{\"text\":" : "{\"seq\":[{\"text\":");
        sl_jbuf_string(b, (const char *)name.data, name.len);
        sl_shape_put(b, "},");
        if (call->server->style.tools == SL_TOOLS_HARMONY)
            put_header(b, tok);
        else
            sl_shape_text(b, tok, form->between);
        st = put_arguments(b, tok, form, f, how, e);
        sl_shape_put(b, "]}");
        any = true;
    }
    sl_shape_put(b, "]}");
    return st;
}

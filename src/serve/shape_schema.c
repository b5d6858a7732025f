/* Schemas of a request as parts of a shape: with what they refer to. */
#include "serve/shapes_int.h"

void sl_shape_schema(sl_jbuf *b, sl_json root, sl_json schema) {
    static const char *const under[] = {"$defs", "definitions"};
    void *iter = NULL;
    const char *key;
    bool any = false;
    sl_shape_put(b, "{\"listed\":");
    if (sl_json_kind_of(schema) != SL_JSON_OBJECT || schema.value == root.value) {
        sl_shape_json(b, schema);
        sl_shape_put(b, "}");
        return;
    }
    sl_shape_put(b, "{");
    for (sl_json f; sl_json_next(schema, &iter, &key, &f); any = true) {
        if (any) sl_shape_put(b, ",");
        sl_jbuf_cstring(b, key);
        sl_shape_put(b, ":");
        sl_shape_json(b, f);
    }
    for (size_t i = 0; i < SL_LEN(under); i++) {
        sl_json defs = sl_json_get(root, under[i]);
        if (!defs.value || sl_json_get(schema, under[i]).value) continue;
        sl_jbuf_fmt(b, "%s\"%s\":", any ? "," : "", under[i]);
        sl_shape_json(b, defs);
        any = true;
    }
    sl_shape_put(b, "}}");
}

/* What schemas say of the value under a name. */
#include "grammar/schema_int.h"
#include "grammar/chars.h"
#include "grammar/regex.h"

#include <stdio.h>

sl_status sl_schema_pattern(sl_schema *s, sl_json part, const char *pattern, sl_rx *out) {
    const sl_span text = {(const uint8_t *)pattern, strlen(pattern)};
    const sl_status st = sl_regex_parse(s->g->rx, text, SL_ALPHABET_KEY, true, out, s->err);
    if (st == SL_OK) return st;
    const sl_err why = *s->err;
    return sl_json_fail(part, "patternProperties", s->err, st, "%.60s: %s", pattern, why.msg);
}

/* Whether a name, written as in JSON, matches. */
static bool name_matches(sl_schema *s, sl_rx e, sl_span name) {
    return sl_rx_live(s->g->rx, sl_rx_and2(s->g->rx, e, sl_rx_json_text(s->g->rx, name)));
}

/* What one part says of the value under a name. */
static sl_status part_under(sl_schema *s, sl_json part, sl_span name, sl_schema_set *out,
                            bool *closed) {
    const sl_json more = sl_json_get(part, "additionalProperties"),
                  patterns = sl_json_get(part, "patternProperties");
    /* names under properties have no NUL */
    const sl_json own = memchr(name.data, 0, name.len)
                            ? (sl_json){0}
                            : sl_json_get(sl_json_get(part, "properties"), (const char *)name.data);
    bool found = own.value != NULL;
    void *iter = NULL;
    const char *pattern;
    sl_json child;
    sl_status st = SL_OK;
    if (own.value) {
        *closed |= sl_schema_is_false(own);
        st = sl_schema_set_add(s, out, own);
    }
    while (st == SL_OK && sl_json_next(patterns, &iter, &pattern, &child)) {
        sl_rx e;
        st = sl_schema_pattern(s, part, pattern, &e);
        if (st != SL_OK || !name_matches(s, e, name)) continue;
        found = true;
        *closed |= sl_schema_is_false(child);
        st = sl_schema_set_add(s, out, child);
    }
    if (st != SL_OK || found || !more.value) return st;
    *closed |= sl_schema_is_false(more);
    return sl_schema_set_add(s, out, more);
}

sl_status sl_schema_under(sl_schema *s, const sl_schema_set *parts, sl_span name,
                          sl_schema_set *out, bool *closed) {
    sl_status st = SL_OK;
    *closed = false;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++)
        st = part_under(s, parts->v[i], name, out, closed);
    return st;
}

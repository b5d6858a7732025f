/* Names of properties as expressions: what propertyNames allows, and which ones a condition is
 * about that some property has to meet. */
#include "grammar/schema_int.h"
#include "grammar/chars.h"

/* Strings that satisfy one schema, with quotes. */
static sl_status strings_of(sl_schema *s, sl_json schema, sl_rx *out) {
    const sl_schema_set set = {.v = &schema, .n = 1};
    sl_schema_ways ways = {0};
    sl_status st = sl_schema_expand(s, &set, &ways);
    *out = SL_RX_NONE;
    for (uint32_t k = 0; k < ways.n && st == SL_OK; k++) {
        bool listed = false;
        sl_rx e = SL_RX_NONE;
        ways.v[k].types &= SL_TYPE_STRING;
        if (!ways.v[k].types) continue;
        st = sl_schema_listed(s, &ways.v[k], &listed, &e);
        if (st == SL_OK && !listed) st = sl_schema_string(s, &ways.v[k].parts, &e);
        *out = sl_rx_or2(s->g->rx, *out, e);
    }
    sl_schema_ways_free(&ways);
    return st;
}

sl_status sl_schema_names(sl_schema *s, const sl_schema_set *parts, sl_rx *out) {
    sl_status st = SL_OK;
    *out = SL_RX_ALL;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        const sl_json names = sl_json_get(parts->v[i], "propertyNames");
        sl_rx e;
        if (!names.value || sl_schema_is_true(names)) continue;
        st = strings_of(s, names, &e);
        if (st == SL_OK) *out = sl_rx_and2(s->g->rx, *out, e);
    }
    return st;
}

/* Names that a schema neither has under properties nor matches by a pattern. */
static sl_status other_names(sl_schema *s, sl_json schema, sl_rx *out) {
    sl_rx_store *rx = s->g->rx;
    const sl_json own = sl_json_get(schema, "properties"),
                  patterns = sl_json_get(schema, "patternProperties");
    sl_rx_list list = {0};
    void *iter = NULL;
    const char *key;
    sl_json child;
    sl_status st = SL_OK;
    while (sl_json_next(own, &iter, &key, &child))
        sl_rx_list_add(rx, &list,
                       sl_rx_json_text(rx, (sl_span){(const uint8_t *)key, strlen(key)}));
    for (iter = NULL; st == SL_OK && sl_json_next(patterns, &iter, &key, &child);) {
        sl_rx e = SL_RX_NONE;
        st = sl_schema_pattern(s, schema, key, &e);
        sl_rx_list_add(rx, &list, e);
    }
    *out = sl_schema_quoted(rx, sl_rx_not(rx, sl_rx_or_list(rx, &list)));
    return st;
}

static sl_status names_of(sl_schema *s, sl_json some, sl_rx *out) {
    const sl_json other = sl_json_get(some, SL_SOME_OTHER),
                  names = sl_json_get(some, SL_SOME_NAMES),
                  pattern = sl_json_get(some, SL_SOME_PATTERN);
    sl_span text;
    sl_rx e = SL_RX_NONE;
    sl_status st = SL_OK;
    if (other.value) return other_names(s, other, out);
    if (names.value) {
        st = strings_of(s, names, &e);
        *out = sl_rx_not(s->g->rx, e);
    } else if (sl_json_as_span(pattern, &text)) {
        st = sl_schema_pattern(s, some, (const char *)text.data, &e);
        *out = sl_schema_quoted(s->g->rx, e);
    }
    return st;
}

sl_status sl_schema_somes(sl_schema *s, const sl_schema_set *parts,
                          sl_schema_some out[SL_SCHEMA_MAX_SOME], uint32_t *n) {
    sl_status st = SL_OK;
    *n = 0;
    for (uint32_t i = 0; i < parts->n && st == SL_OK; i++) {
        const sl_json some = sl_json_get(parts->v[i], SL_WORD_SOME);
        if (!some.value) continue;
        if (*n == SL_SCHEMA_MAX_SOME)
            return sl_json_fail(s->root, NULL, s->err, SL_ERR_LIMIT,
                                "more than %u conditions on some property of a place, by what must "
                                "not hold (not, oneOf, if) (limit)",
                                SL_SCHEMA_MAX_SOME);
        out[*n].value = sl_json_get(some, SL_SOME_VALUE);
        st = names_of(s, some, &out[(*n)++].names);
    }
    return st;
}

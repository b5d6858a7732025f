/* Schemas that say in other words what stands in a document, and what was said so before. */
#include "grammar/schema_int.h"

#include "base/mem.h"

/* text: bytes that are copied */
static bool may_make(sl_schema *s, size_t text) {
    const size_t memory = SL_SCHEMA_MADE_MEMORY + text;
    if (s->n_made >= SL_SCHEMA_MAX_MADE || s->no_memory) return false;
    if (!s->keep && !(s->keep = sl_json_keep_create())) s->no_memory = true;
    if (s->no_memory) return false;
    if (s->g->memory + memory > SL_GRAMMAR_MAX_MEMORY) {
        s->too_much = true;
        return false;
    }
    s->n_made++;
    s->g->memory += memory;
    s->made_memory += memory;
    return true;
}

static sl_json made(sl_schema *s, sl_json v) {
    s->no_memory |= !v.value;
    return v;
}

sl_json sl_schema_made(sl_schema *s, sl_json of, unsigned types) {
    if (!may_make(s, 0)) return (sl_json){0};
    const sl_json v = made(s, sl_json_new_object(s->keep, of));
    if (types != SL_TYPE_ANY) sl_schema_made_count(s, v, SL_WORD_TYPES, types);
    return v;
}

sl_json sl_schema_made_list(sl_schema *s, sl_json of) {
    return may_make(s, 0) ? made(s, sl_json_new_array(s->keep, of)) : (sl_json){0};
}

sl_json sl_schema_made_text(sl_schema *s, sl_json of, const char *text) {
    return may_make(s, strlen(text)) ? made(s, sl_json_new_text(s->keep, of, text)) : (sl_json){0};
}

sl_json sl_schema_made_bool(sl_schema *s, sl_json of, bool v) {
    return may_make(s, 0) ? made(s, sl_json_new_bool(s->keep, of, v)) : (sl_json){0};
}

void sl_schema_made_put(sl_schema *s, sl_json to, const char *key, sl_json v) {
    if (to.value && v.value && !sl_json_put(to, key, v)) s->no_memory = true;
}

void sl_schema_made_count(sl_schema *s, sl_json to, const char *key, uint64_t n) {
    if (to.value && may_make(s, 0))
        sl_schema_made_put(s, to, key, made(s, sl_json_new_u64(s->keep, to, n)));
}

void sl_schema_made_add(sl_schema *s, sl_json list, sl_json v) {
    if (list.value && v.value && !sl_json_append(list, v)) s->no_memory = true;
}

void sl_schema_made_property(sl_schema *s, sl_json to, const char *name, sl_json v) {
    if (!may_make(s, strlen(name))) return;
    const sl_json own = made(s, sl_json_new_object(s->keep, to));
    sl_schema_made_put(s, own, name, v);
    sl_schema_made_put(s, to, "properties", own);
}

void sl_schema_made_required(sl_schema *s, sl_json to, const char *name) {
    const sl_json list = sl_schema_made_list(s, to);
    sl_schema_made_add(s, list, sl_schema_made_text(s, to, name));
    sl_schema_made_put(s, to, "required", list);
}

sl_json sl_schema_made_both(sl_schema *s, sl_json a, sl_json b) {
    const sl_json both = sl_schema_made(s, s->root, SL_TYPE_ANY),
                  all = sl_schema_made_list(s, s->root);
    sl_schema_made_add(s, all, a);
    sl_schema_made_add(s, all, b);
    sl_schema_made_put(s, both, "allOf", all);
    return both;
}

sl_status sl_schema_made_status(sl_schema *s) {
    if (s->no_memory) return sl_fail(s->err, SL_ERR_NOMEM, "out of memory for a grammar");
    if (s->too_much)
        return sl_json_fail(s->root, NULL, s->err, SL_ERR_LIMIT, "takes more than %zu MB (limit)",
                            SL_GRAMMAR_MAX_MEMORY >> 20);
    if (s->n_made >= SL_SCHEMA_MAX_MADE)
        return sl_json_fail(s->root, NULL, s->err, SL_ERR_LIMIT,
                            "more than %u alternatives of what must not hold (limit)",
                            SL_SCHEMA_MAX_MADE);
    return SL_OK;
}

static size_t place_of(const sl_schema *s, const void *of, unsigned how) {
    const uint64_t h = ((uint64_t)(uintptr_t)of ^ how) * 0xff51afd7ed558ccdu;
    size_t at = (size_t)(h ^ h >> 31) & (s->n_found_slots - 1);
    while (s->found[at].of && (s->found[at].of != of || s->found[at].how != how))
        at = (at + 1) & (s->n_found_slots - 1);
    return at;
}

sl_json sl_schema_found(const sl_schema *s, sl_json of, unsigned how) {
    if (!s->n_found_slots) return (sl_json){0};
    return s->found[place_of(s, of.value, how)].as;
}

static bool widen(sl_schema *s) {
    struct sl_schema_as *old = s->found;
    const size_t n = s->n_found_slots, slots = n ? 2 * n : 64;
    struct sl_schema_as *wide = sl_alloc(slots, sizeof *wide);
    if (!wide) return false;
    s->found = wide;
    s->n_found_slots = slots;
    for (size_t i = 0; i < n; i++)
        if (old[i].of) wide[place_of(s, old[i].of, old[i].how)] = old[i];
    sl_free(old);
    return true;
}

void sl_schema_keep(sl_schema *s, sl_json of, unsigned how, sl_json as) {
    if (!as.value) return;
    if (2 * (s->n_found + 1) > s->n_found_slots && !widen(s)) {
        s->no_memory = true;
        return;
    }
    struct sl_schema_as *at = &s->found[place_of(s, of.value, how)];
    s->n_found += !at->of;
    *at = (struct sl_schema_as){of.value, how, as};
}

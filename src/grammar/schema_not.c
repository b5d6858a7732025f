/* `not`: a schema that must not hold is one of whose keywords one does not. Each keyword becomes
 * alternatives in words that are enforced anyway, and few of our own; what lies inside stays a
 * `not` until its place is looked at, so that references may go round. */
#include "grammar/schema_int.h"

enum { AS_NOT = 1, AS_NOT_LIST, AS_OBJECT, AS_NAME = 1 << 8 /* and a hash, from here on */ };

#define NUMBER     (SL_TYPE_INT | SL_TYPE_REAL)
#define MAX_PAIRS  64u  /* alternatives of a oneOf that must not hold */
#define MAX_PLACES 256u /* schemas of places of an array that must not hold */

typedef struct negation negation;

/* How a keyword's opposite is said. */
typedef struct opposite {
    const char *key;
    sl_status (*alternatives)(negation *n);
    unsigned types; /* of values that break it, where another word says how: */
    const char *other;
    uint64_t limit; /* of its number */
} opposite;

struct negation {
    sl_schema *s;
    sl_json schema, v; /* v: what the keyword has */
    const char *key;
    const opposite *row;
    sl_json list; /* of alternatives */
    /* What holds anyway: alternatives that contradict it are left out, and those that say no more
     * than that a property is there, or is not, are the same value each time, so that who has
     * chosen one has it for all lists. NULL: nothing. */
    const sl_schema_set *beside;
    sl_json owner; /* of beside */
    unsigned types;
};

sl_status sl_schema_not(sl_schema *s, sl_json schema, sl_json *out) {
    *out = sl_schema_found(s, schema, AS_NOT);
    if (out->value) return SL_OK;
    *out = sl_schema_made(s, schema, SL_TYPE_ANY);
    sl_schema_made_put(s, *out, "not", schema);
    sl_schema_keep(s, schema, AS_NOT, *out);
    return sl_schema_made_status(s);
}

static sl_status refuse(const negation *n) {
    return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_UNSUPPORTED,
                        "is not enforced in what must not hold (not, oneOf, if)");
}

/* One more alternative: values of some types with one more word. */
static sl_json add(negation *n, unsigned types) {
    if (n->beside && !(types & n->types)) return (sl_json){0};
    const sl_json one = sl_schema_made(n->s, n->schema, types);
    sl_schema_made_add(n->s, n->list, one);
    return one;
}

static sl_status add_word(negation *n, unsigned types, const char *word) {
    sl_schema_made_put(n->s, add(n, types), word, n->v);
    return SL_OK;
}

static sl_status not_type(negation *n) {
    unsigned types = 0;
    const sl_status st = sl_schema_types(n->schema, n->s->err, &types);
    if (st == SL_OK && (types = SL_TYPE_ANY & ~types) != 0) add(n, types);
    return st;
}

/* None of some arrays and objects. */
static sl_status not_spelled(negation *n, sl_json values) {
    const sl_json all = sl_schema_made_list(n->s, n->schema);
    sl_status st = SL_OK;
    for (size_t i = 0; i < sl_json_count(values) && st == SL_OK; i++) {
        const sl_json v = sl_json_at(values, i);
        sl_json no;
        if (!(sl_schema_type_of(v) & SL_TYPE_STRUCTURED)) continue;
        if (sl_json_count(all) == SL_SCHEMA_MAX_SPELLED)
            return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_LIMIT,
                                "more than %u arrays and objects that must not be (limit)",
                                SL_SCHEMA_MAX_SPELLED);
        st = sl_schema_not(n->s, sl_schema_spell(n->s, v), &no);
        sl_schema_made_add(n->s, all, no);
    }
    sl_schema_made_put(n->s, add(n, SL_TYPE_STRUCTURED), "allOf", all);
    return st;
}

static sl_status not_among(negation *n, sl_json values) {
    unsigned listed = 0, bools = 0;
    sl_status st = SL_OK;
    for (size_t i = 0; i < sl_json_count(values); i++) {
        const sl_json v = sl_json_at(values, i);
        const unsigned type = sl_schema_type_of(v);
        bool b = false;
        if (sl_json_as_bool(v, &b)) bools |= b ? 2 : 1;
        listed |= type & NUMBER ? NUMBER : type & SL_TYPE_STRUCTURED ? SL_TYPE_STRUCTURED : type;
    }
    if (SL_TYPE_ANY & ~listed) add(n, SL_TYPE_ANY & ~listed);
    if (listed & SL_TYPE_STRING)
        sl_schema_made_put(n->s, add(n, SL_TYPE_STRING), SL_WORD_NOT_TEXTS, values);
    if (listed & NUMBER) sl_schema_made_put(n->s, add(n, NUMBER), SL_WORD_NOT_NUMBERS, values);
    if (bools == 1 || bools == 2)
        sl_schema_made_put(n->s, add(n, SL_TYPE_BOOL), "const",
                           sl_schema_made_bool(n->s, n->schema, bools == 1));
    if (listed & SL_TYPE_STRUCTURED) st = not_spelled(n, values);
    return st;
}

static sl_status not_enum(negation *n) {
    if (sl_json_kind_of(n->v) != SL_JSON_ARRAY)
        return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_FORMAT, "is no list");
    return not_among(n, n->v);
}

static sl_status not_const(negation *n) {
    const sl_json list = sl_schema_made_list(n->s, n->schema);
    sl_schema_made_add(n->s, list, n->v);
    return not_among(n, list);
}

/* By the row's other word. */
static sl_status not_least(negation *n) {
    uint64_t least = 0;
    const sl_status st = sl_schema_number_of(n->schema, n->key, n->row->limit, &least, n->s->err);
    if (st == SL_OK && least)
        sl_schema_made_count(n->s, add(n, n->row->types), n->row->other, least - 1);
    return st;
}

static sl_status not_most(negation *n) {
    uint64_t most = 0;
    const sl_status st =
        sl_schema_number_of(n->schema, n->key, n->row->limit - 1, &most, n->s->err);
    if (st == SL_OK) sl_schema_made_count(n->s, add(n, n->row->types), n->row->other, most + 1);
    return st;
}

static sl_status not_word(negation *n) {
    return add_word(n, n->row->types, n->row->other);
}

/* Draft 4's exclusiveMinimum is a word about minimum. */
static bool excludes(const negation *n, const char *key) {
    bool b = false;
    return sl_json_as_bool(sl_json_get(n->schema, key), &b) && b;
}
static sl_status not_minimum(negation *n) {
    return add_word(n, NUMBER, excludes(n, "exclusiveMinimum") ? "maximum" : "exclusiveMaximum");
}
static sl_status not_maximum(negation *n) {
    return add_word(n, NUMBER, excludes(n, "exclusiveMaximum") ? "minimum" : "exclusiveMinimum");
}
static sl_status not_exclusive(negation *n) {
    return sl_json_kind_of(n->v) == SL_JSON_BOOL ? SL_OK : not_word(n);
}

/* That a property is there, or is not; of what is beside, one value for each name. */
static void add_presence(negation *n, const char *name, bool there) {
    unsigned how = AS_NAME | (unsigned)there;
    sl_json one = {0};
    if (n->beside && !(n->types & SL_TYPE_OBJECT)) return;
    for (const char *p = name; *p; p++) how = (how ^ (uint8_t)*p << 1) * 0x01000193u | AS_NAME;
    if (n->beside) one = sl_schema_found(n->s, n->owner, how);
    const bool known =
        one.value && (there ? sl_json_is_text(sl_json_at(sl_json_get(one, "required"), 0), name)
                            : sl_json_get(sl_json_get(one, "properties"), name).value != NULL);
    if (!known) {
        const bool keep = n->beside && !one.value;
        one = sl_schema_made(n->s, n->schema, SL_TYPE_OBJECT);
        if (there)
            sl_schema_made_required(n->s, one, name);
        else
            sl_schema_made_property(n->s, one, name, sl_schema_made_bool(n->s, n->schema, false));
        if (keep) sl_schema_keep(n->s, n->owner, how, one);
    }
    sl_schema_made_add(n->s, n->list, one);
}

/* Whether a part has no properties but those that it names. */
static bool is_closed(sl_json part) {
    return sl_schema_is_false(sl_json_get(part, "additionalProperties")) &&
           !sl_json_get(part, "patternProperties").value;
}

/* What is beside says of a property: it cannot break `child`; or whatever it is, it does. */
typedef enum known { NOTHING, HOLDS, BREAKS } known;

static sl_status property_beside(negation *n, const char *name, sl_json child, known *out) {
    *out = NOTHING;
    for (uint32_t i = 0; n->beside && i < n->beside->n && *out == NOTHING; i++) {
        const sl_json own = sl_json_get(sl_json_get(n->beside->v[i], "properties"), name);
        bool apart = false;
        if ((!own.value && is_closed(n->beside->v[i])) ||
            (own.value && (sl_schema_is_false(own) || sl_schema_same(own, child))))
            *out = HOLDS;
        if (*out == HOLDS || !own.value) continue;
        const sl_status st = sl_schema_apart(n->s, own, child, &apart);
        if (st != SL_OK) return st;
        if (apart) *out = BREAKS;
    }
    return SL_OK;
}

static sl_status not_properties(negation *n) {
    void *iter = NULL;
    const char *name;
    sl_json child, no;
    known what;
    sl_status st = SL_OK;
    while (st == SL_OK && sl_json_next(n->v, &iter, &name, &child)) {
        if (sl_schema_is_true(child)) continue;
        st = property_beside(n, name, child, &what);
        if (st != SL_OK || what == HOLDS) continue;
        if (what == BREAKS || sl_schema_is_false(child)) {
            add_presence(n, name, true);
            continue;
        }
        const sl_json one = add(n, SL_TYPE_OBJECT);
        if (one.value) sl_schema_made_required(n->s, one, name);
        st = sl_schema_not(n->s, child, &no);
        if (st == SL_OK && one.value) sl_schema_made_property(n->s, one, name, no);
    }
    return st;
}

static sl_status not_required(negation *n) {
    for (size_t i = 0; i < sl_json_count(n->v); i++) {
        sl_span name;
        if (!sl_json_as_span(sl_json_at(n->v, i), &name))
            return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_FORMAT,
                                "holds what is no name");
        if (memchr(name.data, 0, name.len)) return refuse(n); /* no name that is made has one */
        if (!n->beside || !sl_schema_requires(n->beside, name))
            add_presence(n, (const char *)name.data, false);
    }
    return SL_OK;
}

/* Some property with a name of a kind, whose value does not satisfy a schema. */
static sl_status add_some(negation *n, const char *kind, sl_json names, sl_json schema) {
    const sl_json some = sl_schema_made(n->s, n->schema, SL_TYPE_ANY);
    sl_json no = {0};
    sl_status st = SL_OK;
    if (!sl_schema_is_false(schema)) st = sl_schema_not(n->s, schema, &no);
    sl_schema_made_put(n->s, some, kind, names);
    sl_schema_made_put(n->s, some, SL_SOME_VALUE, no);
    sl_schema_made_put(n->s, add(n, SL_TYPE_OBJECT), SL_WORD_SOME, some);
    return st;
}

/* Where what is beside is closed, some of its properties. */
static bool not_additional_beside(negation *n) {
    for (uint32_t i = 0; n->beside && i < n->beside->n; i++) {
        const sl_json own = sl_json_get(n->beside->v[i], "properties");
        void *iter = NULL;
        const char *name;
        sl_json child;
        if (!is_closed(n->beside->v[i])) continue;
        while (sl_json_next(own, &iter, &name, &child))
            if (!sl_json_get(sl_json_get(n->schema, "properties"), name).value)
                add_presence(n, name, true);
        return true;
    }
    return false;
}

static sl_status not_additional(negation *n) {
    if (is_closed(n->schema) && not_additional_beside(n)) return SL_OK;
    return sl_schema_is_true(n->v) ? SL_OK : add_some(n, SL_SOME_OTHER, n->schema, n->v);
}

static sl_status not_patterns(negation *n) {
    void *iter = NULL;
    const char *pattern;
    sl_json child;
    sl_status st = SL_OK;
    while (st == SL_OK && sl_json_next(n->v, &iter, &pattern, &child))
        if (!sl_schema_is_true(child))
            st = add_some(n, SL_SOME_PATTERN, sl_schema_made_text(n->s, n->schema, pattern), child);
    return st;
}

static sl_status not_names(negation *n) {
    if (sl_schema_is_true(n->v)) return SL_OK;
    return add_some(n, SL_SOME_NAMES, n->v, sl_schema_made_bool(n->s, n->schema, false));
}

/* Of places from `first` on one does not satisfy v. */
static sl_status not_rest(negation *n, sl_json v, size_t first) {
    sl_json no;
    if (!v.value || sl_schema_is_true(v)) return SL_OK;
    if (sl_schema_is_false(v)) {
        sl_schema_made_count(n->s, add(n, SL_TYPE_ARRAY), "minItems", first + 1);
        return SL_OK;
    }
    if (first) return refuse(n);
    const sl_status st = sl_schema_not(n->s, v, &no);
    if (st == SL_OK) sl_schema_made_put(n->s, add(n, SL_TYPE_ARRAY), "contains", no);
    return st;
}

static sl_status not_places(negation *n) {
    const size_t places = sl_json_count(n->v);
    sl_status st = SL_OK;
    if (places > MAX_PLACES)
        return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_LIMIT,
                            "%zu schemas of what must not hold, limit %u", places, MAX_PLACES);
    for (size_t i = 0; i < places && st == SL_OK; i++) {
        const sl_json one = sl_json_at(n->v, i);
        sl_json no;
        if (sl_schema_is_true(one)) continue;
        const sl_json to = add(n, SL_TYPE_ARRAY), list = sl_schema_made_list(n->s, n->schema);
        st = sl_schema_not(n->s, one, &no);
        for (size_t k = 0; k < i; k++)
            sl_schema_made_add(n->s, list, sl_schema_made_bool(n->s, n->schema, true));
        if (st == SL_OK) sl_schema_made_add(n->s, list, no);
        sl_schema_made_count(n->s, to, "minItems", i + 1);
        sl_schema_made_put(n->s, to, "prefixItems", list);
    }
    return st;
}

static sl_status not_items(negation *n) {
    if (sl_json_kind_of(n->v) == SL_JSON_ARRAY) return not_places(n);
    return not_rest(n, n->v, sl_json_count(sl_json_get(n->schema, "prefixItems")));
}

/* Says something beside a list of items alone. */
static sl_status not_additional_items(negation *n) {
    const sl_json items = sl_json_get(n->schema, "items");
    if (sl_json_kind_of(items) != SL_JSON_ARRAY) return SL_OK;
    return not_rest(n, n->v, sl_json_count(items));
}

static sl_status not_contains(negation *n) {
    uint64_t min = 1, max = UINT64_MAX;
    sl_json no;
    sl_status st =
        sl_schema_number_of(n->schema, "minContains", SL_SCHEMA_MAX_COUNT, &min, n->s->err);
    if (st == SL_OK)
        st = sl_schema_number_of(n->schema, "maxContains", SL_SCHEMA_MAX_COUNT, &max, n->s->err);
    if (st == SL_OK) st = sl_schema_not(n->s, n->v, &no);
    if (st != SL_OK) return st;
    if (min == 1) {
        sl_schema_made_put(n->s, add(n, SL_TYPE_ARRAY), "items", no);
    } else if (min > 1) {
        const sl_json few = add(n, SL_TYPE_ARRAY);
        sl_schema_made_put(n->s, few, "contains", n->v);
        sl_schema_made_count(n->s, few, "minContains", 0);
        sl_schema_made_count(n->s, few, "maxContains", min - 1);
    }
    if (max == UINT64_MAX) return SL_OK;
    const sl_json many = add(n, SL_TYPE_ARRAY);
    sl_schema_made_put(n->s, many, "contains", n->v);
    sl_schema_made_count(n->s, many, "minContains", max + 1);
    return SL_OK;
}

static sl_status not_unique(negation *n) {
    bool b = false;
    return sl_json_as_bool(n->v, &b) && !b ? SL_OK : refuse(n);
}

/* `not` of each behind a list. */
static sl_status add_nots(negation *n, sl_json to) {
    sl_status st = SL_OK;
    for (size_t i = 0; i < sl_json_count(n->v) && st == SL_OK; i++) {
        sl_json no;
        st = sl_schema_not(n->s, sl_json_at(n->v, i), &no);
        if (st == SL_OK) sl_schema_made_add(n->s, to, no);
    }
    return st;
}

static sl_status not_all_of(negation *n) {
    return add_nots(n, n->list);
}

/* None of them. */
static sl_status not_any_of(negation *n) {
    const sl_json all = sl_schema_made_list(n->s, n->schema);
    const sl_status st = add_nots(n, all);
    sl_schema_made_put(n->s, add(n, SL_TYPE_ANY), "allOf", all);
    return st;
}

/* None of them, or two. */
static sl_status not_one_of(negation *n) {
    const size_t count = sl_json_count(n->v);
    if (count > MAX_PAIRS)
        return sl_json_fail(n->schema, n->key, n->s->err, SL_ERR_LIMIT,
                            "%zu alternatives of what must not hold, limit %u", count, MAX_PAIRS);
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++)
            sl_schema_made_add(n->s, n->list,
                               sl_schema_made_both(n->s, sl_json_at(n->v, i), sl_json_at(n->v, k)));
    return not_any_of(n);
}

static sl_status not_not(negation *n) {
    sl_schema_made_add(n->s, n->list, n->v);
    return SL_OK;
}

static sl_status not_ref(negation *n) {
    sl_json target, no;
    sl_status st = sl_schema_refer(n->s, n->schema, &target);
    if (st == SL_OK) st = sl_schema_not(n->s, target, &no);
    if (st == SL_OK) sl_schema_made_add(n->s, n->list, no);
    return st;
}

static sl_status not_if(negation *n) {
    const sl_json then = sl_json_get(n->schema, "then"), other = sl_json_get(n->schema, "else");
    sl_json no, end;
    sl_status st = SL_OK;
    if (then.value) {
        st = sl_schema_not(n->s, then, &end);
        if (st == SL_OK) sl_schema_made_add(n->s, n->list, sl_schema_made_both(n->s, n->v, end));
    }
    if (st != SL_OK || !other.value) return st;
    st = sl_schema_not(n->s, n->v, &no);
    if (st == SL_OK) st = sl_schema_not(n->s, other, &end);
    if (st == SL_OK) sl_schema_made_add(n->s, n->list, sl_schema_made_both(n->s, no, end));
    return st;
}

/* A property is there, and what it needs does not hold. */
static sl_status not_needs(negation *n) {
    void *iter = NULL;
    const char *key;
    sl_json needs, no;
    sl_status st = SL_OK;
    while (st == SL_OK && sl_json_next(n->v, &iter, &key, &needs)) {
        sl_json there, more;
        st = sl_schema_needs(n->s, key, needs, &there, &more);
        if (st != SL_OK) break;
        st = sl_schema_not(n->s, more, &no);
        if (st == SL_OK) sl_schema_made_add(n->s, n->list, sl_schema_made_both(n->s, there, no));
    }
    return st;
}

static const opposite opposites[] = {
    {"type", not_type},
    {SL_WORD_TYPES, not_type},
    {"enum", not_enum},
    {"const", not_const},
    {"minLength", not_least, SL_TYPE_STRING, "maxLength", SL_SCHEMA_MAX_LENGTH},
    {"maxLength", not_most, SL_TYPE_STRING, "minLength", SL_SCHEMA_MAX_LENGTH},
    {"pattern", not_word, SL_TYPE_STRING, SL_WORD_NOT_PATTERN},
    {"format", not_word, SL_TYPE_STRING, SL_WORD_NOT_FORMAT},
    {"minimum", not_minimum},
    {"maximum", not_maximum},
    {"exclusiveMinimum", not_exclusive, NUMBER, "maximum"},
    {"exclusiveMaximum", not_exclusive, NUMBER, "minimum"},
    {"multipleOf", not_word, NUMBER, SL_WORD_NOT_MULTIPLE},
    {"properties", not_properties},
    {"required", not_required},
    {"additionalProperties", not_additional},
    {"patternProperties", not_patterns},
    {"propertyNames", not_names},
    {"minProperties", not_least, SL_TYPE_OBJECT, "maxProperties", SL_SCHEMA_MAX_COUNT},
    {"maxProperties", not_most, SL_TYPE_OBJECT, "minProperties", SL_SCHEMA_MAX_COUNT},
    {"items", not_items},
    {"prefixItems", not_places},
    {"additionalItems", not_additional_items},
    {"minItems", not_least, SL_TYPE_ARRAY, "maxItems", SL_SCHEMA_MAX_COUNT},
    {"maxItems", not_most, SL_TYPE_ARRAY, "minItems", SL_SCHEMA_MAX_COUNT},
    {"contains", not_contains},
    {"uniqueItems", not_unique},
    {"allOf", not_all_of},
    {"anyOf", not_any_of},
    {"oneOf", not_one_of},
    {"not", not_not},
    {"$ref", not_ref},
    {"if", not_if},
    {"dependencies", not_needs},
    {"dependentRequired", not_needs},
    {"dependentSchemas", not_needs},
};

static sl_status alternatives(negation *n) {
    void *iter = NULL;
    sl_status st = sl_schema_keywords(n->s, n->schema);
    while (st == SL_OK && sl_json_next(n->schema, &iter, &n->key, &n->v)) {
        size_t i = 0;
        if (n->beside && (!strcmp(n->key, "$ref") || !strcmp(n->key, "allOf"))) continue;
        while (i < SL_LEN(opposites) && strcmp(opposites[i].key, n->key) != 0) i++;
        n->row = i < SL_LEN(opposites) ? &opposites[i] : NULL;
        if (n->row)
            st = n->row->alternatives(n);
        else if ((uint8_t)n->key[0] == 0xff && strcmp(n->key, SL_WORD_SPELLED) != 0)
            st = refuse(n);
    }
    return st;
}

sl_status sl_schema_not_list(sl_schema *s, sl_json schema, sl_json *out) {
    *out = sl_schema_found(s, schema, AS_NOT_LIST);
    if (out->value) return SL_OK;
    negation n = {.s = s, .schema = schema, .list = sl_schema_made_list(s, schema)};
    sl_status st = SL_OK;
    if (sl_schema_is_false(schema))
        sl_schema_made_add(s, n.list, sl_schema_made_bool(s, schema, true));
    else if (!sl_schema_is_true(schema))
        st = alternatives(&n);
    if (st == SL_OK) sl_schema_keep(s, schema, AS_NOT_LIST, n.list);
    *out = n.list;
    return st == SL_OK ? sl_schema_made_status(s) : st;
}

/* A schema with what it names by $ref and allOf. */
static sl_status parts_of(sl_schema *s, sl_json schema, sl_schema_set *out) {
    sl_status st = sl_schema_set_add(s, out, schema);
    for (uint32_t i = 0; i < out->n && st == SL_OK; i++) {
        const sl_json one = out->v[i], all = sl_json_get(one, "allOf");
        sl_json target;
        if (sl_json_kind_of(one) != SL_JSON_OBJECT) continue;
        if (sl_json_get(one, "$ref").value) {
            st = sl_schema_refer(s, one, &target);
            if (st == SL_OK) st = sl_schema_set_add(s, out, target);
        }
        for (size_t k = 0; k < sl_json_count(all) && st == SL_OK; k++)
            st = sl_schema_set_add(s, out, sl_json_at(all, k));
    }
    return st;
}

/* Alternatives of what breaks a part that does not hold anyway. */
static sl_status break_part(negation *n, sl_json part) {
    for (uint32_t i = 0; i < n->beside->n; i++)
        if (n->beside->v[i].value == part.value) return SL_OK;
    n->schema = part;
    if (sl_schema_is_false(part)) {
        sl_schema_made_add(n->s, n->list, sl_schema_made_bool(n->s, part, true));
        return SL_OK;
    }
    return alternatives(n);
}

sl_status sl_schema_not_beside(sl_schema *s, sl_json schema, sl_json holds, sl_json *out) {
    sl_schema_set a = {0}, b = {0};
    negation n = {.s = s, .beside = &a, .owner = holds, .types = SL_TYPE_ANY};
    bool apart = false;
    sl_status st = parts_of(s, holds, &a);
    if (st == SL_OK) st = parts_of(s, schema, &b);
    n.list = sl_schema_made_list(s, schema);
    for (uint32_t i = 0; i < a.n && st == SL_OK; i++) {
        unsigned types;
        st = sl_schema_types(a.v[i], s->err, &types);
        n.types &= types;
    }
    /* objects may be told apart where other values are not, and no type is asked for */
    if (st == SL_OK && n.types != SL_TYPE_OBJECT && n.types & SL_TYPE_OBJECT) {
        sl_json object = sl_schema_found(s, holds, AS_OBJECT);
        if (!object.value) {
            object = sl_schema_made(s, holds, SL_TYPE_OBJECT);
            sl_schema_keep(s, holds, AS_OBJECT, object);
        }
        const sl_json both = sl_schema_made_both(s, object, holds);
        st = sl_schema_made_status(s);
        if (st == SL_OK) st = sl_schema_apart(s, both, schema, &apart);
        if (st == SL_OK && apart) {
            n.types &= ~(unsigned)SL_TYPE_OBJECT;
            sl_schema_made_add(s, n.list, object);
        }
    }
    for (uint32_t i = 0; i < b.n && st == SL_OK; i++) st = break_part(&n, b.v[i]);
    sl_schema_set_free(s, &a);
    sl_schema_set_free(s, &b);
    *out = n.list;
    return st == SL_OK ? sl_schema_made_status(s) : st;
}

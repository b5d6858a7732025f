/* JSON Schema to rules. A set of schemas that all must hold becomes a list of alternatives without
 * references, allOf, anyOf and oneOf; each of those becomes texts and nets of rules. */
#ifndef SL_GRAMMAR_SCHEMA_INT_H
#define SL_GRAMMAR_SCHEMA_INT_H

#include "grammar/json_rules.h"

#define SL_SCHEMA_MAX_RULES    20000u   /* sets of schemas that hold of one place */
#define SL_SCHEMA_MAX_PARTS    256u     /* schemas that hold of one place */
#define SL_SCHEMA_MAX_WAYS     512u     /* alternatives of one place */
#define SL_SCHEMA_MAX_COUNT    20000u   /* minItems, maxItems, minProperties, maxProperties */
#define SL_SCHEMA_MAX_LENGTH   1000000u /* minLength, maxLength */
#define SL_SCHEMA_MAX_NAMES    10000u   /* properties of one place */
#define SL_SCHEMA_MAX_ENUM     20000u   /* values of one enum */
#define SL_SCHEMA_MAX_PATTERNS 4u       /* of patternProperties that hold of one place */
#define SL_SCHEMA_MAX_CELLS    200000u  /* properties times counts of one object */

typedef enum sl_json_type {
    SL_TYPE_NULL = 1,
    SL_TYPE_BOOL = 2,
    SL_TYPE_INT = 4,
    SL_TYPE_REAL = 8, /* with INT: number */
    SL_TYPE_STRING = 16,
    SL_TYPE_ARRAY = 32,
    SL_TYPE_OBJECT = 64,
    SL_TYPE_ANY = 127,
} sl_json_type;

/* Schemas that all must hold. Borrowed from the document. */
typedef struct sl_schema_set {
    sl_json *v;
    uint32_t n;
    size_t cap;
} sl_schema_set;

/* One alternative: all of v hold, and the type is one of types. */
typedef struct sl_schema_way {
    sl_schema_set parts;
    unsigned types;
} sl_schema_way;
typedef struct sl_schema_ways {
    sl_schema_way *v;
    uint32_t n;
    size_t cap;
} sl_schema_ways;

typedef struct sl_schema {
    sl_grammar *g;
    sl_json root;
    sl_json_rules json;
    struct sl_schema_known {
        sl_schema_set set;
        uint32_t rule;
    } * known; /* rules that were asked for; those from `done` on have no nets yet */
    uint32_t n_known, done;
    size_t cap_known;
    uint32_t *slots;
    size_t n_slots;
    unsigned depth;
    sl_err *err;
} sl_schema;

/* schema_sets.c: what a set holds is there once, and `true` not at all */
sl_status sl_schema_set_add(sl_schema *s, sl_schema_set *set, sl_json schema);
bool sl_schema_is_false(sl_json schema);
bool sl_schema_is_true(sl_json schema);
/* The rule of a set, which is taken. */
sl_status sl_schema_rule(sl_schema *s, sl_schema_set *set, uint32_t *out);
/* Whether every keyword of a schema is one that is known here. */
sl_status sl_schema_keywords(sl_schema *s, sl_json schema);
/* A whole number up to `most`; *out stays where the keyword is not there. */
sl_status sl_schema_number_of(sl_json schema, const char *key, uint64_t most, uint64_t *out,
                              sl_err *err);
/* schema_ways.c: alternatives without references, allOf, anyOf and oneOf */
sl_status sl_schema_expand(sl_schema *s, const sl_schema_set *set, sl_schema_ways *out);
void sl_schema_ways_free(sl_schema_ways *w);
/* schema_scalar.c: texts of the values of a way that are no arrays and objects; of enumerations all
 */
sl_status sl_schema_string(sl_schema *s, const sl_schema_set *parts, sl_rx *out);
sl_status sl_schema_number(sl_schema *s, const sl_schema_way *way, sl_rx *out);
sl_status sl_schema_listed(sl_schema *s, const sl_schema_way *way, bool *listed, sl_rx *out);
/* schema_object.c */
sl_status sl_schema_array(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to);
sl_status sl_schema_object(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to);
/* schema_under.c: a pattern as an expression of names; what of `parts` holds of the value under a
 * name, *closed: nothing may stand there */
sl_status sl_schema_pattern(sl_schema *s, sl_json part, const char *pattern, sl_rx *out);
sl_status sl_schema_under(sl_schema *s, const sl_schema_set *parts, sl_span name,
                          sl_schema_set *out, bool *closed);
/* formats.c: the regular expression of a format, whole text; NULL: not one that is enforced */
const char *sl_schema_format(const char *name);

#endif

/* JSON Schema to rules. A set of schemas that all must hold becomes a list of alternatives without
 * references, allOf, anyOf and oneOf; each of those becomes texts and nets of rules. */
#ifndef SL_GRAMMAR_SCHEMA_INT_H
#define SL_GRAMMAR_SCHEMA_INT_H

#include "grammar/json_rules.h"

#define SL_SCHEMA_MAX_RULES    20000u   /* sets of schemas that hold of one place */
#define SL_SCHEMA_MAX_PARTS    256u     /* schemas that hold of one place */
#define SL_SCHEMA_MAX_WAYS     4096u    /* alternatives of one place */
#define SL_SCHEMA_MAX_COUNT    20000u   /* minItems, maxItems, minProperties, maxProperties */
#define SL_SCHEMA_MAX_LENGTH   1000000u /* minLength, maxLength */
#define SL_SCHEMA_MAX_NAMES    10000u   /* properties of one place */
#define SL_SCHEMA_MAX_ENUM     20000u   /* values of one enum */
#define SL_SCHEMA_MAX_SOME     2u       /* conditions on some property of one place */
#define SL_SCHEMA_MAX_SPELLED  32u     /* arrays and objects of one enum that meet other keywords */
#define SL_SCHEMA_MAX_PATTERNS 4u      /* of patternProperties that hold of one place */
#define SL_SCHEMA_MAX_CELLS    200000u /* properties times counts of one object */
#define SL_SCHEMA_MAX_APART    20000u  /* questions whether two can hold at once */
#define SL_SCHEMA_MADE_MEMORY  256u /* what jansson takes for a value, with its places in others */
#define SL_SCHEMA_MAX_STEPS    (1u << 21) /* schemas and names looked at, some seconds at most */
#define SL_SCHEMA_MAX_MADE     200000u    /* schemas that say in other words what stands in one */

/* Words of schemas that are made (schema_made.c). No document spells them: they are no UTF-8. */
#define SL_WORD_TYPES        "\377types"      /* bits of sl_json_type */
#define SL_WORD_NOT_TEXTS    "\377notTexts"   /* none of the strings in a list */
#define SL_WORD_NOT_NUMBERS  "\377notNumbers" /* none of the numbers in a list */
#define SL_WORD_NOT_PATTERN  "\377notPattern"
#define SL_WORD_NOT_FORMAT   "\377notFormat"
#define SL_WORD_NOT_MULTIPLE "\377notMultiple"
#define SL_WORD_SPELLED      "\377spelled" /* the alternative of an enum, with all that is in it */
#define SL_WORD_SOME         "\377some" /* a property with a name of one kind, and what it holds: */
#define SL_SOME_OTHER        "other"    /* none that this schema names */
#define SL_SOME_NAMES        "names"    /* that does not satisfy this schema */
#define SL_SOME_PATTERN      "pattern"  /* that matches */
#define SL_SOME_VALUE        "value"    /* absent: anything */

typedef enum sl_json_type {
    SL_TYPE_NULL = 1,
    SL_TYPE_BOOL = 2,
    SL_TYPE_INT = 4,
    SL_TYPE_REAL = 8, /* with INT: number */
    SL_TYPE_STRING = 16,
    SL_TYPE_ARRAY = 32,
    SL_TYPE_OBJECT = 64,
    SL_TYPE_STRUCTURED = 96,
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
    bool listed; /* objects have none but the properties that are listed, where nothing says others
                  */
    uint64_t steps;
    unsigned depth, nested, n_apart; /* of questions whether schemas are apart */
    sl_json_keep *keep;              /* of what is made */
    uint32_t n_made;
    size_t made_memory;
    bool no_memory, too_much;
    struct sl_schema_as {
        const void *of;
        unsigned how;
        sl_json as;
    } * found; /* a table by hash, at most half full */
    size_t n_found, n_found_slots;
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
/* Of all parts: the greatest `least` and the smallest `most`. */
sl_status sl_schema_counts(sl_schema *s, const sl_schema_set *parts, const char *least,
                           const char *most, uint64_t *min, uint64_t *max);
void sl_schema_set_free(sl_schema *s, sl_schema_set *set);
/* So many schemas or names more are looked at; SL_ERR_LIMIT. */
sl_status sl_schema_step(sl_schema *s, uint64_t n);
/* SL_OK: an object, true or false. */
sl_status sl_schema_is_one(sl_schema *s, sl_json v);
/* What of the parts says something about the inside of arrays or objects (SL_TYPE_ARRAY,
 * SL_TYPE_OBJECT, or both): the part, and the word; absent: nothing. */
sl_json sl_schema_inside(const sl_schema_set *parts, unsigned types, const char **word);
/* schema_ways.c: alternatives without references, allOf and choices */
sl_status sl_schema_expand(sl_schema *s, const sl_schema_set *set, sl_schema_ways *out);
void sl_schema_ways_free(sl_schema_ways *w);
sl_status sl_schema_types(sl_json schema, sl_err *err, unsigned *out);
/* What `$ref` of a schema names. */
sl_status sl_schema_refer(sl_schema *s, sl_json schema, sl_json *out);
/* schema_apart.c: whether a part has the name in `required`; whether no value satisfies both,
 * false: not known */
bool sl_schema_requires(const sl_schema_set *parts, sl_span name);
sl_status sl_schema_apart(sl_schema *s, sl_json a, sl_json b, bool *out);
/* schema_choice.c: that a property is there, and what it needs, as schemas */
sl_status sl_schema_needs(sl_schema *s, const char *key, sl_json needs, sl_json *there,
                          sl_json *more);
/* What one keyword of a schema leaves to choose, as lists of alternatives behind `lists`. */
sl_status sl_schema_choice(sl_schema *s, sl_json schema, const char *key, sl_schema_set *lists);
/* An array or object with all that is in it as a schema, so that other keywords meet it inside. */
sl_json sl_schema_spell(sl_schema *s, sl_json v);
/* schema_not.c: `not` of a schema, as a schema and as a list of alternatives; each made once */
sl_status sl_schema_not(sl_schema *s, sl_json schema, sl_json *out);
sl_status sl_schema_not_list(sl_schema *s, sl_json schema, sl_json *out);
/* The list, without what contradicts a schema that holds anyway. */
sl_status sl_schema_not_beside(sl_schema *s, sl_json schema, sl_json holds, sl_json *out);
/* schema_made.c: values that are made. Without memory, or where too many were made, they are absent
 * and go nowhere; sl_schema_made_status says so. */
sl_json sl_schema_made(sl_schema *s, sl_json of, unsigned types); /* an object, of those types */
sl_json sl_schema_made_list(sl_schema *s, sl_json of);
sl_json sl_schema_made_text(sl_schema *s, sl_json of, const char *text);
sl_json sl_schema_made_bool(sl_schema *s, sl_json of, bool v);
void sl_schema_made_put(sl_schema *s, sl_json to, const char *key, sl_json v);
void sl_schema_made_count(sl_schema *s, sl_json to, const char *key, uint64_t n);
void sl_schema_made_add(sl_schema *s, sl_json list, sl_json v);
/* {"properties": {name: v}}; {"required": [name]}; {"allOf": [a, b]}, without what is absent */
void sl_schema_made_property(sl_schema *s, sl_json to, const char *name, sl_json v);
void sl_schema_made_required(sl_schema *s, sl_json to, const char *name);
sl_json sl_schema_made_both(sl_schema *s, sl_json a, sl_json b);
sl_status sl_schema_made_status(sl_schema *s);
/* What was made of a value in a way that has a number; absent: nothing yet. */
sl_json sl_schema_found(const sl_schema *s, sl_json of, unsigned how);
void sl_schema_keep(sl_schema *s, sl_json of, unsigned how, sl_json as);
/* schema_scalar.c: texts of the values of a way that are no arrays and objects; of enumerations all
 */
sl_status sl_schema_string(sl_schema *s, const sl_schema_set *parts, sl_rx *out);
sl_status sl_schema_number(sl_schema *s, const sl_schema_way *way, sl_rx *out);
unsigned sl_schema_type_of(sl_json value);
/* How many arrays and objects enum or const lists; up to SL_SCHEMA_MAX_SPELLED are a choice. */
uint32_t sl_schema_structured(sl_json schema, const char *key);
sl_rx sl_schema_quoted(sl_rx_store *rx, sl_rx content); /* a content between quotes */
bool sl_schema_same(sl_json a, sl_json b);              /* values */
sl_status sl_schema_listed(sl_schema *s, const sl_schema_way *way, bool *listed, sl_rx *out);
/* schema_array.c, schema_object.c */
sl_status sl_schema_array(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to);
sl_status sl_schema_object(sl_schema *s, const sl_schema_set *parts, uint32_t from, uint32_t to);
/* schema_some.c: what propertyNames of all parts allows, with quotes */
sl_status sl_schema_names(sl_schema *s, const sl_schema_set *parts, sl_rx *out);
/* SL_WORD_SOME of all parts. */
typedef struct sl_schema_some {
    sl_rx names; /* with quotes */
    sl_json value;
} sl_schema_some;
sl_status sl_schema_somes(sl_schema *s, const sl_schema_set *parts,
                          sl_schema_some out[SL_SCHEMA_MAX_SOME], uint32_t *n);
/* schema_under.c: a pattern as an expression of names; what of `parts` holds of the value under a
 * name, *closed: nothing may stand there */
sl_status sl_schema_pattern(sl_schema *s, sl_json part, const char *pattern, sl_rx *out);
sl_status sl_schema_under(sl_schema *s, const sl_schema_set *parts, sl_span name,
                          sl_schema_set *out, bool *closed);
/* formats.c */
typedef struct sl_schema_form {
    const char *name;
    const char
        *regex; /* of the whole text; NULL: a draft has this format, and it is not enforced */
    bool exact; /* all texts of the format match: else nothing follows where one does not */
} sl_schema_form;
/* NULL: no draft has that word, which says nothing. */
const sl_schema_form *sl_schema_format(const char *name);

#endif

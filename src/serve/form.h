/* What JSON a field of a body may be. The tables of fields have a form beside each name: bodies are
 * held to it when they are read, and /openapi.json says it, so the two are one. What a form cannot
 * say is checked by who reads the field. Pure. Thread: any. */
#ifndef SL_SERVE_FORM_H
#define SL_SERVE_FORM_H

#include "format/json.h"
#include "serve/reply.h"

struct sl_api_limits;

typedef struct sl_form {
    enum {
        SL_FORM_ANY,
        SL_FORM_BOOL,
        SL_FORM_STRING,
        SL_FORM_ARRAY,
        SL_FORM_OBJECT,
        SL_FORM_INTEGER,  /* low..high */
        SL_FORM_NUMBER,   /* the same, not only whole ones */
        SL_FORM_TOKENS,   /* low..the context; held to it by who reads it */
        SL_FORM_SAMPLING, /* a row of spec/sampling.def; the same */
        SL_FORM_WRITTEN,  /* as `write` says; the same */
    } kind;
    int64_t low, high;
    void (*write)(sl_jbuf *b, const struct sl_api_limits *limits); /* a JSON Schema */
} sl_form;

#define SL_IS_BOOL                                                                                 \
    { .kind = SL_FORM_BOOL }
#define SL_IS_STRING                                                                               \
    { .kind = SL_FORM_STRING }
#define SL_IS_ARRAY                                                                                \
    { .kind = SL_FORM_ARRAY }
#define SL_IS_OBJECT                                                                               \
    { .kind = SL_FORM_OBJECT }
#define SL_IS_INTEGER(from, to)                                                                    \
    { .kind = SL_FORM_INTEGER, .low = (from), .high = (to) }
#define SL_IS_NUMBER(from, to)                                                                     \
    { .kind = SL_FORM_NUMBER, .low = (from), .high = (to) }
#define SL_IS_TOKENS(from)                                                                         \
    { .kind = SL_FORM_TOKENS, .low = (from) }
#define SL_IS_SAMPLED                                                                              \
    { .kind = SL_FORM_SAMPLING }
#define SL_IS_WRITTEN(writer)                                                                      \
    { .kind = SL_FORM_WRITTEN, .write = (writer) }

/* A field of a small body. */
typedef struct sl_field {
    const char *name;
    bool required;
    sl_form form;
} sl_field;

/* Field `name` of root, where it is not null, is of that form. */
sl_status sl_form_check(const sl_form *f, sl_json root, const char *name,
                        sl_api_error *e) SL_MUST_CHECK;
/* The object has these fields and no others, each of its form; one that is required is missed by
 * who reads it. */
sl_status sl_fields_check(const sl_field *fields, size_t n, sl_json root,
                          sl_api_error *e) SL_MUST_CHECK;

/* The same as JSON Schemas; a field may always be null. */
void sl_form_write(sl_jbuf *b, const sl_form *f, const char *name,
                   const struct sl_api_limits *limits);
void sl_fields_write(sl_jbuf *b, const sl_field *fields, size_t n,
                     const struct sl_api_limits *limits);
/* ["a","b"] */
void sl_words_write(sl_jbuf *b, const char *const *words, size_t n);

/* An object's schema is opened, and closed; between them are properties. */
void sl_schema_open(sl_jbuf *b);
/* "NAME": with a comma before it, but for the first one. */
void sl_schema_name(sl_jbuf *b, const char *name);
/* `required` may be NULL. */
void sl_schema_close(sl_jbuf *b, const char *const *required, size_t n_required);

#endif

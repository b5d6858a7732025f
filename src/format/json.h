/* JSON documents from files and buffers nobody vouches for: a size cap, a depth cap, no duplicate
 * keys, and getters that check type and range. Every error names the file, the field, the value
 * found and the limit it broke. A thin layer over jansson, whose header users of this one do not
 * need. Thread: owner for a document while it is loaded and freed; any for reading it. */
#ifndef SL_FORMAT_JSON_H
#define SL_FORMAT_JSON_H

#include "base/span.h"
#include "base/status.h"

#define SL_JSON_MAX_DEPTH  64
#define SL_JSON_MAX_MEMORY ((size_t)2 << 30) /* of one parsed document */

typedef struct sl_json_doc sl_json_doc;

/* One value inside a document, passed by value; valid until sl_json_doc_free. An absent value has
 * value == NULL. */
typedef struct sl_json {
    const sl_json_doc *doc;
    const struct json_t *value;
} sl_json;

typedef enum sl_json_kind {
    SL_JSON_ABSENT,
    SL_JSON_NULL,
    SL_JSON_BOOL,
    SL_JSON_INT,
    SL_JSON_REAL,
    SL_JSON_STRING,
    SL_JSON_ARRAY,
    SL_JSON_OBJECT,
} sl_json_kind;

/* What a getter does about a missing field. A field that is null counts as missing. */
typedef enum sl_json_need {
    SL_JSON_REQUIRED, /* error */
    SL_JSON_OPTIONAL, /* *out keeps what the caller put there as the default; SL_OK */
} sl_json_need;

/* Reads a whole file of at most max_bytes. SL_ERR_NOTFOUND: no such file; SL_ERR_IO; SL_ERR_LIMIT:
 * too large or nested too deep; SL_ERR_FORMAT: not JSON (line, column and reason in err). */
sl_status sl_json_load(const char *path, size_t max_bytes, sl_json_doc **out,
                       sl_err *err) SL_MUST_CHECK;

/* The same for bytes in memory (copied where needed, not kept); `name` stands for the file in
 * errors. */
sl_status sl_json_parse(const char *name, sl_span text, sl_json_doc **out,
                        sl_err *err) SL_MUST_CHECK;

/* The same with another bound than SL_JSON_MAX_MEMORY on what parsing may take: small values take
 * up to a hundred times their text. SL_ERR_LIMIT, before anything is taken. */
sl_status sl_json_parse_within(const char *name, sl_span text, size_t max_memory, sl_json_doc **out,
                               sl_err *err) SL_MUST_CHECK;

void sl_json_doc_free(sl_json_doc *doc); /* NULL-safe */

sl_json sl_json_root(const sl_json_doc *doc);
const char *sl_json_file(sl_json v); /* borrowed from the document */

sl_json_kind sl_json_kind_of(sl_json v);

/* Field `key` of an object or element i of an array; absent when there is none or v is another
 * kind. */
sl_json sl_json_get(sl_json v, const char *key);
sl_json sl_json_at(sl_json v, size_t i);
/* Elements of an array, fields of an object, 0 for everything else. */
size_t sl_json_count(sl_json v);

/* Walks an object's fields in file order: start with *iter == NULL; false at the end.
 * *key is NUL-terminated and never holds a NUL inside. */
bool sl_json_next(sl_json obj, void **iter, const char **key, sl_json *out);

/* The value itself as text or number, without range; false when it is of another kind. A span is
 * followed by a NUL, and may hold others. */
bool sl_json_as_span(sl_json v, sl_span *out);
bool sl_json_as_u64(sl_json v, uint64_t *out); /* a non-negative integer */
bool sl_json_as_i64(sl_json v, int64_t *out);
bool sl_json_as_f64(sl_json v, double *out); /* integer or real */
bool sl_json_as_bool(sl_json v, bool *out);
bool sl_json_is_text(sl_json v, const char *text);

/* Typed fields of an object. min and max are inclusive. A string is borrowed from the document,
 * NUL-terminated, free of NULs inside. */
sl_status sl_json_u64(sl_json obj, const char *key, sl_json_need need, uint64_t min, uint64_t max,
                      uint64_t *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_json_u32(sl_json obj, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                      uint32_t *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_json_f64(sl_json obj, const char *key, sl_json_need need, double min, double max,
                      double *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_json_bool(sl_json obj, const char *key, sl_json_need need, bool *out,
                       sl_err *err) SL_MUST_CHECK;
sl_status sl_json_string(sl_json obj, const char *key, sl_json_need need, const char **out,
                         sl_err *err) SL_MUST_CHECK;
/* An array or object field; *out is left alone when an optional one is missing. */
sl_status sl_json_array(sl_json obj, const char *key, sl_json_need need, sl_json *out,
                        sl_err *err) SL_MUST_CHECK;
sl_status sl_json_object(sl_json obj, const char *key, sl_json_need need, sl_json *out,
                         sl_err *err) SL_MUST_CHECK;

/* SL_ERR_UNSUPPORTED naming the first non-null field of obj that is not among the n keys: for
 * formats where a field nobody reads would silently change results. */
sl_status sl_json_only(sl_json obj, const char *const *keys, size_t n, sl_err *err) SL_MUST_CHECK;

/* The value as JSON text without white space, piece by piece; false: `put` was, or no memory. An
 * absent one writes nothing. */
bool sl_json_write(sl_json v, bool (*put)(void *ctx, const char *text, size_t n),
                   void *ctx) SL_MUST_CHECK;

/* Values beside a document, for who says in other words what stands in it. They are of the document
 * of `of` in errors, which name the file alone, and live as long as their keep, which is one
 * thread's. What is put into them may be a value of the document, which has to live as long.
 * Without memory a value is absent; putting one that is absent, or into one, fails. */
typedef struct sl_json_keep sl_json_keep;
sl_json_keep *sl_json_keep_create(void);    /* NULL: no memory */
void sl_json_keep_free(sl_json_keep *keep); /* NULL-safe */
sl_json sl_json_new_object(sl_json_keep *keep, sl_json of);
sl_json sl_json_new_array(sl_json_keep *keep, sl_json of);
sl_json sl_json_new_bool(sl_json_keep *keep, sl_json of, bool v);
sl_json sl_json_new_u64(sl_json_keep *keep, sl_json of, uint64_t v); /* up to INT64_MAX */
sl_json sl_json_new_text(sl_json_keep *keep, sl_json of, const char *text);
/* The key may hold bytes that are no UTF-8, which no document has. */
bool sl_json_put(sl_json obj, const char *key, sl_json v) SL_MUST_CHECK;
bool sl_json_append(sl_json array, sl_json v) SL_MUST_CHECK;

/* Fails with "file: path.to.v.key: message"; key may be NULL for v itself. */
sl_status sl_json_fail(sl_json v, const char *key, sl_err *err, sl_status code, const char *fmt,
                       ...) SL_PRINTF(5, 6);

/* Returns st; what err says of the value of that field, read by who knows no JSON, begins with the
 * file and the field then. */
sl_status sl_json_says(sl_json v, const char *key, sl_status st, sl_err *err);

#endif

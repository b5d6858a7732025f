/* YAML documents from files nobody vouches for: a size cap, a depth cap, no anchors, aliases or
 * tags, no duplicate keys, one document. Getters check type and range; every error names file,
 * line, field, value and limit. A thin layer over libyaml. Thread: owner while a document is loaded
 * and freed; any for reading it. */
#ifndef SL_FORMAT_YAML_H
#define SL_FORMAT_YAML_H

#include "base/span.h"
#include "base/status.h"
#include "format/json.h"
#include "format/quantity.h"

#define SL_YAML_MAX_BYTES (1u << 20)
#define SL_YAML_MAX_DEPTH 16
#define SL_YAML_MAX_NODES 8192u

typedef struct sl_yaml_doc sl_yaml_doc;

typedef enum sl_yaml_kind {
    SL_YAML_ABSENT,
    SL_YAML_SCALAR,
    SL_YAML_LIST,
    SL_YAML_MAP,
} sl_yaml_kind;

/* One value inside a document, passed by value; valid until sl_yaml_doc_free. node 0: absent. */
typedef struct sl_yaml {
    const sl_yaml_doc *doc;
    uint32_t node;
} sl_yaml;

/* `name` stands for the file in errors. */
sl_status sl_yaml_parse(const char *name, sl_span text, sl_yaml_doc **out,
                        sl_err *err) SL_MUST_CHECK;
void sl_yaml_doc_free(sl_yaml_doc *doc); /* NULL-safe */

sl_yaml sl_yaml_root(const sl_yaml_doc *doc);
sl_yaml_kind sl_yaml_kind_of(sl_yaml v);
/* Text of a scalar, "" for everything else; borrowed from the document. */
const char *sl_yaml_text(sl_yaml v);

/* Value of a key, element of a list or i-th value of a map; absent when there is none. */
sl_yaml sl_yaml_get(sl_yaml map, const char *key);
sl_yaml sl_yaml_at(sl_yaml v, size_t i);
const char *sl_yaml_key_at(sl_yaml map, size_t i);
size_t sl_yaml_count(sl_yaml v); /* of a list or map */

/* Typed fields of a map; min and max are inclusive; an optional one that is missing leaves *out. */
sl_status sl_yaml_u64(sl_yaml map, const char *key, sl_json_need need, uint64_t min, uint64_t max,
                      uint64_t *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_yaml_f64(sl_yaml map, const char *key, sl_json_need need, sl_unit unit, double min,
                      double max, double *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_yaml_bool(sl_yaml map, const char *key, sl_json_need need, bool *out,
                       sl_err *err) SL_MUST_CHECK;
sl_status sl_yaml_string(sl_yaml map, const char *key, sl_json_need need, const char **out,
                         sl_err *err) SL_MUST_CHECK;
/* A field of that kind. */
sl_status sl_yaml_child(sl_yaml map, const char *key, sl_json_need need, sl_yaml_kind kind,
                        sl_yaml *out, sl_err *err) SL_MUST_CHECK;

/* Fails naming the first key of map that is not among the n. */
sl_status sl_yaml_only(sl_yaml map, const char *const *keys, size_t n, sl_err *err) SL_MUST_CHECK;

/* Fails with "file:line: key: message"; key may be NULL. The line is the value's where it exists.
 */
sl_status sl_yaml_fail(sl_yaml v, const char *key, sl_err *err, sl_status code, const char *fmt,
                       ...) SL_PRINTF(5, 6);

#endif

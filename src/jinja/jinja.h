/* Templates in the part of Jinja that published chat templates use (docs/chat.md lists it).
 *
 * A template is parsed once and never changes; a run holds the values of one rendering. Strings
 * carry, byte by byte, whether a user wrote them or the template did: the mark survives slices,
 * concatenation, filters and methods, so that the caller of a rendering knows which bytes may be
 * read as special tokens. Meaning is that of jinja2 with the settings of transformers (trim_blocks,
 * lstrip_blocks, sandbox, loop controls) and of Python's values, with integers of 64 bits.
 * No I/O, no clock, no globals; what a template may take is bounded by sl_jinja_limits.
 * Thread: owner for parse, free and everything with a run; any for a template in several runs. */
#ifndef SL_JINJA_JINJA_H
#define SL_JINJA_JINJA_H

#include "base/span.h"
#include "base/status.h"
#include "format/json.h"

#define SL_JINJA_MAX_SOURCE (1u << 20) /* bytes of a template */
#define SL_JINJA_MAX_NESTED 100u       /* blocks, brackets and operators inside one another */

typedef struct sl_jinja sl_jinja;
typedef struct sl_jrun sl_jrun;

typedef enum sl_jv_kind {
    SL_JV_MISSING, /* an argument that was not given */
    SL_JV_UNDEFINED,
    SL_JV_NONE,
    SL_JV_BOOL,
    SL_JV_INT,
    SL_JV_FLOAT,
    SL_JV_STRING,
    SL_JV_LIST,
    SL_JV_TUPLE,
    SL_JV_DICT,
    SL_JV_NAMESPACE,
    SL_JV_MACRO,
    SL_JV_LOOP,
    SL_JV_METHOD,
    SL_JV_FUNCTION,
} sl_jv_kind;

/* A value of a run; lives as long as the run. `user`: a scalar that a user wrote. */
typedef struct sl_jv {
    sl_jv_kind kind;
    bool user;
    union {
        bool b;
        int64_t i;
        double f;
        const struct sl_jstr *s;
        struct sl_jlist *list;
        struct sl_jdict *dict;
        const struct sl_jmacro *macro;
        const struct sl_jloop *loop;
        const struct sl_jbound *bound;
        const struct sl_jbuiltin *function;
        const char *name; /* of what is undefined */
    } as;
} sl_jv;

typedef struct sl_jinja_limits {
    uint64_t steps;      /* nodes evaluated, and 64 bytes of text touched count as one */
    size_t memory_bytes; /* of all values of the run */
    size_t output_bytes;
    uint32_t depth; /* expressions, blocks and macros inside one another */
} sl_jinja_limits;

/* `name` stands for the file in errors. SL_ERR_FORMAT: not a template; SL_ERR_UNSUPPORTED: it uses
 * what is not known here, which err names with its line; SL_ERR_LIMIT: too long or nested. */
sl_status sl_jinja_parse(const char *name, sl_span source, sl_jinja **out,
                         sl_err *err) SL_MUST_CHECK;
void sl_jinja_free(sl_jinja *t); /* NULL-safe */

sl_status sl_jrun_create(const sl_jinja_limits *limits, sl_jrun **out, sl_err *err) SL_MUST_CHECK;
void sl_jrun_free(sl_jrun *r); /* NULL-safe; with all of its values */

/* Values for a run. When its memory is out they are undefined, and the rendering fails. Text is
 * borrowed for as long as the run lives and must be UTF-8. */
sl_jv sl_jv_none(void);
sl_jv sl_jv_bool(bool b);
sl_jv sl_jv_int(int64_t i);
sl_jv sl_jv_text(sl_jrun *r, sl_span text, bool user);
sl_jv sl_jv_list(sl_jrun *r);
sl_jv sl_jv_dict(sl_jrun *r);
void sl_jv_push(sl_jrun *r, sl_jv list, sl_jv v);
/* Sets a key; `key` is borrowed. */
void sl_jv_put(sl_jrun *r, sl_jv dict, const char *key, sl_jv v);
/* A JSON value with all that is in it, everything marked as `user` says; strings are borrowed. */
sl_jv sl_jv_from_json(sl_jrun *r, sl_json v, bool user);

/* Looking into values: absent (MISSING) where there is no such entry, or v is another kind. */
sl_jv sl_jv_get(sl_jrun *r, sl_jv v, const char *key);
sl_jv sl_jv_at(sl_jv v, size_t i);
bool sl_jv_as_span(sl_jv v, sl_span *out); /* a string; borrowed from the run */

/* A rendering: n bytes, owned by the run, and for each whether a user wrote it. user == NULL: all
 * are alike, as all_user says. */
typedef struct sl_jinja_text {
    const char *bytes;
    size_t n;
    const uint8_t *user;
    bool all_user;
} sl_jinja_text;

/* Renders with the variables of the dict `globals`. now_s: seconds since 1970 for strftime_now, in
 * UTC. SL_ERR_ARG: the template raised an exception (err has its message) or did with a value what
 * it cannot do; SL_ERR_UNSUPPORTED: what is not known here; SL_ERR_LIMIT: a limit of the run. */
sl_status sl_jinja_render(sl_jrun *r, const sl_jinja *t, sl_jv globals, int64_t now_s,
                          sl_jinja_text *out, sl_err *err) SL_MUST_CHECK;

#endif

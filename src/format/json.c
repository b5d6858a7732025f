/* JSON documents over jansson: caps on bytes, depth and memory, errors with a place. */
#include "format/json.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct sl_json_doc {
    json_t *root;
    char *name;
};

static const char *const kind_names[] = {
    [SL_JSON_ABSENT] = "nothing", [SL_JSON_NULL] = "null",          [SL_JSON_BOOL] = "a boolean",
    [SL_JSON_INT] = "an integer", [SL_JSON_REAL] = "a real number", [SL_JSON_STRING] = "a string",
    [SL_JSON_ARRAY] = "an array", [SL_JSON_OBJECT] = "an object",
};

/* What jansson allocates at most, with what malloc adds: for each byte of text (its copies, and the
 * buffer it is read into), for a value and its place in an array, for a key and its place in a
 * table that has just grown, for an empty array or object. */
#define BYTE_MEMORY      5u
#define VALUE_MEMORY     112u
#define KEY_MEMORY       128u
#define CONTAINER_MEMORY 240u

/* Looks at the text before it is parsed: jansson's own nesting limit (2048) is deeper than our
 * recursive users want, and it has none of memory. */
static sl_status check_shape(const char *name, sl_span text, size_t max_memory, sl_err *err) {
    size_t depth = 0, line = 1, commas = 0, colons = 0, containers = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];
        if (c == '\n') line++;
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            containers++;
            if (++depth > SL_JSON_MAX_DEPTH)
                return sl_fail(err, SL_ERR_LIMIT, "%s: line %zu: nested deeper than %d levels",
                               name, line, SL_JSON_MAX_DEPTH);
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        } else {
            commas += c == ',';
            colons += c == ':';
        }
    }
    /* no overflow: each product is at most 357 times the length of a text in memory */
    size_t memory = BYTE_MEMORY * text.len + VALUE_MEMORY * (1 + commas + containers) +
                    KEY_MEMORY * colons + CONTAINER_MEMORY * containers;
    if (memory > max_memory)
        return sl_fail(err, SL_ERR_LIMIT,
                       "%s: %zu values in %zu arrays and objects would take %zu bytes, limit %zu",
                       name, 1 + commas + containers, containers, memory, max_memory);
    return SL_OK;
}

/* What stands between the last two quotes before the error: the key, when a key is what is wrong.
 */
static sl_span last_string(const char *text, size_t n, json_error_t why) {
    size_t end = why.position > 0 ? SL_MIN((size_t)why.position, n) : 0;
    while (end > 0 && text[end - 1] != '"') end--;
    size_t begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && text[begin - 1] != '"') begin--;
    return (sl_span){(const uint8_t *)text + begin, end > begin ? end - 1 - begin : 0};
}

/* Writes integers that int64 lacks as reals of the same length: published files have 10^30 for "no
 * limit" (model_max_length), at which jansson gives up. */
static void widen_integers(uint8_t *text, size_t n) {
    static const char most[] = "9223372036854775807";
    const size_t len = sizeof most - 1;
    bool in_string = false;
    uint8_t before = ','; /* the last character outside strings that is no digit */
    for (size_t i = 0, run = 0; i <= n; i++) {
        uint8_t c = i < n ? text[i] : ',';
        bool digit = !in_string && c >= '0' && c <= '9';
        run = digit ? run + 1 : run;
        if (digit) continue;
        bool whole = !strchr(".eE+", before) && c != '.' && c != 'e' && c != 'E';
        if (whole && (run > len || (run == len && memcmp(text + i - len, most, len) > 0)))
            memcpy(text + i - 2, "e2", 2);
        run = 0;
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        if (!in_string) before = c;
    }
}

static json_t *load_text(sl_span text, json_error_t *why) {
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    const char *bytes = text.len ? (const char *)text.data : "";
    json_t *root = json_loadb(bytes, text.len, flags, why);
    if (root || json_error_code(why) != json_error_numeric_overflow) return root;
    uint8_t *copy = sl_alloc(text.len, 1);
    if (!copy) return NULL; /* the error stays that of the number */
    memcpy(copy, text.data, text.len);
    widen_integers(copy, text.len);
    root = json_loadb((const char *)copy, text.len, flags, why);
    sl_free(copy);
    return root;
}

sl_status sl_json_parse(const char *name, sl_span text, sl_json_doc **out, sl_err *err) {
    return sl_json_parse_within(name, text, SL_JSON_MAX_MEMORY, out, err);
}

sl_status sl_json_parse_within(const char *name, sl_span text, size_t max_memory, sl_json_doc **out,
                               sl_err *err) {
    sl_status st = check_shape(name, text, max_memory, err);
    if (st != SL_OK) return st;
    sl_json_doc *doc = sl_alloc(1, sizeof *doc);
    if (!doc || !(doc->name = sl_strdup(name))) {
        st = sl_fail(err, SL_ERR_NOMEM, "%s: out of memory", name);
        goto out;
    }
    json_error_t why;
    const char *bytes = text.len ? (const char *)text.data : "";
    doc->root = load_text(text, &why);
    if (!doc->root) {
        sl_status code =
            json_error_code(&why) == json_error_out_of_memory ? SL_ERR_NOMEM : SL_ERR_FORMAT;
        sl_span key = last_string(bytes, text.len, why);
        bool twice = json_error_code(&why) == json_error_duplicate_key;
        st = sl_fail(err, code, "%s: line %d column %d: %s%.*s%s", name, why.line, why.column,
                     twice ? "duplicate key \"" : why.text,
                     twice ? (int)SL_MIN(key.len, (size_t)128) : 0, (const char *)key.data,
                     twice ? "\"" : "");
        goto out;
    }
    *out = doc;
    doc = NULL;
out:
    sl_json_doc_free(doc);
    return st;
}

static sl_status read_all(int fd, const char *path, uint8_t *buf, size_t want, sl_err *err) {
    for (size_t got = 0; got < want;) {
        ssize_t n = read(fd, buf + got, want - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return sl_fail(err, SL_ERR_IO, "%s: ended after %zu of %zu bytes", path, got, want);
        got += (size_t)n;
    }
    return SL_OK;
}

sl_status sl_json_load(const char *path, size_t max_bytes, sl_json_doc **out, sl_err *err) {
    sl_status st = SL_OK;
    uint8_t *buf = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        sl_status code = errno == ENOENT || errno == ENOTDIR ? SL_ERR_NOTFOUND : SL_ERR_IO;
        return sl_fail(err, code, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = sl_fail(err, SL_ERR_IO, "%s: not a regular file", path);
        goto out;
    }
    if ((uint64_t)info.st_size > max_bytes) {
        st = sl_fail(err, SL_ERR_LIMIT, "%s: %lld bytes, limit %zu", path, (long long)info.st_size,
                     max_bytes);
        goto out;
    }
    size_t n = (size_t)info.st_size;
    if (!(buf = sl_alloc(n, 1))) {
        st = sl_fail(err, SL_ERR_NOMEM, "%s: %zu bytes", path, n);
        goto out;
    }
    st = read_all(fd, path, buf, n, err);
    if (st == SL_OK) st = sl_json_parse(path, (sl_span){buf, n}, out, err);
out:
    sl_free(buf);
    close(fd);
    return st;
}

void sl_json_doc_free(sl_json_doc *doc) {
    if (!doc) return;
    json_decref(doc->root);
    sl_free(doc->name);
    sl_free(doc);
}

sl_json sl_json_root(const sl_json_doc *doc) {
    return (sl_json){doc, doc->root};
}

const char *sl_json_file(sl_json v) {
    return v.doc->name;
}

sl_json_kind sl_json_kind_of(sl_json v) {
    if (!v.value) return SL_JSON_ABSENT;
    switch (json_typeof(v.value)) {
    case JSON_NULL:
        return SL_JSON_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_JSON_BOOL;
    case JSON_INTEGER:
        return SL_JSON_INT;
    case JSON_REAL:
        return SL_JSON_REAL;
    case JSON_STRING:
        return SL_JSON_STRING;
    case JSON_ARRAY:
        return SL_JSON_ARRAY;
    case JSON_OBJECT:
        return SL_JSON_OBJECT;
    }
    return SL_JSON_ABSENT;
}

sl_json sl_json_get(sl_json v, const char *key) {
    return (sl_json){v.doc, v.value ? json_object_get(v.value, key) : NULL};
}

sl_json sl_json_at(sl_json v, size_t i) {
    return (sl_json){v.doc, v.value ? json_array_get(v.value, i) : NULL};
}

size_t sl_json_count(sl_json v) {
    switch (sl_json_kind_of(v)) {
    case SL_JSON_ARRAY:
        return json_array_size(v.value);
    case SL_JSON_OBJECT:
        return json_object_size(v.value);
    default:
        return 0;
    }
}

bool sl_json_next(sl_json obj, void **iter, const char **key, sl_json *out) {
    if (sl_json_kind_of(obj) != SL_JSON_OBJECT) return false;
    json_t *o = (json_t *)obj.value; /* jansson's iterators are not const; nothing is written */
    *iter = *iter ? json_object_iter_next(o, *iter) : json_object_iter(o);
    if (!*iter) return false;
    *key = json_object_iter_key(*iter);
    *out = (sl_json){obj.doc, json_object_iter_value(*iter)};
    return true;
}

bool sl_json_as_span(sl_json v, sl_span *out) {
    if (sl_json_kind_of(v) != SL_JSON_STRING) return false;
    *out = (sl_span){(const uint8_t *)json_string_value(v.value), json_string_length(v.value)};
    return true;
}

bool sl_json_is_text(sl_json v, const char *text) {
    sl_span s;
    return sl_json_as_span(v, &s) && sl_span_is(s, text);
}

bool sl_json_as_u64(sl_json v, uint64_t *out) {
    if (sl_json_kind_of(v) != SL_JSON_INT || json_integer_value(v.value) < 0) return false;
    *out = (uint64_t)json_integer_value(v.value);
    return true;
}

bool sl_json_as_i64(sl_json v, int64_t *out) {
    if (sl_json_kind_of(v) != SL_JSON_INT) return false;
    *out = json_integer_value(v.value);
    return true;
}

bool sl_json_as_bool(sl_json v, bool *out) {
    if (sl_json_kind_of(v) != SL_JSON_BOOL) return false;
    *out = json_is_true(v.value);
    return true;
}

bool sl_json_as_f64(sl_json v, double *out) {
    sl_json_kind kind = sl_json_kind_of(v);
    if (kind != SL_JSON_INT && kind != SL_JSON_REAL) return false;
    *out = json_number_value(v.value);
    return true;
}

struct sl_json_keep {
    json_t *all; /* an array of them */
};

sl_json_keep *sl_json_keep_create(void) {
    sl_json_keep *keep = sl_alloc(1, sizeof *keep);
    if (keep && !(keep->all = json_array())) {
        sl_free(keep);
        keep = NULL;
    }
    return keep;
}

void sl_json_keep_free(sl_json_keep *keep) {
    if (!keep) return;
    json_decref(keep->all);
    sl_free(keep);
}

static sl_json kept(sl_json_keep *keep, sl_json of, json_t *v) {
    if (v && json_array_append_new(keep->all, v) != 0) v = NULL;
    return (sl_json){of.doc, v};
}

sl_json sl_json_new_object(sl_json_keep *keep, sl_json of) {
    return kept(keep, of, json_object());
}

sl_json sl_json_new_array(sl_json_keep *keep, sl_json of) {
    return kept(keep, of, json_array());
}

sl_json sl_json_new_bool(sl_json_keep *keep, sl_json of, bool v) {
    return kept(keep, of, json_boolean(v));
}

sl_json sl_json_new_u64(sl_json_keep *keep, sl_json of, uint64_t v) {
    return kept(keep, of, json_integer((json_int_t)v));
}

sl_json sl_json_new_text(sl_json_keep *keep, sl_json of, const char *text) {
    return kept(keep, of, json_string_nocheck(text));
}

/* jansson counts references in the values themselves. */
bool sl_json_put(sl_json obj, const char *key, sl_json v) {
    return obj.value && v.value &&
           json_object_set_nocheck((json_t *)obj.value, key, (json_t *)v.value) == 0;
}

bool sl_json_append(sl_json array, sl_json v) {
    return array.value && v.value &&
           json_array_append((json_t *)array.value, (json_t *)v.value) == 0;
}

/* Appends the way from `from` to `target` ("a.b[3]") to path. Used for errors only, so a search is
 * cheaper than every value carrying its way; depth is bounded by check_shape. */
static bool find_path(const json_t *from, const json_t *target, char *path, size_t cap,
                      size_t len) {
    if (from == target) return true;
    if (json_is_array(from)) {
        for (size_t i = 0; i < json_array_size(from); i++) {
            int n = snprintf(path + len, cap - len, "[%zu]", i);
            size_t next = SL_MIN(len + (size_t)SL_MAX(n, 0), cap - 1);
            if (find_path(json_array_get(from, i), target, path, cap, next)) return true;
        }
    } else if (json_is_object(from)) {
        json_t *o = (json_t *)from;
        for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
            int n =
                snprintf(path + len, cap - len, "%s%s", len ? "." : "", json_object_iter_key(it));
            size_t next = SL_MIN(len + (size_t)SL_MAX(n, 0), cap - 1);
            if (find_path(json_object_iter_value(it), target, path, cap, next)) return true;
        }
    }
    path[len] = 0;
    return false;
}

sl_status sl_json_fail(sl_json v, const char *key, sl_err *err, sl_status code, const char *fmt,
                       ...) {
    if (!err) return code;
    char path[160] = "", text[256];
    if (v.value) find_path(v.doc->root, v.value, path, sizeof path, 0);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *dot = path[0] && key ? "." : "";
    const char *colon = path[0] || key ? ": " : "";
    sl_fail(err, code, "%s: %s%s%.80s%s%s", v.doc->name, path, dot, key ? key : "", colon, text);
    /* a key may hold line ends and terminal codes; a report is one plain line */
    for (char *p = err->msg; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return code;
}

sl_status sl_json_says(sl_json v, const char *key, sl_status st, sl_err *err) {
    if (st == SL_OK || !err) return st;
    const sl_err said = *err;
    return sl_json_fail(v, key, err, st, "%s", said.msg);
}

/* Sets *out to the field when it is there; *there tells. */
static sl_status find_field(sl_json obj, const char *key, sl_json_need need, sl_json *out,
                            bool *there, sl_err *err) {
    if (sl_json_kind_of(obj) != SL_JSON_OBJECT)
        return sl_json_fail(obj, NULL, err, SL_ERR_FORMAT, "%s where an object was expected",
                            kind_names[sl_json_kind_of(obj)]);
    *out = sl_json_get(obj, key);
    *there = sl_json_kind_of(*out) > SL_JSON_NULL;
    if (!*there && need == SL_JSON_REQUIRED)
        return sl_json_fail(obj, key, err, SL_ERR_FORMAT, "missing");
    return SL_OK;
}

/* " (value)" for errors; nothing for arrays and objects, whose text may be long. */
static void show_value(const json_t *v, char *out, size_t cap) {
    out[0] = 0;
    if (json_is_array(v) || json_is_object(v)) return;
    char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY);
    if (json_is_string(v))
        snprintf(out, cap, " (\"%.40s\")", json_string_value(v));
    else if (text)
        snprintf(out, cap, " (%.40s)", text);
    free(text);
}

static sl_status wrong_kind(sl_json obj, const char *key, sl_json v, const char *want,
                            sl_err *err) {
    char shown[64];
    show_value(v.value, shown, sizeof shown);
    return sl_json_fail(obj, key, err, SL_ERR_FORMAT, "%s%s where %s was expected",
                        kind_names[sl_json_kind_of(v)], shown, want);
}

sl_status sl_json_u64(sl_json obj, const char *key, sl_json_need need, uint64_t min, uint64_t max,
                      uint64_t *out, sl_err *err) {
    sl_json v = {0};
    bool there = false;
    sl_status st = find_field(obj, key, need, &v, &there, err);
    if (st != SL_OK || !there) return st;
    if (sl_json_kind_of(v) != SL_JSON_INT) return wrong_kind(obj, key, v, "an integer", err);
    long long n = json_integer_value(v.value);
    if (n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return sl_json_fail(obj, key, err, SL_ERR_LIMIT, "%lld is outside %llu..%llu", n,
                            (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)n;
    return SL_OK;
}

sl_status sl_json_u32(sl_json obj, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                      uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_json_u64(obj, key, need, min, max, &v, err);
    if (st == SL_OK) *out = (uint32_t)v;
    return st;
}

sl_status sl_json_f64(sl_json obj, const char *key, sl_json_need need, double min, double max,
                      double *out, sl_err *err) {
    sl_json v = {0};
    bool there = false;
    double x;
    sl_status st = find_field(obj, key, need, &v, &there, err);
    if (st != SL_OK || !there) return st;
    if (!sl_json_as_f64(v, &x)) return wrong_kind(obj, key, v, "a number", err);
    if (!(x >= min && x <= max))
        return sl_json_fail(obj, key, err, SL_ERR_LIMIT, "%g is outside %g..%g", x, min, max);
    *out = x;
    return SL_OK;
}

sl_status sl_json_bool(sl_json obj, const char *key, sl_json_need need, bool *out, sl_err *err) {
    sl_json v = {0};
    bool there = false;
    sl_status st = find_field(obj, key, need, &v, &there, err);
    if (st != SL_OK || !there) return st;
    if (sl_json_kind_of(v) != SL_JSON_BOOL) return wrong_kind(obj, key, v, "true or false", err);
    *out = json_is_true(v.value);
    return SL_OK;
}

sl_status sl_json_string(sl_json obj, const char *key, sl_json_need need, const char **out,
                         sl_err *err) {
    sl_json v = {0};
    bool there = false;
    sl_status st = find_field(obj, key, need, &v, &there, err);
    if (st != SL_OK || !there) return st;
    if (sl_json_kind_of(v) != SL_JSON_STRING) return wrong_kind(obj, key, v, "a string", err);
    if (strlen(json_string_value(v.value)) != json_string_length(v.value))
        return sl_json_fail(obj, key, err, SL_ERR_FORMAT, "holds a NUL character");
    *out = json_string_value(v.value);
    return SL_OK;
}

static sl_status get_container(sl_json obj, const char *key, sl_json_need need, sl_json_kind kind,
                               sl_json *out, sl_err *err) {
    sl_json v = {0};
    bool there = false;
    sl_status st = find_field(obj, key, need, &v, &there, err);
    if (st != SL_OK || !there) return st;
    if (sl_json_kind_of(v) != kind) return wrong_kind(obj, key, v, kind_names[kind], err);
    *out = v;
    return SL_OK;
}

sl_status sl_json_array(sl_json obj, const char *key, sl_json_need need, sl_json *out,
                        sl_err *err) {
    return get_container(obj, key, need, SL_JSON_ARRAY, out, err);
}

sl_status sl_json_object(sl_json obj, const char *key, sl_json_need need, sl_json *out,
                         sl_err *err) {
    return get_container(obj, key, need, SL_JSON_OBJECT, out, err);
}

sl_status sl_json_only(sl_json obj, const char *const *keys, size_t n, sl_err *err) {
    void *iter = NULL;
    const char *key;
    for (sl_json v; sl_json_next(obj, &iter, &key, &v);) {
        bool known = sl_json_kind_of(v) == SL_JSON_NULL;
        for (size_t i = 0; !known && i < n; i++) known = strcmp(key, keys[i]) == 0;
        if (!known) return sl_json_fail(obj, key, err, SL_ERR_UNSUPPORTED, "unknown field");
    }
    return SL_OK;
}

typedef struct writing {
    bool (*put)(void *ctx, const char *text, size_t n);
    void *ctx;
} writing;

static int write_piece(const char *text, size_t n, void *data) {
    const writing *w = data;
    return w->put(w->ctx, text, n) ? 0 : -1;
}

bool sl_json_write(sl_json v, bool (*put)(void *ctx, const char *text, size_t n), void *ctx) {
    writing w = {put, ctx};
    return !v.value ||
           json_dump_callback(v.value, write_piece, &w, JSON_COMPACT | JSON_ENCODE_ANY) == 0;
}

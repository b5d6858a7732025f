/* Trace files span by span, whoever wrote them. */
#include "trace/trace_read.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHUNK     (256u << 10)
#define MAX_DEPTH 64u
#define MAX_US    1e15

typedef struct reader {
    const char *name;
    FILE *f; /* NULL: all is in chunk */
    const uint8_t *chunk;
    uint8_t *own; /* what chunk points to when f is read */
    size_t at, len;
    uint64_t line;
    uint8_t *text; /* of the value being read */
    size_t text_len, text_cap;
    const sl_trace_visitor *v;
} reader;

/* ---- bytes ---- */

static int peek(reader *r) {
    if (r->at == r->len && r->f) {
        r->len = fread(r->own, 1, CHUNK, r->f);
        r->at = 0;
    }
    return r->at < r->len ? r->chunk[r->at] : EOF;
}

static int next(reader *r) {
    int c = peek(r);
    if (c == EOF) return EOF;
    r->at++;
    r->line += c == '\n';
    return c;
}

static int next_word(reader *r) {
    int c = next(r);
    while (c == ' ' || c == '\t' || c == '\r' || c == '\n') c = next(r);
    return c;
}

static sl_status malformed(const reader *r, sl_err *err, const char *what) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %llu: %s", r->name, (unsigned long long)r->line,
                   what);
}

static sl_status keep(reader *r, int c, size_t limit, sl_err *err) {
    if (limit == 0) return SL_OK;
    if (r->text_len == limit)
        return sl_fail(err, SL_ERR_LIMIT, "%s: line %llu: a value of more than %zu bytes", r->name,
                       (unsigned long long)r->line, limit);
    if (r->text_len == r->text_cap) {
        size_t cap = SL_MIN(SL_MAX(r->text_cap * 2, (size_t)4096), limit);
        uint8_t *bigger = sl_grow(r->text, r->text_cap, cap, 1);
        if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "%s: value of %zu bytes", r->name, cap);
        r->text = bigger;
        r->text_cap = cap;
    }
    r->text[r->text_len++] = (uint8_t)c;
    return SL_OK;
}

/* Reads the value that begins with c into text; limit 0: passes over it. Only as much of JSON as it
 * takes to find the end; the parser judges the rest. */
static sl_status read_value(reader *r, int c, size_t limit, sl_err *err) {
    uint32_t depth = 0;
    bool string = false, escaped = false;
    r->text_len = 0;
    for (;;) {
        if (c == EOF) return malformed(r, err, "the file ends inside a value");
        sl_status st = keep(r, c, limit, err);
        if (st != SL_OK) return st;
        if (string) {
            if (!escaped && c == '"') string = false;
            escaped = !escaped && c == '\\';
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_DEPTH) return malformed(r, err, "nested too deep");
        } else if (c == '}' || c == ']') {
            if (depth == 0) return malformed(r, err, "an unexpected bracket");
            depth--;
        }
        int after = peek(r);
        bool ends = after == ',' || after == '}' || after == ']' || after == EOF || after == '\n';
        if (depth == 0 && !string && (ends || c == '}' || c == ']' || c == '"')) return SL_OK;
        c = next(r);
    }
}

/* ---- events ---- */

static double number(sl_json v, const char *key) {
    double d = 0;
    return sl_json_as_f64(sl_json_get(v, key), &d) && isfinite(d) ? d : 0;
}

static uint64_t whole(sl_json v, const char *key) {
    uint64_t u = 0;
    sl_json_as_u64(sl_json_get(v, key), &u);
    return u;
}

static uint32_t small(sl_json v, const char *key) {
    return (uint32_t)SL_MIN(whole(v, key), (uint64_t)UINT32_MAX);
}

static const char *text_of(sl_json v, const char *key) {
    sl_span s;
    if (!sl_json_as_span(sl_json_get(v, key), &s) || memchr(s.data, 0, s.len)) return "";
    return (const char *)s.data;
}

static sl_status visit_event(reader *r, sl_json e, sl_err *err) {
    const char *phase = text_of(e, "ph");
    bool span = strcmp(phase, "X") == 0;
    if (!span && strcmp(phase, "M") != 0) return SL_OK;
    sl_json args = sl_json_get(e, "args");
    sl_trace_item it = {.is_name = !span,
                        .pid = small(e, "pid"),
                        .tid = small(e, "tid"),
                        .name = text_of(e, "name"),
                        .category = text_of(e, "cat"),
                        .label = text_of(args, "name"),
                        .begin_us = number(e, "ts"),
                        .layer = small(args, "layer"),
                        .lane = small(args, "lane"),
                        .chunk = small(args, "chunk"),
                        .round = small(args, "round"),
                        .rows = whole(args, "rows"),
                        .bytes = whole(args, "bytes"),
                        .tokens = whole(args, "tokens"),
                        .poll_us = number(args, "poll_us"),
                        .queued_us = number(args, "queued_us"),
                        .latency_us = number(args, "latency_us"),
                        .experts = sl_json_get(args, "experts")};
    double dur = number(e, "dur");
    it.end_us = it.begin_us + dur;
    if (span && !(it.begin_us >= 0 && dur >= 0 && it.end_us <= MAX_US))
        return malformed(r, err, "a span needs ts and dur, from 0 to 1e15 microseconds");
    return r->v->on_item(r->v->ctx, &it, err);
}

static sl_status take_value(reader *r, bool event, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_err why = {0};
    sl_status st = sl_json_parse(r->name, (sl_span){r->text, r->text_len}, &doc, &why);
    if (st != SL_OK) {
        sl_status code = st == SL_ERR_NOMEM ? st : SL_ERR_FORMAT;
        return sl_fail(err, code, "%s: line %llu: %s", r->name, (unsigned long long)r->line,
                       why.msg);
    }
    sl_json root = sl_json_root(doc);
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        st = malformed(r, err, "not an object");
    else if (event)
        st = visit_event(r, root, err);
    else if (r->v->on_about)
        st = r->v->on_about(r->v->ctx, root, err);
    sl_json_doc_free(doc);
    return st;
}

/* After '['. */
static sl_status read_events(reader *r, sl_err *err) {
    int c = next_word(r);
    if (c == ']') return SL_OK;
    for (;;) {
        sl_status st = read_value(r, c, SL_TRACE_MAX_EVENT_BYTES, err);
        if (st == SL_OK) st = take_value(r, true, err);
        if (st != SL_OK) return st;
        c = next_word(r);
        if (c == ']') return SL_OK;
        if (c != ',') return malformed(r, err, "events without a comma between them");
        c = next_word(r);
    }
}

/* After '{'. */
static sl_status read_object(reader *r, bool *any, sl_err *err) {
    int c = next_word(r);
    while (c == '"') {
        sl_status st = read_value(r, c, 256, err);
        bool events = r->text_len == 13 && memcmp(r->text, "\"traceEvents\"", 13) == 0;
        bool about = r->text_len == 11 && memcmp(r->text, "\"otherData\"", 11) == 0;
        if (st == SL_OK && next_word(r) != ':') st = malformed(r, err, "a key without a value");
        if (st != SL_OK) return st;
        c = next_word(r);
        if (events && c == '[') {
            *any = true;
            st = read_events(r, err);
        } else {
            st = read_value(r, c, about ? SL_TRACE_MAX_ABOUT_BYTES : 0, err);
            if (st == SL_OK && about) st = take_value(r, false, err);
        }
        if (st != SL_OK) return st;
        c = next_word(r);
        if (c == ',') c = next_word(r);
    }
    return c == '}' ? SL_OK : malformed(r, err, "an object that does not end");
}

static sl_status read_all(reader *r, sl_err *err) {
    bool any = false;
    int c = next_word(r);
    sl_status st;
    r->line++;
    if (c == '[') {
        any = true;
        st = read_events(r, err);
    } else if (c == '{') {
        st = read_object(r, &any, err);
    } else {
        st = malformed(r, err, "not a trace: neither an array nor an object");
    }
    if (st == SL_OK && !any) st = malformed(r, err, "not a trace: there are no traceEvents");
    if (st == SL_OK && r->f && ferror(r->f))
        st = sl_fail(err, SL_ERR_IO, "%s: %s", r->name, strerror(errno));
    sl_free(r->text);
    return st;
}

sl_status sl_trace_read_span(const char *name, sl_span text, const sl_trace_visitor *v,
                             sl_err *err) {
    reader r = {.name = name, .chunk = text.data, .len = text.len, .v = v};
    return read_all(&r, err);
}

sl_status sl_trace_read(const char *path, const sl_trace_visitor *v, sl_err *err) {
    reader r = {.name = path, .v = v};
    r.f = fopen(path, "rbe");
    if (!r.f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOTFOUND : SL_ERR_IO, "%s: %s", path,
                       strerror(errno));
    r.own = sl_alloc(CHUNK, 1);
    r.chunk = r.own;
    sl_status st = r.own ? read_all(&r, err)
                         : sl_fail(err, SL_ERR_NOMEM, "%s: buffer of %u bytes", path, CHUNK);
    sl_free(r.own);
    fclose(r.f);
    return st;
}

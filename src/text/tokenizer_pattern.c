/* Patterns of pre-tokenizers are written for Oniguruma (Ruby syntax). Here they run on PCRE2, so
 * each is first read by a small translator that passes what means the same in both, rewrites what
 * does not, and refuses the rest. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>

typedef struct translation {
    sl_json where;
    sl_span in;
    size_t pos;
    char *out; /* room for MAX_REPLACE of every byte */
    size_t len;
    sl_err *err;
} translation;

/* Property White_Space as members of a class. PCRE2's own \s takes U+180E too. The property comes
 * last so that a following hyphen stays a hyphen. */
#define SPACES      "\\t-\\r\\x{85}\\p{Z}"
#define MAX_REPLACE sizeof("[^" SPACES "]")

static void put(translation *t, const char *s, size_t n) {
    memcpy(t->out + t->len, s, n);
    t->len += n;
}

static sl_status refuse(const translation *t, const char *what) {
    return sl_json_fail(t->where, "pattern", t->err, SL_ERR_UNSUPPORTED,
                        "%s at byte %zu of \"%.60s\"", what, t->pos, (const char *)t->in.data);
}

static int peek(const translation *t, size_t ahead) {
    return t->pos + ahead < t->in.len ? t->in.data[t->pos + ahead] : -1;
}

static void pass(translation *t, size_t n) {
    put(t, (const char *)t->in.data + t->pos, n);
    t->pos += n;
}

/* From 10.40 on PCRE2 takes the name of a script for Script_Extensions, unless sc: is before it. */
static bool is_script(sl_span name) {
    char probe[64];
    int code;
    PCRE2_SIZE at;
    int n = snprintf(probe, sizeof probe, "\\p{sc:%.*s}", (int)SL_MIN(name.len, sizeof probe),
                     (const char *)name.data);
    if (name.len < 3 || (size_t)n >= sizeof probe) return false;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)probe, (size_t)n, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(re);
    return re != NULL;
}

/* pos is at a backslash. */
static sl_status translate_escape(translation *t, bool in_class) {
    int c = peek(t, 1);
    if (c < 0) return refuse(t, "lone backslash");
    if (c == 's' || c == 'S') {
        if (c == 'S' && in_class) return refuse(t, "\\S inside a class");
        const char *with = in_class ? SPACES : c == 's' ? "[" SPACES "]" : "[^" SPACES "]";
        put(t, with, strlen(with));
        t->pos += 2;
        return SL_OK;
    }
    if (c == 'p' || c == 'P') {
        if (peek(t, 2) != '{') return refuse(t, "property without braces");
        size_t end = 3;
        while (peek(t, end) >= 0 && peek(t, end) != '}') end++;
        bool script = is_script((sl_span){t->in.data + t->pos + 3, end - 3});
        pass(t, 3);
        if (script) put(t, "sc:", 3);
        while (peek(t, 0) >= 0 && peek(t, 0) != '}') pass(t, 1);
        if (peek(t, 0) < 0) return refuse(t, "property without end");
        pass(t, 1);
        return SL_OK;
    }
    if (c == 'x') {
        if (peek(t, 2) != '{') return refuse(t, "\\x without braces");
        while (peek(t, 0) >= 0 && peek(t, 0) != '}') pass(t, 1);
        if (peek(t, 0) < 0) return refuse(t, "\\x without end");
        pass(t, 1);
        return SL_OK;
    }
    bool letter = (c | 32) >= 'a' && (c | 32) <= 'z', digit = c >= '0' && c <= '9';
    if (digit || (letter && !strchr("dDrntf", c))) return refuse(t, "escape");
    pass(t, 2);
    return SL_OK;
}

/* Every code point is of one of these. */
static const char categories[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
#define N_CATEGORIES ((sizeof categories - 1) / 2)

/* [CATEGORIES&&[^MEMBERS]] is "of no other category, and no member": a class of PCRE2. False: pos
 * is at something else. Else pos is at the first member, and the class is open. */
static bool open_intersection(translation *t) {
    bool in[N_CATEGORIES] = {false};
    size_t at = 1;
    for (; peek(t, at) == '\\' && peek(t, at + 1) == 'p' && peek(t, at + 2) == '{';) {
        int major = peek(t, at + 3), minor = peek(t, at + 4);
        bool one = minor == '}', known = false;
        for (size_t i = 0; i < N_CATEGORIES; i++) {
            if (categories[2 * i] != major || !(one || categories[2 * i + 1] == minor)) continue;
            in[i] = known = true;
        }
        if (!known || (!one && peek(t, at + 5) != '}')) return false;
        at += one ? 5 : 6;
    }
    if (at == 1 || t->in.len - t->pos < at + 4 || memcmp(t->in.data + t->pos + at, "&&[^", 4) != 0)
        return false;
    put(t, "[^", 2);
    for (size_t i = 0; i < N_CATEGORIES; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "\\p{%.2s}", categories + 2 * i);
        if (!in[i]) put(t, name, (size_t)n);
    }
    t->pos += at + 4;
    return true;
}

/* pos is at the bracket that opens a class. */
static sl_status translate_class(translation *t) {
    bool both = open_intersection(t);
    if (!both) pass(t, 1);
    if (!both && peek(t, 0) == '^') pass(t, 1);
    for (bool first = true;; first = false) {
        int c = peek(t, 0);
        if (c < 0) return refuse(t, "class without end");
        if (c == '[') return refuse(t, "class inside a class");
        if (c == '&' && peek(t, 1) == '&') return refuse(t, "intersection of classes");
        if (c == ']' && !first) break;
        if (c == '\\') {
            sl_status st = translate_escape(t, true);
            if (st != SL_OK) return st;
        } else {
            pass(t, 1);
        }
    }
    pass(t, 1);
    if (both && peek(t, 0) != ']') return refuse(t, "more after an intersection of classes");
    t->pos += both;
    return SL_OK;
}

/* pos is at an opening parenthesis. */
static sl_status translate_group(translation *t) {
    static const char *const known[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"};
    pass(t, 1);
    if (peek(t, 0) == '*') return refuse(t, "verb");
    if (peek(t, 0) != '?') return SL_OK;
    for (size_t i = 0; i < SL_LEN(known); i++) {
        size_t n = strlen(known[i]);
        if (t->in.len - t->pos >= n && memcmp(t->in.data + t->pos, known[i], n) == 0) {
            pass(t, n);
            return SL_OK;
        }
    }
    return refuse(t, "kind of group");
}

/* The end of a line, in Ruby; PCRE2's own is that of the text. */
static void put_end(translation *t) {
    static const char end[] = "(?![^\\n])";
    put(t, end, sizeof end - 1);
    t->pos++;
}

static sl_status translate(translation *t) {
    sl_status st = SL_OK;
    while (st == SL_OK && t->pos < t->in.len) {
        int c = peek(t, 0);
        if (c == '\\')
            st = translate_escape(t, false);
        else if (c == '[')
            st = translate_class(t);
        else if (c == '(')
            st = translate_group(t);
        else if (c == '^')
            st = refuse(t, "anchor");
        else if (c == '$')
            put_end(t);
        else if (c == '{' && peek(t, 1) == ',')
            st = refuse(t, "repeat without a minimum");
        else if (c == '}' && peek(t, 1) == '+')
            st = refuse(t, "possessive counted repeat");
        else
            pass(t, 1);
    }
    return st;
}

sl_status sl_tok_split_add(sl_tokenizer *tok, sl_json where, sl_span pattern, bool literal,
                           bool drop_match, bool drop_rest, sl_err *err) {
    if (tok->n_splits == SL_TOK_MAX_SPLITS)
        return sl_json_fail(where, NULL, err, SL_ERR_LIMIT, "over %u splits", SL_TOK_MAX_SPLITS);
    if (pattern.len == 0 || pattern.len > SL_TOK_MAX_PATTERN)
        return sl_json_fail(where, "pattern", err, SL_ERR_LIMIT, "%zu bytes, limit 1..%u",
                            pattern.len, SL_TOK_MAX_PATTERN);
    translation t = {.where = where, .in = pattern, .err = err};
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    t.out = sl_alloc(pattern.len, MAX_REPLACE);
    sl_status st = SL_OK;
    if (!ctx || !t.out) {
        st = sl_json_fail(where, "pattern", err, SL_ERR_NOMEM, "out of memory");
        goto out;
    }
    if (literal)
        put(&t, (const char *)pattern.data, pattern.len);
    else
        st = translate(&t);
    if (st != SL_OK) goto out;
    int code;
    PCRE2_SIZE at;
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)t.out, t.len, options, &code, &at, ctx);
    if (!re) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        st = sl_json_fail(where, "pattern", err, SL_ERR_FORMAT, "%s in \"%.60s\"",
                          (const char *)why, (const char *)pattern.data);
        goto out;
    }
    /* Without a JIT on this machine the interpreter gives the same matches. */
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    tok->splits[tok->n_splits++] =
        (sl_tok_split){.code = re, .drop_match = drop_match, .drop_rest = drop_rest};
out:
    sl_free(t.out);
    pcre2_compile_context_free(ctx);
    return st;
}

/* Next match at or after `from`; *found is false when there is none. */
static sl_status find_match(const sl_tok_split *s, sl_tok_work *w, sl_span text, size_t from,
                            bool *found, size_t *start, size_t *end, sl_err *err) {
    PCRE2_SPTR subject = text.data;
    int rc = pcre2_match(s->code, subject, text.len, from, PCRE2_NO_UTF_CHECK, w->match, w->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->code, subject, text.len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         w->match, w->limits);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return SL_OK;
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return sl_fail(err, rc == PCRE2_ERROR_NOMEMORY ? SL_ERR_NOMEM : SL_ERR_LIMIT,
                       "splitting %zu bytes of text: %s", text.len, (const char *)why);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(w->match);
    *start = span[0];
    *end = span[1];
    return SL_OK;
}

static sl_status split_run(const sl_tokenizer *tok, sl_tok_work *w, size_t at, sl_span text,
                           sl_ids *out, sl_err *err) {
    if (at == tok->n_splits) return sl_tok_word_encode(tok, w, text, out, err);
    const sl_tok_split *s = &tok->splits[at];
    sl_status st = SL_OK;
    size_t done = 0, from = 0;
    while (st == SL_OK && done < text.len) {
        size_t start = text.len, end = text.len;
        bool found = false;
        if (from <= text.len) st = find_match(s, w, text, from, &found, &start, &end, err);
        if (st != SL_OK) break;
        if (found && start == end) { /* an empty match only cuts the text where it is */
            size_t next = text.len + 1;
            (void)sl_utf8_at(text, end, &next);
            from = next;
        } else {
            from = end;
        }
        if (start > done && !s->drop_rest)
            st = sl_tok_split_run(tok, w, at + 1, (sl_span){text.data + done, start - done}, out,
                                  err);
        if (st == SL_OK && end > start && !s->drop_match)
            st = sl_tok_split_run(tok, w, at + 1, (sl_span){text.data + start, end - start}, out,
                                  err);
        done = end;
    }
    return st;
}

sl_status sl_tok_split_run(const sl_tokenizer *tok, sl_tok_work *w, size_t at, sl_span text,
                           sl_ids *out, sl_err *err) {
    if (!tok->prefix_space || at != tok->prefix_at || text.data[0] == ' ')
        return split_run(tok, w, at, text, out, err);
    uint8_t *spaced = sl_alloc(text.len + 1, 1);
    if (!spaced) return sl_fail(err, SL_ERR_NOMEM, "text of %zu bytes", text.len);
    spaced[0] = ' ';
    memcpy(spaced + 1, text.data, text.len);
    sl_status st = split_run(tok, w, at, (sl_span){spaced, text.len + 1}, out, err);
    sl_free(spaced);
    return st;
}

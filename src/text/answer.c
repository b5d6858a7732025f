/* The parser of answers: text, reasoning and calls told apart at the beginning of the window. */
#include "text/answer_int.h"

#include "base/mem.h"

#define FEED_BYTES 4096u /* read at once: what is read is moved away */

/* ---- markers ---- */

static void add_special(sl_answer *a, const char *text) {
    int64_t id = -1;
    if (!text || a->n_special == SL_ANSWER_MAX_SPECIAL) return;
    for (size_t i = 0; i < a->n_special; i++)
        if (!strcmp(a->special[i].text, text)) return;
    if (a->tok) {
        id = sl_tokenizer_find(a->tok, text);
        if (id < 0 || !sl_tokenizer_is_special(a->tok, (uint32_t)id)) return;
    } else if (!a->o.markers || strlen(text) < 4) { /* brackets are text */
        return;
    }
    a->special[a->n_special++] = (sl_special){text, id};
}

static void add_open(sl_answer *a, const sl_format *f, const sl_opening *o) {
    if (a->n_open == SL_ANSWER_MAX_OPEN) return;
    add_special(a, o->text);
    a->open[a->n_open++] = (sl_open_marker){sl_answer_literal(a, o->text), f, o->at, o->first};
}

static void add_format(sl_answer *a, sl_tool_format which) {
    const sl_format *f = &sl_answer_formats[which];
    if (!f->program) return;
    for (size_t i = 0; i < f->n; i++) {
        const char *text = f->program[i].text;
        if (text && (text[0] == '<' || text[0] == '[') && text[1]) add_special(a, text);
    }
    if (f->closing) add_special(a, f->closing);
    for (size_t i = 0; i < SL_LEN(f->opening) && f->opening[i].text; i++)
        add_open(a, f, &f->opening[i]);
    if (f->closing) add_open(a, NULL, &(sl_opening){f->closing, 0, false});
}

static void add_markers(sl_answer *a) {
    const char *const *marker;
    size_t n;
    a->thought = sl_answer_thought(&a->o.style);
    if (a->o.style.tools == SL_TOOLS_HARMONY) {
        a->thought = NULL;
        (void)sl_answer_harmony_markers(&marker, &n);
        for (size_t i = 0; i < n; i++) add_special(a, marker[i]);
        return;
    }
    if (a->thought) {
        add_special(a, a->thought->open);
        add_special(a, a->thought->close);
    }
    if (!a->o.tools) return;
    add_format(a, a->o.style.tools);
    if (a->o.style.generic && a->o.style.tools != SL_TOOLS_HERMES) add_format(a, SL_TOOLS_HERMES);
}

sl_status sl_answer_create(const sl_tokenizer *tok, const sl_answer_options *o, sl_answer **out,
                           sl_err *err) {
    sl_answer *a = sl_alloc(1, sizeof *a);
    if (!a) return sl_fail(err, SL_ERR_NOMEM, "parser of an answer");
    a->tok = tok;
    a->o = *o;
    a->fresh = a->opening = true;
    a->body = SL_ANSWER_TEXT;
    add_markers(a);
    a->state = o->style.tools == SL_TOOLS_HARMONY ? SL_STATE_BODY
               : a->thought                       ? SL_STATE_BEGIN
                                                  : SL_STATE_TEXT;
    *out = a;
    return SL_OK;
}

void sl_answer_free(sl_answer *a) {
    if (!a) return;
    sl_free(a->w);
    sl_free(a);
}

/* ---- text and reasoning ---- */

/* Gives what was read of the window, but for white space at its end, which may lie beside a marker.
 */
static void flush(sl_answer *a, sl_answer_kind kind, bool all) {
    bool holds = kind == SL_ANSWER_REASONING || a->n_open > 0;
    size_t n = holds && !all ? a->at - a->n_space : a->at;
    sl_answer_say(a, kind, a->w, n);
    sl_answer_drop(a, n);
}

/* White space that is the format's; false: there may be more of it. */
static bool skip_space(sl_answer *a) {
    size_t n = 0;
    while (n < a->len && sl_answer_is_space(a->w[n])) n++;
    sl_answer_drop(a, n);
    a->at = a->n_space = 0;
    return a->len > 0;
}

/* A byte of text was read. */
static void pass(sl_answer *a) {
    a->n_space = sl_answer_is_space(a->w[a->at]) ? a->n_space + 1 : 0;
    a->at++;
}

/* A special token that marks nothing here. */
static void drop_symbol(sl_answer *a) {
    memmove(a->w + a->at, a->w + a->at + 1, a->len - a->at - 1);
    a->len--;
}

/* A thought may be opened before anything is said, if the prompt has not done it. */
static bool begin_step(sl_answer *a) {
    while (a->at < a->len && sl_answer_is_space(a->w[a->at])) a->at++;
    if (a->at == a->len && !a->last) return false;
    sl_span open = sl_answer_literal(a, a->thought->open);
    sl_match m = a->at < a->len ? sl_answer_match(a, a->at, open) : SL_MATCH_NONE;
    if (m == SL_MATCH_PART) return false;
    a->state = m == SL_MATCH_FULL || a->o.opened ? SL_STATE_THOUGHT : SL_STATE_TEXT;
    a->after = a->state == SL_STATE_THOUGHT;
    if (m == SL_MATCH_FULL) sl_answer_drop(a, a->at + open.len);
    a->at = 0;
    return true;
}

static bool thought_step(sl_answer *a) {
    sl_span close = sl_answer_literal(a, a->thought->close);
    if (a->after && !skip_space(a)) return false;
    a->after = false;
    while (a->at < a->len) {
        sl_match m = sl_answer_match(a, a->at, close);
        if (m == SL_MATCH_PART) break;
        if (m == SL_MATCH_FULL) {
            flush(a, SL_ANSWER_REASONING, false);
            sl_answer_drop(a, a->at + close.len);
            a->state = SL_STATE_TEXT;
            a->after = true;
            return true;
        }
        if (sl_answer_is_symbol(a->w[a->at]))
            drop_symbol(a);
        else
            pass(a);
    }
    flush(a, SL_ANSWER_REASONING, a->last);
    return false;
}

/* What begins at `at`; *part: it may become a marker. */
static const sl_open_marker *find_open(const sl_answer *a, bool *part) {
    *part = false;
    for (size_t i = 0; i < a->n_open; i++) {
        const sl_open_marker *o = &a->open[i];
        if (o->first && !a->fresh) continue;
        if (!o->format && a->n_calls == 0) continue;
        sl_match m = sl_answer_match(a, a->at, o->text);
        if (m == SL_MATCH_FULL) return o;
        *part = *part || m == SL_MATCH_PART;
    }
    return NULL;
}

static void open_call(sl_answer *a, const sl_open_marker *o) {
    flush(a, SL_ANSWER_TEXT, false);
    a->n_open_bytes = a->at + o->text.len;
    if (!o->first) a->at += o->text.len;
    a->n_space = 0;
    a->format = o->format;
    a->pc = o->at;
    a->known = o->first;
    a->begun = a->fields = false;
    a->n_name = a->n_id = 0;
    a->state = SL_STATE_CALL;
}

static bool text_step(sl_answer *a) {
    if (a->after && !skip_space(a)) return false;
    a->after = false;
    while (a->at < a->len) {
        bool part, plain = !sl_answer_is_space(a->w[a->at]);
        const sl_open_marker *o = plain ? find_open(a, &part) : NULL;
        if (o && o->format) {
            open_call(a, o);
            return true;
        }
        if (o) { /* what ends a list of calls */
            flush(a, SL_ANSWER_TEXT, false);
            sl_answer_drop(a, a->at + o->text.len);
            a->after = true;
            return true;
        }
        if (plain && part) break;
        if (sl_answer_is_symbol(a->w[a->at]) && a->at >= a->shown) {
            drop_symbol(a);
            continue;
        }
        a->fresh = a->fresh && !plain;
        pass(a);
    }
    flush(a, SL_ANSWER_TEXT, a->last);
    return false;
}

/* ---- feeding ---- */

static void run(sl_answer *a) {
    for (bool more = true; more && !a->nomem;) {
        switch (a->state) {
        case SL_STATE_BEGIN:
            more = begin_step(a);
            break;
        case SL_STATE_THOUGHT:
            more = thought_step(a);
            break;
        case SL_STATE_TEXT:
            more = text_step(a);
            break;
        case SL_STATE_CALL:
            more = sl_answer_call_step(a);
            break;
        case SL_STATE_HEADER:
            more = sl_answer_header_step(a);
            break;
        case SL_STATE_BODY:
            more = sl_answer_body_step(a);
            break;
        case SL_STATE_DONE:
            a->len = a->at = 0;
            return;
        }
    }
}

static void append(sl_answer *a, const char *text, size_t n) {
    if (n == 0) return;
    if (a->cap - a->len < n) {
        size_t cap = SL_MAX(2 * a->cap, a->len + n + 64);
        char *grown = sl_grow(a->w, a->cap, cap, 1);
        if (!grown) {
            a->nomem = true;
            return;
        }
        a->w = grown;
        a->cap = cap;
    }
    memcpy(a->w + a->len, text, n);
    a->len += n;
}

static sl_status state_of(const sl_answer *a) {
    return a->nomem ? SL_ERR_NOMEM : SL_OK;
}

sl_status sl_answer_feed(sl_answer *a, const char *text, size_t n) {
    for (size_t at = 0; at < n; at += FEED_BYTES) {
        append(a, text + at, SL_MIN(n - at, (size_t)FEED_BYTES));
        run(a);
    }
    return state_of(a);
}

static sl_status feed_special(sl_answer *a, size_t i) {
    char held[SL_DETOK_MAX_OUT];
    size_t n = sl_detok_flush(&a->detok, held);
    if (n) append(a, held, n);
    return sl_answer_feed(a, sl_answer_symbol(i), 1);
}

sl_status sl_answer_marker(sl_answer *a, const char *text) {
    for (size_t i = 0; i < a->n_special; i++)
        if (!strcmp(a->special[i].text, text)) return feed_special(a, i);
    return state_of(a);
}

sl_status sl_answer_push(sl_answer *a, uint32_t id) {
    char piece[SL_DETOK_MAX_OUT];
    for (size_t i = 0; i < a->n_special; i++)
        if (a->special[i].id == (int64_t)id) return feed_special(a, i);
    return sl_answer_feed(a, piece, sl_detok_push(&a->detok, a->tok, id, true, piece));
}

sl_status sl_answer_end(sl_answer *a) {
    char held[SL_DETOK_MAX_OUT];
    if (a->last) return state_of(a);
    append(a, held, sl_detok_flush(&a->detok, held));
    a->last = true;
    run(a);
    return state_of(a);
}

bool sl_answer_is_done(const sl_answer *a) {
    return a->state == SL_STATE_DONE;
}

uint32_t sl_answer_calls(const sl_answer *a) {
    return a->n_calls;
}

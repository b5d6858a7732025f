/* Runs the program of a format over the text of a call. */
#include "text/answer_int.h"

/* ---- JSON ---- */

static int put_utf8(uint32_t c, char out[8]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* A lone surrogate is U+FFFD. */
static int put_unit(sl_unescape *u, char out[8]) {
    uint32_t c = u->code;
    bool low = c >= 0xDC00 && c < 0xE000, high = c >= 0xD800 && c < 0xDC00;
    int n = 0;
    if (u->high && low) {
        c = 0x10000 + ((u->high - 0xD800) << 10) + (c - 0xDC00);
        u->high = 0;
        return put_utf8(c, out);
    }
    if (u->high) n = put_utf8(0xFFFD, out);
    u->high = high ? c : 0;
    if (high) return n;
    return n + put_utf8(low || c == 0 ? 0xFFFD : c, out + n);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Bytes of output, at most 7; -1: no JSON; -2: the closing quote. */
static int unescape(sl_unescape *u, char c, char out[8]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int n = 0;
    if (u->escape > 1) {
        int d = hex_digit(c);
        if (d < 0) return -1;
        u->code = u->code << 4 | (uint32_t)d;
        if (--u->escape > 1) return 0;
        u->escape = 0;
        return put_unit(u, out);
    }
    if (u->escape == 1 && c == 'u') {
        u->escape = 5;
        u->code = 0;
        return 0;
    }
    if (u->high && !(u->escape == 0 && c == '\\')) { /* its other half did not come */
        u->high = 0;
        n = put_utf8(0xFFFD, out);
    }
    if (u->escape == 1) {
        const char *at = c ? strchr(from, c) : NULL;
        if (!at) return -1;
        u->escape = 0;
        out[n] = to[at - from];
        return n + 1;
    }
    if (c == '"') return n ? -1 : -2;
    if (c == '\\') {
        u->escape = 1;
        return n;
    }
    if ((uint8_t)c < 0x20 || sl_answer_is_symbol(c)) return -1;
    out[n] = c;
    return n + 1;
}

/* Reads on in a JSON value that began with a bracket, up to where its brackets are closed. A marker
 * that is a special token is never part of it. True: it is whole. */
static bool read_json(sl_answer *a) {
    for (; a->at < a->len; a->at++) {
        char c = a->w[a->at];
        if (sl_answer_is_symbol(c)) return true;
        if (a->in_string) {
            if (a->escaped)
                a->escaped = false;
            else if (c == '\\')
                a->escaped = true;
            else if (c == '"')
                a->in_string = false;
        } else if (c == '"') {
            a->in_string = true;
        } else if (c == '{' || c == '[') {
            a->depth++;
        } else if ((c == '}' || c == ']') && --a->depth == 0) {
            a->at++;
            return true;
        }
    }
    return false;
}

/* Arguments that are shown as they come, from the window's beginning on. */
static bool stream_json(sl_answer *a) {
    bool whole = read_json(a);
    sl_answer_arguments(a, a->w, a->at);
    sl_answer_drop(a, a->at);
    return whole;
}

static bool may_begin(const sl_answer *a) {
    return !a->known || sl_tool_set_has(a->o.tools, (sl_span){(const uint8_t *)a->name, a->n_name});
}

static sl_op_result json_op(sl_answer *a) {
    if (!a->begun) {
        if (a->at == a->len) return a->last ? SL_OP_FAIL : SL_OP_MORE;
        if (a->w[a->at] != '{' || !may_begin(a)) return SL_OP_FAIL;
        sl_answer_begin_call(a, a->at);
        a->depth = 0;
    }
    return stream_json(a) ? SL_OP_DONE : SL_OP_MORE;
}

/* ---- {"name": ..., "arguments": ...} ---- */

enum { O_OPEN, O_KEY, O_IN_KEY, O_COLON, O_VALUE, O_NAME, O_ID, O_SKIP, O_JSON, O_TEXT, O_NEXT };

typedef enum field { FIELD_NAME, FIELD_ARGUMENTS, FIELD_ID, FIELD_SKIP, FIELD_NONE } field;

static field field_of(const sl_object_state *o) {
    static const struct {
        const char *name;
        field what;
    } known[] = {{"name", FIELD_NAME},
                 {"arguments", FIELD_ARGUMENTS},
                 {"parameters", FIELD_ARGUMENTS},
                 {"id", FIELD_ID},
                 {"type", FIELD_SKIP}};
    for (size_t i = 0; i < SL_LEN(known); i++)
        if (strlen(known[i].name) == o->n_key && !memcmp(known[i].name, o->key, o->n_key))
            return known[i].what;
    return FIELD_NONE;
}

/* The value of the key begins with c. */
static bool begin_value(sl_answer *a, char c) {
    sl_object_state *o = &a->object;
    o->string = (sl_unescape){0};
    switch (field_of(o)) {
    case FIELD_NAME:
        o->where = O_NAME;
        a->n_name = 0;
        return c == '"' && !o->has_name;
    case FIELD_ID:
        o->where = O_ID;
        a->n_id = 0;
        return c == '"';
    case FIELD_SKIP:
        o->where = O_SKIP;
        return c == '"';
    case FIELD_ARGUMENTS:
        break;
    case FIELD_NONE:
        return false;
    }
    if (o->has_arguments || (c != '{' && c != '"')) return false;
    if (o->has_name && !may_begin(a)) return false;
    if (c == '"' && !o->has_name) return false; /* JSON in a string: shown as it is decoded */
    o->has_arguments = true;
    o->where = c == '{' ? O_JSON : O_TEXT;
    o->from = a->at;
    a->depth = 0;
    a->in_string = a->escaped = false;
    if (o->has_name) sl_answer_begin_call(a, c == '{' ? a->at : a->at + 1);
    return true;
}

/* A byte of a string that is kept; false: it breaks the call. */
static bool keep_string(sl_answer *a, char c, char *to, size_t *n) {
    char out[8];
    sl_object_state *o = &a->object;
    int got = unescape(&o->string, c, out);
    if (got == -1 || (got > 0 && *n + (size_t)got > SL_ANSWER_MAX_NAME)) return false;
    if (got >= 0) {
        memcpy(to + *n, out, (size_t)got);
        *n += (size_t)got;
        return true;
    }
    if (o->where == O_NAME) {
        o->has_name = true;
        if (a->n_name == 0 || (o->has_arguments && !may_begin(a))) return false;
        /* arguments that came before it */
        if (o->has_arguments) {
            sl_answer_begin_call(a, o->from);
            sl_answer_arguments(a, a->w, o->to - o->from);
        }
    }
    o->where = O_NEXT;
    return true;
}

/* Arguments as JSON in a string. */
static bool text_byte(sl_answer *a, char c) {
    char out[8];
    int n = unescape(&a->object.string, c, out);
    if (n == -1) return false;
    if (n == -2)
        a->object.where = O_NEXT;
    else
        sl_answer_arguments(a, out, (size_t)n);
    return true;
}

/* A byte between the parts; false: it is no such object. *whole: it was the last one. */
static bool object_byte(sl_answer *a, char c, bool *whole) {
    char ignored[SL_ANSWER_MAX_NAME + 8];
    size_t n_ignored = 0;
    sl_object_state *o = &a->object;
    bool inside = o->where >= O_NAME && o->where <= O_TEXT;
    if (!inside && o->where != O_IN_KEY && sl_answer_is_space(c)) return true;
    switch (o->where) {
    case O_OPEN:
        o->where = O_KEY;
        return c == '{';
    case O_KEY:
        o->where = O_IN_KEY;
        o->n_key = 0;
        return c == '"';
    case O_IN_KEY:
        if (c == '"')
            o->where = O_COLON;
        else if (o->n_key == sizeof o->key || c == '\\')
            return false;
        else
            o->key[o->n_key++] = c;
        return true;
    case O_COLON:
        o->where = O_VALUE;
        return c == ':';
    case O_VALUE:
        return begin_value(a, c);
    case O_NAME:
        return keep_string(a, c, a->name, &a->n_name);
    case O_ID:
        return keep_string(a, c, a->id, &a->n_id);
    case O_SKIP:
        return keep_string(a, c, ignored, &n_ignored);
    case O_TEXT:
        return text_byte(a, c);
    default:
        break;
    }
    if (c == ',') {
        o->where = O_KEY;
        return true;
    }
    *whole = true;
    return c == '}' && o->has_name && may_begin(a);
}

static sl_op_result object_op(sl_answer *a) {
    sl_object_state *o = &a->object;
    bool whole = false;
    while (!whole) {
        if (o->where == O_JSON) {
            bool done = a->begun ? stream_json(a) : read_json(a);
            o->to = a->at;
            if (done) o->where = O_NEXT;
        }
        if (!a->begun && a->at > SL_ANSWER_MAX_HEAD) return SL_OP_FAIL;
        if (a->at == a->len) {
            if (a->begun) sl_answer_drop(a, a->at);
            return a->last ? SL_OP_FAIL : SL_OP_MORE;
        }
        if (o->where == O_JSON) continue;
        size_t at = a->at;
        uint8_t was = o->where;
        if (!object_byte(a, a->w[at], &whole)) return SL_OP_FAIL;
        /* a value in brackets is read with its first one */
        bool stays = was == O_VALUE && o->where == O_JSON;
        bool moved = was == O_VALUE && o->where == O_TEXT; /* dropped with its quote */
        if (!stays && !moved && a->at < a->len) a->at++;
    }
    if (!a->begun) sl_answer_begin_call(a, a->at); /* it has no arguments */
    sl_answer_drop(a, a->at);
    return SL_OP_DONE;
}

/* ---- names ---- */

static bool in_name(char c) {
    return !sl_answer_is_space(c) && (uint8_t)c > 0x20 && c != 0x7F && !sl_answer_is_symbol(c) &&
           !strchr("<>[](){}\"'`,;=|", c);
}

/* The longest run of a name's characters; it is over where another one follows. */
static sl_op_result read_name(sl_answer *a, char *to, size_t *n) {
    size_t end = a->at;
    while (end < a->len && in_name(a->w[end])) end++;
    if (end - a->at > SL_ANSWER_MAX_NAME) return SL_OP_FAIL;
    if (end == a->len && !a->last) return SL_OP_MORE;
    if (end == a->at) return SL_OP_FAIL;
    *n = end - a->at;
    memcpy(to, a->w + a->at, *n);
    a->at = end;
    return SL_OP_DONE;
}

/* functions.NAME:N */
static sl_op_result name_of_id(sl_answer *a) {
    static const char prefix[] = "functions.";
    size_t skip = sizeof prefix - 1;
    sl_op_result r = read_name(a, a->id, &a->n_id);
    if (r != SL_OP_DONE) return r;
    size_t end = a->n_id;
    while (end > 0 && a->id[end - 1] >= '0' && a->id[end - 1] <= '9') end--;
    end = end > 0 && end < a->n_id && a->id[end - 1] == ':' ? end - 1 : a->n_id;
    if (end <= skip || memcmp(a->id, prefix, skip) != 0) skip = 0;
    a->n_name = end - skip;
    memcpy(a->name, a->id + skip, a->n_name);
    return a->n_name ? SL_OP_DONE : SL_OP_FAIL;
}

/* ---- the program ---- */

static sl_op_result space_op(sl_answer *a) {
    while (a->at < a->len && sl_answer_is_space(a->w[a->at])) a->at++;
    if (a->begun) sl_answer_drop(a, a->at);
    if (a->at > SL_ANSWER_MAX_HEAD) return SL_OP_FAIL;
    return a->at == a->len && !a->last ? SL_OP_MORE : SL_OP_DONE;
}

static sl_op_result literal_op(sl_answer *a, sl_span literal, sl_op_result otherwise) {
    sl_match m = sl_answer_match(a, a->at, literal);
    if (m == SL_MATCH_PART) return SL_OP_MORE;
    if (m == SL_MATCH_NONE) return otherwise;
    a->at += literal.len;
    if (a->begun) sl_answer_drop(a, a->at);
    return SL_OP_DONE;
}

static sl_op_result begin_op(sl_answer *a) {
    sl_answer_begin_call(a, a->at);
    sl_answer_arguments(a, "{", 1);
    a->value = (sl_value_state){0};
    a->fields = true;
    return SL_OP_DONE;
}

static sl_op_result end_op(sl_answer *a) {
    sl_answer_drop(a, a->at);
    sl_answer_end_call(a);
    a->n_open_bytes = 0;
    return SL_OP_DONE;
}

static sl_op_result do_op(sl_answer *a, const sl_op *op) {
    sl_span name = {(const uint8_t *)a->name, a->n_name};
    sl_span literal = op->text ? sl_answer_literal(a, op->text) : (sl_span){0};
    switch (op->kind) {
    case SL_OP_SPACE:
        return space_op(a);
    case SL_OP_TEXT:
        return literal_op(a, literal, SL_OP_FAIL);
    case SL_OP_IF:
        return literal_op(a, literal, SL_OP_ELSE);
    case SL_OP_NAME:
        return read_name(a, a->name, &a->n_name);
    case SL_OP_NAME_ID:
        return name_of_id(a);
    case SL_OP_ID:
        return read_name(a, a->id, &a->n_id);
    case SL_OP_KNOWN:
        return sl_tool_set_has(a->o.tools, name) ? SL_OP_DONE : SL_OP_FAIL;
    case SL_OP_BEGIN:
        return begin_op(a);
    case SL_OP_JSON:
        return json_op(a);
    case SL_OP_OBJECT:
        return object_op(a);
    case SL_OP_KEY:
        return sl_answer_key(a, literal);
    case SL_OP_VALUE:
        return sl_answer_value(a, literal, false);
    case SL_OP_LINES:
        return sl_answer_value(a, literal, true);
    case SL_OP_PYTHON:
        return sl_answer_python(a);
    case SL_OP_END:
        return end_op(a);
    case SL_OP_GOTO:
        return SL_OP_ELSE;
    case SL_OP_EXIT:
        break;
    }
    return SL_OP_DONE;
}

static void clear_op(sl_answer *a) {
    a->depth = 0;
    a->in_string = a->escaped = false;
    a->object = (sl_object_state){0};
    a->python = (sl_python_state){0};
}

/* What was read of a call that has not begun is text, and so is what follows one that has. */
static void break_call(sl_answer *a) {
    if (a->begun) {
        sl_answer_drop(a, a->at);
        sl_answer_end_call(a);
        a->shown = 0;
        a->at = 0;
    } else {
        a->shown = SL_MIN(SL_MAX(a->at + 1, a->n_open_bytes), a->len);
        a->at = SL_MIN(SL_MAX(a->n_open_bytes, 1u), a->len);
    }
    a->fresh = false;
    a->n_space = 0;
    if (a->state != SL_STATE_DONE) a->state = SL_STATE_TEXT;
}

bool sl_answer_call_step(sl_answer *a) {
    while (a->state == SL_STATE_CALL) {
        const sl_op *op = &a->format->program[a->pc];
        sl_op_result r = do_op(a, op);
        if (r == SL_OP_MORE && !a->last) return false;
        if (r == SL_OP_DONE && op->kind != SL_OP_EXIT) {
            a->pc++;
            clear_op(a);
        } else if (r == SL_OP_ELSE) {
            a->pc = op->to;
        } else if (r == SL_OP_DONE) {
            sl_answer_drop(a, a->at);
            a->after = a->fresh = true;
            a->at = 0;
            a->state = SL_STATE_TEXT;
        } else {
            break_call(a);
        }
    }
    return true;
}

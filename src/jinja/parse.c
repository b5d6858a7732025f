/* Expressions of templates: tokens to a tree, bounded in depth and size. */
#include "jinja/jinja_int.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_MEMORY ((size_t)256 << 20) /* of a parsed template */

void sl_jparse_fail(sl_jparser *p, sl_status code, const char *fmt, ...) {
    char text[300];
    va_list list;
    if (p->st != SL_OK) return;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    p->st = sl_fail(p->err, code, "%s: line %u: %s", p->t->name, sl_jparse_peek(p)->line, text);
}

const sl_jtok *sl_jparse_peek(const sl_jparser *p) {
    return &p->tok[SL_MIN(p->at, p->n - 1)];
}

const sl_jtok *sl_jparse_next(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    if (p->at + 1 < p->n) p->at++;
    return t;
}

static const sl_jtok *look(const sl_jparser *p) {
    return &p->tok[SL_MIN(p->at + 1, p->n - 1)];
}

bool sl_jtok_is(const sl_jtok *t, const char *word) {
    return t->kind == SL_JT_NAME && t->n == strlen(word) && memcmp(t->text, word, t->n) == 0;
}

static bool is_op(const sl_jtok *t, int op) {
    return t->kind == SL_JT_OP && t->op == op;
}

static void unexpected(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    if (t->kind == SL_JT_END)
        sl_jparse_fail(p, SL_ERR_FORMAT, "the template ends too early");
    else
        sl_jparse_fail(p, SL_ERR_FORMAT, "unexpected \"%.*s\"", (int)SL_MIN(t->n, (size_t)40),
                       t->text);
}

bool sl_jparse_skip_op(sl_jparser *p, int op) {
    if (!is_op(sl_jparse_peek(p), op)) return false;
    p->at++;
    return true;
}

bool sl_jparse_skip_word(sl_jparser *p, const char *word) {
    if (!sl_jtok_is(sl_jparse_peek(p), word)) return false;
    p->at++;
    return true;
}

void sl_jparse_expect_op(sl_jparser *p, int op) {
    if (!sl_jparse_skip_op(p, op)) unexpected(p);
}

const sl_jtok *sl_jparse_expect_name(sl_jparser *p) {
    if (sl_jparse_peek(p)->kind != SL_JT_NAME) unexpected(p);
    return sl_jparse_next(p);
}

bool sl_jparse_enter(sl_jparser *p) {
    if (++p->depth > SL_JINJA_MAX_NESTED)
        sl_jparse_fail(p, SL_ERR_LIMIT, "nested deeper than %u levels", SL_JINJA_MAX_NESTED);
    return p->st == SL_OK;
}

void sl_jparse_leave(sl_jparser *p) {
    p->depth--;
}

static void *take(sl_jparser *p, size_t n, size_t size) {
    void *m = sl_jmem_take(&p->t->mem, n, size);
    if (!m) sl_jparse_fail(p, SL_ERR_LIMIT, "the template takes too much memory");
    return m;
}

sl_jnode *sl_jparse_node(sl_jparser *p, sl_jnode_kind kind, uint32_t line) {
    sl_jnode *n = take(p, 1, sizeof *n);
    if (!n) return NULL;
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

/* Arrays of nodes grow by doubling: full at each power of two. */
static bool full(uint32_t n) {
    return (n & (n - 1)) == 0;
}

static void deepen(sl_jparser *p, sl_jnode *to, const sl_jnode *kid) {
    if (!kid) return;
    to->depth = SL_MAX(to->depth, kid->depth + 1);
    if (to->depth > 3 * SL_JINJA_MAX_NESTED)
        sl_jparse_fail(p, SL_ERR_LIMIT, "nested deeper than %u levels", 3 * SL_JINJA_MAX_NESTED);
}

void sl_jparse_add(sl_jparser *p, sl_jnode *to, sl_jnode *kid) {
    if (!to || p->st != SL_OK) return;
    if (full(to->n)) {
        sl_jnode **fresh = take(p, to->n ? 2 * (size_t)to->n : 1, sizeof *fresh);
        if (!fresh) return;
        if (to->n) memcpy(fresh, to->kid, to->n * sizeof *fresh);
        to->kid = fresh;
    }
    to->kid[to->n++] = kid;
    deepen(p, to, kid);
}

void sl_jparse_key(sl_jparser *p, sl_jnode *to, const sl_jtok *name, sl_jnode *value) {
    if (!to || p->st != SL_OK) return;
    if (full(to->n_key)) {
        sl_jkey *fresh = take(p, to->n_key ? 2 * (size_t)to->n_key : 1, sizeof *fresh);
        if (!fresh) return;
        if (to->n_key) memcpy(fresh, to->key, to->n_key * sizeof *fresh);
        to->key = fresh;
    }
    char *text = sl_jmem_name(&p->t->mem, name->text, name->n);
    if (!text) {
        sl_jparse_fail(p, SL_ERR_LIMIT, "the template takes too much memory");
        return;
    }
    to->key[to->n_key++] = (sl_jkey){text, sl_jhash(name->text, name->n), value};
    deepen(p, to, value);
}

void sl_jparse_name(sl_jparser *p, sl_jnode *node, const sl_jtok *name) {
    if (!node) return;
    node->name = sl_jmem_name(&p->t->mem, name->text, name->n);
    node->hash = sl_jhash(name->text, name->n);
    if (!node->name) sl_jparse_fail(p, SL_ERR_LIMIT, "the template takes too much memory");
}

/* ---- expressions, by rising precedence ---- */

/* A node with `first` as its first child, or first itself when it is such a node already. */
static sl_jnode *chain(sl_jparser *p, sl_jnode_kind kind, sl_jnode *first, uint32_t line) {
    sl_jnode *n = sl_jparse_node(p, kind, line);
    sl_jparse_add(p, n, first);
    return n;
}

static sl_jnode *parse_unary(sl_jparser *p, bool filters);

static sl_jnode *parse_power(sl_jparser *p) {
    sl_jnode *left = parse_unary(p, true);
    while (p->st == SL_OK && is_op(sl_jparse_peek(p), SL_JOP_POW)) {
        left = chain(p, SL_JN_MATH, left, sl_jparse_next(p)->line);
        if (left) left->op = SL_JOP_POW;
        sl_jparse_add(p, left, parse_unary(p, true));
    }
    return left;
}

static sl_jnode *parse_product(sl_jparser *p) {
    sl_jnode *left = parse_power(p);
    for (;;) {
        const sl_jtok *t = sl_jparse_peek(p);
        bool ours = is_op(t, '*') || is_op(t, '/') || is_op(t, '%') || is_op(t, SL_JOP_FLOORDIV);
        if (p->st != SL_OK || !ours) return left;
        left = chain(p, SL_JN_MATH, left, sl_jparse_next(p)->line);
        if (left) left->op = t->op;
        sl_jparse_add(p, left, parse_power(p));
    }
}

static sl_jnode *parse_concat(sl_jparser *p) {
    uint32_t line = sl_jparse_peek(p)->line;
    sl_jnode *first = parse_product(p), *all = NULL;
    while (p->st == SL_OK && sl_jparse_skip_op(p, '~')) {
        if (!all) all = chain(p, SL_JN_CONCAT, first, line);
        sl_jparse_add(p, all, parse_product(p));
    }
    return all ? all : first;
}

static sl_jnode *parse_sum(sl_jparser *p) {
    sl_jnode *left = parse_concat(p);
    bool open = false; /* left is a sum begun here, which may get more */
    for (;;) {
        const sl_jtok *t = sl_jparse_peek(p);
        if (p->st != SL_OK || !(is_op(t, '+') || is_op(t, '-'))) return left;
        sl_jparse_next(p);
        if (t->op == '-' || !open) {
            left = chain(p, t->op == '-' ? SL_JN_MATH : SL_JN_ADD, left, t->line);
            if (left) left->op = t->op;
        }
        open = t->op == '+';
        sl_jparse_add(p, left, parse_concat(p));
    }
}

enum { OP_IN = 'i', OP_NOT_IN = 'n' };

/* Takes a comparison; 0: there is none. */
static int comparison(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    int op = 0;
    if (t->kind == SL_JT_OP &&
        (t->op == '<' || t->op == '>' || (t->op >= SL_JOP_EQ && t->op <= SL_JOP_GE)))
        op = t->op;
    else if (sl_jtok_is(t, "in"))
        op = OP_IN;
    else if (sl_jtok_is(t, "not") && sl_jtok_is(look(p), "in"))
        op = OP_NOT_IN, sl_jparse_next(p);
    if (op) sl_jparse_next(p);
    return op;
}

static sl_jnode *parse_compare(sl_jparser *p) {
    uint32_t line = sl_jparse_peek(p)->line;
    sl_jnode *left = parse_sum(p), *all = NULL;
    for (int op; p->st == SL_OK && (op = comparison(p)) != 0;) {
        if (!all) all = chain(p, SL_JN_COMPARE, left, line);
        sl_jnode *with = chain(p, SL_JN_COMPARE_WITH, parse_sum(p), line);
        if (with) with->op = op;
        sl_jparse_add(p, all, with);
    }
    return all ? all : left;
}

static sl_jnode *parse_not(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    if (!sl_jtok_is(t, "not")) return parse_compare(p);
    sl_jnode *n = sl_jparse_node(p, SL_JN_NOT, t->line);
    sl_jparse_next(p);
    if (!sl_jparse_enter(p)) return n;
    sl_jparse_add(p, n, parse_not(p));
    sl_jparse_leave(p);
    return n;
}

static sl_jnode *parse_logic(sl_jparser *p, bool either) {
    uint32_t line = sl_jparse_peek(p)->line;
    sl_jnode *first = either ? parse_logic(p, false) : parse_not(p), *all = NULL;
    while (p->st == SL_OK && sl_jparse_skip_word(p, either ? "or" : "and")) {
        if (!all) all = chain(p, either ? SL_JN_OR : SL_JN_AND, first, line);
        sl_jparse_add(p, all, either ? parse_logic(p, false) : parse_not(p));
    }
    return all ? all : first;
}

sl_jnode *sl_jparse_expression(sl_jparser *p) {
    if (!sl_jparse_enter(p)) return NULL;
    uint32_t line = sl_jparse_peek(p)->line;
    sl_jnode *n = parse_logic(p, true);
    while (p->st == SL_OK && sl_jparse_skip_word(p, "if")) {
        sl_jnode *cond = sl_jparse_node(p, SL_JN_COND, line);
        sl_jparse_add(p, cond, parse_logic(p, true));
        sl_jparse_add(p, cond, n);
        if (sl_jparse_skip_word(p, "else")) sl_jparse_add(p, cond, sl_jparse_expression(p));
        n = cond;
    }
    sl_jparse_leave(p);
    return n;
}

static bool is_tuple_end(const sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    return t->kind == SL_JT_VAR_END || t->kind == SL_JT_BLOCK_END || is_op(t, ')') ||
           sl_jtok_is(t, "recursive");
}

sl_jnode *sl_jparse_tuple(sl_jparser *p, bool conditional, bool may_be_empty) {
    sl_jnode *all = sl_jparse_node(p, SL_JN_TUPLE, sl_jparse_peek(p)->line);
    bool comma = false;
    while (p->st == SL_OK && all && !is_tuple_end(p)) {
        sl_jparse_add(p, all, conditional ? sl_jparse_expression(p) : parse_logic(p, true));
        if (!sl_jparse_skip_op(p, ',')) break;
        comma = true;
    }
    if (p->st != SL_OK || !all) return all;
    if (!comma && all->n == 0 && !may_be_empty) unexpected(p);
    return comma || all->n == 0 ? all : all->kid[0];
}

static sl_jnode *parse_list(sl_jparser *p) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_LIST, sl_jparse_next(p)->line);
    while (p->st == SL_OK && !is_op(sl_jparse_peek(p), ']')) {
        sl_jparse_add(p, n, sl_jparse_expression(p));
        if (!is_op(sl_jparse_peek(p), ']')) sl_jparse_expect_op(p, ',');
    }
    sl_jparse_expect_op(p, ']');
    return n;
}

static sl_jnode *parse_dict(sl_jparser *p) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_DICT, sl_jparse_next(p)->line);
    while (p->st == SL_OK && !is_op(sl_jparse_peek(p), '}')) {
        sl_jparse_add(p, n, sl_jparse_expression(p));
        sl_jparse_expect_op(p, ':');
        sl_jparse_add(p, n, sl_jparse_expression(p));
        if (!is_op(sl_jparse_peek(p), '}')) sl_jparse_expect_op(p, ',');
    }
    sl_jparse_expect_op(p, '}');
    return n;
}

static sl_jnode *literal(sl_jparser *p, uint32_t line, sl_jv v) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_LITERAL, line);
    if (n) n->value = v;
    return n;
}

/* Strings that follow one another are one. */
static sl_jnode *parse_string(sl_jparser *p) {
    uint32_t line = sl_jparse_peek(p)->line;
    size_t from = p->at, n = 0;
    while (sl_jparse_peek(p)->kind == SL_JT_STRING) n += sl_jparse_next(p)->n;
    sl_jstr *s = take(p, 1, sizeof *s);
    char *text = take(p, n + 1, 1);
    if (!s || !text) return NULL;
    *s = (sl_jstr){.p = text};
    for (size_t i = from; i < p->at; i++) {
        memcpy(text + s->n, p->tok[i].text, p->tok[i].n);
        s->n += p->tok[i].n;
    }
    return literal(p, line, (sl_jv){.kind = SL_JV_STRING, .as.s = s});
}

static sl_jnode *parse_name(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_next(p);
    if (sl_jtok_is(t, "true") || sl_jtok_is(t, "True"))
        return literal(p, t->line, sl_jv_bool(true));
    if (sl_jtok_is(t, "false") || sl_jtok_is(t, "False"))
        return literal(p, t->line, sl_jv_bool(false));
    if (sl_jtok_is(t, "none") || sl_jtok_is(t, "None")) return literal(p, t->line, sl_jv_none());
    if (p->macro && sl_jtok_is(t, "varargs")) p->macro->takes_varargs = true;
    if (p->macro && sl_jtok_is(t, "kwargs")) p->macro->takes_kwargs = true;
    sl_jnode *n = sl_jparse_node(p, SL_JN_NAME, t->line);
    sl_jparse_name(p, n, t);
    return n;
}

static sl_jnode *parse_primary(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    sl_jnode *n = NULL;
    switch (t->kind) {
    case SL_JT_NAME:
        return parse_name(p);
    case SL_JT_STRING:
        return parse_string(p);
    case SL_JT_INT:
    case SL_JT_FLOAT:
        sl_jparse_next(p);
        return literal(p, t->line, t->kind == SL_JT_INT ? sl_jv_int(t->i) : sl_jv_float(t->f));
    default:
        break;
    }
    if (is_op(t, '[')) return parse_list(p);
    if (is_op(t, '{')) return parse_dict(p);
    if (is_op(t, '(')) {
        sl_jparse_next(p);
        n = sl_jparse_tuple(p, true, true);
        sl_jparse_expect_op(p, ')');
        return n;
    }
    unexpected(p);
    return n;
}

static bool ends_part(const sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    return is_op(t, ':') || is_op(t, ']') || is_op(t, ',');
}

static sl_jnode *parse_subscript(sl_jparser *p, sl_jnode *of) {
    const sl_jtok *t = sl_jparse_next(p);
    if (t->op == '.') {
        const sl_jtok *name = sl_jparse_peek(p);
        sl_jnode *n = chain(p, name->kind == SL_JT_INT ? SL_JN_ITEM : SL_JN_ATTR, of, t->line);
        if (name->kind == SL_JT_INT) {
            sl_jparse_next(p);
            sl_jparse_add(p, n, literal(p, t->line, sl_jv_int(name->i)));
        } else {
            sl_jparse_name(p, n, sl_jparse_expect_name(p));
        }
        return n;
    }
    sl_jnode *part[3] = {NULL};
    size_t colons = 0;
    if (!ends_part(p)) part[0] = sl_jparse_tuple(p, true, false);
    while (p->st == SL_OK && colons < 2 && sl_jparse_skip_op(p, ':')) {
        colons++;
        if (!ends_part(p)) part[colons] = sl_jparse_expression(p);
    }
    if (colons == 0 && !part[0]) unexpected(p);
    sl_jparse_expect_op(p, ']');
    sl_jnode *n = chain(p, colons ? SL_JN_SLICE : SL_JN_ITEM, of, t->line);
    for (size_t i = 0; i < (colons ? 3u : 1u); i++) sl_jparse_add(p, n, part[i]);
    return n;
}

static void call_args(sl_jparser *p, sl_jnode *to) {
    sl_jparse_expect_op(p, '(');
    while (p->st == SL_OK && !is_op(sl_jparse_peek(p), ')')) {
        const sl_jtok *t = sl_jparse_peek(p);
        if (is_op(t, '*') || is_op(t, SL_JOP_POW)) {
            sl_jparse_fail(p, SL_ERR_UNSUPPORTED, "arguments from a list or a dict (*, **)");
        } else if (t->kind == SL_JT_NAME && is_op(look(p), '=')) {
            p->at += 2;
            sl_jparse_key(p, to, t, sl_jparse_expression(p));
        } else {
            if (to && to->n_key) unexpected(p);
            sl_jparse_add(p, to, sl_jparse_expression(p));
        }
        if (!is_op(sl_jparse_peek(p), ')')) sl_jparse_expect_op(p, ',');
    }
    sl_jparse_expect_op(p, ')');
}

static sl_jnode *parse_call(sl_jparser *p, sl_jnode *fn) {
    sl_jnode *n = chain(p, SL_JN_CALL, fn, sl_jparse_peek(p)->line);
    call_args(p, n);
    return n;
}

/* Filters on `on`; with `inside` the first comes without a bar. */
sl_jnode *sl_jparse_filters(sl_jparser *p, sl_jnode *on, bool inside) {
    while (p->st == SL_OK && (inside || sl_jparse_skip_op(p, '|'))) {
        const sl_jtok *name = sl_jparse_expect_name(p);
        on = chain(p, SL_JN_FILTER, on, name->line);
        sl_jparse_name(p, on, name);
        inside = false;
        if (p->st != SL_OK || !on) break;
        on->fn = sl_jfilter_find(on->name);
        /* inside an if it may never be reached: then the run fails when it is, as jinja2's does */
        if (!on->fn && p->ifs == 0)
            sl_jparse_fail(p, SL_ERR_UNSUPPORTED, "filter \"%.60s\" is not supported", on->name);
        if (is_op(sl_jparse_peek(p), '(')) call_args(p, on);
    }
    return on;
}

static sl_jnode *parse_postfix(sl_jparser *p, sl_jnode *n) {
    for (;;) {
        const sl_jtok *t = sl_jparse_peek(p);
        if (p->st != SL_OK)
            return n;
        else if (is_op(t, '.') || is_op(t, '['))
            n = parse_subscript(p, n);
        else if (is_op(t, '('))
            n = parse_call(p, n);
        else
            return n;
    }
}

static bool begins_argument(const sl_jtok *t) {
    if (t->kind == SL_JT_NAME)
        return !sl_jtok_is(t, "else") && !sl_jtok_is(t, "or") && !sl_jtok_is(t, "and");
    return t->kind == SL_JT_STRING || t->kind == SL_JT_INT || t->kind == SL_JT_FLOAT ||
           is_op(t, '(') || is_op(t, '[') || is_op(t, '{');
}

/* After "is". */
static sl_jnode *parse_test(sl_jparser *p, sl_jnode *on) {
    bool negated = sl_jparse_skip_word(p, "not");
    const sl_jtok *name = sl_jparse_expect_name(p);
    sl_jnode *n = chain(p, SL_JN_TEST, on, name->line);
    sl_jparse_name(p, n, name);
    if (p->st != SL_OK || !n) return n;
    n->fn = sl_jtest_find(n->name);
    if (!n->fn && p->ifs == 0)
        sl_jparse_fail(p, SL_ERR_UNSUPPORTED, "test \"%.60s\" is not supported", n->name);
    const sl_jtok *t = sl_jparse_peek(p);
    if (is_op(t, '(')) {
        call_args(p, n);
    } else if (begins_argument(t)) {
        if (sl_jtok_is(t, "is")) unexpected(p);
        sl_jparse_add(p, n, parse_postfix(p, parse_primary(p)));
    }
    return negated ? chain(p, SL_JN_NOT, n, name->line) : n;
}

static sl_jnode *parse_unary(sl_jparser *p, bool filters) {
    const sl_jtok *t = sl_jparse_peek(p);
    sl_jnode *n = NULL;
    if (!sl_jparse_enter(p)) return NULL;
    if (is_op(t, '-') || is_op(t, '+')) {
        sl_jparse_next(p);
        n = chain(p, t->op == '-' ? SL_JN_NEG : SL_JN_POS, parse_unary(p, false), t->line);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (filters && p->st == SL_OK) {
        t = sl_jparse_peek(p);
        if (is_op(t, '|'))
            n = sl_jparse_filters(p, n, false);
        else if (sl_jparse_skip_word(p, "is"))
            n = parse_test(p, n);
        else if (is_op(t, '('))
            n = parse_call(p, n);
        else
            break;
    }
    sl_jparse_leave(p);
    return n;
}

/* A name, or names apart by commas, in brackets or not. */
sl_jnode *sl_jparse_target(sl_jparser *p, bool namespaces) {
    sl_jnode *all = sl_jparse_node(p, SL_JN_TUPLE, sl_jparse_peek(p)->line);
    bool comma = false;
    if (!sl_jparse_enter(p)) return NULL;
    while (p->st == SL_OK && !sl_jtok_is(sl_jparse_peek(p), "in")) {
        sl_jnode *n;
        if (sl_jparse_skip_op(p, '(')) {
            n = sl_jparse_target(p, namespaces);
            sl_jparse_expect_op(p, ')');
        } else {
            const sl_jtok *name = sl_jparse_expect_name(p);
            n = sl_jparse_node(p, SL_JN_NAME, name->line);
            sl_jparse_name(p, n, name);
            if (namespaces && n && sl_jparse_skip_op(p, '.')) {
                n->kind = SL_JN_NSREF;
                sl_jparse_key(p, n, sl_jparse_expect_name(p), NULL);
            }
        }
        sl_jparse_add(p, all, n);
        if (!sl_jparse_skip_op(p, ',')) break;
        comma = true;
        if (is_op(sl_jparse_peek(p), '=') || is_op(sl_jparse_peek(p), ')')) break;
    }
    sl_jparse_leave(p);
    if (p->st == SL_OK && (!all || all->n == 0)) unexpected(p);
    return p->st == SL_OK && !comma ? all->kid[0] : all;
}

sl_status sl_jinja_parse(const char *name, sl_span source, sl_jinja **out, sl_err *err) {
    if (source.len > SL_JINJA_MAX_SOURCE)
        return sl_fail(err, SL_ERR_LIMIT, "%s: template of %zu bytes, limit %u", name, source.len,
                       SL_JINJA_MAX_SOURCE);
    sl_jinja *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "%s: template", name);
    t->mem.limit = MAX_MEMORY;
    sl_jparser p = {.t = t, .err = err};
    t->name = sl_jmem_name(&t->mem, name, strlen(name));
    if (t->name)
        p.st = sl_jlex(t, source, &p.tok, &p.n, err);
    else
        p.st = sl_fail(err, SL_ERR_NOMEM, "%s: template", name);
    if (p.st == SL_OK) t->root = sl_jparse_template(&p);
    if (p.st == SL_OK)
        *out = t;
    else
        sl_jinja_free(t);
    return p.st;
}

void sl_jinja_free(sl_jinja *t) {
    if (t) sl_jmem_free(&t->mem);
    sl_free(t);
}

/* Expressions. */
#include "jinja/jinja_int.h"

#include <math.h>

static bool number(sl_jv v, double *out) {
    if (v.kind == SL_JV_FLOAT)
        *out = v.as.f;
    else if (v.kind == SL_JV_INT || v.kind == SL_JV_BOOL)
        *out = v.kind == SL_JV_INT ? (double)v.as.i : v.as.b;
    else
        return false;
    return true;
}

static bool integer(sl_jv v, int64_t *out) {
    if (v.kind == SL_JV_INT)
        *out = v.as.i;
    else if (v.kind == SL_JV_BOOL)
        *out = v.as.b;
    else
        return false;
    return true;
}

static const char *op_name(int op) {
    return op == SL_JOP_POW        ? "**"
           : op == SL_JOP_FLOORDIV ? "//"
           : op == '+'             ? "+"
           : op == '-'             ? "-"
           : op == '*'             ? "*"
           : op == '/'             ? "/"
                                   : "%";
}

static sl_jv power(sl_jrun *r, int64_t x, int64_t n) {
    int64_t y = 1;
    if (n < 0) return sl_jv_float(pow((double)x, (double)n));
    for (bool over = false; n > 0; n >>= 1) {
        if (n & 1) over = __builtin_mul_overflow(y, x, &y);
        if (!over && n > 1) over = __builtin_mul_overflow(x, x, &x);
        if (over) return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "an integer beyond 64 bits");
    }
    return sl_jv_int(y);
}

static sl_jv int_math(sl_jrun *r, int op, int64_t a, int64_t b) {
    int64_t c = 0;
    bool over = false;
    if ((op == '/' || op == '%' || op == SL_JOP_FLOORDIV) && b == 0)
        return sl_jrun_fail(r, SL_ERR_ARG, "division by zero");
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &c);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &c);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &c);
        break;
    case '/':
        return sl_jv_float((double)a / (double)b);
    case SL_JOP_POW:
        return power(r, a, b);
    default:
        if (b == -1) /* whose division overflows for the least integer */
            over = op != '%' && __builtin_sub_overflow((int64_t)0, a, &c);
        else if (op == '%')
            c = a % b + ((a % b != 0 && (a < 0) != (b < 0)) ? b : 0);
        else
            c = a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
    if (over) return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "an integer beyond 64 bits");
    return sl_jv_int(c);
}

static sl_jv float_math(sl_jrun *r, int op, double a, double b) {
    if ((op == '/' || op == '%' || op == SL_JOP_FLOORDIV) && b == 0)
        return sl_jrun_fail(r, SL_ERR_ARG, "division by zero");
    switch (op) {
    case '+':
        return sl_jv_float(a + b);
    case '-':
        return sl_jv_float(a - b);
    case '*':
        return sl_jv_float(a * b);
    case '/':
        return sl_jv_float(a / b);
    case SL_JOP_POW:
        return sl_jv_float(pow(a, b));
    default: {
        double m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0)) m += b;
        if (m == 0) m = copysign(0, b);
        if (op == '%') return sl_jv_float(m);
        double q = (a - m) / b, whole = floor(q);
        return sl_jv_float(q == 0 ? copysign(0, a / b) : whole + (q - whole > 0.5));
    }
    }
}

/* A string or list n times. */
static sl_jv repeat(sl_jrun *r, sl_jv v, int64_t n) {
    if (v.kind == SL_JV_STRING) {
        sl_jout o = {0};
        for (int64_t i = 0; i < n && v.as.s->n && sl_jrun_charge(r, v.as.s->n); i++)
            sl_jout_str(r, &o, v.as.s);
        return sl_jout_value(r, &o);
    }
    sl_jv list = sl_jv_list(r);
    for (int64_t i = 0; i < n && v.as.list->n && r->st == SL_OK; i++)
        for (size_t k = 0; k < v.as.list->n; k++) sl_jv_push(r, list, v.as.list->v[k]);
    if (r->st == SL_OK) list.kind = v.kind;
    return list;
}

static bool repeats(sl_jv v) {
    return v.kind == SL_JV_STRING || v.kind == SL_JV_LIST || v.kind == SL_JV_TUPLE;
}

sl_jv sl_jmath(sl_jrun *r, int op, sl_jv a, sl_jv b) {
    int64_t i, k;
    double x, y;
    bool user = a.user || b.user;
    if (r->st != SL_OK) return sl_jv_undefined(NULL);
    if (integer(a, &i) && integer(b, &k)) return sl_jv_marked(int_math(r, op, i, k), user);
    if (number(a, &x) && number(b, &y)) return sl_jv_marked(float_math(r, op, x, y), user);
    if (op == '+' && a.kind == b.kind && repeats(a)) {
        const sl_jv both[2] = {a, b};
        if (a.kind == SL_JV_STRING) return sl_jstr_concat(r, both, 2);
        sl_jv list = sl_jv_tuple(r, a.as.list->v, a.as.list->n);
        for (size_t n = 0; n < b.as.list->n && r->st == SL_OK; n++)
            sl_jv_push(r, list, b.as.list->v[n]);
        if (r->st == SL_OK) list.kind = a.kind;
        return list;
    }
    if (op == '*' && repeats(a) && integer(b, &k)) return repeat(r, a, k);
    if (op == '*' && integer(a, &i) && repeats(b)) return repeat(r, b, i);
    if (op == '%' && a.kind == SL_JV_STRING) return sl_jstr_format(r, a.as.s, b);
    if (a.kind == SL_JV_UNDEFINED || b.kind == SL_JV_UNDEFINED) {
        const char *name = a.kind == SL_JV_UNDEFINED ? a.as.name : b.as.name;
        return sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined", name ? name : "a value");
    }
    return sl_jrun_fail(r, SL_ERR_ARG, "%s %s %s cannot be computed", sl_jv_type(a), op_name(op),
                        sl_jv_type(b));
}

#define FEW 16u

/* Values of n nodes; `few` is used when they fit. NULL: has failed. */
static sl_jv *eval_all(sl_jrun *r, sl_jnode *const *node, size_t n, sl_jv few[FEW]) {
    sl_jv *v = n <= FEW ? few : sl_jrun_take(r, n, sizeof *v);
    for (size_t i = 0; v && i < n; i++) v[i] = sl_jeval(r, node[i]);
    return r->st == SL_OK ? v : NULL;
}

static sl_jv eval_sum(sl_jrun *r, const sl_jnode *n) {
    sl_jv few[FEW], *v = eval_all(r, n->kid, n->n, few);
    bool strings = v != NULL;
    for (size_t i = 0; v && i < n->n; i++) strings &= v[i].kind == SL_JV_STRING;
    if (strings) return sl_jstr_concat(r, v, n->n);
    for (size_t i = 1; v && i < n->n; i++) v[0] = sl_jmath(r, '+', v[0], v[i]);
    return v ? v[0] : sl_jv_undefined(NULL);
}

static sl_jv eval_concat(sl_jrun *r, const sl_jnode *n) {
    sl_jv few[FEW], *v = eval_all(r, n->kid, n->n, few);
    for (size_t i = 0; v && i < n->n; i++) v[i] = sl_jv_str(r, v[i]);
    return v && r->st == SL_OK ? sl_jstr_concat(r, v, n->n) : sl_jv_undefined(NULL);
}

static sl_jv eval_list(sl_jrun *r, const sl_jnode *n) {
    sl_jv list = sl_jv_list(r);
    for (size_t i = 0; i < n->n && r->st == SL_OK; i++) {
        sl_jv v = sl_jeval(r, n->kid[i]);
        sl_jv_push(r, list, v);
    }
    if (r->st == SL_OK && n->kind == SL_JN_TUPLE) list.kind = SL_JV_TUPLE;
    return list;
}

static sl_jv eval_dict(sl_jrun *r, const sl_jnode *n) {
    sl_jv dict = sl_jv_dict(r);
    for (size_t i = 0; i + 1 < n->n && r->st == SL_OK; i += 2) {
        sl_jv key = sl_jeval(r, n->kid[i]), value = sl_jeval(r, n->kid[i + 1]);
        if (r->st == SL_OK) sl_jdict_set(r, dict.as.dict, key, value);
    }
    return dict;
}

static bool holds(sl_jrun *r, int op, sl_jv a, sl_jv b) {
    int d;
    switch (op) {
    case SL_JOP_EQ:
        return sl_jv_equal(r, a, b);
    case SL_JOP_NE:
        return !sl_jv_equal(r, a, b);
    case 'i':
        return sl_jv_in(r, a, b);
    case 'n':
        return !sl_jv_in(r, a, b);
    default:
        d = sl_jv_compare(r, a, b);
        if (d == 2) return false; /* not a number */
        return op == '<' ? d < 0 : op == '>' ? d > 0 : op == SL_JOP_LE ? d <= 0 : d >= 0;
    }
}

static sl_jv eval_compare(sl_jrun *r, const sl_jnode *n) {
    sl_jv left = sl_jeval(r, n->kid[0]);
    bool ok = true;
    for (size_t i = 1; i < n->n && ok && r->st == SL_OK; i++) {
        sl_jv right = sl_jeval(r, n->kid[i]->kid[0]);
        if (r->st != SL_OK) break;
        ok = holds(r, n->kid[i]->op, left, right);
        left = right;
    }
    return sl_jv_bool(ok);
}

static sl_jv eval_logic(sl_jrun *r, const sl_jnode *n) {
    sl_jv v = sl_jv_undefined(NULL);
    for (size_t i = 0; i < n->n && r->st == SL_OK; i++) {
        v = sl_jeval(r, n->kid[i]);
        if (sl_jv_true(v) == (n->kind == SL_JN_OR)) break;
    }
    return v;
}

static sl_jv eval_name(sl_jrun *r, const sl_jnode *n) {
    for (const sl_jscope *s = r->scope; s; s = s->up) {
        if (!sl_jrun_charge(r, 8 * s->n)) return sl_jv_undefined(NULL);
        for (size_t i = 0; i < s->n; i++)
            if (s->v[i].hash == n->hash && !strcmp(s->v[i].name, n->name)) return s->v[i].value;
    }
    sl_jstr key = {.p = n->name, .n = strlen(n->name)};
    const sl_jv *v =
        sl_jdict_find(r, r->globals.as.dict, (sl_jv){.kind = SL_JV_STRING, .as.s = &key});
    if (v) return *v;
    const sl_jbuiltin *fn = sl_jfunction_find(n->name);
    if (fn) return (sl_jv){.kind = SL_JV_FUNCTION, .as.function = fn};
    return sl_jv_undefined(n->name);
}

static sl_jv eval_sign(sl_jrun *r, const sl_jnode *n) {
    sl_jv v = sl_jeval(r, n->kid[0]);
    int64_t i;
    if (r->st != SL_OK) return v;
    if (v.kind == SL_JV_FLOAT)
        return sl_jv_marked(sl_jv_float(n->kind == SL_JN_NEG ? -v.as.f : v.as.f), v.user);
    if (!integer(v, &i)) return sl_jrun_fail(r, SL_ERR_ARG, "%s has no sign", sl_jv_type(v));
    return sl_jv_marked(n->kind == SL_JN_NEG ? int_math(r, '-', 0, i) : sl_jv_int(i), v.user);
}

/* Calls, filters and tests: kid 0 is what they are of, the rest are arguments. */
static sl_jv eval_call(sl_jrun *r, const sl_jnode *n) {
    sl_jv few[FEW], keyed[FEW], self = sl_jeval(r, n->kid[0]);
    if (r->st != SL_OK) return self;
    sl_jv *v = eval_all(r, n->kid + 1, n->n - 1, few);
    sl_jv *k = n->n_key <= FEW ? keyed : sl_jrun_take(r, n->n_key, sizeof *k);
    for (size_t i = 0; k && i < n->n_key; i++) k[i] = sl_jeval(r, n->key[i].value);
    if (r->st != SL_OK || !v || !k) return sl_jv_undefined(NULL);
    const sl_jargs args = {v, n->n - 1, n->key, k, n->n_key};
    r->line = n->line;
    if (n->kind != SL_JN_CALL && !n->fn)
        return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "%s \"%.60s\" is not supported",
                            n->kind == SL_JN_FILTER ? "filter" : "test", n->name);
    if (n->kind != SL_JN_CALL) return sl_jcall_builtin(r, n->fn, self, &args);
    if (self.kind == SL_JV_UNDEFINED)
        return sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is undefined and cannot be called",
                            self.as.name ? self.as.name : "a value");
    return sl_jcall(r, self, &args);
}

static sl_jv eval_slice(sl_jrun *r, const sl_jnode *n) {
    sl_jv of = sl_jeval(r, n->kid[0]), part[3] = {{0}};
    for (size_t i = 0; i < 3; i++)
        if (n->kid[i + 1]) part[i] = sl_jeval(r, n->kid[i + 1]);
    return r->st == SL_OK ? sl_jv_slice(r, of, part) : sl_jv_undefined(NULL);
}

static sl_jv eval_item(sl_jrun *r, const sl_jnode *n) {
    sl_jv of = sl_jeval(r, n->kid[0]);
    sl_jv key = n->kind == SL_JN_ITEM ? sl_jeval(r, n->kid[1]) : of;
    if (r->st != SL_OK) return sl_jv_undefined(NULL);
    return n->kind == SL_JN_ITEM ? sl_jv_item(r, of, key) : sl_jv_attr(r, of, n->name);
}

static sl_jv eval_cond(sl_jrun *r, const sl_jnode *n) {
    sl_jv c = sl_jeval(r, n->kid[0]);
    if (r->st != SL_OK) return c;
    if (sl_jv_true(c)) return sl_jeval(r, n->kid[1]);
    return n->n > 2 ? sl_jeval(r, n->kid[2]) : sl_jv_undefined("the else of an if");
}

static sl_jv eval_kind(sl_jrun *r, const sl_jnode *n) {
    switch (n->kind) {
    case SL_JN_LITERAL:
        return n->value;
    case SL_JN_NAME:
        return eval_name(r, n);
    case SL_JN_HOLE:
        return r->hole;
    case SL_JN_LIST:
    case SL_JN_TUPLE:
        return eval_list(r, n);
    case SL_JN_DICT:
        return eval_dict(r, n);
    case SL_JN_ADD:
        return eval_sum(r, n);
    case SL_JN_CONCAT:
        return eval_concat(r, n);
    case SL_JN_AND:
    case SL_JN_OR:
        return eval_logic(r, n);
    case SL_JN_NOT:
        return sl_jv_bool(!sl_jv_true(sl_jeval(r, n->kid[0])));
    case SL_JN_NEG:
    case SL_JN_POS:
        return eval_sign(r, n);
    case SL_JN_MATH: {
        sl_jv a = sl_jeval(r, n->kid[0]), b = sl_jeval(r, n->kid[1]);
        r->line = n->line;
        return sl_jmath(r, n->op, a, b);
    }
    case SL_JN_COMPARE:
        return eval_compare(r, n);
    case SL_JN_COND:
        return eval_cond(r, n);
    case SL_JN_ATTR:
    case SL_JN_ITEM:
        return eval_item(r, n);
    case SL_JN_SLICE:
        return eval_slice(r, n);
    default:
        return eval_call(r, n);
    }
}

sl_jv sl_jeval(sl_jrun *r, const sl_jnode *n) {
    if (!sl_jrun_charge(r, 0)) return sl_jv_undefined(NULL);
    if (r->depth >= r->limits.depth)
        return sl_jrun_fail(r, SL_ERR_LIMIT, "nested deeper than %u levels", r->limits.depth);
    r->line = n->line;
    r->depth++;
    sl_jv v = eval_kind(r, n);
    r->depth--;
    return r->st == SL_OK ? v : sl_jv_undefined(NULL);
}

/* Tests: what stands after "is". */
#include "jinja/jinja_int.h"

#define ARGS   sl_jrun *r, sl_jv self, const sl_jv *a, const sl_jargs *args
#define UNUSED (void)r, (void)a, (void)args

static sl_jv t_defined(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind != SL_JV_UNDEFINED);
}

static sl_jv t_undefined(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_UNDEFINED);
}

static sl_jv t_none(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_NONE);
}

static sl_jv t_string(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_STRING);
}

static sl_jv t_number(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_INT || self.kind == SL_JV_FLOAT ||
                      self.kind == SL_JV_BOOL);
}

static sl_jv t_integer(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_INT);
}

static sl_jv t_float(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_FLOAT);
}

static sl_jv t_boolean(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_BOOL);
}

static sl_jv t_true(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_BOOL && self.as.b);
}

static sl_jv t_false(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_BOOL && !self.as.b);
}

static sl_jv t_mapping(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_DICT);
}

/* What is undefined is an empty sequence, and has a way to fail when it is called. */
static sl_jv t_sequence(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_STRING || self.kind == SL_JV_LIST ||
                      self.kind == SL_JV_TUPLE || self.kind == SL_JV_DICT ||
                      self.kind == SL_JV_UNDEFINED);
}

static sl_jv t_callable(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == SL_JV_UNDEFINED || self.kind == SL_JV_MACRO ||
                      self.kind == SL_JV_METHOD || self.kind == SL_JV_FUNCTION);
}

static sl_jv remainder_is(sl_jrun *r, sl_jv v, sl_jv by, int64_t want) {
    sl_jv m = sl_jmath(r, '%', v, by);
    return r->st == SL_OK ? sl_jv_bool(sl_jv_equal(r, m, sl_jv_int(want))) : m;
}

static sl_jv t_odd(ARGS) {
    UNUSED;
    return remainder_is(r, self, sl_jv_int(2), 1);
}

static sl_jv t_even(ARGS) {
    UNUSED;
    return remainder_is(r, self, sl_jv_int(2), 0);
}

static sl_jv t_divisible(ARGS) {
    UNUSED;
    return remainder_is(r, self, a[0], 0);
}

static sl_jv t_eq(ARGS) {
    UNUSED;
    return sl_jv_bool(sl_jv_equal(r, self, a[0]));
}

static sl_jv t_ne(ARGS) {
    UNUSED;
    return sl_jv_bool(!sl_jv_equal(r, self, a[0]));
}

static sl_jv t_lt(ARGS) {
    UNUSED;
    return sl_jv_bool(sl_jv_compare(r, self, a[0]) == -1);
}

static sl_jv t_le(ARGS) {
    UNUSED;
    return sl_jv_bool(sl_jv_compare(r, self, a[0]) <= 0);
}

static sl_jv t_gt(ARGS) {
    UNUSED;
    return sl_jv_bool(sl_jv_compare(r, self, a[0]) == 1);
}

static sl_jv t_ge(ARGS) {
    UNUSED;
    int d = sl_jv_compare(r, self, a[0]);
    return sl_jv_bool(d == 0 || d == 1);
}

static sl_jv t_in(ARGS) {
    UNUSED;
    return sl_jv_bool(sl_jv_in(r, self, a[0]));
}

static sl_jv t_sameas(ARGS) {
    UNUSED;
    return sl_jv_bool(self.kind == a[0].kind && sl_jv_equal(r, self, a[0]));
}

/* Does the text have letters, and all of them in this case? */
static sl_jv in_case(sl_jrun *r, sl_jv v, sl_jcase want) {
    sl_jv s = sl_jv_str(r, v);
    if (r->st != SL_OK) return s;
    sl_jv same = sl_jstr_case(r, s.as.s, want);
    sl_jv other = sl_jstr_case(r, s.as.s, want == SL_JCASE_UPPER ? SL_JCASE_LOWER : SL_JCASE_UPPER);
    return sl_jv_bool(r->st == SL_OK && sl_jv_equal(r, s, same) && !sl_jv_equal(r, s, other));
}

static sl_jv t_lower(ARGS) {
    UNUSED;
    return in_case(r, self, SL_JCASE_LOWER);
}

static sl_jv t_upper(ARGS) {
    UNUSED;
    return in_case(r, self, SL_JCASE_UPPER);
}

static const sl_jbuiltin table[] = {
    {"defined", t_defined, 0, false, {0}},
    {"undefined", t_undefined, 0, false, {0}},
    {"none", t_none, 0, false, {0}},
    {"string", t_string, 0, false, {0}},
    {"number", t_number, 0, false, {0}},
    {"integer", t_integer, 0, false, {0}},
    {"float", t_float, 0, false, {0}},
    {"boolean", t_boolean, 0, false, {0}},
    {"true", t_true, 0, false, {0}},
    {"false", t_false, 0, false, {0}},
    {"mapping", t_mapping, 0, false, {0}},
    {"sequence", t_sequence, 0, false, {0}},
    {"iterable", t_sequence, 0, false, {0}},
    {"callable", t_callable, 0, false, {0}},
    {"odd", t_odd, 0, false, {0}},
    {"even", t_even, 0, false, {0}},
    {"divisibleby", t_divisible, 1, false, {"num"}},
    {"eq", t_eq, 1, false, {"other"}},
    {"equalto", t_eq, 1, false, {"other"}},
    {"ne", t_ne, 1, false, {"other"}},
    {"lt", t_lt, 1, false, {"other"}},
    {"lessthan", t_lt, 1, false, {"other"}},
    {"le", t_le, 1, false, {"other"}},
    {"gt", t_gt, 1, false, {"other"}},
    {"greaterthan", t_gt, 1, false, {"other"}},
    {"ge", t_ge, 1, false, {"other"}},
    {"in", t_in, 1, false, {"seq"}},
    {"sameas", t_sameas, 1, false, {"other"}},
    {"lower", t_lower, 0, false, {0}},
    {"upper", t_upper, 0, false, {0}},
    {"==", t_eq, 1, false, {"other"}},
    {"!=", t_ne, 1, false, {"other"}},
    {"<", t_lt, 1, false, {"other"}},
    {"<=", t_le, 1, false, {"other"}},
    {">", t_gt, 1, false, {"other"}},
    {">=", t_ge, 1, false, {"other"}},
};

const sl_jbuiltin *sl_jtest_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(table); i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return NULL;
}

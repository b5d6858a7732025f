/* Inside of src/jinja: memory, tokens, nodes, values, and who evaluates what. */
#ifndef SL_JINJA_JINJA_INT_H
#define SL_JINJA_JINJA_INT_H

#include "jinja/jinja.h"

/* ---- memory (store.c): chunks that are freed together ---- */
typedef struct sl_jmem {
    struct sl_jchunk *chunk;
    size_t taken, limit;
} sl_jmem;

/* Zeroed, 16-byte aligned; NULL past the limit or when memory is out. */
void *sl_jmem_take(sl_jmem *m, size_t n, size_t size);
/* Doubles an array when it is full; *p is untouched on failure. */
bool sl_jmem_room(sl_jmem *m, void **p, size_t n, size_t *cap, size_t size);
char *sl_jmem_name(sl_jmem *m, const char *s, size_t n);
void sl_jmem_free(sl_jmem *m);

/* ---- tokens (lex.c) ---- */
typedef enum sl_jtok_kind {
    SL_JT_END,
    SL_JT_DATA,
    SL_JT_VAR,       /* {{ */
    SL_JT_VAR_END,   /* }} */
    SL_JT_BLOCK,     /* {% */
    SL_JT_BLOCK_END, /* %} */
    SL_JT_NAME,
    SL_JT_INT,
    SL_JT_FLOAT,
    SL_JT_STRING,
    SL_JT_OP,
} sl_jtok_kind;

typedef struct sl_jtok {
    sl_jtok_kind kind;
    uint32_t line;
    int op; /* the character, or SL_JOP_* for two of them */
    const char *text;
    size_t n;
    int64_t i;
    double f;
} sl_jtok;

enum { SL_JOP_EQ = 256, SL_JOP_NE, SL_JOP_LE, SL_JOP_GE, SL_JOP_POW, SL_JOP_FLOORDIV };

/* ---- the tree (parse.c, parse_stmt.c) ---- */
typedef enum sl_jnode_kind {
    /* expressions */
    SL_JN_LITERAL,
    SL_JN_NAME,
    SL_JN_HOLE, /* what a filter of a block is applied to */
    SL_JN_LIST,
    SL_JN_TUPLE,
    SL_JN_DICT, /* kids: key, value, ... */
    SL_JN_ADD,  /* of all kids, as are CONCAT, AND, OR */
    SL_JN_CONCAT,
    SL_JN_AND,
    SL_JN_OR,
    SL_JN_NOT,
    SL_JN_NEG,
    SL_JN_POS,
    SL_JN_MATH,    /* op */
    SL_JN_COMPARE, /* kid 0, then COMPARE_WITH nodes: op, kid */
    SL_JN_COMPARE_WITH,
    SL_JN_COND, /* if, then, else or none */
    SL_JN_ATTR,
    SL_JN_ITEM,
    SL_JN_SLICE, /* kids: of, start, stop, step, each may be NULL but the first */
    SL_JN_CALL,  /* kid 0 is called with the others, then keywords */
    SL_JN_FILTER,
    SL_JN_TEST,
    SL_JN_NSREF, /* name.key[0] as a target */
    /* statements */
    SL_JN_BLOCK,
    SL_JN_DATA,
    SL_JN_OUTPUT,
    SL_JN_IF,  /* condition, block, ..., else block */
    SL_JN_FOR, /* target, list, condition or NULL, body, else or NULL */
    SL_JN_SET,
    SL_JN_SET_BLOCK,    /* target, block, filters on a hole or NULL */
    SL_JN_FILTER_BLOCK, /* block, filters on a hole */
    SL_JN_MACRO,        /* key: parameters with defaults or NULL; kid 0: body */
    SL_JN_CALL_BLOCK,   /* call, macro */
    SL_JN_WITH,         /* key: names with values; kid 0: body */
    SL_JN_SCOPE,
    SL_JN_BREAK,
    SL_JN_CONTINUE,
} sl_jnode_kind;

typedef struct sl_jnode sl_jnode;
typedef struct sl_jkey {
    const char *name;
    uint32_t hash;
    sl_jnode *value;
} sl_jkey;

struct sl_jnode {
    sl_jnode_kind kind;
    int op;
    uint32_t line, depth, hash;
    uint32_t n, n_key;
    sl_jnode **kid;
    sl_jkey *key;
    const char *name;
    const struct sl_jbuiltin *fn;
    bool takes_varargs, takes_kwargs; /* of macros: the body asks for them */
    sl_jv value;
};

struct sl_jinja {
    sl_jmem mem;
    const char *name;
    sl_jnode *root;
};

typedef struct sl_jparser {
    sl_jinja *t;
    sl_jtok *tok;
    size_t n, at;
    uint32_t depth, loops, ifs;
    sl_jnode *macro; /* being parsed, or NULL */
    sl_status st;
    sl_err *err;
} sl_jparser;

uint32_t sl_jhash(const char *s, size_t n);
sl_status sl_jlex(sl_jinja *t, sl_span source, sl_jtok **out, size_t *n, sl_err *err);
void sl_jparse_fail(sl_jparser *p, sl_status code, const char *fmt, ...) SL_PRINTF(3, 4);
sl_jnode *sl_jparse_node(sl_jparser *p, sl_jnode_kind kind, uint32_t line);
void sl_jparse_add(sl_jparser *p, sl_jnode *to, sl_jnode *kid); /* kid may be NULL */
void sl_jparse_key(sl_jparser *p, sl_jnode *to, const sl_jtok *name, sl_jnode *value);
void sl_jparse_name(sl_jparser *p, sl_jnode *node, const sl_jtok *name);
const sl_jtok *sl_jparse_peek(const sl_jparser *p);
const sl_jtok *sl_jparse_next(sl_jparser *p);
bool sl_jtok_is(const sl_jtok *t, const char *word); /* a name */
bool sl_jparse_skip_op(sl_jparser *p, int op);
bool sl_jparse_skip_word(sl_jparser *p, const char *word);
void sl_jparse_expect_op(sl_jparser *p, int op);
const sl_jtok *sl_jparse_expect_name(sl_jparser *p);
bool sl_jparse_enter(sl_jparser *p); /* false: too deep, and it has failed */
void sl_jparse_leave(sl_jparser *p);
sl_jnode *sl_jparse_expression(sl_jparser *p);
/* Expressions apart by commas as a tuple. */
sl_jnode *sl_jparse_tuple(sl_jparser *p, bool conditional, bool may_be_empty);
sl_jnode *sl_jparse_target(sl_jparser *p, bool namespaces);
sl_jnode *sl_jparse_filters(sl_jparser *p, sl_jnode *on, bool inside);
sl_jnode *sl_jparse_template(sl_jparser *p);

/* ---- values ---- */
/* UTF-8. mark == NULL: all bytes are the user's or none, else one byte for each. */
typedef struct sl_jstr {
    const char *p;
    size_t n;
    const uint8_t *mark;
    bool user;
} sl_jstr;

typedef struct sl_jlist {
    sl_jv *v;
    size_t n, cap;
} sl_jlist;

typedef struct sl_jpair {
    sl_jv key, value;
} sl_jpair;

typedef struct sl_jdict {
    sl_jpair *v;
    size_t n, cap;
} sl_jdict;

typedef struct sl_jvar {
    const char *name;
    uint32_t hash;
    sl_jv value;
} sl_jvar;

typedef struct sl_jscope {
    struct sl_jscope *up;
    sl_jvar *v;
    size_t n, cap;
} sl_jscope;

typedef struct sl_jmacro {
    const sl_jnode *node;
    sl_jscope *scope;
} sl_jmacro;

typedef struct sl_jloop {
    const sl_jlist *list;
    size_t at;
    uint32_t nested;
} sl_jloop;

typedef struct sl_jbound {
    sl_jv self;
    const struct sl_jbuiltin *fn;
} sl_jbound;

/* Text being written. */
typedef struct sl_jout {
    char *p;
    uint8_t *mark;
    size_t n, cap, mark_cap;
    bool user; /* all so far, while mark == NULL */
} sl_jout;

typedef enum sl_jflow { SL_JFLOW_ON, SL_JFLOW_BREAK, SL_JFLOW_CONTINUE } sl_jflow;

struct sl_jrun {
    sl_jmem mem;
    sl_jinja_limits limits;
    uint64_t steps;
    uint32_t depth, loops;
    uint32_t line; /* of the node being evaluated */
    const sl_jinja *t;
    sl_jv globals, hole;
    sl_jscope *scope;
    sl_jout *out;
    sl_jflow flow;
    int64_t now_s;
    sl_status st;
    sl_err *err;
};

/* Arguments of a call as they stand there. */
typedef struct sl_jargs {
    const sl_jv *v;
    size_t n;
    const sl_jkey *key; /* names only */
    const sl_jv *key_value;
    size_t n_key;
} sl_jargs;

#define SL_JARG_MAX 5
/* A filter, test, method or function: a[i] is the parameter `param[i]`, MISSING when not given. */
typedef struct sl_jbuiltin {
    const char *name;
    sl_jv (*fn)(sl_jrun *r, sl_jv self, const sl_jv *a, const sl_jargs *args); /* NULL: refused */
    uint8_t least; /* arguments that must be given */
    bool any;      /* takes what comes, by args */
    const char *param[SL_JARG_MAX];
} sl_jbuiltin;

/* ---- runs (store.c) ---- */
/* Fails the run, once; what is evaluated from then on is undefined. Returns that. */
sl_jv sl_jrun_fail(sl_jrun *r, sl_status code, const char *fmt, ...) SL_PRINTF(3, 4);
void *sl_jrun_take(sl_jrun *r, size_t n, size_t size); /* NULL: has failed */
bool sl_jrun_charge(sl_jrun *r, size_t bytes);         /* false: has failed */

/* ---- text (text.c) ---- */
void sl_jout_put(sl_jrun *r, sl_jout *o, const char *p, size_t n, bool user);
void sl_jout_str(sl_jrun *r, sl_jout *o, const sl_jstr *s);
sl_jv sl_jout_value(sl_jrun *r, sl_jout *o);
sl_jv sl_jstr_literal(sl_jrun *r, const char *text); /* borrowed */
sl_jv sl_jstr_slice(sl_jrun *r, const sl_jstr *s, size_t from, size_t to);
sl_jv sl_jstr_concat(sl_jrun *r, const sl_jv *v, size_t n); /* all strings */
bool sl_jstr_user_at(const sl_jstr *s, size_t i);
bool sl_jstr_is(const sl_jstr *s, const char *text);
int sl_jstr_compare(const sl_jstr *a, const sl_jstr *b);
size_t sl_jstr_length(sl_jrun *r, const sl_jstr *s); /* in characters */
size_t sl_jstr_offset(const sl_jstr *s, size_t chars);
size_t sl_jstr_find(const sl_jstr *s, size_t from, const sl_jstr *what); /* s->n: nowhere */
/* Bytes of the white space, as Python has it, at p[0..n); 0: none. */
size_t sl_jspace(const char *p, size_t n);
sl_jv sl_jstr_strip(sl_jrun *r, const sl_jstr *s, const sl_jv *chars, bool left, bool right);
typedef enum sl_jcase { SL_JCASE_UPPER, SL_JCASE_LOWER, SL_JCASE_TITLE, SL_JCASE_CAPITAL } sl_jcase;
sl_jv sl_jstr_case(sl_jrun *r, const sl_jstr *s, sl_jcase to);
sl_jv sl_jstr_replace(sl_jrun *r, const sl_jstr *s, const sl_jstr *old, const sl_jstr *by,
                      int64_t count);

/* ---- values (value.c, print.c) ---- */
sl_jv sl_jv_undefined(const char *name);
sl_jv sl_jv_float(double f);
sl_jv sl_jv_marked(sl_jv v, bool user);
sl_jv sl_jv_tuple(sl_jrun *r, const sl_jv *v, size_t n);
bool sl_jv_true(sl_jv v);
bool sl_jv_equal(sl_jrun *r, sl_jv a, sl_jv b);
/* Less, equal or greater; fails for what has no order. */
int sl_jv_compare(sl_jrun *r, sl_jv a, sl_jv b);
bool sl_jv_in(sl_jrun *r, sl_jv what, sl_jv where);
bool sl_jv_is_user(sl_jrun *r, sl_jv v);
const char *sl_jv_type(sl_jv v); /* as Python calls it */
const sl_jv *sl_jdict_find(sl_jrun *r, const sl_jdict *d, sl_jv key);
void sl_jdict_set(sl_jrun *r, sl_jdict *d, sl_jv key, sl_jv value);
/* What a loop goes over, as a list; NULL: has failed. */
const sl_jlist *sl_jv_each(sl_jrun *r, sl_jv v);
sl_jv sl_jv_str(sl_jrun *r, sl_jv v); /* str() */
sl_jv sl_jv_repr(sl_jrun *r, sl_jv v);
typedef struct sl_jjson {
    int indent; /* -1: one line */
    sl_jstr indent_by, item, colon;
    bool ascii, sort;
} sl_jjson;
sl_jv sl_jv_to_json(sl_jrun *r, sl_jv v, const sl_jjson *how);
sl_jv sl_jv_attr(sl_jrun *r, sl_jv of, const char *name);
sl_jv sl_jv_item(sl_jrun *r, sl_jv of, sl_jv key);
sl_jv sl_jv_slice(sl_jrun *r, sl_jv of, const sl_jv part[3]);

/* ---- evaluation ---- */
sl_jv sl_jeval(sl_jrun *r, const sl_jnode *n);
sl_jv sl_jmath(sl_jrun *r, int op, sl_jv a, sl_jv b); /* op: '+', ... */
sl_jv sl_jcall(sl_jrun *r, sl_jv fn, const sl_jargs *args);
sl_jv sl_jcall_builtin(sl_jrun *r, const sl_jbuiltin *fn, sl_jv self, const sl_jargs *args);

const sl_jbuiltin *sl_jfilter_find(const char *name);
const sl_jbuiltin *sl_jtest_find(const char *name);
const sl_jbuiltin *sl_jfunction_find(const char *name);
const sl_jbuiltin *sl_jmethod_find(sl_jv_kind of, const char *name);
const sl_jbuiltin *sl_jfilter_list_find(const char *name);      /* those over lists */
sl_jv sl_jstr_format(sl_jrun *r, const sl_jstr *f, sl_jv args); /* f % args */

#endif

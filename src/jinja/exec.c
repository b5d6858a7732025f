/* Statements, scopes, macros and calls. */
#include "jinja/jinja_int.h"

static void exec(sl_jrun *r, const sl_jnode *block);
static sl_jv call_macro(sl_jrun *r, const sl_jmacro *m, const sl_jargs *a);

static void scope_set(sl_jrun *r, const char *name, uint32_t hash, sl_jv v) {
    sl_jscope *s = r->scope;
    if (!sl_jrun_charge(r, 8 * s->n)) return;
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].hash == hash && !strcmp(s->v[i].name, name)) {
            s->v[i].value = v;
            return;
        }
    if (sl_jmem_room(&r->mem, (void **)&s->v, s->n, &s->cap, sizeof *s->v))
        s->v[s->n++] = (sl_jvar){name, hash, v};
    else
        sl_jrun_fail(r, SL_ERR_LIMIT, "the template needs more than %zu bytes of memory",
                     r->limits.memory_bytes);
}

static void assign(sl_jrun *r, const sl_jnode *target, sl_jv v) {
    if (r->st != SL_OK) return;
    if (target->kind == SL_JN_NAME) {
        scope_set(r, target->name, target->hash, v);
    } else if (target->kind == SL_JN_NSREF) {
        const sl_jnode name = {
            .kind = SL_JN_NAME, .line = target->line, .name = target->name, .hash = target->hash};
        sl_jv ns = sl_jeval(r, &name);
        if (r->st == SL_OK && ns.kind != SL_JV_NAMESPACE)
            sl_jrun_fail(r, SL_ERR_ARG, "\"%.60s\" is not a namespace", target->name);
        sl_jv key = sl_jstr_literal(r, target->key[0].name);
        if (r->st == SL_OK) sl_jdict_set(r, ns.as.dict, key, v);
    } else {
        const sl_jlist *each = sl_jv_each(r, v);
        if (each && each->n != target->n)
            sl_jrun_fail(r, SL_ERR_ARG, "%zu values for %u names", each->n, target->n);
        for (size_t i = 0; each && i < target->n; i++) assign(r, target->kid[i], each->v[i]);
    }
}

static sl_jscope *open_scope(sl_jrun *r, sl_jscope *up) {
    sl_jscope *s = sl_jrun_take(r, 1, sizeof *s);
    if (s) s->up = up;
    return s;
}

/* Runs a block in a scope of its own. */
static void exec_scoped(sl_jrun *r, const sl_jnode *block) {
    sl_jscope *outer = r->scope, *inner = open_scope(r, outer);
    if (!inner) return;
    r->scope = inner;
    exec(r, block);
    r->scope = outer;
}

/* The same, with what it writes as a value. */
static sl_jv capture(sl_jrun *r, const sl_jnode *block) {
    sl_jout o = {0}, *outer = r->out;
    r->out = &o;
    exec_scoped(r, block);
    r->out = outer;
    return sl_jout_value(r, &o);
}

/* With a condition, the items that meet it. */
static const sl_jlist *filtered(sl_jrun *r, const sl_jnode *n, const sl_jlist *all) {
    sl_jv list = sl_jv_list(r);
    sl_jscope *outer = r->scope, *inner = open_scope(r, outer);
    if (!inner || r->st != SL_OK) return NULL;
    r->scope = inner;
    for (size_t i = 0; i < all->n && r->st == SL_OK; i++) {
        assign(r, n->kid[0], all->v[i]);
        if (sl_jv_true(sl_jeval(r, n->kid[2]))) sl_jv_push(r, list, all->v[i]);
    }
    r->scope = outer;
    return r->st == SL_OK ? list.as.list : NULL;
}

static void exec_for(sl_jrun *r, const sl_jnode *n) {
    sl_jv over = sl_jeval(r, n->kid[1]);
    const sl_jlist *each = r->st == SL_OK ? sl_jv_each(r, over) : NULL;
    if (each && n->kid[2]) each = filtered(r, n, each);
    if (!each) return;
    sl_jscope *outer = r->scope, *inner = open_scope(r, outer);
    sl_jloop *loop = sl_jrun_take(r, 1, sizeof *loop);
    if (!inner || !loop) return;
    *loop = (sl_jloop){.list = each, .nested = ++r->loops};
    static const char name[] = "loop";
    const uint32_t hash = sl_jhash(name, 4);
    bool ended = false; /* a body; jinja2 takes the else when continue or break left them all */
    r->scope = inner;
    for (; loop->at < each->n && r->st == SL_OK && r->flow != SL_JFLOW_BREAK; loop->at++) {
        inner->n = 0;
        scope_set(r, name, hash, (sl_jv){.kind = SL_JV_LOOP, .as.loop = loop});
        assign(r, n->kid[0], each->v[loop->at]);
        r->flow = SL_JFLOW_ON;
        exec(r, n->kid[3]);
        ended |= r->flow == SL_JFLOW_ON;
    }
    r->flow = SL_JFLOW_ON;
    r->scope = outer;
    r->loops--;
    if (!ended && n->kid[4]) exec_scoped(r, n->kid[4]);
}

static void exec_if(sl_jrun *r, const sl_jnode *n) {
    for (size_t i = 0; i < n->n && r->st == SL_OK; i += 2) {
        bool is_else = i + 1 == n->n;
        if (!is_else && !sl_jv_true(sl_jeval(r, n->kid[i]))) continue;
        if (r->st == SL_OK) exec(r, n->kid[is_else ? i : i + 1]);
        return;
    }
}

static sl_jv make_macro(sl_jrun *r, const sl_jnode *n) {
    sl_jmacro *m = sl_jrun_take(r, 1, sizeof *m);
    if (!m) return sl_jv_undefined(NULL);
    *m = (sl_jmacro){n, r->scope};
    return (sl_jv){.kind = SL_JV_MACRO, .as.macro = m};
}

static void put_out(sl_jrun *r, sl_jv v) {
    if (r->st != SL_OK) return;
    sl_jv s = sl_jv_str(r, v);
    if (r->st != SL_OK) return;
    sl_jout_str(r, r->out, s.as.s);
    if (r->out->n > r->limits.output_bytes)
        sl_jrun_fail(r, SL_ERR_LIMIT, "the template writes more than %zu bytes",
                     r->limits.output_bytes);
}

/* The filters of a block on what the block wrote. */
static sl_jv apply(sl_jrun *r, const sl_jnode *filters, sl_jv text) {
    sl_jv outer = r->hole;
    if (!filters || r->st != SL_OK) return text;
    r->hole = text;
    sl_jv v = sl_jeval(r, filters);
    r->hole = outer;
    return v;
}

static void exec_with(sl_jrun *r, const sl_jnode *n) {
    sl_jscope *outer = r->scope, *inner = open_scope(r, outer);
    for (size_t i = 0; inner && i < n->n_key && r->st == SL_OK; i++) {
        sl_jv v = sl_jeval(r, n->key[i].value);
        r->scope = inner;
        scope_set(r, n->key[i].name, n->key[i].hash, v);
        r->scope = outer;
    }
    if (!inner || r->st != SL_OK) return;
    r->scope = inner;
    exec(r, n->kid[0]);
    r->scope = outer;
}

/* A call whose macro may call back the block, as caller(). */
static void exec_call_block(sl_jrun *r, const sl_jnode *n) {
    const sl_jnode *call = n->kid[0];
    sl_jv fn = sl_jeval(r, call->kid[0]);
    sl_jv *v = sl_jrun_take(r, call->n, sizeof *v);
    sl_jv *k = sl_jrun_take(r, call->n_key + 1, sizeof *k);
    sl_jkey *key = sl_jrun_take(r, call->n_key + 1, sizeof *key);
    if (!v || !k || !key) return;
    for (size_t i = 1; i < call->n; i++) v[i - 1] = sl_jeval(r, call->kid[i]);
    for (size_t i = 0; i < call->n_key; i++) {
        key[i] = call->key[i];
        k[i] = sl_jeval(r, call->key[i].value);
    }
    key[call->n_key] = (sl_jkey){.name = "caller", .hash = sl_jhash("caller", 6)};
    k[call->n_key] = make_macro(r, n->kid[1]);
    if (r->st == SL_OK && fn.kind != SL_JV_MACRO)
        sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "call blocks call macros only");
    const sl_jargs args = {v, call->n - 1, key, k, call->n_key + 1};
    if (r->st == SL_OK) put_out(r, call_macro(r, fn.as.macro, &args));
}

static void exec_one(sl_jrun *r, const sl_jnode *n) {
    sl_jv v;
    switch (n->kind) {
    case SL_JN_DATA:
        put_out(r, n->value);
        return;
    case SL_JN_OUTPUT:
        put_out(r, sl_jeval(r, n->kid[0]));
        return;
    case SL_JN_IF:
        exec_if(r, n);
        return;
    case SL_JN_FOR:
        exec_for(r, n);
        return;
    case SL_JN_SET:
        v = sl_jeval(r, n->kid[1]);
        assign(r, n->kid[0], v);
        return;
    case SL_JN_SET_BLOCK:
        v = apply(r, n->kid[2], capture(r, n->kid[1]));
        assign(r, n->kid[0], v);
        return;
    case SL_JN_FILTER_BLOCK:
        put_out(r, apply(r, n->kid[1], capture(r, n->kid[0])));
        return;
    case SL_JN_MACRO:
        scope_set(r, n->name, n->hash, make_macro(r, n));
        return;
    case SL_JN_CALL_BLOCK:
        exec_call_block(r, n);
        return;
    case SL_JN_WITH:
        exec_with(r, n);
        return;
    case SL_JN_SCOPE:
        exec_scoped(r, n->kid[0]);
        return;
    case SL_JN_BREAK:
        r->flow = SL_JFLOW_BREAK;
        return;
    default:
        r->flow = SL_JFLOW_CONTINUE;
    }
}

static void exec(sl_jrun *r, const sl_jnode *block) {
    if (r->depth >= r->limits.depth) {
        sl_jrun_fail(r, SL_ERR_LIMIT, "nested deeper than %u levels", r->limits.depth);
        return;
    }
    r->depth++;
    for (size_t i = 0; i < block->n && r->flow == SL_JFLOW_ON && sl_jrun_charge(r, 0); i++) {
        r->line = block->kid[i]->line;
        exec_one(r, block->kid[i]);
    }
    r->depth--;
}

static const sl_jv *keyword(const sl_jargs *a, uint32_t hash, const char *name) {
    for (size_t i = 0; i < a->n_key; i++)
        if (a->key[i].hash == hash && !strcmp(a->key[i].name, name)) return &a->key_value[i];
    return NULL;
}

/* What is left over goes into varargs and kwargs, if the macro has them. */
static void bind_rest(sl_jrun *r, const sl_jnode *n, const sl_jargs *a) {
    sl_jv rest = sl_jv_tuple(r, a->v + SL_MIN(a->n, (size_t)n->n_key),
                             a->n > n->n_key ? a->n - n->n_key : 0);
    sl_jv named = sl_jv_dict(r);
    if (a->n > n->n_key && !n->takes_varargs)
        sl_jrun_fail(r, SL_ERR_ARG, "macro \"%.60s\" takes no more than %u arguments", n->name,
                     n->n_key);
    for (size_t i = 0; i < a->n_key && r->st == SL_OK; i++) {
        bool known = !strcmp(a->key[i].name, "caller");
        for (size_t k = 0; k < n->n_key && !known; k++)
            known = !strcmp(a->key[i].name, n->key[k].name);
        if (known) continue;
        if (!n->takes_kwargs)
            sl_jrun_fail(r, SL_ERR_ARG, "macro \"%.60s\" takes no argument \"%.60s\"", n->name,
                         a->key[i].name);
        sl_jv_put(r, named, a->key[i].name, a->key_value[i]);
    }
    if (n->takes_varargs) scope_set(r, "varargs", sl_jhash("varargs", 7), rest);
    if (n->takes_kwargs) scope_set(r, "kwargs", sl_jhash("kwargs", 6), named);
}

/* Defaults see the parameters, those without a value yet as undefined, before any outer name. */
static void bind_parameters(sl_jrun *r, const sl_jnode *n, const sl_jargs *a) {
    for (int defaults = 0; defaults < 2; defaults++)
        for (size_t i = 0; i < n->n_key && r->st == SL_OK; i++) {
            const sl_jkey *k = &n->key[i];
            const sl_jv *named = keyword(a, k->hash, k->name);
            const sl_jv *given = i < a->n ? &a->v[i] : named;
            if (i < a->n && named)
                sl_jrun_fail(r, SL_ERR_ARG, "macro \"%.60s\" got argument \"%.60s\" twice", n->name,
                             k->name);
            if (!defaults)
                scope_set(r, k->name, k->hash, given ? *given : sl_jv_undefined(k->name));
            else if (!given && k->value)
                scope_set(r, k->name, k->hash, sl_jeval(r, k->value));
        }
}

static sl_jv call_macro(sl_jrun *r, const sl_jmacro *m, const sl_jargs *a) {
    const sl_jnode *n = m->node;
    sl_jscope *outer = r->scope, *inner = open_scope(r, m->scope);
    uint32_t loops = r->loops;
    if (!inner) return sl_jv_undefined(NULL);
    r->scope = inner;
    r->loops = 0;
    bind_parameters(r, n, a);
    const sl_jv *caller = keyword(a, sl_jhash("caller", 6), "caller");
    if (caller) scope_set(r, "caller", sl_jhash("caller", 6), *caller);
    bind_rest(r, n, a);
    sl_jv text = r->st == SL_OK ? capture(r, n->kid[0]) : sl_jv_undefined(NULL);
    r->scope = outer;
    r->loops = loops;
    return text;
}

sl_jv sl_jcall_builtin(sl_jrun *r, const sl_jbuiltin *fn, sl_jv self, const sl_jargs *a) {
    sl_jv v[SL_JARG_MAX] = {{0}};
    size_t n = 0;
    if (!fn->fn)
        return sl_jrun_fail(r, SL_ERR_UNSUPPORTED, "\"%s\" of %s is not supported", fn->name,
                            sl_jv_type(self));
    if (fn->any) return fn->fn(r, self, v, a);
    while (n < SL_JARG_MAX && fn->param[n]) n++;
    if (a->n > n)
        return sl_jrun_fail(r, SL_ERR_ARG, "\"%s\" takes no more than %zu arguments", fn->name, n);
    for (size_t i = 0; i < a->n; i++) v[i] = a->v[i];
    for (size_t i = 0; i < a->n_key; i++) {
        size_t k = 0;
        while (k < n && strcmp(fn->param[k], a->key[i].name) != 0) k++;
        if (k == n || v[k].kind != SL_JV_MISSING)
            return sl_jrun_fail(r, SL_ERR_ARG, "\"%s\" takes no argument \"%.60s\"%s", fn->name,
                                a->key[i].name, k == n ? "" : " twice");
        v[k] = a->key_value[i];
    }
    for (size_t i = 0; i < fn->least; i++)
        if (v[i].kind == SL_JV_MISSING)
            return sl_jrun_fail(r, SL_ERR_ARG, "\"%s\" needs argument \"%s\"", fn->name,
                                fn->param[i]);
    return fn->fn(r, self, v, a);
}

sl_jv sl_jcall(sl_jrun *r, sl_jv fn, const sl_jargs *args) {
    if (fn.kind == SL_JV_MACRO) return call_macro(r, fn.as.macro, args);
    if (fn.kind == SL_JV_METHOD)
        return sl_jcall_builtin(r, fn.as.bound->fn, fn.as.bound->self, args);
    if (fn.kind == SL_JV_FUNCTION) return sl_jcall_builtin(r, fn.as.function, fn, args);
    return sl_jrun_fail(r, SL_ERR_ARG, "%s cannot be called", sl_jv_type(fn));
}

sl_status sl_jinja_render(sl_jrun *r, const sl_jinja *t, sl_jv globals, int64_t now_s,
                          sl_jinja_text *out, sl_err *err) {
    sl_jout o = {0};
    r->err = err;
    if (r->st == SL_OK && globals.kind != SL_JV_DICT)
        sl_jrun_fail(r, SL_ERR_ARG, "the variables of a template are a dict");
    if (r->st != SL_OK) /* the values did not fit */
        return sl_fail(err, r->st, "%s: the values take more than %zu bytes", t->name,
                       r->limits.memory_bytes);
    r->t = t;
    r->globals = globals;
    r->now_s = now_s;
    r->out = &o;
    r->steps = r->limits.steps;
    r->scope = open_scope(r, NULL);
    if (r->scope) exec(r, t->root);
    r->out = NULL;
    if (r->st != SL_OK) return r->st;
    *out = (sl_jinja_text){.bytes = o.p ? o.p : "", .n = o.n, .user = o.mark, .all_user = o.user};
    return SL_OK;
}

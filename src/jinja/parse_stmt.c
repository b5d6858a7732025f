/* Statements of templates. */
#include "jinja/jinja_int.h"

static sl_jnode *parse_body(sl_jparser *p, const char *const *ends, size_t n);

static void end_tag(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_peek(p);
    if (t->kind == SL_JT_BLOCK_END)
        sl_jparse_next(p);
    else
        sl_jparse_fail(p, SL_ERR_FORMAT, "unexpected \"%.*s\"", (int)SL_MIN(t->n, (size_t)40),
                       t->text);
}

/* A body up to {% end %}, which is taken with all of its tag. */
static sl_jnode *parse_until(sl_jparser *p, const char *end) {
    sl_jnode *body = parse_body(p, &end, 1);
    sl_jparse_next(p);
    end_tag(p);
    return body;
}

static sl_jnode *parse_if(sl_jparser *p, uint32_t line) {
    static const char *const ends[] = {"elif", "else", "endif"};
    sl_jnode *n = sl_jparse_node(p, SL_JN_IF, line);
    bool more = true;
    while (more && p->st == SL_OK) {
        sl_jparse_add(p, n, sl_jparse_tuple(p, false, false));
        end_tag(p);
        p->ifs++;
        sl_jparse_add(p, n, parse_body(p, ends, 3));
        const sl_jtok *t = sl_jparse_next(p);
        more = sl_jtok_is(t, "elif");
        if (!more) end_tag(p);
        if (sl_jtok_is(t, "else")) sl_jparse_add(p, n, parse_until(p, "endif"));
        p->ifs--;
    }
    return n;
}

static sl_jnode *parse_for(sl_jparser *p, uint32_t line) {
    static const char *const ends[] = {"else", "endfor"};
    sl_jnode *n = sl_jparse_node(p, SL_JN_FOR, line), *cond = NULL;
    sl_jparse_add(p, n, sl_jparse_target(p, false));
    if (!sl_jparse_skip_word(p, "in")) sl_jparse_fail(p, SL_ERR_FORMAT, "for without \"in\"");
    sl_jparse_add(p, n, sl_jparse_tuple(p, false, false));
    if (sl_jparse_skip_word(p, "if")) cond = sl_jparse_expression(p);
    if (sl_jtok_is(sl_jparse_peek(p), "recursive"))
        sl_jparse_fail(p, SL_ERR_UNSUPPORTED, "recursive loops are not supported");
    end_tag(p);
    sl_jparse_add(p, n, cond);
    p->loops++;
    sl_jparse_add(p, n, parse_body(p, ends, 2));
    p->loops--;
    const sl_jtok *t = sl_jparse_next(p);
    end_tag(p);
    sl_jparse_add(p, n, sl_jtok_is(t, "else") ? parse_until(p, "endfor") : NULL);
    return n;
}

static sl_jnode *hole(sl_jparser *p) {
    return sl_jparse_node(p, SL_JN_HOLE, sl_jparse_peek(p)->line);
}

static sl_jnode *parse_set(sl_jparser *p, uint32_t line) {
    sl_jnode *target = sl_jparse_target(p, true), *n;
    if (sl_jparse_skip_op(p, '=')) {
        n = sl_jparse_node(p, SL_JN_SET, line);
        sl_jparse_add(p, n, target);
        sl_jparse_add(p, n, sl_jparse_tuple(p, true, false));
        end_tag(p);
        return n;
    }
    n = sl_jparse_node(p, SL_JN_SET_BLOCK, line);
    sl_jnode *none = hole(p), *filters = sl_jparse_filters(p, none, false);
    end_tag(p);
    sl_jparse_add(p, n, target);
    sl_jparse_add(p, n, parse_until(p, "endset"));
    sl_jparse_add(p, n, filters == none ? NULL : filters);
    return n;
}

/* Parameters in brackets, the last of them with defaults. */
static void parse_parameters(sl_jparser *p, sl_jnode *macro) {
    bool defaults = false;
    sl_jparse_expect_op(p, '(');
    while (p->st == SL_OK && !sl_jparse_skip_op(p, ')')) {
        const sl_jtok *name = sl_jparse_expect_name(p);
        bool has = sl_jparse_skip_op(p, '=');
        if (defaults && !has)
            sl_jparse_fail(p, SL_ERR_FORMAT, "a parameter without a default after one with it");
        defaults |= has;
        sl_jparse_key(p, macro, name, has ? sl_jparse_expression(p) : NULL);
        const sl_jtok *t = sl_jparse_peek(p);
        if (!(t->kind == SL_JT_OP && t->op == ')')) sl_jparse_expect_op(p, ',');
    }
}

static void parse_macro_body(sl_jparser *p, sl_jnode *macro, const char *end) {
    sl_jnode *outer = p->macro;
    uint32_t loops = p->loops;
    end_tag(p);
    p->macro = macro;
    p->loops = 0;
    sl_jparse_add(p, macro, parse_until(p, end));
    p->macro = outer;
    p->loops = loops;
}

static sl_jnode *parse_macro(sl_jparser *p, uint32_t line) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_MACRO, line);
    sl_jparse_name(p, n, sl_jparse_expect_name(p));
    parse_parameters(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static sl_jnode *parse_call_block(sl_jparser *p, uint32_t line) {
    static const sl_jtok caller = {.kind = SL_JT_NAME, .text = "caller", .n = 6};
    sl_jnode *n = sl_jparse_node(p, SL_JN_CALL_BLOCK, line);
    sl_jnode *macro = sl_jparse_node(p, SL_JN_MACRO, line);
    const sl_jtok *t = sl_jparse_peek(p);
    sl_jparse_name(p, macro, &caller);
    if (t->kind == SL_JT_OP && t->op == '(') parse_parameters(p, macro);
    sl_jnode *call = sl_jparse_expression(p);
    if (p->st == SL_OK && call->kind != SL_JN_CALL)
        sl_jparse_fail(p, SL_ERR_FORMAT, "a call block without a call");
    parse_macro_body(p, macro, "endcall");
    sl_jparse_add(p, n, call);
    sl_jparse_add(p, n, macro);
    return n;
}

static sl_jnode *parse_with(sl_jparser *p, uint32_t line) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_WITH, line);
    while (p->st == SL_OK && sl_jparse_peek(p)->kind != SL_JT_BLOCK_END) {
        const sl_jtok *name = sl_jparse_expect_name(p);
        sl_jparse_expect_op(p, '=');
        sl_jparse_key(p, n, name, sl_jparse_expression(p));
        if (sl_jparse_peek(p)->kind != SL_JT_BLOCK_END) sl_jparse_expect_op(p, ',');
    }
    end_tag(p);
    sl_jparse_add(p, n, parse_until(p, "endwith"));
    return n;
}

static sl_jnode *parse_filter_block(sl_jparser *p, uint32_t line) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_FILTER_BLOCK, line);
    sl_jnode *filters = sl_jparse_filters(p, hole(p), true);
    end_tag(p);
    sl_jparse_add(p, n, parse_until(p, "endfilter"));
    sl_jparse_add(p, n, filters);
    return n;
}

static sl_jnode *parse_jump(sl_jparser *p, uint32_t line, bool on) {
    if (p->loops == 0) sl_jparse_fail(p, SL_ERR_FORMAT, "break or continue outside a loop");
    sl_jnode *n = sl_jparse_node(p, on ? SL_JN_CONTINUE : SL_JN_BREAK, line);
    end_tag(p);
    return n;
}

/* Marks what an assistant said, for training; here its text counts like any other. */
static sl_jnode *parse_generation(sl_jparser *p, uint32_t line) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_SCOPE, line);
    uint32_t loops = p->loops;
    end_tag(p);
    p->loops = 0;
    sl_jparse_add(p, n, parse_until(p, "endgeneration"));
    p->loops = loops;
    return n;
}

/* After "{%". */
static sl_jnode *parse_statement(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_expect_name(p);
    if (p->st != SL_OK) return NULL;
    if (sl_jtok_is(t, "if")) return parse_if(p, t->line);
    if (sl_jtok_is(t, "for")) return parse_for(p, t->line);
    if (sl_jtok_is(t, "set")) return parse_set(p, t->line);
    if (sl_jtok_is(t, "macro")) return parse_macro(p, t->line);
    if (sl_jtok_is(t, "call")) return parse_call_block(p, t->line);
    if (sl_jtok_is(t, "with")) return parse_with(p, t->line);
    if (sl_jtok_is(t, "filter")) return parse_filter_block(p, t->line);
    if (sl_jtok_is(t, "generation")) return parse_generation(p, t->line);
    if (sl_jtok_is(t, "break")) return parse_jump(p, t->line, false);
    if (sl_jtok_is(t, "continue")) return parse_jump(p, t->line, true);
    bool end = t->n > 3 && memcmp(t->text, "end", 3) == 0;
    end |= sl_jtok_is(t, "else") || sl_jtok_is(t, "elif");
    sl_jparse_fail(p, end ? SL_ERR_FORMAT : SL_ERR_UNSUPPORTED,
                   end ? "\"%.*s\" closes nothing" : "tag \"%.*s\" is not supported",
                   (int)SL_MIN(t->n, (size_t)60), t->text);
    return NULL;
}

static sl_jnode *parse_data(sl_jparser *p) {
    const sl_jtok *t = sl_jparse_next(p);
    sl_jnode *n = sl_jparse_node(p, SL_JN_DATA, t->line);
    sl_jstr *s = sl_jmem_take(&p->t->mem, 1, sizeof *s);
    if (!n || !s) {
        sl_jparse_fail(p, SL_ERR_LIMIT, "the template takes too much memory");
        return n;
    }
    *s = (sl_jstr){.p = t->text, .n = t->n};
    n->value = (sl_jv){.kind = SL_JV_STRING, .as.s = s};
    return n;
}

static sl_jnode *parse_output(sl_jparser *p) {
    sl_jnode *n = sl_jparse_node(p, SL_JN_OUTPUT, sl_jparse_next(p)->line);
    sl_jparse_add(p, n, sl_jparse_tuple(p, true, false));
    const sl_jtok *t = sl_jparse_peek(p);
    if (t->kind == SL_JT_VAR_END)
        sl_jparse_next(p);
    else
        sl_jparse_fail(p, SL_ERR_FORMAT, "unexpected \"%.*s\"", (int)SL_MIN(t->n, (size_t)40),
                       t->text);
    return n;
}

/* Statements up to one of the n tags `ends`, whose name is next; n == 0: up to the end. */
static sl_jnode *parse_body(sl_jparser *p, const char *const *ends, size_t n) {
    sl_jnode *body = sl_jparse_node(p, SL_JN_BLOCK, sl_jparse_peek(p)->line);
    if (!sl_jparse_enter(p)) return body;
    bool done = false;
    while (p->st == SL_OK && !done) {
        const sl_jtok *t = sl_jparse_peek(p);
        if (t->kind == SL_JT_DATA) {
            sl_jparse_add(p, body, parse_data(p));
        } else if (t->kind == SL_JT_VAR) {
            sl_jparse_add(p, body, parse_output(p));
        } else if (t->kind == SL_JT_BLOCK) {
            sl_jparse_next(p);
            for (size_t i = 0; i < n; i++) done |= sl_jtok_is(sl_jparse_peek(p), ends[i]);
            if (!done) sl_jparse_add(p, body, parse_statement(p));
        } else {
            done = n == 0;
            if (n)
                sl_jparse_fail(p, SL_ERR_FORMAT, "the template ends without \"%s\"", ends[n - 1]);
        }
    }
    sl_jparse_leave(p);
    return body;
}

sl_jnode *sl_jparse_template(sl_jparser *p) {
    return parse_body(p, NULL, 0);
}

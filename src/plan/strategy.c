/* Parallel strategies as text, checked and enumerated. */
#include "plan/strategy.h"

#include <stdio.h>
#include <string.h>

typedef struct cursor {
    const char *text, *at;
    sl_err *err;
} cursor;

static void skip_blanks(cursor *c) {
    while (*c->at == ' ') c->at++;
}

static bool take(cursor *c, char what) {
    skip_blanks(c);
    if (*c->at != what) return false;
    c->at++;
    return true;
}

static sl_status expected(const cursor *c, const char *what) {
    return sl_fail(c->err, SL_ERR_FORMAT, "strategy '%.64s' at %d: expected %s", c->text,
                   (int)(c->at - c->text) + 1, what);
}

static sl_status read_degree(cursor *c, uint32_t *out) {
    if (!take(c, '=')) return expected(c, "'='");
    skip_blanks(c);
    uint64_t n = 0;
    const char *first = c->at;
    while (*c->at >= '0' && *c->at <= '9' && n <= SL_STRATEGY_MAX_DEGREE)
        n = n * 10 + (uint64_t)(*c->at++ - '0');
    if (c->at == first || n == 0 || n > SL_STRATEGY_MAX_DEGREE)
        return expected(c, "a degree from 1 to 16777216");
    *out = (uint32_t)n;
    return SL_OK;
}

/* parallel: degrees of one kind multiply. `allowed` has the first letters that may stand here. */
static sl_status read_parallel(cursor *c, const char *allowed, uint32_t *tp, uint32_t *other) {
    skip_blanks(c);
    char kind = *c->at;
    if (kind == '\0' || !strchr(allowed, kind) || c->at[1] != 'P')
        return expected(c, strcmp(allowed, "TD") == 0 ? "TP or DP" : "TP or EP");
    c->at += 2;
    uint32_t degree;
    sl_status st = read_degree(c, &degree);
    if (st != SL_OK) return st;
    uint32_t *to = kind == 'T' ? tp : other;
    if ((uint64_t)*to * degree > SL_STRATEGY_MAX_DEGREE)
        return expected(c, "degrees whose product is at most 16777216");
    *to *= degree;
    return SL_OK;
}

static sl_status read_block(cursor *c, const char *allowed, uint32_t *tp, uint32_t *other) {
    *tp = *other = 1;
    sl_status st = read_parallel(c, allowed, tp, other);
    if (st == SL_OK && take(c, '+')) st = read_parallel(c, allowed, tp, other);
    return st;
}

static sl_status read_stages(cursor *c, uint32_t *pp) {
    if (!take(c, '[')) return SL_OK;
    skip_blanks(c);
    if (strncmp(c->at, "PP", 2) != 0) return expected(c, "PP");
    c->at += 2;
    sl_status st = read_degree(c, pp);
    if (st == SL_OK && !take(c, ']')) st = expected(c, "']'");
    return st;
}

sl_status sl_strategy_parse(const char *text, sl_strategy *out, sl_err *err) {
    cursor c = {text, text, err};
    sl_strategy s = {.pp = 1};
    sl_status st = read_block(&c, "TD", &s.tp_a, &s.dp);
    if (st == SL_OK && take(&c, ','))
        st = read_block(&c, "TE", &s.tp_e, &s.ep);
    else if (st == SL_OK)
        s.tp_e = s.tp_a, s.ep = 1;
    if (st == SL_OK) st = read_stages(&c, &s.pp);
    skip_blanks(&c);
    if (st == SL_OK && *c.at != '\0') st = expected(&c, "the end");
    if (st == SL_OK) *out = s;
    return st;
}

static int print_block(char *out, size_t room, uint32_t tp, const char *name, uint32_t other) {
    if (tp > 1 && other > 1) return snprintf(out, room, "TP=%u+%s=%u", tp, name, other);
    if (other > 1) return snprintf(out, room, "%s=%u", name, other);
    return snprintf(out, room, "TP=%u", tp);
}

void sl_strategy_print(const sl_strategy *s, char out[SL_STRATEGY_TEXT]) {
    size_t n = (size_t)print_block(out, SL_STRATEGY_TEXT, s->tp_a, "DP", s->dp);
    n += (size_t)snprintf(out + n, SL_STRATEGY_TEXT - n, ", ");
    n += (size_t)print_block(out + n, SL_STRATEGY_TEXT - n, s->tp_e, "EP", s->ep);
    if (s->pp > 1) snprintf(out + n, SL_STRATEGY_TEXT - n, " [PP=%u]", s->pp);
}

uint32_t sl_strategy_replicas(const sl_strategy *s) {
    return (uint32_t)((uint64_t)s->tp_a * s->dp / ((uint64_t)s->tp_e * s->ep));
}

sl_status sl_strategy_check(const sl_strategy *s, const sl_strategy_limits *l, sl_err *err) {
    char text[SL_STRATEGY_TEXT];
    uint64_t world = (uint64_t)l->nodes * l->per_node;
    uint64_t attention = (uint64_t)s->tp_a * s->dp, moe = (uint64_t)s->tp_e * s->ep;
    sl_strategy_print(s, text);
    if (attention * s->pp != world)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: attention fills %llu devices of %llu", text,
                       (unsigned long long)(attention * s->pp), (unsigned long long)world);
    if (attention % moe != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%s: %llu devices of a stage are no multiple of the "
                       "experts' %llu",
                       text, (unsigned long long)attention, (unsigned long long)moe);
    if (s->tp_a > l->per_node || s->tp_e > l->per_node)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: TP=%u leaves the node of %u devices", text,
                       SL_MAX(s->tp_a, s->tp_e), l->per_node);
    if (l->heads % s->tp_a != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: TP=%u does not divide %u heads", text, s->tp_a,
                       l->heads);
    if (l->d_ff_expert % s->tp_e != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: TP=%u does not divide experts of width %u",
                       text, s->tp_e, l->d_ff_expert);
    if (l->experts % s->ep != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: EP=%u does not divide %u experts", text, s->ep,
                       l->experts);
    if (s->pp > l->layers)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: %u stages of %u layers", text, s->pp,
                       l->layers);
    return SL_OK;
}

uint32_t sl_strategy_enumerate(const sl_strategy_limits *l,
                               bool (*each)(void *ctx, const sl_strategy *s), void *ctx) {
    uint64_t world = (uint64_t)l->nodes * l->per_node;
    uint32_t seen = 0;
    sl_strategy s;
    for (s.pp = 1; s.pp <= world && s.pp <= l->layers; s.pp *= 2) {
        for (s.tp_a = 1; s.tp_a <= l->per_node; s.tp_a *= 2) {
            if (world % ((uint64_t)s.pp * s.tp_a) != 0) continue;
            s.dp = (uint32_t)(world / s.pp / s.tp_a);
            for (s.tp_e = 1; s.tp_e <= l->per_node; s.tp_e *= 2) {
                for (s.ep = 1; s.ep <= l->experts; s.ep++) {
                    sl_err err;
                    if (l->experts % s.ep != 0) continue;
                    if (sl_strategy_check(&s, l, &err) != SL_OK) continue;
                    seen++;
                    if (!each(ctx, &s)) return seen;
                }
            }
        }
    }
    return seen;
}

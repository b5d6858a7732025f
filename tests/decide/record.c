/* What was decided: kept, and held against each other. */
#include "base/mem.h"
#include "decide.h"

#include <stdio.h>
#include <string.h>

#define AROUND 12u /* decisions shown on either side of the first difference */

static const char *const names[] = {
#define NAME(id, values) #id,
    SL_DECISIONS(NAME)
#undef NAME
};
static const char *const values[] = {
#define VALUES(id, values) values,
    SL_DECISIONS(VALUES)
#undef VALUES
};

void decisions_saw(void *ctx, const sl_decision *d) {
    decisions *l = ctx;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        sl_decision *bigger = sl_grow(l->of, l->cap, cap, sizeof *bigger);
        if (!bigger) {
            l->failed = true;
            return;
        }
        l->of = bigger;
        l->cap = cap;
    }
    l->of[l->n] = *d;
    if (strncmp(values[d->kind], "us|", 3) == 0) l->of[l->n].value[0] -= l->origin_us;
    l->n++;
}

static bool same(const sl_decision *a, const sl_decision *b) {
    return a->kind == b->kind && memcmp(a->value, b->value, sizeof a->value) == 0;
}

static void print_one(const decisions *l, size_t i) {
    const sl_decision *d = &l->of[i];
    const char *at = values[d->kind];
    printf("  %6zu %-10s", i, names[d->kind]);
    for (uint32_t v = 0; *at; v++) {
        size_t n = strcspn(at, "|");
        printf(" %.*s %llu", (int)n, at, (unsigned long long)d->value[v]);
        at += n + (at[n] == '|');
    }
    printf("\n");
}

static void print_around(const decisions *l, size_t at, const char *side) {
    printf("%s (%zu decisions):\n", side, l->n);
    size_t first = at > AROUND ? at - AROUND : 0;
    for (size_t i = first; i < l->n && i < at + AROUND; i++) {
        if (i == at) printf("  ------\n");
        print_one(l, i);
    }
}

bool decisions_equal(const decisions *engine, const decisions *simulator, const char *who) {
    size_t at = 0;
    if (engine->failed || simulator->failed) return printf("%s: out of memory\n", who), false;
    while (at < engine->n && at < simulator->n && same(&engine->of[at], &simulator->of[at])) at++;
    if (at == engine->n && at == simulator->n) return true;
    if (!who) return false;
    printf("%s decides otherwise at its decision %zu\n", who, at);
    print_around(engine, at, "engine");
    print_around(simulator, at, "simulator");
    return false;
}

void decisions_free(decisions *d) {
    sl_free(d->of);
    *d = (decisions){0};
}

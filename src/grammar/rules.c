/* Nets of rules, and what must hold of them before a machine runs them. */
#include "grammar/rules.h"

#include "base/mem.h"

static bool room(sl_rules *r, void **p, size_t *cap, size_t need, size_t size) {
    size_t more = *cap ? *cap : 64;
    if (r->bad != SL_OK) return false;
    if (need <= *cap) return true;
    while (more < need) more *= 2;
    void *grown = sl_grow(*p, *cap, more, size);
    if (!grown) {
        r->bad = SL_ERR_NOMEM;
        return false;
    }
    *p = grown;
    *cap = more;
    return true;
}

uint32_t sl_rules_state(sl_rules *r) {
    if (r->n_states >= SL_RULES_MAX_STATES && r->bad == SL_OK) r->bad = SL_ERR_LIMIT;
    if (!room(r, (void **)&r->first, &r->cap_first, r->n_states + 1, sizeof *r->first) ||
        !room(r, (void **)&r->final, &r->cap_final, r->n_states + 1, sizeof *r->final))
        return 0;
    return r->n_states++;
}

uint32_t sl_rules_rule(sl_rules *r) {
    const uint32_t from = sl_rules_state(r), to = sl_rules_state(r);
    if (r->bad != SL_OK) return 0;
    if (!room(r, (void **)&r->rules, &r->cap_rules, r->n_rules + 1, sizeof *r->rules)) return 0;
    r->final[to] = true;
    r->rules[r->n_rules] = (sl_rule){from, to};
    return r->n_rules++;
}

void sl_rules_edge(sl_rules *r, uint32_t from, sl_edge_kind kind, uint32_t arg, uint32_t to) {
    if (kind == SL_EDGE_TEXT && arg == SL_RX_NONE) return;
    if (kind == SL_EDGE_TEXT && arg == SL_RX_EPS) kind = SL_EDGE_EMPTY;
    if (!r->n_edges) r->n_edges = 1;
    if (!room(r, (void **)&r->edges, &r->cap_edges, r->n_edges + 1, sizeof *r->edges)) return;
    r->edges[r->n_edges] = (sl_edge){(uint8_t)kind, arg, to, r->first[from]};
    r->first[from] = r->n_edges++;
}

size_t sl_rules_memory(const sl_rules *r) {
    return r->cap_first * sizeof *r->first + r->cap_final * sizeof *r->final +
           r->cap_edges * sizeof *r->edges + r->cap_rules * sizeof *r->rules;
}

void sl_rules_free(sl_rules *r) {
    sl_free(r->first);
    sl_free(r->final);
    sl_free(r->edges);
    sl_free(r->rules);
    *r = (sl_rules){0};
}

/* Marks each state from which its rule's end is reached; `empty`: without reading a byte. Repeated
 * until nothing changes: each pass runs against the order in which nets are made. */
static void mark(sl_rules *r, sl_rx_store *s, bool *ends, bool empty) {
    uint64_t looks = 0;
    for (bool more = true; more && r->bad == SL_OK;) {
        more = false;
        looks += r->n_states;
        if (looks > SL_RULES_MAX_LOOKS) r->bad = SL_ERR_LIMIT;
        for (uint32_t i = r->n_states; i-- > 0;) {
            bool now = r->final[i];
            for (uint32_t e = r->first[i]; e && !now && !ends[i]; e = r->edges[e].next) {
                const sl_edge *x = &r->edges[e];
                if (!ends[x->to]) continue;
                if (x->kind == SL_EDGE_CALL)
                    now = ends[r->rules[x->arg].from];
                else if (x->kind == SL_EDGE_TEXT)
                    now = empty ? sl_rx_nullable(s, x->arg) : sl_rx_live(s, x->arg);
                else
                    now = true;
            }
            if (now && !ends[i]) more = ends[i] = true;
        }
    }
}

static void prune(sl_rules *r, const bool *ends, sl_rx_store *s) {
    for (uint32_t i = 0; i < r->n_states; i++) {
        uint32_t *at = &r->first[i];
        while (*at) {
            const sl_edge *x = &r->edges[*at];
            bool keep = ends[x->to];
            if (x->kind == SL_EDGE_CALL) keep &= ends[r->rules[x->arg].from];
            if (x->kind == SL_EDGE_TEXT) keep &= sl_rx_live(s, x->arg);
            if (keep)
                at = &r->edges[*at].next;
            else
                *at = x->next;
        }
    }
}

/* Behind states whose one edge reads nothing. */
static uint32_t resolve(const sl_rules *r, uint32_t state) {
    for (uint32_t i = 0; i < r->n_states; i++) {
        const uint32_t e = r->first[state];
        if (!e || r->edges[e].next || r->edges[e].kind != SL_EDGE_EMPTY) break;
        state = r->edges[e].to;
    }
    return state;
}

/* Whether a way without a byte leads from state to itself, over calls; depth first with colours. */
static bool circles(const sl_rules *r, sl_rx_store *s, const bool *empty, uint32_t *where) {
    uint8_t *colour = sl_alloc(r->n_states, 1);
    uint32_t *stack = sl_alloc((size_t)r->n_edges * 2 + r->n_states + 1, sizeof *stack);
    bool found = !colour || !stack;
    *where = UINT32_MAX;
    for (uint32_t root = 0; root < r->n_states && !found; root++) {
        size_t n = 0;
        if (!colour[root]) stack[n++] = root;
        while (n && !found) {
            const uint32_t i = stack[n - 1];
            if (colour[i]) {
                colour[i] = 2;
                n--;
                continue;
            }
            colour[i] = 1;
            for (uint32_t e = r->first[i]; e && !found; e = r->edges[e].next) {
                const sl_edge *x = &r->edges[e];
                uint32_t next[2], k = 0;
                if (x->kind == SL_EDGE_CALL) next[k++] = r->rules[x->arg].from;
                if (x->kind == SL_EDGE_EMPTY ||
                    (x->kind == SL_EDGE_TEXT && sl_rx_nullable(s, x->arg)) ||
                    (x->kind == SL_EDGE_CALL && empty[r->rules[x->arg].from]))
                    next[k++] = x->to;
                while (k-- > 0) {
                    if (colour[next[k]] == 1) found = true, *where = next[k];
                    if (!colour[next[k]]) stack[n++] = next[k];
                }
            }
        }
    }
    sl_free(colour);
    sl_free(stack);
    return found;
}

static sl_status check_circles(sl_rules *r, sl_rx_store *s, uint32_t *rule, sl_err *err) {
    bool *empty = sl_alloc(r->n_states, sizeof *empty);
    uint32_t where = UINT32_MAX;
    sl_status st = empty ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    if (st == SL_OK) {
        mark(r, s, empty, true);
        if (circles(r, s, empty, &where))
            st = where == UINT32_MAX
                     ? sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar")
                     : sl_fail(err, SL_ERR_UNSUPPORTED,
                               "a rule calls itself before any byte (left recursion), or repeats "
                               "what may be empty");
    }
    for (uint32_t i = 0; st == SL_ERR_UNSUPPORTED && i < r->n_rules; i++)
        if (r->rules[i].from <= where) *rule = i;
    sl_free(empty);
    return st;
}

sl_status sl_rules_finish(sl_rules *r, sl_rx_store *s, uint32_t root, uint32_t *rule, sl_err *err) {
    *rule = root;
    bool *ends = r->bad == SL_OK ? sl_alloc(r->n_states, sizeof *ends) : NULL;
    if (ends) mark(r, s, ends, false);
    if (r->bad == SL_ERR_LIMIT) {
        sl_free(ends);
        return sl_fail(err, SL_ERR_LIMIT,
                       "the grammar's rules take more than %u states, or depend on "
                       "each other in too long a chain (limit)",
                       SL_RULES_MAX_STATES);
    }
    if (!ends) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    const bool any = ends[r->rules[root].from];
    prune(r, ends, s);
    sl_free(ends);
    sl_status st = sl_rx_status(s, err);
    if (st == SL_OK && !any) st = sl_fail(err, SL_ERR_ARG, "nothing satisfies it");
    if (st == SL_OK) st = check_circles(r, s, rule, err);
    for (uint32_t i = 1; st == SL_OK && i < r->n_edges; i++)
        r->edges[i].to = resolve(r, r->edges[i].to);
    return st;
}

/* Derivatives of expressions: the rows of their automaton, and which states can still end. */
#include "grammar/expr_int.h"

#include "base/mem.h"

#define CHUNK 4096u /* targets taken at once */

static sl_rx derive(sl_rx_store *s, sl_rx e, uint8_t b);

static sl_rx derive_list(sl_rx_store *s, const sl_rx_node *node, uint8_t b) {
    const size_t base = s->n_scratch;
    const bool both = node->kind == SL_RX_K_AND;
    for (uint32_t i = 0; i < node->b; i++) {
        const sl_rx item = s->items[node->a + i];
        const sl_rx_node *first = &s->nodes[item];
        if (first->kind == SL_RX_K_CAT) first = &s->nodes[first->a];
        sl_rx d = SL_RX_NONE;
        if (first->kind != SL_RX_K_BYTES || sl_bytes_has(&s->sets[first->a], b))
            d = derive(s, item, b);
        if (both && d == SL_RX_NONE) {
            s->n_scratch = base;
            return SL_RX_NONE;
        }
        if (d != SL_RX_NONE && !sl_rx_push(s, d)) return SL_RX_NONE;
    }
    const size_t n = s->n_scratch - base;
    sl_rx e = n == 1 ? s->scratch[base] : SL_RX_NONE;
    if (n > 1) {
        sl_rx few[16], *list = n <= SL_LEN(few) ? few : sl_alloc(n, sizeof *list);
        if (!list) sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
        if (list) memcpy(list, s->scratch + base, n * sizeof *list);
        s->n_scratch = base;
        if (list && both) {
            e = list[0];
            for (size_t i = 1; i < n; i++) e = sl_rx_and2(s, e, list[i]);
        } else if (list) {
            e = sl_rx_or(s, list, n);
        }
        if (list != few) sl_free(list);
    }
    s->n_scratch = base;
    return e;
}

static sl_rx derive_condition(sl_rx_store *s, const sl_rx_node *node, uint8_t b) {
    sl_rx_node next = *node;
    const sl_rx_condition *c = s->conditions[node->a];
    if (!sl_rx_condition_step(c, node, b, &next)) return SL_RX_NONE;
    next.nullable = sl_rx_condition_ends(c, &next);
    return sl_rx_intern(s, next);
}

static sl_rx derive_inner(sl_rx_store *s, sl_rx e, uint8_t b) {
    const sl_rx_node node = s->nodes[e];
    switch ((sl_rx_kind)node.kind) {
    case SL_RX_K_NONE:
    case SL_RX_K_EPS:
        return SL_RX_NONE;
    case SL_RX_K_BYTES:
        return sl_bytes_has(&s->sets[node.a], b) ? SL_RX_EPS : SL_RX_NONE;
    case SL_RX_K_CAT: {
        const sl_rx d = sl_rx_cat(s, derive(s, node.a, b), node.b);
        return s->nodes[node.a].nullable ? sl_rx_or2(s, d, derive(s, node.b, b)) : d;
    }
    case SL_RX_K_OR:
    case SL_RX_K_AND:
        return derive_list(s, &node, b);
    case SL_RX_K_NOT:
        return sl_rx_not(s, derive(s, node.a, b));
    case SL_RX_K_REP: {
        const sl_rx d = derive(s, node.a, b);
        if (d == SL_RX_NONE) return d;
        const uint32_t max = node.c == SL_RX_MANY ? node.c : node.c - 1;
        return sl_rx_cat(s, d, sl_rx_rep(s, node.a, node.b ? node.b - 1 : 0, max));
    }
    case SL_RX_K_MULT:
    case SL_RX_K_CMP:
        return derive_condition(s, &node, b);
    }
    return SL_RX_NONE;
}

static sl_rx derive(sl_rx_store *s, sl_rx e, uint8_t b) {
    if (!sl_rx_step(s, 1)) return SL_RX_NONE;
    if (s->depth >= SL_RX_MAX_DEPTH) {
        sl_rx_spoil(s, SL_ERR_LIMIT, "operators inside one another", SL_RX_MAX_DEPTH);
        return SL_RX_NONE;
    }
    s->depth++;
    const sl_rx d = derive_inner(s, e, b);
    s->depth--;
    return d;
}

/* Bytes into classes that no expression at the front of a state tells apart. */
typedef struct classes {
    uint8_t cls[256], first[256]; /* first: a byte of the class */
    uint16_t size[256];
    unsigned n, depth;
    uint32_t known[64]; /* sets that were taken in last */
    unsigned n_known;
    bool digits;
} classes;

/* The bytes of a set, or the others where those are fewer: both split classes alike. */
static unsigned fewer(const sl_bytes *set, uint8_t out[128]) {
    unsigned n = 0, in = 0;
    for (unsigned w = 0; w < 4; w++) in += (unsigned)__builtin_popcountll(set->w[w]);
    for (unsigned w = 0; w < 4; w++)
        for (uint64_t left = in > 128 ? ~set->w[w] : set->w[w]; left; left &= left - 1)
            out[n++] = (uint8_t)(w * 64 + (unsigned)__builtin_ctzll(left));
    return n;
}

static void split(classes *c, const sl_bytes *set) {
    uint8_t list[128];
    uint16_t in[256] = {0}, inside[256];
    const unsigned n = fewer(set, list);
    for (unsigned i = 0; i < n; i++) in[c->cls[list[i]]]++;
    for (unsigned i = 0; i < n; i++) {
        const uint8_t k = c->cls[list[i]];
        if (in[k] == c->size[k]) continue; /* all of it */
        if (in[k]) {                       /* the first that leaves it */
            c->size[k] -= in[k];
            c->size[c->n] = in[k];
            inside[k] = (uint16_t)c->n++;
            in[k] = 0;
        }
        c->cls[list[i]] = (uint8_t)inside[k];
    }
}

static void split_at(sl_rx_store *s, classes *c, uint32_t set) {
    for (unsigned i = 0; i < SL_MIN(c->n_known, SL_LEN(c->known)); i++)
        if (c->known[i] == set) return;
    c->known[c->n_known++ % SL_LEN(c->known)] = set;
    split(c, &s->sets[set]);
}

static void front(sl_rx_store *s, classes *c, sl_rx e) {
    if (c->depth >= SL_RX_MAX_DEPTH) {
        sl_rx_spoil(s, SL_ERR_LIMIT, "operators inside one another", SL_RX_MAX_DEPTH);
        return;
    }
    c->depth++;
    for (bool more = true; more;) {
        const sl_rx_node *node = &s->nodes[e];
        more = false;
        switch ((sl_rx_kind)node->kind) {
        case SL_RX_K_NONE:
        case SL_RX_K_EPS:
            break;
        case SL_RX_K_BYTES:
            split_at(s, c, node->a);
            break;
        case SL_RX_K_CAT:
            front(s, c, node->a);
            more = s->nodes[node->a].nullable;
            e = node->b;
            break;
        case SL_RX_K_OR:
        case SL_RX_K_AND:
            for (uint32_t i = 0; i < node->b; i++) front(s, c, s->items[node->a + i]);
            break;
        case SL_RX_K_NOT:
        case SL_RX_K_REP:
            front(s, c, node->a);
            break;
        case SL_RX_K_MULT:
        case SL_RX_K_CMP:
            for (uint8_t b = '.'; b <= '9' && !c->digits; b++) {
                sl_bytes one = {{0}};
                sl_bytes_add(&one, b, b);
                split(c, &one);
            }
            c->digits = true;
            break;
        }
    }
    c->depth--;
}

static const uint8_t *map_of(sl_rx_store *s, const uint8_t cls[256]) {
    for (uint32_t i = s->n_maps; i-- > 0;)
        if (!memcmp(s->maps[i], cls, 256)) return s->maps[i];
    uint8_t *map = sl_alloc(256, 1);
    if (!map || !sl_rx_room(s, (void **)&s->maps, &s->cap_maps, s->n_maps + 1, sizeof *s->maps)) {
        sl_free(map);
        sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
        return NULL;
    }
    memcpy(map, cls, 256);
    s->memory += 256;
    return s->maps[s->n_maps++] = map;
}

static sl_rx *take_targets(sl_rx_store *s, size_t n) {
    if (s->n_targets + n > SL_RX_MAX_ITEMS) {
        sl_rx_spoil(s, SL_ERR_LIMIT, "transitions", SL_RX_MAX_ITEMS);
        return NULL;
    }
    if (n > s->chunk_left) {
        struct sl_rx_chunk *c = sl_alloc(1, sizeof *c + CHUNK * sizeof(sl_rx));
        if (!c) {
            sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
            return NULL;
        }
        c->next = s->chunk;
        s->chunk = c;
        s->chunk_left = CHUNK;
        s->memory += CHUNK * sizeof(sl_rx);
    }
    sl_rx *to = s->chunk->to + (CHUNK - s->chunk_left);
    s->chunk_left -= n;
    s->n_targets += n;
    return to;
}

/* The row with targets that may match nothing. */
static sl_rx_row raw_row(sl_rx_store *s, sl_rx e) {
    static const uint8_t none_cls[256];
    static const sl_rx none_to[1];
    if (s->extra[e].row.to) return s->extra[e].row;
    classes c = {.size = {256}, .n = 1};
    front(s, &c, e);
    for (unsigned b = 256; b-- > 0;) c.first[c.cls[b]] = (uint8_t)b;
    const uint8_t *map = map_of(s, c.cls);
    sl_rx *to = map ? take_targets(s, c.n) : NULL;
    for (unsigned k = 0; to && k < c.n; k++) to[k] = derive(s, e, c.first[k]);
    if (!to || s->bad != SL_OK) return (sl_rx_row){none_cls, none_to, 1};
    return s->extra[e].row = (sl_rx_row){map, to, c.n};
}

/* Depth first to a state that can end; all on the way to it can, and when there is none, all that
 * were seen cannot. */
static bool search(sl_rx_store *s, sl_rx e) {
    const size_t base = s->n_scratch;
    sl_rx *seen = NULL;
    size_t n_seen = 0, cap_seen = 0;
    bool found = false;
    /* the stack holds pairs: state, next class */
    if (sl_rx_push(s, e)) (void)sl_rx_push(s, 0);
    s->extra[e].seen = true;
    if (sl_rx_room(s, (void **)&seen, &cap_seen, 1, sizeof *seen)) seen[n_seen++] = e;
    while (s->bad == SL_OK && s->n_scratch > base && !found) {
        const sl_rx at = s->scratch[s->n_scratch - 2];
        const uint32_t k = s->scratch[s->n_scratch - 1];
        const sl_rx_row row = raw_row(s, at);
        if (k >= row.n) {
            s->n_scratch -= 2;
            continue;
        }
        s->scratch[s->n_scratch - 1] = k + 1;
        const sl_rx t = row.to[k];
        const sl_rx_node *node = &s->nodes[t];
        sl_rx_extra *x = &s->extra[t];
        if (t == SL_RX_NONE || x->live == 2 || x->seen) continue;
        if (!node->fancy || node->nullable || x->live == 1) {
            found = true;
            continue;
        }
        if (n_seen >= SL_RX_MAX_SEARCH) sl_rx_spoil(s, SL_ERR_LIMIT, "states", SL_RX_MAX_SEARCH);
        x->seen = true;
        if (!sl_rx_room(s, (void **)&seen, &cap_seen, n_seen + 1, sizeof *seen)) break;
        seen[n_seen++] = t;
        if (sl_rx_push(s, t)) (void)sl_rx_push(s, 0);
    }
    for (size_t i = 0; i < n_seen; i++) {
        s->extra[seen[i]].seen = false;
        if (!found && s->bad == SL_OK) s->extra[seen[i]].live = 2;
    }
    for (size_t i = base; found && i < s->n_scratch; i += 2) s->extra[s->scratch[i]].live = 1;
    s->memory -= cap_seen * sizeof *seen;
    sl_free(seen);
    s->n_scratch = base;
    return found;
}

bool sl_rx_live(sl_rx_store *s, sl_rx e) {
    const sl_rx_node *node = &s->nodes[e];
    if (e == SL_RX_NONE) return false;
    if (!node->fancy || node->nullable) return true;
    if (s->extra[e].live) return s->extra[e].live == 1;
    return search(s, e);
}

sl_rx_row sl_rx_row_of(sl_rx_store *s, sl_rx e) {
    sl_rx_row row = raw_row(s, e);
    if (s->extra[e].pruned || s->bad != SL_OK) return row;
    sl_rx *to = (sl_rx *)row.to; /* ours */
    if (s->nodes[e].fancy)
        for (uint32_t k = 0; k < row.n; k++)
            if (!sl_rx_live(s, to[k])) to[k] = SL_RX_NONE;
    s->extra[e].pruned = true;
    return row;
}

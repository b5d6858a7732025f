/* The trees of a vocabulary, and the tables of JSON's own states over it. */
#include "grammar/vocab_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/chars.h"
#include "text/tokenizer.h"

#include <stdlib.h>

typedef struct named {
    sl_span text;
    uint32_t id;
} named;

static int by_text(const void *x, const void *y) {
    const named *a = x, *b = y;
    const size_t n = SL_MIN(a->text.len, b->text.len);
    const int order = memcmp(a->text.data, b->text.data, n);
    if (order) return order;
    if (a->text.len != b->text.len) return a->text.len < b->text.len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static void trie_free(sl_trie *t) {
    sl_free(t->byte);
    sl_free(t->depth);
    sl_free(t->skip);
    sl_free(t->token);
}

/* A tree of n sorted texts; ids of equal ones are chained in `twin`. */
static bool trie_of(sl_trie *t, const named *v, size_t n, uint32_t *twin) {
    size_t nodes = 1;
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        while (i && same < v[i].text.len && same < v[i - 1].text.len &&
               v[i].text.data[same] == v[i - 1].text.data[same])
            same++;
        nodes += v[i].text.len - same;
    }
    if (nodes >= UINT32_MAX) return false;
    t->byte = sl_alloc(nodes, sizeof *t->byte);
    t->depth = sl_alloc(nodes, sizeof *t->depth);
    t->skip = sl_alloc(nodes, sizeof *t->skip);
    t->token = sl_alloc(nodes, sizeof *t->token);
    uint32_t path[UINT16_MAX + 1]; /* open nodes by depth */
    if (!t->byte || !t->depth || !t->skip || !t->token) return false;
    uint32_t open = 0, at = 1;
    path[0] = 0;
    t->token[0] = SL_TRIE_NO_TOKEN;
    for (size_t i = 0; i < n; i++) {
        uint32_t same = 0;
        while (same < open && same < v[i].text.len &&
               t->byte[path[same + 1]] == v[i].text.data[same])
            same++;
        for (; open > same; open--) t->skip[path[open]] = at;
        if (same == v[i].text.len) { /* the text before is the same one: sorted */
            twin[v[i].id] = t->token[path[open]];
            t->token[path[open]] = v[i].id;
            continue;
        }
        for (; open < v[i].text.len; at++) {
            t->byte[at] = v[i].text.data[open];
            t->depth[at] = (uint16_t)++open;
            t->token[at] = SL_TRIE_NO_TOKEN;
            path[open] = at;
        }
        t->token[path[open]] = v[i].id;
        twin[v[i].id] = SL_TRIE_NO_TOKEN;
        t->most_depth = SL_MAX(t->most_depth, open);
    }
    for (; open > 0; open--) t->skip[path[open]] = at;
    t->skip[0] = at;
    t->n = at;
    SL_ASSERT(at == nodes);
    return true;
}

/* Characters of a text without escapes, quotes and halves of characters; 0: it has those. */
static uint32_t plain_length(sl_span text) {
    uint32_t n = 0;
    for (size_t i = 0; i < text.len; n++) {
        const uint8_t b = text.data[i];
        const size_t more = sl_utf8_sequence((const char *)text.data + i, text.len - i);
        if (b < 0x20 || b == '"' || b == '\\' || more == 0) return 0;
        i += more;
    }
    return n;
}

static int by_length(const void *x, const void *y) {
    const uint32_t *a = x, *b = y;
    if (a[1] != b[1]) return a[1] < b[1] ? -1 : 1;
    return a[0] < b[0] ? -1 : a[0] > b[0];
}

static bool keep_plain(sl_vocab *v, const named *sorted, size_t n) {
    uint32_t(*pairs)[2] = sl_alloc(n, sizeof *pairs);
    uint32_t k = 0;
    for (size_t i = 0; pairs && i < n; i++) {
        const uint32_t chars = plain_length(sorted[i].text);
        if (chars == 0) continue;
        pairs[k][0] = sorted[i].id;
        pairs[k++][1] = chars;
    }
    v->n_plain = k;
    v->plain_ids = sl_alloc(k, sizeof *v->plain_ids);
    v->plain_length = sl_alloc(k, sizeof *v->plain_length);
    v->plain = sl_alloc((SL_VOCAB_LENGTHS + 1) * v->words, sizeof *v->plain);
    const bool ok = pairs && v->plain_ids && v->plain_length && v->plain;
    if (ok) qsort(pairs, k, sizeof *pairs, by_length);
    for (uint32_t i = 0; ok && i < k; i++) {
        v->plain_ids[i] = pairs[i][0];
        v->plain_length[i] = (uint16_t)pairs[i][1];
        v->most_plain = pairs[i][1];
        for (uint32_t l = pairs[i][1]; l <= SL_VOCAB_LENGTHS; l++)
            v->plain[l * v->words + pairs[i][0] / 32] |= 1u << pairs[i][0] % 32;
    }
    sl_free(pairs);
    return ok;
}

/* Where the nodes of a smaller tree are in that of all texts; NULL: no memory. */
static uint32_t *places_in_all(const sl_vocab *v, const sl_trie *t) {
    uint32_t *path = sl_alloc(v->all.most_depth + 2, sizeof *path);
    uint32_t *places = sl_alloc(t->n, sizeof *places);
    if (!path || !places) {
        sl_free(path);
        sl_free(places);
        return NULL;
    }
    for (uint32_t i = 1; i < t->n; i++) {
        const uint32_t depth = t->depth[i];
        uint32_t at = path[depth - 1] + 1; /* siblings come in order, from the first child on */
        while (v->all.byte[at] != t->byte[i]) at = v->all.skip[at];
        places[i] = path[depth] = at;
    }
    sl_free(path);
    return places;
}

/* Which part of its character each node's byte is. */
static void mark_parts(sl_plain_node *v, uint32_t n, uint8_t *left) {
    left[0] = 0; /* by depth: bytes that the character still has */
    for (uint32_t i = 1; i < n; i++) {
        const uint8_t b = v[i].byte, before = left[v[i].depth - 1];
        const bool first = before == 0;
        const uint8_t behind = b < 0x80 ? 0 : b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
        left[v[i].depth] = first ? behind : before - 1;
        v[i].part = left[v[i].depth] == 0 ? SL_PLAIN_LAST
                    : first               ? SL_PLAIN_FIRST
                                          : SL_PLAIN_INSIDE;
    }
}

/* What each node has below it, from the last node on: children are done before their parents. */
static void sum_up(sl_plain_node *v, uint32_t n, sl_plain_node *open) {
    for (uint32_t i = n; i-- > 0;) {
        sl_plain_node *x = &v[i], *below = &open[x->depth + 1], *beside = &open[x->depth];
        x->below = below->below;
        x->most = below->most;
        *below = (sl_plain_node){0};
        if (x->part == SL_PLAIN_FIRST) sl_plain_add(&x->below, 0), x->most++;
        sl_plain_set own = x->below;
        const bool ascii = x->byte < 0x80;
        if (ascii) sl_plain_add(&own, x->byte);
        beside->below.w[0] |= own.w[0];
        beside->below.w[1] |= own.w[1];
        beside->most = SL_MAX(beside->most, (uint16_t)(x->most + ascii));
    }
}

/* The tree of plain tokens, with what subtrees hold, of the plain tree of their texts. */
static bool keep_plain_tree(sl_vocab *v, const sl_trie *t) {
    const size_t depths = (size_t)t->most_depth + 2;
    sl_plain_node *open = sl_alloc(depths, sizeof *open);
    uint8_t *left = sl_alloc(depths, sizeof *left);
    uint32_t n = 0;
    v->n_plain_nodes = t->n;
    v->order = sl_alloc(v->n_plain, sizeof *v->order);
    v->plain_tree = sl_alloc((size_t)t->n + 1, sizeof *v->plain_tree);
    const bool ok = open && left && v->order && v->plain_tree;
    for (uint32_t i = 0; ok && i < t->n; i++) {
        v->plain_tree[i] = (sl_plain_node){
            .skip = t->skip[i], .from = n, .depth = t->depth[i], .byte = t->byte[i]};
        for (uint32_t id = t->token[i]; id != SL_TRIE_NO_TOKEN; id = v->twin[id])
            v->order[n++] = id;
    }
    if (ok) {
        v->plain_tree[t->n].from = n;
        mark_parts(v->plain_tree, t->n, left);
        sum_up(v->plain_tree, t->n, open);
    }
    sl_free(open);
    sl_free(left);
    return ok;
}

static bool make_tries(sl_vocab *v) {
    named *list = sl_alloc(v->n, sizeof *list);
    size_t n = 0, n_rest = 0;
    bool ok = list != NULL;
    for (uint32_t id = 0; ok && id < v->n; id++) {
        const sl_span text = sl_vocab_text(v, id);
        if (text.len && !sl_vocab_is_end(v, id)) list[n++] = (named){text, id};
    }
    if (ok) qsort(list, n, sizeof *list, by_text);
    ok = ok && trie_of(&v->all, list, n, v->twin) && keep_plain(v, list, n);
    /* both halves in the order they had: the plain ones before the others */
    named *rest = ok ? sl_alloc(n, sizeof *rest) : NULL;
    size_t n_plain = 0;
    ok = ok && rest;
    for (size_t i = 0; ok && i < n; i++) {
        if (plain_length(list[i].text) == 0)
            rest[n_rest++] = list[i];
        else
            list[n_plain++] = list[i];
    }
    sl_trie plain = {0};
    ok = ok && trie_of(&v->rest, rest, n_rest, v->twin) &&
         trie_of(&plain, list, n_plain, v->twin) && keep_plain_tree(v, &plain);
    if (ok) v->rest_in_all = places_in_all(v, &v->rest);
    if (ok) v->plain_in_all = places_in_all(v, &plain);
    ok = ok && v->rest_in_all && v->plain_in_all;
    trie_free(&plain);
    sl_free(rest);
    sl_free(list);
    return ok;
}

static sl_base_rx base_of(sl_rx_store *s) {
    sl_chars set = {0};
    sl_base_rx b = {.string = sl_rx_json_string(s),
                    .number = sl_rx_json_number(s),
                    .integer = sl_rx_json_integer(s),
                    .key_char = sl_rx_any_char(s, SL_ALPHABET_KEY)};
    if (sl_chars_add(&set, 0x20, 0x21) && sl_chars_add(&set, 0x23, 0x5b) &&
        sl_chars_add(&set, 0x5d, SL_CHAR_LAST) && sl_chars_settle(&set, false))
        b.plain_char = sl_rx_char_of(s, &set, SL_ALPHABET_RAW);
    sl_chars_free(&set);
    return b;
}

/* Expressions of JSON with all their states, and the tables of those. */
static sl_status make_base(sl_vocab *v, sl_err *err) {
    sl_status st = sl_rx_create(&v->base, err);
    if (st != SL_OK) return st;
    const sl_base_rx b = v->rx = base_of(v->base);
    sl_rx todo[512];
    size_t n = 0;
    uint8_t seen[4096] = {0};
    todo[n++] = b.string;
    todo[n++] = b.number;
    todo[n++] = b.integer;
    for (size_t i = 0; i < n; i++) {
        const sl_rx_row row = sl_rx_row_of(v->base, todo[i]);
        seen[todo[i]] = 1;
        for (uint32_t k = 0; k < row.n; k++) {
            const sl_rx t = row.to[k];
            SL_ASSERT(t < sizeof seen && n < SL_LEN(todo));
            if (t != SL_RX_NONE && !seen[t]) seen[t] = 1, todo[n++] = t;
        }
    }
    /* tables make expressions of their own: what counts is known after the last */
    sl_table *made[512] = {NULL};
    sl_rx_allow(v->base, UINT64_MAX);
    for (size_t i = 0; i < n; i++) made[i] = sl_table_make(v, v->base, todo[i]);
    v->n_base = 4096;
    v->tables = sl_alloc(v->n_base, sizeof *v->tables);
    for (size_t i = 0; i < n; i++) {
        if (v->tables && made[i])
            v->tables[todo[i]] = made[i];
        else
            sl_table_free(made[i]);
    }
    st = sl_rx_status(v->base, err);
    if (st == SL_OK && !v->tables)
        st = sl_fail(err, SL_ERR_NOMEM, "out of memory for a vocabulary");
    return st;
}

sl_status sl_vocab_create(const sl_span *texts, uint32_t n, const uint32_t *ends, size_t n_ends,
                          sl_vocab **out, sl_err *err) {
    size_t total = 0;
    *out = NULL;
    if (n > SL_VOCAB_MAX_IDS)
        return sl_fail(err, SL_ERR_LIMIT, "vocabulary: %u tokens, limit %u", n, SL_VOCAB_MAX_IDS);
    for (uint32_t i = 0; i < n; i++) {
        if (texts[i].len > UINT16_MAX)
            return sl_fail(err, SL_ERR_LIMIT, "vocabulary: token %u has %zu bytes, limit %u", i,
                           texts[i].len, UINT16_MAX);
        total += texts[i].len;
    }
    if (total > SL_VOCAB_MAX_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "vocabulary: %zu bytes of text, limit %u", total,
                       SL_VOCAB_MAX_BYTES);
    for (size_t i = 0; i < n_ends; i++)
        if (ends[i] >= n)
            return sl_fail(err, SL_ERR_ARG, "vocabulary: end %u, but %u tokens", ends[i], n);
    sl_vocab *v = sl_alloc(1, sizeof *v);
    if (!v) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a vocabulary");
    v->n = n;
    v->words = ((size_t)n + 31) / 32;
    v->bytes = sl_alloc(total, 1);
    v->at = sl_alloc((size_t)n + 1, sizeof *v->at);
    v->twin = sl_alloc(n, sizeof *v->twin);
    v->ends = sl_alloc(n_ends, sizeof *v->ends);
    sl_status st = SL_OK;
    if (v->bytes && v->at && v->twin && v->ends) {
        for (uint32_t i = 0; i < n; i++) {
            v->at[i + 1] = v->at[i] + texts[i].len;
            if (texts[i].len) memcpy(v->bytes + v->at[i], texts[i].data, texts[i].len);
            v->longest = SL_MAX(v->longest, (uint32_t)texts[i].len);
        }
        if (n_ends) memcpy(v->ends, ends, n_ends * sizeof *ends);
        v->n_ends = n_ends;
        if (make_tries(v))
            st = make_base(v, err);
        else
            st = sl_fail(err, SL_ERR_NOMEM, "out of memory for a vocabulary");
    } else {
        st = sl_fail(err, SL_ERR_NOMEM, "out of memory for a vocabulary");
    }
    if (st != SL_OK) {
        sl_vocab_free(v);
        return st;
    }
    *out = v;
    return SL_OK;
}

/* A special token's text for grammars: bytes that no UTF-8 has, and its id. So it is met where any
 * tokens are, or by its id, and never in the midst of a text. Tokens of such bytes, which no text
 * is made of either, have none: they would spell it. */
#define SPECIAL_BYTES 5u
static bool is_of_text(sl_span piece) {
    for (size_t i = 0; i < piece.len; i++)
        if (piece.data[i] >= 0xF5) return false;
    return true;
}

static void special_text(uint32_t id, uint8_t out[SPECIAL_BYTES]) {
    out[0] = 0xFF;
    for (uint32_t i = 1; i < SPECIAL_BYTES; i++, id >>= 7) out[i] = 0x80 | (id & 0x7F);
}

sl_status sl_vocab_of_tokenizer(const struct sl_tokenizer *tok, const uint32_t *ends, size_t n_ends,
                                sl_vocab **out, sl_err *err) {
    const uint32_t n = sl_tokenizer_vocab_size(tok);
    sl_span *texts = sl_alloc(n, sizeof *texts);
    uint8_t(*special)[SPECIAL_BYTES] = sl_alloc(n, sizeof *special);
    uint32_t *own = sl_alloc(n_ends, sizeof *own);
    size_t n_own = 0;
    *out = NULL;
    sl_status st = SL_OK;
    if (!texts || !special || !own)
        st = sl_fail(err, SL_ERR_NOMEM, "out of memory for a vocabulary");
    for (uint32_t id = 0; st == SL_OK && id < n; id++) {
        const sl_span piece = sl_tokenizer_piece(tok, id);
        if (is_of_text(piece)) texts[id] = piece;
        if (!sl_tokenizer_is_special(tok, id)) continue;
        special_text(id, special[id]);
        texts[id] = (sl_span){special[id], SPECIAL_BYTES};
    }
    for (size_t i = 0; st == SL_OK && i < n_ends; i++)
        if (ends[i] < n) own[n_own++] = ends[i];
    if (st == SL_OK) st = sl_vocab_create(texts, n, own, n_own, out, err);
    sl_free(own);
    sl_free(texts);
    sl_free(special);
    return st;
}

void sl_vocab_free(sl_vocab *v) {
    if (!v) return;
    for (uint32_t i = 0; v->tables && i < v->n_base; i++) sl_table_free(v->tables[i]);
    sl_free(v->tables);
    sl_rx_free(v->base);
    trie_free(&v->all);
    trie_free(&v->rest);
    sl_free(v->plain_tree);
    sl_free(v->rest_in_all);
    sl_free(v->plain_in_all);
    sl_free(v->order);
    sl_free(v->plain);
    sl_free(v->plain_ids);
    sl_free(v->plain_length);
    sl_free(v->bytes);
    sl_free(v->at);
    sl_free(v->twin);
    sl_free(v->ends);
    sl_free(v);
}

uint32_t sl_vocab_size(const sl_vocab *v) {
    return v->n;
}

size_t sl_vocab_words(const sl_vocab *v) {
    return v->words;
}

sl_span sl_vocab_text(const sl_vocab *v, uint32_t id) {
    return (sl_span){v->bytes + v->at[id], v->at[id + 1] - v->at[id]};
}

bool sl_vocab_is_end(const sl_vocab *v, uint32_t id) {
    for (size_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == id) return true;
    return false;
}

/* Tables of words and merges; the symbols that a word has at first, and their merging. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

static sl_tok_merge *merge_slot(const sl_tokenizer *tok, uint32_t left, uint32_t right) {
    size_t mask = tok->merge_slots - 1;
    size_t i = mix((uint64_t)left << 32 | right) & mask;
    for (;; i = (i + 1) & mask) {
        sl_tok_merge *m = &tok->merges[i];
        if (m->id == SL_TOK_NONE || (m->left == left && m->right == right)) return m;
    }
}

sl_status sl_tok_merges_reserve(sl_tokenizer *tok, size_t n, sl_err *err) {
    tok->merge_slots = slots_for(n);
    tok->merges = sl_alloc(tok->merge_slots, sizeof *tok->merges);
    if (!tok->merges) return sl_fail(err, SL_ERR_NOMEM, "table of %zu merges", n);
    for (size_t i = 0; i < tok->merge_slots; i++) tok->merges[i].id = SL_TOK_NONE;
    return SL_OK;
}

void sl_tok_merge_put(sl_tokenizer *tok, sl_tok_merge m) {
    *merge_slot(tok, m.left, m.right) = m;
}

static uint64_t hash_bytes(sl_span s) {
    uint64_t h = s.len;
    for (size_t i = 0; i < s.len; i++) h = (h ^ s.data[i]) * 0x100000001B3u;
    return mix(h);
}

static uint32_t *word_slot(const sl_tokenizer *tok, sl_span word) {
    size_t mask = tok->word_slots - 1;
    for (size_t i = hash_bytes(word) & mask;; i = (i + 1) & mask) {
        uint32_t id = tok->words[i];
        if (id == SL_TOK_NONE) return &tok->words[i];
        sl_span have = sl_tok_bytes(tok, tok->pieces[id].word);
        if (have.len == word.len && memcmp(have.data, word.data, word.len) == 0)
            return &tok->words[i];
    }
}

sl_status sl_tok_words_reserve(sl_tokenizer *tok, size_t n, sl_err *err) {
    tok->word_slots = slots_for(n);
    tok->words = sl_alloc(tok->word_slots, sizeof *tok->words);
    if (!tok->words) return sl_fail(err, SL_ERR_NOMEM, "table of %zu words", n);
    for (size_t i = 0; i < tok->word_slots; i++) tok->words[i] = SL_TOK_NONE;
    return SL_OK;
}

void sl_tok_word_put(sl_tokenizer *tok, uint32_t id) {
    *word_slot(tok, sl_tok_bytes(tok, tok->pieces[id].word)) = id;
}

uint32_t sl_tok_word_find(const sl_tokenizer *tok, sl_span word) {
    return *word_slot(tok, word);
}

void sl_tok_byte_ids(sl_tokenizer *tok) {
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        tok->byte_id[b] = sl_tok_word_find(tok, (sl_span){&byte, 1});
    }
}

static sl_status reserve_work(sl_tok_work *w, size_t n, sl_err *err) {
    if (n <= w->cap) return SL_OK;
    size_t cap = SL_MAX(n, 2 * w->cap + 64);
    sl_free(w->arrays);
    w->cap = 0;
    /* of the heap one for each first pair, and each of at most n merges takes one and adds two */
    w->arrays = sl_alloc_arrays(SL_ARRAY(w->id, cap), SL_ARRAY(w->prev, cap),
                                SL_ARRAY(w->next, cap), SL_TABLE(w->heap, cap, 2));
    if (!w->arrays) return sl_fail(err, SL_ERR_NOMEM, "merging a word of %zu symbols", n);
    w->cap = cap;
    return SL_OK;
}

void sl_tok_work_free(sl_tok_work *w) {
    sl_free(w->arrays);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->limits);
    *w = (sl_tok_work){0};
}

static void heap_push(sl_tok_work *w, uint64_t key) {
    size_t i = w->n_heap++;
    for (size_t up; i > 0 && w->heap[up = (i - 1) / 2] > key; i = up) w->heap[i] = w->heap[up];
    w->heap[i] = key;
}

static uint64_t heap_pop(sl_tok_work *w) {
    uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= w->n_heap) break;
        if (kid + 1 < w->n_heap && w->heap[kid + 1] < w->heap[kid]) kid++;
        if (w->heap[kid] >= key) break;
        w->heap[i] = w->heap[kid];
        i = kid;
    }
    w->heap[i] = key;
    return top;
}

static void push_pair(const sl_tokenizer *tok, sl_tok_work *w, uint32_t pos) {
    if (w->next[pos] == SL_TOK_NONE) return;
    const sl_tok_merge *m = merge_slot(tok, w->id[pos], w->id[w->next[pos]]);
    if (m->id != SL_TOK_NONE) heap_push(w, (uint64_t)m->rank << 32 | pos);
}

/* First symbols: one id a byte. Bytes outside the vocabulary are dropped, or become the unknown
 * token (one for a whole run with fuse_unk). */
static size_t first_symbols(const sl_tokenizer *tok, sl_tok_work *w, sl_span word) {
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < word.len; i++) {
        uint32_t id = tok->byte_id[word.data[i]];
        bool unk = id == SL_TOK_NONE;
        if (unk) id = tok->unk_id;
        if (id == SL_TOK_NONE || (unk && after_unk && tok->fuse_unk)) continue;
        after_unk = unk;
        w->id[n++] = id;
    }
    return n;
}

/* Merges the pair of lowest rank, leftmost first, until none is left. Entries of the heap may be
 * stale: their position is gone, or its pair has another rank by now. */
static void merge_all(const sl_tokenizer *tok, sl_tok_work *w, size_t n) {
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = i == 0 ? SL_TOK_NONE : (uint32_t)i - 1;
        w->next[i] = i + 1 == n ? SL_TOK_NONE : (uint32_t)i + 1;
    }
    for (size_t i = 0; i + 1 < n; i++) push_pair(tok, w, (uint32_t)i);
    while (w->n_heap > 0) {
        uint64_t top = heap_pop(w);
        uint32_t pos = (uint32_t)top, right = w->next[pos];
        if (w->id[pos] == SL_TOK_NONE || right == SL_TOK_NONE) continue;
        const sl_tok_merge *m = merge_slot(tok, w->id[pos], w->id[right]);
        if (m->id == SL_TOK_NONE || m->rank != top >> 32) continue;
        w->id[pos] = m->id;
        w->id[right] = SL_TOK_NONE;
        w->next[pos] = w->next[right];
        if (w->next[pos] != SL_TOK_NONE) w->prev[w->next[pos]] = pos;
        push_pair(tok, w, pos);
        if (w->prev[pos] != SL_TOK_NONE) push_pair(tok, w, w->prev[pos]);
    }
}

sl_status sl_tok_word_parts(const sl_tokenizer *tok, sl_tok_work *w, sl_span word, uint32_t part[2],
                            size_t *n, sl_err *err) {
    sl_status st = reserve_work(w, word.len, err);
    if (st != SL_OK) return st;
    size_t first = first_symbols(tok, w, word);
    merge_all(tok, w, first);
    *n = 0;
    for (uint32_t i = first == 0 ? SL_TOK_NONE : 0; i != SL_TOK_NONE; i = w->next[i], ++*n)
        if (*n < 2) part[*n] = w->id[i];
    return SL_OK;
}

/* Most symbols that a word of SentencePiece's shape has. */
static size_t spm_max_symbols(const sl_tokenizer *tok, sl_span word) {
    static const sl_span mark = {(const uint8_t *)SL_TOK_MARK, SL_TOK_MARK_LEN};
    size_t n = word.len;
    if (sl_tok_word_find(tok, mark) == SL_TOK_NONE) return n;
    for (size_t i = 0; i < word.len; i++) n -= sl_tok_has_mark(word, i) ? mark.len - 1 : 0;
    return n;
}

/* Bytes of one character as symbols; false when the vocabulary lacks one of them. */
static bool put_bytes(const sl_tokenizer *tok, sl_tok_work *w, sl_span c, size_t *n) {
    for (size_t i = 0; i < c.len; i++)
        if (tok->byte_id[c.data[i]] == SL_TOK_NONE) return false;
    for (size_t i = 0; i < c.len; i++) w->id[(*n)++] = tok->byte_id[c.data[i]];
    return true;
}

/* An unknown token is put off until the next character of the vocabulary, past bytes that come in
 * between: odd, but what the library does that published ids come from. */
static size_t spm_symbols(const sl_tokenizer *tok, sl_tok_work *w, sl_span word) {
    size_t n = 0;
    bool unknown = false;
    for (size_t at = 0, end = 0; at < word.len; at = end) {
        end = at + 1;
        (void)sl_utf8_at(word, at, &end);
        sl_span c = {word.data + at, end - at};
        uint32_t id = sl_tok_word_find(tok, c);
        if (id != SL_TOK_NONE) {
            if (unknown) w->id[n++] = tok->unk_id;
            unknown = false;
            w->id[n++] = id;
        } else if (!tok->spm.byte_fallback || !put_bytes(tok, w, c, &n)) {
            if (unknown && !tok->fuse_unk) w->id[n++] = tok->unk_id;
            unknown = tok->unk_id != SL_TOK_NONE;
        }
    }
    if (unknown) w->id[n++] = tok->unk_id;
    return n;
}

sl_status sl_tok_word_encode(const sl_tokenizer *tok, sl_tok_work *w, sl_span word, sl_ids *out,
                             sl_err *err) {
    if (tok->ignore_merges) {
        uint32_t id = sl_tok_word_find(tok, word);
        if (id != SL_TOK_NONE) return sl_ids_push(out, id, err);
    }
    bool spm = tok->spm.on;
    sl_status st = reserve_work(w, spm ? spm_max_symbols(tok, word) : word.len, err);
    if (st != SL_OK) return st;
    size_t n = spm ? spm_symbols(tok, w, word) : first_symbols(tok, w, word);
    merge_all(tok, w, n);
    for (uint32_t i = n == 0 ? SL_TOK_NONE : 0; i != SL_TOK_NONE && st == SL_OK; i = w->next[i])
        st = sl_ids_push(out, w->id[i], err);
    return st;
}

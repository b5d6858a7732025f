/* tokenizer.json, with what tokenizer_config.json adds: every step is read or refused. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

/* GPT-2's split, which a ByteLevel pre-tokenizer with use_regex means. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static sl_status blob_add(sl_tokenizer *tok, sl_span s, sl_tok_str *out, sl_err *err) {
    if (s.len > tok->blob_cap - tok->blob_len) {
        size_t cap = 2 * tok->blob_cap + s.len + 4096;
        uint8_t *grown = cap > UINT32_MAX ? NULL : sl_grow(tok->blob, tok->blob_cap, cap, 1);
        if (!grown) return sl_fail(err, SL_ERR_NOMEM, "vocabulary of %zu bytes", cap);
        tok->blob = grown;
        tok->blob_cap = cap;
    }
    if (s.len) memcpy(tok->blob + tok->blob_len, s.data, s.len);
    *out = (sl_tok_str){(uint32_t)tok->blob_len, (uint32_t)s.len};
    tok->blob_len += s.len;
    return SL_OK;
}

/* Makes id a token that decodes as its characters' bytes, or as its own UTF-8 when some character
 * stands for no byte; in SentencePiece's shape, as sl_tok_spm_bytes says. *is_word: text may become
 * it without its being an added token. */
static sl_status define(sl_tokenizer *tok, uint64_t id, sl_span text, uint32_t flags, bool *is_word,
                        sl_err *err) {
    if (id >= tok->ids_cap) {
        size_t cap = SL_MIN(SL_MAX(2 * tok->ids_cap, id + 1024), (size_t)SL_TOKENIZER_MAX_IDS);
        sl_tok_piece *grown = sl_grow(tok->pieces, tok->ids_cap, cap, sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_NOMEM, "vocabulary of %zu tokens", cap);
        tok->pieces = grown;
        tok->ids_cap = cap;
    }
    uint8_t bytes[SL_TOKENIZER_MAX_PIECE];
    size_t n;
    *is_word = tok->spm.on || sl_byte_level_bytes(text, bytes, &n);
    if (tok->spm.on) sl_tok_spm_bytes(text, bytes, &n);
    sl_tok_piece *piece = &tok->pieces[id];
    piece->flags |= flags | SL_TOK_DEFINED;
    tok->n_ids = SL_MAX(tok->n_ids, (size_t)id + 1);
    sl_status st = blob_add(tok, *is_word ? (sl_span){bytes, n} : text, &piece->bytes, err);
    piece->word = piece->bytes;
    if (st == SL_OK && tok->spm.on) st = blob_add(tok, text, &piece->word, err);
    return st;
}

static uint32_t flags_of(const sl_tokenizer *tok, uint64_t id) {
    return id < tok->n_ids ? tok->pieces[id].flags : 0;
}

static sl_status check_length(sl_json where, const char *key, sl_span s, sl_err *err) {
    if (s.len > 0 && s.len <= SL_TOKENIZER_MAX_PIECE) return SL_OK;
    return sl_json_fail(where, key, err, SL_ERR_LIMIT, "token of %zu bytes, limit 1..%u", s.len,
                        SL_TOKENIZER_MAX_PIECE);
}

static sl_status load_vocab(sl_tokenizer *tok, sl_json vocab, sl_err *err) {
    sl_status st = sl_tok_words_reserve(tok, sl_json_count(vocab), err);
    void *iter = NULL;
    const char *key;
    for (sl_json v; st == SL_OK && sl_json_next(vocab, &iter, &key, &v);) {
        sl_span text = {(const uint8_t *)key, strlen(key)};
        uint64_t id = 0;
        bool is_word;
        st = check_length(vocab, key, text, err);
        if (st == SL_OK)
            st = sl_json_u64(vocab, key, SL_JSON_REQUIRED, 0, SL_TOKENIZER_MAX_IDS - 1, &id, err);
        if (st == SL_OK && flags_of(tok, id))
            st = sl_json_fail(vocab, key, err, SL_ERR_FORMAT, "id %llu is used twice",
                              (unsigned long long)id);
        if (st == SL_OK) st = define(tok, id, text, 0, &is_word, err);
        if (st == SL_OK && is_word) sl_tok_word_put(tok, (uint32_t)id);
    }
    return st;
}

/* The two symbols of a merge, "a b" or ["a","b"]. *skip: a version line of an old file. */
static sl_status merge_sides(sl_json merges, size_t i, sl_span side[2], bool *skip, sl_err *err) {
    sl_json m = sl_json_at(merges, i);
    sl_span both;
    *skip = false;
    if (sl_json_kind_of(m) == SL_JSON_ARRAY && sl_json_count(m) == 2 &&
        sl_json_as_span(sl_json_at(m, 0), &side[0]) && sl_json_as_span(sl_json_at(m, 1), &side[1]))
        return SL_OK;
    if (sl_json_as_span(m, &both)) {
        const uint8_t *gap = memchr(both.data, ' ', both.len);
        *skip = strncmp((const char *)both.data, "#version", 8) == 0;
        if (*skip) return SL_OK;
        if (gap) {
            size_t n = (size_t)(gap - both.data);
            side[0] = (sl_span){both.data, n};
            side[1] = (sl_span){gap + 1, both.len - n - 1};
            if (!memchr(side[1].data, ' ', side[1].len)) return SL_OK;
        }
    }
    return sl_json_fail(merges, NULL, err, SL_ERR_FORMAT, "merge %zu is not a pair of tokens", i);
}

static bool vocab_id(sl_json vocab, const char *text, uint32_t *out) {
    uint64_t id;
    if (!sl_json_as_u64(sl_json_get(vocab, text), &id)) return false;
    *out = (uint32_t)id;
    return true;
}

static sl_status load_merges(sl_tokenizer *tok, sl_json merges, sl_json vocab, sl_err *err) {
    size_t n = sl_json_count(merges);
    if (n > SL_TOKENIZER_MAX_IDS)
        return sl_json_fail(merges, NULL, err, SL_ERR_LIMIT, "%zu merges, limit %u", n,
                            SL_TOKENIZER_MAX_IDS);
    sl_status st = sl_tok_merges_reserve(tok, n, err);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        sl_span side[2] = {{0}};
        char joined[2 * SL_TOKENIZER_MAX_PIECE + 1], left[SL_TOKENIZER_MAX_PIECE + 1];
        sl_tok_merge m = {.rank = (uint32_t)i};
        bool skip;
        st = merge_sides(merges, i, side, &skip, err);
        if (st != SL_OK || skip) continue;
        bool known = side[0].len <= SL_TOKENIZER_MAX_PIECE &&
                     side[1].len <= SL_TOKENIZER_MAX_PIECE &&
                     !memchr(side[0].data, 0, side[0].len) && !memchr(side[1].data, 0, side[1].len);
        if (known) {
            memcpy(joined, side[0].data, side[0].len);
            memcpy(joined + side[0].len, side[1].data, side[1].len);
            joined[side[0].len + side[1].len] = 0;
            memcpy(left, joined, side[0].len);
            left[side[0].len] = 0;
            known = vocab_id(vocab, left, &m.left) &&
                    vocab_id(vocab, (const char *)side[1].data, &m.right) &&
                    vocab_id(vocab, joined, &m.id);
        }
        if (known)
            sl_tok_merge_put(tok, m);
        else
            st = sl_json_fail(merges, NULL, err, SL_ERR_FORMAT,
                              "merge %zu (\"%.40s\" + \"%.40s\") is not in the vocabulary", i,
                              (const char *)side[0].data, (const char *)side[1].data);
    }
    return st;
}

/* A field that must be absent, null, false, zero or empty. */
static sl_status refuse_set(sl_json obj, const char *key, sl_err *err) {
    sl_json v = sl_json_get(obj, key);
    bool b = true;
    double x;
    sl_span s;
    if (sl_json_kind_of(v) <= SL_JSON_NULL) return SL_OK;
    if (sl_json_as_f64(v, &x) && x == 0) return SL_OK;
    if (sl_json_kind_of(v) == SL_JSON_BOOL &&
        sl_json_bool(obj, key, SL_JSON_OPTIONAL, &b, NULL) == SL_OK && !b)
        return SL_OK;
    if (sl_json_as_span(v, &s) && s.len == 0) return SL_OK;
    return sl_json_fail(obj, key, err, SL_ERR_UNSUPPORTED, "is set, and would change results");
}

static sl_status load_model(sl_tokenizer *tok, sl_json model, sl_err *err) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "vocab",
                                       "merges",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix"};
    static const char *const unset[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix", "byte_fallback"};
    size_t n_unset = SL_LEN(unset) - tok->spm.on; /* which may fall back to bytes */
    sl_span type = {(const uint8_t *)"BPE", 3};
    sl_json vocab = {0}, merges = {0};
    const char *unk = NULL;
    sl_status st = sl_json_only(model, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_tok_text_field(model, "type", SL_JSON_OPTIONAL, &type, err);
    if (st == SL_OK && !sl_tok_is(type, "BPE"))
        st = sl_json_fail(model, "type", err, SL_ERR_UNSUPPORTED, "\"%.40s\", not BPE",
                          (const char *)type.data);
    for (size_t i = 0; st == SL_OK && i < n_unset; i++) st = refuse_set(model, unset[i], err);
    if (st == SL_OK) st = sl_json_object(model, "vocab", SL_JSON_REQUIRED, &vocab, err);
    if (st == SL_OK) st = sl_json_array(model, "merges", SL_JSON_REQUIRED, &merges, err);
    if (st == SL_OK) st = sl_json_bool(model, "fuse_unk", SL_JSON_OPTIONAL, &tok->fuse_unk, err);
    if (st == SL_OK)
        st = sl_json_bool(model, "ignore_merges", SL_JSON_OPTIONAL, &tok->ignore_merges, err);
    if (st == SL_OK && tok->spm.on)
        st = sl_json_bool(model, "byte_fallback", SL_JSON_OPTIONAL, &tok->spm.byte_fallback, err);
    if (st == SL_OK) st = sl_json_string(model, "unk_token", SL_JSON_OPTIONAL, &unk, err);
    if (st == SL_OK) st = load_vocab(tok, vocab, err);
    if (st == SL_OK && unk && !vocab_id(vocab, unk, &tok->unk_id))
        st = sl_json_fail(model, "unk_token", err, SL_ERR_FORMAT,
                          "\"%.60s\" is not in the vocabulary", unk);
    if (st != SL_OK) return st;
    if (tok->spm.on)
        sl_tok_spm_byte_ids(tok);
    else
        sl_tok_byte_ids(tok);
    return load_merges(tok, merges, vocab, err);
}

static sl_status normalize_pattern(sl_tokenizer *tok, sl_span content, sl_tok_str *out,
                                   sl_err *err) {
    sl_span text;
    bool changed = false;
    sl_status st = SL_OK;
    if (tok->spm.normalizes) {
        st = sl_tok_spm_mark(content, tok->spm.prepends, &text, err);
        if (st != SL_OK) return st;
        st = blob_add(tok, text, out, err);
        sl_free((void *)text.data);
    } else if (tok->nfc) {
        st = sl_unicode_nfc(content, &changed, &text, err);
        if (st != SL_OK || !changed) return st;
        st = blob_add(tok, text, out, err);
        free((void *)text.data);
    }
    return st;
}

/* One added token; `v` has its flags, `id` comes from inside it or from its key. */
static sl_status load_added(sl_tokenizer *tok, sl_json v, uint64_t id, sl_json vocab, sl_err *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special"};
    sl_tok_added a = {.id = (uint32_t)id};
    sl_span content = {0};
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_tok_text_field(v, "content", SL_JSON_REQUIRED, &content, err);
    if (st == SL_OK) st = check_length(v, "content", content, err);
    if (st == SL_OK) st = sl_json_bool(v, "special", SL_JSON_OPTIONAL, &a.special, err);
    if (st == SL_OK) st = sl_json_bool(v, "lstrip", SL_JSON_OPTIONAL, &a.lstrip, err);
    if (st == SL_OK) st = sl_json_bool(v, "rstrip", SL_JSON_OPTIONAL, &a.rstrip, err);
    if (st == SL_OK) st = sl_json_bool(v, "single_word", SL_JSON_OPTIONAL, &a.single_word, err);
    a.normalized = !a.special;
    if (st == SL_OK) st = sl_json_bool(v, "normalized", SL_JSON_OPTIONAL, &a.normalized, err);
    if (st != SL_OK) return st;
    uint32_t flags = flags_of(tok, id), other;
    bool in_vocab = vocab_id(vocab, (const char *)content.data, &other);
    if ((flags & SL_TOK_ADDED) || in_vocab != (flags != 0) || (in_vocab && other != id))
        return sl_json_fail(v, "content", err, SL_ERR_FORMAT,
                            "\"%.60s\" with id %llu contradicts another token",
                            (const char *)content.data, (unsigned long long)id);
    bool is_word;
    st = define(tok, id, content, SL_TOK_ADDED | (a.special ? SL_TOK_SPECIAL : 0), &is_word, err);
    if (st == SL_OK) st = blob_add(tok, content, &a.content, err);
    a.pattern = a.content;
    if (st == SL_OK && a.normalized) st = normalize_pattern(tok, content, &a.pattern, err);
    if (st == SL_OK && tok->n_added == tok->added_cap) {
        size_t cap = 2 * tok->added_cap + 64;
        sl_tok_added *grown = sl_grow(tok->added, tok->added_cap, cap, sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_NOMEM, "%zu added tokens", cap);
        tok->added = grown;
        tok->added_cap = cap;
    }
    if (st == SL_OK) tok->added[tok->n_added++] = a;
    return st;
}

static sl_status load_added_list(sl_tokenizer *tok, sl_json root, sl_json vocab, sl_err *err) {
    sl_json list = {0};
    sl_status st = sl_json_array(root, "added_tokens", SL_JSON_OPTIONAL, &list, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++) {
        sl_json v = sl_json_at(list, i);
        uint64_t id = 0;
        st = sl_json_u64(v, "id", SL_JSON_REQUIRED, 0, SL_TOKENIZER_MAX_IDS - 1, &id, err);
        if (st == SL_OK) st = load_added(tok, v, id, vocab, err);
    }
    return st;
}

/* tokenizer_config.json may list tokens that tokenizer.json lacks. */
static sl_status load_config_added(sl_tokenizer *tok, sl_json config, sl_json vocab, sl_err *err) {
    sl_json map = {0}, v;
    sl_status st = sl_json_object(config, "added_tokens_decoder", SL_JSON_OPTIONAL, &map, err);
    void *iter = NULL;
    const char *key;
    while (st == SL_OK && sl_json_next(map, &iter, &key, &v)) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= SL_TOKENIZER_MAX_IDS)
            return sl_json_fail(map, key, err, SL_ERR_FORMAT, "not an id below %u",
                                SL_TOKENIZER_MAX_IDS);
        if (!(flags_of(tok, id) & SL_TOK_ADDED)) st = load_added(tok, v, id, vocab, err);
    }
    return st;
}

static int compare_patterns(const void *a, const void *b, void *ctx) {
    const sl_tokenizer *tok = ctx;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    sl_span x = sl_tok_bytes(tok, tok->added[i].pattern);
    sl_span y = sl_tok_bytes(tok, tok->added[j].pattern);
    int c = memcmp(x.data, y.data, SL_MIN(x.len, y.len));
    if (c) return c;
    if (x.len != y.len) return x.len < y.len ? -1 : 1;
    return i < j ? -1 : i > j;
}

static sl_status build_lexicon(sl_tokenizer *tok, bool normalized, sl_tok_lexicon *lex,
                               sl_err *err) {
    lex->order = sl_alloc(tok->n_added, sizeof *lex->order);
    if (!lex->order) return sl_fail(err, SL_ERR_NOMEM, "%zu added tokens", tok->n_added);
    for (uint32_t i = 0; i < tok->n_added; i++) {
        if (tok->added[i].normalized != normalized) continue;
        lex->order[lex->n++] = i;
        lex->first[sl_tok_bytes(tok, tok->added[i].pattern).data[0]] = true;
    }
    qsort_r(lex->order, lex->n, sizeof *lex->order, compare_patterns, tok);
    return SL_OK;
}

static sl_status load_normalizer(sl_tokenizer *tok, sl_json root, sl_err *err) {
    static const char *const keys[] = {"type"};
    sl_json v = {0};
    sl_span type = {0};
    sl_status st = sl_json_object(root, "normalizer", SL_JSON_OPTIONAL, &v, err);
    if (st != SL_OK || !v.value) return st;
    if (tok->spm.on) return sl_tok_spm_normalizer(tok, v, err);
    if (sl_json_kind_of(sl_json_get(v, "normalizers")) == SL_JSON_ARRAY &&
        sl_json_count(sl_json_get(v, "normalizers")) == 0)
        return SL_OK; /* a sequence of no steps */
    st = sl_tok_text_field(v, "type", SL_JSON_REQUIRED, &type, err);
    if (st == SL_OK && !sl_tok_is(type, "NFC"))
        st = sl_json_fail(v, "type", err, SL_ERR_UNSUPPORTED, "normalizer \"%.40s\", not NFC",
                          (const char *)type.data);
    if (st == SL_OK) st = sl_json_only(v, keys, SL_LEN(keys), err);
    tok->nfc = true;
    return st;
}

static sl_status load_byte_level(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex"};
    bool regex = true;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    tok->prefix_space = true;
    tok->prefix_at = tok->n_splits;
    if (st == SL_OK)
        st = sl_json_bool(v, "add_prefix_space", SL_JSON_OPTIONAL, &tok->prefix_space, err);
    if (st == SL_OK) st = sl_json_bool(v, "use_regex", SL_JSON_OPTIONAL, &regex, err);
    if (st != SL_OK || !regex) return st;
    sl_span pattern = {(const uint8_t *)gpt2_pattern, sizeof gpt2_pattern - 1};
    return sl_tok_split_add(tok, v, pattern, false, false, false, err);
}

static sl_status load_split(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert"};
    static const char *const kinds[] = {"Regex", "String"};
    sl_json pattern = {0};
    sl_span text = {0}, regex = {0}, behavior = {0};
    bool invert = false;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_object(v, "pattern", SL_JSON_REQUIRED, &pattern, err);
    if (st == SL_OK) st = sl_json_only(pattern, kinds, SL_LEN(kinds), err);
    if (st == SL_OK) st = sl_tok_text_field(pattern, "Regex", SL_JSON_OPTIONAL, &regex, err);
    if (st == SL_OK) st = sl_tok_text_field(pattern, "String", SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK) st = sl_tok_text_field(v, "behavior", SL_JSON_REQUIRED, &behavior, err);
    if (st == SL_OK) st = sl_json_bool(v, "invert", SL_JSON_OPTIONAL, &invert, err);
    if (st != SL_OK) return st;
    bool removed = sl_tok_is(behavior, "Removed");
    if (!removed && !sl_tok_is(behavior, "Isolated"))
        return sl_json_fail(v, "behavior", err, SL_ERR_UNSUPPORTED,
                            "\"%.40s\", not Isolated or Removed", (const char *)behavior.data);
    return sl_tok_split_add(tok, v, regex.data ? regex : text, !regex.data, removed && !invert,
                            removed && invert, err);
}

static sl_status load_digits(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "individual_digits"};
    bool individual = false;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_bool(v, "individual_digits", SL_JSON_OPTIONAL, &individual, err);
    if (st != SL_OK) return st;
    sl_span pattern = {(const uint8_t *)"\\p{N}+", individual ? 5 : 6};
    return sl_tok_split_add(tok, v, pattern, false, false, false, err);
}

/* *done tells that the ByteLevel step was seen; nothing may follow it, since that would split the
 * stand-in characters and not the text. */
static sl_status load_pre_tokenizer(sl_tokenizer *tok, sl_json v, bool *done, sl_err *err) {
    static const char *const keys[] = {"type", "pretokenizers"};
    sl_span type = {0};
    sl_json list = {0};
    sl_status st = sl_tok_text_field(v, "type", SL_JSON_REQUIRED, &type, err);
    if (st != SL_OK) return st;
    if (*done) return sl_json_fail(v, NULL, err, SL_ERR_UNSUPPORTED, "a step after ByteLevel");
    if (sl_tok_is(type, "Split")) return load_split(tok, v, err);
    if (sl_tok_is(type, "Digits")) return load_digits(tok, v, err);
    if (sl_tok_is(type, "ByteLevel")) {
        *done = true;
        return load_byte_level(tok, v, err);
    }
    if (!sl_tok_is(type, "Sequence"))
        return sl_json_fail(v, "type", err, SL_ERR_UNSUPPORTED, "pre-tokenizer \"%.40s\"",
                            (const char *)type.data);
    st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_array(v, "pretokenizers", SL_JSON_REQUIRED, &list, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++)
        st = load_pre_tokenizer(tok, sl_json_at(list, i), done, err);
    return st;
}

static sl_status load_template_token(sl_tokenizer *tok, sl_json special, sl_json known, bool after,
                                     sl_err *err) {
    const char *name = NULL;
    sl_json entry = {0}, ids = {0};
    sl_status st = sl_json_string(special, "id", SL_JSON_REQUIRED, &name, err);
    if (st == SL_OK) st = sl_json_object(known, name, SL_JSON_REQUIRED, &entry, err);
    if (st == SL_OK) st = sl_json_array(entry, "ids", SL_JSON_REQUIRED, &ids, err);
    size_t *n = after ? &tok->n_after : &tok->n_before;
    uint32_t *to = after ? tok->after : tok->before;
    for (size_t i = 0; st == SL_OK && i < sl_json_count(ids); i++) {
        uint64_t id;
        if (!sl_json_as_u64(sl_json_at(ids, i), &id) || !flags_of(tok, id))
            st = sl_json_fail(ids, NULL, err, SL_ERR_FORMAT, "element %zu is not a token's id", i);
        else if (*n == SL_TOK_MAX_TEMPLATE)
            st = sl_json_fail(ids, NULL, err, SL_ERR_LIMIT, "over %u tokens", SL_TOK_MAX_TEMPLATE);
        else
            to[(*n)++] = (uint32_t)id;
    }
    return st;
}

static sl_status load_template(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "single", "pair", "special_tokens"};
    sl_json single = {0}, known = {0};
    bool seen = false;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_array(v, "single", SL_JSON_REQUIRED, &single, err);
    if (st == SL_OK) st = sl_json_object(v, "special_tokens", SL_JSON_REQUIRED, &known, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(single); i++) {
        sl_json item = sl_json_at(single, i), special = sl_json_get(item, "SpecialToken");
        sl_span id;
        if (special.value) {
            st = load_template_token(tok, special, known, seen, err);
        } else if (!seen &&
                   sl_json_as_span(sl_json_get(sl_json_get(item, "Sequence"), "id"), &id) &&
                   sl_tok_is(id, "A")) {
            seen = true;
        } else {
            st = sl_json_fail(single, NULL, err, SL_ERR_UNSUPPORTED, "element %zu", i);
        }
    }
    if (st == SL_OK && !seen)
        st = sl_json_fail(single, NULL, err, SL_ERR_UNSUPPORTED, "has no Sequence A");
    return st;
}

static sl_status load_post_processor(sl_tokenizer *tok, sl_json v, sl_err *err) {
    sl_span type = {0};
    sl_json list = {0};
    sl_status st = sl_tok_text_field(v, "type", SL_JSON_REQUIRED, &type, err);
    if (st != SL_OK || sl_tok_is(type, "ByteLevel")) return st; /* offsets only */
    if (sl_tok_is(type, "TemplateProcessing") && tok->n_before + tok->n_after == 0)
        return load_template(tok, v, err);
    if (!sl_tok_is(type, "Sequence"))
        return sl_json_fail(v, "type", err, SL_ERR_UNSUPPORTED, "post-processor \"%.40s\"",
                            (const char *)type.data);
    st = sl_json_array(v, "processors", SL_JSON_REQUIRED, &list, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++)
        st = load_post_processor(tok, sl_json_at(list, i), err);
    return st;
}

/* add_bos_token or add_eos_token against the tokens that the post-processor adds. SentencePiece's
 * classes take the setting for the truth, so that false contradicts as well. */
static sl_status check_added(const sl_tokenizer *tok, sl_json config, const char *key, size_t n,
                             sl_err *err) {
    bool adds = n > 0;
    sl_status st = sl_json_bool(config, key, SL_JSON_OPTIONAL, &adds, err);
    if (st == SL_OK && adds && n == 0)
        st = sl_json_fail(config, key, err, SL_ERR_UNSUPPORTED,
                          "true, but the post-processor of tokenizer.json adds none");
    if (st == SL_OK && !adds && n > 0 && tok->spm.on)
        st = sl_json_fail(config, key, err, SL_ERR_UNSUPPORTED,
                          "false, but the post-processor of tokenizer.json adds one");
    return st;
}

/* Settings of tokenizer_config.json that override what tokenizer.json says. */
static sl_status check_config(const sl_tokenizer *tok, sl_json config, bool plain_byte_level,
                              sl_err *err) {
    bool marks = tok->spm.prepends || tok->spm.scheme != SL_TOK_PREPEND_NEVER;
    bool prefixes = tok->spm.on ? marks : tok->prefix_space, prefix = prefixes;
    sl_status st = refuse_set(config, "split_special_tokens", err);
    if (st == SL_OK) st = check_added(tok, config, "add_bos_token", tok->n_before, err);
    if (st == SL_OK) st = check_added(tok, config, "add_eos_token", tok->n_after, err);
    if (st == SL_OK) st = sl_json_bool(config, "add_prefix_space", SL_JSON_OPTIONAL, &prefix, err);
    if (st == SL_OK && (plain_byte_level || tok->spm.on) && prefix != prefixes)
        st = sl_json_fail(config, "add_prefix_space", err, SL_ERR_UNSUPPORTED,
                          "contradicts the %s of tokenizer.json",
                          tok->spm.on ? "normalizer or pre-tokenizer" : "pre-tokenizer");
    return st;
}

/* The decoder tells byte-level tokenizers from SentencePiece's shape. */
static sl_status load_decoder(sl_tokenizer *tok, sl_json root, sl_err *err) {
    sl_json decoder = {0};
    sl_span type = {0};
    sl_status st = sl_json_object(root, "decoder", SL_JSON_REQUIRED, &decoder, err);
    if (st == SL_OK) st = sl_tok_text_field(decoder, "type", SL_JSON_REQUIRED, &type, err);
    if (st != SL_OK || sl_tok_is(type, "ByteLevel")) return st;
    if (sl_tok_is(type, "Sequence")) return sl_tok_spm_decoder(tok, decoder, err);
    return sl_json_fail(decoder, "type", err, SL_ERR_UNSUPPORTED, "decoder \"%.40s\"",
                        (const char *)type.data);
}

/* *plain: there is ByteLevel and nothing else. */
static sl_status load_byte_level_steps(sl_tokenizer *tok, sl_json root, bool *plain, sl_err *err) {
    sl_json pre = {0};
    sl_span type = {0};
    bool byte_level = false;
    sl_status st = sl_json_object(root, "pre_tokenizer", SL_JSON_REQUIRED, &pre, err);
    if (st == SL_OK) st = load_pre_tokenizer(tok, pre, &byte_level, err);
    if (st == SL_OK && !byte_level)
        st = sl_json_fail(pre, NULL, err, SL_ERR_UNSUPPORTED, "has no ByteLevel step");
    if (st == SL_OK) st = sl_tok_text_field(pre, "type", SL_JSON_REQUIRED, &type, err);
    *plain = st == SL_OK && sl_tok_is(type, "ByteLevel");
    return st;
}

static sl_status load_all(sl_tokenizer *tok, sl_json root, sl_json config, sl_err *err) {
    static const char *const keys[] = {"version",        "truncation", "padding",
                                       "added_tokens",   "normalizer", "pre_tokenizer",
                                       "post_processor", "decoder",    "model"};
    sl_json model = {0}, post = {0};
    bool plain = false;
    sl_status st = sl_json_only(root, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = refuse_set(root, "truncation", err);
    if (st == SL_OK) st = refuse_set(root, "padding", err);
    if (st == SL_OK) st = load_decoder(tok, root, err);
    if (st == SL_OK) st = sl_json_object(root, "model", SL_JSON_REQUIRED, &model, err);
    if (st == SL_OK) st = load_model(tok, model, err);
    if (st == SL_OK) st = load_normalizer(tok, root, err);
    sl_json vocab = sl_json_get(model, "vocab");
    if (st == SL_OK) st = load_added_list(tok, root, vocab, err);
    if (st == SL_OK && config.value) st = load_config_added(tok, config, vocab, err);
    if (st == SL_OK) st = build_lexicon(tok, false, &tok->raw, err);
    if (st == SL_OK) st = build_lexicon(tok, true, &tok->normalized, err);
    if (st == SL_OK)
        st = tok->spm.on ? sl_tok_spm_pre_tokenizer(tok, root, err)
                         : load_byte_level_steps(tok, root, &plain, err);
    if (st == SL_OK) st = sl_json_object(root, "post_processor", SL_JSON_OPTIONAL, &post, err);
    if (st == SL_OK && post.value) st = load_post_processor(tok, post, err);
    if (st == SL_OK && config.value) st = check_config(tok, config, plain, err);
    return st;
}

sl_status sl_tok_load(const sl_json_doc *doc, const sl_json_doc *config, sl_tokenizer **out,
                      sl_err *err) {
    sl_tokenizer *tok = sl_alloc(1, sizeof *tok);
    if (!tok) return sl_fail(err, SL_ERR_NOMEM, "tokenizer");
    tok->unk_id = SL_TOK_NONE;
    sl_status st =
        load_all(tok, sl_json_root(doc), config ? sl_json_root(config) : (sl_json){0}, err);
    if (st == SL_OK)
        *out = tok;
    else
        sl_tokenizer_free(tok);
    return st;
}

sl_status sl_tokenizer_parse(const char *name, sl_span tokenizer_json, sl_span config_json,
                             sl_tokenizer **out, sl_err *err) {
    sl_json_doc *doc = NULL, *config = NULL;
    sl_status st = sl_json_parse(name, tokenizer_json, &doc, err);
    if (st == SL_OK && config_json.len) st = sl_json_parse(name, config_json, &config, err);
    if (st == SL_OK) st = sl_tok_load(doc, config, out, err);
    sl_json_doc_free(doc);
    sl_json_doc_free(config);
    return st;
}

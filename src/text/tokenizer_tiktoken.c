/* tiktoken.model, as Kimi-K2 and Moonlight publish it, put into the words of tokenizer.json, so
 * that one loader reads and checks both. The file has a token's bytes in base64 and its rank on
 * each line; the pair whose bytes together have the lowest rank merges first, and the rank is the
 * id.
 *
 * That order needs no other list than one pair for each token. Whatever stands around it, the bytes
 * of a token t are merged as if they were alone, as long as no merge crosses their ends; so the two
 * symbols that become t are those that merging the bytes of t comes to, and since pairs of higher
 * rank than t's wait, merges of lower rank suffice to find them. A token for which they do not has
 * no such pair, and is refused.
 *
 * The folder's own code splits texts by one regular expression and puts 256 special tokens behind
 * the ranks, named by tokenizer_config.json or <|reserved_token_ID|>. It also cuts a text every
 * 400000 characters, and within 25000 characters without a space, which is not done here. */
#include "format/map.h"
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

#define RESERVED 256u
/* Ids behind them that a tokenizer_config.json may name: the published class makes two more. */
#define NAMED     (RESERVED + 2)
#define MAX_TOKEN (SL_TOKENIZER_MAX_PIECE / 2) /* bytes, each up to two in tokenizer.json */

typedef struct reading {
    const char *name;
    sl_span file;
    sl_tokenizer *tok; /* words and merges alone */
    uint32_t n;        /* tokens */
    uint32_t (*half)[2];
    sl_err *err;
} reading;

/* The next line that is not empty, without its end; *at and *line move behind it. */
static bool next_line(sl_span file, size_t *at, size_t *line, sl_span *out) {
    while (*at < file.len) {
        const uint8_t *from = file.data + *at, *lf = memchr(from, '\n', file.len - *at);
        size_t n = lf ? (size_t)(lf - from) : file.len - *at;
        *at += n + (lf != NULL);
        ++*line;
        if (n > 0 && from[n - 1] == '\r') n--;
        *out = (sl_span){from, n};
        if (n > 0) return true;
    }
    return false;
}

static int base64_value(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes of `s` into out, which has room for 3/4 of it. */
static bool base64_decode(sl_span s, uint8_t *out, size_t *out_len) {
    size_t pad = 0;
    if (s.len == 0 || s.len % 4 != 0) return false;
    while (pad < 2 && s.data[s.len - 1 - pad] == '=') pad++;
    *out_len = 0;
    for (size_t i = 0; i < s.len; i += 4) {
        uint32_t bits = 0;
        size_t chars = i + 4 == s.len ? 4 - pad : 4;
        for (size_t j = 0; j < chars; j++) {
            int v = base64_value(s.data[i + j]);
            if (v < 0) return false;
            bits |= (uint32_t)v << (18 - 6 * j);
        }
        for (size_t j = 0; j + 1 < chars; j++) out[(*out_len)++] = (uint8_t)(bits >> (16 - 8 * j));
    }
    return true;
}

/* Decimal digits alone. */
static bool parse_rank(sl_span s, uint64_t *out) {
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9') return false;
        *out = SL_MIN(*out * 10 + (s.data[i] - '0'), (uint64_t)1 << 40);
    }
    return s.len > 0;
}

static sl_status read_line(reading *r, size_t line, sl_span s) {
    sl_tokenizer *tok = r->tok;
    const uint8_t *gap = memchr(s.data, ' ', s.len);
    size_t n = gap ? (size_t)(gap - s.data) : s.len, len;
    uint64_t rank;
    if (!gap || !base64_decode((sl_span){s.data, n}, tok->blob + tok->blob_len, &len))
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: line %zu: \"%.*s\" is not a token in base64",
                       r->name, line, (int)SL_MIN(n, (size_t)40), (const char *)s.data);
    if (len == 0 || len > MAX_TOKEN)
        return sl_fail(r->err, SL_ERR_LIMIT, "%s: line %zu: token of %zu bytes, limit 1..%u",
                       r->name, line, len, MAX_TOKEN);
    sl_span digits = {gap + 1, s.len - n - 1};
    if (!parse_rank(digits, &rank))
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: line %zu: rank \"%.*s\" is not a number",
                       r->name, line, (int)SL_MIN(digits.len, (size_t)40),
                       (const char *)digits.data);
    if (rank >= r->n)
        return sl_fail(r->err, SL_ERR_LIMIT,
                       "%s: line %zu: rank %llu, limit 0..%u: special tokens begin behind as many "
                       "ids as there are lines",
                       r->name, line, (unsigned long long)rank, r->n - 1);
    sl_tok_piece *piece = &tok->pieces[rank];
    if (piece->flags)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: line %zu: rank %llu is used twice", r->name,
                       line, (unsigned long long)rank);
    uint32_t twin = sl_tok_word_find(tok, (sl_span){tok->blob + tok->blob_len, len});
    if (twin != SL_TOK_NONE)
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: line %zu: the token of rank %u again", r->name,
                       line, twin);
    piece->flags = SL_TOK_DEFINED;
    piece->word = (sl_tok_str){(uint32_t)tok->blob_len, (uint32_t)len};
    tok->blob_len += len;
    sl_tok_word_put(tok, (uint32_t)rank);
    return SL_OK;
}

static sl_status read_tokens(reading *r) {
    size_t at = 0, line = 0;
    uint64_t n = 0;
    sl_span s;
    while (next_line(r->file, &at, &line, &s)) n++;
    if (n < 256 || n > SL_TOKENIZER_MAX_IDS - NAMED)
        return sl_fail(r->err, SL_ERR_LIMIT, "%s: %llu tokens, limit 256..%u", r->name,
                       (unsigned long long)n, SL_TOKENIZER_MAX_IDS - NAMED);
    r->n = (uint32_t)n;
    r->tok->blob = sl_alloc(r->file.len, 1);
    r->tok->pieces = sl_alloc(r->n, sizeof *r->tok->pieces);
    r->half = sl_alloc(r->n, sizeof *r->half);
    if (!r->tok->blob || !r->tok->pieces || !r->half)
        return sl_fail(r->err, SL_ERR_NOMEM, "%s: %u tokens", r->name, r->n);
    sl_status st = sl_tok_words_reserve(r->tok, r->n, r->err);
    at = line = 0;
    while (st == SL_OK && next_line(r->file, &at, &line, &s)) st = read_line(r, line, s);
    if (st != SL_OK) return st;
    sl_tok_byte_ids(r->tok);
    for (unsigned b = 0; b < 256; b++)
        if (r->tok->byte_id[b] == SL_TOK_NONE)
            return sl_fail(r->err, SL_ERR_FORMAT, "%s: no token for byte 0x%02X", r->name, b);
    return SL_OK;
}

static sl_status find_merges(reading *r) {
    sl_tok_work w = {0};
    sl_status st = sl_tok_merges_reserve(r->tok, r->n, r->err);
    for (uint32_t id = 0; st == SL_OK && id < r->n; id++) {
        sl_span word = sl_tok_bytes(r->tok, r->tok->pieces[id].word);
        uint32_t *half = r->half[id];
        size_t parts;
        if (word.len < 2) continue;
        st = sl_tok_word_parts(r->tok, &w, word, half, &parts, r->err);
        if (st == SL_OK && parts != 2)
            st = sl_fail(r->err, SL_ERR_UNSUPPORTED,
                         "%s: rank %u: tokens of lower rank make %zu parts of its %zu bytes, not 2",
                         r->name, id, parts, word.len);
        if (st == SL_OK) sl_tok_merge_put(r->tok, (sl_tok_merge){half[0], half[1], id, id});
    }
    sl_tok_work_free(&w);
    return st;
}

/* A token's bytes as the characters that stand for them. */
static void quote_token(const reading *r, sl_tok_text *t, uint32_t id) {
    sl_span word = sl_tok_bytes(r->tok, r->tok->pieces[id].word);
    uint8_t chars[SL_TOKENIZER_MAX_PIECE];
    size_t n = 0;
    for (size_t i = 0; i < word.len; i++) {
        int32_t c = sl_byte_level_char(word.data[i]); /* below U+0144 */
        if (c >= 0x80) chars[n++] = (uint8_t)(0xC0 | c >> 6);
        chars[n++] = (uint8_t)(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    }
    sl_tok_quote(t, (sl_span){chars, n});
}

/* Special tokens: names of tokenizer_config.json, else reserved ones. */
static sl_status write_special(const reading *r, sl_json config, sl_tok_text *t) {
    sl_json map = {0}, v;
    sl_status st = SL_OK;
    void *iter = NULL;
    const char *key;
    if (config.value)
        st = sl_json_object(config, "added_tokens_decoder", SL_JSON_OPTIONAL, &map, r->err);
    while (st == SL_OK && map.value && sl_json_next(map, &iter, &key, &v)) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id < r->n || id >= r->n + NAMED)
            return sl_json_fail(map, key, r->err, SL_ERR_LIMIT,
                                "special tokens have ids %u..%u, behind the %u of tiktoken.model",
                                r->n, r->n + NAMED - 1, r->n);
    }
    for (uint32_t id = r->n; st == SL_OK && id < r->n + NAMED; id++) {
        char digits[16], reserved[40];
        snprintf(digits, sizeof digits, "%u", id);
        int n = snprintf(reserved, sizeof reserved, "<|reserved_token_%u|>", id);
        sl_span content = {(const uint8_t *)reserved, (size_t)n};
        v = map.value ? sl_json_get(map, digits) : (sl_json){0};
        bool special = !v.value;
        if (!v.value && id >= r->n + RESERVED) continue;
        if (v.value) st = sl_tok_text_field(v, "content", SL_JSON_REQUIRED, &content, r->err);
        if (st == SL_OK && v.value)
            st = sl_json_bool(v, "special", SL_JSON_OPTIONAL, &special, r->err);
        sl_tok_say(t, id > r->n ? ",\n{\"id\":" : "{\"id\":");
        sl_tok_number(t, id);
        sl_tok_say(t, ",\"content\":");
        sl_tok_quote(t, content);
        sl_tok_say(t, special ? ",\"special\":true" : ",\"special\":false");
        sl_tok_say(t, ",\"normalized\":false}");
    }
    return st;
}

static sl_status write_all(const reading *r, sl_json config, sl_tok_text *t) {
    sl_tok_say(t, "{\"normalizer\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":"
                  "" SL_TOK_KIMI_STEPS ",\"added_tokens\":[");
    sl_status st = write_special(r, config, t);
    sl_tok_say(t, "],\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{");
    for (uint32_t id = 0; st == SL_OK && id < r->n; id++) {
        sl_tok_say(t, id ? ",\n" : "");
        quote_token(r, t, id);
        sl_tok_say(t, ":");
        sl_tok_number(t, id);
    }
    sl_tok_say(t, "},\"merges\":[");
    bool first = true;
    for (uint32_t id = 0; st == SL_OK && id < r->n; id++) {
        if (r->tok->pieces[id].word.len < 2) continue;
        sl_tok_say(t, first ? "[" : ",\n[");
        first = false;
        quote_token(r, t, r->half[id][0]);
        sl_tok_say(t, ",");
        quote_token(r, t, r->half[id][1]);
        sl_tok_say(t, "]");
    }
    sl_tok_say(t, "]}}");
    if (st == SL_OK && !t->ok) st = sl_fail(r->err, SL_ERR_NOMEM, "%s: %u tokens", r->name, r->n);
    return st;
}

sl_status sl_tiktoken_text(const char *name, sl_span ranks, sl_json config, sl_tok_text *out,
                           sl_err *err) {
    reading r = {.name = name, .file = ranks, .err = err};
    if (ranks.len > SL_TOKENIZER_MAX_FILE)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %zu bytes, limit %u", name, ranks.len,
                       SL_TOKENIZER_MAX_FILE);
    r.tok = sl_alloc(1, sizeof *r.tok);
    if (!r.tok) return sl_fail(err, SL_ERR_NOMEM, "%s", name);
    r.tok->unk_id = SL_TOK_NONE;
    sl_status st = read_tokens(&r);
    if (st == SL_OK) st = find_merges(&r);
    if (st == SL_OK) st = write_all(&r, config, out);
    sl_tokenizer_free(r.tok);
    sl_free(r.half);
    return st;
}

/* Which split a folder's own code would make is known by its class, else by the model's type. */
static sl_status check_kind(const char *folder, sl_json config, sl_err *err) {
    static const char *const types[] = {"kimi_k2", "deepseek_v3"};
    sl_json_doc *doc = NULL;
    sl_span name = {0};
    char path[4096];
    sl_status st = SL_OK;
    if (config.value)
        st = sl_tok_text_field(config, "tokenizer_class", SL_JSON_OPTIONAL, &name, err);
    if (st != SL_OK || sl_tok_is(name, "TikTokenTokenizer")) return st;
    if (name.data)
        return sl_json_fail(config, "tokenizer_class", err, SL_ERR_UNSUPPORTED,
                            "\"%.40s\": of tiktoken.model the class TikTokenTokenizer is read",
                            (const char *)name.data);
    snprintf(path, sizeof path, "%s/config.json", folder);
    st = sl_json_load(path, SL_TOKENIZER_MAX_FILE, &doc, err);
    if (st == SL_ERR_NOTFOUND)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s/tiktoken.model: no tokenizer_class and no config.json says how it splits text",
            folder);
    if (st != SL_OK) return st;
    st = sl_tok_text_field(sl_json_root(doc), "model_type", SL_JSON_REQUIRED, &name, err);
    bool known = false;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(types); i++) known |= sl_tok_is(name, types[i]);
    if (st == SL_OK && !known)
        st = sl_json_fail(sl_json_root(doc), "model_type", err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\": how it splits the text of its tiktoken.model is not known "
                          "(kimi_k2 and deepseek_v3 are, and tokenizer_class TikTokenTokenizer)",
                          (const char *)name.data);
    sl_json_doc_free(doc);
    return st;
}

sl_status sl_tiktoken_open(const char *folder, sl_json config, sl_tok_text *out, sl_err *err) {
    sl_map map = {0};
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/tiktoken.model", folder) >= sizeof path)
        return sl_fail(err, SL_ERR_LIMIT, "%.80s...: path longer than %zu", folder, sizeof path);
    sl_status st = sl_map_open(path, SL_TOKENIZER_MAX_FILE, &map, err);
    if (st != SL_OK) return st;
    st = check_kind(folder, config, err);
    if (st == SL_OK) st = sl_tiktoken_text(path, map.bytes, config, out, err);
    sl_map_close(&map);
    return st;
}

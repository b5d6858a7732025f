/* A tokenizer from the metadata of a GGUF file, put into the words of tokenizer.json, so that one
 * loader reads and checks both. tokenizer.huggingface.json is that text already; else it is written
 * from tokenizer.ggml.*: model gpt2 (byte-level) with the splits of a known tokenizer.ggml.pre, or
 * llama (SentencePiece's shape), whose merges follow from scores. */
#include "text/tokenizer_gguf.h"

#include "base/mem.h"
#include "text/tokenizer_int.h"

#include <stdio.h>
#include <stdlib.h>

#define KEY "tokenizer.ggml."

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

/* Names of tokenizer.ggml.pre and what they mean. */
typedef struct pre_row {
    const char *name, *steps, *normalizer;
    bool ignore_merges, bos;
} pre_row;

#define BYTES_ONLY "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define BYTES_GPT2 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT(digits)                                                                              \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","     \
    "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}" \
    "+|" digits "| "                                                                               \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"                 \
    "\\\\s+\"}}," BYTES_ONLY "]}"
/* Words by their case: o200k. */
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define WORD(upper, lower)                                                                         \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER upper LOWER lower "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define CASED                                                                                      \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","     \
    "\"pattern\":{\"Regex\":\"" WORD("*", "+")                                                     \
        WORD("+", "*") "\\\\p{N}{1,3}| "                                                           \
                       "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/"                                    \
                       "]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}}," BYTES_ONLY "]}"
#define ISOLATED(regex)                                                                            \
    "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" regex "\"}},"
/* Numbers, Chinese and Japanese, then words: DeepSeek-V3. */
#define DEEPSEEK3                                                                                  \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ISOLATED("\\\\p{N}{1,3}")                         \
        ISOLATED("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+") ISOLATED(                           \
            "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}"   \
            "\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|"                \
            "\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+") BYTES_ONLY "]}"
/* Lines, letters that have a case (the ranges as its tokenizer.json spells them), punctuation, the
 * end, Chinese and Korean, digits: DeepSeek-V2. */
#define CASED_LETTERS                                                                              \
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf"                             \
    "\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"                       \
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"                             \
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"                            \
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"                            \
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"                            \
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"                              \
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"                            \
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"                       \
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"                              \
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"                       \
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"                             \
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"                            \
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"                                      \
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"                              \
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
#define DEEPSEEK2                                                                                  \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ISOLATED("[\\r\\n]")                              \
        ISOLATED("\\\\s?[" CASED_LETTERS "]+") ISOLATED(                                           \
            "\\\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+")                 \
            ISOLATED("\\\\s+$") ISOLATED(                                                          \
                "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+") "{\"type\":\"Digits\",\"individual_" \
                                                              "digits\":true}," BYTES_ONLY "]}"
#define LLAMA3 SPLIT("\\\\p{N}{1,3}")
#define NFC    "{\"type\":\"NFC\"}"
#define DIGITS                                                                                     \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}"   \
    "," BYTES_GPT2 "]}"

static const pre_row pres[] = {
    {"gpt-2", BYTES_GPT2, "null", false, false},
    {"qwen2", SPLIT("\\\\p{N}"), NFC, false, false},
    {"deepseek-r1-qwen", SPLIT("\\\\p{N}"), NFC, false, false},
    {"smollm", DIGITS, "null", false, false},
    {"llama-bpe", LLAMA3, "null", true, true},
    {"llama3", LLAMA3, "null", true, true},
    {"llama-v3", LLAMA3, "null", true, true},
    {"dbrx", LLAMA3, "null", false, false},
    {"glm4", LLAMA3, "null", false, false},
    {"chatglm-bpe", LLAMA3, "null", false, false},
    {"olmo", BYTES_GPT2, NFC, false, false},
    {"deepseek-v3", DEEPSEEK3, "null", false, false},
    {"deepseek-llm", DEEPSEEK2, "null", false, false},
    {"kimi-k2", SL_TOK_KIMI_STEPS, "null", true, false},
    {"gpt-4o", CASED, "null", false, false},
    {"llama4", CASED, "null", false, false},
};

/* Two patterns that differ at most in how they write the ends of lines. */
static bool same_pattern(sl_span a, sl_span b) {
    size_t i = 0, j = 0;
    while (i < a.len && j < b.len) {
        int c[2];
        const sl_span s[2] = {a, b};
        size_t *at[2] = {&i, &j};
        for (int k = 0; k < 2; k++) {
            const uint8_t *p = s[k].data + *at[k];
            bool pair = *p == '\\' && *at[k] + 1 < s[k].len;
            c[k] = !pair ? *p : p[1] == 'r' ? '\r' : p[1] == 'n' ? '\n' : 256 + p[1];
            *at[k] += pair ? 2 : 1;
        }
        if (c[0] != c[1]) return false;
    }
    return i == a.len && j == b.len;
}

static bool same_flag(sl_json a, sl_json b, const char *key, bool usual) {
    bool x = usual, y = usual;
    return sl_json_bool(a, key, SL_JSON_OPTIONAL, &x, NULL) == SL_OK &&
           sl_json_bool(b, key, SL_JSON_OPTIONAL, &y, NULL) == SL_OK && x == y;
}

static bool same_text(sl_json a, sl_json b, const char *key) {
    sl_span x = {0}, y = {0};
    return sl_json_as_span(sl_json_get(a, key), &x) && sl_json_as_span(sl_json_get(b, key), &y) &&
           same_pattern(x, y);
}

/* Whether a step of a folder's tokenizer.json does what one of ours does: those that match are kept
 * or, what is the same where all of a text matches, nothing else is. */
static bool same_step(sl_json a, sl_json b) {
    sl_span type = {0}, behavior = {0};
    bool invert = false;
    if (!same_text(a, b, "type") || !sl_json_as_span(sl_json_get(b, "type"), &type)) return false;
    if (sl_tok_is(type, "Digits")) return same_flag(a, b, "individual_digits", false);
    if (sl_tok_is(type, "ByteLevel"))
        return same_flag(a, b, "add_prefix_space", true) && same_flag(a, b, "use_regex", true);
    if (!sl_json_as_span(sl_json_get(a, "behavior"), &behavior) ||
        sl_json_bool(a, "invert", SL_JSON_OPTIONAL, &invert, NULL) != SL_OK)
        return false;
    if (!sl_tok_is(behavior, "Isolated") && !(invert && sl_tok_is(behavior, "Removed")))
        return false;
    return same_text(sl_json_get(a, "pattern"), sl_json_get(b, "pattern"), "Regex");
}

static bool same_steps(sl_json a, sl_json b) {
    sl_json x = sl_json_get(a, "pretokenizers"), y = sl_json_get(b, "pretokenizers");
    bool listed = sl_json_kind_of(y) == SL_JSON_ARRAY;
    if ((sl_json_kind_of(x) == SL_JSON_ARRAY) != listed) return false;
    if (!listed) return same_step(a, b);
    if (sl_json_count(x) != sl_json_count(y)) return false;
    for (size_t i = 0; i < sl_json_count(y); i++)
        if (!same_step(sl_json_at(x, i), sl_json_at(y, i))) return false;
    return true;
}

const char *sl_tokenizer_pre_name(sl_json pre, bool ignores) {
    const char *found = NULL;
    for (size_t i = 0; i < SL_LEN(pres); i++) {
        sl_json_doc *doc = NULL;
        sl_span text = {(const uint8_t *)pres[i].steps, strlen(pres[i].steps)};
        bool same = sl_json_parse(pres[i].name, text, &doc, NULL) == SL_OK &&
                    same_steps(pre, sl_json_root(doc));
        sl_json_doc_free(doc);
        if (same && pres[i].ignore_merges == ignores) return pres[i].name;
        if (same && !found) found = pres[i].name;
    }
    return found;
}

typedef struct token {
    sl_span text;
    uint32_t id, type;
    float score;
} token;

typedef struct reading {
    const sl_gguf *g;
    token *tokens;
    size_t n;
    token **sorted; /* words of SentencePiece's shape, by text */
    size_t n_sorted;
    sl_tok_text out;
    sl_err *err;
} reading;

/* left and right make `whole`. */
typedef struct merge {
    const token *whole, *left, *right;
} merge;

static sl_status read_tokens(reading *r, bool scored) {
    const sl_gguf_kv *list = NULL, *types = NULL, *scores = NULL;
    sl_status st = sl_gguf_strings(r->g, KEY "tokens", SL_GGUF_REQUIRED, &list, r->err);
    if (st == SL_OK) st = sl_gguf_numbers(r->g, KEY "token_type", SL_GGUF_OPTIONAL, &types, r->err);
    if (st == SL_OK && scored)
        st = sl_gguf_numbers(r->g, KEY "scores", SL_GGUF_REQUIRED, &scores, r->err);
    if (st != SL_OK) return st;
    if (list->count == 0 || list->count > SL_TOKENIZER_MAX_IDS)
        return sl_gguf_fail(r->g, KEY "tokens", r->err, SL_ERR_LIMIT, "%llu tokens, limit 1 to %u",
                            (unsigned long long)list->count, SL_TOKENIZER_MAX_IDS);
    if ((types && types->count != list->count) || (scores && scores->count != list->count))
        return sl_gguf_fail(r->g, KEY "tokens", r->err, SL_ERR_FORMAT,
                            "%llu tokens, but another number of types or scores",
                            (unsigned long long)list->count);
    r->tokens = sl_alloc((size_t)list->count, sizeof *r->tokens);
    if (!r->tokens)
        return sl_fail(r->err, SL_ERR_NOMEM, "%llu tokens", (unsigned long long)list->count);
    size_t at = 0;
    for (sl_span s; r->n < list->count && sl_gguf_next_string(list, &at, &s); r->n++) {
        double type = types ? sl_gguf_number_at(types, r->n) : TYPE_NORMAL;
        r->tokens[r->n] = (token){.text = s, .id = (uint32_t)r->n};
        if (!(type >= TYPE_NORMAL && type <= TYPE_BYTE))
            return sl_gguf_fail(r->g, KEY "token_type", r->err, SL_ERR_FORMAT,
                                "token %zu has type %g, limit 1 to 6", r->n, type);
        r->tokens[r->n].type = (uint32_t)type;
        if (scores) r->tokens[r->n].score = (float)sl_gguf_number_at(scores, r->n);
    }
    return SL_OK;
}

/* Words, and with `added` the tokens that are looked for before anything is split. */
static void write_vocabulary(reading *r, bool added) {
    bool first = true;
    for (size_t i = 0; i < r->n; i++) {
        const token *t = &r->tokens[i];
        bool control = t->type == TYPE_CONTROL;
        bool special = control || t->type == TYPE_UNKNOWN; /* so written, it is meant */
        bool is_added = special || t->type == TYPE_USER;
        /* Were a control token a word, text could spell it. */
        if (t->type == TYPE_UNUSED || (added ? !is_added : control)) continue;
        sl_tok_say(&r->out, first ? "" : ",\n");
        first = false;
        if (added) {
            sl_tok_say(&r->out, "{\"id\":");
            sl_tok_number(&r->out, i);
            sl_tok_say(&r->out, ",\"content\":");
            sl_tok_quote(&r->out, t->text);
            sl_tok_say(&r->out, special ? ",\"special\":true" : ",\"special\":false");
            sl_tok_say(&r->out, ",\"normalized\":false}");
        } else {
            sl_tok_quote(&r->out, t->text);
            sl_tok_say(&r->out, ":");
            sl_tok_number(&r->out, i);
        }
    }
}

/* tokenizer.ggml.merges as it is. */
static sl_status write_merges(reading *r, const sl_gguf_kv *list) {
    size_t at = 0;
    bool first = true;
    for (sl_span s; sl_gguf_next_string(list, &at, &s); first = false) {
        sl_tok_say(&r->out, first ? "" : ",\n");
        sl_tok_quote(&r->out, s);
    }
    return SL_OK;
}

static int by_text(const void *a, const void *b) {
    const token *x = *(token *const *)a, *y = *(token *const *)b;
    int c = memcmp(x->text.data, y->text.data, SL_MIN(x->text.len, y->text.len));
    return c ? c : x->text.len < y->text.len ? -1 : x->text.len > y->text.len;
}

static const token *word_of(const reading *r, sl_span s) {
    token key = {.text = s}, *p = &key;
    token **found = bsearch(&p, r->sorted, r->n_sorted, sizeof *r->sorted, by_text);
    return found ? *found : NULL;
}

/* Best score first; among pairs of one token, as conversions of SentencePiece's models to
 * tokenizer.json have them. */
static int by_score(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->whole->score != y->whole->score) return x->whole->score > y->whole->score ? -1 : 1;
    if (x->whole != y->whole) return x->whole->id < y->whole->id ? -1 : 1;
    if (x->left != y->left) return x->left->id < y->left->id ? -1 : 1;
    return x->right->id < y->right->id ? -1 : x->right->id > y->right->id;
}

/* Every pair of words that makes a word. Fills m, or only counts when it is NULL. */
static size_t find_merges(const reading *r, merge *m) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_sorted; i++) {
        sl_span s = r->sorted[i]->text;
        if (r->sorted[i]->type != TYPE_NORMAL || s.len > SL_TOKENIZER_MAX_PIECE) continue;
        for (size_t at = 1; at < s.len; at++) {
            if ((s.data[at] & 0xc0) == 0x80) continue;
            const token *left = word_of(r, (sl_span){s.data, at});
            const token *right = left ? word_of(r, (sl_span){s.data + at, s.len - at}) : NULL;
            if (!right) continue;
            if (m) m[n] = (merge){r->sorted[i], left, right};
            n++;
        }
    }
    return n;
}

static sl_status write_scored_merges(reading *r) {
    merge *m = NULL;
    sl_status st = SL_OK;
    r->sorted = sl_alloc(r->n, sizeof *r->sorted);
    if (!r->sorted) return sl_fail(r->err, SL_ERR_NOMEM, "%zu tokens", r->n);
    for (size_t i = 0; i < r->n; i++)
        if (r->tokens[i].type == TYPE_NORMAL || r->tokens[i].type == TYPE_USER)
            r->sorted[r->n_sorted++] = &r->tokens[i];
    qsort(r->sorted, r->n_sorted, sizeof *r->sorted, by_text);
    size_t n = find_merges(r, NULL);
    if (n > SL_TOKENIZER_MAX_IDS)
        return sl_gguf_fail(r->g, KEY "tokens", r->err, SL_ERR_LIMIT,
                            "%zu pairs of tokens make a token, limit %u", n, SL_TOKENIZER_MAX_IDS);
    m = sl_alloc(n, sizeof *m);
    if (!m) return sl_fail(r->err, SL_ERR_NOMEM, "%zu merges", n);
    (void)find_merges(r, m);
    qsort(m, n, sizeof *m, by_score);
    for (size_t i = 0; i < n; i++) {
        sl_tok_say(&r->out, i ? ",\n[" : "[");
        sl_tok_quote(&r->out, m[i].left->text);
        sl_tok_say(&r->out, ",");
        sl_tok_quote(&r->out, m[i].right->text);
        sl_tok_say(&r->out, "]");
    }
    sl_free(m);
    return st;
}

/* The token that tokenizer.ggml.NAME_token_id names, or NULL. */
static sl_status special_token(reading *r, const char *key, const token **out) {
    uint64_t none = UINT64_MAX, id = none;
    *out = NULL;
    sl_status st = sl_gguf_u64(r->g, key, SL_GGUF_OPTIONAL, 0, UINT32_MAX, &id, r->err);
    if (st != SL_OK || id == none) return st;
    if (id >= r->n)
        return sl_gguf_fail(r->g, key, r->err, SL_ERR_LIMIT, "%llu, limit 0 to %zu",
                            (unsigned long long)id, r->n - 1);
    *out = &r->tokens[id];
    return SL_OK;
}

static void write_template_token(reading *r, const token *t) {
    sl_tok_say(&r->out, "{\"SpecialToken\":{\"id\":");
    sl_tok_quote(&r->out, t->text);
    sl_tok_say(&r->out, ",\"type_id\":0}}");
}

static void write_template_id(reading *r, const token *t) {
    sl_tok_quote(&r->out, t->text);
    sl_tok_say(&r->out, ":{\"ids\":[");
    sl_tok_number(&r->out, t->id);
    sl_tok_say(&r->out, "]}");
}

/* What is put around a text. */
static sl_status write_template(reading *r, bool bos, bool eos) {
    const token *before = NULL, *after = NULL;
    sl_status st = sl_gguf_bool(r->g, KEY "add_bos_token", SL_GGUF_OPTIONAL, &bos, r->err);
    if (st == SL_OK) st = sl_gguf_bool(r->g, KEY "add_eos_token", SL_GGUF_OPTIONAL, &eos, r->err);
    if (st == SL_OK && bos) st = special_token(r, KEY "bos_token_id", &before);
    if (st == SL_OK && eos) st = special_token(r, KEY "eos_token_id", &after);
    if (st == SL_OK && ((bos && !before) || (eos && !after)))
        st = sl_gguf_fail(r->g, bos && !before ? KEY "bos_token_id" : KEY "eos_token_id", r->err,
                          SL_ERR_FORMAT, "missing, and the token is to be added to every text");
    if (st != SL_OK || (!before && !after)) return st;
    sl_tok_say(&r->out, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (before) write_template_token(r, before);
    sl_tok_say(&r->out,
               before ? ",{\"Sequence\":{\"id\":\"A\"}}" : "{\"Sequence\":{\"id\":\"A\"}}");
    if (after) {
        sl_tok_say(&r->out, ",");
        write_template_token(r, after);
    }
    sl_tok_say(&r->out, "],\"special_tokens\":{");
    if (before) write_template_id(r, before);
    if (before && after && before != after) sl_tok_say(&r->out, ",");
    if (after && before != after) write_template_id(r, after);
    sl_tok_say(&r->out, "}}");
    return SL_OK;
}

static sl_status find_pre(reading *r, const pre_row **out) {
    sl_span name = {0};
    sl_status st = sl_gguf_string(r->g, KEY "pre", SL_GGUF_REQUIRED, &name, r->err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(pres); i++)
        if (sl_tok_is(name, pres[i].name)) {
            *out = &pres[i];
            return SL_OK;
        }
    if (st != SL_OK) return st;
    return sl_gguf_fail(
        r->g, KEY "pre", r->err, SL_ERR_UNSUPPORTED, "\"%.*s\" is not supported (supported: %s)",
        (int)SL_MIN(name.len, (size_t)40), (const char *)name.data, SL_TOKENIZER_PRES);
}

static sl_status write_byte_level(reading *r) {
    const pre_row *pre = NULL;
    const sl_gguf_kv *merges = NULL;
    bool prefix = false;
    sl_status st = find_pre(r, &pre);
    if (st == SL_OK)
        st = sl_gguf_bool(r->g, KEY "add_space_prefix", SL_GGUF_OPTIONAL, &prefix, r->err);
    if (st == SL_OK && prefix)
        st = sl_gguf_fail(r->g, KEY "add_space_prefix", r->err, SL_ERR_UNSUPPORTED,
                          "true is not supported for byte-level tokenizers");
    if (st == SL_OK) st = sl_gguf_strings(r->g, KEY "merges", SL_GGUF_REQUIRED, &merges, r->err);
    if (st == SL_OK) st = read_tokens(r, false);
    if (st != SL_OK) return st;
    sl_tok_say(&r->out, "{\"normalizer\":");
    sl_tok_say(&r->out, pre->normalizer);
    sl_tok_say(&r->out, ",\"pre_tokenizer\":");
    sl_tok_say(&r->out, pre->steps);
    sl_tok_say(&r->out, ",\"decoder\":{\"type\":\"ByteLevel\"}");
    st = write_template(r, pre->bos, false);
    sl_tok_say(&r->out, pre->ignore_merges ? ",\"model\":{\"ignore_merges\":true,\"vocab\":{"
                                           : ",\"model\":{\"vocab\":{");
    write_vocabulary(r, false);
    sl_tok_say(&r->out, "},\"merges\":[");
    return st == SL_OK ? write_merges(r, merges) : st;
}

#define TO_MARK                                                                                    \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SL_TOK_MARK "\"}"
#define FROM_MARK                                                                                  \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SL_TOK_MARK "\"},\"content\":\" \"}"

static sl_status write_sentencepiece(reading *r) {
    const sl_gguf_kv *merges = NULL;
    const token *unknown = NULL;
    bool prefix = true;
    sl_status st = sl_gguf_bool(r->g, KEY "add_space_prefix", SL_GGUF_OPTIONAL, &prefix, r->err);
    if (st == SL_OK) st = sl_gguf_strings(r->g, KEY "merges", SL_GGUF_OPTIONAL, &merges, r->err);
    if (st == SL_OK) st = read_tokens(r, !merges);
    if (st == SL_OK) st = special_token(r, KEY "unknown_token_id", &unknown);
    for (size_t i = 0; st == SL_OK && !unknown && i < r->n; i++)
        if (r->tokens[i].type == TYPE_UNKNOWN) unknown = &r->tokens[i];
    if (unknown && unknown->type == TYPE_CONTROL) unknown = NULL; /* no word can be it */
    if (st != SL_OK) return st;
    sl_tok_say(&r->out, "{\"normalizer\":");
    sl_tok_say(&r->out, prefix ? "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                                 "\"prepend\":\"" SL_TOK_MARK "\"}," TO_MARK "]}"
                               : TO_MARK);
    sl_tok_say(&r->out, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" FROM_MARK
                        ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix)
        sl_tok_say(&r->out, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    sl_tok_say(&r->out, "]}");
    st = write_template(r, true, false);
    sl_tok_say(&r->out, ",\"model\":{\"byte_fallback\":true,\"fuse_unk\":true,");
    if (unknown) {
        sl_tok_say(&r->out, "\"unk_token\":");
        sl_tok_quote(&r->out, unknown->text);
        sl_tok_say(&r->out, ",");
    }
    sl_tok_say(&r->out, "\"vocab\":{");
    write_vocabulary(r, false);
    sl_tok_say(&r->out, "},\"merges\":[");
    if (st != SL_OK) return st;
    return merges ? write_merges(r, merges) : write_scored_merges(r);
}

static sl_status parse(const sl_gguf *g, sl_span json, sl_tokenizer **out, sl_err *err) {
    char name[4096];
    snprintf(name, sizeof name, "%s: tokenizer", sl_gguf_path(g));
    if (json.len > SL_TOKENIZER_MAX_FILE)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %zu bytes of vocabulary, limit %u", name, json.len,
                       SL_TOKENIZER_MAX_FILE);
    return sl_tokenizer_parse(name, json, (sl_span){0}, out, err);
}

/* Tokens of fill-in-the-middle, each by the keys that it has had. */
static sl_status read_fim(const sl_gguf *g, sl_tokenizer *tok, sl_err *err) {
    static const char *const keys[SL_TOK_FIM_N][2] = {
        [SL_TOK_FIM_PREFIX] = {KEY "fim_pre_token_id", KEY "prefix_token_id"},
        [SL_TOK_FIM_SUFFIX] = {KEY "fim_suf_token_id", KEY "suffix_token_id"},
        [SL_TOK_FIM_MIDDLE] = {KEY "fim_mid_token_id", KEY "middle_token_id"},
        [SL_TOK_FIM_PAD] = {KEY "fim_pad_token_id"},
        [SL_TOK_FIM_REPO] = {KEY "fim_rep_token_id"},
        [SL_TOK_FIM_FILE] = {KEY "fim_sep_token_id"},
    };
    for (size_t i = 0; i < SL_TOK_FIM_N; i++) {
        tok->fim[i] = SL_TOK_NONE;
        for (size_t k = 0; k < SL_LEN(keys[i]) && keys[i][k]; k++) {
            uint64_t id = UINT64_MAX;
            sl_status st = sl_gguf_u64(g, keys[i][k], SL_GGUF_OPTIONAL, 0, UINT32_MAX, &id, err);
            if (st != SL_OK) return st;
            if (id == UINT64_MAX || tok->fim[i] != SL_TOK_NONE) continue;
            if (id >= tok->n_ids)
                return sl_gguf_fail(g, keys[i][k], err, SL_ERR_LIMIT, "%llu, limit 0 to %zu",
                                    (unsigned long long)id, tok->n_ids - 1);
            tok->fim[i] = (uint32_t)id;
            tok->has_fim = true;
        }
    }
    return SL_OK;
}

static sl_status parse_with_fim(const sl_gguf *g, sl_span json, sl_tokenizer **out, sl_err *err) {
    sl_tokenizer *tok = NULL;
    sl_status st = parse(g, json, &tok, err);
    if (st == SL_OK) st = read_fim(g, tok, err);
    if (st == SL_OK)
        *out = tok;
    else
        sl_tokenizer_free(tok);
    return st;
}

sl_status sl_tokenizer_from_gguf(const sl_gguf *g, sl_tokenizer **out, sl_err *err) {
    sl_span model = {0}, whole = {0};
    reading r = {.g = g, .out = {.ok = true}, .err = err};
    sl_status st = sl_gguf_string(g, "tokenizer.huggingface.json", SL_GGUF_OPTIONAL, &whole, err);
    if (st != SL_OK || whole.len) return st == SL_OK ? parse_with_fim(g, whole, out, err) : st;
    st = sl_gguf_string(g, KEY "model", SL_GGUF_REQUIRED, &model, err);
    if (st != SL_OK) return st;
    if (sl_tok_is(model, "gpt2"))
        st = write_byte_level(&r);
    else if (sl_tok_is(model, "llama"))
        st = write_sentencepiece(&r);
    else
        st = sl_gguf_fail(g, KEY "model", err, SL_ERR_UNSUPPORTED,
                          "\"%.*s\" is not supported (supported: gpt2, llama)",
                          (int)SL_MIN(model.len, (size_t)40), (const char *)model.data);
    if (st == SL_OK) {
        sl_tok_say(&r.out, "]},\"added_tokens\":[");
        write_vocabulary(&r, true);
        sl_tok_say(&r.out, "]}");
        const sl_span json = {(const uint8_t *)r.out.data, r.out.len};
        st = r.out.ok ? parse_with_fim(g, json, out, err)
                      : sl_fail(err, SL_ERR_NOMEM, "%s: tokenizer", sl_gguf_path(g));
    }
    sl_free(r.tokens);
    sl_free(r.sorted);
    sl_free(r.out.data);
    return st;
}

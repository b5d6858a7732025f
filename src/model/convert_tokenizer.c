/* tokenizer.json (or tiktoken.model in its words), tokenizer_config.json and a chat template as
 * keys of a GGUF file. */
#include "format/map.h"
#include "model/convert_int.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_int.h"

#include <stdio.h>
#include <stdlib.h>

#define KEY "tokenizer.ggml."

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct entry {
    sl_span text;
    uint32_t type;
    float score;
} entry;

typedef struct writing {
    const sl_model_spec *spec;
    sl_gguf_out *w;
    sl_tokenizer *tok; /* checked by the loader: what is here is known */
    sl_json root, config;
    sl_span whole; /* the text of tokenizer.json */
    entry *entry;
    uint32_t n;
    bool extra; /* tokenizer_config.json has tokens of its own */
    char (*unused)[20];
    sl_err *err;
} writing;

static sl_span text_of(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static uint32_t added_type(sl_json v) {
    bool special = false;
    sl_status st = sl_json_bool(v, "special", SL_JSON_OPTIONAL, &special, NULL);
    return st == SL_OK && special ? TYPE_CONTROL : TYPE_USER;
}

static void name(writing *x, uint64_t id, sl_span text, uint32_t type) {
    if (id < x->n) x->entry[id] = (entry){.text = text, .type = type, .score = -1e6f};
}

/* Texts and kinds of all ids; ids without a token get a name that no text has. */
static sl_status list_tokens(writing *x) {
    sl_json vocab = sl_json_get(sl_json_get(x->root, "model"), "vocab"), v;
    sl_json added = sl_json_get(x->root, "added_tokens");
    sl_json extra = sl_json_get(x->config, "added_tokens_decoder");
    void *iter = NULL;
    const char *key;
    sl_span text;
    uint64_t id;
    x->n = SL_MAX(x->spec->vocab, sl_tokenizer_vocab_size(x->tok));
    if (x->n > x->spec->vocab)
        return sl_json_fail(vocab, NULL, x->err, SL_ERR_UNSUPPORTED,
                            "%u ids, but the embedding has %u rows", x->n, x->spec->vocab);
    x->entry = sl_alloc(x->n, sizeof *x->entry);
    x->unused = sl_alloc(x->n, sizeof *x->unused);
    if (!x->entry || !x->unused) return sl_fail(x->err, SL_ERR_NOMEM, "%u tokens", x->n);
    for (uint32_t i = 0; i < x->n; i++) {
        snprintf(x->unused[i], sizeof x->unused[i], "[PAD%u]", i);
        name(x, i, text_of(x->unused[i]), TYPE_UNUSED);
    }
    while (sl_json_next(vocab, &iter, &key, &v))
        if (sl_json_as_u64(v, &id)) name(x, id, text_of(key), TYPE_NORMAL);
    for (size_t i = 0; i < sl_json_count(added); i++) {
        v = sl_json_at(added, i);
        if (sl_json_as_u64(sl_json_get(v, "id"), &id) &&
            sl_json_as_span(sl_json_get(v, "content"), &text))
            name(x, id, text, added_type(v));
    }
    iter = NULL;
    while (sl_json_next(extra, &iter, &key, &v)) {
        id = strtoull(key, NULL, 10);
        if (id >= x->n || x->entry[id].type != TYPE_UNUSED) continue;
        if (!sl_json_as_span(sl_json_get(v, "content"), &text)) continue;
        name(x, id, text, added_type(v));
        x->extra = true;
    }
    return SL_OK;
}

/* A merge "a b" or ["a", "b"] as one text; in SentencePiece's shape its rank becomes a score. */
static sl_status put_merges(writing *x) {
    sl_json merges = sl_json_get(sl_json_get(x->root, "model"), "merges");
    size_t n = sl_json_count(merges);
    sl_gguf_out_array(x->w, KEY "merges", SL_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        char joined[2 * SL_TOKENIZER_MAX_PIECE + 2];
        sl_json m = sl_json_at(merges, i);
        sl_span s = {0}, side[2] = {{0}};
        if (!sl_json_as_span(m, &s)) {
            for (size_t j = 0; j < 2; j++)
                if (!sl_json_as_span(sl_json_at(m, j), &side[j]) ||
                    side[j].len > SL_TOKENIZER_MAX_PIECE || memchr(side[j].data, ' ', side[j].len))
                    return sl_json_fail(merges, NULL, x->err, SL_ERR_UNSUPPORTED,
                                        "merge %zu has a space or over %u bytes", i,
                                        SL_TOKENIZER_MAX_PIECE);
            s = (sl_span){(const uint8_t *)joined,
                          (size_t)snprintf(joined, sizeof joined, "%s %s",
                                           (const char *)side[0].data, (const char *)side[1].data)};
        }
        sl_gguf_out_item(x->w, s);
    }
    return SL_OK;
}

/* The first merge that makes a token ranks it. */
static void score_tokens(writing *x) {
    for (size_t slot = 0; slot < x->tok->merge_slots; slot++) {
        const sl_tok_merge *m = &x->tok->merges[slot];
        if (m->id == SL_TOK_NONE || m->id >= x->n) continue;
        float score = -(float)m->rank - 1;
        if (score > x->entry[m->id].score) x->entry[m->id].score = score;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        entry *e = &x->entry[i];
        bool byte = e->type == TYPE_NORMAL && e->text.len == 6 &&
                    memcmp(e->text.data, "<0x", 3) == 0 && e->text.data[5] == '>';
        if (byte) e->type = TYPE_BYTE;
        if (i == x->tok->unk_id) e->type = TYPE_UNKNOWN;
        if (e->type != TYPE_NORMAL) e->score = 0;
    }
}

static sl_status put_kind(writing *x) {
    const sl_tok_spm *spm = &x->tok->spm;
    sl_json pre = sl_json_get(x->root, "pre_tokenizer");
    if (spm->on) {
        bool prefix = spm->prepends || spm->scheme != SL_TOK_PREPEND_NEVER;
        sl_gguf_out_string(x->w, KEY "model", text_of("llama"));
        sl_gguf_out_string(x->w, KEY "pre", text_of("default"));
        sl_gguf_out_bool(x->w, KEY "add_space_prefix", prefix);
        score_tokens(x);
        return SL_OK;
    }
    const char *name_of_pre = sl_tokenizer_pre_name(pre, x->tok->ignore_merges);
    if (!name_of_pre)
        return sl_json_fail(pre, NULL, x->err, SL_ERR_UNSUPPORTED,
                            "these steps have no name in GGUF (known: %s)", SL_TOKENIZER_PRES);
    sl_gguf_out_string(x->w, KEY "model", text_of("gpt2"));
    sl_gguf_out_string(x->w, KEY "pre", text_of(name_of_pre));
    return SL_OK;
}

static void put_tokens(writing *x) {
    sl_gguf_out_array(x->w, KEY "tokens", SL_GGUF_STRING, x->n);
    for (uint32_t i = 0; i < x->n; i++) sl_gguf_out_item(x->w, x->entry[i].text);
    sl_gguf_out_array(x->w, KEY "token_type", SL_GGUF_I32, x->n);
    for (uint32_t i = 0; i < x->n; i++) sl_gguf_out_item32(x->w, x->entry[i].type);
    if (!x->tok->spm.on) return;
    sl_gguf_out_array(x->w, KEY "scores", SL_GGUF_F32, x->n);
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t bits;
        memcpy(&bits, &x->entry[i].score, sizeof bits);
        sl_gguf_out_item32(x->w, bits);
    }
}

static void put_special(writing *x) {
    const sl_model_spec *s = x->spec;
    const sl_tokenizer *tok = x->tok;
    int64_t bos = tok->n_before ? (int64_t)tok->before[0] : s->bos;
    if (bos >= 0) sl_gguf_out_u32(x->w, KEY "bos_token_id", (uint32_t)bos);
    if (s->n_eos) sl_gguf_out_u32(x->w, KEY "eos_token_id", s->eos[0]);
    if (tok->unk_id != SL_TOK_NONE) sl_gguf_out_u32(x->w, KEY "unknown_token_id", tok->unk_id);
    sl_gguf_out_bool(x->w, KEY "add_bos_token", tok->n_before > 0);
    sl_gguf_out_bool(x->w, KEY "add_eos_token", tok->n_after > 0);
    sl_gguf_out_array(x->w, "sluice.eos_token_ids", SL_GGUF_U32, s->n_eos);
    for (uint32_t i = 0; i < s->n_eos; i++) sl_gguf_out_item32(x->w, s->eos[i]);
}

static sl_status put_template(writing *x, const char *folder) {
    char path[4096];
    sl_map map = {0};
    sl_span text;
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    sl_status st = sl_map_open(path, 1u << 20, &map, x->err);
    if (st == SL_OK)
        sl_gguf_out_string(x->w, "tokenizer.chat_template", map.bytes);
    else if (sl_json_as_span(sl_json_get(x->config, "chat_template"), &text))
        sl_gguf_out_string(x->w, "tokenizer.chat_template", text);
    sl_map_close(&map);
    return st == SL_ERR_NOTFOUND ? SL_OK : st;
}

static sl_status put_all(writing *x, const char *folder) {
    sl_status st = list_tokens(x);
    if (st == SL_OK) st = put_kind(x);
    if (st != SL_OK) return st;
    put_tokens(x);
    st = put_merges(x);
    put_special(x);
    /* Tokens of tokenizer_config.json are not in the text of tokenizer.json. */
    if (!x->extra) sl_gguf_out_string(x->w, "tokenizer.huggingface.json", x->whole);
    return st == SL_OK ? put_template(x, folder) : st;
}

sl_status sl_convert_tokenizer(const char *folder, const sl_model_spec *spec, sl_gguf_out *w,
                               sl_err *err) {
    sl_json_doc *doc = NULL, *config = NULL;
    sl_map map = {0};
    sl_tok_text text = {.ok = true};
    char path[4096];
    writing x = {.spec = spec, .w = w, .err = err};
    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder) >= sizeof path)
        return sl_fail(err, SL_ERR_LIMIT, "%.80s...: path longer than %zu", folder, sizeof path);
    sl_status st = sl_tokenizer_open(folder, &x.tok, err);
    if (st == SL_OK) st = sl_json_load(path, SL_TOKENIZER_MAX_FILE, &config, err);
    if (st == SL_ERR_NOTFOUND && x.tok) st = SL_OK;
    if (config) x.config = sl_json_root(config);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (st == SL_OK) st = sl_map_open(path, SL_TOKENIZER_MAX_FILE, &map, err);
    if (st == SL_OK) x.whole = map.bytes;
    if (st == SL_ERR_NOTFOUND && x.tok) {
        st = sl_tiktoken_open(folder, x.config, &text, err);
        x.whole = (sl_span){(const uint8_t *)text.data, text.len};
    }
    if (st == SL_OK) st = sl_json_parse(path, x.whole, &doc, err);
    if (st == SL_OK) {
        x.root = sl_json_root(doc);
        st = put_all(&x, folder);
    }
    sl_map_close(&map);
    sl_free(text.data);
    sl_json_doc_free(doc);
    sl_json_doc_free(config);
    sl_tokenizer_free(x.tok);
    sl_free(x.entry);
    sl_free(x.unused);
    return st;
}

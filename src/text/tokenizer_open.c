/* Whose tokenizer it is: tokenizer.json, tiktoken.model or a GGUF file. */
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>

static sl_status open_gguf(const char *path, sl_tokenizer **out, sl_err *err) {
    sl_gguf *g = NULL;
    sl_status st = sl_gguf_open(path, &g, err);
    if (st == SL_OK) st = sl_tokenizer_from_gguf(g, out, err);
    sl_gguf_close(g);
    return st;
}

static sl_status load_text(const char *name, const sl_tok_text *text, const sl_json_doc *config,
                           sl_tokenizer **out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_span json = {(const uint8_t *)text->data, text->len};
    sl_status st = sl_json_parse(name, json, &doc, err);
    if (st == SL_OK) st = sl_tok_load(doc, config, out, err);
    sl_json_doc_free(doc);
    return st;
}

static sl_status open_tiktoken(const char *folder, const sl_json_doc *config, sl_tokenizer **out,
                               sl_err *err) {
    sl_tok_text text = {.ok = true};
    char path[4096];
    sl_status st =
        sl_tiktoken_open(folder, config ? sl_json_root(config) : (sl_json){0}, &text, err);
    if (st == SL_ERR_NOTFOUND)
        return sl_fail(err, st, "%s: has neither tokenizer.json nor tiktoken.model", folder);
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    if (st == SL_OK) st = load_text(path, &text, config, out, err);
    sl_free(text.data);
    return st;
}

sl_status sl_tokenizer_open(const char *folder, sl_tokenizer **out, sl_err *err) {
    if (sl_gguf_is(folder)) return open_gguf(folder, out, err);
    sl_json_doc *doc = NULL, *config = NULL;
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder) >= sizeof path)
        return sl_fail(err, SL_ERR_LIMIT, "%.80s...: path longer than %zu", folder, sizeof path);
    sl_status st = sl_json_load(path, SL_TOKENIZER_MAX_FILE, &config, err);
    if (st != SL_OK && st != SL_ERR_NOTFOUND) goto out;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    st = sl_json_load(path, SL_TOKENIZER_MAX_FILE, &doc, err);
    if (st == SL_OK) st = sl_tok_load(doc, config, out, err);
    if (st == SL_ERR_NOTFOUND) st = open_tiktoken(folder, config, out, err);
out:
    sl_json_doc_free(doc);
    sl_json_doc_free(config);
    return st;
}

sl_status sl_tokenizer_parse_tiktoken(const char *name, sl_span ranks, sl_span config_json,
                                      sl_tokenizer **out, sl_err *err) {
    sl_json_doc *config = NULL;
    sl_tok_text text = {.ok = true};
    sl_status st = SL_OK;
    if (config_json.len) st = sl_json_parse(name, config_json, &config, err);
    if (st == SL_OK)
        st =
            sl_tiktoken_text(name, ranks, config ? sl_json_root(config) : (sl_json){0}, &text, err);
    if (st == SL_OK) st = load_text(name, &text, config, out, err);
    sl_free(text.data);
    sl_json_doc_free(config);
    return st;
}

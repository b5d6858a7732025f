/* SentencePiece's shape of a tokenizer (Kudo and Richardson, arXiv:1808.06226) as converted to
 * tokenizer.json: marks for spaces, byte tokens for characters outside the vocabulary. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdio.h>

static const sl_span mark = {(const uint8_t *)SL_TOK_MARK, SL_TOK_MARK_LEN};

/* A string field that can only be `want`. */
static sl_status expect(sl_json obj, const char *key, const char *want, sl_err *err) {
    sl_span have = {0};
    sl_status st = sl_tok_text_field(obj, key, SL_JSON_REQUIRED, &have, err);
    if (st == SL_OK && !sl_tok_is(have, want))
        st = sl_json_fail(obj, key, err, SL_ERR_UNSUPPORTED, "\"%.40s\", not \"%s\"",
                          (const char *)have.data, want);
    return st;
}

/* {"type":"Replace","pattern":{"String":from},"content":to} */
static sl_status expect_replace(sl_json v, const char *from, const char *to, sl_err *err) {
    static const char *const keys[] = {"type", "pattern", "content"};
    static const char *const kinds[] = {"String"};
    sl_json pattern = {0};
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_object(v, "pattern", SL_JSON_REQUIRED, &pattern, err);
    if (st == SL_OK) st = sl_json_only(pattern, kinds, SL_LEN(kinds), err);
    if (st == SL_OK) st = expect(pattern, "String", from, err);
    if (st == SL_OK) st = expect(v, "content", to, err);
    return st;
}

static sl_status load_strip(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "content", "start", "stop"};
    uint64_t start = 0, stop = 0;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = expect(v, "content", " ", err);
    if (st == SL_OK) st = sl_json_u64(v, "start", SL_JSON_REQUIRED, 0, 1, &start, err);
    if (st == SL_OK) st = sl_json_u64(v, "stop", SL_JSON_REQUIRED, 0, 0, &stop, err);
    tok->spm.strips = start == 1;
    return st;
}

sl_status sl_tok_spm_decoder(sl_tokenizer *tok, sl_json decoder, sl_err *err) {
    static const char *const keys[] = {"type", "decoders"}, *const type_only[] = {"type"};
    static const char *const steps[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    sl_json list = {0};
    sl_status st = sl_json_only(decoder, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_array(decoder, "decoders", SL_JSON_REQUIRED, &list, err);
    if (st != SL_OK) return st;
    size_t n = sl_json_count(list);
    if (n < SL_LEN(steps) - 1 || n > SL_LEN(steps))
        return sl_json_fail(list, NULL, err, SL_ERR_UNSUPPORTED,
                            "%zu steps, not Replace, ByteFallback, Fuse and at most Strip", n);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        sl_json v = sl_json_at(list, i);
        st = expect(v, "type", steps[i], err);
        if (st == SL_OK && i == 0) st = expect_replace(v, SL_TOK_MARK, " ", err);
        if (st == SL_OK && (i == 1 || i == 2)) st = sl_json_only(v, type_only, 1, err);
        if (st == SL_OK && i == 3) st = load_strip(tok, v, err);
    }
    tok->spm.on = true;
    return st;
}

static sl_status load_normalizer_step(sl_tokenizer *tok, sl_json v, sl_err *err) {
    static const char *const keys[] = {"type", "prepend"};
    sl_span type = {0};
    sl_status st = sl_tok_text_field(v, "type", SL_JSON_REQUIRED, &type, err);
    if (st != SL_OK) return st;
    if (sl_tok_is(type, "Replace") && !tok->spm.normalizes) {
        tok->spm.normalizes = true;
        return expect_replace(v, " ", SL_TOK_MARK, err);
    }
    if (sl_tok_is(type, "Prepend") && !tok->spm.prepends) {
        tok->spm.prepends = true;
        st = sl_json_only(v, keys, SL_LEN(keys), err);
        return st == SL_OK ? expect(v, "prepend", SL_TOK_MARK, err) : st;
    }
    return sl_json_fail(v, "type", err, SL_ERR_UNSUPPORTED,
                        "normalizer \"%.40s\", not one Prepend and one Replace",
                        (const char *)type.data);
}

sl_status sl_tok_spm_normalizer(sl_tokenizer *tok, sl_json normalizer, sl_err *err) {
    static const char *const keys[] = {"type", "normalizers"};
    sl_span type = {0};
    sl_json list = {0};
    sl_status st = sl_tok_text_field(normalizer, "type", SL_JSON_REQUIRED, &type, err);
    if (st != SL_OK) return st;
    if (!sl_tok_is(type, "Sequence")) {
        st = load_normalizer_step(tok, normalizer, err);
    } else {
        st = sl_json_only(normalizer, keys, SL_LEN(keys), err);
        if (st == SL_OK)
            st = sl_json_array(normalizer, "normalizers", SL_JSON_REQUIRED, &list, err);
        for (size_t i = 0; st == SL_OK && i < sl_json_count(list); i++)
            st = load_normalizer_step(tok, sl_json_at(list, i), err);
    }
    if (st == SL_OK && tok->spm.prepends && !tok->spm.normalizes)
        st = sl_json_fail(normalizer, NULL, err, SL_ERR_UNSUPPORTED, "Prepend without Replace");
    return st;
}

sl_status sl_tok_spm_pre_tokenizer(sl_tokenizer *tok, sl_json root, sl_err *err) {
    static const char *const keys[] = {"type", "replacement", "prepend_scheme", "split",
                                       "add_prefix_space"};
    sl_json v = {0};
    sl_span scheme = {0};
    sl_status st = sl_json_object(root, "pre_tokenizer", SL_JSON_OPTIONAL, &v, err);
    if (st == SL_OK && !v.value && !tok->spm.normalizes)
        st = sl_json_fail(root, "pre_tokenizer", err, SL_ERR_UNSUPPORTED,
                          "missing, and no normalizer replaces spaces");
    if (st != SL_OK || !v.value) return st;
    st = expect(v, "type", "Metaspace", err);
    if (st == SL_OK && tok->spm.normalizes)
        st = sl_json_fail(v, NULL, err, SL_ERR_UNSUPPORTED,
                          "Metaspace, where the normalizer replaces spaces already");
    if (st == SL_OK) st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = expect(v, "replacement", SL_TOK_MARK, err);
    if (st == SL_OK) st = sl_tok_text_field(v, "prepend_scheme", SL_JSON_REQUIRED, &scheme, err);
    tok->spm.splits = true;
    if (st == SL_OK) st = sl_json_bool(v, "split", SL_JSON_OPTIONAL, &tok->spm.splits, err);
    if (st != SL_OK) return st;
    tok->spm.metaspace = true;
    if (sl_tok_is(scheme, "first"))
        tok->spm.scheme = SL_TOK_PREPEND_FIRST;
    else if (sl_tok_is(scheme, "always"))
        tok->spm.scheme = SL_TOK_PREPEND_ALWAYS;
    else if (!sl_tok_is(scheme, "never"))
        return sl_json_fail(v, "prepend_scheme", err, SL_ERR_UNSUPPORTED,
                            "\"%.40s\", not first, always or never", (const char *)scheme.data);
    bool prepends = tok->spm.scheme != SL_TOK_PREPEND_NEVER, prefix = prepends;
    st = sl_json_bool(v, "add_prefix_space", SL_JSON_OPTIONAL, &prefix, err);
    if (st == SL_OK && prefix != prepends)
        st = sl_json_fail(v, "add_prefix_space", err, SL_ERR_UNSUPPORTED,
                          "contradicts prepend_scheme \"%s\"", (const char *)scheme.data);
    return st;
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void sl_tok_spm_bytes(sl_span content, uint8_t *out, size_t *out_len) {
    size_t n = 0;
    for (size_t i = 0; i < content.len;) {
        bool is_mark = sl_tok_has_mark(content, i);
        out[n++] = is_mark ? ' ' : content.data[i];
        i += is_mark ? mark.len : 1;
    }
    *out_len = n;
    if (n != 6 || memcmp(out, "<0x", 3) != 0 || out[5] != '>') return;
    int high = hex_digit(out[3]), low = hex_digit(out[4]);
    if (high < 0 || low < 0) return;
    out[0] = (uint8_t)(16 * high + low);
    *out_len = 1;
}

void sl_tok_spm_byte_ids(sl_tokenizer *tok) {
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        tok->byte_id[b] = sl_tok_word_find(tok, (sl_span){(const uint8_t *)name, 6});
    }
}

sl_status sl_tok_spm_mark(sl_span text, bool prepend, sl_span *out, sl_err *err) {
    size_t len = text.len + (prepend ? mark.len : 0), n = 0;
    for (size_t i = 0; i < text.len; i++) len += text.data[i] == ' ' ? mark.len - 1 : 0;
    uint8_t *marked = sl_alloc(len, 1);
    if (!marked) return sl_fail(err, SL_ERR_NOMEM, "text of %zu bytes", len);
    if (prepend) {
        memcpy(marked, mark.data, mark.len);
        n = mark.len;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == ' ') {
            memcpy(marked + n, mark.data, mark.len);
            n += mark.len;
        } else {
            marked[n++] = text.data[i];
        }
    }
    *out = (sl_span){marked, len};
    return SL_OK;
}

static sl_status encode_metaspace(const sl_tokenizer *tok, sl_tok_work *w, sl_span text,
                                  sl_ids *out, sl_err *err) {
    sl_status st = SL_OK;
    size_t done = 0;
    for (size_t at = 1; tok->spm.splits && st == SL_OK && at < text.len; at++) {
        if (!sl_tok_has_mark(text, at)) continue;
        st = sl_tok_word_encode(tok, w, (sl_span){text.data + done, at - done}, out, err);
        done = at;
    }
    if (st != SL_OK) return st;
    return sl_tok_word_encode(tok, w, (sl_span){text.data + done, text.len - done}, out, err);
}

sl_status sl_tok_spm_run(const sl_tokenizer *tok, sl_tok_work *w, sl_span text, bool first,
                         sl_ids *out, sl_err *err) {
    if (!tok->spm.metaspace) return sl_tok_word_encode(tok, w, text, out, err);
    bool wanted = tok->spm.scheme == SL_TOK_PREPEND_ALWAYS ||
                  (tok->spm.scheme == SL_TOK_PREPEND_FIRST && first);
    bool there = text.data[0] == ' ' || sl_tok_has_mark(text, 0);
    sl_span marked;
    sl_status st = sl_tok_spm_mark(text, wanted && !there, &marked, err);
    if (st != SL_OK) return st;
    st = encode_metaspace(tok, w, marked, out, err);
    sl_free((void *)marked.data);
    return st;
}

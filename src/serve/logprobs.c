/* Log-probabilities of tokens as the API shows them. */
#include "serve/logprobs.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

sl_status sl_logprob_list_push(sl_logprob_list *l, const sl_logprob *p, size_t n) {
    if (l->cap - l->len < n) {
        size_t cap = SL_MAX(2 * l->cap, l->len + n);
        sl_logprob *data = sl_grow(l->data, l->cap, cap, sizeof *data);
        if (!data) return SL_ERR_NOMEM;
        l->data = data;
        l->cap = cap;
    }
    if (n) memcpy(l->data + l->len, p, n * sizeof *p);
    l->len += n;
    return SL_OK;
}

void sl_logprob_list_free(sl_logprob_list *l) {
    sl_free(l->data);
    *l = (sl_logprob_list){0};
}

sl_logprob_text sl_logprob_text_init(sl_api_kind kind, bool as_ids) {
    sl_logprob_text t = {.kind = kind, .as_ids = as_ids};
    for (size_t i = 0; i < SL_LEN(t.part); i++) t.part[i] = sl_jbuf_init();
    return t;
}

void sl_logprob_text_free(sl_logprob_text *t) {
    for (size_t i = 0; i < SL_LEN(t->part); i++) sl_jbuf_free(&t->part[i]);
    t->n = 0;
}

void sl_logprob_text_clear(sl_logprob_text *t) {
    for (size_t i = 0; i < SL_LEN(t->part); i++) sl_jbuf_clear(&t->part[i]);
    t->n = 0;
}

static sl_span piece_of(const sl_tokenizer *tok, uint32_t id) {
    return id < sl_tokenizer_vocab_size(tok) ? sl_tokenizer_piece(tok, id) : (sl_span){NULL, 0};
}

static void put_id(sl_jbuf *b, uint32_t id) {
    sl_jbuf_fmt(b, "\"token_id:%" PRIu32 "\"", id);
}

/* "token":..., "logprob":..., "bytes":[...] */
static void put_object(sl_jbuf *b, const sl_tokenizer *tok, const sl_logprob *p, bool as_id) {
    sl_span piece = piece_of(tok, p->id);
    sl_jbuf_fmt(b, "\"token\":");
    if (as_id)
        put_id(b, p->id);
    else
        sl_jbuf_string(b, (const char *)piece.data, piece.len);
    sl_jbuf_fmt(b, ",\"logprob\":%.7g,\"bytes\":[", (double)p->logprob);
    for (size_t i = 0; i < piece.len; i++) sl_jbuf_fmt(b, i ? ",%u" : "%u", piece.data[i]);
    sl_jbuf_fmt(b, "]");
}

/* Names are keys, so tokens that are not text of their own must differ, too. */
static void put_name(sl_jbuf *b, const sl_tokenizer *tok, uint32_t id, bool as_id) {
    sl_span piece = piece_of(tok, id);
    if (as_id || piece.len == 0) {
        put_id(b, id);
        return;
    }
    if (sl_utf8_valid_prefix(piece) == piece.len) {
        sl_jbuf_string(b, (const char *)piece.data, piece.len);
        return;
    }
    sl_jbuf_fmt(b, "\"bytes:");
    for (size_t i = 0; i < piece.len; i++) sl_jbuf_fmt(b, "\\\\x%02x", piece.data[i]);
    sl_jbuf_fmt(b, "\"");
}

static void put_named(sl_jbuf *b, const sl_tokenizer *tok, const sl_logprob *p, bool as_id) {
    put_name(b, tok, p->id, as_id);
    sl_jbuf_fmt(b, ":%.7g", (double)p->logprob);
}

static void add_to_chat(sl_logprob_text *t, const sl_tokenizer *tok, const sl_logprob *p,
                        sl_logprob_beside beside) {
    sl_jbuf *b = &t->part[0];
    sl_jbuf_fmt(b, t->n ? ",{" : "{");
    put_object(b, tok, p, t->as_ids);
    sl_jbuf_fmt(b, ",\"top_logprobs\":[");
    if (beside.own) {
        sl_jbuf_fmt(b, "{");
        put_object(b, tok, p, t->as_ids);
        sl_jbuf_fmt(b, "}");
    }
    for (uint32_t i = 0; i < beside.n; i++) {
        if (beside.own && beside.at[i].id == p->id) continue;
        sl_jbuf_fmt(b, i > 0 || beside.own ? ",{" : "{");
        put_object(b, tok, &beside.at[i], t->as_ids);
        sl_jbuf_fmt(b, "}");
    }
    sl_jbuf_fmt(b, "]}");
}

static void add_to_completion(sl_logprob_text *t, const sl_tokenizer *tok, uint32_t id,
                              const sl_logprob *p, sl_logprob_beside beside, uint64_t offset) {
    sl_jbuf *tokens = &t->part[0], *values = &t->part[1], *top = &t->part[2];
    if (t->n)
        for (size_t i = 0; i < SL_LEN(t->part); i++) sl_jbuf_put(&t->part[i], ",", 1);
    put_name(tokens, tok, id, t->as_ids);
    sl_jbuf_fmt(&t->part[3], "%" PRIu64, offset);
    if (!p) {
        sl_jbuf_fmt(values, "null");
        sl_jbuf_fmt(top, "null");
        return;
    }
    sl_jbuf_fmt(values, "%.7g", (double)p->logprob);
    sl_jbuf_fmt(top, "{");
    put_named(top, tok, p, t->as_ids); /* always among them here */
    for (uint32_t i = 0; i < beside.n; i++) {
        if (beside.at[i].id == p->id) continue;
        sl_jbuf_put(top, ",", 1);
        put_named(top, tok, &beside.at[i], t->as_ids);
    }
    sl_jbuf_fmt(top, "}");
}

void sl_logprob_text_add(sl_logprob_text *t, const sl_tokenizer *tok, uint32_t id,
                         const sl_logprob *p, sl_logprob_beside beside, uint64_t offset) {
    if (t->kind == SL_API_COMPLETION)
        add_to_completion(t, tok, id, p, beside, offset);
    else if (p)
        add_to_chat(t, tok, p, beside);
    else
        return;
    t->n++;
}

/* "ID":{"logprob":...,"rank":...,"decoded_token":...} */
static void put_scored(sl_jbuf *b, const sl_tokenizer *tok, const sl_logprob *p, uint32_t rank) {
    sl_span piece = piece_of(tok, p->id);
    sl_jbuf_fmt(b, "\"%" PRIu32 "\":{\"logprob\":%.7g,\"rank\":", p->id, (double)p->logprob);
    if (rank > 0)
        sl_jbuf_fmt(b, "%" PRIu32, rank);
    else
        sl_jbuf_fmt(b, "null");
    sl_jbuf_fmt(b, ",\"decoded_token\":");
    sl_jbuf_string(b, (const char *)piece.data, piece.len);
    sl_jbuf_put(b, "}", 1);
}

void sl_logprob_prompt_add(sl_jbuf *list, const sl_tokenizer *tok, const sl_logprob *p,
                           uint32_t n_top) {
    uint32_t rank = 0;
    if (list->len > 0) sl_jbuf_put(list, ",", 1);
    if (!p) {
        sl_jbuf_fmt(list, "null");
        return;
    }
    for (uint32_t i = 1; i <= n_top && rank == 0; i++)
        if (p[i].id == p[0].id) rank = i;
    sl_jbuf_put(list, "{", 1);
    put_scored(list, tok, &p[0], rank);
    for (uint32_t i = 1; i <= n_top; i++) {
        if (i == rank) continue;
        sl_jbuf_put(list, ",", 1);
        put_scored(list, tok, &p[i], i);
    }
    sl_jbuf_put(list, "}", 1);
}

void sl_logprob_text_write(const sl_logprob_text *t, sl_jbuf *out) {
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    if (t->n == 0) return;
    for (size_t i = 0; i < SL_LEN(t->part); i++) out->ok = out->ok && t->part[i].ok;
    if (t->kind == SL_API_CHAT) {
        sl_jbuf_fmt(out, "{\"content\":[");
        sl_jbuf_put(out, t->part[0].data, t->part[0].len);
        sl_jbuf_fmt(out, "],\"refusal\":null}");
        return;
    }
    for (size_t i = 0; i < SL_LEN(names); i++) {
        sl_jbuf_fmt(out, "%s\"%s\":[", i ? "," : "{", names[i]);
        sl_jbuf_put(out, t->part[i].data, t->part[i].len);
        sl_jbuf_fmt(out, "]");
    }
    sl_jbuf_fmt(out, "}");
}

uint64_t sl_utf8_count(const char *s, size_t n) {
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0u) != 0x80u;
    return count;
}

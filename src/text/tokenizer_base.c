/* What all files of tokenizers lean on: lists of ids, fields of JSON as spans, the end of a
 * tokenizer. Calls none of them. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

sl_status sl_ids_push(sl_ids *ids, uint32_t id, sl_err *err) {
    if (ids->len == ids->cap) {
        size_t cap = 2 * ids->cap + 32;
        uint32_t *grown = sl_grow(ids->data, ids->cap, cap, sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_NOMEM, "list of %zu token ids", cap);
        ids->data = grown;
        ids->cap = cap;
    }
    ids->data[ids->len++] = id;
    return SL_OK;
}

bool sl_ids_copy(sl_ids *ids, const uint32_t *from, size_t n) {
    if (n > ids->cap - ids->len) {
        uint32_t *grown = sl_grow(ids->data, ids->cap, ids->len + n, sizeof *grown);
        if (!grown) return false;
        ids->data = grown;
        ids->cap = ids->len + n;
    }
    if (from && n) memcpy(ids->data + ids->len, from, n * sizeof *from);
    ids->len += n;
    return true;
}

void sl_ids_free(sl_ids *ids) {
    sl_free(ids->data);
    *ids = (sl_ids){0};
}

sl_status sl_tok_text_field(sl_json obj, const char *key, sl_json_need need, sl_span *out,
                            sl_err *err) {
    const char *s = NULL;
    sl_status st = sl_json_string(obj, key, need, &s, err);
    if (st == SL_OK && s) *out = (sl_span){(const uint8_t *)s, strlen(s)};
    return st;
}

bool sl_tok_is(sl_span s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

void sl_tokenizer_free(sl_tokenizer *tok) {
    if (!tok) return;
    for (size_t i = 0; i < tok->n_splits; i++) pcre2_code_free(tok->splits[i].code);
    sl_free(tok->blob);
    sl_free(tok->pieces);
    sl_free(tok->added);
    sl_free(tok->raw.order);
    sl_free(tok->normalized.order);
    sl_free(tok->merges);
    sl_free(tok->words);
    sl_free(tok);
}

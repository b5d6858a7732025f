/* Prompts of fill-in-the-middle: which tokens, in which order. */
#include "text/fim.h"
#include "text/tokenizer_int.h"

#include <stdio.h>

enum { PREFIX_FIRST, SUFFIX_FIRST };

static const struct row {
    const char *name;
    int order;
    const char *token[SL_TOK_FIM_N]; /* as sl_tok_fim counts */
    const char *end;
} rows[] = {
#define SL_FIM(name, order, prefix, suffix, middle, repo, file, pad, end)                          \
    {name, order, {prefix, suffix, middle, pad, repo, file}, end},
#include "text/fim.def"
};

/* A word that merging makes is no marker. */
static uint32_t find(const sl_tokenizer *tok, const char *name) {
    int64_t id = *name ? sl_tokenizer_find(tok, name) : -1;
    return id >= 0 && (tok->pieces[id].flags & SL_TOK_ADDED) ? (uint32_t)id : SL_FIM_NONE;
}

static void add_end(sl_fim *f, uint32_t id) {
    if (id == SL_FIM_NONE) return;
    for (uint32_t i = 0; i < f->n_ends; i++)
        if (f->end[i] == id) return;
    if (f->n_ends < SL_FIM_MAX_ENDS) f->end[f->n_ends++] = id;
}

/* With `id`, the row's tokens or those that the file names. */
static sl_fim make(const sl_tokenizer *tok, const struct row *r, const char *name,
                   const uint32_t id[SL_TOK_FIM_N]) {
    sl_fim f = {.name = name,
                .suffix_first = r && r->order == SUFFIX_FIRST,
                .prefix = id[SL_TOK_FIM_PREFIX],
                .suffix = id[SL_TOK_FIM_SUFFIX],
                .middle = id[SL_TOK_FIM_MIDDLE],
                .repo = id[SL_TOK_FIM_REPO],
                .file = id[SL_TOK_FIM_FILE]};
    add_end(&f, id[SL_TOK_FIM_PAD]);
    add_end(&f, f.repo);
    add_end(&f, f.file);
    if (r) add_end(&f, find(tok, r->end));
    return f;
}

sl_fim sl_fim_of(const sl_tokenizer *tok) {
    const uint32_t *named = tok->fim;
    uint32_t id[SL_TOK_FIM_N];
    bool given = tok->has_fim && named[SL_TOK_FIM_PREFIX] != SL_FIM_NONE &&
                 named[SL_TOK_FIM_SUFFIX] != SL_FIM_NONE && named[SL_TOK_FIM_MIDDLE] != SL_FIM_NONE;
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        bool all = true;
        for (size_t k = 0; k < SL_TOK_FIM_N; k++) {
            bool around = k <= SL_TOK_FIM_MIDDLE, without = !*rows[i].token[k];
            id[k] = find(tok, rows[i].token[k]);
            all = all && (!around || without || id[k] != SL_FIM_NONE);
            bool other = tok->has_fim && named[k] != SL_FIM_NONE && !(around && without);
            if (other) id[k] = named[k];
        }
        if (all) return make(tok, &rows[i], rows[i].name, id);
    }
    return given ? make(tok, NULL, "gguf", named) : (sl_fim){0};
}

/* ---- prompts ---- */

static sl_status add_text(const sl_tokenizer *tok, sl_span text, sl_ids *out, sl_err *err) {
    return text.len ? sl_tokenizer_encode(tok, text, false, false, out, err) : SL_OK;
}

static sl_status add_line(const sl_tokenizer *tok, sl_span name, const char *otherwise, sl_ids *out,
                          sl_err *err) {
    if (!name.len) name = (sl_span){(const uint8_t *)otherwise, strlen(otherwise)};
    const sl_text_part parts[] = {{name, false}, {{(const uint8_t *)"\n", 1}, false}};
    return sl_tokenizer_encode_parts(tok, parts, SL_LEN(parts), false, out, err);
}

/* SentencePiece's shape puts a space before a text, which is not there behind the gap: a line break
 * in front, which merges with nothing, takes it, and goes. */
static sl_status add_behind(const sl_tokenizer *tok, sl_span text, sl_ids *out, sl_err *err) {
    static const sl_span line = {(const uint8_t *)"\n", 1};
    const sl_text_part parts[] = {{line, false}, {text, false}};
    sl_ids whole = {0}, head = {0};
    if (!tok->spm.on || !text.len) return add_text(tok, text, out, err);
    sl_status st = sl_tokenizer_encode_parts(tok, parts, SL_LEN(parts), false, &whole, err);
    if (st == SL_OK) st = sl_tokenizer_encode(tok, line, false, false, &head, err);
    bool apart = st == SL_OK && head.len && whole.len >= head.len &&
                 !memcmp(whole.data, head.data, head.len * sizeof *head.data);
    size_t from = apart ? head.len : 0;
    if (st == SL_OK && !apart) {
        st = add_text(tok, text, out, err);
    } else if (st == SL_OK && !sl_ids_copy(out, whole.data + from, whole.len - from)) {
        st = sl_fail(err, SL_ERR_NOMEM, "%zu tokens", whole.len);
    }
    sl_ids_free(&whole);
    sl_ids_free(&head);
    return st;
}

/* A marker, where the format has it. */
static sl_status mark(uint32_t id, sl_ids *out, sl_err *err) {
    return id == SL_FIM_NONE ? SL_OK : sl_ids_push(out, id, err);
}

static sl_status add_before(const sl_fim *f, const sl_tokenizer *tok, const sl_fim_gap *gap,
                            sl_ids *out, sl_err *err) {
    sl_status st = mark(f->prefix, out, err);
    if (st != SL_OK) return st;
    if (!gap->ids) return add_text(tok, gap->before, out, err);
    if (sl_ids_copy(out, gap->ids->data, gap->ids->len)) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "%zu tokens", gap->ids->len);
}

static sl_status add_gap(const sl_fim *f, const sl_tokenizer *tok, const sl_fim_gap *gap,
                         sl_ids *out, sl_err *err) {
    sl_status st = f->suffix_first ? SL_OK : add_before(f, tok, gap, out, err);
    if (st == SL_OK) st = mark(f->suffix, out, err);
    if (st == SL_OK) st = add_behind(tok, gap->behind, out, err);
    if (st == SL_OK && f->suffix_first) st = add_before(f, tok, gap, out, err);
    return st == SL_OK ? mark(f->middle, out, err) : st;
}

static sl_status add_files(const sl_fim *f, const sl_tokenizer *tok, const sl_fim_gap *gap,
                           sl_ids *out, sl_err *err) {
    static const sl_span lines = {(const uint8_t *)"\n\n", 2}, none = {0};
    bool marked = f->file != SL_FIM_NONE;
    sl_status st = SL_OK;
    if (f->repo != SL_FIM_NONE) {
        st = mark(f->repo, out, err);
        if (st == SL_OK) st = add_line(tok, none, "repository", out, err);
    }
    for (size_t i = 0; st == SL_OK && i < gap->n_files; i++) {
        st = mark(f->file, out, err);
        if (st == SL_OK) st = add_line(tok, gap->file[i].name, "file", out, err);
        if (st == SL_OK) st = add_text(tok, gap->file[i].text, out, err);
        if (st == SL_OK && !marked) st = add_text(tok, lines, out, err);
    }
    if (st != SL_OK || !marked) return st;
    st = mark(f->file, out, err);
    return st == SL_OK ? add_line(tok, none, "filename", out, err) : st;
}

sl_status sl_fim_encode(const sl_fim *f, const sl_tokenizer *tok, const sl_fim_gap *gap,
                        sl_ids *out, sl_err *err) {
    sl_ids around = {0}, files = {0};
    size_t had = out->len, n_begin = gap->special ? tok->n_before : 0;
    sl_status st = add_gap(f, tok, gap, &around, err);
    if (st == SL_OK && gap->n_files) st = add_files(f, tok, gap, &files, err);
    size_t used = around.len + n_begin, left = gap->room > used ? gap->room - used : 0;
    size_t from = files.len > left ? files.len - left : 0;
    bool copied = st == SL_OK && (!n_begin || sl_ids_copy(out, tok->before, n_begin)) &&
                  (files.len == from || sl_ids_copy(out, files.data + from, files.len - from)) &&
                  sl_ids_copy(out, around.data, around.len);
    if (st == SL_OK && !copied) st = sl_fail(err, SL_ERR_NOMEM, "%zu tokens", around.len);
    if (st != SL_OK) out->len = had;
    sl_ids_free(&around);
    sl_ids_free(&files);
    return st;
}

/* Texts become ids and ids texts: added tokens first, then words. */
#include "text/tokenizer_int.h"

#include "base/mem.h"

#include <stdlib.h>

/* Backtracking allowed to one match: enough for patterns that stay linear in a whole text. */
#define MATCH_STEPS_BASE     10000u
#define MATCH_STEPS_PER_BYTE 16u
#define MATCH_HEAP_KIB       (64u << 10)

/* One encode call. Positions of `text` are those of the parts joined together. */
typedef struct encode_run {
    const sl_tokenizer *tok;
    const sl_text_part *parts;
    const size_t *ends; /* where each part ends */
    size_t n_parts;
    sl_tok_work work;
    sl_ids *out;
    sl_err *err;
} encode_run;

/* A stretch of text being searched for added tokens. */
typedef struct stretch {
    sl_span text;
    size_t from, to; /* where it lies in the joined text */
    /* Where the parts end, in a text that this one begins at byte `at` of. NULL when normalization
     * changed it so that positions inside mean nothing. */
    const size_t *ends;
    size_t at;
} stretch;

/* Index of the part that holds byte `at`. */
static size_t part_of(const encode_run *r, const size_t *ends, size_t at) {
    size_t lo = 0, hi = r->n_parts - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (ends[mid] > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static bool special_allowed(const encode_run *r, const stretch *s, size_t start, size_t end) {
    const size_t *ends = s->ends ? s->ends : r->ends;
    size_t first = part_of(r, ends, s->ends ? s->at + start : s->from);
    size_t last = part_of(r, ends, s->ends ? s->at + end - 1 : s->to - 1);
    if (s->ends && first != last) return false;
    for (size_t i = first; i <= last; i++)
        if (!r->parts[i].parse_special) return false;
    return true;
}

/* First index in [lo,hi) of order whose pattern's byte `depth` is >= c (> c with `above`). */
static size_t bound(const sl_tokenizer *tok, const sl_tok_lexicon *lex, size_t lo, size_t hi,
                    size_t depth, uint8_t c, bool above) {
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        uint8_t b = sl_tok_bytes(tok, tok->added[lex->order[mid]].pattern).data[depth];
        if (b > c || (b == c && !above))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Longest added token that starts at byte `at`, or NULL. The patterns in order[lo,hi) are those
 * that agree with the text so far; the shorter sort first. */
static const sl_tok_added *longest(const sl_tokenizer *tok, const sl_tok_lexicon *lex, sl_span text,
                                   size_t at) {
    const sl_tok_added *best = NULL;
    size_t lo = 0, hi = lex->n;
    for (size_t depth = 0; lo < hi; depth++) {
        if (tok->added[lex->order[lo]].pattern.len == depth) best = &tok->added[lex->order[lo]];
        while (lo < hi && tok->added[lex->order[lo]].pattern.len == depth) lo++;
        if (at + depth == text.len) break;
        uint8_t c = text.data[at + depth];
        lo = bound(tok, lex, lo, hi, depth, c, false);
        hi = bound(tok, lex, lo, hi, depth, c, true);
    }
    return best;
}

static bool is_single_word(sl_span text, size_t start, size_t end) {
    size_t ignored;
    return !sl_unicode_is_word(sl_utf8_before(text, start, &ignored)) &&
           !sl_unicode_is_word(sl_utf8_at(text, end, &ignored));
}

/* Not past `done`: a token of spaces would walk over the same ones again and again. */
static size_t strip_left(sl_span text, size_t at, size_t done) {
    for (size_t start; at > done && sl_unicode_is_space(sl_utf8_before(text, at, &start));)
        at = start;
    return at;
}

static size_t strip_right(sl_span text, size_t at) {
    for (size_t end; sl_unicode_is_space(sl_utf8_at(text, at, &end));) at = end;
    return at;
}

/* Bytes [start,end) of s. */
static stretch gap_of(const encode_run *r, const stretch *s, size_t start, size_t end) {
    stretch gap = *s;
    gap.text = (sl_span){s->text.data + start, end - start};
    gap.at += start;
    if (s->ends == r->ends) gap.from = gap.at, gap.to = s->from + end;
    return gap;
}

/* Cuts the added tokens of lex out of s, left to right, longest first, and hands what lies between
 * them to `between`. */
static sl_status cut_added(encode_run *r, const sl_tok_lexicon *lex, const stretch *s,
                           sl_status (*between)(encode_run *, const stretch *)) {
    sl_status st = SL_OK;
    size_t done = 0;
    for (size_t at = 0; st == SL_OK && at < s->text.len;) {
        const sl_tok_added *a =
            lex->first[s->text.data[at]] ? longest(r->tok, lex, s->text, at) : NULL;
        if (!a) {
            at++;
            continue;
        }
        size_t start = at, end = at + a->pattern.len;
        at = end;
        if (a->special && !special_allowed(r, s, start, end)) continue;
        if (a->single_word && !is_single_word(s->text, start, end)) continue;
        if (a->lstrip) start = SL_MAX(strip_left(s->text, start, done), done);
        if (a->rstrip) end = strip_right(s->text, SL_MAX(end, done));
        if (start > done) {
            stretch gap = gap_of(r, s, done, start);
            st = between(r, &gap);
        }
        if (st == SL_OK) st = sl_ids_push(r->out, a->id, r->err);
        done = end;
    }
    if (st != SL_OK || done >= s->text.len) return st;
    stretch gap = gap_of(r, s, done, s->text.len);
    return between(r, &gap);
}

static sl_status encode_plain(encode_run *r, const stretch *s) {
    if (r->tok->spm.on) {
        bool first = s->ends == r->ends && s->from == 0;
        return sl_tok_spm_run(r->tok, &r->work, s->text, first, r->out, r->err);
    }
    return sl_tok_split_run(r->tok, &r->work, 0, s->text, r->out, r->err);
}

/* Added tokens that match text with marks for its spaces. A mark is two bytes longer than a space,
 * which tells where the parts end in it. */
static sl_status encode_marked(encode_run *r, const stretch *s) {
    bool prepend = r->tok->spm.prepends;
    size_t *ends = sl_alloc(r->n_parts, sizeof *ends), done = 0, to = prepend ? SL_TOK_MARK_LEN : 0;
    if (!ends) return sl_fail(r->err, SL_ERR_NOMEM, "%zu parts of text", r->n_parts);
    for (size_t i = 0; i < r->n_parts; i++) {
        size_t end = SL_MIN(SL_MAX(r->ends[i], s->from), s->to) - s->from;
        for (; done < end; done++) to += s->text.data[done] == ' ' ? SL_TOK_MARK_LEN : 1;
        ends[i] = end == 0 ? 0 : to;
    }
    stretch n = {.from = s->from, .to = s->to, .ends = ends};
    sl_status st = sl_tok_spm_mark(s->text, prepend, &n.text, r->err);
    if (st == SL_OK) {
        st = cut_added(r, &r->tok->normalized, &n, encode_plain);
        sl_free((void *)n.text.data);
    }
    sl_free(ends);
    return st;
}

/* Added tokens that match normalized text; between them, plain text. */
static sl_status encode_normalized(encode_run *r, const stretch *s) {
    if (r->tok->spm.normalizes) return encode_marked(r, s);
    bool changed = false;
    stretch n = *s;
    sl_status st = SL_OK;
    if (r->tok->nfc) st = sl_unicode_nfc(s->text, &changed, &n.text, r->err);
    if (st != SL_OK) return st;
    if (changed) n.ends = NULL;
    if (n.text.len) st = cut_added(r, &r->tok->normalized, &n, encode_plain);
    if (changed) free((void *)n.text.data);
    return st;
}

static sl_status prepare(encode_run *r, size_t len) {
    uint64_t steps = MATCH_STEPS_BASE + MATCH_STEPS_PER_BYTE * (uint64_t)len;
    r->work.match = pcre2_match_data_create(1, NULL);
    r->work.limits = pcre2_match_context_create(NULL);
    if (!r->work.match || !r->work.limits) return sl_fail(r->err, SL_ERR_NOMEM, "pattern matching");
    pcre2_set_match_limit(r->work.limits, (uint32_t)steps);
    pcre2_set_depth_limit(r->work.limits, (uint32_t)steps);
    pcre2_set_heap_limit(r->work.limits, MATCH_HEAP_KIB);
    return SL_OK;
}

/* Joins the parts; a single one is borrowed (*owned stays NULL). */
static sl_status join(const sl_text_part *parts, size_t n, size_t *ends, sl_span *out,
                      uint8_t **owned, sl_err *err) {
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].text.len > SL_TOKENIZER_MAX_TEXT - len)
            return sl_fail(err, SL_ERR_LIMIT, "text longer than %u bytes", SL_TOKENIZER_MAX_TEXT);
        ends[i] = len += parts[i].text.len;
    }
    *out = parts[0].text;
    if (n > 1) {
        if (!(*owned = sl_alloc(len, 1)))
            return sl_fail(err, SL_ERR_NOMEM, "text of %zu bytes", len);
        for (size_t i = 0; i < n; i++)
            if (parts[i].text.len)
                memcpy(*owned + ends[i] - parts[i].text.len, parts[i].text.data, parts[i].text.len);
        *out = (sl_span){*owned, len};
    }
    size_t valid = sl_utf8_valid_prefix(*out);
    if (valid != len) return sl_fail(err, SL_ERR_FORMAT, "text: not UTF-8 at byte %zu", valid);
    return SL_OK;
}

sl_status sl_tokenizer_encode_parts(const sl_tokenizer *tok, const sl_text_part *parts, size_t n,
                                    bool add_template, sl_ids *out, sl_err *err) {
    size_t kept = out->len, *ends = sl_alloc(n, sizeof *ends);
    uint8_t *owned = NULL;
    encode_run r = {.tok = tok, .parts = parts, .ends = ends, .n_parts = n, .out = out, .err = err};
    stretch all = {0};
    sl_status st = ends ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%zu parts of text", n);
    if (st == SL_OK && n > 0) st = join(parts, n, ends, &all.text, &owned, err);
    if (st == SL_OK) st = prepare(&r, all.text.len);
    for (size_t i = 0; st == SL_OK && add_template && i < tok->n_before; i++)
        st = sl_ids_push(out, tok->before[i], err);
    all.to = all.text.len;
    all.ends = ends;
    if (st == SL_OK && all.text.len) st = cut_added(&r, &tok->raw, &all, encode_normalized);
    for (size_t i = 0; st == SL_OK && add_template && i < tok->n_after; i++)
        st = sl_ids_push(out, tok->after[i], err);
    if (st != SL_OK) out->len = kept;
    sl_tok_work_free(&r.work);
    sl_free(owned);
    sl_free(ends);
    return st;
}

sl_status sl_tokenizer_encode(const sl_tokenizer *tok, sl_span text, bool parse_special,
                              bool add_template, sl_ids *out, sl_err *err) {
    sl_text_part part = {text, parse_special};
    return sl_tokenizer_encode_parts(tok, &part, 1, add_template, out, err);
}

sl_status sl_tokenizer_decode(const sl_tokenizer *tok, const uint32_t *ids, size_t n,
                              bool skip_special, char **out, size_t *out_len, sl_err *err) {
    size_t bytes = 0, len = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= tok->n_ids)
            return sl_fail(err, SL_ERR_ARG, "id %u at position %zu: the vocabulary has %zu", ids[i],
                           i, tok->n_ids);
        bytes += tok->pieces[ids[i]].bytes.len;
    }
    /* every byte may become U+FFFD, and a push may write up to its maximum */
    char *text = sl_alloc(3 * bytes + SL_DETOK_MAX_OUT + 1, 1);
    if (!text) return sl_fail(err, SL_ERR_NOMEM, "text of %zu tokens", n);
    sl_detok d = {0};
    for (size_t i = 0; i < n; i++) len += sl_detok_push(&d, tok, ids[i], skip_special, text + len);
    len += sl_detok_flush(&d, text + len);
    text[len] = 0;
    *out = text;
    *out_len = len;
    return SL_OK;
}

sl_span sl_tokenizer_piece(const sl_tokenizer *tok, uint32_t id) {
    return id < tok->n_ids ? sl_tok_bytes(tok, tok->pieces[id].bytes) : (sl_span){0};
}

size_t sl_tokenizer_spelling(const sl_tokenizer *tok, uint32_t id,
                             char out[SL_TOKENIZER_MAX_SPELLING]) {
    if (id >= tok->n_ids || !(tok->pieces[id].flags & SL_TOK_DEFINED)) return 0;
    const sl_tok_piece *piece = &tok->pieces[id];
    bool added = piece->flags & SL_TOK_ADDED;
    sl_span s = sl_tok_bytes(tok, tok->spm.on && !added ? piece->word : piece->bytes);
    size_t n = 0;
    for (size_t i = 0; i < s.len && n + 2 <= SL_TOKENIZER_MAX_SPELLING; i++) {
        int32_t c = added || tok->spm.on ? s.data[i] : sl_byte_level_char(s.data[i]);
        bool whole = added || tok->spm.on || c < 0x80;
        if (!whole) out[n++] = (char)(0xC0 | c >> 6);
        out[n++] = (char)(whole ? c : (0x80 | (c & 0x3F)));
    }
    return n;
}

bool sl_tokenizer_added_at(const sl_tokenizer *tok, size_t i, sl_tokenizer_added *out) {
    if (i >= tok->n_added) return false;
    const sl_tok_added *a = &tok->added[i];
    *out = (sl_tokenizer_added){.id = a->id,
                                .content = sl_tok_bytes(tok, a->content),
                                .special = a->special,
                                .lstrip = a->lstrip,
                                .rstrip = a->rstrip,
                                .single_word = a->single_word,
                                .normalized = a->normalized};
    return true;
}

sl_status sl_tokenizer_begin(const sl_tokenizer *tok, sl_ids *out, sl_err *err) {
    if (tok->n_before == 0 || sl_ids_copy(out, tok->before, tok->n_before)) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "%zu tokens", tok->n_before);
}

int64_t sl_tokenizer_begins_with(const sl_tokenizer *tok) {
    return tok->n_before ? (int64_t)tok->before[0] : -1;
}

bool sl_tokenizer_is_sentencepiece(const sl_tokenizer *tok) {
    return tok->spm.on;
}

uint32_t sl_tokenizer_vocab_size(const sl_tokenizer *tok) {
    return (uint32_t)tok->n_ids;
}

int64_t sl_tokenizer_find(const sl_tokenizer *tok, const char *content) {
    sl_span want = {(const uint8_t *)content, strlen(content)};
    for (size_t i = 0; i < tok->n_added; i++) {
        sl_span have = sl_tok_bytes(tok, tok->added[i].content);
        if (have.len == want.len && memcmp(have.data, want.data, want.len) == 0)
            return tok->added[i].id;
    }
    uint32_t id = sl_tok_word_find(tok, want);
    return id == SL_TOK_NONE ? -1 : (int64_t)id;
}

bool sl_tokenizer_is_special(const sl_tokenizer *tok, uint32_t id) {
    return id < tok->n_ids && (tok->pieces[id].flags & SL_TOK_SPECIAL);
}

/* Bytes a sequence that starts with `lead` has, 0 for a byte that starts none; [*lo,*hi] is what
 * its second byte may be (Unicode 15, table 3-7). */
static uint32_t sequence_length(uint8_t lead, uint8_t *lo, uint8_t *hi) {
    *lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

static size_t put_replacement(char *out) {
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* Gives up on what is held. */
static size_t replace_held(sl_detok *d, char *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < d->n_held; i++)
        if (i == 0 || d->each_byte) n += put_replacement(out + n);
    d->n_held = 0;
    return n;
}

/* One byte in. A sequence that breaks off is replaced as a whole or byte by byte, the byte that
 * broke it starts anew. */
static size_t detok_byte(sl_detok *d, uint8_t byte, char *out) {
    uint8_t lo, hi;
    size_t n = 0;
    if (d->n_held > 0) {
        uint32_t want = sequence_length(d->held[0], &lo, &hi);
        if (d->n_held > 1) lo = 0x80, hi = 0xBF;
        if (byte >= lo && byte <= hi) {
            d->held[d->n_held++] = byte;
            if (d->n_held < want) return 0;
            memcpy(out, d->held, want);
            d->n_held = 0;
            return want;
        }
        n = replace_held(d, out);
    }
    uint32_t want = sequence_length(byte, &lo, &hi);
    if (want == 0) return n + put_replacement(out + n);
    if (want == 1) {
        out[n] = (char)byte;
        return n + 1;
    }
    d->held[d->n_held++] = byte;
    return n;
}

size_t sl_detok_push(sl_detok *d, const sl_tokenizer *tok, uint32_t id, bool skip_special,
                     char out[SL_DETOK_MAX_OUT]) {
    if (skip_special && sl_tokenizer_is_special(tok, id)) return 0;
    sl_span piece = sl_tokenizer_piece(tok, id);
    size_t n = 0;
    d->each_byte = tok->spm.on;
    for (size_t i = 0; i < piece.len; i++) n += detok_byte(d, piece.data[i], out + n);
    if (n == 0 || d->started) return n;
    d->started = true;
    if (!tok->spm.strips || out[0] != ' ') return n;
    memmove(out, out + 1, n - 1);
    return n - 1;
}

size_t sl_detok_flush(sl_detok *d, char out[SL_DETOK_MAX_OUT]) {
    return replace_held(d, out);
}

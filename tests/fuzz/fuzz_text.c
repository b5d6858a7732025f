/* What a client writes: any bytes as text for the tokenizers of the fixtures, in parts with and
 * without special tokens; its ids back to text, streamed past stop strings, and as JSON.
 * Input: u8 tokenizer, u8 bit i: part i may spell special tokens, then text, parts apart by 0xFF.
 * The last part is the stop strings, apart by '|'. */
#include "base/mem.h"
#include "format/json.h"
#include "text/tokenizer.h"
#include "serve/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 6u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const folders[] = {"qwen3moe-tiny",          "mixtral-tiny",
                                      "tokenizers/odd",         "tokenizers/prefix",
                                      "tokenizers/triples",     "tokenizers/spm_holes",
                                      "tokenizers/spm_legacy",  "tokenizers/spm_metaspace",
                                      "tokenizers/spm_patterns"};

static const sl_tokenizer *tokenizer(size_t i) {
    static sl_tokenizer *tok[SL_LEN(folders)];
    char path[512];
    sl_err err = {0};
    snprintf(path, sizeof path, "%s/tests/golden/%s", SL_SOURCE_DIR, folders[i]);
    if (!tok[i] && sl_tokenizer_open(path, &tok[i], &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return tok[i];
}

static size_t cut_parts(sl_span in, uint8_t special, sl_text_part *part) {
    size_t n = 0;
    while (n < MAX_PARTS) {
        const uint8_t *end = in.len && n + 1 < MAX_PARTS ? memchr(in.data, 0xFF, in.len) : NULL;
        size_t len = end ? (size_t)(end - in.data) : in.len;
        part[n] = (sl_text_part){{in.data, len}, special >> n & 1};
        n++;
        if (!end) break;
        in = (sl_span){end + 1, in.len - len - 1};
    }
    return n;
}

/* Where `text` ends when the first of the stop strings to be completed, the longest of several,
 * ends it: found the slow way. */
static size_t first_stop(const char *text, size_t len, const sl_span *stop, size_t n) {
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++)
            if (stop[i].len <= end && stop[i].len > longest &&
                memcmp(text + end - stop[i].len, stop[i].data, stop[i].len) == 0)
                longest = stop[i].len;
        if (longest) return end - longest;
    }
    return len;
}

static void check_stream(const sl_tokenizer *tok, const sl_ids *ids, const char *all, size_t len,
                         const sl_span *stop, size_t n_stop) {
    char piece[SL_DETOK_MAX_OUT];
    sl_detok d = {0};
    sl_stop *s = NULL;
    sl_err err = {0};
    sl_jbuf seen = sl_jbuf_init();
    if (sl_stop_create(stop, n_stop, &s, &err) != SL_OK) return;
    for (size_t i = 0; i <= ids->len; i++) {
        size_t n = i < ids->len ? sl_detok_push(&d, tok, ids->data[i], false, piece)
                                : sl_detok_flush(&d, piece);
        SL_ASSERT(n <= sizeof piece);
        sl_stop_feed(s, piece, n, &seen);
    }
    sl_stop_flush(s, &seen);
    size_t want = first_stop(all, len, stop, n_stop);
    SL_ASSERT(seen.len == want && (want == 0 || memcmp(seen.data, all, want) == 0));
    sl_jbuf_free(&seen);
    sl_stop_free(s);
}

static void check_json(const char *text, size_t len) {
    sl_jbuf b = sl_jbuf_init();
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    sl_span back = {0};
    sl_jbuf_string(&b, text, len);
    SL_ASSERT(sl_json_parse("text", (sl_span){(uint8_t *)b.data, b.len}, &doc, &err) == SL_OK);
    SL_ASSERT(sl_json_as_span(sl_json_root(doc), &back));
    if (sl_utf8_valid_prefix((sl_span){(const uint8_t *)text, len}) == len)
        SL_ASSERT(back.len == len && (len == 0 || memcmp(back.data, text, len) == 0));
    sl_json_doc_free(doc);
    sl_jbuf_free(&b);
}

static size_t cut_stops(sl_span in, sl_span *stop) {
    size_t n = 0;
    while (in.len && n < SL_STOP_MAX_STRINGS) {
        const uint8_t *end = memchr(in.data, '|', in.len);
        size_t len = end ? (size_t)(end - in.data) : in.len;
        if (len && len <= SL_STOP_MAX_BYTES) stop[n++] = (sl_span){in.data, len};
        if (!end) break;
        in = (sl_span){end + 1, in.len - len - 1};
    }
    return n;
}

/* One part means the same as its pieces, wherever it is cut. */
static void check_cut(const sl_tokenizer *tok, sl_text_part whole, const sl_ids *want) {
    sl_err err = {0};
    sl_ids again = {0};
    size_t at = sl_utf8_valid_prefix((sl_span){whole.text.data, whole.text.len / 2});
    const sl_text_part half[2] = {{{whole.text.data, at}, false},
                                  {{whole.text.data + at, whole.text.len - at}, false}};
    SL_ASSERT(sl_tokenizer_encode_parts(tok, half, 2, true, &again, &err) == SL_OK);
    SL_ASSERT(again.len == want->len);
    SL_ASSERT(want->len == 0 || memcmp(again.data, want->data, 4 * want->len) == 0);
    sl_ids_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_text_part part[MAX_PARTS];
    sl_span stop[SL_STOP_MAX_STRINGS];
    sl_err err = {0};
    sl_ids ids = {0};
    char *all = NULL;
    size_t len = 0;
    if (size < 2) return 0;
    const sl_tokenizer *tok = tokenizer(data[0] % SL_LEN(folders));
    size_t n = cut_parts((sl_span){data + 2, size - 2}, data[1], part);
    size_t n_stop = n > 1 ? cut_stops(part[--n].text, stop) : 0;
    sl_status st = sl_tokenizer_encode_parts(tok, part, n, data[1] >> 7, &ids, &err);
    SL_ASSERT(st == SL_OK || (err.msg[0] && ids.len == 0));
    if (st != SL_OK) return 0;
    SL_ASSERT(sl_tokenizer_decode(tok, ids.data, ids.len, false, &all, &len, &err) == SL_OK);
    SL_ASSERT(sl_utf8_valid_prefix((sl_span){(const uint8_t *)all, len}) == len);
    check_stream(tok, &ids, all, len, stop, n_stop);
    check_json((const char *)part[0].text.data, part[0].text.len);
    sl_ids_free(&ids);
    sl_free(all);
    sl_text_part plain = {part[0].text, false};
    if (sl_tokenizer_encode_parts(tok, &plain, 1, true, &ids, &err) == SL_OK)
        check_cut(tok, plain, &ids);
    sl_ids_free(&ids);
    return 0;
}

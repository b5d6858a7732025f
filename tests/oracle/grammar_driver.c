/* Compiles descriptions of texts for tests/oracle/test_grammar*.py: a JSON object a line on stdin,
 * the first
 *   {"vocab": [texts of tokens in hexadecimal], "ends": [ids]}
 * then one of "schema", "json" (true), "regex", "choice", "gbnf", with any of
 *   "compact": true               no whitespace between the tokens of JSON
 *   "accept": [text in hex]       -> 1 where the text is whole, 0 where it is the beginning of one,
 * -1 else "masks": [text in hex]        -> ids that may follow (null where the text is no
 * beginning) "walks": [seeds], "most": n   -> texts of random walks of at most n tokens; whole ones
 * alone Answers are one line each: {"accept": [...], "masks": [...], "walks": [...], "bytes":
 * memory}, or
 * {"error": message, "status": number}. */
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "serve/jbuf.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct job {
    sl_vocab *vocab;
    sl_grammar *g;
    uint32_t *mask;
    sl_json json;
    sl_jbuf out;
} job;

/* Bytes of a hexadecimal text, in place of it; the document is ours. */
static sl_span bytes_of(sl_json v) {
    sl_span text = {0};
    if (!sl_json_as_span(v, &text)) return text;
    uint8_t *to = (uint8_t *)text.data;
    for (size_t i = 0; i + 1 < text.len; i += 2) {
        const char pair[3] = {(char)text.data[i], (char)text.data[i + 1], 0};
        to[i / 2] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return (sl_span){text.data, text.len / 2};
}

static sl_status open_vocab(job *j, sl_err *err) {
    const sl_json list = sl_json_get(j->json, "vocab"), ends = sl_json_get(j->json, "ends");
    const uint32_t n = (uint32_t)sl_json_count(list);
    sl_span *texts = sl_alloc(n, sizeof *texts);
    uint32_t end[16] = {0};
    size_t n_ends = SL_MIN(sl_json_count(ends), SL_LEN(end));
    for (uint32_t i = 0; i < n; i++) texts[i] = bytes_of(sl_json_at(list, i));
    for (size_t i = 0; i < n_ends; i++) {
        uint64_t id = 0;
        (void)sl_json_as_u64(sl_json_at(ends, i), &id);
        end[i] = (uint32_t)id;
    }
    sl_status st = sl_vocab_create(texts, n, end, n_ends, &j->vocab, err);
    sl_free(texts);
    if (st == SL_OK) j->mask = sl_alloc(sl_vocab_words(j->vocab), sizeof *j->mask);
    return st;
}

static sl_status compile(job *j, sl_err *err) {
    sl_json v;
    bool compact = false;
    (void)sl_json_as_bool(sl_json_get(j->json, "compact"), &compact);
    const sl_json_space space = compact ? SL_JSON_SPACE_NONE : SL_JSON_SPACE_SOME;
    if ((v = sl_json_get(j->json, "schema")).value)
        return sl_grammar_of_schema(j->vocab, v, space, &j->g, err);
    if (sl_json_get(j->json, "json").value) return sl_grammar_of_json(j->vocab, space, &j->g, err);
    if ((v = sl_json_get(j->json, "shape")).value) {
        sl_span text = {0};
        (void)sl_json_as_span(v, &text);
        return sl_grammar_of_shape(j->vocab, text, &j->g, err);
    }
    if ((v = sl_json_get(j->json, "regex")).value)
        return sl_grammar_of_regex(j->vocab, bytes_of(v), &j->g, err);
    if ((v = sl_json_get(j->json, "gbnf")).value)
        return sl_grammar_of_gbnf(j->vocab, bytes_of(v), &j->g, err);
    v = sl_json_get(j->json, "choice");
    const size_t n = sl_json_count(v);
    sl_span *list = sl_alloc(n, sizeof *list);
    for (size_t i = 0; i < n; i++) list[i] = bytes_of(sl_json_at(v, i));
    const sl_status st = sl_grammar_of_choices(j->vocab, list, n, &j->g, err);
    sl_free(list);
    return st;
}

static sl_status accept(job *j, sl_err *err) {
    const sl_json list = sl_json_get(j->json, "accept");
    sl_jbuf_fmt(&j->out, "{\"accept\":[");
    for (size_t i = 0; i < sl_json_count(list); i++) {
        sl_grammar_at at = sl_grammar_begin(j->g);
        const sl_status st = sl_grammar_read(j->g, bytes_of(sl_json_at(list, i)), &at, err);
        if (st != SL_OK && st != SL_ERR_ARG) return st;
        sl_jbuf_fmt(&j->out, "%s%d", i ? "," : "",
                    st != SL_OK                    ? -1
                    : sl_grammar_may_end(j->g, at) ? 1
                                                   : 0);
    }
    return SL_OK;
}

static sl_status masks(job *j, sl_err *err) {
    const sl_json list = sl_json_get(j->json, "masks");
    sl_jbuf_fmt(&j->out, "],\"masks\":[");
    for (size_t i = 0; i < sl_json_count(list); i++) {
        sl_grammar_at at = sl_grammar_begin(j->g);
        bool first = true;
        sl_status st = sl_grammar_read(j->g, bytes_of(sl_json_at(list, i)), &at, err);
        if (st != SL_OK && st != SL_ERR_ARG) return st;
        sl_jbuf_fmt(&j->out, "%s%s", i ? "," : "", st == SL_OK ? "[" : "null");
        if (st != SL_OK) continue;
        st = sl_grammar_mask(j->g, at, j->mask, NULL, err);
        if (st != SL_OK) return st;
        for (uint32_t id = 0; id < sl_vocab_size(j->vocab); id++) {
            if (!(j->mask[id / 32] >> id % 32 & 1)) continue;
            sl_jbuf_fmt(&j->out, "%s%u", first ? "" : ",", id);
            first = false;
        }
        sl_jbuf_put(&j->out, "]", 1);
    }
    return SL_OK;
}

/* One of the allowed tokens, each as likely; after `hurry` tokens the end and short ways to it
 * first. */
static uint32_t draw(job *j, uint64_t *rng, bool hurry) {
    uint32_t n = 0, pick = UINT32_MAX;
    for (uint32_t id = 0; id < sl_vocab_size(j->vocab); id++) {
        if (!(j->mask[id / 32] >> id % 32 & 1)) continue;
        if (hurry && sl_vocab_is_end(j->vocab, id)) return id;
        const sl_span t = sl_vocab_text(j->vocab, id);
        const bool closes = t.len == 1 && memchr("\"}]", t.data[0], 3);
        if (hurry && closes) return id;
        if (sl_rng_below(rng, ++n) == 0) pick = id;
    }
    return pick;
}

static sl_status walks(job *j, sl_err *err) {
    const sl_json list = sl_json_get(j->json, "walks");
    uint64_t most = 100, seed;
    bool first = true;
    (void)sl_json_as_u64(sl_json_get(j->json, "most"), &most);
    sl_jbuf_fmt(&j->out, "],\"walks\":[");
    for (size_t i = 0; i < sl_json_count(list); i++) {
        sl_grammar_at at = sl_grammar_begin(j->g);
        sl_jbuf text = sl_jbuf_init();
        bool whole = false;
        (void)sl_json_as_u64(sl_json_at(list, i), &seed);
        uint64_t rng = seed;
        for (uint64_t k = 0; k < most && !whole; k++) {
            sl_status st = sl_grammar_mask(j->g, at, j->mask, NULL, err);
            const uint32_t id = st == SL_OK ? draw(j, &rng, k > most / 3) : 0;
            if (st == SL_OK && id == UINT32_MAX) break;
            if (st == SL_OK) st = sl_grammar_take(j->g, id, &at, err);
            if (st != SL_OK) {
                sl_jbuf_free(&text);
                return st;
            }
            whole = sl_vocab_is_end(j->vocab, id);
            const sl_span t = sl_vocab_text(j->vocab, id);
            for (size_t b = 0; b < t.len && !whole; b++) sl_jbuf_fmt(&text, "%02x", t.data[b]);
        }
        if (whole) sl_jbuf_fmt(&j->out, "%s\"%s\"", first ? "" : ",", text.data ? text.data : "");
        first &= !whole;
        sl_jbuf_free(&text);
    }
    sl_jbuf_fmt(&j->out, "],\"bytes\":%zu}", sl_grammar_memory(j->g));
    return SL_OK;
}

static void answer(job *j) {
    sl_err err = {0};
    sl_status st = SL_OK;
    j->out = sl_jbuf_init();
    if (sl_json_get(j->json, "vocab").value) {
        sl_vocab_free(j->vocab);
        sl_free(j->mask);
        st = open_vocab(j, &err);
        if (st == SL_OK) sl_jbuf_fmt(&j->out, "{\"size\":%u}", sl_vocab_size(j->vocab));
    } else {
        st = compile(j, &err);
        if (st == SL_OK) st = accept(j, &err);
        if (st == SL_OK) st = masks(j, &err);
        if (st == SL_OK) st = walks(j, &err);
    }
    if (st != SL_OK) {
        sl_jbuf_clear(&j->out);
        sl_jbuf_fmt(&j->out, "{\"error\":");
        sl_jbuf_cstring(&j->out, err.msg);
        sl_jbuf_fmt(&j->out, ",\"status\":%d}", (int)st);
    }
    puts(j->out.data);
    fflush(stdout);
    sl_jbuf_free(&j->out);
    sl_grammar_free(j->g);
    j->g = NULL;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    job j = {0};
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        sl_json_doc *doc = NULL;
        sl_err err = {0};
        if (sl_json_parse("job", (sl_span){(uint8_t *)line, (size_t)n}, &doc, &err) != SL_OK) {
            printf("{\"error\":\"no job\",\"status\":-5}\n");
            fflush(stdout);
            continue;
        }
        j.json = sl_json_root(doc);
        answer(&j);
        sl_json_doc_free(doc);
    }
    sl_vocab_free(j.vocab);
    sl_free(j.mask);
    free(line);
    return 0;
}

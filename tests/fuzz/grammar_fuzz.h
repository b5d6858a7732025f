/* What the fuzz targets of src/grammar share: a vocabulary, and a walk whose every mask is held
 * against reading the tokens' bytes. */
#ifndef SL_FUZZ_GRAMMAR_FUZZ_H
#define SL_FUZZ_GRAMMAR_FUZZ_H

#include "grammar/grammar.h"

#include <string.h>

static sl_vocab *fuzz_vocab(void) {
    static const char *const words[] = {"{\"",
                                        "\":",
                                        "\",\"",
                                        "}}",
                                        "true",
                                        "null",
                                        "ab",
                                        "aa",
                                        "12",
                                        "0.",
                                        "\\u00",
                                        "\n ",
                                        "a\"}",
                                        "\xc3\xa9",
                                        "foo",
                                        "]]",
                                        "aba",
                                        "abc1",
                                        "a\xc3\xa9",
                                        "\xc3\xa9\xc3\xa8z",
                                        "\xe4\xb8\xad",
                                        "\xe4\xb8\xadz",
                                        "\xf0\x9f\x98\x80",
                                        "a\xf0\x9f\x98\x80"};
    static sl_vocab *v;
    sl_span texts[128 + SL_LEN(words) + 2] = {{0}};
    static uint8_t bytes[129];
    uint32_t n = 0;
    if (v) return v;
    for (unsigned b = 0; b < 128; b++) bytes[b] = (uint8_t)b, texts[n++] = (sl_span){&bytes[b], 1};
    bytes[128] = 0xc3;
    texts[n++] = (sl_span){&bytes[128], 1};
    for (size_t i = 0; i < SL_LEN(words); i++)
        texts[n++] = (sl_span){(const uint8_t *)words[i], strlen(words[i])};
    SL_ASSERT(sl_vocab_create(texts, n + 1, &n, 1, &v, NULL) == SL_OK);
    return v;
}

/* `steps` tokens, chosen by the sum of what was allowed before. */
static void fuzz_walk(sl_grammar *g, const sl_vocab *v, unsigned steps) {
    sl_grammar_at at = sl_grammar_begin(g);
    uint32_t mask[8], choice = 1;
    sl_err err = {0};
    SL_ASSERT(sl_vocab_words(v) <= SL_LEN(mask));
    for (unsigned k = 0; k < steps; k++) {
        uint32_t n = 0, pick = UINT32_MAX;
        sl_grammar_allowed what;
        if (sl_grammar_mask(g, at, mask, &what, &err) != SL_OK) break;
        for (uint32_t id = 0; id < sl_vocab_size(v); id++) {
            const bool in = mask[id / 32] >> id % 32 & 1;
            sl_grammar_at to = at;
            const sl_status st = sl_grammar_take(g, id, &to, &err);
            if (st == SL_ERR_LIMIT) return;
            SL_ASSERT(in == (st == SL_OK));
            n += in;
            if (in && !sl_vocab_is_end(v, id) && (choice = choice * 2654435761u + id) % n == 0)
                pick = id;
        }
        SL_ASSERT(SL_MIN(n, 2u) == what.n && what.end == sl_grammar_may_end(g, at));
        if (pick == UINT32_MAX) break;
        SL_ASSERT(sl_grammar_take(g, pick, &at, &err) == SL_OK);
    }
    SL_ASSERT(sl_grammar_memory(g) < SL_GRAMMAR_MAX_MEMORY * 2);
}

static void fuzz_made(sl_status st, sl_grammar *g, const sl_vocab *v, const sl_err *err,
                      unsigned steps) {
    SL_ASSERT((st == SL_OK) == (g != NULL) && (st == SL_OK || err->msg[0]));
    if (st != SL_OK)
        SL_ASSERT(st == SL_ERR_FORMAT || st == SL_ERR_UNSUPPORTED || st == SL_ERR_LIMIT ||
                  st == SL_ERR_ARG);
    else
        fuzz_walk(g, v, steps);
    sl_grammar_free(g);
}

#endif

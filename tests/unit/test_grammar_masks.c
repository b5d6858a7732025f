/* Masks over a vocabulary whose subtrees are large enough to be decided at once: every bit is held
 * against reading the token's bytes, which looks at no tree. */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* Characters of one to four bytes, among them one that ends a string and one that escapes in it. */
static const char *const letters[] = {"a",
                                      "b",
                                      "z",
                                      "\xc3\xa9",
                                      "\xe0\xa0\x80",
                                      "\xe4\xb8\xad",
                                      "\xf0\x9f\x98\x80",
                                      "\xf4\x8f\xbf\xbf",
                                      "A",
                                      "0",
                                      "9",
                                      "-",
                                      ".",
                                      "/",
                                      "~",
                                      "@",
                                      " ",
                                      "\"",
                                      "\\",
                                      "\xdf\xbf",
                                      "\xef\xbf\xbd"};
#define N_LETTERS SL_LEN(letters)
#define N_WORDS   3000u
#define N_ALONE   8u /* characters that no other token goes on from */
#define N_TOKENS  (N_LETTERS * (1 + N_LETTERS) + N_WORDS + N_ALONE + 256 + 3)
#define END       ((uint32_t)(N_TOKENS - 1))

static char texts[N_TOKENS][48];
static sl_span spans[N_TOKENS];

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

/* A word of ASCII, of other characters or of both: few letters come again and again. */
static void draw_word(uint64_t *state, char *out) {
    const uint32_t kind = draw(state, 4);
    for (uint32_t k = draw(state, 8) + 3; k > 0; k--) {
        uint32_t i = draw(state, N_LETTERS);
        if (kind < 2) i = draw(state, kind ? 8 : 3);
        if (kind == 2 && i < 19) i = 3 + draw(state, 5);
        strcat(out, letters[i]);
    }
}

static sl_vocab *make_vocab(void) {
    uint64_t state = 7;
    uint32_t n = 0;
    sl_vocab *v = NULL;
    sl_err err = {0};
    for (uint32_t i = 0; i < N_LETTERS; i++) strcpy(texts[n++], letters[i]);
    for (uint32_t i = 0; i < N_LETTERS * N_LETTERS; i++)
        snprintf(texts[n++], sizeof texts[0], "%s%s", letters[i / N_LETTERS],
                 letters[i % N_LETTERS]);
    for (uint32_t i = 0; i < N_WORDS; i++) draw_word(&state, texts[n++]);
    for (uint32_t i = 0; i < N_ALONE; i++)
        snprintf(texts[n++], sizeof texts[0], "\xf0\x9f\x8e%c", (char)(0x80 + i));
    for (uint32_t i = 0; i < n; i++)
        spans[i] = (sl_span){(const uint8_t *)texts[i], strlen(texts[i])};
    for (uint32_t b = 0; b < 256; b++, n++) {
        texts[n][0] = (char)b;
        spans[n] = (sl_span){(const uint8_t *)texts[n], 1};
    }
    spans[n++] = (sl_span){(const uint8_t *)"\xad"
                                            "ab",
                           3}; /* begins with half a character */
    spans[n++] = (sl_span){NULL, 0};
    assert_int_equal(n, END);
    if (sl_vocab_create(spans, N_TOKENS, &(uint32_t){END}, 1, &v, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return v;
}

/* Along drawn tokens, each mask. */
static void walk(sl_grammar *g, const char *what, uint64_t seed) {
    static uint32_t mask[(N_TOKENS + 31) / 32];
    sl_grammar_at at = sl_grammar_begin(g);
    sl_err err = {0};
    for (int step = 0; step < 10; step++) {
        uint32_t n = 0, pick = END;
        if (sl_grammar_mask(g, at, mask, NULL, &err) != SL_OK) fail_msg("%s: %s", what, err.msg);
        for (uint32_t id = 0; id < N_TOKENS; id++) {
            const bool in = mask[id / 32] >> id % 32 & 1;
            sl_grammar_at to = at;
            if (in != (sl_grammar_take(g, id, &to, &err) == SL_OK))
                fail_msg("%s: token %u at step %d is %s", what, id, step, in ? "in" : "not in");
            if (in && id != END && draw(&seed, ++n) == 0) pick = id;
        }
        if (pick == END) break;
        assert_int_equal(sl_grammar_take(g, pick, &at, &err), SL_OK);
    }
}

static void masks_are_what_bytes_say(void **state) {
    (void)state;
    sl_vocab *v = make_vocab();
    static const char *const patterns[] = {
        "[a-z]+[0-9]",
        "[^/~]*",
        "([^/~]|~[01])*",
        "[ab]{2,9}z*",
        "[a-z\\u00e9]+",
        "[^\\u00e9]*a",
        "[^\\u4e2d]+",
        "[^\\u{1f380}]*",
        "[^\\u{10ffff}]*",
        "[a-z]*([\\u0080-\\u{10ffff}]-?)*",
        ".{1,4}",
        "[^a\\u0800]*",
        "[^\\ud83d\\ude00]*",
        "[\\u0080-\\uffff]+",
        "[\\u0080-\\u{10ffff}]*9",
        ".*",
        ".{3,12}",
        "(.*aab.*|[^z]*)",
        "a([ab-]{0,4}[ab])?(\\.a)*",
        "([a-y]|z[a-y])*",
    };
    for (size_t i = 0; i < SL_LEN(patterns); i++) {
        sl_grammar *g = NULL;
        sl_err err = {0};
        const sl_span regex = {(const uint8_t *)patterns[i], strlen(patterns[i])};
        if (sl_grammar_of_regex(v, regex, &g, &err) != SL_OK) fail_msg("%s", err.msg);
        for (uint64_t seed = 1; seed <= 3; seed++) walk(g, patterns[i], seed);
        sl_grammar_free(g);
    }
    sl_vocab_free(v);
}

static void masks_of_strings_are_what_bytes_say(void **state) {
    (void)state;
    sl_vocab *v = make_vocab();
    static const char *const schemas[] = {
        "{\"type\":\"string\"}",
        "{\"type\":\"string\",\"maxLength\":5}",
        "{\"type\":\"string\",\"minLength\":3,\"pattern\":\"^[a-z]*$\"}",
        "{\"type\":\"string\",\"pattern\":\"[^a]b\",\"maxLength\":7}",
        "{\"type\":\"string\",\"pattern\":\"^[^ ]+$\"}",
        "{\"type\":\"string\",\"format\":\"email\"}",
        "{\"type\":\"string\",\"format\":\"hostname\"}",
        "{\"type\":\"string\",\"format\":\"json-pointer\"}",
        "{\"type\":\"string\",\"format\":\"uri\"}",
        "{\"type\":\"object\",\"properties\":{\"aab\":{}},\"additionalProperties\":true}",
        "{\"enum\":[\"aab\",\"aaba\",\"aabaz\",\"zzz\"]}",
    };
    for (size_t i = 0; i < SL_LEN(schemas); i++) {
        sl_grammar *g = NULL;
        sl_json_doc *doc = NULL;
        sl_err err = {0};
        const sl_span text = {(const uint8_t *)schemas[i], strlen(schemas[i])};
        assert_int_equal(sl_json_parse("schema", text, &doc, &err), SL_OK);
        if (sl_grammar_of_schema(v, sl_json_root(doc), SL_JSON_SPACE_SOME, &g, &err) != SL_OK)
            fail_msg("%s", err.msg);
        for (uint64_t seed = 1; seed <= 3; seed++) walk(g, schemas[i], seed);
        sl_grammar_free(g);
        sl_json_doc_free(doc);
    }
    sl_vocab_free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_bytes_say),
        cmocka_unit_test(masks_of_strings_are_what_bytes_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Masks along given texts, timed: `bench_mask TOKENS SCHEMAS [REPEAT]`. TOKENS: a line a token, its
 * bytes in hexadecimal; or a folder with a tokenizer. SCHEMAS: a JSON list of {"name", "schema",
 * "tokens": [[ids]]}, which bench/peers/masks.py writes. A line a case: name, microseconds of
 * compiling, then of each mask and each step. */
#include "base/mem.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_FILE ((size_t)256 << 20)

static void must(sl_status st, const sl_err *err) {
    if (st == SL_OK) return;
    fprintf(stderr, "bench_mask: %s\n", err->msg);
    exit(1);
}

static sl_vocab *vocab_of_file(const char *path) {
    FILE *f = fopen(path, "r");
    sl_span *texts = sl_alloc(SL_VOCAB_MAX_IDS, sizeof *texts);
    sl_vocab *v = NULL;
    sl_err err = {0};
    char *line = NULL;
    size_t cap = 0;
    uint32_t n = 0;
    if (!f || !texts) must(sl_fail(&err, SL_ERR_IO, "%s cannot be read", path), &err);
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0 && n < SL_VOCAB_MAX_IDS; n++) {
        uint8_t *to = sl_alloc((size_t)len / 2, 1);
        size_t k = 0;
        for (ssize_t i = 0; i + 2 < len; i += 2) {
            const char pair[3] = {line[i], line[i + 1], 0};
            to[k++] = (uint8_t)strtoul(pair, NULL, 16);
        }
        texts[n] = (sl_span){to, k};
    }
    const uint32_t end = n - 1;
    must(sl_vocab_create(texts, n, &end, 1, &v, &err), &err);
    for (uint32_t i = 0; i < n; i++) sl_free((void *)texts[i].data);
    sl_free(texts);
    free(line);
    fclose(f);
    return v;
}

static sl_vocab *vocab_of(const char *path) {
    struct stat st;
    sl_tokenizer *tok = NULL;
    sl_vocab *v = NULL;
    sl_err err = {0};
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return vocab_of_file(path);
    must(sl_tokenizer_open(path, &tok, &err), &err);
    must(sl_vocab_of_tokenizer(tok, NULL, 0, &v, &err), &err);
    sl_tokenizer_free(tok);
    return v;
}

/* Time of the processor: what others on the machine do counts for less. */
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double us_since(uint64_t from) {
    return (double)(now_ns() - from) / 1e3;
}

static void run(const sl_vocab *v, sl_json item, uint32_t *mask) {
    const sl_json texts = sl_json_get(item, "tokens");
    sl_span name = {0};
    sl_grammar *g = NULL;
    sl_err err = {0};
    const uint64_t from = now_ns();
    must(sl_grammar_of_schema(v, sl_json_get(item, "schema"), SL_JSON_SPACE_SOME, &g, &err), &err);
    const double compile_us = us_since(from);
    (void)sl_json_as_span(sl_json_get(item, "name"), &name);
    printf("%.*s\t%.2f", (int)name.len, (const char *)name.data, compile_us);
    for (size_t i = 0; i < sl_json_count(texts); i++) {
        sl_grammar_at at = sl_grammar_begin(g);
        const sl_json ids = sl_json_at(texts, i);
        for (size_t k = 0; k < sl_json_count(ids); k++) {
            uint64_t id = 0;
            (void)sl_json_as_u64(sl_json_at(ids, k), &id);
            const uint64_t mask_from = now_ns();
            must(sl_grammar_mask(g, at, mask, NULL, &err), &err);
            const double mask_us = us_since(mask_from);
            if (!(mask[id / 32] >> id % 32 & 1))
                must(sl_fail(&err, SL_ERR_ARG, "%s: token %llu is not allowed", name.data,
                             (unsigned long long)id),
                     &err);
            const uint64_t step_from = now_ns();
            must(sl_grammar_take(g, (uint32_t)id, &at, &err), &err);
            printf("\t%.2f:%.2f", mask_us, us_since(step_from));
        }
    }
    printf("\n");
    sl_grammar_free(g);
}

int main(int argc, char **argv) {
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: bench_mask TOKENS SCHEMAS [REPEAT]\n");
        return 2;
    }
    const uint64_t from = now_ns();
    sl_vocab *v = vocab_of(argv[1]);
    fprintf(stderr, "vocabulary: %u tokens, %.1f ms\n", sl_vocab_size(v), us_since(from) / 1e3);
    must(sl_json_load(argv[2], MAX_FILE, &doc, &err), &err);
    uint32_t *mask = sl_alloc(sl_vocab_words(v), sizeof *mask);
    for (int r = argc > 3 ? atoi(argv[3]) : 1; r > 0; r--)
        for (size_t i = 0; i < sl_json_count(sl_json_root(doc)); i++)
            run(v, sl_json_at(sl_json_root(doc), i), mask);
    sl_free(mask);
    sl_json_doc_free(doc);
    sl_vocab_free(v);
    return 0;
}

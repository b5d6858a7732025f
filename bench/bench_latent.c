/* Latent attention of a prompt in both its forms (src/model/mla.c, mla_expanded.c): one block on
 * random weights, chunk after chunk, the forms of a chunk one after the other.
 * usage: bench_latent MODEL [PROMPT [CHUNK...]]     MODEL's weights are not read
 * One CSV line a chunk size: prompt, rows of a chunk, CPU seconds of the block's attention with all
 * its projections, absorbed and expanded, absorbed over expanded of the whole prompt and of its
 * last chunk. One thread, whose own time counts, whatever else the machine does. */
#include "base/clock.h"
#include "base/rng.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST         16384u
#define WEIGHT_BYTES ((size_t)1 << 30)

typedef struct bench {
    const sl_model *m;
    const sl_model_spec *s;
    sl_exec ex;
    sl_arena scratch;
    float *kv;
    uint32_t *page;
    const uint32_t **pages;
    float *x, *in;
    uint32_t *pos;
} bench;

static double chunk_s(bench *b, uint32_t first, uint32_t n, uint32_t expand_rows) {
    const sl_rows rows = {
        .n = n, .pos = b->pos + first, .kv = sl_kv_pool_of(b->s, b->kv), .pages = b->pages};
    memcpy(b->x, b->in + (size_t)first * b->s->d_model, n * b->s->d_model * sizeof *b->x);
    b->ex.expand_rows = expand_rows;
    uint64_t began_ns = sl_thread_cpu_ns();
    sl_block_attention(b->m, &b->ex, 0, &rows, b->x, &b->scratch);
    return (double)(sl_thread_cpu_ns() - began_ns) / 1e9;
}

static void prompt(bench *b, uint32_t n, uint32_t chunk) {
    double absorbed = 0, expanded = 0, last[2] = {0};
    for (uint32_t at = 0, i = 0; at < n; at += chunk, i++) {
        uint32_t rows = SL_MIN(chunk, n - at);
        bool first = i % 2;
        last[first] = chunk_s(b, at, rows, first);
        last[!first] = chunk_s(b, at, rows, !first);
        absorbed += last[0];
        expanded += last[1];
    }
    printf("%u,%u,%.2f,%.2f,%.2f,%.2f\n", n, chunk, absorbed, expanded, absorbed / expanded,
           last[0] / last[1]);
    fflush(stdout);
}

static bool make(bench *b, uint32_t n, sl_err *err) {
    uint64_t seed = 7;
    size_t values = (size_t)n * b->s->d_model, pages = sl_kv_pages_for(n);
    b->x = sl_alloc(values, sizeof *b->x);
    b->in = sl_alloc(values, sizeof *b->in);
    b->pos = sl_alloc(n, sizeof *b->pos);
    b->page = sl_alloc(pages, sizeof *b->page);
    b->pages = sl_alloc(n, sizeof *b->pages);
    b->kv = sl_reserve(pages, sl_kv_page_bytes(b->s)); /* untouched but for block 0 */
    if (!b->x || !b->in || !b->pos || !b->page || !b->pages || !b->kv) return false;
    for (size_t i = 0; i < values; i++) b->in[i] = (float)sl_rng_below(&seed, 2001) / 1000 - 1;
    for (uint32_t i = 0; i < pages; i++) b->page[i] = i;
    for (uint32_t r = 0; r < n; r++) b->pos[r] = r, b->pages[r] = b->page;
    return sl_arena_create(sl_model_scratch_bytes(b->s, n), &b->scratch, err) == SL_OK;
}

int main(int argc, char **argv) {
    static const uint32_t usual[] = {64, 128, 171, 256, 512};
    bench b = {.ex.k = sl_kernels_select(NULL)};
    sl_model_spec spec;
    sl_model *m = NULL;
    sl_err err = {0};
    uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 2048;
    if (argc < 2 || n < 1 || n > MOST)
        return fprintf(stderr, "usage: bench_latent MODEL [PROMPT up to %u [CHUNK...]]\n", MOST), 2;
    if (sl_model_read_spec(argv[1], &spec, NULL, &err) != SL_OK ||
        sl_model_open_random(&spec, WEIGHT_BYTES, 1, &m, &err) != SL_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    b.m = m;
    b.s = sl_model_spec_of(m);
    if (!sl_model_expand_rows(b.s)) return fprintf(stderr, "%s: never expanded\n", argv[1]), 1;
    if (!make(&b, n, &err)) return fprintf(stderr, "out of memory\n"), 1;
    printf("prompt,chunk,absorbed_s,expanded_s,ratio,ratio_of_last (pays from %u rows)\n",
           sl_model_expand_rows(b.s));
    for (int i = 3; i < argc; i++)
        if (atoi(argv[i]) > 0) prompt(&b, n, (uint32_t)atoi(argv[i]));
    for (size_t i = 0; argc < 4 && i < SL_LEN(usual); i++) prompt(&b, n, usual[i]);
    return 0;
}

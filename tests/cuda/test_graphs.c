/* Steps as graphs (stage/cuda/steps.h): the bits of steps that are launched kernel by kernel, for
 * contexts that grow, rows that come and go, lanes that take turns, steps that are given up or go
 * on otherwise; graphs that are made anew where memory moves, and not at all where they cannot be.
 */
#include "base/log.h"
#include "base/rng.h"
#include "fake_driver.h"
#include "sanitized.h"
#include "stage/cuda/steps.h"
#include "stage/stage.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define LANES     2u
#define MAX_ROWS  48u
#define REQUESTS  10u
#define PER       24u /* pages of a request */
#define PAGES     (REQUESTS * PER)
#define POSITIONS (PER * 32u)

static sluice_fake_cuda_counts_fn *counts_of;
static sluice_fake_cuda_seed_fn *set_seed;
static sluice_fake_cuda_fail_fn *fail_at;
static const char *driver = "libcuda.so.1";
static char folder[] = "/tmp/sluice-graphs-XXXXXX";

static void seeded(uint64_t seed) {
    if (set_seed) set_seed(seed);
}

/* ---- devices ---- */

typedef struct lane {
    sl_mem x, h, normed;
    uint32_t *expert;
    float *gate, *logits;
} lane;

typedef struct gpu {
    sl_device *d;
    lane lane[LANES];
    uint64_t heard; /* a digest of what `routed` was told */
} gpu;

static void hears(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert) {
    gpu *g = ctx;
    for (uint32_t i = 0; i < rows * g->d->spec->top_k; i++)
        g->heard = g->heard * 1099511628211u + layer * 1000u + expert[i] + 1;
}

static sl_mem rows_of(gpu *g) {
    sl_mem m;
    sl_err err;
    if (sl_device_take_rows(g->d, MAX_ROWS, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    return m;
}

typedef struct kind {
    const char *graphs; /* SLUICE_CUDA_GRAPHS */
    sl_numerics numerics;
    sl_kv_type kv_type;
    bool hears;
} kind;

static sl_status open_as(const kind *k, gpu *g, sl_err *err) {
    const sl_device_spec spec = {.kind = SL_DEVICE_CUDA, .numerics = k->numerics};
    const sl_device_opts o = {
        .folder = folder,
        .hosts = {.attention = true, .experts = true, .random = true, .kv_type = k->kv_type},
        .device = &spec,
        .threads = 1,
        .max_rows = MAX_ROWS,
        .max_pairs = MAX_ROWS * 4,
        .kv_pages = PAGES,
        .routed = k->hears ? hears : NULL,
        .ctx = g};
    memset(g, 0, sizeof *g);
    setenv("SLUICE_CUDA_GRAPHS", k->graphs, 1);
    const sl_status st = sl_device_open(&o, &g->d, err);
    unsetenv("SLUICE_CUDA_GRAPHS");
    return st;
}

static void open_gpu(const kind *k, gpu *g) {
    sl_err err;
    if (open_as(k, g, &err) != SL_OK) fail_msg("%s", err.msg);
    const sl_model_spec *m = g->d->spec;
    for (uint32_t i = 0; i < LANES; i++) {
        lane *l = &g->lane[i];
        l->x = rows_of(g), l->h = rows_of(g), l->normed = rows_of(g);
        l->expert = calloc((size_t)MAX_ROWS * m->top_k, sizeof *l->expert);
        l->gate = calloc((size_t)MAX_ROWS * m->top_k, sizeof *l->gate);
        l->logits = calloc((size_t)MAX_ROWS * m->vocab, sizeof *l->logits);
        assert_true(l->expert && l->gate && l->logits);
    }
}

static void close_gpu(gpu *g) {
    for (uint32_t i = 0; i < LANES; i++) {
        lane *l = &g->lane[i];
        sl_device_give(g->d, l->x), sl_device_give(g->d, l->h), sl_device_give(g->d, l->normed);
        free(l->expert), free(l->gate), free(l->logits);
    }
    sl_device_close(g->d);
}

/* ---- steps ---- */

typedef struct step {
    uint32_t n, id[MAX_ROWS], pos[MAX_ROWS];
    const uint32_t *pages[MAX_ROWS];
} step;

/* Requests with drawn lists of pages, so far at done[i]. */
typedef struct load {
    uint64_t rng;
    uint32_t page[REQUESTS][PER], done[REQUESTS];
} load;

static uint32_t below(load *l, uint32_t n) {
    return (uint32_t)sl_rng_below(&l->rng, n);
}

static load new_load(uint64_t seed) {
    load l = {.rng = seed};
    uint32_t page[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) page[i] = i;
    for (uint32_t i = PAGES; i > 1; i--) {
        const uint32_t j = below(&l, i), other = page[i - 1];
        page[i - 1] = page[j];
        page[j] = other;
    }
    for (uint32_t i = 0; i < PAGES; i++) l.page[i / PER][i % PER] = page[i];
    return l;
}

/* n rows more of a request. */
static void add(load *l, const sl_model_spec *m, uint32_t request, uint32_t n, step *s) {
    for (uint32_t i = 0; i < n; i++) {
        s->id[s->n] = below(l, m->vocab);
        s->pos[s->n] = l->done[request]++;
        s->pages[s->n++] = l->page[request];
    }
}

static sl_stage_call call_of(const gpu *g, uint32_t at, const step *s, sl_stage_op op,
                             uint32_t layer) {
    const lane *l = &g->lane[at];
    return (sl_stage_call){.op = op,
                           .queue = at,
                           .layer = layer,
                           .rows = {.n = s->n,
                                    .id = s->id,
                                    .pos = s->pos,
                                    .pages = s->pages,
                                    .x = l->x,
                                    .h = l->h,
                                    .expert = l->expert,
                                    .gate = l->gate}};
}

static sl_event ask(gpu *g, uint32_t at, const step *s, sl_stage_op op, uint32_t layer) {
    const sl_stage_call c = call_of(g, at, s, op, layer);
    return sl_device_submit(g->d, &c);
}

static void ask_block(gpu *g, uint32_t at, const step *s, uint32_t layer) {
    (void)ask(g, at, s, SL_OP_ATTEND, layer);
    (void)ask(g, at, s, g->d->spec->ffn[layer] == SL_FFN_MOE ? SL_OP_INSIDE : SL_OP_DENSE, layer);
}

static void drain(gpu *g) {
    sl_device_drain(g->d);
    if (g->d->failed != SL_OK) fail_msg("%s", g->d->failure.msg);
}

static void ask_head(gpu *g, uint32_t at, const step *s) {
    static const uint32_t row[MAX_ROWS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                           12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
                                           24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,
                                           36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47};
    sl_stage_call c = call_of(g, at, s, SL_OP_HEAD, g->d->spec->n_layers);
    c.head = (sl_stage_head){.n = s->n,
                             .count = g->d->spec->vocab,
                             .row = row,
                             .h = g->lane[at].normed,
                             .logits = g->lane[at].logits};
    (void)sl_device_submit(g->d, &c);
    drain(g);
}

static void run_step(gpu *g, uint32_t at, const step *s) {
    (void)ask(g, at, s, SL_OP_EMBED, 0);
    for (uint32_t l = 0; l < g->d->spec->n_layers; l++) ask_block(g, at, s, l);
    drain(g);
    ask_head(g, at, s);
}

/* What both GPUs have made of a step of a lane. */
static void same(const gpu *want, const gpu *got, uint32_t at, uint32_t n) {
    const sl_model_spec *m = want->d->spec;
    const lane *a = &want->lane[at], *b = &got->lane[at];
    for (uint32_t i = 0; i < n * m->vocab; i++)
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)) != 0)
            fail_msg("logit %u of row %u of %u is %a, expected %a", i % m->vocab, i / m->vocab, n,
                     (double)b->logits[i], (double)a->logits[i]);
    assert_memory_equal(a->expert, b->expert, (size_t)n * m->top_k * sizeof *a->expert);
    assert_memory_equal(a->gate, b->gate, (size_t)n * m->top_k * sizeof *a->gate);
    assert_true(want->heard == got->heard);
}

static void same_pages(const gpu *want, const gpu *got) {
    const sl_model_spec *m = want->d->spec;
    const size_t bytes = m->n_layers * sl_kv_block_bytes(m);
    uint8_t *a = malloc(bytes), *b = malloc(bytes);
    assert_true(a && b);
    for (uint32_t p = 0; p < PAGES; p++) {
        want->d->ops->read_page(want->d, p, 0, m->n_layers, a);
        got->d->ops->read_page(got->d, p, 0, m->n_layers, b);
        assert_memory_equal(a, b, bytes);
    }
    free(a), free(b);
}

typedef struct counts {
    uint64_t of[FAKE_COUNTS];
} counts;

/* Zeros on a GPU: there only the bits tell. */
static counts now(void) {
    counts c = {{0}};
    if (counts_of) counts_of(c.of);
    return c;
}

#define assert_count(e) assert_true(!counts_of || (e))

static uint64_t since(const counts *c, fake_counted what) {
    return now().of[what] - c->of[what];
}

/* ---- models ---- */

/* The config.json of a fixture, with some texts in place of others. */
static void take_model(const char *fixture, const char *const (*change)[2]) {
    static char text[8192], with[8192];
    char path[512];
    snprintf(path, sizeof path, SL_SOURCE_DIR "/tests/golden/%s/config.json", fixture);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    for (; (*change)[0]; change++) {
        char *at = strstr(text, (*change)[0]);
        if (!at) fail_msg("%s has no %s", path, (*change)[0]);
        snprintf(with, sizeof with, "%.*s%s%s", (int)(at - text), text, (*change)[1],
                 at + strlen((*change)[0]));
        memcpy(text, with, sizeof text);
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static void take_blocks(const char *layers) {
    const char *const change[][2] = {{"\"head_dim\": 32", "\"head_dim\": 64"},
                                     {"\"num_hidden_layers\": 4", layers},
                                     {NULL, NULL}};
    take_model("qwen3moe-tiny", change);
}

static void take_qwen3(void) {
    take_blocks("\"num_hidden_layers\": 3");
}

/* Where what counts is how many steps there are: of two blocks the second is routed. */
static void take_few_blocks(void) {
    take_blocks("\"num_hidden_layers\": 2");
}

/* Rows that see the last 48 positions. */
static void take_mixtral(void) {
    static const char *const change[][2] = {
        {"\"head_dim\": 16", "\"head_dim\": 64"},
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2"},
        {"\"sliding_window\": null", "\"sliding_window\": 48"},
        {NULL, NULL}};
    take_model("mixtral-tiny", change);
}

/* Blocks without experts first, and a shared expert. */
static void take_glm4(void) {
    static const char *const change[][2] = {{"\"head_dim\": 24", "\"head_dim\": 64"}, {NULL, NULL}};
    take_model("glm4moe-tiny", change);
}

/* ---- tests ---- */

static const kind plainly = {.graphs = "", .numerics = SL_NUMERICS_FAST},
                  graphs = {.graphs = "try", .numerics = SL_NUMERICS_FAST};

/* Rows of some requests, one or two each, over and over, until contexts have many pages. */
static void decode(const kind *k, uint64_t seed, uint32_t steps) {
    gpu a, b;
    kind with = *k, without = *k;
    load l = new_load(seed);
    seeded(seed % 2 ? seed : 0);
    with.graphs = "try";
    without.graphs = "";
    open_gpu(&without, &a);
    open_gpu(&with, &b);
    const sl_model_spec *m = a.d->spec;
    uint64_t run = 0;
    for (uint32_t r = 0; r < REQUESTS; r++) /* keys and values before are zero */
        l.done[r] = below(&l, POSITIONS - 80);
    for (uint32_t i = 0, first = 0, n = 1; i < steps; i++) {
        step s = {.n = 0};
        if (i % 8 == 0) { /* others */
            n = 1 + below(&l, 4);
            first = below(&l, REQUESTS - n + 1);
        }
        if (i % 8 == 4) add(&l, m, first, 17 + below(&l, 8), &s); /* a part of a prompt */
        for (uint32_t j = 0; i % 8 != 4 && j < n; j++) add(&l, m, first + j, 1 + (i & j & 1), &s);
        for (uint32_t r = 0; r < REQUESTS; r++) assert_true(l.done[r] < POSITIONS);
        run_step(&a, 0, &s);
        const counts before = now();
        run_step(&b, 0, &s);
        same(&a, &b, 0, s.n);
        const uint64_t ran = since(&before, FAKE_GRAPHS);
        run += ran;
        assert_true(ran <= 1);
        if (ran) /* the head's are all that is left to launch */
            assert_count(since(&before, FAKE_LAUNCHES) <= 4);
    }
    same_pages(&a, &b);
    if (counts_of && run < steps / 4) fail_msg("%u of %u steps were graphs", (unsigned)run, steps);
    close_gpu(&a);
    close_gpu(&b);
}

static void steps_have_the_same_bits(void **state) {
    static void (*const take[])(void) = {take_qwen3, take_mixtral, take_glm4};
    static const sl_kv_type types[] = {SL_KV_F32, SL_KV_F16, SL_KV_BF16, SL_KV_Q8_0, SL_KV_FP8};
    (void)state;
    for (uint32_t i = 0, all = take_whole() ? 5 : SL_SLOW_BUILD ? 1 : 2; i < all; i++) {
        take[i % SL_LEN(take)]();
        const kind k = {.numerics = SL_NUMERICS_FAST, .kv_type = types[i], .hears = i % 2};
        decode(&k, 40 + i, 12);
    }
}

/* Kernels that may begin early do so in a graph, too, and it has as many as a step has without. */
static void kernels_are_the_same(void **state) {
    gpu g;
    counts c[2];
    load l = new_load(3);
    (void)state;
    seeded(0);
    take_qwen3();
    open_gpu(&graphs, &g);
    for (uint32_t i = 0; i < 6; i++) {
        step s = {.n = 0};
        add(&l, g.d->spec, 0, 1, &s);
        const counts before = now();
        run_step(&g, 0, &s);
        if (i == 0 || i == 5)
            for (uint32_t j = 0; j < FAKE_COUNTS; j++) c[i == 5].of[j] = now().of[j] - before.of[j];
    }
    assert_count(c[0].of[FAKE_GRAPHS] == 0 && c[1].of[FAKE_GRAPHS] == 1);
    assert_count(c[0].of[FAKE_LAUNCHES] == c[1].of[FAKE_LAUNCHES] + c[1].of[FAKE_OF_GRAPHS]);
    assert_count(c[0].of[FAKE_EARLY] == c[1].of[FAKE_EARLY] + c[1].of[FAKE_EARLY_OF_GRAPHS]);
    assert_count(c[1].of[FAKE_EARLY_OF_GRAPHS] > 10);
    close_gpu(&g);
}

/* Two lanes, block by block in turn; results of one come while the other runs. */
static void lanes_take_turns(void **state) {
    gpu a, b;
    load l = new_load(8);
    (void)state;
    if (SL_SLOW_BUILD && !take_whole()) return;
    take_glm4();
    for (uint32_t seed = 0, all = take_whole() ? 2 : 1; seed < all; seed++) {
        seeded(seed);
        open_gpu(&plainly, &a);
        open_gpu(&graphs, &b);
        const counts before = now();
        for (uint32_t i = 0; i < 8; i++) {
            step s[LANES] = {{.n = 0}, {.n = 0}};
            for (uint32_t j = 0; j < LANES; j++)
                for (uint32_t r = 0; r < 1 + (j & i / 4); r++)
                    add(&l, a.d->spec, j * 5 + r, 1, &s[j]);
            gpu *const both[] = {&a, &b};
            for (uint32_t k = 0; k < 2; k++) {
                gpu *g = both[k];
                for (uint32_t j = 0; j < LANES; j++) (void)ask(g, j, &s[j], SL_OP_EMBED, 0);
                for (uint32_t y = 0; y < g->d->spec->n_layers * LANES; y++) {
                    ask_block(g, y % LANES, &s[y % LANES], y / LANES);
                    if (y % 3 == 0) (void)sl_device_poll(g->d);
                }
                drain(g);
                for (uint32_t j = 0; j < LANES; j++) ask_head(g, j, &s[j]);
            }
            for (uint32_t j = 0; j < LANES; j++) same(&a, &b, j, s[j].n);
        }
        assert_count(since(&before, FAKE_GRAPHS) >= 6);
        same_pages(&a, &b);
        close_gpu(&a);
        close_gpu(&b);
    }
}

/* Steps that are given up after some calls, and others that go on as no step of the model does:
 * what they find is what plain launches leave. */
static void steps_go_on_otherwise(void **state) {
    gpu a, b;
    load l = new_load(5);
    (void)state;
    kind k = plainly;
    k.hears = true;
    seeded(7);
    take_qwen3();
    open_gpu(&k, &a);
    k.graphs = "try";
    open_gpu(&k, &b);
    const sl_model_spec *m = a.d->spec;
    const counts before = now();
    for (uint32_t i = 0; i < 25; i++) {
        step s = {.n = 0};
        const bool half = i % 2, head = i % 10 == 4;
        const uint32_t stop = i % 5 != 4 ? m->n_layers
                              : head     ? below(&l, m->n_layers)
                                         : m->n_layers - 1;
        for (uint32_t r = 0; r < 2; r++) add(&l, m, r, 1, &s);
        gpu *const both[] = {&a, &b};
        for (uint32_t w = 0; w < 2; w++) {
            gpu *g = both[w];
            (void)ask(g, 0, &s, SL_OP_EMBED, 0);
            for (uint32_t y = 0; y < stop; y++) ask_block(g, 0, &s, y);
            if (stop == m->n_layers) {
                drain(g);
                ask_head(g, 0, &s);
            } else if (head) { /* reads rows in the middle of the blocks */
                if (half) (void)ask(g, 0, &s, SL_OP_ATTEND, stop);
                ask_head(g, 0, &s);
            } /* else the next one begins */
        }
        if (stop == m->n_layers || head) same(&a, &b, 0, s.n);
        for (uint32_t r = 0; r < 2 && stop < m->n_layers; r++) l.done[r]--; /* once more, whole */
    }
    assert_count(since(&before, FAKE_GRAPHS) >= 8);
    close_gpu(&a);
    close_gpu(&b);
}

/* Calls of a lane that were launched behind another lane's graph are through when they are, not
 * when that is. */
static void nobody_is_through_too_early(void **state) {
    gpu g;
    load l = new_load(9);
    (void)state;
    if (!set_seed) return; /* rows of a GPU are out of reach */
    take_qwen3();
    open_gpu(&graphs, &g);
    const sl_model_spec *m = g.d->spec;
    float *early = calloc(20 * (size_t)m->d_model, sizeof *early);
    uint8_t *page = malloc(sl_kv_block_bytes(m));
    assert_true(early && page);
    for (uint32_t i = 0; i < 12; i++) {
        step s = {.n = 0}, other = {.n = 0};
        sl_event last = {0};
        add(&l, m, 0, 1, &s);
        add(&l, m, 1, 20, &other);
        seeded(100 + i);
        (void)ask(&g, 0, &s, SL_OP_EMBED, 0);
        const sl_event e = ask(&g, 1, &other, SL_OP_EMBED, 0);
        for (uint32_t y = 0; y < m->n_layers; y++) {
            (void)ask(&g, 0, &s, SL_OP_ATTEND, y);
            last = ask(&g, 0, &s, m->ffn[y] == SL_FFN_MOE ? SL_OP_INSIDE : SL_OP_DENSE, y);
        }
        while (!sl_device_is_done(g.d, &last)) (void)sl_device_poll(g.d);
        const bool done = sl_device_is_done(g.d, &e);
        const float *x = (const float *)(uintptr_t)g.lane[1].x.at;
        memcpy(early, x, 20 * (size_t)m->d_model * sizeof *x);
        drain(&g);
        g.d->ops->read_page(g.d, 0, 0, 1, page); /* when all has run, whoever is through */
        if (done) assert_memory_equal(early, x, 20 * (size_t)m->d_model * sizeof *x);
    }
    free(early), free(page);
    close_gpu(&g);
}

static void run_both(gpu *a, gpu *b, load *l, uint32_t n) {
    step s = {.n = 0};
    for (uint32_t r = 0; r < n; r++) add(l, a->d->spec, r, 1, &s);
    run_step(a, 0, &s);
    run_step(b, 0, &s);
    same(a, b, 0, n);
}

/* Scratch that grows, experts that go and come back: graphs that have the old places go. */
static void what_moves_is_recorded_anew(void **state) {
    gpu a, b;
    load l = new_load(21);
    sl_err err;
    (void)state;
    seeded(0);
    take_qwen3();
    open_gpu(&plainly, &a);
    open_gpu(&graphs, &b);
    const sl_model_spec *m = a.d->spec;
    const uint32_t experts = m->n_moe * m->n_experts;
    uint8_t *some = calloc(experts, 1), *all = calloc(experts, 1);
    assert_true(some && all);
    memset(all, 1, experts);
    memset(some + experts / 2, 1, experts - experts / 2);
    for (uint32_t i = 0; i < 4; i++) run_both(&a, &b, &l, 2);
    counts before = now();
    run_both(&a, &b, &l, 2);
    assert_count(since(&before, FAKE_GRAPHS) == 1 && since(&before, FAKE_GRAPHS_GONE) == 0);
    gpu *const both[] = {&a, &b};
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t w = 0; w < 2; w++) {
            sl_hosting left = SL_HOSTING_GOES_ON;
            while (left != SL_HOSTING_DONE)
                if (sl_device_host(both[k]->d, w ? all : some, MAX_ROWS * 4, true, &left, &err) !=
                    SL_OK)
                    fail_msg("%s", err.msg);
        }
    run_both(&a, &b, &l, 2);
    assert_count(since(&before, FAKE_GRAPHS) == 2 && since(&before, FAKE_GRAPHS_GONE) == 1);
    before = now();
    for (uint32_t k = 0; k < 2; k++) { /* scratch of attention for a long prompt */
        step s = {.n = 0};
        load same_again = l;
        for (uint32_t r = 0; r < MAX_ROWS / 4; r++)
            add(&same_again, m, r % (REQUESTS - 4) + 4, 4, &s);
        run_step(both[k], 0, &s);
    }
    for (uint32_t i = 0; i < 4; i++) run_both(&a, &b, &l, 2);
    assert_count(since(&before, FAKE_GRAPHS) >= 2);
    same_pages(&a, &b);
    free(some), free(all);
    close_gpu(&a);
    close_gpu(&b);
}

/* More kinds of steps than are kept: rows at many places. */
static void those_used_last_are_kept(void **state) {
    gpu a, b;
    load l = new_load(4);
    (void)state;
    if (SL_SLOW_BUILD && !take_whole()) return; /* a minute and more */
    seeded(0);
    take_few_blocks();
    open_gpu(&plainly, &a);
    open_gpu(&graphs, &b);
    const sl_mem x[] = {a.lane[0].x, b.lane[0].x};
    const counts before = now();
    for (uint32_t k = 0; k < SL_CUDA_STEPS + 4; k++)
        for (uint32_t i = 0; i < 2; i++) {
            step s = {.n = 0};
            add(&l, a.d->spec, 0, 1, &s);
            a.lane[0].x.at = x[0].at + k * a.d->spec->d_model * sizeof(float);
            b.lane[0].x.at = x[1].at + k * b.d->spec->d_model * sizeof(float);
            run_step(&a, 0, &s);
            run_step(&b, 0, &s);
            same(&a, &b, 0, s.n);
        }
    const uint64_t gone = since(&before, FAKE_GRAPHS_GONE);
    a.lane[0].x = x[0], b.lane[0].x = x[1];
    close_gpu(&a);
    close_gpu(&b);
    assert_count(gone >= 3 && since(&before, FAKE_GRAPHS_GONE) == gone + SL_CUDA_STEPS);
}

/* What cannot be recorded runs as ever. */
static void what_cannot_be_runs_plainly(void **state) {
    static const char *const calls[] = {"cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags", "cuGraphLaunch"};
    gpu a, b;
    (void)state;
    if (SL_SLOW_BUILD && !take_whole()) return; /* a minute and more */
    seeded(0);
    take_few_blocks();
    for (uint32_t i = 0; i < SL_LEN(calls); i += take_one_in(SL_LEN(calls) - 1)) {
        load l = new_load(i);
        open_gpu(&plainly, &a);
        open_gpu(&graphs, &b);
        for (uint32_t j = 0; j < 2; j++) run_both(&a, &b, &l, 3);
        const counts before = now();
        if (fail_at) fail_at(calls[i], 1, i == 3 ? 2 : i ? 901 : 1);
        for (uint32_t j = 0; j < 3; j++) run_both(&a, &b, &l, 3);
        assert_count(since(&before, FAKE_GRAPHS) >= 1);
        close_gpu(&a);
        close_gpu(&b);
    }
    /* Lists that the host makes for attention of numerics exact. */
    kind exact = {.graphs = "", .numerics = SL_NUMERICS_EXACT};
    load l = new_load(11);
    open_gpu(&exact, &a);
    exact.graphs = "try";
    open_gpu(&exact, &b);
    const counts before = now();
    for (uint32_t j = 0; j < 8; j++) run_both(&a, &b, &l, 3);
    assert_count(since(&before, FAKE_GRAPHS) == 0);
    close_gpu(&a);
    close_gpu(&b);
    sl_err err;
    const kind wrong = {.graphs = "yes", .numerics = SL_NUMERICS_FAST};
    assert_int_equal(open_as(&wrong, &a, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "SLUICE_CUDA_GRAPHS 'yes' is unknown: try"));
}

/* ---- the rest ---- */

/* NULL: on a GPU. */
static void look_up(void *library, const char *name, void *out) {
    void *p = dlsym(library, name);
    memcpy(out, &p, sizeof p);
}

static int begin(void **state) {
    (void)state;
    void *library = dlopen(driver, RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    look_up(library, "sluice_fake_cuda_counts", &counts_of);
    look_up(library, "sluice_fake_cuda_seed", &set_seed);
    look_up(library, "sluice_fake_cuda_fail", &fail_at);
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int end(void **state) {
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    return rmdir(folder);
}

/* The tests' driver, if that is what SLUICE_CUDA_DRIVER names, is the only argument. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_have_the_same_bits),
        cmocka_unit_test(kernels_are_the_same),
        cmocka_unit_test(lanes_take_turns),
        cmocka_unit_test(steps_go_on_otherwise),
        cmocka_unit_test(what_moves_is_recorded_anew),
        cmocka_unit_test(those_used_last_are_kept),
        cmocka_unit_test(what_cannot_be_runs_plainly),
        cmocka_unit_test(nobody_is_through_too_early),
    };
    if (argc > 1) driver = argv[1];
    return cmocka_run_group_tests(tests, begin, end);
}

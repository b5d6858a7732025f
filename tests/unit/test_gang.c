/* A gang is a device: of every family's fixture, 1, 2, 4 and 8 ranks give the same bits where sums
 * are taken in segments, and nearly those of one device where they are not; pages that one wrote,
 * others go on from. */
#include "base/mem.h"
#include "base/rng.h"
#include "model/convert.h"
#include "stage/stage.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"
#define ROWS   41u /* of a step: two requests, one of which goes into a second page */
#define STEPS  2u
#define PAGES  8u
#define PAIRS  (ROWS * 16u)
/* Of the largest logit: sums of ranks round in another order, and rounded rows with them. */
#define APART         1e-4
#define APART_ROUNDED 1e-1

typedef struct run {
    sl_device *d;
    const sl_model_spec *s;
    float *x, *h, *shared, *y, *logits, *normed;
    uint32_t *expert, id[ROWS], pos[ROWS];
    float *gate;
    const uint32_t *pages[ROWS];
} run;

static void *floats(size_t n) {
    void *p = calloc(n, sizeof(float));
    assert_non_null(p);
    return p;
}

static sl_device *open_gang(const char *folder, uint32_t ranks, bool segmented,
                            sl_activations activations, uint32_t threads) {
    static const sl_device_spec cpu = {.kind = SL_DEVICE_CPU};
    const sl_device_opts o = {.folder = folder,
                              .hosts = {.attention = true, .experts = true, .segmented = segmented},
                              .device = &cpu,
                              .ranks = ranks,
                              .threads = threads,
                              .activations = activations,
                              .exact = segmented,
                              .max_rows = ROWS,
                              .max_pairs = PAIRS,
                              .kv_pages = PAGES};
    sl_device *d = NULL;
    sl_err err;
    if (sl_device_open(&o, &d, &err) != SL_OK) fail_msg("%s", err.msg);
    return d;
}

static run start(sl_device *d) {
    run r = {.d = d, .s = d->spec};
    size_t n = (size_t)ROWS * r.s->d_model, k = (size_t)ROWS * r.s->top_k;
    r.x = floats(n), r.h = floats(n), r.shared = floats(n), r.normed = floats(n);
    r.y = floats(k * r.s->d_model);
    r.logits = floats((size_t)ROWS * r.s->vocab);
    r.expert = floats(k), r.gate = floats(k);
    return r;
}

static void end(run *r) {
    free(r->x), free(r->h), free(r->shared), free(r->y), free(r->logits), free(r->normed);
    free(r->expert), free(r->gate);
    sl_device_close(r->d);
}

static sl_mem mem(const void *p, size_t n) {
    return sl_mem_host(p, n * sizeof(float));
}

static sl_stage_call call_of(run *r, sl_stage_op op, uint32_t layer) {
    size_t n = (size_t)ROWS * r->s->d_model;
    return (sl_stage_call){.op = op,
                           .layer = layer,
                           .rows = {.n = ROWS,
                                    .id = r->id,
                                    .pos = r->pos,
                                    .pages = r->pages,
                                    .x = mem(r->x, n),
                                    .h = mem(r->h, n),
                                    .expert = r->expert,
                                    .gate = r->gate}};
}

static void run_op(run *r, sl_stage_op op, uint32_t layer) {
    const sl_stage_call c = call_of(r, op, layer);
    sl_device_submit(r->d, &c);
    sl_device_drain(r->d);
}

/* Every pair's result to r->y, row by row in the order of the chosen experts; half of the experts
 * by places, as engines do it. */
static void run_experts(run *r, uint32_t layer) {
    const uint32_t k = r->s->top_k, all = ROWS * k;
    uint32_t group[256], first[257] = {0}, row[PAIRS], to[PAIRS], n = 0, at = 0;
    float gate[PAIRS];
    static const uint8_t adds[PAIRS];
    assert_true(all <= PAIRS && r->s->n_experts <= 256);
    for (uint32_t e = 0; e < r->s->n_experts; e++) {
        for (uint32_t i = 0; i < all; i++) {
            if (r->expert[i] != e) continue;
            row[at] = i / k, to[at] = i, gate[at++] = r->gate[i];
        }
        group[n++] = e;
        first[n] = at;
    }
    const sl_stage_part part = {mem(r->y, (size_t)all * r->s->d_model), all};
    sl_stage_call c = {.op = SL_OP_EXPERTS,
                       .layer = layer,
                       .experts = {.n_groups = n,
                                   .expert = group,
                                   .first = first,
                                   .row = row,
                                   .gate = gate,
                                   .n_rows = layer % 2 ? 0 : ROWS,
                                   .x = mem(r->h, (size_t)ROWS * r->s->d_model),
                                   .to = to,
                                   .adds = adds,
                                   .part = &part,
                                   .n_parts = 1}};
    sl_device_submit(r->d, &c);
    sl_device_drain(r->d);
}

static void run_block(run *r, uint32_t layer) {
    size_t d = r->s->d_model, k = r->s->top_k;
    bool moe = r->s->ffn[layer] == SL_FFN_MOE;
    if (moe && r->s->dense_branch) run_op(r, SL_OP_ROUTE, layer);
    run_op(r, SL_OP_ATTEND, layer);
    if (!moe) {
        run_op(r, SL_OP_DENSE, layer);
        return;
    }
    if (!r->s->dense_branch) run_op(r, SL_OP_ROUTE, layer);
    run_experts(r, layer);
    if (r->s->d_ff_shared) run_op(r, SL_OP_SHARED, layer);
    for (size_t i = 0; i < ROWS * d; i++) {
        float sum = r->y[i / d * k * d + i % d];
        for (size_t j = 1; j < k; j++) sum += r->y[(i / d * k + j) * d + i % d];
        if (r->s->d_ff_shared) sum += r->h[i];
        r->x[i] += sum;
    }
}

/* A step of two requests; the second one has 8 rows less. Logits in two pieces. */
static void run_step(run *r, uint32_t step) {
    static const uint32_t page[2][3] = {{0, 5, 2}, {1, 4, 3}};
    uint64_t rng = 7 + step;
    const uint32_t half = ROWS / 2 + 4;
    for (uint32_t i = 0; i < ROWS; i++) {
        bool second = i >= half;
        r->pages[i] = page[second];
        r->pos[i] = second ? step * (ROWS - half) + i - half : step * half + i;
        r->id[i] = (uint32_t)sl_rng_below(&rng, r->s->vocab);
    }
    run_op(r, SL_OP_EMBED, 0);
    for (uint32_t l = 0; l < r->s->n_layers; l++) run_block(r, l);
    uint32_t row[ROWS], cut = r->s->vocab / 3 + 1;
    for (uint32_t i = 0; i < ROWS; i++) row[i] = ROWS - 1 - i;
    for (uint32_t i = 0; i < 2; i++) {
        sl_stage_call c = call_of(r, SL_OP_HEAD, 0);
        c.head = (sl_stage_head){.n = ROWS,
                                 .first = i ? cut : 0,
                                 .count = i ? r->s->vocab - cut : cut,
                                 .row = row,
                                 .h = mem(r->normed, (size_t)ROWS * r->s->d_model),
                                 .logits = r->logits};
        sl_device_submit(r->d, &c);
        sl_device_drain(r->d);
    }
}

static void same_bits(const run *a, const run *b, const char *name, uint32_t ranks) {
    size_t n = (size_t)ROWS * a->s->vocab;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)) != 0)
            fail_msg("%s by %u ranks: logit %zu of row %zu is %a, alone %a", name, ranks,
                     i % a->s->vocab, i / a->s->vocab, (double)b->logits[i], (double)a->logits[i]);
}

static double apart = APART;

static void nearly(const run *a, const run *b, const char *name, uint32_t ranks) {
    double off = 0, top = 0;
    for (size_t i = 0; i < (size_t)ROWS * a->s->vocab; i++) {
        off = fmax(off, fabs((double)a->logits[i] - (double)b->logits[i]));
        top = fmax(top, fabs((double)a->logits[i]));
    }
    if (!(top > 0 && off <= apart * top))
        fail_msg("%s by %u ranks: %.2e of %.2e", name, ranks, off, top);
}

/* Pages of one device to another. */
static void carry_pages(const run *from, const run *to) {
    uint32_t layers = from->s->n_layers;
    uint8_t *blocks = malloc(layers * sl_kv_block_bytes(from->s));
    assert_non_null(blocks);
    for (uint32_t p = 0; p < PAGES; p++) {
        from->d->ops->read_page(from->d, p, 0, layers, blocks);
        to->d->ops->write_page(to->d, p, 0, layers, blocks);
    }
    free(blocks);
}

static void check(const char *name, const char *path, sl_activations how) {
    apart = how == SL_ACTIVATIONS_F32 ? APART : APART_ROUNDED;
    for (int segmented = 0; segmented < 2; segmented++) {
        run one = start(open_gang(path, 1, segmented, how, 1));
        run moved = start(open_gang(path, 2, segmented, how, 1));
        run gang[3];
        for (uint32_t i = 0; i < 3; i++)
            gang[i] = start(open_gang(path, 2u << i, segmented, how, i == 0 ? 4 : 1));
        for (uint32_t step = 0; step < STEPS; step++) {
            if (step == 1) carry_pages(&gang[1], &moved);
            run_step(&one, step);
            for (uint32_t i = 0; i < 3; i++) {
                run_step(&gang[i], step);
                (segmented ? same_bits : nearly)(&one, &gang[i], name, 2u << i);
            }
        }
        run_step(&moved, 1);
        (segmented ? same_bits : nearly)(&one, &moved, name, 2);
        for (uint32_t i = 0; i < 3; i++) end(&gang[i]);
        end(&moved);
        end(&one);
    }
}

static bool is_fixture(const char *name, char *path, size_t n) {
    char config[512];
    size_t len = strlen(name);
    snprintf(path, n, GOLDEN "%s", name);
    if (len > 5 && strcmp(name + len - 5, ".gguf") == 0) return true;
    snprintf(config, sizeof config, "%s/config.json", path);
    return name[0] != '.' && access(config, R_OK) == 0;
}

static void ranks_give_the_same(void **state) {
    (void)state;
    DIR *dir = opendir(GOLDEN);
    uint32_t n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[512];
        if (!is_fixture(e->d_name, path, sizeof path)) continue;
        check(e->d_name, path, SL_ACTIVATIONS_F32);
        check(e->d_name, path, n % 2 ? SL_ACTIVATIONS_BF16 : SL_ACTIVATIONS_INT8);
        if (strstr(e->d_name, ".gguf")) check(e->d_name, path, SL_ACTIVATIONS_INT8);
        n++;
    }
    closedir(dir);
    assert_true(n >= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

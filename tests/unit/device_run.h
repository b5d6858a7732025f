/* Whole forward passes by a device, stage call by stage call, of any fixture; processes that are
 * ranks on machines. For tests of devices of several ranks. */
#ifndef SL_TESTS_DEVICE_RUN_H
#define SL_TESTS_DEVICE_RUN_H

#include "base/mem.h"
#include "base/rng.h"
#include "stage/gang.h"
#include "stage/stage.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"
#ifndef ROWS
#define ROWS  41u /* of a step: two requests, one of which goes into a second page */
#define PAGES 8u  /* half of them each request's */
#endif
#define STEPS 2u
#define PAIRS (ROWS * 16u)

typedef struct run {
    sl_device *d;
    bool inside; /* blocks with experts are asked for as a whole */
    const sl_model_spec *s;
    sl_mem mem[4];
    float *x, *h, *y, *normed, *logits; /* the first four in that memory of the device */
    uint32_t *expert, id[ROWS], pos[ROWS];
    float *gate;
    const uint32_t *pages[ROWS];
} run;

static inline void *floats(size_t n) {
    void *p = calloc(n, sizeof(float));
    assert_non_null(p);
    return p;
}

/* ---- ranks on machines ---- */

static const sl_span secret = {(const uint8_t *)"a secret of a gang's", 20};

typedef struct servers {
    pid_t pid[SL_MAX_RANKS];
    uint32_t n;
    char at[512]; /* their addresses */
} servers;

static inline void says_where(void *ctx, const char *address) {
    if (write(*(int *)ctx, address, strlen(address) + 1) < 0) _exit(4);
}

static inline void ends(void *ctx, const sl_err *err) {
    (void)ctx;
    fprintf(stderr, "rank: %s\n", err->msg);
    _exit(3);
}

/* One more rank, a process that waits at an address of this machine; port 0: any. */
static inline void serve_at(servers *s, const char *folder, uint16_t port) {
    int tell[2];
    char at[96];
    assert_int_equal(pipe(tell), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failing test leaves nobody */
        const sl_rank_server o = {.folder = folder,
                                  .threads = 1,
                                  .host = "127.0.0.1",
                                  .port = port,
                                  .secret = secret,
                                  .listens = says_where,
                                  .again = ends,
                                  .ctx = &tell[1]};
        sl_err err;
        if (sl_gang_serve_rank(&o, &err) == SL_OK) _exit(0);
        fprintf(stderr, "rank: %s\n", err.msg);
        _exit(2);
    }
    close(tell[1]);
    assert_true(read(tell[0], at, sizeof at) > 0);
    close(tell[0]);
    snprintf(s->at + strlen(s->at), sizeof s->at - strlen(s->at), "%s%s", s->n ? "," : "", at);
    s->pid[s->n++] = pid;
}

static inline servers serve_ranks(const char *folder, uint32_t ranks) {
    servers s = {0};
    while (s.n + 1 < ranks) serve_at(&s, folder, 0);
    return s;
}

/* All have left in order. */
static inline void served(const servers *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        int status;
        assert_int_equal(waitpid(s->pid[i], &status, 0), s->pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* Of the gang that is opened next. */
static const char *ranks_at __attribute__((unused));

/* Of one fixture's folder or another, with room for a step. */
static inline sl_device_opts options_of(const char *folder, uint32_t ranks, sl_rank_kind kind) {
    static const sl_device_spec cpu = {.kind = SL_DEVICE_CPU};
    return (sl_device_opts){.folder = folder,
                            .hosts = {.attention = true, .experts = true},
                            .device = &cpu,
                            .ranks = ranks,
                            .rank_kind = kind,
                            .ranks_at = ranks_at,
                            .secret = secret,
                            .threads = 1,
                            .max_rows = ROWS,
                            .max_pairs = PAIRS,
                            .kv_pages = PAGES};
}

static inline sl_device *open_device(const sl_device_opts *o) {
    sl_device *d = NULL;
    sl_err err;
    if (sl_device_open(o, &d, &err) != SL_OK) fail_msg("%s", err.msg);
    return d;
}

static inline sl_device *open_gang(const char *folder, uint32_t ranks, sl_rank_kind kind,
                                   bool segmented, sl_activations activations, uint32_t threads) {
    sl_device_opts o = options_of(folder, ranks, kind);
    o.hosts.segmented = o.exact = segmented;
    o.activations = activations;
    o.threads = threads;
    return open_device(&o);
}

static inline float *take(run *r, uint32_t i, size_t rows) {
    sl_err err;
    if (sl_device_take_rows(r->d, rows, &r->mem[i], &err) != SL_OK) fail_msg("%s", err.msg);
    return (float *)(uintptr_t)r->mem[i].at;
}

static inline run start(sl_device *d) {
    run r = {.d = d, .s = d->spec};
    size_t k = (size_t)ROWS * r.s->top_k;
    r.x = take(&r, 0, ROWS), r.h = take(&r, 1, ROWS), r.y = take(&r, 2, k);
    r.normed = take(&r, 3, ROWS);
    r.logits = floats((size_t)ROWS * r.s->vocab);
    r.expert = floats(k), r.gate = floats(k);
    return r;
}

static inline void end(run *r) {
    for (uint32_t i = 0; i < SL_LEN(r->mem); i++) sl_device_give(r->d, r->mem[i]);
    free(r->logits), free(r->expert), free(r->gate);
    sl_device_close(r->d);
}

static inline sl_mem mem(const void *p, size_t n) {
    return sl_mem_host(p, n * sizeof(float));
}

static inline sl_stage_call call_of(run *r, sl_stage_op op, uint32_t layer) {
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

static inline void run_op(run *r, sl_stage_op op, uint32_t layer) {
    const sl_stage_call c = call_of(r, op, layer);
    sl_device_submit(r->d, &c);
    sl_device_drain(r->d);
}

/* Every pair's result to r->y, row by row in the order of the chosen experts; half of the experts
 * by places, as engines do it. */
static inline void run_experts(run *r, uint32_t layer) {
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

/* What experts gave, onto the stream, as engines do it. */
static inline void run_merge(run *r, uint32_t layer) {
    const size_t d = r->s->d_model, k = r->s->top_k;
    const uint8_t *piece[PAIRS];
    sl_stage_call c = call_of(r, SL_OP_MERGE, layer);
    for (size_t i = 0; i < ROWS * k; i++) piece[i] = (const uint8_t *)(r->y + i * d);
    c.merge = (sl_stage_merge){.x = c.rows.x, .piece = piece, .wire = SL_WIRE_F32};
    if (r->s->d_ff_shared) c.merge.shared = c.rows.h;
    sl_device_submit(r->d, &c);
    sl_device_drain(r->d);
}

/* Blocks that stay inside wait for each other, as an engine's do, but for some. */
static inline void run_inside(run *r, uint32_t layer) {
    const sl_stage_call c[] = {call_of(r, SL_OP_ATTEND, layer), call_of(r, SL_OP_INSIDE, layer)};
    for (uint32_t i = 0; i < SL_LEN(c); i++) sl_device_submit(r->d, &c[i]);
    if (layer % 3 == 0) sl_device_drain(r->d);
}

static inline void run_block(run *r, uint32_t layer) {
    bool moe = r->s->ffn[layer] == SL_FFN_MOE;
    if (moe && r->inside && layer % 4 != 3) {
        run_inside(r, layer);
        return;
    }
    if (moe && r->s->dense_branch) run_op(r, SL_OP_ROUTE, layer);
    run_op(r, SL_OP_ATTEND, layer);
    if (!moe) {
        run_op(r, SL_OP_DENSE, layer);
        return;
    }
    if (!r->s->dense_branch) run_op(r, SL_OP_ROUTE, layer);
    run_experts(r, layer);
    if (r->s->d_ff_shared) run_op(r, SL_OP_SHARED, layer);
    run_merge(r, layer);
}

/* A step of two requests; the second one has 8 rows less. Logits in two pieces. */
static inline void run_step(run *r, uint32_t step) {
    static uint32_t page[2][PAGES / 2];
    uint64_t rng = 7 + step;
    const uint32_t half = ROWS / 2 + 4;
    for (uint32_t i = 0; i < PAGES; i++) page[i % 2][i / 2] = i ^ (i / 2 % 2);
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
        sl_stage_call c = call_of(r, SL_OP_HEAD, r->s->n_layers);
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

static inline void same_bits(const run *a, const run *b, const char *name, uint32_t ranks) {
    size_t n = (size_t)ROWS * a->s->vocab;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)) != 0)
            fail_msg("%s by %u ranks: logit %zu of row %zu is %a, alone %a", name, ranks,
                     i % a->s->vocab, i / a->s->vocab, (double)b->logits[i], (double)a->logits[i]);
}

/* Pages of one device to another. */
static inline void carry_pages(const run *from, const run *to) {
    uint32_t layers = from->s->n_layers;
    uint8_t *blocks = malloc(layers * sl_kv_block_bytes(from->s));
    assert_non_null(blocks);
    for (uint32_t p = 0; p < PAGES; p++) {
        from->d->ops->read_page(from->d, p, 0, layers, blocks);
        to->d->ops->write_page(to->d, p, 0, layers, blocks);
    }
    free(blocks);
}

/* Whether that is a model, of which ranks can have parts: states of linear attention have none. */
static inline bool is_fixture(const char *name, char *path, size_t n) {
    char config[512];
    sl_model_spec m;
    sl_err err;
    size_t len = strlen(name);
    snprintf(path, n, GOLDEN "%s", name);
    if (len > 5 && strcmp(name + len - 5, ".gguf") == 0) return true;
    snprintf(config, sizeof config, "%s/config.json", path);
    if (name[0] == '.' || access(config, R_OK) != 0) return false;
    return sl_model_read_spec(path, &m, NULL, &err) != SL_OK || m.n_linear == 0;
}

/* Calls for each fixture, n: how many came before it; returns how many there are. */
static inline uint32_t each_fixture(void (*of)(const char *name, const char *path, uint32_t n)) {
    DIR *dir = opendir(GOLDEN);
    uint32_t n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[512];
        if (is_fixture(e->d_name, path, sizeof path)) of(e->d_name, path, n++);
    }
    closedir(dir);
    return n;
}

#endif

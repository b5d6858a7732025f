/* The block that predicts a further token, as the CPU computes it: logits and what it guesses from
 * its own results against what transformers' modules make of the same weights (tests/golden,
 * tools/py/fixlib/mtp.py); prompts whole and in steps alike, bit for bit; what its pages know. */
#include "format/json.h"
#include "stage/cpu/mtp_pages.h"
#include "stage/stage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BAR     2e-4
#define MOST    192u
#define PAGES   16u
#define FURTHER 4u

static const char root[] = SL_SOURCE_DIR "/tests/golden";
static const char *const fixtures[] = {"glm4moe-tiny", "deepseekv3-tiny", "qwen3next-tiny"};

/* ---- a device with rows of one request ---- */

typedef struct rig {
    sl_device *d;
    const sl_model_spec *m;
    sl_mem x, h, y, z, head;
    uint32_t ids[MOST], n_ids;
    uint32_t pos[MOST], id[MOST], row[MOST], page[PAGES];
    uint32_t state[MOST], done[MOST], version; /* as of sl_rowset */
    const uint32_t *pages[MOST];
    uint32_t *expert;
    float *gate, *logits;
} rig;

static void open_rig(rig *r, const char *name) {
    char path[512];
    const sl_device_spec device = {0};
    sl_err err = {0};
    *r = (rig){0};
    snprintf(path, sizeof path, "%s/%s", root, name);
    const sl_device_opts o = {.folder = path,
                              .hosts = {.attention = true, .experts = true, .mtp = true},
                              .device = &device,
                              .threads = 1,
                              .exact = true,
                              .inside = true,
                              .max_rows = MOST,
                              .max_pairs = MOST * 4,
                              .requests = 1,
                              .kv_pages = PAGES};
    if (sl_device_open(&o, &r->d, &err) != SL_OK) fail_msg("%s", err.msg);
    r->m = r->d->spec;
    assert_true(r->d->mtp && r->m->top_k <= 4);
    sl_mem *const rows[] = {&r->x, &r->h, &r->y, &r->z, &r->head};
    for (size_t i = 0; i < SL_LEN(rows); i++)
        if (sl_device_take_rows(r->d, MOST, rows[i], &err) != SL_OK) fail_msg("%s", err.msg);
    r->expert = calloc(MOST * r->m->top_k, sizeof *r->expert);
    r->gate = calloc(MOST * r->m->top_k, sizeof *r->gate);
    r->logits = calloc((size_t)MOST * r->m->vocab, sizeof *r->logits);
    for (uint32_t i = 0; i < PAGES; i++) r->page[i] = (i * 7 + 3) % PAGES;
    for (uint32_t i = 0; i < MOST; i++) r->pages[i] = r->page;
}

static void close_rig(rig *r) {
    const sl_mem rows[] = {r->x, r->h, r->y, r->z, r->head};
    for (size_t i = 0; i < SL_LEN(rows); i++) sl_device_give(r->d, rows[i]);
    free(r->expert), free(r->gate), free(r->logits);
    sl_device_close(r->d);
}

static sl_stage_call call_of(rig *r, sl_stage_op op, uint32_t layer, uint32_t n) {
    return (sl_stage_call){.op = op,
                           .layer = layer,
                           .rows = {.n = n,
                                    .id = r->id,
                                    .pos = r->pos,
                                    .pages = r->pages,
                                    .state = r->state,
                                    .done = r->done,
                                    .x = r->x,
                                    .h = r->h,
                                    .expert = r->expert,
                                    .gate = r->gate}};
}

/* Positions first .. first + n - 1 through the model: what is left of them is in x. */
static void run_model(rig *r, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        r->pos[i] = first + i;
        r->id[i] = r->ids[first + i];
        r->state[i] = r->version;
        r->done[i] = first;
    }
    r->version ^= 1;
    sl_stage_call c = call_of(r, SL_OP_EMBED, 0, n);
    sl_device_submit(r->d, &c);
    for (uint32_t l = 0; l < r->m->n_layers; l++) {
        c = call_of(r, SL_OP_ATTEND, l, n);
        sl_device_submit(r->d, &c);
        c.op = r->m->ffn[l] == SL_FFN_MOE ? SL_OP_INSIDE : SL_OP_DENSE;
        sl_device_submit(r->d, &c);
    }
}

/* n rows of the block at r->pos with r->id, from `from` to `to`; logits of those from `first` on.
 */
static void run_block(rig *r, uint32_t n, sl_mem from, sl_mem to, bool again, uint32_t first,
                      float *logits) {
    uint32_t last[MOST];
    sl_stage_call c = call_of(r, SL_OP_MTP, 0, n);
    for (uint32_t i = first; i < n; i++) last[i - first] = i;
    c.rows.x = from;
    c.mtp = (sl_stage_mtp){
        .row = r->row, .out = to, .again = again, .n_last = n - first, .last = last, .h = r->head};
    sl_device_submit(r->d, &c);
    c = call_of(r, SL_OP_HEAD, 0, n);
    c.head = (sl_stage_head){
        .n = n - first, .count = r->m->vocab, .h = r->head, .logits = logits, .made = true};
    sl_device_submit(r->d, &c);
}

/* Those positions, which x has, with the tokens behind them; logits of the last `said`. */
static void follow(rig *r, uint32_t first, uint32_t n, uint32_t said, float *logits) {
    for (uint32_t i = 0; i < n; i++) {
        r->pos[i] = first + i;
        r->id[i] = r->ids[first + i + 1];
        r->row[i] = i;
    }
    run_block(r, n, r->x, r->y, false, n - said, logits);
}

static uint32_t best(const float *logits, uint32_t vocab) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[at]) at = i;
    return at;
}

/* ---- goldens ---- */

typedef struct golden {
    sl_json_doc *doc, *own;
    sl_json positions, further;
    uint32_t n_kept;
    float *want; /* [n_kept][vocab] */
} golden;

static sl_json_doc *load(const char *name, const char *file) {
    char path[512];
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    if (sl_json_load(path, 16u << 20, &doc, &err) != SL_OK) fail_msg("%s", err.msg);
    return doc;
}

static void add_ids(rig *r, sl_json list) {
    for (size_t i = 0; i < sl_json_count(list); i++) {
        uint64_t id = 0;
        assert_true(sl_json_as_u64(sl_json_at(list, i), &id) && r->n_ids < MOST);
        r->ids[r->n_ids++] = (uint32_t)id;
    }
}

static golden open_golden(rig *r, const char *name) {
    golden g = {.doc = load(name, "golden.json"), .own = load(name, "mtp.json")};
    sl_json mtp = sl_json_root(g.own), cases = sl_json_get(sl_json_root(g.doc), "cases");
    const char *which = NULL, *this = "";
    char path[512], header[512], shape[64];
    uint8_t start[10];
    sl_err err;
    assert_int_equal(sl_json_string(mtp, "case", SL_JSON_REQUIRED, &which, &err), SL_OK);
    for (size_t i = 0; strcmp(this, which) != 0; i++) {
        sl_json one = sl_json_at(cases, i);
        assert_int_equal(sl_json_string(one, "name", SL_JSON_REQUIRED, &this, &err), SL_OK);
        r->n_ids = 0;
        add_ids(r, sl_json_get(one, "prompt_ids"));
        add_ids(r, sl_json_get(one, "greedy_ids"));
    }
    g.positions = sl_json_get(mtp, "positions");
    g.further = sl_json_get(mtp, "further");
    g.n_kept = (uint32_t)sl_json_count(g.positions);
    snprintf(path, sizeof path, "%s/%s/mtp.npy", root, name);
    snprintf(shape, sizeof shape, "(%u, %u)", g.n_kept, r->m->vocab);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(start, 1, sizeof start, f), sizeof start);
    const size_t n = start[8] + 256u * start[9], count = (size_t)g.n_kept * r->m->vocab;
    assert_true(n < sizeof header && fread(header, 1, n, f) == n);
    header[n] = '\0';
    assert_true(strstr(header, "'<f4'") && strstr(header, shape));
    g.want = malloc(count * sizeof *g.want);
    assert_int_equal(fread(g.want, sizeof *g.want, count, f), count);
    fclose(f);
    return g;
}

static void close_golden(golden *g) {
    free(g->want);
    sl_json_doc_free(g->doc);
    sl_json_doc_free(g->own);
}

static uint32_t number(sl_json v) {
    uint64_t n = 0;
    assert_true(sl_json_as_u64(v, &n));
    return (uint32_t)n;
}

/* All positions at once: the kept ones within the bar. */
static void check_logits(rig *r, const golden *g, const char *name) {
    const uint32_t n = r->n_ids - 1, vocab = r->m->vocab;
    double worst = 0;
    run_model(r, 0, n);
    follow(r, 0, n, n, r->logits);
    for (uint32_t k = 0; k < g->n_kept; k++) {
        const uint32_t at = number(sl_json_at(g->positions, k));
        double off = 0, top = 0;
        assert_true(at < n);
        for (uint32_t i = 0; i < vocab; i++) {
            const double want = g->want[(size_t)k * vocab + i];
            off = fmax(off, fabs((double)r->logits[(size_t)at * vocab + i] - want));
            top = fmax(top, fabs(want));
        }
        worst = fmax(worst, off / top);
    }
    printf("%s: deviation %.2e over %u of %u positions\n", name, worst, g->n_kept, n);
    assert_true(worst <= BAR);
}

/* The same in steps of so many rows, of the model and of the block: the same bits. */
static void check_steps(rig *r, uint32_t step) {
    const uint32_t n = r->n_ids - 1, vocab = r->m->vocab;
    float *logits = malloc((size_t)step * vocab * sizeof *logits);
    for (uint32_t at = 0; at < n; at += step) {
        const uint32_t rows = SL_MIN(step, n - at);
        run_model(r, at, rows);
        follow(r, at, rows, rows, logits);
        assert_memory_equal(logits, r->logits + (size_t)at * vocab,
                            (size_t)rows * vocab * sizeof *logits);
    }
    free(logits);
}

/* What it guesses of its own guesses, from the positions of the golden on. */
static void check_further(rig *r, const golden *g) {
    const uint32_t vocab = r->m->vocab;
    float *logits = malloc(vocab * sizeof *logits);
    for (size_t k = 0; k < sl_json_count(g->further); k++) {
        sl_json one = sl_json_at(g->further, k), ids = sl_json_get(one, "ids");
        const uint32_t n = number(sl_json_get(one, "rows"));
        assert_int_equal(sl_json_count(ids), FURTHER);
        run_model(r, 0, n);
        follow(r, 0, n, 1, logits);
        sl_mem from = r->y, to = r->z;
        r->row[0] = n - 1; /* the last of them goes on */
        for (uint32_t i = 0; i < FURTHER; i++) {
            const uint32_t id = best(logits, vocab);
            assert_int_equal(id, number(sl_json_at(ids, i)));
            r->pos[0] = n + i;
            r->id[0] = id;
            run_block(r, 1, from, to, true, 0, logits);
            r->row[0] = 0;
            const sl_mem was = from;
            from = to;
            to = was;
        }
    }
    free(logits);
}

static void the_block_computes_what_transformers_modules_do(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        rig r;
        open_rig(&r, fixtures[f]);
        golden g = open_golden(&r, fixtures[f]);
        check_logits(&r, &g, fixtures[f]);
        check_steps(&r, 13);
        check_steps(&r, 1);
        check_further(&r, &g);
        close_golden(&g);
        close_rig(&r);
    }
}

/* Without the rows before a gap: others than with them, and finite. */
static void a_gap_is_not_seen(void **state) {
    (void)state;
    rig r;
    open_rig(&r, fixtures[0]);
    const uint32_t vocab = r.m->vocab;
    for (uint32_t i = 0; i < 80; i++) r.ids[i] = i * 11 % vocab;
    run_model(&r, 0, 60);
    follow(&r, 0, 59, 59, r.logits);
    float *whole = malloc(vocab * sizeof *whole), *part = malloc(vocab * sizeof *part);
    memcpy(whole, r.logits + (size_t)58 * vocab, vocab * sizeof *whole);
    run_model(&r, 0, 60); /* as if another request had these pages now */
    for (uint32_t i = 0; i < 2; i++) r.pos[i] = 57 + i, r.id[i] = r.ids[58 + i], r.row[i] = 57 + i;
    run_block(&r, 2, r.x, r.y, false, 0, r.logits);
    memcpy(part, r.logits + vocab, vocab * sizeof *part);
    assert_true(memcmp(whole, part, vocab * sizeof *part) != 0);
    for (uint32_t i = 0; i < vocab; i++) assert_true(isfinite(part[i]));
    free(whole), free(part);
    close_rig(&r);
}

/* ---- pages ---- */

typedef struct table {
    sl_mtp_pages p;
    uint32_t page[4], pos[128], low[128];
    const uint32_t *pages[128];
} table;

static void set(table *t, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) t->pos[i] = first + i, t->pages[i] = t->page;
}

static uint32_t write_rows(table *t, uint32_t first, uint32_t n) {
    set(t, first, n);
    sl_mtp_pages_write(&t->p, t->pos, t->pages, n, t->low);
    return t->low[n - 1];
}

static void forget_rows(table *t, uint32_t first, uint32_t n) {
    set(t, first, n);
    sl_mtp_pages_forget(&t->p, t->pos, t->pages, n);
}

static void rows_see_what_was_written_without_a_gap(void **state) {
    (void)state;
    const sl_model_spec m = {.n_layers = 3, .n_kv_heads = 1, .head_dim = 16};
    table t = {.page = {5, 2, 7, 0}};
    sl_err err;
    assert_int_equal(sl_mtp_pages_open(&m, 8, &t.p, &err), SL_OK);
    assert_int_equal(write_rows(&t, 0, 70), 0); /* three pages */
    forget_rows(&t, 70, 3);
    assert_int_equal(write_rows(&t, 70, 1), 0);
    assert_int_equal(write_rows(&t, 71, 4), 0); /* guesses: written again when they are known */
    forget_rows(&t, 72, 1);
    assert_int_equal(write_rows(&t, 72, 1), 0);
    forget_rows(&t, 73, 3); /* a step without: */
    assert_int_equal(write_rows(&t, 76, 2), 76);
    assert_int_equal(write_rows(&t, 78, 50), 76);
    assert_int_equal(write_rows(&t, 60, 1), 0); /* one page before it is as it was */
    sl_mtp_pages_drop(&t.p, t.page[1]);         /* it came from elsewhere */
    assert_int_equal(write_rows(&t, 63, 2), 63);
    forget_rows(&t, 0, 40); /* another request */
    assert_int_equal(write_rows(&t, 0, 40), 0);
    assert_int_equal(write_rows(&t, 40, 1), 0);
    sl_mtp_pages_close(&t.p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_computes_what_transformers_modules_do),
        cmocka_unit_test(a_gap_is_not_seen),
        cmocka_unit_test(rows_see_what_was_written_without_a_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

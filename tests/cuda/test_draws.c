/* What draws seek of logits, found by the GPU: the tokens, sums and picks that the host makes of
 * all logits, on drawn rows; and the tokens and log-probabilities that come of it. */
#include "rows_test.h"

#include "base/rng.h"
#include "fake_driver.h"
#include "model/draw.h"
#include "model/sampler.h"
#include "stage/cuda/exec_draws.h"
#include "stage/stage.h"

#include <dlfcn.h>
#include <stdlib.h>

#define MOST_ROWS 40u

/* Rows of logits, on both sides. */
typedef struct table {
    uint32_t rows, vocab;
    float *of;
    const float *at;
    uint64_t scratch;
    sl_sought sought[MOST_ROWS];
    sl_found found[MOST_ROWS];
} table;

static sl_arena scratch;

static int open_all(void **state) {
    sl_err err;
    return rt_open(state) || sl_arena_create(sl_sampler_scratch_bytes(300000), &scratch, &err);
}

static int close_all(void **state) {
    sl_arena_free(&scratch);
    return rt_close(state);
}

/* From -1 to 1. */
static float some(void) {
    return (float)kt_bits() * 0x1.0p-31f - 1.0f;
}

/* A row like a model's, with ties, of few values, with zeros of both signs, infinities or NaN. */
static void draw_row(float *l, uint32_t n, uint32_t kind) {
    for (uint32_t i = 0; i < n; i++) {
        l[i] = (some() + some() + some()) * 3;
        if (kt_below(200) == 0) l[i] += 12 * fabsf(some());
        if (kind == 10) l[i] += kt_value(); /* some are far off */
        if (kind == 1) l[i] = (float)(int)kt_below(5) - 2;
        if (kind == 2 && kt_below(4) == 0) l[i] = NAN;
        if (kind == 3 && kt_below(3) == 0) l[i] = -INFINITY;
        if (kind == 4) l[i] = kt_bits() & 1 ? 0.0f : -0.0f;
        if (kind == 5) l[i] *= 1e4f;
        if (kind == 6 && kt_below(n) == 0) l[i] = INFINITY;
        if (kind == 7) l[i] = NAN;
        if (kind == 8) l[i] *= 1e-3f; /* all as likely */
    }
    if (kind == 9) l[kt_below(n)] = 60; /* alone */
}

static table make_table(uint32_t rows, uint32_t vocab) {
    table t = {.rows = rows, .vocab = vocab, .of = kt_floats((size_t)rows * vocab)};
    for (uint32_t r = 0; r < rows; r++) draw_row(t.of + (size_t)r * vocab, vocab, kt_below(12));
    return t;
}

static void seek(table *t) {
    const size_t n = (size_t)t->rows * t->vocab;
    uint8_t *none = rt_noise(sizeof t->found);
    t->at = rt_in(t->of, n * sizeof *t->of);
    sl_found *found = rt_in(none, t->rows * sizeof *found);
    uint8_t *room = rt_noise(sl_cuda_seek_bytes(t->rows, t->vocab));
    t->scratch = (uint64_t)(uintptr_t)rt_in(room, sl_cuda_seek_bytes(t->rows, t->vocab));
    sl_cuda_seek(rt_gpu, t->at, t->rows, t->vocab, t->sought, t->scratch, found);
    rt_out(t->found, found, t->rows * sizeof *found);
    sl_free(none);
    sl_free(room);
    rt_done();
}

/* ---- what was found ---- */

static bool is_single(const sl_sought *q, uint32_t id) {
    for (uint32_t i = 0; i < q->n_ids; i++)
        if (q->id[i] == id) return true;
    return false;
}

static void check_tokens(const table *t, uint32_t row) {
    const float *l = t->of + (size_t)row * t->vocab;
    const sl_sought *q = &t->sought[row];
    const sl_found *f = &t->found[row];
    const size_t level = scratch.used;
    const sl_peaks p = sl_peaks_of(l, t->vocab, &scratch);
    uint32_t *list = sl_arena_take(&scratch, t->vocab, sizeof *list);
    assert_int_equal(sl_peaks_rank(&p, q->n_list, list, &scratch), q->n_list);
    assert_int_equal(f->edge, list[q->n_list - 1]);
    assert_memory_equal(&f->edge_logit, &l[f->edge], sizeof(float));
    assert_in_range(f->n, q->n_list, q->n_list + q->n_ids);
    uint32_t listed = 0, single = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        bool in = false;
        if (i) assert_true(f->id[i - 1] < f->id[i]);
        assert_memory_equal(&f->logit[i], &l[f->id[i]], sizeof(float));
        for (uint32_t j = 0; j < q->n_list; j++) in |= list[j] == f->id[i];
        assert_true(in || is_single(q, f->id[i]));
        listed += in;
        single += is_single(q, f->id[i]);
    }
    assert_int_equal(listed, q->n_list);
    assert_int_equal(single, q->n_ids);
    scratch.used = level;
}

/* Lists of all lengths, single tokens, vocabularies that are no multiple of anything. */
static void first_tokens(void **state) {
    static const uint32_t vocab[] = {1, 2, 7, 100, 127, 129, 255, 2047, 2048, 2049, 4097, 9001};
    (void)state;
    for (uint32_t i = 0; i < 3 * SL_LEN(vocab); i++) {
        const uint32_t v = vocab[i % SL_LEN(vocab)], most = SL_MIN(v, SL_SEEK_LIST);
        table t = make_table(1 + kt_below(i % 5 ? 4 : MOST_ROWS), v);
        for (uint32_t r = 0; r < t.rows; r++) {
            sl_sought *q = &t.sought[r];
            *q = (sl_sought){.all = kt_below(5) == 0};
            q->n_list = kt_below(3) ? 1 + kt_below(most) : kt_below(2) ? most : 1;
            for (uint32_t id = kt_below(9); id < v && q->n_ids < SL_SEEK_IDS;
                 id += 1 + kt_below(i % 2 ? 3 : v / 8 + 1))
                q->id[q->n_ids++] = id;
            if (kt_below(3) == 0) q->n_ids = 0;
        }
        seek(&t);
        for (uint32_t r = 0; r < t.rows; r++)
            if (!t.sought[r].all) check_tokens(&t, r);
        sl_free(t.of);
    }
}

/* ---- what comes of it ---- */

/* A way of drawing, and what is reported. */
typedef struct way {
    sl_sampling s;
    sl_report report;
    bool reports, masked;
    uint32_t scored[40], never[3], bad[3], past[30], *allowed;
    sl_logit_bias bias[40];
    sl_history history;
} way;

static void draw_changes(way *w, const float *l, uint32_t vocab) {
    sl_sampling *s = &w->s;
    if (kt_below(3) == 0) {
        s->presence_penalty = kt_below(4) ? 1.5f : -0.5f;
        s->frequency_penalty = kt_below(2) ? 0.25f : 0;
        s->repetition_penalty = kt_below(2) ? 1.1f : 0;
    }
    for (uint32_t id = 0; kt_below(5) == 0 && id < vocab && s->n_bias < 40;
         id += 1 + kt_below(vocab / 8 + 1)) {
        w->bias[s->n_bias++] = (sl_logit_bias){id, kt_below(2) ? 4 * kt_value() : -3};
        s->bias = w->bias;
    }
    for (uint32_t i = 0; kt_below(4) == 0 && i < 3; i++) {
        w->never[s->n_never++] = kt_below(vocab);
        s->never = w->never;
    }
    if (kt_below(6) == 0) {
        w->bad[0] = 1;
        for (uint32_t i = 0; i < vocab; i++)
            if (l[i] > l[w->bad[1]]) w->bad[1] = i; /* the likeliest */
        s->bad = w->bad;
        s->n_bad = 2;
    }
    if (kt_below(12) == 0) s->thought_close = 1 + kt_below(vocab), s->thought_most = kt_below(40);
    w->masked = kt_below(6) == 0;
}

/* Into w, which keeps its place. */
static void draw_way(way *w, const float *l, uint32_t vocab) {
    static const float temperatures[] = {0, 0, 0.3f, 0.7f, 1, 1, 2, 100, 1e-30f};
    *w = (way){.s = {.top_p = kt_below(3) ? 0.5f + 0.45f * fabsf(some()) : 1,
                     .min_p = kt_below(4) ? 0 : 0.05f,
                     .seed = kt_bits()}};
    w->s.temperature = temperatures[kt_below(SL_LEN(temperatures))];
    w->s.top_k = kt_below(2) ? 0 : kt_below(9) ? 1 + kt_below(40) : kt_below(2 * vocab);
    w->history = (sl_history){w->past, kt_below(30), 3};
    if (w->history.n < 3) w->history.n_prompt = w->history.n;
    for (uint32_t i = 0; i < 30; i++) w->past[i] = kt_below(vocab);
    if (kt_below(2)) draw_changes(w, l, vocab);
    w->reports = kt_below(3) == 0;
    if (!w->reports) return;
    w->report.n_top = kt_below(SL_MIN(vocab, SL_MAX_LOGPROBS) + 1);
    w->report.scored = w->scored;
    w->report.n_scored = kt_below(3) ? 0 : kt_below(kt_below(5) ? 8 : 40);
    for (uint32_t i = 0; i < 40; i++) w->scored[i] = kt_below(vocab);
}

/* What a shape lets in, which is known when the token is drawn. */
static void draw_mask(way *w, uint32_t vocab) {
    w->allowed = rt_rows(sl_id_words(vocab), 1);
    for (uint32_t i = 0; i < sl_id_words(vocab); i++)
        w->allowed[i] = kt_below(2) ? UINT32_MAX : kt_bits();
    w->allowed[0] |= 1;
    w->s.allowed = w->allowed;
    w->s.n_allowed = sl_id_words(vocab);
}

static void same_report(const way *w, const float *l, const sl_logits *found, uint32_t id) {
    sl_logprob want[SL_MAX_REPORTED], got[SL_MAX_REPORTED];
    const uint32_t n = sl_reported(&w->report);
    if (!w->reports || !isfinite(l[id])) return;
    if (!sl_logprobs_of(found, id, &w->report, &scratch, got)) return;
    sl_logprobs(l, found->vocab, id, &w->report, &scratch, want);
    for (uint32_t i = 0; i < n; i++)
        if (want[i].id != got[i].id || memcmp(&want[i].logprob, &got[i].logprob, sizeof(float)))
            fail_msg("log-probability %u of %u: %u %a, expected %u %a", i, n, got[i].id,
                     (double)got[i].logprob, want[i].id, (double)want[i].logprob);
}

/* Whether what was found was enough; then it says what all logits say. */
static bool same_draw(const way *w, const table *t, uint32_t row, uint64_t position) {
    const float *l = t->of + (size_t)row * t->vocab;
    const sl_logits found = sl_logits_found(&t->sought[row], &t->found[row], t->vocab);
    sl_drawn got;
    const uint32_t want = sl_sample(&w->s, l, t->vocab, position, &w->history, &scratch);
    const bool enough = sl_sample_of(&w->s, &found, position, &w->history, &scratch, &got);
    assert_int_equal(scratch.used, 0);
    if (!enough) return false;
    if (got.id != want || memcmp(&got.logit, &l[want], sizeof(float)) != 0)
        fail_msg("of %u: %u (%g), expected %u (%g); temperature %g top_k %u top_p %g min_p %g",
                 t->vocab, got.id, (double)got.logit, want, (double)l[want],
                 (double)w->s.temperature, w->s.top_k, (double)w->s.top_p, (double)w->s.min_p);
    same_report(w, l, &found, got.id);
    return true;
}

/* Whatever is asked for: if what was found is enough, it is what all logits give. */
static void the_same_tokens(void **state) {
    static const uint32_t vocab[] = {1, 3, 33, 150, 257, 1000, 1040, 3001};
    static way w[MOST_ROWS];
    uint32_t enough = 0, all = 0, n = 0;
    (void)state;
    for (uint32_t i = 0; i < 30 * SL_LEN(vocab); i++) {
        table t = make_table(1 + kt_below(6), vocab[i % SL_LEN(vocab)]);
        for (uint32_t r = 0; r < t.rows; r++) {
            draw_way(&w[r], t.of + (size_t)r * t.vocab, t.vocab);
            sl_sampler_seeks(&w[r].s, &w[r].history, t.vocab, i, w[r].reports ? &w[r].report : NULL,
                             w[r].masked, &t.sought[r]);
        }
        seek(&t);
        for (uint32_t r = 0; r < t.rows; r++) {
            if (w[r].masked) draw_mask(&w[r], t.vocab);
            n++;
            all += t.sought[r].all;
            if (!t.sought[r].all) enough += same_draw(&w[r], &t, r, i);
            /* another position, other exclusions than were known: never another token */
            if (!t.sought[r].all && kt_below(2)) {
                if (!w[r].s.n_allowed) draw_mask(&w[r], t.vocab);
                (void)same_draw(&w[r], &t, r, i + kt_below(2));
            }
            sl_free(w[r].allowed);
        }
        sl_free(t.of);
    }
    print_message("%u rows: %u seek all, %u were found, %u were not enough\n", n, all, enough,
                  n - all - enough);
    assert_true(enough > n / 3);
}

/* What most requests ask for is found, of logits as models have them. */
static void usual_requests_are_found(void **state) {
    static const sl_sampling usual[] = {
        {.top_p = 1},
        {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f},
        {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .presence_penalty = 1.5f},
        {.temperature = 1, .top_k = 64, .top_p = 0.95f, .min_p = 0.05f},
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f},
        {.temperature = 0.7f, .top_p = 0.9f},
        {.top_p = 1, .repetition_penalty = 1.1f},
    };
    static const uint32_t past[] = {5, 6, 7, 8, 9, 100, 200, 7};
    const uint32_t vocab = 20011, rows = SL_LEN(usual);
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        table t = {.rows = rows, .vocab = vocab, .of = kt_floats((size_t)rows * vocab)};
        for (uint32_t r = 0; r < rows; r++) {
            float *l = t.of + (size_t)r * vocab;
            draw_row(l, vocab, 0);
            for (uint32_t j = 0; j < 30; j++) l[kt_below(vocab)] = 16 + 6 * some();
        }
        for (uint32_t r = 0; r < rows; r++) {
            way w = {.s = usual[r], .reports = i % 2, .report = {.n_top = i}};
            w.history = (sl_history){past, SL_LEN(past), 4};
            w.s.seed = i;
            sl_sampler_seeks(&w.s, &w.history, vocab, 9, w.reports ? &w.report : NULL, false,
                             &t.sought[r]);
            assert_false(t.sought[r].all);
        }
        seek(&t);
        for (uint32_t r = 0; r < rows; r++) {
            way w = {.s = usual[r], .reports = i % 2, .report = {.n_top = i}};
            w.history = (sl_history){past, SL_LEN(past), 4};
            w.s.seed = i;
            if (!same_draw(&w, &t, r, 9)) fail_msg("way %u was not found", r);
        }
        sl_free(t.of);
    }
}

/* ---- a device ---- */

#define HEAD_ROWS 7u

static const char *driver = "libcuda.so.1";

typedef struct head {
    sl_device *d;
    sl_mem x, h;
    uint32_t id[HEAD_ROWS], pos[HEAD_ROWS], row[HEAD_ROWS];
    float *logits;
} head;

static sl_mem rows_of(sl_device *d) {
    sl_mem m;
    sl_err err;
    if (sl_device_take_rows(d, HEAD_ROWS, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    return m;
}

static head open_head(const char *forms) {
    static const sl_device_spec gpu = {.kind = SL_DEVICE_CUDA, .numerics = SL_NUMERICS_CPU};
    const sl_device_opts o = {.folder = SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny",
                              .hosts = {.attention = true},
                              .device = &gpu,
                              .threads = 1,
                              .max_rows = HEAD_ROWS,
                              .kv_pages = 1};
    head h = {0};
    sl_err err;
    if (forms) setenv("SLUICE_CUDA_FORMS", forms, 1);
    if (sl_device_open(&o, &h.d, &err) != SL_OK) fail_msg("%s", err.msg);
    unsetenv("SLUICE_CUDA_FORMS");
    h.x = rows_of(h.d), h.h = rows_of(h.d);
    h.logits = kt_floats((size_t)HEAD_ROWS * h.d->spec->vocab);
    for (uint32_t i = 0; i < HEAD_ROWS; i++) h.id[i] = 3 + 11 * i, h.row[i] = HEAD_ROWS - 1 - i;
    return h;
}

static void close_head(head *h) {
    sl_device_give(h->d, h->x), sl_device_give(h->d, h->h);
    sl_free(h->logits);
    sl_device_close(h->d);
}

/* Tokens straight to the head. */
static void run_head(head *h, const sl_sought *sought, sl_found *found) {
    sl_stage_call c = {.op = SL_OP_EMBED,
                       .rows = {.n = HEAD_ROWS, .id = h->id, .pos = h->pos, .x = h->x}};
    (void)sl_device_submit(h->d, &c);
    c.op = SL_OP_HEAD;
    c.head = (sl_stage_head){.n = HEAD_ROWS,
                             .count = h->d->spec->vocab,
                             .row = h->row,
                             .h = h->h,
                             .logits = h->logits,
                             .sought = sought,
                             .found = found};
    (void)sl_device_submit(h->d, &c);
    sl_device_drain(h->d);
    if (h->d->failed != SL_OK) fail_msg("%s", h->d->failure.msg);
}

/* Bytes that were copied from GPUs, where the driver counts them. */
static bool bytes_out(uint64_t *out) {
    void *library = dlopen(driver, RTLD_NOW | RTLD_NOLOAD);
    sluice_fake_cuda_counts_fn *count =
        library ? (sluice_fake_cuda_counts_fn *)dlsym(library, "sluice_fake_cuda_counts") : NULL;
    uint64_t counts[FAKE_COUNTS];
    if (count) count(counts);
    *out = count ? counts[FAKE_BYTES_OUT] : 0;
    return count != NULL;
}

/* Rows that seek all get that, others what they seek, and no logits but when they are asked for. */
static void a_device_brings_what_is_sought(void **state) {
    static sl_sought sought[HEAD_ROWS];
    static sl_found found[HEAD_ROWS];
    uint64_t before, after;
    head want = open_head(NULL), h = open_head("try");
    const uint32_t vocab = h.d->spec->vocab;
    (void)state;
    assert_true(h.d->finds && !want.d->finds);
    run_head(&want, NULL, NULL);
    for (uint32_t some = 0; some < 4; some++) {
        uint32_t whole = 0;
        for (uint32_t i = 0; i < HEAD_ROWS; i++) {
            sought[i] = (sl_sought){.all = some && kt_below(3) < some, .n_list = 1 + kt_below(9)};
            whole += sought[i].all;
        }
        memset(h.logits, 0xff, (size_t)HEAD_ROWS * vocab * sizeof *h.logits);
        const bool counts = bytes_out(&before);
        run_head(&h, some < 3 ? sought : NULL, found);
        (void)bytes_out(&after);
        if (some == 3) whole = HEAD_ROWS;
        if (counts) assert_int_equal(after - before, (size_t)whole * vocab * sizeof(float));
        for (uint32_t i = 0; i < HEAD_ROWS; i++) {
            const float *l = want.logits + (size_t)i * vocab;
            float *own = h.logits + (size_t)i * vocab;
            const bool all = some == 3 || sought[i].all;
            if (some < 3) assert_int_equal(found[i].all, all);
            if (!all) {
                assert_true(isnan(own[0]) && isnan(own[vocab - 1]));
                assert_int_equal(found[i].n, sought[i].n_list);
                for (uint32_t j = 0; j < found[i].n; j++)
                    assert_memory_equal(&found[i].logit[j], &l[found[i].id[j]], sizeof(float));
                h.d->ops->read_logits(h.d, i, own);
            }
            assert_memory_equal(own, l, vocab * sizeof *l);
        }
    }
    close_head(&want);
    close_head(&h);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_tokens),
        cmocka_unit_test(the_same_tokens),
        cmocka_unit_test(usual_requests_are_found),
        cmocka_unit_test(a_device_brings_what_is_sought),
    };
    if (argc > 1) driver = argv[1];
    return cmocka_run_group_tests(tests, open_all, close_all);
}

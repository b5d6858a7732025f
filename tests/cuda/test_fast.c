/* Routed experts in numerics fast and exact: every way of computing them against double precision,
 * on drawn batches. Over the emulator, or over a GPU with SLUICE_CUDA_DRIVER empty. */
#include "base/rng.h"
#include "quant/half.h"
#include "sanitized.h"
#include "stage/cuda/fast_experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static sl_cuda *gpu;

/* A drawn batch: what m points to is the GPU's. */
#define EXPERTS 16
typedef struct drawn {
    sl_fast_moe m;
    uint64_t memory[8];
    size_t x_bytes;
    uint16_t *weights; /* [experts][3][d_model * d_ff] */
    uint32_t *id;
    float *gate, *x, *y;
    double *want;
} drawn;

static float uniform(uint64_t *r) {
    return (float)((double)(sl_rng_next(r) >> 11) * 0x1p-52 - 1.0);
}

static void *room(size_t bytes) {
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

/* Memory of the GPU with these bytes, or with all bits set. */
static uint64_t upload(const void *from, size_t bytes) {
    sl_err err;
    uint64_t at = 0;
    if (sl_cuda_alloc(gpu, bytes ? bytes : 1, &at, &err) != SL_OK) fail_msg("%s", err.msg);
    if (!from)
        sl_cuda_fill(gpu, at, 0xff, bytes), sl_cuda_drain(gpu);
    else if (bytes && sl_cuda_copy_in(gpu, at, from, bytes, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return at;
}

/* Expert i has sizes[i] pairs: rows that follow one another, with a gap where experts are few. */
static void draw_pairs(drawn *t, uint64_t *rng, const uint32_t *sizes) {
    const uint32_t rows = t->m.n_rows, k = t->m.top_k, pairs = rows * k;
    t->id = room((size_t)pairs * 4);
    t->gate = room((size_t)pairs * 4);
    for (uint32_t e = 0; e < t->m.n_experts; e++) {
        uint32_t r = (uint32_t)(sl_rng_next(rng) % rows), left = sizes[e];
        for (uint32_t seen = 0; left && seen < rows; seen++, r = (r + 1) % rows) {
            uint32_t j = 0;
            while (j < k && t->id[r * k + j] != UINT32_MAX) j++;
            if (j == k) continue; /* this row has all it may have */
            t->id[r * k + j] = e;
            left--;
        }
        assert_int_equal(left, 0);
    }
    for (uint32_t i = 0; i < pairs; i++) t->gate[i] = uniform(rng);
}

static void draw_rows(drawn *t, uint64_t *rng, size_t n) {
    t->x = room(n * 4);
    t->y = room(n * 4);
    t->want = room(n * 8);
    t->x_bytes = n * 4;
    for (size_t i = 0; i < n; i++) t->x[i] = uniform(rng) * 2;
    for (size_t i = 0; i < n; i++) {
        if (t->m.add) t->y[i] = uniform(rng);
        t->want[i] = t->m.add ? t->y[i] : 0;
    }
}

static void upload_table(drawn *t) {
    const uint32_t n = t->m.n_experts;
    const size_t bytes = (size_t)t->m.d_model * t->m.d_ff * 2;
    sl_fast_expert table[EXPERTS];
    sl_err err;
    t->memory[0] = upload(t->weights, n * bytes * 3);
    t->memory[1] = upload(NULL, n * (SL_FAST_MAPS_BYTES + sizeof *table));
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *w = (const uint8_t *)(uintptr_t)t->memory[0] + i * 3 * bytes;
        if (sl_cuda_fast_expert(gpu, w, w + bytes, w + 2 * bytes, t->m.d_model, t->m.d_ff,
                                t->memory[1] + i * SL_FAST_MAPS_BYTES, &table[i], &err) != SL_OK)
            fail_msg("%s", err.msg);
    }
    const uint64_t at = t->memory[1] + n * SL_FAST_MAPS_BYTES;
    if (sl_cuda_copy_in(gpu, at, table, n * sizeof *table, &err) != SL_OK) fail_msg("%s", err.msg);
    t->m.expert = (const sl_fast_expert *)(uintptr_t)at;
}

static void draw(drawn *t, uint64_t *rng, const sl_fast_moe *m, const uint32_t *sizes) {
    const size_t values = (size_t)m->n_experts * 3 * m->d_model * m->d_ff;
    const size_t some =
        sl_fast_scratch_bytes(m->d_model, m->d_ff, m->n_experts, m->n_rows, m->n_pairs);
    const size_t exact =
        sl_fast_exact_bytes(m->d_model, m->d_ff, m->n_experts, m->n_rows, m->n_pairs);
    const size_t scratch = exact > some ? exact : some;
    memset(t, 0, sizeof *t);
    t->m = *m;
    t->weights = room(values * 2);
    for (size_t i = 0; i < values; i++)
        t->weights[i] = sl_f32_to_bf16(uniform(rng) * 2.0f / sqrtf((float)m->d_model));
    draw_pairs(t, rng, sizes);
    draw_rows(t, rng, (size_t)m->n_rows * m->d_model);
    upload_table(t);
    t->memory[2] = upload(t->id, (size_t)m->n_rows * m->top_k * 4);
    t->memory[3] = upload(t->gate, (size_t)m->n_rows * m->top_k * 4);
    t->memory[4] = upload(t->x, t->x_bytes);
    t->memory[5] = upload(t->y, t->x_bytes);
    t->memory[6] = upload(NULL, scratch);
    sl_cuda_fill(gpu, t->memory[6], 0, SL_FAST_ZEROED);
    t->m.id = (const uint32_t *)(uintptr_t)t->memory[2];
    t->m.gate = (const float *)(uintptr_t)t->memory[3];
    t->m.x = (const float *)(uintptr_t)t->memory[4];
    t->m.y = (float *)(uintptr_t)t->memory[5];
    t->m.scratch = (uint8_t *)(uintptr_t)t->memory[6];
}

static void release(drawn *t) {
    for (size_t i = 0; i < sizeof t->memory / sizeof *t->memory; i++)
        sl_cuda_free(gpu, t->memory[i]);
    free(t->weights);
    free(t->id);
    free(t->gate);
    free(t->x);
    free(t->y);
    free(t->want);
}

static double dot(const uint16_t *w, uint32_t row, uint32_t k, const double *x) {
    const uint16_t *v = w + (size_t)row * k;
    double sum = 0;
    for (uint32_t i = 0; i < k; i++) sum += sl_bf16_to_f32(v[i]) * x[i];
    return sum;
}

static double swiglu(double g, double u, double limit) {
    if (limit <= 0) return g / (1 + exp(-g)) * u;
    g = fmin(g, limit);
    u = fmin(fmax(u, -limit), limit);
    return (u + 1) * g / (1 + exp(-1.702 * g));
}

static void reference(drawn *t) {
    const uint32_t d = t->m.d_model, f = t->m.d_ff, k = t->m.top_k;
    const size_t one = (size_t)d * f;
    double *x = room(d * sizeof *x), *m = room(f * sizeof *m);
    for (uint32_t p = 0; p < t->m.n_rows * k; p++) {
        const uint32_t r = p / k;
        if (t->id[p] >= t->m.n_experts) continue;
        const uint16_t *w = t->weights + t->id[p] * 3 * one;
        for (uint32_t i = 0; i < d; i++)
            x[i] = sl_bf16_to_f32(sl_f32_to_bf16(t->x[(size_t)r * d + i]));
        for (uint32_t i = 0; i < f; i++)
            m[i] = swiglu(dot(w, i, d, x), dot(w + one, i, d, x), t->m.limit);
        for (uint32_t i = 0; i < d; i++)
            t->want[(size_t)r * d + i] += t->gate[p] * dot(w + 2 * one, i, f, m);
    }
    free(x);
    free(m);
}

/* Rows of x that are there in bf16 already: then nothing reads those in f32. */
static void round_before(drawn *t) {
    const size_t n = t->x_bytes / 4;
    uint16_t *x = room(n * 2);
    for (size_t i = 0; i < n; i++) x[i] = sl_f32_to_bf16(t->x[i]);
    t->memory[7] = upload(x, n * 2);
    t->m.x16 = (const uint16_t *)(uintptr_t)t->memory[7];
    sl_cuda_fill(gpu, t->memory[4], 0xff, t->x_bytes);
    free(x);
}

static void run(const drawn *t, sl_fast_way way) {
    uint8_t zeroed[SL_FAST_ZEROED];
    sl_err err;
    sl_cuda_fast_moe_by(gpu, &t->m, way);
    if (sl_cuda_copy_out(gpu, t->y, t->memory[5], t->x_bytes, &err) != SL_OK ||
        sl_cuda_copy_out(gpu, zeroed, t->memory[6], sizeof zeroed, &err) != SL_OK ||
        sl_cuda_failed(gpu, &err) != SL_OK)
        fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < sizeof zeroed; i++) assert_int_equal(zeroed[i], 0);
}

static double error_of(const drawn *t) {
    double off = 0, all = 0;
    for (size_t i = 0; i < t->x_bytes / 4; i++) {
        const double e = t->y[i] - t->want[i];
        off += e * e;
        all += t->want[i] * t->want[i];
    }
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

/* Experts with so many rows each, by every way. */
static void check(uint32_t d, uint32_t f, uint32_t rows, uint32_t top_k, const uint32_t *sizes,
                  uint32_t n, float limit, bool add) {
    const sl_fast_moe m = {.d_model = d,
                           .d_ff = f,
                           .n_experts = n,
                           .top_k = top_k,
                           .n_rows = rows,
                           .n_pairs = rows * top_k,
                           .limit = limit,
                           .add = add};
    uint64_t rng = d * 7919u + f * 31u + rows;
    static uint32_t turn, checks;
    checks++;
    for (int way = SL_FAST_AUTO; way < SL_FAST_WAYS; way++) {
        if (turn++ % take_one_in(SL_SLOW_BUILD ? 7 : 5)) continue; /* of eight ways */
        drawn t;
        draw(&t, &rng, &m, sizes);
        reference(&t);
        const bool rounds = way == SL_FAST_TILES || way == SL_FAST_BIG || way == SL_FAST_LINES;
        if ((checks / 4 + (uint32_t)way) % 2 && rounds) round_before(&t);
        sl_cuda_set_many(gpu, (checks / 2 + (uint32_t)way) % 2);
        /* Both products in one launch, in clusters where experts are wide. */
        if (way == SL_FAST_BIG || way == SL_FAST_LINES) t.m.together = checks % 2;
        run(&t, (sl_fast_way)way);
        const double e = error_of(&t);
        if (!(e < 6e-3)) print_message("d %u f %u rows %u way %d: %g\n", d, f, rows, way, e);
        assert_true(e < 6e-3); /* that of a few roundings to bf16 */
        release(&t);
    }
}

static void few_rows(void **state) {
    static const uint32_t one[] = {1, 1, 1, 0, 1}, two[] = {2, 1, 0, 1, 2}, four[] = {4, 0, 3, 1},
                          few[] = {0, 7, 3, 1, 0, 5}, eight[] = {8, 8, 1, 2, 8, 0, 7};
    (void)state;
    check(256, 64, 1, 4, one, 5, 0, false);
    check(2048, 768, 1, 1, one, 1, 0, false);
    check(328, 104, 2, 4, two, 5, 0, false);
    check(128, 64, 4, 3, four, 4, 1.0f, true);
    check(128, 64, 7, 4, few, 6, 0, false);
    check(128, 96, 7, 3, few, 6, 0, false);
    check(128, 64, 8, 5, eight, 7, 0, false);
    check(2048, 128, 8, 8, eight, 7, 0, true);
}

static void many_rows(void **state) {
    static const uint32_t some[] = {9, 16, 1}, more[] = {31, 0, 32, 7}, most[] = {64, 33, 90},
                          all[] = {130, 1, 0, 200}, wide[] = {500, 330};
    (void)state;
    check(128, 64, 16, 3, some, 3, 0, false);
    check(64, 128, 40, 3, more, 4, 0, false);
    check(192, 64, 97, 3, most, 3, 0, false);
    check(128, 64, 210, 3, all, 4, 0, false);
    for (uint32_t i = 0; i < 2; i++) check(64, 64, 500, 2, wide, 2, 0, i);
}

/* More pairs than a block sorts. */
static void blocks_that_sort(void **state) {
    static const uint32_t sizes[] = {400, 3, 0, 399, 401, 200, 0, 1, 350, 2, 77, 400, 19};
    (void)state;
    check(64, 64, 420, 8, sizes, 13, 0, false);
}

static void tails(void **state) {
    static const uint32_t sizes[] = {3, 17, 0, 40};
    (void)state;
    check(72, 40, 50, 3, sizes, 4, 0, false);
    check(328, 104, 41, 3, sizes, 4, 0, false);
}

static void limits_and_sums(void **state) {
    static const uint32_t sizes[] = {2, 6, 1};
    (void)state;
    check(128, 64, 6, 2, sizes, 3, 1.0f, false);
    check(128, 64, 6, 2, sizes, 3, 0, true);
    check(128, 64, 30, 1, sizes, 3, 0, true); /* rows without pairs stay */
}

/* Numerics exact: rows one by one, and few at a time, have the bits that they have all at once. */
static void exact_alone(void **state) {
    static const uint32_t sizes[] = {90, 33, 5, 64, 1, 0, 9, 70};
    static const uint32_t at_once[] = {1, 3, 40};
    const sl_fast_moe m = {
        .d_model = 200, .d_ff = 72, .n_experts = 8, .top_k = 4, .n_rows = 100, .n_pairs = 400};
    uint64_t rng = 11;
    drawn t;
    (void)state;
    draw(&t, &rng, &m, sizes);
    run(&t, SL_FAST_EXACT);
    float *all = room(t.x_bytes);
    memcpy(all, t.y, t.x_bytes);
    const sl_fast_moe whole = t.m;
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++) {
        for (uint32_t r = 0; r < m.n_rows; r += at_once[i]) {
            const uint32_t n = r + at_once[i] < m.n_rows ? at_once[i] : m.n_rows - r;
            t.m = whole;
            t.m.n_rows = n;
            t.m.n_pairs = n * m.top_k;
            t.m.id += r * m.top_k;
            t.m.gate += r * m.top_k;
            t.m.x += r * m.d_model;
            t.m.y += r * m.d_model;
            sl_cuda_fast_moe_by(gpu, &t.m, SL_FAST_EXACT);
        }
        sl_err err;
        if (sl_cuda_copy_out(gpu, t.y, t.memory[5], t.x_bytes, &err) != SL_OK)
            fail_msg("%s", err.msg);
        assert_memory_equal(t.y, all, t.x_bytes);
    }
    free(all);
    release(&t);
}

static void nothing(void **state) {
    static const uint32_t none[] = {0, 0};
    (void)state;
    check(64, 64, 3, 1, none, 2, 0, false);
    check(64, 64, 70, 1, none, 2, 0, false);
}

/* Whatever the model's widths, no kernel asks for more shared memory than a block of that GPU has:
 * Mixtral's 14,336 do not fit where whole rows lie in it. */
static void wide_models_fit_a_block(void **state) {
    static const uint32_t width[] = {2048, 10752, 14336, 16384, 28672};
    static const uint32_t most[] = {232448, 166912, 101376}; /* sm_90, sm_80, sm_120 */
    static uint8_t scratch[SL_FAST_ZEROED] __attribute__((aligned(256)));
    (void)state;
    for (size_t i = 0; i < SL_LEN(width); i++)
        for (size_t j = 0; j < SL_LEN(most); j++)
            for (uint32_t rows = 1; rows < 300; rows = rows < 20 ? rows + 1 : 2 * rows)
                for (int way = 0; way < SL_FAST_WAYS; way++) {
                    sl_fast_plan p;
                    const sl_fast_moe m = {.n_rows = rows,
                                           .n_pairs = 2 * rows,
                                           .n_experts = 8,
                                           .top_k = 2,
                                           .d_model = 4096,
                                           .d_ff = width[i],
                                           .scratch = scratch,
                                           .most_shared = most[j]};
                    sl_fast_plan_make(&m, (sl_fast_way)way, &p);
                    assert_in_range(p.n, 1, SL_FAST_LAUNCHES);
                    for (uint32_t k = 0; k < p.n; k++)
                        assert_in_range(p.launch[k].shared, 0, most[j]);
                }
}

static int open_gpu(void **state) {
    sl_err err;
    (void)state;
    if (sl_cuda_open(0, SL_NUMERICS_FAST, &gpu, &err) != SL_OK) fail_msg("%s", err.msg);
    return 0;
}

static int close_gpu(void **state) {
    (void)state;
    sl_cuda_close(gpu);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows),         cmocka_unit_test(many_rows),
        cmocka_unit_test(blocks_that_sort), cmocka_unit_test(tails),
        cmocka_unit_test(limits_and_sums),  cmocka_unit_test(nothing),
        cmocka_unit_test(exact_alone),      cmocka_unit_test(wide_models_fit_a_block)};
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}

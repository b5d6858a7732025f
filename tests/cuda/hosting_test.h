/* For tests of experts on a GPU that is not there: a device of it and one of a CPU with experts of
 * a small model, what hosts them, and calls of theirs. */
#ifndef SL_TESTS_CUDA_HOSTING_TEST_H
#define SL_TESTS_CUDA_HOSTING_TEST_H

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/driver_test.h"
#include "stage/stage.h"

#include <stdlib.h>

#define FOLDER SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"

enum {
    BLOCKS = 3,
    EXPERTS = 8,
    N = BLOCKS * EXPERTS,
    ROWS = 5,
    PAIRS = 64,
    WIDTH = 64,
    ANSWERS = 8, /* calls whose results have a place each */
    MB = 1000000
};

/* Of each device, as a worker has. */
static sl_mem rows_in[SL_DEVICE_KIND_COUNT], rows_out[SL_DEVICE_KIND_COUNT][ANSWERS];

static inline sl_device *opened(const sl_device_spec *spec, const uint8_t *hosted) {
    sl_err err = {0};
    sl_device *d;
    const sl_device_opts o = {.folder = FOLDER,
                              .hosts = {.experts = true, .hosted = hosted},
                              .device = spec,
                              .threads = 1,
                              .exact = spec->numerics != SL_NUMERICS_FAST,
                              .max_pairs = PAIRS};
    if (sl_device_open(&o, &d, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(d->spec->d_model, WIDTH);
    if (sl_device_take_rows(d, ROWS, &rows_in[spec->kind], &err) != SL_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < ANSWERS; i++)
        if (sl_device_take_rows(d, ROWS, &rows_out[spec->kind][i], &err) != SL_OK)
            fail_msg("%s", err.msg);
    return d;
}

static inline sl_device *opened_cpu(const uint8_t *hosted) {
    const sl_device_spec spec = {.kind = SL_DEVICE_CPU, .numerics = SL_NUMERICS_CPU};
    return opened(&spec, hosted);
}

static inline sl_device *opened_gpu(const uint8_t *hosted, uint64_t memory, sl_numerics numerics,
                                    bool offload) {
    const sl_device_spec spec = {
        .kind = SL_DEVICE_CUDA, .gpu_memory = memory, .numerics = numerics, .offload = offload};
    return opened(&spec, hosted);
}

static inline void closed(sl_device *d, sl_device_kind kind) {
    sl_device_give(d, rows_in[kind]);
    for (uint32_t i = 0; i < ANSWERS; i++) sl_device_give(d, rows_out[kind][i]);
    sl_device_close(d);
}

static inline void mark(uint8_t *hosted, uint64_t bits) {
    for (uint32_t i = 0; i < N; i++) hosted[i] = bits >> i & 1;
}

/* Until it is there. What it is refused with, or SL_OK. */
static inline sl_status host(sl_device *d, uint64_t bits, sl_err *err) {
    uint8_t hosted[N];
    sl_hosting left = SL_HOSTING_GOES_ON;
    sl_status st = SL_OK;
    mark(hosted, bits);
    for (int i = 0; i < 1000 && st == SL_OK && left != SL_HOSTING_DONE; i++)
        st = sl_device_host(d, hosted, PAIRS, false, &left, err);
    return st;
}

static inline void put_rows(sl_device *d, sl_mem m, const float *rows, uint32_t n) {
    uint8_t *at[ROWS];
    for (uint32_t i = 0; i < n; i++)
        at[i] = (uint8_t *)(uintptr_t)(rows + (size_t)i * d->spec->d_model);
    const sl_stage_call c = {.op = SL_OP_UNPACK,
                             .pack = {.n = n, .wire = SL_WIRE_F32, .rows = m, .at = at}};
    sl_device_submit(d, &c);
    sl_device_drain(d);
}

static inline void get_rows(sl_device *d, sl_mem m, float *rows, uint32_t n) {
    uint8_t *at[ROWS];
    for (uint32_t i = 0; i < n; i++) at[i] = (uint8_t *)(rows + (size_t)i * d->spec->d_model);
    const sl_stage_call c = {.op = SL_OP_PACK,
                             .pack = {.n = n, .wire = SL_WIRE_F32, .rows = m, .at = at}};
    sl_device_submit(d, &c);
    sl_device_drain(d);
}

/* The same rows for all calls until the next ones are put. */
static inline void put_drawn(sl_device *d, sl_device_kind kind, uint32_t draw) {
    float x[ROWS * WIDTH];
    for (uint32_t i = 0; i < SL_LEN(x); i++) x[i] = (float)((i * 37 + draw) % 19) / 19 - 0.5f;
    put_rows(d, rows_in[kind], x, ROWS);
}

/* A call in flight, and what it points to. */
typedef struct asked {
    uint32_t id[EXPERTS], first[EXPERTS + 1], row[EXPERTS * ROWS], to[EXPERTS * ROWS];
    float gate[EXPERTS * ROWS];
    uint8_t adds[EXPERTS * ROWS];
    sl_stage_part part;
} asked;

/* Each row's sum over those experts of a block that are marked, into one of the places. */
static inline void ask(sl_device *d, sl_device_kind kind, uint32_t block, uint64_t which,
                       uint32_t place, asked *a) {
    uint32_t n = 0, p = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (!(which >> e & 1)) continue;
        a->id[n] = e;
        a->first[n++] = p;
        for (uint32_t r = 0; r < ROWS; r++, p++) {
            a->row[p] = a->to[p] = r;
            a->gate[p] = 1;
            a->adds[p] = n > 1;
        }
    }
    a->first[n] = p;
    a->part = (sl_stage_part){rows_out[kind][place], ROWS};
    const sl_stage_call c = {.op = SL_OP_EXPERTS,
                             .queue = SL_QUEUE_EXPERTS,
                             .layer = d->spec->moe_layer[block],
                             .experts = {.n_groups = n,
                                         .expert = a->id,
                                         .first = a->first,
                                         .row = a->row,
                                         .gate = a->gate,
                                         .n_rows = ROWS,
                                         .x = rows_in[kind],
                                         .to = a->to,
                                         .adds = a->adds,
                                         .part = &a->part,
                                         .n_parts = 1}};
    sl_device_submit(d, &c);
}

/* Rows of one expert of a block. */
static inline void compute(sl_device *d, sl_device_kind kind, uint32_t expert, float *out) {
    asked a;
    put_drawn(d, kind, expert);
    ask(d, kind, expert / EXPERTS, 1u << expert % EXPERTS, 0, &a);
    sl_device_drain(d);
    get_rows(d, rows_out[kind][0], out, ROWS);
    assert_int_equal(d->failed, SL_OK);
}

static inline void same_as(sl_device *gpu, sl_device *cpu, uint64_t bits) {
    float a[ROWS * WIDTH], b[ROWS * WIDTH];
    for (uint32_t i = 0; i < N; i++) {
        if (!(bits >> i & 1)) continue;
        compute(gpu, SL_DEVICE_CUDA, i, a);
        compute(cpu, SL_DEVICE_CPU, i, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

static inline uint64_t some(uint64_t *rng, uint32_t most) {
    uint64_t bits = 0;
    for (uint32_t k = 0; k < most; k++) bits |= 1ull << sl_rng_below(rng, N);
    return bits;
}

static inline int find_fake(void **state) {
    (void)state;
    setenv("SLUICE_CUDA_DRIVER", SL_FAKE_CUDA, 1);
    const char *why = find_driver();
    if (why) fail_msg("%s", why);
    return 0;
}

#endif

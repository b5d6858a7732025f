/* Memory that GPUs share (stage/cuda/windows.h) over the driver library without a GPU: rows that
 * one device packs into memory of another, of this process and of another one, with nothing done
 * before it is waited for; what is parted from and freed; what cannot be reached, by name. */
#include "stage/cuda/windows.h"

#include "base/rng.h"
#include "cuda/driver_test.h"
#include "quant/wire_rows.h"
#include "stage/cuda/exec_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define ROWS  7u
#define WIDTH 48u
#define STEP  ((size_t)2 << 20)

static char *self; /* this program */

static size_t left; /* windows that another process may have joined stay */

typedef struct gpu {
    sl_cuda *c;
    sl_cuda_windows w;
    sl_arena lists;
    uint64_t rows; /* [ROWS][WIDTH] */
} gpu;

static void open_gpu(gpu *g, uint32_t device) {
    sl_err err = {0};
    *g = (gpu){0};
    if (sl_cuda_open(device, SL_NUMERICS_CPU, &g->c, &err) != SL_OK) fail_msg("%s", err.msg);
    g->w.c = g->c;
    assert_int_equal(sl_arena_create(1 << 16, &g->lists, &err), SL_OK);
    assert_int_equal(sl_cuda_alloc(g->c, sizeof(float[ROWS][WIDTH]), &g->rows, &err), SL_OK);
}

static void close_gpu(gpu *g) {
    sl_cuda_adopt(g->c);
    sl_cuda_drain(g->c);
    sl_cuda_windows_free(&g->w);
    sl_cuda_free(g->c, g->rows);
    sl_arena_free(&g->lists);
    sl_cuda_close(g->c);
}

static void draw(float *x, uint64_t seed) {
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)((double)sl_rng_next(&seed) / 1e19 - 0.5);
}

/* The rows of a message, of f, from `at` on in its memory. */
static void pack(gpu *g, sl_wire_format f, uint64_t at, const float *x) {
    uint8_t *to[ROWS];
    sl_err err;
    sl_cuda_adopt(g->c);
    assert_int_equal(sl_cuda_copy_in(g->c, g->rows, x, sizeof(float[ROWS][WIDTH]), &err), SL_OK);
    for (uint32_t i = 0; i < ROWS; i++)
        to[i] = (uint8_t *)(uintptr_t)(at + i * sl_wire_row_bytes(f, WIDTH));
    const sl_stage_pack p = {.n = ROWS, .wire = f, .at = to};
    sl_arena_reset(&g->lists);
    const sl_cuda_row_places places = sl_cuda_windows_places(&g->w, &p, &g->lists);
    assert_true(places.n == ROWS && places.by_host == 0 && !places.row);
    sl_cuda_pack(g->c, f, (const float *)(uintptr_t)g->rows, NULL, ROWS, WIDTH, places.at);
    sl_cuda_drain(g->c);
}

/* Widens them where they lie, and compares. */
static void are_there(gpu *g, sl_wire_format f, uint64_t at, const float *x) {
    uint8_t there[ROWS * WIDTH * sizeof(float)];
    float expected[ROWS * WIDTH], got[ROWS * WIDTH];
    const uint8_t *from[ROWS];
    sl_err err = {0};
    sl_cuda_adopt(g->c);
    for (uint32_t i = 0; i < ROWS; i++)
        from[i] = (const uint8_t *)(uintptr_t)(at + i * sl_wire_row_bytes(f, WIDTH));
    sl_cuda_unpack(g->c, f, (float *)(uintptr_t)g->rows, NULL, ROWS, WIDTH, from);
    if (sl_cuda_copy_out(g->c, got, g->rows, sizeof got, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_wire_pack(f, x, ROWS, WIDTH, there);
    sl_wire_unpack(f, there, ROWS, WIDTH, expected);
    assert_memory_equal(got, expected, sizeof got);
}

static void offered(gpu *g, size_t bytes, sl_mem *m, sl_device_key *key) {
    sl_err err = {0};
    sl_cuda_adopt(g->c);
    if (sl_cuda_windows_offer(&g->w, bytes, m, key, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_true(m->space == SL_SPACE_CUDA && m->at && m->bytes >= bytes && m->bytes % STEP == 0);
}

static sl_status joins(gpu *g, const sl_device_key *key, sl_mem *m, sl_err *err) {
    sl_cuda_adopt(g->c);
    return sl_cuda_windows_join(&g->w, (sl_span){key->bytes, key->len}, m, err);
}

static void rows_go_from_gpu_to_gpu(void **state) {
    (void)state;
    for (uint32_t same = 0; same < 2; same++) {
        for (uint32_t f = 0; f < SL_WIRE_FORMAT_COUNT; f++) {
            gpu a, b;
            sl_mem own, seen;
            sl_device_key key;
            sl_err err = {0};
            float x[ROWS * WIDTH];
            set_seed(1 + f);
            open_gpu(&a, 0), open_gpu(&b, !same);
            offered(&b, 100000, &own, &key);
            if (joins(&a, &key, &seen, &err) != SL_OK) fail_msg("%s", err.msg);
            assert_true(seen.at == own.at && seen.bytes == own.bytes);
            for (uint32_t slot = 0; slot < 3; slot++) {
                draw(x, 10 * f + slot);
                pack(&a, (sl_wire_format)f, seen.at + slot * 16384, x);
                are_there(&b, (sl_wire_format)f, own.at + slot * 16384, x);
            }
            is_well(a.c), is_well(b.c);
            close_gpu(&a), close_gpu(&b);
            assert_true(used() == 0);
        }
    }
}

/* Whoever offered it may go first: it is there until the last one has parted from it. */
static void memory_stays_for_who_joined_it(void **state) {
    gpu a, b;
    sl_mem own, seen, again;
    sl_device_key key;
    sl_err err = {0};
    float x[ROWS * WIDTH];
    (void)state;
    set_seed(3);
    open_gpu(&a, 0), open_gpu(&b, 1);
    offered(&b, 1000, &own, &key);
    assert_int_equal(joins(&a, &key, &seen, &err), SL_OK);
    assert_int_equal(joins(&b, &key, &again, &err), SL_OK); /* with itself, too */
    assert_true(again.at == own.at && sl_cuda_windows_have(&b.w, (void *)(uintptr_t)own.at));
    assert_false(sl_cuda_windows_have(&b.w, (void *)(uintptr_t)(own.at + own.bytes)));
    assert_false(sl_cuda_windows_have(&b.w, (void *)(uintptr_t)(own.at - 1)));
    close_gpu(&b);
    draw(x, 4);
    pack(&a, SL_WIRE_F32, seen.at, x);
    is_well(a.c);
    assert_true(used() > STEP);
    sl_cuda_windows_part(&a.w, seen);
    assert_false(sl_cuda_windows_have(&a.w, (void *)(uintptr_t)seen.at));
    says(joins(&a, &key, &seen, &err), SL_ERR_UNSUPPORTED, &err, "memory of a GPU that is gone");
    close_gpu(&a);
    assert_true(used() == 0);
}

/* The emulated GPU asks kernels that move rows, as a real one would. */
static void memory_that_was_parted_from_is_not_touched(void **state) {
    gpu a, b;
    sl_mem own, seen;
    sl_device_key key;
    sl_err err = {0};
    (void)state;
    set_seed(0);
    open_gpu(&a, 0), open_gpu(&b, 1);
    offered(&b, 1000, &own, &key);
    uint8_t *at = (uint8_t *)(uintptr_t)own.at;
    sl_cuda_adopt(a.c);
    sl_cuda_pack(a.c, SL_WIRE_F32, (const float *)(uintptr_t)a.rows, NULL, 1, WIDTH, &at);
    says(sl_cuda_failed(a.c, &err), SL_ERR_INTERNAL, &err, "ILLEGAL_ADDRESS"); /* no peer yet */
    close_gpu(&a);
    open_gpu(&a, 0);
    assert_int_equal(joins(&a, &key, &seen, &err), SL_OK);
    close_gpu(&b);
    sl_cuda_windows_part(&a.w, seen);
    sl_cuda_pack(a.c, SL_WIRE_F32, (const float *)(uintptr_t)a.rows, NULL, 1, WIDTH, &at);
    says(sl_cuda_failed(a.c, &err), SL_ERR_INTERNAL, &err, "ILLEGAL_ADDRESS");
    close_gpu(&a);
}

static void rows_are_split_by_place(void **state) {
    gpu a;
    sl_mem own;
    sl_device_key key;
    uint8_t host[64];
    const uint32_t row[4] = {3, 2, 1, 0};
    (void)state;
    open_gpu(&a, 0);
    offered(&a, 1000, &own, &key);
    uint8_t *at[4] = {host, (uint8_t *)(uintptr_t)own.at, NULL, host + 32};
    const sl_stage_pack p = {.n = 4, .at = at}, q = {.n = 4, .at = at, .row = row};
    sl_cuda_row_places to = sl_cuda_windows_places(&a.w, &p, &a.lists);
    assert_true(to.n == 3 && to.by_host == 2 && !to.at[0] && to.at[1] == at[1] && !to.at[2]);
    assert_true(to.row[0] == 0 && to.row[1] == 1 && to.row[2] == 3);
    to = sl_cuda_windows_places(&a.w, &q, &a.lists);
    assert_true(to.row[0] == 3 && to.row[1] == 2 && to.row[2] == 0);
    close_gpu(&a);
    assert_true(used() == (left += STEP));
}

static void what_cannot_be_reached_is_said(void **state) {
    gpu a, b;
    sl_mem own, seen;
    sl_device_key key, bad;
    sl_err err = {0};
    (void)state;
    set_seed(0);
    open_gpu(&a, 0), open_gpu(&b, 1);
    offered(&b, 1000, &own, &key);
    setenv("SLUICE_FAKE_CUDA_PEERS", "0", 1);
    says(joins(&a, &key, &seen, &err), SL_ERR_UNSUPPORTED, &err,
         "GPU 0 does not reach memory of GPU 1");
    unsetenv("SLUICE_FAKE_CUDA_PEERS");
    bad = key, bad.len--;
    says(joins(&a, &bad, &seen, &err), SL_ERR_PROTOCOL, &err, "a key of 95 bytes");
    bad = key, bad.bytes[28] = 1;
    says(joins(&a, &bad, &seen, &err), SL_ERR_PROTOCOL, &err, "a key of 96 bytes");
    bad = key, bad.bytes[0] ^= 1; /* another process, by a handle of this one's */
    says(joins(&a, &bad, &seen, &err), SL_ERR_UNSUPPORTED, &err, "INVALID_CONTEXT");
    bad.bytes[24] = 0;
    says(joins(&a, &bad, &seen, &err), SL_ERR_UNSUPPORTED, &err, "no memory between processes");
    sl_cuda_adopt(b.c);
    fail_at("cuMemAlloc_v2", 1, 2);
    says(sl_cuda_windows_offer(&b.w, 1000, &seen, &bad, &err), SL_ERR_NOMEM, &err,
         "a window of 1000 bytes");
    close_gpu(&a), close_gpu(&b);
    assert_true(used() == left);
}

/* ---- another process ---- */

static void whole(int fd, void *to, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, (uint8_t *)to + at, n - at);
        if (got <= 0) fail_msg("the other process is gone");
        at += (size_t)got;
    }
}

/* The other process: packs drawn rows into the window that it is told of, or says why not. */
static int other(int in, int out) {
    gpu g;
    sl_device_key key;
    sl_mem m;
    sl_err err = {0};
    float x[ROWS * WIDTH];
    set_seed(5);
    open_gpu(&g, 1);
    whole(in, &key, sizeof key);
    const sl_status st = joins(&g, &key, &m, &err);
    if (st == SL_OK) {
        draw(x, 77);
        pack(&g, SL_WIRE_BF16, m.at + 4096, x);
        is_well(g.c);
    }
    (void)!write(out, &st, sizeof st);
    (void)!write(out, err.msg, sizeof err.msg);
    char end;
    (void)!read(in, &end, 1);
    if (st == SL_OK && end == 'p') { /* once more, when it was parted from */
        uint8_t *at = (uint8_t *)(uintptr_t)m.at;
        sl_cuda_windows_part(&g.w, m);
        sl_cuda_pack(g.c, SL_WIRE_F32, (const float *)(uintptr_t)g.rows, NULL, 1, WIDTH, &at);
        const sl_status late = sl_cuda_failed(g.c, &err);
        (void)!write(out, &late, sizeof late);
    } else if (st == SL_OK) {
        pack(&g, SL_WIRE_BF16, m.at, x); /* whoever offered it has closed its device */
        const sl_status late = sl_cuda_failed(g.c, &err);
        (void)!write(out, &late, sizeof late);
    }
    close_gpu(&g);
    return 0;
}

typedef struct child {
    pid_t pid;
    int to, from;
} child;

static child start(void) {
    int to[2], from[2];
    char a[16], b[16];
    assert_true(pipe(to) == 0 && pipe(from) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        close(to[1]), close(from[0]);
        snprintf(a, sizeof a, "%d", to[0]);
        snprintf(b, sizeof b, "%d", from[1]);
        execl(self, self, "--other", a, b, NULL);
        _exit(9);
    }
    close(to[0]), close(from[1]);
    return (child){pid, to[1], from[0]};
}

static void ask(child *c, const sl_device_key *key, sl_status *st, sl_err *err) {
    assert_true(write(c->to, key, sizeof *key) == sizeof *key);
    whole(c->from, st, sizeof *st);
    whole(c->from, err->msg, sizeof err->msg);
}

static void end(child *c) {
    int is = 0;
    close(c->to), close(c->from);
    assert_true(waitpid(c->pid, &is, 0) == c->pid && WIFEXITED(is) && WEXITSTATUS(is) == 0);
}

static void rows_come_from_another_process(void **state) {
    (void)state;
    for (uint32_t closes = 0; closes < 2; closes++) {
        gpu g;
        sl_mem own;
        sl_device_key key;
        sl_status st, late;
        sl_err err = {0};
        float x[ROWS * WIDTH];
        child c = start();
        set_seed(2);
        open_gpu(&g, 0);
        offered(&g, 1000, &own, &key);
        ask(&c, &key, &st, &err);
        if (st != SL_OK) fail_msg("%s", err.msg);
        draw(x, 77);
        are_there(&g, SL_WIRE_BF16, own.at + 4096, x);
        is_well(g.c);
        if (closes) close_gpu(&g);
        assert_true(write(c.to, closes ? "c" : "p", 1) == 1);
        whole(c.from, &late, sizeof late);
        assert_int_equal(late, closes ? SL_OK : SL_ERR_INTERNAL); /* its mapping is its own */
        end(&c);
        /* Nobody here knows whether the other still packs rows into it. */
        if (!closes) {
            sl_cuda_windows_part(&g.w, own);
            assert_false(sl_cuda_windows_have(&g.w, (void *)(uintptr_t)own.at));
            close_gpu(&g);
        }
        assert_true(used() == (left += STEP));
    }
}

static void handles_of_freed_memory_are_refused(void **state) {
    gpu g, b;
    sl_mem own, seen;
    sl_device_key key;
    sl_status st;
    sl_err err = {0};
    (void)state;
    child c = start();
    open_gpu(&g, 0), open_gpu(&b, 1);
    offered(&g, 1000, &own, &key);
    assert_int_equal(joins(&b, &key, &seen, &err),
                     SL_OK); /* of this process: it was for that one */
    close_gpu(&g), close_gpu(&b);
    assert_true(used() == left);
    ask(&c, &key, &st, &err);
    says(st, SL_ERR_UNSUPPORTED, &err, "cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE");
    end(&c);
    setenv("SLUICE_FAKE_CUDA_IPC", "0", 1);
    c = start();
    open_gpu(&g, 0);
    offered(&g, 1000, &own, &key);
    ask(&c, &key, &st, &err);
    unsetenv("SLUICE_FAKE_CUDA_IPC");
    says(st, SL_ERR_UNSUPPORTED, &err, "shares no memory between processes");
    close_gpu(&g);
    end(&c);
}

/* Connections that break one after the other take so much and no more. */
static void windows_that_stay_are_bounded(void **state) {
    gpu g;
    sl_mem own;
    sl_device_key key;
    sl_err err = {0};
    (void)state;
    open_gpu(&g, 0);
    while (left < SL_CUDA_WINDOWS_LEFT * STEP) {
        offered(&g, 1000, &own, &key);
        sl_cuda_windows_part(&g.w, own);
        left += STEP;
    }
    says(sl_cuda_windows_offer(&g.w, 1000, &own, &key, &err), SL_ERR_LIMIT, &err,
         "16 windows of lost connections");
    close_gpu(&g);
    assert_true(used() == left);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_from_gpu_to_gpu),
        cmocka_unit_test(memory_stays_for_who_joined_it),
        cmocka_unit_test(memory_that_was_parted_from_is_not_touched),
        cmocka_unit_test(rows_are_split_by_place),
        cmocka_unit_test(what_cannot_be_reached_is_said),
        cmocka_unit_test(rows_come_from_another_process),
        cmocka_unit_test(handles_of_freed_memory_are_refused),
        cmocka_unit_test(windows_that_stay_are_bounded),
    };
    setenv("SLUICE_CUDA_DRIVER", SL_FAKE_CUDA, 1);
    const char *why = find_driver();
    if (why) return fprintf(stderr, "%s\n", why), 1;
    self = argv[0];
    if (argc == 4) return other(atoi(argv[2]), atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Base: cursors never leave their bytes, the arena never its block, allocation fails where told,
 * errors and log lines have their form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/poll.h"
#include "base/span.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* ---- span ---- */

static void cursors(void **state) {
    (void)state;
    uint8_t buf[32];
    sl_wr w = sl_wr_of(buf, sizeof buf);
    sl_wr_u8(&w, 0xAB);
    sl_wr_u16(&w, 0x1234);
    sl_wr_u32(&w, 0xDEADBEEF);
    sl_wr_u64(&w, 0x0102030405060708u);
    sl_wr_f32(&w, -1.5f);
    sl_wr_bytes(&w, "xyz", 3);
    sl_wr_bytes(&w, NULL, 0);
    assert_true(w.ok);
    assert_int_equal(w.len, 22);
    static const uint8_t first[] = {0xAB, 0x34, 0x12, 0xEF, 0xBE, 0xAD, 0xDE, 8,
                                    7,    6,    5,    4,    3,    2,    1};
    assert_memory_equal(buf, first, sizeof first);
    sl_cur c = sl_cur_of((sl_span){buf, w.len});
    assert_int_equal(sl_cur_u8(&c), 0xAB);
    assert_int_equal(sl_cur_u16(&c), 0x1234);
    assert_int_equal(sl_cur_u32(&c), 0xDEADBEEF);
    assert_true(sl_cur_u64(&c) == 0x0102030405060708u);
    assert_true(sl_cur_f32(&c) == -1.5f);
    assert_memory_equal(sl_cur_take(&c, 3), "xyz", 3);
    assert_true(c.ok && sl_cur_left(&c) == 0);
    assert_int_equal(sl_cur_u8(&c), 0); /* the end */
    assert_false(c.ok);
}

static void cursors_at_the_edge(void **state) {
    (void)state;
    uint8_t *exact = malloc(7); /* a sanitizer sees the first byte past it */
    memset(exact, 0xFF, 7);
    for (size_t n = 0; n <= 7; n++) {
        sl_cur c = sl_cur_of((sl_span){exact, n});
        uint64_t v = sl_cur_u64(&c);
        assert_true(v == 0 && !c.ok && c.pos == 0 && sl_cur_left(&c) == 0);
        assert_int_equal(sl_cur_u8(&c), 0); /* stays failed, though a byte is there */
        c = sl_cur_of((sl_span){exact, n});
        assert_null(sl_cur_take(&c, SIZE_MAX));
        c = sl_cur_of((sl_span){exact, n});
        assert_non_null(sl_cur_take(&c, n));
        assert_null(sl_cur_take(&c, 1));
        sl_wr w = sl_wr_of(exact, n);
        sl_wr_u64(&w, 1);
        assert_true(!w.ok && w.len == 0);
        sl_wr_u8(&w, 1);
        assert_int_equal(w.len, 0);
        w = sl_wr_of(exact, n);
        assert_null(sl_wr_take(&w, SIZE_MAX));
        w = sl_wr_of(exact, n);
        assert_non_null(sl_wr_take(&w, n));
        assert_null(sl_wr_take(&w, 1));
    }
    free(exact);
    sl_cur none = sl_cur_of((sl_span){0});
    assert_int_equal(sl_cur_left(&none), 0);
    assert_int_equal(sl_cur_u32(&none), 0);
    assert_false(none.ok);
}

/* ---- memory ---- */

static bool is_zero(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* Large blocks are zeroed another way; memory that was used before comes back with zeros too. */
static void large_allocation(void **state) {
    (void)state;
    for (size_t n = 250000; n < 4000000; n = n * 2 + 1013)
        for (int round = 0; round < 3; round++) {
            uint8_t *p = sl_alloc(n, 1);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            assert_true(is_zero(p, n));
            memset(p, 0xAA, n);
            sl_free(p);
        }
}

static void allocation(void **state) {
    (void)state;
    for (size_t n = 0; n < 200; n += 7) {
        uint8_t *p = sl_alloc(n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(is_zero(p, 3 * n));
        memset(p, 0xAA, 3 * n);
        uint8_t *q = sl_grow(p, n, n + 50, 3);
        assert_non_null(q);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(q[i], 0xAA);
        assert_true(is_zero(q + 3 * n, 150));
        q = sl_grow(q, n + 50, 2, 3);
        assert_true(n < 2 || (q[0] == 0xAA && q[5] == 0xAA));
        sl_free(q);
    }
    assert_null(sl_alloc(SIZE_MAX / 2, 3));
    assert_null(sl_alloc(SIZE_MAX, 1));
    assert_null(sl_grow(NULL, 0, SIZE_MAX / 4, 8));
    assert_null(sl_strndup("x", SIZE_MAX));
    char *s = sl_strdup("a sluice"), *part = sl_strndup("a sluice", 4);
    assert_string_equal(s, "a sluice");
    assert_string_equal(part, "a sl");
    sl_free(s);
    sl_free(part);
    sl_free(NULL);
}

static void arrays_in_one_block(void **state) {
    (void)state;
    uint8_t *bytes = NULL;
    double *number = NULL;
    uint32_t *none = NULL;
    uint16_t *table = NULL;
    uint64_t before = sl_mem_count();
    void *block = sl_alloc_arrays(SL_ARRAY(bytes, 67), SL_ARRAY(number, 9), SL_ARRAY(none, 0),
                                  SL_TABLE(table, 70, 3));
    assert_non_null(block);
    assert_int_equal(sl_mem_count() - before, 1);
    uint8_t *const at[] = {bytes, (uint8_t *)number, (uint8_t *)none, (uint8_t *)table};
    const size_t size[] = {67, 9 * sizeof *number, 0, 210 * sizeof *table};
    for (size_t i = 0; i < SL_LEN(at); i++) {
        assert_int_equal((uintptr_t)at[i] % 64, 0);
        if (i + 1 < SL_LEN(at)) assert_true(at[i] + size[i] <= at[i + 1]);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(at[i][j], 0);
        memset(at[i], 0xA5, size[i]);
#ifdef __SANITIZE_ADDRESS__
        assert_true(__asan_address_is_poisoned(at[i] + size[i]));
        assert_true(size[i] == 0 || !__asan_address_is_poisoned(at[i] + size[i] - 1));
#endif
    }
    sl_free(block);

    assert_null(sl_alloc_arrays(SL_ARRAY(bytes, 1), SL_TABLE(number, SIZE_MAX / 4, 3)));
    assert_true(!bytes && !number);
    assert_null(sl_alloc_arrays(SL_ARRAY(bytes, SIZE_MAX / 2), SL_ARRAY(table, SIZE_MAX / 4)));
    assert_null(sl_alloc_arrays(SL_ARRAY(bytes, SIZE_MAX)));
    bytes = (uint8_t *)&none;
    sl_mem_fail_at(1);
    assert_null(sl_alloc_arrays(SL_ARRAY(bytes, 1)));
    assert_null(bytes);
}

static void injected_failure(void **state) {
    (void)state;
    uint64_t before = sl_mem_count();
    sl_mem_fail_at(3);
    void *p[4];
    for (int i = 0; i < 4; i++) p[i] = sl_alloc(1, 8);
    assert_true(p[0] && p[1] && !p[2] && p[3]);
    assert_int_equal(sl_mem_count() - before, 4);
    sl_mem_fail_at(1);
    assert_null(sl_grow(p[0], 1, 2, 8)); /* and leaves p alone */
    memset(p[0], 1, 8);
    sl_mem_fail_at(1);
    assert_null(sl_strdup("x"));
    sl_arena a;
    sl_err err = {0};
    sl_mem_fail_at(1);
    assert_int_equal(sl_arena_create(100, &a, &err), SL_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "100 bytes"));
    sl_mem_fail_at(1);
    sl_mem_fail_at(0); /* off again */
    void *ok = sl_alloc(1, 1);
    assert_non_null(ok);
    sl_free(ok);
    for (int i = 0; i < 4; i++) sl_free(p[i]);
}

static void reserved_memory(void **state) {
    (void)state;
    const size_t large = (size_t)2 << 20;
    for (size_t n = 1; n < 4 * large; n = n * 3 + 1) {
        uint8_t *p = sl_reserve(n, 1);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % large, 0);
        assert_int_equal(p[0] + p[n - 1], 0);
        p[0] = p[n - 1] = 1;
        sl_release(p, n, 1);
    }
    assert_null(sl_reserve(SIZE_MAX / 2, 3));
    assert_null(sl_reserve(SIZE_MAX, 1));
    sl_release(NULL, 1, 1);
}

static void arena(void **state) {
    (void)state;
    sl_arena a;
    sl_err err;
    assert_int_equal(sl_arena_create(256, &a, &err), SL_OK);
    uint8_t *x = sl_arena_take(&a, 1, 1), *y = sl_arena_take(&a, 10, 8);
    assert_non_null(x);
    assert_int_equal((uintptr_t)x % 64, 0);
    assert_ptr_equal(y, x + 64);
    assert_null(sl_arena_take(&a, 65, 1)); /* 64 bytes are left after alignment */
    memset(sl_arena_take(&a, 64, 1), 1, 64);
    assert_null(sl_arena_take(&a, 1, 1));
    assert_non_null(sl_arena_take(&a, 0, 8));
    assert_null(sl_arena_take(&a, SIZE_MAX, 1));
    assert_null(sl_arena_take(&a, SIZE_MAX / 2, 4));
    assert_int_equal(a.peak, 256);
    sl_arena_reset(&a);
    assert_ptr_equal(sl_arena_take(&a, 256, 1), x);
    assert_int_equal(a.peak, 256);
    sl_arena_free(&a);
    sl_arena_free(&a); /* twice is fine */
    assert_null(sl_arena_take(&a, 1, 1));
}

/* ---- errors ---- */

static void errors(void **state) {
    (void)state;
    sl_err err;
    assert_int_equal(sl_fail(NULL, SL_ERR_IO, "x"), SL_ERR_IO);
    assert_int_equal(sl_fail(&err, SL_ERR_LIMIT, "%d of %s", 3, "two"), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "3 of two");
    assert_int_equal(sl_err_prefix(&err, "row %d", 7), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "row 7: 3 of two");
    char long_text[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    sl_fail(&err, SL_ERR_ARG, "%s", long_text);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    sl_err_prefix(&err, "%s", long_text);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_string_equal(sl_status_text(SL_OK), "ok");
    assert_string_equal(sl_status_text(SL_ERR_PEER_DOWN), "peer is gone");
    assert_string_equal(sl_status_text((sl_status)12345), "unknown status");
}

/* ---- log ---- */

static int saved_stderr;

static FILE *log_begin(void) {
    FILE *f = tmpfile();
    assert_non_null(f);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    return f;
}

static void log_end(FILE *f, char *out, size_t cap) {
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    rewind(f);
    out[fread(out, 1, cap - 1, f)] = '\0';
    fclose(f);
}

static void log_lines(void **state) {
    (void)state;
    char text[8192], huge[3000];
    memset(huge, 'y', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    FILE *f = log_begin();
    sl_log(SL_LOG_WARN, "net", "from %s",
           "evil\n2026-01-01T00:00:00.000 error net: forged\r\x1b[31m\x7f");
    sl_log(SL_LOG_INFO, "net", "not shown");
    sl_log_set_level(SL_LOG_DEBUG);
    sl_log_set_who("worker 2");
    sl_log(SL_LOG_DEBUG, "engine", "caf\xc3\xa9");
    sl_log(SL_LOG_ERROR, "engine", "%s", huge);
    sl_log_set_who("");
    sl_log_set_level(SL_LOG_WARN);
    log_end(f, text, sizeof text);
    char *line = strtok(text, "\n");
    int y, mo, d, h, mi, s, ms, at = 0;
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3d warn net: %n", &y, &mo, &d, &h, &mi,
                            &s, &ms, &at),
                     7);
    assert_string_equal(line + at, "from evil?2026-01-01T00:00:00.000 error net: forged??[31m?");
    line = strtok(NULL, "\n");
    assert_non_null(strstr(line, " worker 2 debug engine: caf\xc3\xa9"));
    line = strtok(NULL, "\n");
    assert_non_null(strstr(line, " worker 2 error engine: yyyy"));
    assert_true(strlen(line) < 1024);
    assert_null(strtok(NULL, "\n"));
    sl_log_level level;
    assert_int_equal(sl_log_level_parse("debug", &level), SL_OK);
    assert_int_equal(level, SL_LOG_DEBUG);
    assert_int_equal(sl_log_level_parse("loud", &level), SL_ERR_ARG);
    assert_int_equal(sl_log_level_parse("", &level), SL_ERR_ARG);
}

static void json_log_lines(void **state) {
    (void)state;
    char text[16384], huge[3000];
    memset(huge, '"', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    FILE *f = log_begin();
    sl_log_set_json(true);
    sl_log(SL_LOG_WARN, "net", "%s",
           "a \"b\\\" \n caf\xc3\xa9 \xff\xc3 \xed\xa0\x80 \xf0\x9f\x8c\x8a");
    sl_log_set_who("worker 2");
    sl_log_request(SL_LOG_ERROR, "serve", "req-1", "%u after %.1f s", 200u, 0.5);
    sl_log(SL_LOG_ERROR, "engine", "%s", huge);
    sl_log_set_who("");
    sl_log_set_json(false);
    sl_log_request(SL_LOG_ERROR, "serve", "req\n2", "done");
    log_end(f, text, sizeof text);
    char *line = strtok(text, "\n");
    assert_memory_equal(line, "{\"ts\":\"20", 9);
    char *rest = strstr(line, "Z\",\"level\"");
    assert_string_equal(rest,
                        "Z\",\"level\":\"warn\",\"module\":\"net\",\"msg\":\"a \\\"b\\\\\\\" ? "
                        "caf\xc3\xa9 ?? ??? \xf0\x9f\x8c\x8a\"}");
    line = strtok(NULL, "\n");
    rest = strstr(line, "Z\",\"level\"");
    assert_string_equal(rest, "Z\",\"level\":\"error\",\"who\":\"worker 2\",\"module\":\"serve\","
                              "\"request\":\"req-1\",\"msg\":\"200 after 0.5 s\"}");
    line = strtok(NULL, "\n");
    assert_true(strlen(line) < 2048);
    assert_string_equal(line + strlen(line) - 4, "\\\"\"}");
    line = strtok(NULL, "\n");
    assert_non_null(strstr(line, " error serve: req?2: done"));
    bool json = false;
    assert_int_equal(sl_log_format_parse("json", &json), SL_OK);
    assert_true(json);
    assert_int_equal(sl_log_format_parse("text", &json), SL_OK);
    assert_false(json);
    assert_int_equal(sl_log_format_parse("xml", &json), SL_ERR_ARG);
}

/* ---- the lesser and the greater ---- */

static void extremes_evaluate_once(void **state) {
    (void)state;
    int calls = 0;
    assert_int_equal(SL_MIN(++calls, 5), 1);
    assert_int_equal(calls, 1);
    assert_int_equal(SL_MAX(5, ++calls), 5);
    assert_int_equal(calls, 2);
    assert_int_equal(SL_MIN(SL_MAX(++calls, 1), SL_MAX(++calls, 9)), 3);
    assert_int_equal(calls, 4);
    uint32_t a = 7;
    uint64_t b = 1ull << 40;
    assert_true(SL_MAX(a, b) == b && sizeof SL_MAX(a, b) == sizeof b); /* the common type */
    assert_true(SL_MIN(0.5, 1) == 0.5);
}

/* After a turn of others that was long nobody yields for a while; then polls begin again. */
static void polls_shyly_where_cores_are_busy(void **state) {
    (void)state;
    const uint64_t s = 1000000000ull;
    sl_poll_memory m = {0};
    sl_poll p = sl_poll_begin(&m, s, UINT64_MAX);
    assert_true(p.most_ns == p.now_ns + s && m.shy_until_ns == 0);
    p.now_ns -= s; /* as if the last look had been a second ago */
    (void)sl_poll_again(&p);
    assert_true(m.shy_until_ns >= p.now_ns + SL_POLL_SHY * s);
    assert_true(p.most_ns == p.least_ns);
    p = sl_poll_begin(&m, s, UINT64_MAX);
    assert_false(sl_poll_again(&p));
    m.shy_until_ns = p.now_ns;
    p = sl_poll_begin(&m, s, UINT64_MAX);
    assert_true(p.most_ns == p.now_ns + s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cursors),
        cmocka_unit_test(cursors_at_the_edge),
        cmocka_unit_test(allocation),
        cmocka_unit_test(large_allocation),
        cmocka_unit_test(arrays_in_one_block),
        cmocka_unit_test(injected_failure),
        cmocka_unit_test(reserved_memory),
        cmocka_unit_test(arena),
        cmocka_unit_test(errors),
        cmocka_unit_test(log_lines),
        cmocka_unit_test(json_log_lines),
        cmocka_unit_test(extremes_evaluate_once),
        cmocka_unit_test(polls_shyly_where_cores_are_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

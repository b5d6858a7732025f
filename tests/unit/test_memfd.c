/* Sealed files: who maps one sees what another has written, also after that is gone; others are
 * refused. */
#include "base/memfd.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define BYTES (3 * SL_LARGE_PAGE + 4096)

static void what_is_written_stays(void **state) {
    (void)state;
    sl_err err = {0};
    int fd;
    assert_int_equal(sl_memfd_create(BYTES, &fd, &err), SL_OK);
    pid_t child = fork();
    if (child == 0) { /* killed while it has it mapped */
        uint8_t *p = sl_memfd_map(fd, BYTES);
        if (!p || sl_memfd_check(fd, BYTES, &err) != SL_OK) _exit(1);
        memset(p + 5, 7, BYTES - 5);
        sl_memfd_enlarge(p, 0, BYTES);
        p[5] = 8;
        abort();
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    uint8_t *p = sl_memfd_map(fd, BYTES), *q = sl_memfd_map(fd, BYTES);
    assert_true(p && q && (uintptr_t)p % SL_LARGE_PAGE == 0);
    assert_true(p[4] == 0 && p[5] == 8 && p[6] == 7 && p[BYTES - 1] == 7);
    sl_memfd_enlarge(p, SL_LARGE_PAGE, 2 * SL_LARGE_PAGE);
    p[BYTES - 1] = 9;
    assert_true(q[BYTES - 1] == 9 && q[SL_LARGE_PAGE] == 7);
    sl_memfd_unmap(p, BYTES);
    sl_memfd_unmap(q, BYTES);
    sl_memfd_unmap(NULL, BYTES);
    close(fd);
}

/* A hole is given pages, and stays zero. */
static void holes_are_enlarged(void **state) {
    (void)state;
    sl_err err = {0};
    int fd;
    assert_int_equal(sl_memfd_create(BYTES, &fd, &err), SL_OK);
    uint8_t *p = sl_memfd_map(fd, BYTES);
    assert_non_null(p);
    (void)sl_memfd_enlarge(p, 0, SL_LARGE_PAGE); /* where there are none it is false */
    sl_memfd_enlarge(p, 2 * SL_LARGE_PAGE, BYTES);
    sl_memfd_enlarge(p, SL_LARGE_PAGE, SL_LARGE_PAGE);
    for (size_t i = 0; i < BYTES; i += 1000) assert_int_equal(p[i], 0);
    sl_memfd_unmap(p, BYTES);
    close(fd);
}

static void refused(int fd, const char *why) {
    sl_err err = {0};
    assert_int_equal(sl_memfd_check(fd, BYTES, &err), SL_ERR_PROTOCOL);
    if (!strstr(err.msg, why)) fail_msg("'%s' in: %s", why, err.msg);
}

static void others_are_refused(void **state) {
    (void)state;
    sl_err err = {0};
    int fd, other, pipes[2];
    assert_int_equal(sl_memfd_create(BYTES + 1, &fd, &err), SL_OK);
    refused(fd, "bytes of shared memory");
    assert_int_equal(ftruncate(fd, BYTES), -1); /* nobody changes its size any more */
    close(fd);
    other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(other >= 0 && ftruncate(other, BYTES) == 0);
    refused(other, "without seals");
    assert_int_equal(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    refused(other, "without seals");
    close(other);
    assert_int_equal(pipe(pipes), 0);
    refused(pipes[0], "not a file of shared memory");
    close(pipes[0]);
    close(pipes[1]);
    refused(-1, "not a file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_stays),
        cmocka_unit_test(holes_are_enlarged),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

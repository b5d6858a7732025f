/* Files are written whole or not at all, and only where a file belongs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/output.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

static char folder[] = "/tmp/sluice-output-XXXXXX";

static const char *at(const char *name) {
    static char path[2][300];
    static unsigned turn;
    char *p = path[turn++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void put(const char *name, const char *text) {
    FILE *f = fopen(at(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void holds(const char *name, const char *text) {
    char got[64] = "";
    FILE *f = fopen(at(name), "r");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    got[n] = 0;
    assert_string_equal(got, text);
}

/* Entries of the folder: parts that stayed would be among them. */
static unsigned entries(void) {
    unsigned n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static sl_status write_to(const char *path, const char *text, sl_status st, sl_err *err) {
    sl_output o;
    sl_status opened = sl_output_open(path, &o, err);
    if (opened != SL_OK) return opened;
    fputs(text, o.f);
    return sl_output_end(&o, st, err);
}

static void files_are_whole_or_as_they_were(void **state) {
    (void)state;
    sl_err err = {0};
    struct stat now;
    assert_int_equal(write_to(at("new"), "one", SL_OK, &err), SL_OK);
    holds("new", "one");
    assert_int_equal(write_to(at("new"), "two", SL_ERR_FORMAT, &err), SL_ERR_FORMAT);
    holds("new", "one");
    assert_int_equal(chmod(at("new"), 0640), 0);
    assert_int_equal(write_to(at("new"), "three", SL_OK, &err), SL_OK);
    holds("new", "three");
    assert_int_equal(stat(at("new"), &now), 0);
    assert_int_equal(now.st_mode & 0777, 0640);
    assert_int_equal(write_to(at("other"), "x", SL_ERR_FORMAT, &err), SL_ERR_FORMAT);
    assert_int_equal(entries(), 1);
    sl_output none = {0};
    sl_output_abandon(&none);
    unlink(at("new"));
}

static void links_stay_and_their_files_change(void **state) {
    (void)state;
    sl_err err = {0};
    struct stat now;
    put("file", "old");
    assert_int_equal(symlink("file", at("link")), 0);
    assert_int_equal(write_to(at("link"), "new", SL_OK, &err), SL_OK);
    holds("file", "new");
    assert_int_equal(lstat(at("link"), &now), 0);
    assert_true(S_ISLNK(now.st_mode));
    unlink(at("file"));
    assert_int_equal(write_to(at("link"), "x", SL_OK, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "a link to nothing"));
    assert_int_equal(entries(), 1);
    unlink(at("link"));
}

static void *read_pipe(void *path) {
    static char got[16];
    memset(got, 0, sizeof got);
    FILE *f = fopen(path, "r");
    if (f && fread(got, 1, sizeof got - 1, f) == 0) got[0] = '?';
    if (f) fclose(f);
    return got;
}

static void devices_and_pipes_are_written_as_they_are(void **state) {
    (void)state;
    sl_err err = {0};
    struct stat now;
    assert_int_equal(write_to("/dev/null", "x", SL_OK, &err), SL_OK);
    assert_int_equal(stat("/dev/null", &now), 0);
    assert_true(S_ISCHR(now.st_mode));
    assert_int_equal(write_to("/dev/full", "x", SL_OK, &err), SL_ERR_IO);
    assert_non_null(strstr(err.msg, "/dev/full: cannot be written: No space left on device"));
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    char path[300];
    snprintf(path, sizeof path, "%s", at("pipe"));
    pthread_t reader;
    void *got;
    assert_int_equal(pthread_create(&reader, NULL, read_pipe, path), 0);
    assert_int_equal(write_to(path, "through", SL_OK, &err), SL_OK);
    pthread_join(reader, &got);
    assert_string_equal(got, "through");
    assert_int_equal(stat(path, &now), 0);
    assert_true(S_ISFIFO(now.st_mode));
    unlink(path);
}

static void other_things_are_refused_by_name(void **state) {
    (void)state;
    sl_err err = {0};
    assert_int_equal(write_to(folder, "x", SL_OK, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "is a folder"));
    assert_int_equal(write_to(at("none/file"), "x", SL_OK, &err), SL_ERR_IO);
    assert_non_null(strstr(err.msg, "none/file"));
    assert_int_equal(write_to("", "x", SL_OK, &err), SL_ERR_IO);
    assert_int_equal(entries(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_whole_or_as_they_were),
        cmocka_unit_test(links_stay_and_their_files_change),
        cmocka_unit_test(devices_and_pipes_are_written_as_they_are),
        cmocka_unit_test(other_things_are_refused_by_name),
    };
    if (!mkdtemp(folder)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}

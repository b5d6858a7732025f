/* Files of KV pages: what was put comes back, nothing else ever does, and they and their folder are
 * their owner's alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "format/kv_file.h"
#include "format/kv_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define PAGE  40u
#define PAGES 3u
#define BYTES (SL_KV_FILE_HEAD_BYTES + PAGES * (PAGE + SL_KV_FILE_PAGE_EXTRA))

static char folder[] = "/tmp/sluice-kv-XXXXXX";
static const sl_kv_stamp stamp = {{1, 2, 3}}, other = {{1, 2, 4}};

static const char *at(const char *name) {
    static char path[2][300];
    static unsigned turn;
    char *p = path[turn++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static sl_page_key key_of(uint32_t i) {
    return (sl_page_key){{i + 1, 77}};
}

static void fill(uint32_t i, uint8_t out[PAGE]) {
    for (uint32_t k = 0; k < PAGE; k++) out[k] = (uint8_t)(i * 31 + k);
}

static sl_status write_pages(const char *path, uint32_t said, uint32_t n, sl_err *err) {
    uint8_t page[PAGE];
    sl_kv_writer w;
    sl_status st = sl_kv_writer_open(path, &stamp, PAGE, said, &w, err);
    if (st != SL_OK) return st;
    for (uint32_t i = 0; st == SL_OK && i < n; i++) {
        fill(i, page);
        st = sl_kv_writer_put(&w, key_of(i), page, err);
    }
    return sl_kv_writer_end(&w, st, err);
}

static void put(const char *path, const uint8_t *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void get(const char *path, uint8_t bytes[BYTES]) {
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && read(fd, bytes, BYTES) == (ssize_t)BYTES);
    close(fd);
}

/* Bits of the pages that come, all of which are those that were put; UINT32_MAX: it is refused. */
static uint32_t read_pages(const char *path, const sl_kv_stamp *of, size_t size, sl_status *st) {
    uint8_t page[PAGE], want[PAGE];
    uint32_t came = 0;
    sl_kv_reader r;
    sl_page_key key;
    sl_err err;
    *st = sl_kv_reader_open(path, of, size, &r, &err);
    if (*st != SL_OK) return UINT32_MAX;
    assert_true(r.n <= PAGES);
    while (r.next < r.n) {
        uint32_t i = (uint32_t)r.next;
        *st = sl_kv_reader_next(&r, &key, page, &err);
        if (*st == SL_ERR_FORMAT) continue;
        assert_int_equal(*st, SL_OK);
        fill(i, want);
        assert_true(sl_page_key_is(key, key_of(i)));
        assert_memory_equal(page, want, PAGE);
        came |= 1u << i;
    }
    sl_kv_reader_close(&r);
    return came;
}

static void what_was_put_comes_back(void **state) {
    (void)state;
    const char *path = at("file");
    struct stat s;
    sl_status st;
    sl_err err;
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), UINT32_MAX);
    assert_int_equal(st, SL_ERR_NOTFOUND);
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(s.st_size, BYTES);
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 7);
    sl_kv_reader r;
    sl_page_key key;
    uint8_t page[PAGE];
    assert_int_equal(sl_kv_reader_open(path, &stamp, PAGE, &r, &err), SL_OK);
    assert_int_equal(sl_kv_reader_skip(&r, 2, &err), SL_OK);
    assert_int_equal(sl_kv_reader_next(&r, &key, page, &err), SL_OK);
    assert_true(sl_page_key_is(key, key_of(2)));
    assert_int_equal(sl_kv_reader_skip(&r, 1, &err), SL_ERR_IO);
    sl_kv_reader_close(&r);
    assert_int_equal(write_pages(path, 0, 0, &err), SL_OK);
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 0);
    unlink(path);
}

/* A bit of the head costs the file, one of a page that page. */
static void every_bit_counts(void **state) {
    (void)state;
    const char *path = at("file");
    uint8_t whole[BYTES], bytes[BYTES];
    sl_status st;
    sl_err err;
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    get(path, whole);
    for (uint32_t bit = 0; bit < 8 * BYTES; bit++) {
        memcpy(bytes, whole, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        put(path, bytes, sizeof bytes);
        uint32_t came = read_pages(path, &stamp, PAGE, &st);
        if (bit / 8 < SL_KV_FILE_HEAD_BYTES) {
            assert_int_equal(came, UINT32_MAX);
            assert_int_equal(st, SL_ERR_FORMAT);
        } else {
            uint32_t hurt = (bit / 8 - SL_KV_FILE_HEAD_BYTES) / (PAGE + SL_KV_FILE_PAGE_EXTRA);
            assert_int_equal(came, 7u & ~(1u << hurt));
        }
    }
    unlink(path);
}

static void files_that_are_cut_are_refused(void **state) {
    (void)state;
    const char *path = at("file");
    uint8_t whole[BYTES + 1] = {0};
    sl_status st;
    sl_err err;
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    get(path, whole);
    for (uint32_t n = 0; n <= BYTES + 1; n++) {
        put(path, whole, n);
        uint32_t came = read_pages(path, &stamp, PAGE, &st);
        assert_int_equal(came, n == BYTES ? 7 : UINT32_MAX);
        if (n != BYTES) assert_int_equal(st, SL_ERR_FORMAT);
    }
    unlink(path);
}

static void of_something_else_is_no_error(void **state) {
    (void)state;
    const char *path = at("file");
    const size_t half = PAGE + SL_KV_FILE_PAGE_EXTRA; /* bytes of a page in the file */
    uint8_t bytes[BYTES], record[sizeof bytes];
    sl_status st;
    sl_err err;
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    assert_int_equal(read_pages(path, &other, PAGE, &st), UINT32_MAX);
    assert_int_equal(st, SL_ERR_UNSUPPORTED);
    assert_int_equal(read_pages(path, &stamp, PAGE + 1, &st), UINT32_MAX);
    assert_int_equal(st, SL_ERR_UNSUPPORTED);
    /* a page with another one's key, and the whole of it as another one's, which it is */
    get(path, bytes);
    memcpy(bytes + SL_KV_FILE_HEAD_BYTES, bytes + SL_KV_FILE_HEAD_BYTES + half, 16);
    put(path, bytes, sizeof bytes);
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 6);
    /* a page of another model's file */
    sl_kv_writer w;
    memset(record, 0, PAGE);
    fill(0, record);
    assert_int_equal(sl_kv_writer_open(at("strange"), &other, PAGE, PAGES, &w, &err), SL_OK);
    for (uint32_t i = 0; i < PAGES; i++)
        assert_int_equal(sl_kv_writer_put(&w, key_of(i), record, &err), SL_OK);
    assert_int_equal(sl_kv_writer_end(&w, SL_OK, &err), SL_OK);
    get(at("strange"), record);
    memcpy(bytes + SL_KV_FILE_HEAD_BYTES, record + SL_KV_FILE_HEAD_BYTES, half);
    put(path, bytes, sizeof bytes);
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 6);
    unlink(at("strange"));
    unlink(path);
}

/* What was there stays where the new file is not whole: fewer pages or more than were told, no room
 * on the disk. */
static void a_file_is_whole_or_as_it_was(void **state) {
    (void)state;
    const char *path = at("file");
    struct rlimit was, little;
    sl_status st;
    sl_err err;
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    assert_int_equal(write_pages(path, 2, 1, &err), SL_ERR_ARG);
    assert_int_equal(write_pages(path, 1, 2, &err), SL_ERR_ARG);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_IGN);
    little = (struct rlimit){.rlim_cur = BYTES - 1, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    st = write_pages(path, PAGES, PAGES, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(st, SL_ERR_IO);
    assert_non_null(strstr(err.msg, "cannot be written"));
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 7);
    unlink(path);
}

static void others_files_are_refused(void **state) {
    (void)state;
    const char *path = at("file");
    sl_status st;
    sl_err err;
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK);
    for (unsigned mode = 1; mode < 0100; mode <<= 1) {
        assert_int_equal(chmod(path, 0600 | mode), 0);
        assert_int_equal(read_pages(path, &stamp, PAGE, &st), UINT32_MAX);
        assert_int_equal(st, SL_ERR_ARG);
    }
    assert_int_equal(write_pages(path, PAGES, PAGES, &err), SL_OK); /* it is ours: replaced */
    assert_int_equal(read_pages(path, &stamp, PAGE, &st), 7);
    assert_int_equal(symlink("file", at("link")), 0);
    assert_int_equal(read_pages(at("link"), &stamp, PAGE, &st), UINT32_MAX);
    assert_int_equal(st, SL_ERR_ARG);
    assert_int_equal(write_pages(at("link"), PAGES, PAGES, &err), SL_ERR_ARG);
    unlink(at("link"));
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(read_pages(at("pipe"), &stamp, PAGE, &st), UINT32_MAX);
    assert_int_equal(st, SL_ERR_ARG);
    assert_int_equal(write_pages(at("pipe"), PAGES, PAGES, &err), SL_ERR_ARG);
    unlink(at("pipe"));
    unlink(path);
}

/* ---- the folder ---- */

static void a_folder_is_its_owners(void **state) {
    (void)state;
    struct stat s;
    sl_err err;
    const char *made = at("made");
    assert_int_equal(sl_kv_folder_check(made, &err), SL_OK);
    assert_int_equal(stat(made, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    assert_int_equal(chmod(made, 0722), 0);
    assert_int_equal(sl_kv_folder_check(made, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "others may write"));
    assert_int_equal(chmod(made, 0755), 0);
    assert_int_equal(sl_kv_folder_check(made, &err), SL_OK);
    rmdir(made);
    put(at("file"), (const uint8_t *)"x", 1);
    assert_int_equal(sl_kv_folder_check(at("file"), &err), SL_ERR_ARG);
    assert_int_equal(sl_kv_folder_check(at("none/below"), &err), SL_ERR_IO);
    unlink(at("file"));
}

static void a_salt_stays(void **state) {
    (void)state;
    uint8_t first[SL_KV_SALT_BYTES], again[SL_KV_SALT_BYTES];
    struct stat s;
    sl_err err;
    assert_int_equal(sl_kv_folder_salt(folder, first, &err), SL_OK);
    assert_int_equal(sl_kv_folder_salt(folder, again, &err), SL_OK);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(stat(at("salt"), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(chmod(at("salt"), 0604), 0);
    assert_int_equal(sl_kv_folder_salt(folder, again, &err), SL_ERR_ARG);
    unlink(at("salt"));
    put(at("salt"), first, sizeof first - 1);
    assert_int_equal(sl_kv_folder_salt(folder, again, &err), SL_ERR_FORMAT);
    unlink(at("salt"));
    assert_int_equal(symlink("elsewhere", at("salt")), 0);
    assert_int_not_equal(sl_kv_folder_salt(folder, again, &err), SL_OK);
    assert_int_equal(access(at("elsewhere"), F_OK), -1);
    unlink(at("salt"));
    assert_int_equal(sl_kv_folder_salt(folder, again, &err), SL_OK);
    assert_memory_not_equal(first, again, sizeof first);
    unlink(at("salt"));
}

static void one_has_a_file_at_a_time(void **state) {
    (void)state;
    sl_kv_place a, b, c;
    sl_err err;
    put(at("worker-1.kv.99-0.part"), (const uint8_t *)"x", 1);
    put(at("worker-10.kv.99-0.part"), (const uint8_t *)"x", 1);
    assert_int_equal(sl_kv_place_open(folder, 1, &a, &err), SL_OK);
    assert_string_equal(a.file, at("worker-1.kv"));
    assert_int_equal(access(at("worker-1.kv.99-0.part"), F_OK), -1);
    assert_int_equal(access(at("worker-10.kv.99-0.part"), F_OK), 0);
    assert_int_equal(sl_kv_place_open(folder, 1, &b, &err), SL_ERR_AGAIN);
    assert_int_equal(sl_kv_place_open(folder, 10, &c, &err), SL_OK);
    sl_kv_place_close(&a);
    sl_kv_place_close(&a);
    assert_int_equal(sl_kv_place_open(folder, 1, &b, &err), SL_OK);
    sl_kv_place_close(&b);
    sl_kv_place_close(&c);
    unlink(at("worker-1.lock"));
    unlink(at("worker-10.lock"));
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_comes_back),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(files_that_are_cut_are_refused),
        cmocka_unit_test(of_something_else_is_no_error),
        cmocka_unit_test(a_file_is_whole_or_as_it_was),
        cmocka_unit_test(others_files_are_refused),
        cmocka_unit_test(a_folder_is_its_owners),
        cmocka_unit_test(a_salt_stays),
        cmocka_unit_test(one_has_a_file_at_a_time),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

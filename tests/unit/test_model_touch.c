/* What opening a model reads from a cold disk: nothing without room or time, else all of it. */
#include "model/model_int.h"

#include "model_folder.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"

static void copy_file(const char *dir, const char *name) {
    size_t n;
    char *bytes = folder_read(GOLDEN, name, &n);
    folder_write(dir, name, bytes, n);
    free(bytes);
}

/* Out of the file cache, where the file system does that. */
static void drop(int fd) {
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static size_t pages_there(int fd, size_t *all) {
    struct stat at;
    unsigned char there[4096];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
    assert_int_equal(fstat(fd, &at), 0);
    *all = ((size_t)at.st_size + page - 1) / page;
    assert_in_range(*all, 1, sizeof there);
    void *map = mmap(NULL, (size_t)at.st_size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mincore(map, (size_t)at.st_size, there), 0);
    munmap(map, (size_t)at.st_size);
    for (size_t i = 0; i < *all; i++) n += there[i] & 1;
    return n;
}

typedef struct heard {
    uint64_t done, total, words;
} heard;

static void hear(void *ctx, uint64_t done, uint64_t total) {
    heard *h = ctx;
    assert_true(done > h->done && done <= total);
    assert_true(h->total == 0 || h->total == total);
    *h = (heard){done, total, h->words + 1};
}

/* Every byte that is bound is told, once. One thread: then all words are its own. */
static void says_how_far_it_is(void **state) {
    (void)state;
    sl_err err;
    sl_model *m = NULL;
    sl_pool *pool = NULL;
    heard h = {0}, again = {0};
    const sl_stages all_stages = {.attention = true, .experts = true};
    if (sl_model_open(GOLDEN, &all_stages, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_pool_create(1, &pool, &err), SL_OK);
    const sl_touching how = {.progress = hear, .ctx = &h};
    sl_model_touch_within(m, pool, &how, UINT64_MAX, UINT64_MAX / 2);
    assert_true(h.words > 10 && h.done == h.total);
    const sl_touching crowded = {.progress = hear, .ctx = &again};
    sl_model_touch_within(m, pool, &crowded, h.total / 2, UINT64_MAX / 2); /* half has room */
    assert_true(again.words > 0 && again.done <= h.total / 2 && again.total == h.total);
    sl_pool_free(pool);
    sl_model_free(m);
}

static void reads_within_its_bounds(void **state) {
    (void)state;
    char dir[64] = "/tmp/sluice-touch-XXXXXX", path[512];
    sl_err err;
    sl_model *m = NULL;
    sl_pool *pool = NULL;
    const sl_stages all_stages = {.attention = true, .experts = true};
    size_t all;
    if (!mkdtemp(dir)) abort();
    copy_file(dir, "config.json");
    copy_file(dir, "generation_config.json");
    copy_file(dir, "model.safetensors");
    if (sl_model_open(dir, &all_stages, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_pool_create(2, &pool, &err), SL_OK);
    folder_path(path, dir, "model.safetensors");
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    drop(fd);
    bool drops = pages_there(fd, &all) == 0;
    if (drops) {
        sl_model_touch_within(m, pool, NULL, 0, UINT64_MAX / 2); /* no room */
        assert_int_equal(pages_there(fd, &all), 0);
        sl_model_touch_within(m, pool, NULL, UINT64_MAX, 0); /* no time */
        assert_int_equal(pages_there(fd, &all), 0);
        const atomic_bool stop = true;
        const sl_touching ended = {.stop = &stop};
        sl_model_touch_within(m, pool, &ended, UINT64_MAX, UINT64_MAX / 2);
        assert_int_equal(pages_there(fd, &all), 0);
        sl_model_touch_within(m, pool, NULL, UINT64_MAX, UINT64_MAX / 2);
        assert_true(pages_there(fd, &all) * 20 >= all * 19);
    }
    close(fd);
    sl_pool_free(pool);
    sl_model_free(m);
    folder_remove(dir);
    if (!drops) skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_how_far_it_is),
                                       cmocka_unit_test(reads_within_its_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What opening a model reads from a cold disk: nothing without room or time, else all of it. */
#include "model/model_int.h"

#include "model_folder.h"

#include <errno.h>
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

/* ---- weights that are to lie on a memory node ---- */

static struct {
    size_t asked, to_move, failing;
    void *moved[1 << 14]; /* by number, as far as they do not meet */
} calls;

/* Every page lies elsewhere and moves, but for every failing-th, which others have, too. */
static long elsewhere(unsigned long n, void *const *page, const int *node, int *status) {
    for (unsigned long i = 0; i < n; i++) {
        void **place = &calls.moved[(uintptr_t)page[i] / 4096 % SL_LEN(calls.moved)];
        const bool is_here = *place == page[i];
        if (!node) {
            status[i] = is_here ? 1 : 0;
            calls.asked++;
        } else {
            const bool others = calls.failing && (uintptr_t)page[i] / 4096 % calls.failing == 0;
            if (!others) *place = page[i];
            status[i] = others ? -EACCES : *node;
            calls.to_move++;
        }
    }
    return 0;
}

static uint64_t sum_of(const sl_mat *m, uint64_t sum) {
    const uint8_t *at = (const uint8_t *)m->data;
    for (size_t i = 0; at && i < sl_mat_bytes(m); i++) sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

static uint64_t sum_of_weights(const sl_model *m) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < SL_LEN(m->whole.mat); i++) sum = sum_of(&m->whole.mat[i], sum);
    for (uint32_t l = 0; l < sl_model_blocks(m); l++)
        for (size_t i = 0; i < SL_LEN(m->block[l].mat); i++) sum = sum_of(&m->block[l].mat[i], sum);
    for (size_t i = 0; i < (size_t)sl_model_routed(m) * m->spec.n_experts; i++)
        sum = sum_of(&m->expert[i].gate, sum_of(&m->expert[i].up, sum_of(&m->expert[i].down, sum)));
    return sum;
}

/* Every bound byte is accounted for, of ranks and of models that are copied when they are bound;
 * none of them is another one afterwards. */
static void weights_are_handed_to_their_node(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3moe-tiny", "gptoss-tiny", "dbrx-tiny"};
    for (size_t i = 0; i < 2 * SL_LEN(models); i++) {
        char path[512];
        sl_err err;
        sl_model *m = NULL;
        sl_pool *pool = NULL;
        heard h = {0};
        const sl_rank rank = i < SL_LEN(models) ? (sl_rank){0} : (sl_rank){1, 2};
        const sl_stages stages = {.attention = true, .experts = true, .rank = rank};
        snprintf(path, sizeof path, SL_SOURCE_DIR "/tests/golden/%s", models[i % SL_LEN(models)]);
        if (sl_model_open(path, &stages, &m, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(sl_pool_create(1, &pool, &err), SL_OK);
        const uint64_t before = sum_of_weights(m);
        memset(&calls, 0, sizeof calls);
        calls.failing = 5;
        sl_numa near = {.node = 1, .until_ns = UINT64_MAX, .call = elsewhere};
        const sl_touching how = {.progress = hear, .ctx = &h, .near = &near};
        sl_model_touch(m, pool, &how);
        const sl_numa_told t = sl_numa_tell(&near);
        assert_int_equal(t.there + t.others + t.left + t.absent, h.total);
        assert_true(h.done == h.total && t.moved > 0 && t.others > 0 && t.left + t.absent == 0);
        assert_true(t.there > t.others && calls.asked > calls.to_move);
        assert_true(sum_of_weights(m) == before);
        sl_pool_free(pool);
        sl_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_how_far_it_is),
                                       cmocka_unit_test(reads_within_its_bounds),
                                       cmocka_unit_test(weights_are_handed_to_their_node)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

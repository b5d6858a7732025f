/* The journal's file: what was written comes back, torn tails are cut, damage is told from them, a
 * full disk is borne, and records say only what they may. */
#include "base/crc32c.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/journal.h"
#include "serve/journal_records.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORDS 5u

static char folder[] = "/tmp/sluice-journal-XXXXXX", path[64];
static sl_journal_about about = {.model = {1, 2, 3}, .service = {4, 5, 6}};

/* What was handed over: type and length of each, and all bytes. */
typedef struct seen {
    uint32_t n, type[64];
    size_t len[64], at;
    uint8_t bytes[1 << 16];
} seen;

static sl_status take(void *ctx, uint32_t type, sl_span payload, sl_err *err) {
    seen *s = ctx;
    (void)err;
    s->type[s->n] = type;
    s->len[s->n++] = payload.len;
    if (payload.len) memcpy(s->bytes + s->at, payload.data, payload.len);
    s->at += payload.len;
    return SL_OK;
}

static sl_journal *opened(void) {
    sl_journal *j = NULL;
    sl_err err = {0};
    if (sl_journal_open(path, &about, &j, &err) != SL_OK) fail_msg("%s", err.msg);
    return j;
}

static sl_status reads(seen *s, sl_err *err) {
    sl_journal *j = NULL;
    *s = (seen){0};
    sl_status st = sl_journal_open(path, &about, &j, err);
    if (st == SL_OK) st = sl_journal_read(j, take, s, err);
    sl_journal_close(j);
    return st;
}

static bool append(sl_journal *j, sl_journal_where where, uint32_t type, size_t n) {
    uint8_t *at = sl_journal_begin(j, n);
    if (!at) return false;
    for (size_t i = 0; i < n; i++) at[i] = (uint8_t)(type * 31 + i * 7);
    return sl_journal_commit(j, where, type, n, NULL);
}

static size_t length(uint32_t i) {
    return i == 0 ? 0 : 9 * i;
}

static void check_first(const seen *s, uint32_t n) {
    size_t at = 0;
    assert_int_equal(s->n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(s->type[i], i + 1);
        assert_int_equal(s->len[i], length(i));
        for (size_t k = 0; k < s->len[i]; k++)
            assert_int_equal(s->bytes[at + k], (uint8_t)((i + 1) * 31 + k * 7));
        at += s->len[i];
    }
}

/* A journal of RECORDS records, and its bytes. */
static size_t make(uint8_t *out, size_t cap) {
    unlink(path);
    sl_journal *j = opened();
    for (uint32_t i = 0; i < RECORDS; i++)
        assert_true(append(j, SL_JOURNAL_HERE, i + 1, length(i)));
    size_t n = sl_journal_bytes(j);
    sl_journal_close(j);
    int fd = open(path, O_RDONLY);
    assert_true(n <= cap && read(fd, out, n) == (ssize_t)n);
    close(fd);
    return n;
}

static void put(const uint8_t *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static size_t size_of_file(void) {
    struct stat is;
    assert_int_equal(stat(path, &is), 0);
    return (size_t)is.st_size;
}

static void what_is_written_comes_back(void **state) {
    (void)state;
    seen s = {0};
    sl_err err;
    uint8_t bytes[4096];
    assert_int_equal(sl_crc32c(0, "123456789", 9), 0xE3069283u); /* the published check value */
    size_t n = make(bytes, sizeof bytes);
    assert_int_equal(reads(&s, &err), SL_OK);
    check_first(&s, RECORDS);
    assert_int_equal(size_of_file(), n);
    struct stat is;
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0600);
    /* and is written on behind */
    sl_journal *j = opened();
    s = (seen){0};
    assert_int_equal(sl_journal_read(j, take, &s, &err), SL_OK);
    uint64_t upto = 0;
    uint8_t *at = sl_journal_begin(j, 100000);
    memset(at, 7, 100000);
    assert_true(sl_journal_commit(j, SL_JOURNAL_HERE, 9, 100, &upto));
    assert_true(upto > 0 && sl_journal_sync(j, upto) && sl_journal_end(j) == upto);
    assert_null(sl_journal_begin(j, SL_JOURNAL_RECORD_BYTES + 1));
    sl_journal_close(j);
    assert_int_equal(reads(&s, &err), SL_OK);
    assert_int_equal(s.n, RECORDS + 1);
    assert_int_equal(s.len[RECORDS], 100);
}

static void a_tail_torn_at_any_byte_is_cut(void **state) {
    (void)state;
    seen s = {0};
    sl_err err;
    uint8_t bytes[4096], tail[64] = {0};
    size_t n = make(bytes, sizeof bytes), whole = SL_JOURNAL_HEAD_BYTES;
    uint32_t there = 0;
    for (size_t cut = 1; cut <= n; cut++) {
        put(bytes, cut);
        if (there < RECORDS && cut == whole + 16 + length(there)) whole += 16 + length(there++);
        assert_int_equal(reads(&s, &err), SL_OK);
        check_first(&s, there);
        assert_int_equal(size_of_file(), SL_MAX(whole, (size_t)SL_JOURNAL_HEAD_BYTES));
    }
    /* a file that grew before its bytes were there */
    put(bytes, n);
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, tail, sizeof tail), sizeof tail);
    close(fd);
    assert_int_equal(reads(&s, &err), SL_OK);
    check_first(&s, RECORDS);
    assert_int_equal(size_of_file(), n);
}

static void a_flipped_bit_is_never_believed(void **state) {
    (void)state;
    seen s = {0};
    uint8_t bytes[4096];
    size_t n = make(bytes, sizeof bytes), last = n - 16 - length(RECORDS - 1);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        sl_err err = {0};
        char where[32];
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        put(bytes, n);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        sl_status st = reads(&s, &err);
        size_t at = SL_JOURNAL_HEAD_BYTES;
        uint32_t before = 0;
        while (at + 16 + length(before) <= bit / 8) at += 16 + length(before++);
        if (bit / 8 >= last) { /* as if it had been torn */
            assert_int_equal(st, SL_OK);
            check_first(&s, RECORDS - 1);
        } else if (bit / 8 >= SL_JOURNAL_HEAD_BYTES) {
            assert_int_equal(st, SL_ERR_FORMAT);
            snprintf(where, sizeof where, "damaged at byte %zu,", at);
            assert_non_null(strstr(err.msg, where));
            assert_non_null(strstr(err.msg, path));
            assert_int_equal(size_of_file(), n);
        } else {
            assert_int_not_equal(st, SL_OK);
        }
    }
}

static void check_refused(sl_status want, const char *text) {
    sl_err err = {0};
    sl_journal *j = NULL;
    assert_int_equal(sl_journal_open(path, &about, &j, &err), want);
    if (!strstr(err.msg, text)) fail_msg("%s", err.msg);
    assert_null(j);
}

static void others_are_refused_by_name(void **state) {
    (void)state;
    uint8_t bytes[4096];
    size_t n = make(bytes, sizeof bytes);
    sl_journal *j = opened();
    check_refused(SL_ERR_AGAIN, "another process has it");
    sl_journal_close(j);
    about.model[31] ^= 1;
    check_refused(SL_ERR_INFEASIBLE, "another model");
    about.model[31] ^= 1;
    about.service[0] ^= 1;
    check_refused(SL_ERR_INFEASIBLE, "generation_config.json");
    about.service[0] ^= 1;
    bytes[8]++;
    put(bytes, n);
    check_refused(SL_ERR_UNSUPPORTED, "version 3, this program reads 2");
    bytes[8]--;
    assert_int_equal(chmod(path, 0640), 0);
    check_refused(SL_ERR_ARG, "chmod 600");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    check_refused(SL_ERR_IO, path);
    rmdir(path);
    put((const uint8_t *)"{\"not\": 1}", 10);
    check_refused(SL_ERR_FORMAT, "something else");
}

static uint32_t file_of(sl_journal *j) {
    assert_non_null(sl_journal_begin(j, 1));
    uint32_t file = sl_journal_file(j);
    assert_true(sl_journal_commit(j, SL_JOURNAL_NOWHERE, 9, 1, NULL));
    return file;
}

static void the_new_file_has_what_its_writers_say(void **state) {
    (void)state;
    seen s = {0};
    sl_err err = {0};
    uint8_t bytes[4096];
    make(bytes, sizeof bytes);
    sl_journal *j = opened();
    assert_int_equal(sl_journal_read(j, take, &s, &err), SL_OK);
    assert_int_equal(file_of(j), 0);
    for (int keep = 0; keep < 2; keep++) {
        assert_int_equal(sl_journal_renew(j, 7 + (uint32_t)keep, &err), SL_OK);
        assert_int_equal(file_of(j), 0);
        assert_true(append(j, SL_JOURNAL_HERE, 10, 1));
        assert_true(append(j, SL_JOURNAL_NEW, 11, 1));
        assert_true(append(j, SL_JOURNAL_BOTH, 12, 1));
        assert_true(append(j, SL_JOURNAL_NOWHERE, 15, 1));
        assert_int_equal(sl_journal_renewed(j, keep, &err), SL_OK);
        assert_int_equal(file_of(j), keep ? 8 : 0);
        assert_false(append(j, SL_JOURNAL_NEW, 13, 1));
        assert_true(append(j, SL_JOURNAL_BOTH, 14, 1));
        check_refused(SL_ERR_AGAIN, "another process has it"); /* the new one is locked, too */
        assert_true(sl_journal_sync(j, sl_journal_end(j)));
        s = (seen){0};
        assert_int_equal(sl_journal_read(j, take, &s, &err), SL_OK);
        static const uint32_t given_up[] = {1, 2, 3, 4, 5, 10, 12, 14}, kept[] = {11, 12, 14};
        assert_int_equal(s.n, keep ? 3 : 8);
        assert_memory_equal(s.type, keep ? kept : given_up, s.n * sizeof *s.type);
    }
    sl_journal_close(j);
    char part[80];
    snprintf(part, sizeof part, "%s.new", path);
    assert_int_equal(access(part, F_OK), -1);
}

static void a_full_disk_is_borne(void **state) {
    (void)state;
    seen s = {0};
    sl_err err = {0};
    uint8_t bytes[4096];
    struct rlimit was, small;
    size_t n = make(bytes, sizeof bytes);
    sl_journal *j = opened();
    assert_int_equal(sl_journal_read(j, take, &s, &err), SL_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = n + 50; /* half a record fits */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_false(append(j, SL_JOURNAL_HERE, 7, 100));
    assert_true(sl_journal_is_broken(j));
    assert_false(append(j, SL_JOURNAL_HERE, 7, 1));
    assert_int_equal(size_of_file(), n); /* nothing is torn */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(sl_journal_renew(j, 1, &err), SL_OK);
    assert_true(append(j, SL_JOURNAL_NEW, 8, 100));
    assert_int_equal(sl_journal_renewed(j, true, &err), SL_OK);
    assert_false(sl_journal_is_broken(j));
    assert_true(append(j, SL_JOURNAL_HERE, 9, 1));
    sl_journal_close(j);
    assert_int_equal(reads(&s, &err), SL_OK);
    assert_int_equal(s.n, 2);
}

/* ---- what records say ---- */

static void check_request(uint32_t *numbers, const char *wrong) {
    sl_err err = {0};
    uint8_t out[512];
    sl_journal_request r = {.number = 3,
                            .kind = 1,
                            .has_key = true,
                            .id = "cmpl-1",
                            .seed = 1ull << 60,
                            .created_s = 12,
                            .stride = 3,
                            .n_prompts = 1,
                            .n_choices = 2,
                            .body = {(const uint8_t *)"{}", 2},
                            .most = {(uint8_t *)numbers, 8},
                            .room = {(uint8_t *)(numbers + 2), 8},
                            .sizes = {(uint8_t *)(numbers + 4), 4},
                            .ids = {(uint8_t *)(numbers + 5), 12}};
    sl_journal_request got;
    size_t n = sl_journal_request_bytes(&r);
    assert_true(n <= sizeof out);
    sl_journal_request_write(&r, out);
    if (wrong) {
        assert_int_equal(sl_journal_request_read((sl_span){out, n}, &got, &err), SL_ERR_FORMAT);
        if (!strstr(err.msg, wrong)) fail_msg("%s", err.msg);
        return;
    }
    assert_int_equal(sl_journal_request_read((sl_span){out, n}, &got, &err), SL_OK);
    assert_string_equal(got.id, r.id);
    assert_true(got.number == 3 && got.kind == 1 && got.has_key && got.seed == r.seed);
    assert_int_equal(sl_journal_u32_at(got.most, 1), numbers[1]);
    assert_int_equal(sl_journal_u32_at(got.ids, 2), numbers[7]);
    assert_memory_equal(got.body.data, "{}", 2);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(sl_journal_request_read((sl_span){out, cut}, &got, &err), SL_ERR_FORMAT);
}

static void records_say_only_what_they_may(void **state) {
    (void)state;
    sl_err err = {0};
    uint8_t out[512];
    uint32_t fine[] = {5, 6, 9, 6, 3, 11, 12, 13};
    check_request(fine, NULL);
    uint32_t none[] = {0, 6, 9, 6, 3, 11, 12, 13}, more[] = {5, 7, 9, 6, 3, 11, 12, 13},
             sizes[] = {5, 6, 9, 6, 4, 11, 12, 13}, huge[] = {5, 6, 1u << 25, 6, 3, 11, 12, 13};
    check_request(none, "choice 0 makes 0 tokens");
    check_request(more, "choice 1 makes 7 tokens and keeps 6");
    check_request(sizes, "their sizes say 4 tokens");
    check_request(huge, "choice 0 makes 5");
    const uint32_t ids[] = {7, 8};
    const sl_logprob pairs[] = {{7, -1}, {9, -2}, {8, -3}, {9, -4}};
    sl_journal_tokens t = {.number = 3,
                           .choice = 1,
                           .at = 4,
                           .n = 2,
                           .stride = 2,
                           .finish = 2,
                           .ended_s = 99,
                           .n_found = 64,
                           .ids = {(const uint8_t *)ids, sizeof ids},
                           .logprobs = {(const uint8_t *)pairs, sizeof pairs}};
    sl_journal_tokens got;
    size_t n = sl_journal_tokens_bytes(&t);
    sl_journal_tokens_write(&t, out);
    assert_int_equal(sl_journal_tokens_read((sl_span){out, n}, &got, &err), SL_OK);
    assert_true(got.choice == 1 && got.at == 4 && got.n == 2 && got.finish == 2 &&
                got.ended_s == 99 && got.n_found == 64);
    assert_memory_equal(got.logprobs.data, pairs, sizeof pairs);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(sl_journal_tokens_read((sl_span){out, cut}, &got, &err), SL_ERR_FORMAT);
    t.finish = 3; /* errors are not kept */
    sl_journal_tokens_write(&t, out);
    assert_int_equal(sl_journal_tokens_read((sl_span){out, n}, &got, &err), SL_ERR_FORMAT);
    uint64_t number;
    sl_journal_drop_write(77, out);
    assert_int_equal(sl_journal_drop_read((sl_span){out, 8}, &number, &err), SL_OK);
    assert_int_equal(number, 77);
    assert_int_equal(sl_journal_drop_read((sl_span){out, 9}, &number, &err), SL_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(a_tail_torn_at_any_byte_is_cut),
        cmocka_unit_test(a_flipped_bit_is_never_believed),
        cmocka_unit_test(others_are_refused_by_name),
        cmocka_unit_test(the_new_file_has_what_its_writers_say),
        cmocka_unit_test(a_full_disk_is_borne),
        cmocka_unit_test(records_say_only_what_they_may),
    };
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/journal", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(folder);
    return failed;
}

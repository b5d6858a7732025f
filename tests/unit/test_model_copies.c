/* What ranks copy: of tensors that kernels do not read where they lie each rank has its own part
 * alone, so that all ranks together have what one worker has, and no value is another. */
#include "model/model_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"

/* Transposed, in MXFP4 and interleaved, fused and transposed, parts of W_UKV, all where they lie.
 */
static const char *const models[] = {GOLDEN "dbrx-tiny", GOLDEN "gptoss-tiny", GOLDEN "llama4-tiny",
                                     GOLDEN "deepseekv2-tiny", GOLDEN "qwen3moe-tiny"};

/* Bytes copied of experts, and of all else. */
typedef struct copied {
    uint64_t experts, others;
} copied;

static copied count(const sl_model *m) {
    copied c = {0};
    for (size_t i = 0; i < m->copies.n; i++)
        *(m->copies.copy[i].expert == SIZE_MAX ? &c.others : &c.experts) += m->copies.copy[i].bytes;
    assert_int_equal(c.experts + c.others, sl_model_copied(m));
    return c;
}

static size_t experts_of(const sl_model *m) {
    return (size_t)m->stored.n_moe * m->stored.n_experts;
}

static const sl_mat *mat_of(const sl_model *m, size_t expert, size_t i) {
    const sl_expert_weights *e = &m->expert[expert];
    const sl_mat *const all[] = {&e->gate,      &e->up,      &e->down,
                                 &e->gate_bias, &e->up_bias, &e->down_bias};
    return all[i];
}

#define MATS 6u

/* Of an expert's matrix what ranks before this one have: rows, or values of all rows. */
typedef struct reached {
    uint32_t at[MATS];
} reached;

/* The rank's values are those of the one, from where the rank before it ends. */
static void compare(const sl_mat *one, const sl_mat *part, uint32_t *at) {
    const bool rows = part->k == one->k;
    assert_int_equal(part->dtype, one->dtype);
    assert_true(rows || part->n == one->n);
    for (uint32_t r = 0; r < part->n; r++)
        assert_memory_equal(sl_mat_at(part, r, 0),
                            rows ? sl_mat_at(one, *at + r, 0) : sl_mat_at(one, r, *at),
                            sl_dtype_row_bytes(part->dtype, part->k));
    *at += rows ? part->n : part->k;
}

static void compare_experts(const sl_model *one, const sl_model *part, reached *seen) {
    for (size_t e = 0; e < experts_of(one); e++)
        for (size_t i = 0; i < MATS; i++) {
            const sl_mat *whole = mat_of(one, e, i), *has = mat_of(part, e, i);
            assert_true((whole->data == NULL) == (has->data == NULL));
            if (!whole->data) continue;
            if (i == 5) seen[e].at[i] = 0; /* DOWN's bias, which every rank has */
            compare(whole, has, &seen[e].at[i]);
        }
}

static sl_model *open_rank(const char *path, sl_rank is, bool segmented, const uint8_t *hosted) {
    const sl_stages stages = {
        .attention = true, .experts = true, .hosted = hosted, .rank = is, .segmented = segmented};
    sl_model *m = NULL;
    sl_err err;
    if (sl_model_open(path, &stages, &m, &err) != SL_OK) fail_msg("%s: %s", path, err.msg);
    return m;
}

/* So many bytes are copied of the experts once these are hosted: all, or none. */
static void host(sl_model *m, uint8_t *hosted, bool all, uint64_t bytes) {
    sl_hosting left;
    sl_err err;
    memset(hosted, all, experts_of(m));
    do assert_int_equal(sl_model_host(m, hosted, true, &left, &err), SL_OK);
    while (left != SL_HOSTING_DONE);
    assert_int_equal(count(m).experts, bytes);
}

/* Experts come one by one to a rank that had none, and go: as at the start. */
static void host_later(const char *path, sl_rank is, bool segmented, const sl_model *at_once) {
    uint8_t *hosted = calloc(experts_of(at_once), 1);
    assert_non_null(hosted);
    sl_model *m = open_rank(path, is, segmented, hosted);
    assert_int_equal(count(m).experts, 0);
    host(m, hosted, true, count(at_once).experts);
    host(m, hosted, false, 0);
    sl_model_free(m);
    free(hosted);
}

static void check(const char *path, uint32_t ranks, bool segmented) {
    sl_model *one = open_rank(path, (sl_rank){0}, segmented, NULL);
    const sl_mat *embed = &one->whole.mat[SL_ROLE_EMBED];
    const uint64_t row = sl_dtype_row_bytes(embed->dtype, embed->k);
    reached *seen = calloc(experts_of(one), sizeof *seen);
    copied all = {0};
    assert_non_null(seen);
    for (uint32_t i = 0; i < ranks; i++) {
        sl_model *m = open_rank(path, (sl_rank){i, ranks}, segmented, NULL);
        const copied c = count(m);
        all.experts += c.experts;
        all.others += c.others;
        compare_experts(one, m, seen);
        if (i == ranks - 1) host_later(path, (sl_rank){i, ranks}, segmented, m);
        sl_model_free(m);
    }
    assert_int_equal(all.experts, count(one).experts);
    assert_true(all.others <= count(one).others + (ranks - 1) * row); /* room for a row each */
    for (size_t e = 0; e < experts_of(one); e++)
        for (size_t i = 0; i < MATS; i++) {
            const sl_mat *whole = mat_of(one, e, i);
            if (whole->data) assert_true(seen[e].at[i] == whole->n || seen[e].at[i] == whole->k);
        }
    free(seen);
    sl_model_free(one);
}

static void ranks_copy_no_more_than_one_worker(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(models); i++)
        for (uint32_t ranks = 2; ranks <= SL_MAX_RANKS; ranks *= 2)
            for (uint32_t segmented = 0; segmented < 2; segmented++)
                check(models[i], ranks, segmented);
}

/* These are the families that copy. */
static void some_experts_are_copied(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        sl_model *one = open_rank(models[i], (sl_rank){0}, false, NULL);
        assert_true(count(one).experts > 0);
        sl_model_free(one);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(some_experts_are_copied),
        cmocka_unit_test(ranks_copy_no_more_than_one_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

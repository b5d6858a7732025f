/* What a long step writes to: scratch does not grow with rows once they are more than a part of it,
 * parts do not change a bit, and rows of the embedding come from the file that was opened. */
#include "model_folder.h"
#include "model_run.h"

#include "format/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

#define ROWS  1100u
#define PAIRS (2 * ROWS) /* experts 1 and 3 of every row */

static float *values(size_t n, uint64_t seed) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)sl_rng_below(&seed, 2001) / 1000.0f - 1.0f;
    return x;
}

typedef struct long_batch {
    uint32_t expert[2], first[3], row[PAIRS];
    float gate[PAIRS];
    float *to[PAIRS];
    uint8_t adds[PAIRS];
} long_batch;

/* rows of expert 1, the same of expert 3, which are added to what is there. */
static sl_expert_batch fill_batch(long_batch *b, uint32_t rows, size_t d, const float *x,
                                  const float *gate, float *sum) {
    b->expert[0] = 1, b->expert[1] = 3;
    b->first[0] = 0, b->first[1] = rows, b->first[2] = 2 * rows;
    for (uint32_t p = 0; p < 2 * rows; p++) {
        b->row[p] = p % rows;
        b->gate[p] = gate[p];
        b->to[p] = sum + p % rows * d;
        b->adds[p] = p >= rows;
    }
    return (sl_expert_batch){.n_groups = 2,
                             .expert = b->expert,
                             .first = b->first,
                             .row = b->row,
                             .x = x,
                             .gate = b->gate,
                             .n_rows = rows,
                             .to = b->to,
                             .adds = b->adds};
}

static void experts_of_a_long_step_share_scratch(void **state) {
    (void)state;
    char dir[64];
    folder_make(dir, folder_qwen, SL_F32, 1, 4);
    sl_model *m = model_run_open(dir);
    model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, PAIRS);
    const sl_model_spec *s = r.s;
    size_t d = s->d_model;
    float *x = values(ROWS * d, 1), *gate = values(PAIRS, 2);
    float *sum = malloc(ROWS * d * sizeof *sum), *y = malloc(PAIRS * d * sizeof *y);
    long_batch *b = malloc(sizeof *b);
    uint32_t layer = s->moe_layer[0];
    sl_expert_batch eb = fill_batch(b, ROWS / 2, d, x, gate, sum);
    sl_block_experts(m, &r.ex, layer, &eb, &r.scratch);
    size_t half = r.scratch.peak;
    eb = fill_batch(b, ROWS, d, x, gate, sum);
    sl_block_experts(m, &r.ex, layer, &eb, &r.scratch);
    assert_int_equal(r.scratch.peak, half);
    assert_true(half < PAIRS * d * sizeof *y);
    /* the same one pair at a time */
    for (uint32_t p = 0; p < PAIRS; p++) {
        const uint32_t first[2] = {0, 1};
        const sl_expert_batch one = {.n_groups = 1,
                                     .expert = &b->expert[p / ROWS],
                                     .first = first,
                                     .row = &b->row[p],
                                     .x = x,
                                     .gate = &b->gate[p],
                                     .y = y + p * d};
        sl_block_experts(m, &r.ex, layer, &one, &r.scratch);
    }
    sl_vec_add(&r.ex, y, y + ROWS * d, ROWS * d);
    assert_memory_equal(sum, y, ROWS * d * sizeof *sum);
    free(x), free(gate), free(sum), free(y), free(b);
    model_run_free(&r);
    sl_model_free(m);
    folder_remove(dir);
}

static void attention_of_a_long_step_shares_scratch(void **state) {
    (void)state;
    char dir[64];
    folder_make(dir, folder_qwen, SL_F32, 1, 4);
    sl_model *m = model_run_open(dir);
    model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, 600);
    size_t d = r.s->d_model, peak = 0;
    float *x = values(600 * d, 3), *again = malloc(600 * d * sizeof *x);
    uint32_t *pos = malloc(600 * sizeof *pos);
    const uint32_t **pages = malloc(600 * sizeof *pages);
    memcpy(again, x, 600 * d * sizeof *x);
    for (int i = 0; i < 2; i++) {
        const uint32_t n = i == 0 ? 600 : 150;
        model_seq seq = model_seq_make(r.s, 600);
        for (uint32_t at = 0; at < 600; at++) pos[at] = at, pages[at] = seq.page;
        for (uint32_t at = 0; at < 600; at += n) {
            const sl_rows rows = {
                .n = n, .pos = pos + at, .kv = model_pages.kv, .pages = pages + at};
            sl_block_attention(m, &r.ex, 0, &rows, (n == 600 ? x : again) + at * d, &r.scratch);
        }
        if (n == 600) peak = r.scratch.peak;
        assert_int_equal(r.scratch.peak, peak);
        model_seq_free(&seq);
    }
    assert_memory_equal(x, again, 600 * d * sizeof *x);
    assert_true(peak < sl_model_scratch_bytes(r.s, 600) / 2);
    free(x), free(again), free(pos), free((void *)pages);
    model_run_free(&r);
    sl_model_free(m);
    folder_remove(dir);
}

/* A file that takes the place of the opened one is not read. */
static void rows_of_the_embedding_stay_those_of_the_file(void **state) {
    (void)state;
    char dir[64], path[96], other[96];
    const uint32_t ids[3] = {0, 7, 3};
    folder_make(dir, folder_qwen, SL_BF16, 1, 4);
    sl_model *m = model_run_open(dir);
    const sl_exec ex = {.k = sl_kernels_select(NULL)};
    size_t d = sl_model_spec_of(m)->d_model;
    float *x = malloc(3 * d * sizeof *x), *y = malloc(3 * d * sizeof *y);
    sl_model_embed(m, &ex, ids, 3, x);
    for (size_t i = 0; i < 3; i++) sl_model_embed(m, &ex, &ids[i], 1, y + i * d);
    assert_memory_equal(x, y, 3 * d * sizeof *x);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(other, path), 0);
    sl_model_embed(m, &ex, ids, 3, y);
    assert_memory_equal(x, y, 3 * d * sizeof *x);
    free(x), free(y);
    sl_model_free(m);
    folder_remove(dir);
}

static void a_mapped_file_is_opened_again_only_as_itself(void **state) {
    (void)state;
    char dir[64], path[96], other[96];
    sl_err err = {0};
    sl_map map = {0};
    int fd = -1;
    folder_make(dir, folder_qwen, SL_BF16, 1, 4);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(sl_map_open(path, UINT64_MAX, &map, &err), SL_OK);
    assert_int_equal(sl_map_reopen(&map, &fd, &err), SL_OK);
    char *text = malloc(map.bytes.len);
    assert_int_equal(read(fd, text, map.bytes.len), (ssize_t)map.bytes.len);
    assert_memory_equal(text, map.bytes.data, map.bytes.len);
    close(fd);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, map.bytes.len, f), map.bytes.len);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(sl_map_reopen(&map, &fd, &err), SL_ERR_IO);
    assert_non_null(strstr(err.msg, "another file"));
    free(text);
    sl_map_close(&map);
    folder_remove(dir);
}

/* Whoever has given an opening too little time to wait for begins it anew. */
static void an_opening_stops_when_it_is_told_to(void **state) {
    (void)state;
    const sl_stages all = {.attention = true, .experts = true};
    atomic_bool stop = true;
    sl_model *m = NULL;
    sl_err err;
    char dir[64];
    folder_make(dir, folder_qwen, SL_BF16, 1, 4);
    assert_int_equal(sl_model_open_until(dir, &all, &stop, &m, &err), SL_ERR_AGAIN);
    assert_null(m);
    assert_non_null(strstr(err.msg, "stopped"));
    stop = false;
    assert_int_equal(sl_model_open_until(dir, &all, &stop, &m, &err), SL_OK);
    sl_model_free(m);
    folder_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_a_long_step_share_scratch),
        cmocka_unit_test(attention_of_a_long_step_shares_scratch),
        cmocka_unit_test(rows_of_the_embedding_stay_those_of_the_file),
        cmocka_unit_test(a_mapped_file_is_opened_again_only_as_itself),
        cmocka_unit_test(an_opening_stops_when_it_is_told_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

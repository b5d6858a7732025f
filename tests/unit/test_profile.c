/* profile.json: written, read again, and what is wrong in one is named. */
#include "base/mem.h"
#include "format/profile_file.h"
#include "format/shape_config.h"
#include "model/model.h"
#include "plan/account.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static sl_span span_of(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

static const char small[] =
    "{\"version\": 1, \"cache_bytes\": 5e7, \"model\": \"m\", \"isa\": \"avx2\", \"cores\": 2, "
    "\"threads\": 1,"
    "\"stages\": {\"attention\": {\"fixed\": 3, \"row\": 2.5, \"key\": 0.01,"
    "\"pad\": 2, \"step\": 4, \"beside\": 1.1},"
    "\"expert\": {\"floor\": 40, \"row\": 1, \"task\": 6, \"again\": 30, \"bytes\": 3000, \"fit\": "
    "{\"r2\": 0.99, \"median_error\": 0.02,"
    "\"worst_error\": 0.3, \"outliers\": 1}, \"points\": [[1, 0, 40], [64, 0, 64]]}},"
    "\"links\": [{\"transport\": \"shm\", \"alpha\": 5, \"byte\": 0.0001,"
    "\"knee_bytes\": 1000, \"beyond\": 0.0002, \"work\": 2},"
    "{\"transport\": \"tcp\", \"peers\": 1, \"alpha\": 30, \"byte\": 0.0004,"
    "\"points\": [[64, 31]]}, {\"transport\": \"tcp\", \"peers\": 4, \"alpha\": 60,"
    "\"byte\": 0.0009}]}";

static void round_trip(void **state) {
    (void)state;
    sl_profile p, q;
    sl_costs c;
    sl_err err = {0};
    assert_int_equal(sl_profile_parse("p.json", span_of(small), &p, &err), SL_OK);
    json_t *v = sl_profile_json(&p);
    char *text = json_dumps(v, JSON_REAL_PRECISION(17));
    assert_int_equal(sl_profile_parse("q.json", span_of(text), &q, &err), SL_OK);
    assert_true(q.stage[SL_COST_EXPERT].present && !q.stage[SL_COST_SHARED].present);
    assert_true(q.stage[SL_COST_EXPERT].cost.floor_us == 40 && q.stage[0].cost.key_us == 0.01);
    assert_true(q.stage[SL_COST_EXPERT].fit.n_outliers == 1);
    assert_true(q.stage[SL_COST_EXPERT].points.n == 2 && q.link[1].points.point[0].us == 31);
    assert_true(q.n_links == 3 && q.link[2].peers == 4 && q.threads == 1);
    assert_int_equal(sl_profile_costs(&q, NULL, 1, &c, &err), SL_OK);
    assert_true(c.link.alpha_us == 5 && !c.estimated);
    assert_true(c.link.work_us == 2 && sl_link_cost_us(&c.link, 3000) == 5 + 0.3 + 0.4);
    assert_true(c.beside[SL_COST_ATTENTION] == 1.1 && c.beside[SL_COST_EXPERT] == 0);
    assert_true(sl_stage_cost_us(&c.stage[SL_COST_ATTENTION], 5, 0) == 3 + 12.5 + 6);
    const sl_stage_cost *expert = &c.stage[SL_COST_EXPERT];
    assert_true(sl_expert_cost_us(expert, false, 64, true) == 64 + 6);
    assert_true(sl_expert_cost_us(expert, false, 64, false) == 64);
    assert_true(c.cache_bytes == 5e7 && c.bytes[SL_COST_EXPERT] == 3000);
    const sl_stage_cost near = sl_stage_cost_near(expert, 0.5);
    assert_true(sl_expert_cost_us(&near, false, 1, false) == 40 - 15);
    assert_int_equal(sl_profile_costs(&q, "tcp", 3, &c, &err), SL_OK);
    assert_true(c.link.alpha_us == 60);
    assert_int_equal(sl_profile_costs(&q, "tcp", 1, &c, &err), SL_OK);
    assert_true(c.link.alpha_us == 30);
    assert_int_equal(sl_profile_costs(&q, "rdma", 1, &c, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "shm, tcp"));
    json_decref(v);
    free(text);
    sl_profile_free(&p);
    sl_profile_free(&q);
}

static void bad_profiles(void **state) {
    (void)state;
    static const struct {
        const char *text, *says[3];
    } bad[] = {
        {"{}", {"p.json: version: missing"}},
        {"{\"version\": 2}", {"p.json: version", "2", "1"}},
        {"{\"version\": 1}", {"stages: missing"}},
        {"{\"version\": 1, \"stages\": {}, \"nodes\": 1}", {"nodes"}},
        {"{\"version\": 1, \"stages\": {\"atention\": {}}}", {"stages", "atention"}},
        {"{\"version\": 1, \"stages\": {\"head\": {\"row\": -1}}}", {"stages.head.row", "-1"}},
        {"{\"version\": 1, \"stages\": {\"head\": {\"step\": 65537}}}",
         {"stages.head.step", "65537", "65536"}},
        {"{\"version\": 1, \"stages\": {\"head\": {\"points\": [[1, 2]]}}}",
         {"stages.head.points", "point 0 is not 3 numbers"}},
        {"{\"version\": 1, \"stages\": {}, \"links\": [{\"transport\": \"shm\"}]}",
         {"alpha: missing"}},
        {"{\"version\": 1, \"stages\": {}, \"links\": [{\"transport\": "
         "\"a-transport-with-a-name\", \"alpha\": 1, \"byte\": 1}]}",
         {"transport", "limit 15"}},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_profile p = {0};
        sl_err err = {0};
        assert_int_not_equal(sl_profile_parse("p.json", span_of(bad[i].text), &p, &err), SL_OK);
        for (size_t k = 0; k < SL_LEN(bad[i].says) && bad[i].says[k]; k++) {
            if (!strstr(err.msg, bad[i].says[k])) print_error("case %zu: %s\n", i, err.msg);
            assert_non_null(strstr(err.msg, bad[i].says[k]));
        }
    }
}

static void without_memory(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth < 20; nth++) {
        sl_profile p = {0};
        sl_err err = {0};
        sl_mem_fail_at(nth);
        sl_status st = sl_profile_parse("p.json", span_of(small), &p, &err);
        sl_mem_fail_at(0);
        assert_true(st == SL_OK || st == SL_ERR_NOMEM);
        sl_profile_free(&p);
    }
}

/* The counts of a description are those of the tensors that a checkpoint has, in either format. */
static void counts_are_the_checkpoints(void **state) {
    (void)state;
    static const char *const models[] = {
        "mixtral-tiny", "qwen3moe-tiny", "qwen3moe-sparse", "qwen2moe-tiny",   "olmoe-tiny",
        "glm4moe-tiny", "llama4-tiny",   "deepseekv2-tiny", "deepseekv3-tiny", "dbrx-tiny",
        "arctic-tiny",  "mixed.gguf",    "qwen3next-tiny"};
    static sl_model_spec spec;
    for (size_t i = 0; i < SL_LEN(models); i++) {
        char path[512];
        sl_shape s;
        sl_err err = {0};
        snprintf(path, sizeof path, SL_SOURCE_DIR "/tests/golden/%s", models[i]);
        sl_status st = sl_shape_open(path, &s, &err);
        if (st != SL_OK) print_error("%s\n", err.msg);
        assert_int_equal(st, SL_OK);
        assert_int_equal(sl_model_read_spec(path, &spec, NULL, &err), SL_OK);
        sl_params p = sl_account_params(&s);
        assert_true(p.total == spec.n_params && p.active == spec.n_params_active);
        assert_string_equal(s.name, models[i]);
        for (uint32_t l = 0; l < spec.n_layers; l++)
            assert_int_equal(sl_shape_is_moe(&s, l), spec.ffn[l] == SL_FFN_MOE);
    }
}

/* A model without weights computes on random ones, in less memory than its tensors have. */
static void random_experts(void **state) {
    (void)state;
    static sl_model_spec spec;
    sl_model *m = NULL;
    sl_err err = {0};
    assert_int_equal(
        sl_model_read_spec(SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny", &spec, NULL, &err), SL_OK);
    size_t largest = (size_t)spec.vocab * spec.d_model * 2;
    assert_int_equal(sl_model_open_random(&spec, largest - 1, 1, &m, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "embed_tokens"));
    assert_int_equal(sl_model_open_random(&spec, largest, 1, &m, &err), SL_OK);
    assert_true(sl_model_spec_of(m)->n_params == spec.n_params);
    const sl_exec ex = {.k = sl_kernels_select(NULL)};
    sl_arena scratch;
    float x[4 * 256], y[8 * 256];
    const uint32_t ids[4] = {1, 2, 3, 4}, expert[2] = {0, 1}, first[3] = {0, 4, 8};
    const uint32_t row[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    assert_true(spec.d_model <= 256);
    assert_int_equal(sl_arena_create(sl_experts_scratch_bytes(&spec, 8), &scratch, &err), SL_OK);
    sl_model_embed(m, &ex, ids, 4, x);
    const sl_expert_batch batch = {2, expert, first, row, x, y};
    sl_block_experts(m, &ex, spec.moe_layer[0], &batch, &scratch);
    double sum = 0;
    for (size_t i = 0; i < 8u * spec.d_model; i++) sum += fabs((double)y[i]);
    assert_true(isfinite(sum) && sum > 0);
    sl_arena_free(&scratch);
    sl_model_free(m);
}

/* So do latents: every step of a block, on pages of its own. */
static void random_latents(void **state) {
    (void)state;
    static sl_model_spec spec;
    sl_model *m = NULL;
    sl_err err = {0};
    sl_arena scratch;
    float x[4 * 256] = {0};
    assert_int_equal(
        sl_model_read_spec(SL_SOURCE_DIR "/tests/golden/deepseekv2-tiny", &spec, NULL, &err),
        SL_OK);
    assert_int_equal(sl_model_open_random(&spec, 1 << 20, 1, &m, &err), SL_OK);
    assert_int_equal(sl_arena_create(sl_model_scratch_bytes(&spec, 4), &scratch, &err), SL_OK);
    float *page = sl_alloc(1, sl_kv_page_bytes(&spec));
    const uint32_t pages[1] = {0}, *const row[4] = {pages, pages, pages, pages};
    const uint32_t ids[4] = {1, 2, 3, 4}, pos[4] = {0, 1, 2, 3};
    const sl_exec ex = {.k = sl_kernels_select(NULL)};
    const sl_rows rows = {
        .n = 4, .id = ids, .pos = pos, .kv = sl_kv_pool_of(&spec, page), .pages = row};
    assert_true(spec.d_model <= 256);
    sl_model_embed(m, &ex, ids, 4, x);
    sl_block_attention(m, &ex, 1, &rows, x, &scratch);
    double sum = 0;
    for (size_t i = 0; i < 4u * spec.d_model; i++) sum += fabs((double)x[i]);
    assert_true(isfinite(sum) && sum > 0 && scratch.used == 0);
    sl_free(page);
    sl_arena_free(&scratch);
    sl_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),     cmocka_unit_test(bad_profiles),
        cmocka_unit_test(without_memory), cmocka_unit_test(counts_are_the_checkpoints),
        cmocka_unit_test(random_experts), cmocka_unit_test(random_latents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

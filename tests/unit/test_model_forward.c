/* Bits of the forward pass do not depend on how rows are batched, cut or threaded. */
#include "model_folder.h"
#include "model_naive.h"
#include "model_run.h"
#include "sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define LEN 75u /* three pages, the last one partly filled */

static float *prefill(model_run *r, const uint32_t *ids, uint32_t chunk) {
    model_seq seq = model_seq_make(r->s, LEN);
    float *logits = malloc((size_t)LEN * r->s->vocab * sizeof *logits);
    model_run_prefill(r, &seq, ids, 0, LEN, chunk, logits);
    model_seq_free(&seq);
    return logits;
}

static void check_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) assert_true(__builtin_isfinite(x[i]));
}

/* One request in steps of any size; of a sample one size, the next time another one. The reference,
 * which is slow, shares all that cuts rows with the other tables: one size shows that it is called
 * alike. */
static void check_chunks(model_run *r, const uint32_t *ids, const float *want, bool reference) {
    static const uint32_t chunk[] = {33, 7, 1, 32, 74};
    static size_t turn;
    const bool all = take_whole() && !reference && !SL_SLOW_BUILD;
    const size_t first = all || reference ? 0 : turn++ % SL_LEN(chunk);
    for (size_t i = first; i < (all ? SL_LEN(chunk) : first + 1); i++) {
        float *got = prefill(r, ids, chunk[i]);
        assert_memory_equal(got, want, (size_t)LEN * r->s->vocab * sizeof *got);
        free(got);
    }
}

/* The same request decoding among others, in steps that mix rows of three requests. */
static void check_batch(model_run *r, const uint32_t *ids, const float *want) {
    uint32_t other[2][LEN];
    const uint32_t *id_of[3] = {other[0], ids, other[1]};
    model_seq seq[3];
    model_run_ids(other[0], LEN, r->s->vocab, 77);
    model_run_ids(other[1], LEN, r->s->vocab, 78);
    for (int q = 0; q < 3; q++) seq[q] = model_seq_make(r->s, LEN);
    uint32_t at[3] = {0, 0, 0};
    uint64_t rng = 5;
    while (at[1] < LEN) {
        uint32_t step_ids[64], pos[64], n = 0, mine = 0, first = at[1];
        const model_seq *seqs[64];
        for (int q = 0; q < 3; q++) {
            uint32_t take = (uint32_t)sl_rng_below(&rng, 9) + (q == 1);
            if (q == 1) mine = n;
            for (; take > 0 && at[q] < LEN; take--, n++) {
                step_ids[n] = id_of[q][at[q]];
                pos[n] = at[q]++;
                seqs[n] = &seq[q];
            }
        }
        float *logits = malloc((size_t)n * r->s->vocab * sizeof *logits);
        model_run_rows(r, n, step_ids, pos, seqs, logits);
        assert_memory_equal(logits + (size_t)mine * r->s->vocab, want + (size_t)first * r->s->vocab,
                            (size_t)(at[1] - first) * r->s->vocab * sizeof *logits);
        free(logits);
    }
    for (int q = 0; q < 3; q++) model_seq_free(&seq[q]);
}

/* Queries and keys of linear attention are of unit length however short they were, and results are
 * normalised again: in random weights of a few values that multiplies what rounding has changed. */
static void check_naive(const sl_model *m, const uint32_t *ids, const float *got) {
    double off = naive_deviation(m, ids, LEN, got);
    printf("deviation from the naive computation %.2e\n", off);
    assert_true(off <= (sl_model_spec_of(m)->n_linear ? 1e-4 : 2e-5));
}

/* Logits of the ids, the same bits by every table, batch, chunk and number of threads. Of a sample
 * one table in three is the one whose batches and chunks are tried: others the next time. */
static float *check_bits(const sl_model *m, const uint32_t *ids, sl_activations activations) {
    static uint32_t turn;
    turn++;
    sl_pool *pool = NULL;
    sl_err err = {0};
    float *want = NULL;
    assert_int_equal(sl_pool_create(3, &pool, &err), SL_OK);
    bool supported = false;
    const sl_kernels *k;
    for (size_t i = 0; (k = sl_kernels_at(i, &supported)) != NULL; i++) {
        if (!supported) {
            printf("skipped: kernels %s cannot run here\n", sl_kernels_name(k));
            continue;
        }
        model_run alone = model_run_make(m, k, NULL, LEN),
                  threaded = model_run_make(m, k, pool, LEN);
        alone.ex.activations = threaded.ex.activations = activations;
        uint64_t allocations = sl_mem_count();
        float *whole = prefill(&alone, ids, LEN);
        assert_int_equal(sl_mem_count(), allocations); /* the computation allocates nothing */
        check_finite(whole, (size_t)LEN * alone.s->vocab);
        if ((turn + i) % take_one_in(3) == 0) {
            check_chunks(&alone, ids, whole, i == 0);
            check_chunks(&threaded, ids, whole, i == 0);
            check_batch(&threaded, ids, whole);
        }
        /* instruction sets agree too */
        if (want) assert_memory_equal(whole, want, (size_t)LEN * alone.s->vocab * sizeof *want);
        free(want);
        want = whole;
        model_run_free(&alone);
        model_run_free(&threaded);
    }
    sl_pool_free(pool);
    return want;
}

/* Root mean square of what rounding changed, over that of the logits. */
static double change(const float *exact, const float *rounded, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)rounded[i] - exact[i], 2);
        all += pow((double)exact[i], 2);
    }
    return sqrt(off / all);
}

static void check_folder(const char *config, sl_dtype dtype, uint32_t shards) {
    char dir[64];
    uint32_t ids[LEN];
    folder_make(dir, config, dtype, shards, 11);
    sl_model *m = model_run_open(dir);
    model_run_ids(ids, LEN, sl_model_spec_of(m)->vocab, 3);
    float *want = check_bits(m, ids, SL_ACTIVATIONS_F32);
    check_naive(m, ids, want);
    for (sl_activations how = SL_ACTIVATIONS_BF16; how < SL_ACTIVATIONS_COUNT && dtype == SL_BF16;
         how++) {
        float *rounded = check_bits(m, ids, how);
        double by = change(want, rounded, (size_t)LEN * sl_model_spec_of(m)->vocab);
        printf("%s changes logits by %.2f %%\n", sl_activations_names[how], 100 * by);
        /* a few rows choose other experts */
        assert_true(by > 0 && by < (sl_model_spec_of(m)->n_linear ? 0.2 : 0.06));
        free(rounded);
    }
    free(want);
    sl_model_free(m);
    folder_remove(dir);
}

static void qwen_bits_do_not_depend_on_batching(void **state) {
    (void)state;
    check_folder(folder_qwen, SL_BF16, 1);
    check_folder(folder_qwen, SL_F16, 3);
}

static void shared_experts_do_not_change_that(void **state) {
    (void)state;
    size_t n;
    check_folder(folder_qwen2, SL_BF16, 1);
    char *biasless = folder_replace(folder_qwen2, strlen(folder_qwen2), "\"norm_topk_prob\":true",
                                    "\"norm_topk_prob\":false,\"qkv_bias\":false", &n);
    check_folder(biasless, SL_F32, 2);
    free(biasless);
}

/* With another word in the config; of a sample in slow builds one change in three. */
static void check_changed(const char *config, const char *from, const char *to) {
    static uint32_t turn;
    size_t n;
    if (SL_SLOW_BUILD && turn++ % take_one_in(3)) return;
    char *text = folder_replace(config, strlen(config), from, to, &n);
    check_folder(text, SL_F32, 2);
    free(text);
}

static void wide_norms_and_clipping_do_not(void **state) {
    (void)state;
    check_folder(folder_olmoe, SL_BF16, 1);
    check_changed(folder_olmoe, "\"norm_topk_prob\":false,\"clip_qkv\":0.75",
                  "\"norm_topk_prob\":true,\"clip_qkv\":null");
}

static void tensors_that_roles_share_do_not(void **state) {
    (void)state;
    check_folder(folder_dbrx, SL_BF16, 1);
    check_changed(folder_dbrx, "\"moe_top_k\":3",
                  "\"moe_top_k\":3,\"moe_normalize_expert_weights\":null");
}

static void dense_branches_do_not(void **state) {
    (void)state;
    check_folder(folder_arctic, SL_BF16, 1);
    check_changed(folder_arctic, "\"moe_layer_frequency\":2", "\"moe_layer_frequency\":1");
    check_changed(folder_arctic, "\"parallel_attn_mlp_res\":true",
                  "\"parallel_attn_mlp_res\":false");
}

static void groups_of_experts_do_not(void **state) {
    (void)state;
    check_folder(folder_glm4, SL_BF16, 1);
    check_changed(folder_glm4, "\"norm_topk_prob\":true", "\"norm_topk_prob\":false");
    check_changed(folder_glm4, "\"attention_bias\":true,\"use_qk_norm\":true",
                  "\"attention_bias\":false,\"use_qk_norm\":false");
    check_changed(folder_glm4, "\"n_group\":4,\"topk_group\":2", "\"n_group\":1");
    check_changed(folder_glm4, "\"partial_rotary_factor\":0.5", "\"partial_rotary_factor\":1.0");
    check_changed(folder_glm4, "\"first_k_dense_replace\":1", "\"first_k_dense_replace\":0");
}

static void linear_attention_does_not(void **state) {
    (void)state;
    check_folder(folder_qwen3next, SL_BF16, 1);
    check_changed(folder_qwen3next, "\"linear_num_value_heads\":6", "\"linear_num_value_heads\":3");
    check_changed(folder_qwen3next, "\"linear_conv_kernel_dim\":4", "\"linear_conv_kernel_dim\":2");
    check_changed(folder_qwen3next, "\"full_attention_interval\":3",
                  "\"full_attention_interval\":9");
}

/* Routes 16 rows of the first routed block of 4 groups of 3 experts by these biases, which outweigh
 * all scores, and fails unless exactly the experts of the mask are chosen among them. */
static void check_routed(const char *config, const float bias[12], uint32_t want) {
    char dir[64];
    uint32_t id[16], pos[16] = {0}, expert[16 * 3], seen = 0;
    float x[16 * 40], h[16 * 40], gate[16 * 3];
    uint64_t rng = 9;
    folder_make(dir, config, SL_F32, 1, 4);
    sl_model *m = model_run_open(dir);
    model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, 16);
    assert_true(r.s->n_experts == 12 && r.s->n_groups == 4 && r.s->d_model <= 40);
    memcpy(m->made.route_bias, bias, 12 * sizeof *bias);
    model_run_ids(id, 16, r.s->vocab, 1);
    for (int i = 0; i < 16 * 40; i++) x[i] = (float)sl_rng_below(&rng, 2001) / 1000 - 1;
    const sl_rows rows = {.n = 16, .id = id, .pos = pos};
    sl_block_route(m, &r.ex, r.s->moe_layer[0], &rows, x, h, expert, gate, &r.scratch);
    for (int i = 0; i < 16 * 3; i++) seen |= 1u << expert[i];
    assert_int_equal(seen, want);
    for (int i = 0; i < 16 * 3; i++) assert_true(gate[i] > 0);
    model_run_free(&r);
    sl_model_free(m);
    folder_remove(dir);
}

/* Experts of groups that lost are out whatever the sign of what the choice goes by, as in the
 * models' own code and transformers 5; transformers 4 lets them rank as 0, which beats a negative.
 */
static void groups_that_lost_are_out_with_either_sign(void **state) {
    (void)state;
    static const char *const config[] = {folder_glm4, folder_deepseek3};
    static const float plus[12] = {40, 50, 9, 60, 70, 9, 1, 1, 80, 2, 2, 2};
    static const float minus[12] = {-50, -40, -90, -60, -30, -90, -99, -95, -97, -99, -99, -99};
    for (size_t i = 0; i < SL_LEN(config); i++) {
        check_routed(config[i], plus, 1u << 1 | 1u << 3 | 1u << 4);
        check_routed(config[i], minus, 1u << 0 | 1u << 1 | 1u << 4);
    }
}

static void gates_of_inputs_chunks_and_blocks_that_do_not_rotate_do_not(void **state) {
    (void)state;
    check_folder(folder_llama4, SL_BF16, 1);
    check_folder(folder_llama4_nested, SL_F16, 3);
    check_changed(folder_llama4, "\"num_experts_per_tok\":1", "\"num_experts_per_tok\":3");
    check_changed(folder_llama4, "\"interleave_moe_layer_step\":2", "\"moe_layers\":[0,1,3]");
    check_changed(folder_llama4, "\"use_qk_norm\":true,\"attn_temperature_tuning\":true",
                  "\"use_qk_norm\":false,\"attn_temperature_tuning\":false");
    check_changed(folder_llama4, "\"no_rope_layers\":[1,0,1,0]",
                  "\"layer_types\":[\"full_attention\",\"chunked_attention\",\"chunked_attention\","
                  "\"full_attention\"]");
}

static void latents_do_not(void **state) {
    (void)state;
    check_folder(folder_deepseek2, SL_BF16, 1);
    check_changed(folder_deepseek2, "\"q_lora_rank\":14", "\"q_lora_rank\":null");
    check_changed(folder_deepseek2, "\"group_limited_greedy\"", "\"greedy\"");
    check_changed(folder_deepseek2, "\"mscale\":1.5,\"mscale_all_dim\":0.7",
                  "\"attention_factor\":1.2");
    check_folder(folder_deepseek3, SL_F16, 2);
    check_changed(folder_deepseek3, "\"n_group\":4", "\"rope_interleave\":false,\"n_group\":4");
}

/* Blocks of all types, and what 8 bits of activations cost: root mean square over the logits'. */
static void check_8_bits(const char *path) {
    uint32_t ids[LEN];
    sl_model *m = model_run_open(path);
    model_run_ids(ids, LEN, sl_model_spec_of(m)->vocab, 3);
    float *exact = check_bits(m, ids, SL_ACTIVATIONS_F32);
    float *rounded = check_bits(m, ids, SL_ACTIVATIONS_INT8);
    double by = change(exact, rounded, (size_t)LEN * sl_model_spec_of(m)->vocab);
    printf("%s: 8 bits change logits by %.2f %%\n", path, 100 * by);
    assert_true(by > 0 && by < 0.03);
    free(exact), free(rounded);
    sl_model_free(m);
}

static void activations_in_8_bits_do_not(void **state) {
    (void)state;
    check_8_bits(SL_SOURCE_DIR "/tests/golden/mixed.gguf");
    check_8_bits(SL_SOURCE_DIR "/tests/golden/gptoss-tiny"); /* experts of MXFP4 */
}

static void sinks_windows_and_clamps_do_not(void **state) {
    (void)state;
    check_folder(folder_gptoss, SL_BF16, 1);
    check_changed(folder_gptoss, "\"attention_bias\":true", "\"attention_bias\":false");
    check_changed(folder_gptoss, "\"truncate\":false", "\"truncate\":true");
    check_changed(folder_gptoss, "\"sliding_window\":40", "\"sliding_window\":3");
}

static void mixtral_bits_do_not_depend_on_batching(void **state) {
    (void)state;
    check_folder(folder_mixtral, SL_F32, 2);
}

/* An attention worker and expert workers that hold a part each compute what one process computes.
 */
static void a_worker_binds_only_its_stages(void **state) {
    (void)state;
    char dir[64];
    sl_err err = {0};
    folder_make(dir, folder_qwen, SL_F32, 1, 4);
    sl_model *all = model_run_open(dir), *part = NULL;
    const sl_model_spec *s = sl_model_spec_of(all);
    uint8_t *hosted = calloc((size_t)s->n_moe * s->n_experts, 1);
    hosted[s->n_experts + 4] = 1; /* expert 4 of the second routed block, block 2 */
    const sl_stages stages = {.experts = true, .hosted = hosted};
    assert_int_equal(sl_model_open(dir, &stages, &part, &err), SL_OK);
    free(hosted);
    assert_memory_equal(sl_model_spec_of(part)->hash, s->hash, sizeof s->hash);
    const sl_kernels *k = sl_kernels_select("ref");
    model_run a = model_run_make(all, k, NULL, 4), b = model_run_make(part, k, NULL, 4);
    float x[2 * 24], ya[2 * 24], yb[2 * 24];
    for (size_t i = 0; i < SL_LEN(x); i++) x[i] = (float)(i % 7) - 3.0f;
    const uint32_t expert = 4, first[2] = {0, 2}, row[2] = {1, 0};
    sl_expert_batch batch = {1, &expert, first, row, x, ya};
    sl_block_experts(all, &a.ex, 2, &batch, &a.scratch);
    batch.y = yb;
    sl_block_experts(part, &b.ex, 2, &batch, &b.scratch);
    assert_memory_equal(ya, yb, sizeof ya);
    assert_int_equal(a.scratch.used, 0);
    model_run_free(&a);
    model_run_free(&b);
    sl_model_free(all);
    sl_model_free(part);
    folder_remove(dir);
}

static uint32_t mapped_files(const char *dir) {
    char line[1024];
    uint32_t n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, dir) != NULL;
    if (f) fclose(f);
    return n;
}

/* Only files that hold a needed tensor are mapped. */
static void a_worker_maps_only_the_files_it_needs(void **state) {
    (void)state;
    char dir[64];
    sl_err err = {0};
    sl_model *m = NULL;
    uint8_t hosted[2 * 4] = {[5] = 1}; /* three tensors */
    const sl_stages one = {.experts = true, .hosted = hosted}, none = {0};
    folder_make(dir, folder_mixtral, SL_F32, 4, 4);
    assert_int_equal(sl_model_open(dir, &none, &m, &err), SL_OK);
    assert_int_equal(mapped_files(dir), 0);
    sl_model_free(m);
    assert_int_equal(sl_model_open(dir, &one, &m, &err), SL_OK);
    assert_in_range(mapped_files(dir), 1, 3);
    sl_model_free(m);
    m = model_run_open(dir);
    assert_int_equal(mapped_files(dir), 4);
    sl_model_free(m);
    assert_int_equal(mapped_files(dir), 0);
    folder_remove(dir);
}

static void inspect_adds_up(void **state) {
    (void)state;
    char dir[64];
    sl_err err = {0};
    sl_model_info info;
    sl_model_spec spec;
    folder_make(dir, folder_qwen, SL_BF16, 2, 4);
    assert_int_equal(sl_model_inspect(dir, &info, &err), SL_OK);
    assert_int_equal(sl_model_read_spec(dir, &spec, NULL, &err), SL_OK);
    assert_int_equal(info.n_files, 2);
    assert_int_equal(info.bytes_expert, 3 * 20 * 24 * 2);
    assert_int_equal(info.bytes_total, spec.n_params * 2);
    assert_int_equal(info.bytes_attention + 12 * info.bytes_expert, info.bytes_total);
    assert_int_equal(info.expert_dtype, SL_BF16);
    assert_int_equal(spec.n_params - spec.n_params_active, 2 * 3 * 3 * 20 * 24);
    folder_remove(dir);
}

/* A shared expert is active in every routed block and mapped by attention workers. */
static void inspect_counts_shared_experts(void **state) {
    (void)state;
    char dir[64];
    sl_err err = {0};
    sl_model_info info;
    sl_model_spec with, without;
    folder_make(dir, folder_qwen2, SL_BF16, 1, 4);
    assert_int_equal(sl_model_inspect(dir, &info, &err), SL_OK);
    assert_int_equal(sl_model_read_spec(dir, &with, NULL, &err), SL_OK);
    assert_int_equal(info.bytes_total, with.n_params * 2);
    assert_int_equal(info.bytes_attention + 12 * info.bytes_expert, info.bytes_total);
    without = with;
    without.d_ff_shared = 0;
    without.qkv_bias = false;
    sl_arch_count_params(sl_arch_find(with.arch), &without);
    assert_int_equal(with.n_params - without.n_params, 2 * 3 * 44 * 28 + 3 * (28 + 14 + 14));
    assert_int_equal(with.n_params_active - without.n_params_active,
                     with.n_params - without.n_params);
    folder_remove(dir);
}

static void the_hash_covers_config_and_headers(void **state) {
    (void)state;
    char a[64], b[64];
    sl_err err = {0};
    sl_model_spec s, t;
    folder_make(a, folder_qwen, SL_BF16, 2, 4);
    folder_make(b, folder_qwen, SL_BF16, 2, 9); /* other values, same headers */
    assert_int_equal(sl_model_read_spec(a, &s, NULL, &err), SL_OK);
    assert_int_equal(sl_model_read_spec(b, &t, NULL, &err), SL_OK);
    assert_memory_equal(s.hash, t.hash, sizeof s.hash);
    folder_patch_header(b, "model-1.safetensors", "{", "{\"__metadata__\":{},");
    assert_int_equal(sl_model_read_spec(b, &t, NULL, &err), SL_OK);
    assert_memory_not_equal(s.hash, t.hash, sizeof s.hash);
    folder_patch_text(a, "config.json", "10000", "20000");
    assert_int_equal(sl_model_read_spec(a, &t, NULL, &err), SL_OK);
    assert_memory_not_equal(s.hash, t.hash, sizeof s.hash);
    folder_remove(a);
    folder_remove(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_bits_do_not_depend_on_batching),
        cmocka_unit_test(shared_experts_do_not_change_that),
        cmocka_unit_test(wide_norms_and_clipping_do_not),
        cmocka_unit_test(tensors_that_roles_share_do_not),
        cmocka_unit_test(dense_branches_do_not),
        cmocka_unit_test(linear_attention_does_not),
        cmocka_unit_test(groups_of_experts_do_not),
        cmocka_unit_test(groups_that_lost_are_out_with_either_sign),
        cmocka_unit_test(gates_of_inputs_chunks_and_blocks_that_do_not_rotate_do_not),
        cmocka_unit_test(latents_do_not),
        cmocka_unit_test(activations_in_8_bits_do_not),
        cmocka_unit_test(sinks_windows_and_clamps_do_not),
        cmocka_unit_test(mixtral_bits_do_not_depend_on_batching),
        cmocka_unit_test(a_worker_binds_only_its_stages),
        cmocka_unit_test(a_worker_maps_only_the_files_it_needs),
        cmocka_unit_test(inspect_adds_up),
        cmocka_unit_test(inspect_counts_shared_experts),
        cmocka_unit_test(the_hash_covers_config_and_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

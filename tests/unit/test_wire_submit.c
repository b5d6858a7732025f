/* What a SUBMIT carries beside its fields: a shape, biases, tokens that are drawn alone and those
 * that are not, each with its limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "net/wire.h"

static void says(sl_status got, sl_status want, const sl_err *err, const char *text) {
    if (got != want || !strstr(err->msg, text))
        fail_msg("status %d and '%s', expected %d and '%s'", got, err->msg, want, text);
}

static void a_shape_comes_whole(void **state) {
    (void)state;
    static const uint8_t shape[] = "{\"regex\":\"a\"}";
    const uint32_t token = 3;
    const sl_wire_submit want = {.max_tokens = 4,
                                 .n_prompt = 1,
                                 .n_tokens = 1,
                                 .tokens = &token,
                                 .sampling = {.top_p = 1},
                                 .n_shape = sizeof shape - 1,
                                 .shape = shape};
    _Alignas(64) uint8_t out[256];
    sl_wire_submit got;
    sl_err err = {0};
    sl_wire_submit_encode(&want, out);
    sl_span in = {out, sl_wire_submit_bytes(&want)};
    says(sl_wire_submit_decode(in, 13, &got, &err), SL_OK, &err, "");
    assert_int_equal(got.n_shape, sizeof shape - 1);
    assert_memory_equal(got.shape, shape, got.n_shape);
    in.len--;
    assert_int_equal(sl_wire_submit_decode(in, 13, &got, &err), SL_ERR_PROTOCOL);
}

static void biases_have_a_limit(void **state) {
    (void)state;
    static sl_logit_bias bias[SL_MAX_LOGIT_BIAS + 1];
    static _Alignas(64) uint8_t out[SL_WIRE_SUBMIT_HEAD + 4 + sizeof bias];
    const uint32_t token = 0;
    sl_wire_submit got, s = {.max_tokens = 1, .n_prompt = 1, .n_tokens = 1, .tokens = &token};
    sl_err err = {0};
    for (uint32_t i = 0; i < SL_LEN(bias); i++) bias[i].id = i;
    s.sampling = (sl_sampling){.top_p = 1, .bias = bias};
    for (uint32_t over = 0; over < 2; over++) {
        s.sampling.n_bias = SL_MAX_LOGIT_BIAS + over;
        sl_wire_submit_encode(&s, out);
        const sl_span in = {out, sl_wire_submit_bytes(&s)};
        says(sl_wire_submit_decode(in, UINT32_MAX, &got, &err), over ? SL_ERR_PROTOCOL : SL_OK,
             &err, over ? "1025 ids, limit 1024" : "");
    }
}

static const uint32_t token;
static _Alignas(64) uint8_t out[1 << 18];

static sl_status there_and_back(const sl_sampling *s, uint32_t vocab, sl_wire_submit *got,
                                sl_err *err) {
    const sl_wire_submit in = {
        .max_tokens = 1, .n_prompt = 1, .n_tokens = 1, .tokens = &token, .sampling = *s};
    assert_true(sl_wire_submit_bytes(&in) <= sizeof out);
    sl_wire_submit_encode(&in, out);
    return sl_wire_submit_decode((sl_span){out, sl_wire_submit_bytes(&in)}, vocab, got, err);
}

static void what_is_allowed_is_as_large_as_the_vocabulary(void **state) {
    (void)state;
    const uint32_t allowed[] = {0, 0x80000001, 0};
    sl_wire_submit got;
    sl_err err = {0};
    sl_sampling s = {.top_p = 1, .n_allowed = 2, .allowed = allowed};
    says(there_and_back(&s, 64, &got, &err), SL_OK, &err, "");
    assert_true(got.sampling.n_allowed == 2 && got.sampling.allowed[1] == 0x80000001);
    says(there_and_back(&s, 65, &got, &err), SL_ERR_PROTOCOL, &err,
         "allowed_token_ids: 2 words, the vocabulary has 3");
    says(there_and_back(&s, 32, &got, &err), SL_ERR_PROTOCOL, &err,
         "2 words, the vocabulary has 1");
    says(there_and_back(&s, 63, &got, &err), SL_ERR_PROTOCOL, &err, "an id above the 63");
    s.n_allowed = 1;
    says(there_and_back(&s, 32, &got, &err), SL_ERR_PROTOCOL, &err, "empty, at least one id");
    s.n_allowed = 3;
    says(there_and_back(&s, 65, &got, &err), SL_OK, &err, "");
}

static void bad_words_have_limits(void **state) {
    (void)state;
    static uint32_t bad[SL_MAX_BAD_WORDS + SL_MAX_BAD_TOKENS + 1];
    sl_wire_submit got;
    sl_err err = {0};
    sl_sampling s = {.top_p = 1, .bad = bad, .n_bad = SL_LEN(bad)};
    bad[0] = SL_LEN(bad) - 1;
    says(there_and_back(&s, 64, &got, &err), SL_ERR_PROTOCOL, &err,
         "bad_words: 17409 lengths and ids, limit 17408");
    s.n_bad--;
    bad[0]--;
    says(there_and_back(&s, 64, &got, &err), SL_OK, &err, "");
    for (uint32_t i = 0; i < SL_LEN(bad); i++) bad[i] = 1;
    s.n_bad = 2 * SL_MAX_BAD_WORDS;
    says(there_and_back(&s, 64, &got, &err), SL_OK, &err, "");
    s.n_bad += 2;
    says(there_and_back(&s, 64, &got, &err), SL_ERR_PROTOCOL, &err,
         "bad_words: 1025 sequences of tokens, limit 1024");
}

static void scored_ids_have_a_limit(void **state) {
    (void)state;
    static uint32_t scored[SL_MAX_SCORED + 1];
    sl_wire_submit got, in = {.max_tokens = 1,
                              .n_prompt = 1,
                              .n_tokens = 1,
                              .flags = SL_SUBMIT_LOGPROBS,
                              .tokens = &token,
                              .sampling = {.top_p = 1},
                              .report = {.n_top = 20, .scored = scored}};
    sl_err err = {0};
    for (uint32_t over = 0; over < 2; over++) {
        in.report.n_scored = SL_MAX_SCORED + over;
        sl_wire_submit_encode(&in, out);
        const sl_span payload = {out, sl_wire_submit_bytes(&in)};
        says(sl_wire_submit_decode(payload, 64, &got, &err), over ? SL_ERR_PROTOCOL : SL_OK, &err,
             over ? "logprob_token_ids: 129 ids, limit 128" : "");
    }
    in.report.n_scored = 1;
    in.report.n_top = 0;
    in.flags = 0;
    sl_wire_submit_encode(&in, out);
    says(sl_wire_submit_decode((sl_span){out, sl_wire_submit_bytes(&in)}, 64, &got, &err),
         SL_ERR_PROTOCOL, &err, "2 log-probabilities with flags 0x0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_comes_whole),
        cmocka_unit_test(biases_have_a_limit),
        cmocka_unit_test(what_is_allowed_is_as_large_as_the_vocabulary),
        cmocka_unit_test(bad_words_have_limits),
        cmocka_unit_test(scored_ids_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

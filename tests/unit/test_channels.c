/* Channels of harmony answers, on the tokenizer of the fixture gptoss-tiny. */
#include "text/channels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"

static sl_tokenizer *open_fixture(const char *name) {
    char path[512];
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    snprintf(path, sizeof path, GOLDEN "%s", name);
    if (sl_tokenizer_open(path, &tok, &err) != SL_OK) fail_msg("%s", err.msg);
    return tok;
}

/* What of a text each channel gets. */
static void check(const sl_tokenizer *tok, const char *text, const char *answer,
                  const char *reasoning) {
    char got[2][512] = {"", ""}, piece[SL_DETOK_MAX_OUT];
    sl_ids ids = {0};
    sl_err err = {0};
    sl_detok detok = {0};
    sl_channels c = sl_channels_begin(tok);
    const sl_span all = {(const uint8_t *)text, strlen(text)};
    assert_int_equal(sl_tokenizer_encode(tok, all, true, false, &ids, &err), SL_OK);
    for (size_t i = 0; i < ids.len; i++) {
        sl_channel_kind kind = sl_channels_push(&c, tok, ids.data[i]);
        size_t n = sl_detok_push(&detok, tok, ids.data[i], true, piece);
        if (kind != SL_CHANNEL_HEADER) strncat(got[kind == SL_CHANNEL_REASONING], piece, n);
    }
    assert_string_equal(got[0], answer);
    assert_string_equal(got[1], reasoning);
    sl_ids_free(&ids);
}

static void answers_are_cut_into_channels(void **state) {
    (void)state;
    sl_tokenizer *tok = open_fixture("gptoss-tiny");
    check(
        tok,
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>"
        "It is so.<|return|>",
        "It is so.", "I think.");
    check(tok, "<|channel|>final<|message|>Yes.", "Yes.", "");
    check(tok, "<|channel|>analysis<|message|>Not to the e", "", "Not to the e");
    check(tok, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", "",
          "{}");
    check(tok, "No marker at all.", "No marker at all.", "");
    check(tok, "<|message|>No channel.", "No channel.", "");
    check(tok, "<|channel|>finale<|message|>a<|channel|>finally and so on, and on<|message|>b", "",
          "ab");
    check(tok, "<|end|>nobody's<|start|>user<|message|>asks", "asks", "");
    check(tok, "<|channel|><|channel|><|message|><|message|>x<|end|><|end|>", "x", "");
    sl_tokenizer_free(tok);
}

static void any_ids_are_fine(void **state) {
    (void)state;
    sl_tokenizer *tok = open_fixture("gptoss-tiny"), *other = open_fixture("qwen3moe-tiny");
    sl_channels c = sl_channels_begin(tok), none = sl_channels_begin(other);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t id = i % 7 ? 500 + i % 13 : i * 0x9E3779B9u;
        (void)sl_channels_push(&c, tok, id);
        assert_true(c.n_name <= sizeof c.name + 1);
        assert_int_equal(sl_channels_push(&none, other, id), SL_CHANNEL_ANSWER);
    }
    sl_tokenizer_free(tok);
    sl_tokenizer_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_cut_into_channels),
        cmocka_unit_test(any_ids_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

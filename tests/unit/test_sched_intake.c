/* Which parts enter block 0 under aep: budgets of first rows, one paced chunk, rows kept for
 * prompts. */
#include "sched/intake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void kinds(void **state) {
    (void)state;
    assert_int_equal(sl_intake_kind(0, 1000), SL_PART_PROMPT);
    assert_int_equal(sl_intake_kind(SL_PREFILL_BURST - 1, 1000), SL_PART_PROMPT);
    assert_int_equal(sl_intake_kind(SL_PREFILL_BURST, 1000), SL_PART_REST);
    assert_int_equal(sl_intake_kind(1000, 1000), SL_PART_DECODE);
}

static void prompts_are_not_starved(void **state) {
    (void)state;
    sl_intake in = {.rows = {[SL_PART_DECODE] = 60}};
    assert_int_equal(sl_intake_keep(&in, true, false, 64), 16);
    assert_int_equal(sl_intake_keep(&in, true, false, 9), 5);
    assert_int_equal(sl_intake_keep(&in, false, false, 64), 0);
    assert_int_equal(sl_intake_keep(&in, false, true, 64), 16);
    in.hold_rest = true;
    assert_int_equal(sl_intake_keep(&in, false, true, 64), 0);
    in.rows[SL_PART_PROMPT] = 1;
    assert_int_equal(sl_intake_keep(&in, true, true, 64), 0);
}

static void chunks_keep_every_limit(void **state) {
    (void)state;
    sl_pacer pacer = {.stretch = 1.6, .decode_us = 1000, .row_us = 20};
    sl_intake in = {0};
    /* nobody decodes: as much as pages and rows allow */
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_PROMPT, 0, 1000, 960, 0, 512), 512);
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_PROMPT, 0, 1000, 480, 0, 512), 480);
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_REST, 990, 1000, 480, 0, 512), 10);
    /* somebody does: first rows share a budget */
    in.rows[SL_PART_PROMPT] = 200;
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_PROMPT, 0, 1000, 960, 1, 512), 56);
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_PROMPT, 240, 1000, 960, 1, 512), 16);
    in.rows[SL_PART_PROMPT] = 400;
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_PROMPT, 0, 1000, 960, 1, 512), 0);
    /* and of the rest there is one chunk, as long as the pacer says, or a probe instead */
    bool held = false;
    for (uint32_t i = 0; i < 100 && !held; i++) {
        uint32_t rows = sl_intake_chunk(&in, &pacer, SL_PART_REST, 256, 4000, 4000, 1, 4000);
        held = in.hold_rest;
        assert_true(held ? rows == 0 : rows >= 1 && rows <= 30);
        if (!held) sl_pacer_learn(&pacer, 1, rows, 1500);
    }
    assert_true(held);
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_REST, 256, 4000, 4000, 1, 4000), 0);
    in.hold_rest = false;
    in.rows[SL_PART_REST] = 1;
    assert_int_equal(sl_intake_chunk(&in, &pacer, SL_PART_REST, 256, 4000, 4000, 1, 4000), 0);
}

static void waves(void **state) {
    (void)state;
    assert_int_equal(sl_intake_wave(true, 7, 20), 8);
    assert_int_equal(sl_intake_wave(false, 7, 20), 21);
    assert_int_equal(sl_intake_batch_wave(5, 0), 5);
    assert_int_equal(sl_intake_batch_wave(5, 6), 5);
    assert_int_equal(sl_intake_batch_wave(5, 9), 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(prompts_are_not_starved),
        cmocka_unit_test(chunks_keep_every_limit),
        cmocka_unit_test(waves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

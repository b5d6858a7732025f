/* Steps: who is in them, in which order, within which limits. */
#include "sched/batcher.h"

#include "base/rng.h"
#include "sched/draft.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CAP = 64 };

static uint64_t only_seed; /* argument: replay this one */

static sl_step_part parts[CAP];

static sl_lane_step step(const sl_slot_need *slots, size_t n, sl_batch_limits lim, uint32_t turn) {
    sl_lane_step out = {.parts = parts, .cap = CAP};
    sl_err err = {0};
    if (sl_batcher_step(slots, n, &lim, turn, &out, &err) != SL_OK) fail_msg("%s", err.msg);
    return out;
}

static void part_is(size_t i, uint32_t slot, uint32_t rows, bool prefill, bool sample) {
    assert_int_equal(parts[i].slot, slot);
    assert_int_equal(parts[i].rows, rows);
    assert_int_equal(parts[i].prefill, prefill);
    assert_int_equal(parts[i].sample, sample);
}

static void nothing_to_do_is_an_empty_step(void **state) {
    (void)state;
    const sl_slot_need slots[] = {{SL_SLOT_EMPTY},
                                  {SL_SLOT_DECODE, 1, 0, 1}, /* parked */
                                  {SL_SLOT_PREFILL, 9, 0, 2}};
    assert_int_equal(step(NULL, 0, (sl_batch_limits){.max_rows = 8}, 5).rows, 0);
    sl_lane_step out = step(slots, 3, (sl_batch_limits){.max_rows = 8}, 0);
    assert_int_equal(out.rows, 0);
    assert_int_equal(out.n_parts, 0);
}

static void decodes_come_first_then_the_oldest_prompt(void **state) {
    (void)state;
    const sl_slot_need slots[] = {
        {SL_SLOT_PREFILL, 100, 100, 7}, {SL_SLOT_DECODE, 1, 1, 3}, {SL_SLOT_EMPTY},
        {SL_SLOT_PREFILL, 5, 100, 6},   {SL_SLOT_DECODE, 1, 9, 9},
    };
    sl_lane_step out = step(slots, 5, (sl_batch_limits){.max_rows = 16}, 0);
    assert_int_equal(out.n_parts, 4);
    assert_int_equal(out.rows, 16);
    part_is(0, 1, 1, false, true);
    part_is(1, 4, 1, false, true);
    part_is(2, 3, 5, true, true);  /* whole prompt: its last row is sampled */
    part_is(3, 0, 9, true, false); /* the next oldest gets the rest */
    out = step(slots, 5, (sl_batch_limits){.max_rows = 6}, 0);
    assert_int_equal(out.rows, 6);
    part_is(2, 3, 4, true, false);
}

static void chunk_obeys_every_limit(void **state) {
    (void)state;
    sl_slot_need slot = {SL_SLOT_PREFILL, 100, 1000, 1};
    step(&slot, 1, (sl_batch_limits){.max_rows = 64, .max_chunk = 32}, 0);
    part_is(0, 0, 32, true, false);
    step(&slot, 1, (sl_batch_limits){.max_rows = 64}, 0);
    part_is(0, 0, 64, true, false);
    slot.max_rows = 20;
    step(&slot, 1, (sl_batch_limits){.max_rows = 64}, 0);
    part_is(0, 0, 20, true, false);
    slot.left = 20;
    step(&slot, 1, (sl_batch_limits){.max_rows = 64}, 0);
    part_is(0, 0, 20, true, true);
}

static void short_prompts_share_a_step(void **state) {
    (void)state;
    const sl_slot_need slots[] = {{SL_SLOT_PREFILL, 4, 32, 5},
                                  {SL_SLOT_PREFILL, 30, 32, 9},
                                  {SL_SLOT_PREFILL, 4, 32, 5},
                                  {SL_SLOT_PREFILL, 4, 3, 1}};
    sl_lane_step out = step(slots, 4, (sl_batch_limits){.max_rows = 64, .max_chunk = 20}, 0);
    assert_int_equal(out.n_parts, 4);
    assert_int_equal(out.rows, 20);
    part_is(0, 3, 3, true, false); /* its pages hold no more */
    part_is(1, 0, 4, true, true);  /* of equal age: by slot */
    part_is(2, 2, 4, true, true);
    part_is(3, 1, 9, true, false);
}

static void a_parked_prompt_does_not_hold_up_a_younger_one(void **state) {
    (void)state;
    const sl_slot_need slots[] = {{SL_SLOT_PREFILL, 10, 0, 1}, {SL_SLOT_PREFILL, 10, 10, 2}};
    sl_lane_step out = step(slots, 2, (sl_batch_limits){.max_rows = 8}, 0);
    assert_int_equal(out.n_parts, 1);
    part_is(0, 1, 8, true, false);
}

static void decodes_take_turns_and_leave_the_prompt_its_share(void **state) {
    (void)state;
    sl_slot_need slots[7];
    uint32_t ran[7] = {0}, turn = 0;
    for (int i = 0; i < 7; i++) slots[i] = (sl_slot_need){SL_SLOT_DECODE, 1, 1, 0};
    slots[3] = (sl_slot_need){SL_SLOT_PREFILL, 1000, 1000, 0};
    for (int n = 0; n < 12; n++) {
        sl_lane_step out = step(slots, 7, (sl_batch_limits){.max_rows = 5, .min_chunk = 2}, turn);
        assert_int_equal(out.rows, 5);
        assert_int_equal(out.n_parts, 4);
        for (size_t i = 0; i < out.n_parts; i++) ran[parts[i].slot] += parts[i].rows;
        turn = out.turn;
    }
    for (int i = 0; i < 7; i++) assert_int_equal(ran[i], i == 3 ? 24 : 6);
}

static void what_is_known_runs_with_what_was_drawn(void **state) {
    (void)state;
    const sl_slot_need slots[] = {{SL_SLOT_DECODE, 1, 32, 1},
                                  {SL_SLOT_DECODE, 5, 32, 2},
                                  {SL_SLOT_DECODE, 3, 2, 3}, /* its pages hold no more */
                                  {SL_SLOT_DECODE, 9, 32, 4},
                                  {SL_SLOT_PREFILL, 90, 90, 5}};
    sl_lane_step out = step(slots, 5, (sl_batch_limits){.max_rows = 64, .max_chunk = 7}, 0);
    part_is(0, 0, 1, false, true);
    part_is(1, 1, 5, false, true);
    part_is(2, 2, 2, false, false);
    part_is(3, 3, 4, false, false); /* SL_BATCH_MORE of all are through */
    part_is(4, 4, 7, true, false);
    out = step(slots, 5, (sl_batch_limits){.max_rows = 8, .min_chunk = 2}, 0);
    assert_int_equal(out.rows, 8);
    part_is(1, 1, 3, false, false);
    part_is(2, 2, 1, false, false);
    part_is(4, 4, 2, true, false);
}

static void bad_arguments_are_named(void **state) {
    (void)state;
    sl_slot_need slots[2] = {{SL_SLOT_PREFILL, 0, 1, 0}, {SL_SLOT_DECODE, 1, 1, 0}};
    sl_lane_step out = {.parts = parts, .cap = CAP};
    sl_err err = {0};
    sl_batch_limits lim = {.max_rows = 4};
    assert_int_equal(sl_batcher_step(slots, 2, &lim, 0, &out, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "slot 0"));
    slots[0].left = 1;
    slots[1].left = 0;
    assert_int_equal(sl_batcher_step(slots, 2, &lim, 0, &out, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "slot 1"));
    slots[1].left = 1;
    out.cap = 1;
    assert_int_equal(sl_batcher_step(slots, 2, &lim, 0, &out, &err), SL_ERR_ARG);
    out.cap = CAP;
    lim.min_chunk = 5;
    assert_int_equal(sl_batcher_step(slots, 2, &lim, 0, &out, &err), SL_ERR_ARG);
    lim = (sl_batch_limits){0};
    assert_int_equal(sl_batcher_step(slots, 2, &lim, 0, &out, &err), SL_ERR_ARG);
}

#define HOLDS(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) fail_msg("seed %" PRIu64 ": %s", seed, #cond);                                \
    } while (0)

/* What the header promises, on random tables. */
static void check_random(uint64_t seed) {
    uint64_t rng = seed;
    sl_slot_need slots[CAP];
    size_t n = sl_rng_below(&rng, CAP + 1), decodes = 0, decoded = 0, prompts = 0;
    sl_batch_limits lim = {.max_rows = 1 + (uint32_t)sl_rng_below(&rng, 100)};
    lim.max_chunk = (uint32_t)sl_rng_below(&rng, 20);
    lim.min_chunk = (uint32_t)sl_rng_below(&rng, lim.max_rows + 1);
    for (size_t i = 0; i < n; i++) {
        slots[i] = (sl_slot_need){.state = (sl_slot_state)sl_rng_below(&rng, 3),
                                  .left = 1 + (uint32_t)sl_rng_below(&rng, 50),
                                  .max_rows = (uint32_t)sl_rng_below(&rng, 30),
                                  .arrival = sl_rng_below(&rng, 1000)};
        if (slots[i].state == SL_SLOT_DECODE && sl_rng_below(&rng, 2))
            slots[i].guesses = (uint32_t)sl_rng_below(&rng, SL_DRAFT_MOST + 1);
        decodes += slots[i].state == SL_SLOT_DECODE && slots[i].max_rows > 0;
        prompts += slots[i].state == SL_SLOT_PREFILL && slots[i].max_rows > 0;
    }
    sl_lane_step out = step(slots, n, lim, (uint32_t)sl_rng_next(&rng));
    uint32_t rows = 0, chunk = 0, n_prompts = 0, more = 0;
    uint64_t youngest = 0;
    for (size_t i = 0; i < out.n_parts; i++) {
        const sl_slot_need *s = &slots[parts[i].slot];
        rows += parts[i].rows;
        HOLDS(parts[i].rows > 0 && parts[i].rows <= s->max_rows);
        HOLDS(s->state == (parts[i].prefill ? SL_SLOT_PREFILL : SL_SLOT_DECODE));
        if (i > 0 && !parts[i].prefill)
            HOLDS(!parts[i - 1].prefill && parts[i - 1].slot < parts[i].slot);
        const uint32_t known = parts[i].rows - parts[i].guesses;
        HOLDS(parts[i].guesses <= s->guesses && known <= s->left);
        HOLDS(parts[i].sample == (known == s->left));
        HOLDS(parts[i].guesses == 0 || (parts[i].sample && parts[i].rows <= SL_GUESSED_ROWS));
        if (!parts[i].prefill) {
            more += parts[i].rows - 1;
            decoded++;
            continue;
        }
        chunk += parts[i].rows;
        n_prompts++;
        if (i > 0 && parts[i - 1].prefill) HOLDS(slots[parts[i - 1].slot].arrival <= s->arrival);
        if (i + 1 < out.n_parts) /* only the last may get less than it could take */
            HOLDS(parts[i].rows == SL_MIN(s->left, s->max_rows));
        youngest = s->arrival;
    }
    for (size_t j = 0; j < n && n_prompts < prompts; j++) {
        bool left_out = slots[j].state == SL_SLOT_PREFILL && slots[j].max_rows > 0;
        for (size_t i = 0; i < out.n_parts; i++) left_out = left_out && parts[i].slot != j;
        HOLDS(!left_out || chunk == 0 || slots[j].arrival >= youngest);
    }
    if (n_prompts < prompts) HOLDS(rows == lim.max_rows || chunk == lim.max_chunk);
    HOLDS(lim.max_chunk == 0 || chunk <= lim.max_chunk);
    HOLDS(rows == out.rows);
    HOLDS(rows <= lim.max_rows);
    HOLDS(decoded == decodes || decoded == lim.max_rows || (prompts && chunk > 0));
    if (prompts && decoded + more < lim.max_rows) HOLDS(chunk > 0);
    HOLDS(more <= SL_MAX(SL_BATCH_MORE, decoded));
    HOLDS(more == 0 || decoded == decodes); /* each has a row before one gets more */
}

static void random_tables_keep_every_rule(void **state) {
    (void)state;
    uint64_t first = only_seed ? only_seed : 1, n = only_seed ? 1 : 20000;
    for (uint64_t seed = first; seed < first + n; seed++) check_random(seed);
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_do_is_an_empty_step),
        cmocka_unit_test(decodes_come_first_then_the_oldest_prompt),
        cmocka_unit_test(chunk_obeys_every_limit),
        cmocka_unit_test(short_prompts_share_a_step),
        cmocka_unit_test(a_parked_prompt_does_not_hold_up_a_younger_one),
        cmocka_unit_test(decodes_take_turns_and_leave_the_prompt_its_share),
        cmocka_unit_test(what_is_known_runs_with_what_was_drawn),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(random_tables_keep_every_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

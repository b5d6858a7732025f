/* Turns of an attention worker, step by step. Their closed forms are in test_sim_stages.c. */
#include "sched/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const uint8_t moe[1] = {1};

/* ---- single steps ---- */

static sl_turns turns;

static void is_next(sl_turn_kind kind, uint32_t lane, uint32_t layer) {
    sl_turn t;
    assert_true(sl_turns_next(&turns, &t));
    assert_int_equal(t.kind, kind);
    assert_int_equal(t.lane, lane);
    assert_int_equal(t.layer, layer);
    sl_turns_done(&turns, &t);
}

static void none_is_next(void) {
    sl_turn t;
    assert_false(sl_turns_next(&turns, &t));
}

static void shape(uint32_t lanes, bool shared, uint32_t replies, sl_order order) {
    static const uint8_t mixed[] = {0, 1, 1};
    sl_err err;
    const sl_turns_shape s = {.n_lanes = lanes,
                              .n_layers = 3,
                              .moe = mixed,
                              .shared = shared,
                              .n_replies = replies,
                              .order = order};
    assert_int_equal(sl_turns_init(&turns, &s, &err), SL_OK);
}

static void one_lane_goes_through_its_blocks(void **state) {
    (void)state;
    shape(1, false, 2, SL_ORDER_ASAS);
    none_is_next();
    sl_turns_open(&turns, 0);
    is_next(SL_TURN_BEGIN, 0, 0);
    is_next(SL_TURN_BLOCK, 0, 0);
    is_next(SL_TURN_BLOCK, 0, 1); /* block 0 is dense */
    for (uint32_t layer = 1; layer < 3; layer++) {
        none_is_next();
        assert_true(sl_turns_awaits(&turns, 0) && sl_turns_in_flight(&turns, 0));
        sl_turns_reply(&turns, 0);
        none_is_next();
        sl_turns_reply(&turns, 0);
        assert_true(!sl_turns_awaits(&turns, 0) && sl_turns_in_flight(&turns, 0));
        is_next(SL_TURN_MERGE, 0, layer);
        assert_false(sl_turns_in_flight(&turns, 0));
        if (layer == 1) is_next(SL_TURN_BLOCK, 0, 2);
    }
    is_next(SL_TURN_HEAD, 0, 3);
    none_is_next();
    sl_turns_open(&turns, 0);
    is_next(SL_TURN_BEGIN, 0, 0);
    sl_turns_drop(&turns, 0);
    none_is_next();
}

static void lanes_run_as_they_become_ready(void **state) {
    (void)state;
    shape(3, false, 1, SL_ORDER_ASAS);
    sl_turns_open(&turns, 2);
    sl_turns_open(&turns, 0);
    is_next(SL_TURN_BEGIN, 2, 0);
    is_next(SL_TURN_BLOCK, 2, 0);
    is_next(SL_TURN_BLOCK, 2, 1); /* until it waits */
    is_next(SL_TURN_BEGIN, 0, 0);
    sl_turns_reply(&turns, 2);
    is_next(SL_TURN_BLOCK, 0, 0); /* was ready before */
    is_next(SL_TURN_BLOCK, 0, 1);
    is_next(SL_TURN_MERGE, 2, 1);
    sl_turns_reply(&turns, 0);
    is_next(SL_TURN_BLOCK, 2, 2);
    is_next(SL_TURN_MERGE, 0, 1);
}

static void shared_experts_run_by_the_order(void **state) {
    (void)state;
    for (int order = 0; order < SL_ORDER_COUNT; order++) {
        shape(2, true, 1, (sl_order)order);
        sl_turns_open(&turns, 0);
        sl_turns_open(&turns, 1);
        is_next(SL_TURN_BEGIN, 0, 0);
        is_next(SL_TURN_BLOCK, 0, 0);
        is_next(SL_TURN_BLOCK, 0, 1);
        if (order == SL_ORDER_ASAS) is_next(SL_TURN_SHARED, 0, 1);
        is_next(SL_TURN_BEGIN, 1, 0);
        is_next(SL_TURN_BLOCK, 1, 0);
        sl_turns_reply(&turns, 0);
        is_next(SL_TURN_BLOCK, 1, 1);
        if (order == SL_ORDER_ASAS) is_next(SL_TURN_SHARED, 1, 1);
        if (order == SL_ORDER_AASS) is_next(SL_TURN_SHARED, 0, 1); /* its merge waits for it */
        if (order == SL_ORDER_AASS) is_next(SL_TURN_MERGE, 0, 1);
        if (order == SL_ORDER_AASS) is_next(SL_TURN_BLOCK, 0, 2);
        if (order == SL_ORDER_AASS) is_next(SL_TURN_SHARED, 1, 1);
    }
}

/* The next piece of a head, not its last. */
static void is_piece(uint32_t lane) {
    sl_turn t;
    assert_true(sl_turns_next(&turns, &t));
    assert_int_equal(t.kind, SL_TURN_HEAD);
    assert_int_equal(t.lane, lane);
    sl_turns_pause(&turns, &t);
}

/* From BEGIN until the rows of block 1 are with the experts. */
static void goes_to_block_1(uint32_t lane) {
    is_next(SL_TURN_BEGIN, lane, 0);
    is_next(SL_TURN_BLOCK, lane, 0);
    is_next(SL_TURN_BLOCK, lane, 1);
}

static void goes_to_block_2(uint32_t lane) {
    sl_turns_reply(&turns, lane);
    is_next(SL_TURN_MERGE, lane, 1);
    is_next(SL_TURN_BLOCK, lane, 2);
}

static void a_head_lets_others_pass(void **state) {
    (void)state;
    shape(3, false, 1, SL_ORDER_ASAS);
    for (uint32_t l = 0; l < 3; l++) sl_turns_open(&turns, l);
    for (uint32_t l = 0; l < 3; l++) goes_to_block_1(l);
    goes_to_block_2(0);
    sl_turns_reply(&turns, 0);
    is_next(SL_TURN_MERGE, 0, 2);
    is_piece(0);
    is_piece(0);
    sl_turns_reply(&turns, 1);
    sl_turns_reply(&turns, 2);
    is_next(SL_TURN_MERGE, 1, 1); /* it became ready after the head */
    is_next(SL_TURN_BLOCK, 1, 2);
    is_piece(0); /* one lane between two pieces */
    is_next(SL_TURN_MERGE, 2, 1);
    sl_turns_reply(&turns, 1);
    is_next(SL_TURN_BLOCK, 2, 2);
    is_piece(0);
    is_next(SL_TURN_MERGE, 1, 2);
    is_piece(0); /* not another one before it is over */
    is_next(SL_TURN_HEAD, 0, 3);
    sl_turns_open(&turns, 0);
    goes_to_block_1(0);
    is_piece(1);
    sl_turns_drop(&turns, 1);
    none_is_next();
    sl_turns_reply(&turns, 2);
    is_next(SL_TURN_MERGE, 2, 2);
    is_piece(2);
}

/* The next task, which is this one, is given to a device. */
static sl_turn begins(sl_turn_kind kind, uint32_t lane, uint32_t layer) {
    sl_turn t;
    assert_true(sl_turns_next(&turns, &t));
    assert_true(t.kind == kind && t.lane == lane && t.layer == layer);
    sl_turns_begin(&turns, &t);
    return t;
}

static void others_begin_while_a_task_is_under_way(void **state) {
    (void)state;
    shape(2, true, 2, SL_ORDER_ASAS);
    sl_turns_open(&turns, 0);
    sl_turns_open(&turns, 1);
    is_next(SL_TURN_BEGIN, 0, 0);
    is_next(SL_TURN_BLOCK, 0, 0);
    sl_turn zero = begins(SL_TURN_BLOCK, 0, 1); /* with experts */
    is_next(SL_TURN_BEGIN, 1, 0);
    is_next(SL_TURN_BLOCK, 1, 0);
    sl_turn one = begins(SL_TURN_BLOCK, 1, 1);
    none_is_next();
    assert_true(sl_turns_awaits(&turns, 0)); /* some of its rows may be back before all have left */
    sl_turns_reply(&turns, 0);
    sl_turns_reply(&turns, 0);
    assert_false(sl_turns_awaits(&turns, 0));
    none_is_next();
    sl_turns_done(&turns, &one); /* in another order than they began */
    sl_turns_done(&turns, &zero);
    zero = begins(SL_TURN_SHARED, 0, 1);
    one = begins(SL_TURN_SHARED, 1, 1);
    none_is_next();
    sl_turns_reply(&turns, 1);
    sl_turns_done(&turns, &one);
    none_is_next();
    sl_turns_done(&turns, &zero);
    zero = begins(SL_TURN_MERGE, 0, 1);
    assert_true(sl_turns_in_flight(&turns, 0));
    sl_turns_reply(&turns, 1);
    one = begins(SL_TURN_MERGE, 1, 1);
    sl_turns_drop(&turns, 0); /* while it is under way */
    sl_turns_done(&turns, &zero);
    sl_turns_done(&turns, &one);
    is_next(SL_TURN_BLOCK, 1, 2);
}

static void one_head_is_under_way(void **state) {
    (void)state;
    shape(2, false, 1, SL_ORDER_ASAS);
    for (uint32_t l = 0; l < 2; l++) sl_turns_open(&turns, l);
    for (uint32_t l = 0; l < 2; l++) goes_to_block_1(l);
    for (uint32_t l = 0; l < 2; l++) goes_to_block_2(l);
    sl_turns_reply(&turns, 0);
    sl_turns_reply(&turns, 1);
    is_next(SL_TURN_MERGE, 0, 2);
    sl_turn piece = begins(SL_TURN_HEAD, 0, 3);
    is_next(SL_TURN_MERGE, 1, 2);
    none_is_next();
    sl_turns_pause(&turns, &piece);
    piece = begins(SL_TURN_HEAD, 0, 3);
    none_is_next();
    sl_turns_done(&turns, &piece);
    piece = begins(SL_TURN_HEAD, 1, 3);
    sl_turns_drop(&turns, 1);
    sl_turns_pause(&turns, &piece);
    none_is_next();
}

static void shapes_are_checked(void **state) {
    (void)state;
    sl_err err;
    sl_turns_shape s = {.n_lanes = 0, .n_layers = 1, .moe = moe, .n_replies = 1};
    assert_int_equal(sl_turns_init(&turns, &s, &err), SL_ERR_ARG);
    s.n_lanes = SL_PLAN_MAX_LANES + 1;
    assert_int_equal(sl_turns_init(&turns, &s, &err), SL_ERR_ARG);
    s.n_lanes = 1;
    s.n_replies = 0;
    assert_int_equal(sl_turns_init(&turns, &s, &err), SL_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_lane_goes_through_its_blocks),
        cmocka_unit_test(lanes_run_as_they_become_ready),
        cmocka_unit_test(shared_experts_run_by_the_order),
        cmocka_unit_test(a_head_lets_others_pass),
        cmocka_unit_test(others_begin_while_a_task_is_under_way),
        cmocka_unit_test(one_head_is_under_way),
        cmocka_unit_test(shapes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

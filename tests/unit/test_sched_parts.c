/* Parts of schedule aep: who enters with how many rows, what forms a batch, what comes back, ends,
 * goes on. */
#include "sched/parts.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t only_seed; /* argument: replay this one */

enum { LAYERS = 3, TOP_K = 2, SLOTS = 16 };
static const uint8_t moe[LAYERS] = {0, 1, 1};

typedef struct table {
    sl_plan plan;
    sl_slots slots;
    sl_cut cut;
    sl_step step;
    sl_parts parts;
} table;

static void make(table *t, sl_policy policy, uint32_t slots, uint32_t max_rows) {
    sl_err err;
    *t = (table){.plan = {.policy = policy, .lookahead = 2, .delta = 1, .prefill_stretch = 1.6},
                 .cut = {.n_chunks = 1}};
    const sl_parts_shape shape = {
        .plan = &t->plan, .n_layers = LAYERS, .moe = moe, .top_k = TOP_K, .max_rows = max_rows};
    sl_status st = sl_slots_create(1, slots, &t->slots, &err);
    if (st == SL_OK) st = sl_step_create(&t->slots, &t->cut, 0, max_rows, 1.6, &t->step, &err);
    if (st == SL_OK) st = sl_parts_create(&t->slots, &shape, &t->parts, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
}

static void unmake(table *t) {
    sl_parts_free(&t->parts);
    sl_step_free(&t->step);
    sl_slots_free(&t->slots);
}

/* A request whose prompt is in the cache but for `left` tokens, 0: it decodes; it has been woken.
 */
static uint32_t request(table *t, uint32_t given, uint32_t left) {
    sl_life *l = sl_slots_take(&t->slots, given, 1000, 400);
    assert_non_null(l);
    sl_life_advance(l, given - left);
    if (left == 0) sl_life_append(l);
    uint32_t slot = sl_slots_index(&t->slots, l);
    sl_parts_wake(&t->parts, slot);
    return slot;
}

static uint32_t enter(table *t, uint64_t now_us) {
    const uint32_t *slot;
    uint32_t n = sl_parts_enter(&t->parts, now_us, &slot);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(t->slots.life[slot[i]].in_step);
        assert_int_equal(t->parts.part[slot[i]].state, SL_PART_READY);
    }
    return n;
}

static void take(table *t, uint32_t layer, uint32_t n_batch) {
    assert_true(sl_parts_take(&t->parts));
    assert_int_equal(t->parts.layer, layer);
    assert_int_equal(t->parts.n_batch, n_batch);
}

/* Everything that the experts owe the part. */
static void come_back(table *t, uint32_t slot) {
    sl_part_state s = sl_parts_back(&t->parts, slot, t->parts.part[slot].rows * TOP_K);
    assert_int_equal(s, SL_PART_READY);
}

/* The batch at the head draws its tokens and is over. */
static void finish(table *t, uint64_t now_us) {
    sl_parts_head(&t->parts, now_us, &t->step);
    sl_step_advance(&t->step);
    for (size_t i = 0; i < t->step.n_parts; i++) {
        sl_life *l = &t->slots.life[t->step.part[i].slot];
        if (t->step.part[i].sample && sl_step_is_open(&t->step, i) && sl_life_append(l))
            sl_slots_release(&t->slots, l);
    }
    for (size_t i = 0; i < t->step.n_parts; i++)
        if (sl_step_ends(&t->step, i))
            sl_slots_release(&t->slots, &t->slots.life[t->step.part[i].slot]);
    sl_step_end(&t->step, now_us);
    sl_parts_over(&t->parts);
}

/* From block 0 to the end, alone. */
static void go_through(table *t, uint32_t slot, uint64_t now_us) {
    take(t, 0, 1);
    assert_false(sl_parts_leave(&t->parts));
    for (uint32_t l = 1; l < LAYERS; l++) {
        take(t, l, 1);
        assert_true(sl_parts_leave(&t->parts));
        come_back(t, slot);
    }
    take(t, LAYERS, 1);
    finish(t, now_us);
}

static void a_row_goes_through_the_blocks(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_DEFRAG, 4, 64);
    uint32_t a = request(&t, 5, 0);
    assert_int_equal(enter(&t, 100), 1);
    assert_int_equal(enter(&t, 100), 0);
    assert_int_equal(t.parts.n_free, 63);
    assert_int_equal(t.parts.n_ready, 1);
    take(&t, 0, 1);
    assert_int_equal(t.parts.n_ready, 0);
    assert_false(sl_parts_leave(&t.parts)); /* dense: ready for the next block at once */
    take(&t, 1, 1);
    assert_true(sl_parts_leave(&t.parts));
    assert_false(sl_parts_take(&t.parts));
    assert_int_equal(sl_parts_back(&t.parts, a, 1), SL_PART_AWAY);
    assert_int_equal(sl_parts_back(&t.parts, a, 1), SL_PART_READY);
    take(&t, 2, 1);
    assert_true(sl_parts_leave(&t.parts));
    come_back(&t, a);
    take(&t, LAYERS, 1);
    finish(&t, 1100);
    assert_true(t.parts.pacer.decode_us == 1000); /* from block 0 to the head */
    assert_int_equal(t.parts.n_free, 64);
    assert_int_equal(t.slots.life[a].done, 6);
    assert_int_equal(enter(&t, 1100), 1); /* and the next one follows */
    unmake(&t);
}

static void who_is_ready_for_a_block_runs_together(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_FLFS, SLOTS, 64);
    uint32_t a = request(&t, 5, 0), b = request(&t, 30, 20), c = request(&t, 7, 0);
    assert_int_equal(enter(&t, 0), 3);
    take(&t, 0, 3);
    assert_int_equal(t.parts.n_rows, 22);
    assert_int_equal(t.parts.batch[0], a); /* decoding ones first */
    assert_int_equal(t.parts.batch[1], c);
    assert_int_equal(t.parts.batch[2], b);
    sl_parts_leave(&t.parts);
    take(&t, 1, 3);
    sl_parts_leave(&t.parts);
    come_back(&t, c); /* in any order */
    come_back(&t, b);
    take(&t, 2, 2);
    assert_int_equal(t.parts.batch[0], c);
    sl_parts_leave(&t.parts);
    come_back(&t, a);
    take(&t, 2, 1);
    unmake(&t);
}

static void rows_in_flight_are_bounded(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_RMF, SLOTS, 10);
    for (int i = 0; i < 14; i++) request(&t, 5, 0);
    uint32_t prompt = request(&t, 40, 40);
    assert_int_equal(enter(&t, 0), 6); /* half is left to the prompt that waits */
    assert_int_equal(t.parts.part[prompt].rows, 5);
    assert_int_equal(t.parts.n_free, 0);
    unmake(&t);
}

/* First rows of prompts are not paced; of the rest there is a chunk at a time, none while a row of
 * a decoding request alone is to be measured, and that ends when none decodes any more. */
static void prompts_are_paced_after_their_first_rows(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_DEFRAG, 4, 4096);
    uint32_t a = request(&t, 5, 0), prompt = request(&t, 3000, 3000 - SL_PREFILL_BURST);
    enter(&t, 0);
    assert_true(t.parts.in.hold_rest);
    assert_int_equal(t.parts.part[prompt].state, SL_PART_NONE);
    go_through(&t, a, 1000);
    assert_false(t.parts.in.hold_rest);
    assert_int_equal(enter(&t, 1000), 2);
    assert_int_equal(t.parts.part[a].prompts_beside, 0);
    assert_true(t.parts.part[prompt].rows > 0 && t.parts.part[prompt].rows < 100);
    unmake(&t);

    make(&t, SL_POLICY_DEFRAG, 4, 4096);
    a = request(&t, 5, 0);
    prompt = request(&t, 3000, 3000 - SL_PREFILL_BURST);
    enter(&t, 0);
    take(&t, 0, 1);
    sl_parts_leave(&t.parts);
    sl_life_end(&t.slots.life[a]); /* the one that was to be measured is cancelled... */
    assert_true(sl_parts_take(&t.parts));
    assert_int_equal(t.parts.n_batch, 0);
    assert_int_equal(t.parts.n_ended, 1);
    sl_slots_release(&t.slots, &t.slots.life[a]);
    assert_int_equal(enter(&t, 0), 1); /* ...nobody else is held up by the rest... */
    assert_true(t.parts.in.hold_rest);
    go_through(&t, prompt, 0);
    assert_false(t.parts.in.hold_rest); /* ...and none is to be measured any more */
    unmake(&t);
}

static void who_ends_goes_no_further(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_FLFS, 4, 64);
    uint32_t a = request(&t, 5, 0), b = request(&t, 5, 0), c = request(&t, 5, 0);
    enter(&t, 0);
    assert_false(sl_life_end(&t.slots.life[a])); /* in a queue */
    take(&t, 0, 2);
    assert_int_equal(t.parts.n_ended, 1);
    assert_int_equal(t.parts.ended[0], a);
    assert_false(sl_parts_comes_back(&t.parts, t.parts.part[a].layer));
    assert_false(t.slots.life[a].in_step);
    assert_int_equal(t.parts.n_free, 62);
    sl_parts_leave(&t.parts);
    take(&t, 1, 2);
    assert_int_equal(t.parts.n_ended, 0);
    sl_parts_leave(&t.parts);
    sl_life_end(&t.slots.life[b]); /* away */
    assert_int_equal(sl_parts_back(&t.parts, b, 1), SL_PART_AWAY);
    assert_int_equal(sl_parts_back(&t.parts, b, 1), SL_PART_NONE);
    assert_true(sl_parts_comes_back(&t.parts, t.parts.part[b].layer));
    come_back(&t, c);
    sl_life_end(&t.slots.life[c]); /* back and not merged */
    take(&t, 2, 0);
    assert_int_equal(t.parts.ended[0], c);
    assert_int_equal(t.parts.n_free, 64);
    assert_false(sl_parts_take(&t.parts));
    unmake(&t);
}

/* Who waits is looked at again when its turn comes: its request may have ended, and another begun.
 */
static void a_slot_may_change_hands_while_it_waits(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_DEFRAG, 1, 64);
    uint32_t a = request(&t, 5, 0);
    sl_slots_release(&t.slots, &t.slots.life[a]);
    assert_int_equal(enter(&t, 0), 0);
    a = request(&t, 5, 0);
    sl_slots_release(&t.slots, &t.slots.life[a]);
    a = request(&t, 9, 9); /* it waits in the list of those that decode */
    assert_int_equal(enter(&t, 0), 1);
    assert_int_equal(t.parts.part[a].kind, SL_PART_PROMPT);
    assert_int_equal(t.parts.part[a].rows, 9);
    unmake(&t);
}

static void waves_go_on_and_newcomers_come_last(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_RMF, 4, 64);
    uint32_t a = request(&t, 5, 0);
    enter(&t, 0);
    assert_int_equal(t.parts.part[a].wave, 1);
    go_through(&t, a, 10);
    assert_int_equal(t.parts.newest, 1);
    sl_parts_meet(&t.parts, 9); /* others are far ahead */
    sl_parts_meet(&t.parts, 4);
    enter(&t, 10);
    assert_int_equal(t.parts.part[a].wave, 2);
    take(&t, 0, 1);
    assert_int_equal(t.parts.wave, 8); /* a wave behind at most */
    assert_int_equal(t.parts.part[a].wave, 8);
    sl_parts_leave(&t.parts);
    uint32_t b = request(&t, 5, 0);
    enter(&t, 20);
    assert_int_equal(t.parts.part[b].wave, 9);
    take(&t, 1, 1); /* rearmost first */
    unmake(&t);
}

static void given_up_all_is_free(void **state) {
    (void)state;
    static table t;
    make(&t, SL_POLICY_DEFRAG, 4, 20);
    uint32_t a = request(&t, 5, 0);
    request(&t, 9, 9);
    enter(&t, 0);
    take(&t, 0, 2);
    sl_parts_leave(&t.parts);
    request(&t, 5, 0);
    enter(&t, 0);
    request(&t, 50, 50); /* waits or runs */
    sl_parts_reset(&t.parts);
    assert_int_equal(t.parts.n_free, 20);
    assert_int_equal(t.parts.n_ready, 0);
    assert_false(sl_parts_take(&t.parts));
    assert_int_equal(enter(&t, 0), 0);
    assert_false(t.slots.life[a].in_step);
    sl_parts_wake(&t.parts, a);
    assert_int_equal(enter(&t, 0), 1);
    unmake(&t);
}

static void without_memory(void **state) {
    (void)state;
    sl_err err;
    static table t;
    make(&t, SL_POLICY_DEFRAG, 2, 64);
    sl_parts p;
    sl_mem_fail_at(1);
    assert_int_equal(sl_parts_create(&t.slots, &t.parts.shape, &p, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_parts_free(&p);
    unmake(&t);
}

/* ---- drawn sequences ---- */

static void audit(const table *t, uint64_t seed) {
    uint32_t rows[SL_PART_KINDS] = {0}, all = 0, ready = 0;
    for (uint32_t i = 0; i < t->slots.per_lane; i++) {
        const sl_part *p = &t->parts.part[i];
        if (p->state == SL_PART_NONE) continue;
        rows[p->kind] += p->rows;
        all += p->rows;
        ready += p->state == SL_PART_READY ? p->rows : 0;
        if (!t->slots.life[i].in_step || p->generation != t->slots.life[i].generation)
            fail_msg("seed %llu: slot %u has a part of nobody", (unsigned long long)seed, i);
    }
    bool ok = all + t->parts.n_free == t->parts.shape.max_rows && ready == t->parts.n_ready;
    for (int k = 0; k < SL_PART_KINDS; k++) ok = ok && rows[k] == t->parts.in.rows[k];
    if (!ok) fail_msg("seed %llu: rows do not add up", (unsigned long long)seed);
}

static void comes(table *t, uint64_t *rng, uint32_t *came) {
    sl_life *l = sl_slots_take(&t->slots, 1 + (uint32_t)sl_rng_below(rng, 700),
                               1 + (uint32_t)sl_rng_below(rng, 20), 400);
    if (!l) return;
    ++*came;
    sl_parts_wake(&t->parts, sl_slots_index(&t->slots, l));
}

/* Some of what the experts owe comes back. */
static void some_return(table *t, uint64_t *rng) {
    for (uint32_t i = 0; i < t->slots.per_lane; i++) {
        const sl_part *p = &t->parts.part[i];
        if (p->state != SL_PART_AWAY || sl_rng_below(rng, 3) == 0) continue;
        uint32_t pairs = 1 + (uint32_t)sl_rng_below(rng, p->missing);
        if (sl_parts_back(&t->parts, i, pairs) == SL_PART_NONE)
            sl_slots_release(&t->slots, &t->slots.life[i]);
    }
    sl_parts_meet(&t->parts, t->parts.newest + sl_rng_below(rng, 3));
}

static void run_batch(table *t, uint64_t now_us) {
    if (!sl_parts_take(&t->parts)) return;
    for (uint32_t i = 0; i < t->parts.n_ended; i++)
        sl_slots_release(&t->slots, &t->slots.life[t->parts.ended[i]]);
    if (t->parts.layer == LAYERS)
        finish(t, now_us);
    else
        sl_parts_leave(&t->parts);
}

/* Requests come, go through the blocks in any order and are cancelled anywhere: all rows are
 * accounted for, and whoever is not cancelled ends with all its tokens. */
static void drawn_loads(void **state) {
    (void)state;
    uint32_t came = 0;
    for (uint64_t seed = only_seed ? only_seed : 1; seed <= (only_seed ? only_seed : 60); seed++) {
        static table t;
        uint64_t rng = seed, now_us = 0;
        sl_policy policy = (sl_policy)sl_rng_below(&rng, SL_POLICY_COUNT);
        if (policy == SL_POLICY_FLFS) policy = SL_POLICY_RMF; /* starves by design */
        make(&t, policy, 1 + (uint32_t)sl_rng_below(&rng, SLOTS),
             1 + (uint32_t)sl_rng_below(&rng, 300));
        for (int i = 0; i < 1500 || t.slots.n_used[0] > 0; i++) {
            if (i > 400000) fail_msg("seed %llu: somebody starves", (unsigned long long)seed);
            if (i < 1500 && sl_rng_below(&rng, 8) == 0) comes(&t, &rng, &came);
            const uint32_t *slot;
            now_us += sl_rng_below(&rng, 300);
            sl_parts_enter(&t.parts, now_us, &slot);
            audit(&t, seed);
            uint32_t one = (uint32_t)sl_rng_below(&rng, t.slots.per_lane);
            sl_life *l = &t.slots.life[one];
            if (l->used && sl_rng_below(&rng, 200) == 0 && sl_life_end(l))
                sl_slots_release(&t.slots, l);
            run_batch(&t, now_us);
            audit(&t, seed);
            some_return(&t, &rng);
            if (l->used) sl_life_ack(l, sl_life_generated(l));
            if (l->used) sl_parts_wake(&t.parts, one);
        }
        assert_int_equal(t.parts.n_free, t.parts.shape.max_rows);
        unmake(&t);
    }
    assert_true(only_seed || came > 600);
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_goes_through_the_blocks),
        cmocka_unit_test(who_is_ready_for_a_block_runs_together),
        cmocka_unit_test(rows_in_flight_are_bounded),
        cmocka_unit_test(prompts_are_paced_after_their_first_rows),
        cmocka_unit_test(who_ends_goes_no_further),
        cmocka_unit_test(a_slot_may_change_hands_while_it_waits),
        cmocka_unit_test(waves_go_on_and_newcomers_come_last),
        cmocka_unit_test(given_up_all_is_free),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(drawn_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

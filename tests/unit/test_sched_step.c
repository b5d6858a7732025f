/* Steps of a lane over its slots: who gets rows, how prompts are paced, what the end of a step does
 * to lives and pacer; and chunks. */
#include "sched/step.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sched/intake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t only_seed; /* argument: replay this one */

typedef struct table {
    sl_slots slots;
    sl_cut cut;
    sl_step step;
} table;

static void make(table *t, uint32_t slots, uint32_t max_rows) {
    sl_err err;
    *t = (table){.cut = {.n_chunks = 3}};
    if (sl_slots_create(1, slots, &t->slots, &err) != SL_OK) fail_msg("%s", err.msg);
    if (sl_step_create(&t->slots, &t->cut, 0, max_rows, 1.6, &t->step, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static void unmake(table *t) {
    sl_step_free(&t->step);
    sl_slots_free(&t->slots);
    sl_cut_free(&t->cut);
}

/* A request whose prompt is in the cache but for `left` tokens; 0: it decodes. */
static sl_life *request(table *t, uint32_t given, uint32_t left) {
    sl_life *l = sl_slots_take(&t->slots, given, 1000, 100);
    assert_non_null(l);
    sl_life_advance(l, given - left);
    if (left == 0) sl_life_append(l);
    return l;
}

static uint32_t rows_of(const table *t, const sl_life *l) {
    for (size_t i = 0; i < t->step.n_parts; i++)
        if (t->step.part[i].slot == sl_slots_index(&t->slots, l)) return t->step.part[i].rows;
    return 0;
}

/* Runs the step as a driver does: every sampling part draws a token. */
static void run(table *t, uint64_t now_us) {
    sl_step_advance(&t->step);
    for (size_t i = 0; i < t->step.n_parts; i++) {
        sl_life *l = &t->slots.life[t->step.part[i].slot];
        if (!t->step.part[i].sample || !sl_step_is_open(&t->step, i)) continue;
        if (sl_life_append(l)) sl_slots_release(&t->slots, l);
    }
    for (size_t i = 0; i < t->step.n_parts; i++)
        if (sl_step_ends(&t->step, i))
            sl_slots_release(&t->slots, &t->slots.life[t->step.part[i].slot]);
    sl_step_end(&t->step, now_us);
}

static void a_step_is_one_row_each_and_a_prompt(void **state) {
    (void)state;
    static table t;
    make(&t, 8, 64);
    sl_life *a = request(&t, 9, 0), *b = request(&t, 40, 40), *c = request(&t, 3, 0);
    sl_step_form(&t.step, 0);
    assert_int_equal(t.step.n_parts, 3);
    assert_int_equal(t.step.rows, 42);
    assert_int_equal(t.step.decode_rows, 2);
    assert_int_equal(t.step.samples, 3);
    assert_true(a->in_step && b->in_step && c->in_step && b->samples);
    assert_int_equal(t.step.n_cut, 3);
    run(&t, 100);
    assert_int_equal(t.step.rows, 0);
    assert_int_equal(b->done, 40);
    assert_int_equal(b->tokens, 41);
    assert_false(a->in_step || b->in_step || c->in_step);
    unmake(&t);
}

static void nothing_to_run_is_an_empty_step(void **state) {
    (void)state;
    static table t;
    make(&t, 4, 64);
    sl_life *parked = request(&t, 9, 0);
    parked->pages = 0;
    request(&t, 9, 9)->ends = true;
    sl_step_form(&t.step, 0);
    assert_int_equal(t.step.n_parts, 0);
    assert_false(parked->in_step);
    run(&t, 10);
    unmake(&t);
}

/* Steps belong in turn to the prompt nearest its end and to the oldest. */
static void short_prompts_do_not_queue_behind_a_long_one(void **state) {
    (void)state;
    static table t;
    make(&t, 4, 32);
    sl_life *old = request(&t, 1000, 1000), *new = request(&t, 100, 100);
    sl_step_form(&t.step, 0);
    assert_int_equal(rows_of(&t, new), 32);
    run(&t, 0);
    sl_step_form(&t.step, 0);
    assert_int_equal(rows_of(&t, old), 32);
    run(&t, 0);
    sl_step_form(&t.step, 0);
    assert_int_equal(rows_of(&t, new), 32);
    unmake(&t);
}

/* A prompt's first rows ride at full speed beside decoding requests and teach the pacer nothing;
 * what follows is as much as the pacer says, or nothing while it probes. */
static void prompts_are_paced_after_their_first_rows(void **state) {
    (void)state;
    static table t;
    make(&t, 4, 4096);
    request(&t, 5, 0);
    sl_life *prompt = request(&t, 3000, 3000);
    sl_step_form(&t.step, 0);
    assert_true(t.step.burst);
    assert_int_equal(rows_of(&t, prompt), SL_PREFILL_BURST);
    run(&t, 50000);
    assert_true(t.step.pacer.decode_us <= 0 && t.step.pacer.row_us <= 0);
    sl_step_form(&t.step, 50000); /* a step of decoding requests alone is measured first */
    assert_false(t.step.burst);
    assert_int_equal(t.step.rows, 1);
    run(&t, 51000);
    assert_true(t.step.pacer.decode_us == 1000);
    sl_step_form(&t.step, 51000);
    assert_true(rows_of(&t, prompt) > 0 && rows_of(&t, prompt) < SL_PREFILL_BURST);
    run(&t, 53000);
    assert_true(t.step.pacer.row_us > 0);
    unmake(&t);
}

static void nobody_decodes_nothing_is_held_back(void **state) {
    (void)state;
    static table t;
    make(&t, 4, 4096);
    sl_life *prompt = request(&t, 3000, 3000);
    sl_step_form(&t.step, 0);
    assert_int_equal(rows_of(&t, prompt), 3000);
    assert_false(t.step.burst);
    unmake(&t);
}

static void a_request_ends_with_the_step_that_has_its_rows(void **state) {
    (void)state;
    static table t;
    make(&t, 2, 64);
    sl_life *a = request(&t, 9, 0), *b = request(&t, 9, 0);
    sl_step_form(&t.step, 0);
    assert_false(sl_life_end(a));
    assert_true(sl_step_ends(&t.step, 0) != sl_step_ends(&t.step, 1));
    size_t mine = sl_step_ends(&t.step, 0) ? 0 : 1;
    assert_false(sl_step_is_open(&t.step, mine));
    assert_true(sl_step_is_open(&t.step, 1 - mine));
    /* the other one's last token: a newcomer gets its slot before the step is over */
    sl_step_advance(&t.step);
    sl_slots_release(&t.slots, b);
    sl_life *newcomer = sl_slots_take(&t.slots, 7, 5, 1);
    assert_ptr_equal(newcomer, b);
    assert_false(sl_step_is_open(&t.step, 1 - mine) || sl_step_ends(&t.step, 1 - mine));
    assert_true(sl_life_end(newcomer)); /* not of this step */
    newcomer->ends = false;
    sl_slots_release(&t.slots, a);
    sl_step_end(&t.step, 10);
    assert_true(newcomer->used && !newcomer->in_step && newcomer->done == 0);
    unmake(&t);
}

static void a_dropped_step_leaves_everybody_where_they_were(void **state) {
    (void)state;
    static table t;
    make(&t, 2, 64);
    sl_life *a = request(&t, 9, 9), *b = request(&t, 9, 0);
    sl_step_form(&t.step, 0);
    sl_step_drop(&t.step);
    assert_false(a->in_step || b->in_step);
    assert_int_equal(a->done, 0);
    assert_int_equal(b->done, 9);
    assert_int_equal(t.step.n_parts, 0);
    sl_step_form(&t.step, 0);
    assert_int_equal(t.step.rows, 10);
    unmake(&t);
}

static void without_memory(void **state) {
    (void)state;
    sl_err err;
    static table t;
    make(&t, 2, 64);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_step s;
        sl_mem_fail_at(nth);
        assert_int_equal(sl_step_create(&t.slots, &t.cut, 0, 64, 1.6, &s, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
        sl_step_free(&s);
    }
    unmake(&t);
}

/* ---- chunks ---- */

static void rows_are_cut_evenly(void **state) {
    (void)state;
    for (uint32_t rows = 0; rows < 40; rows++) {
        for (uint32_t n = 1; n <= 5; n++) {
            uint32_t at = 0, most = 0, least = UINT32_MAX;
            for (uint32_t c = 0; c < 7; c++) {
                uint32_t first, end;
                sl_cut_rows(rows, n, c, &first, &end);
                assert_int_equal(first, at);
                at = end;
                if (c < n) most = SL_MAX(most, end - first);
                if (c < n) least = SL_MIN(least, end - first);
                if (c >= n) assert_int_equal(first, end);
            }
            assert_int_equal(at, rows);
            assert_true(most - least <= 1);
        }
    }
}

static void experts_are_cut_by_their_worker(void **state) {
    (void)state;
    sl_cut c;
    sl_err err;
    uint32_t first[7] = {0, 1, 2, 3, 4, 5, 6};
    sl_host host[6] = {{3, UINT32_MAX}, {9, UINT32_MAX}, {3, UINT32_MAX},
                       {3, UINT32_MAX}, {9, UINT32_MAX}, {3, UINT32_MAX}};
    sl_plan p = {.lanes = 1,
                 .chunks = 2,
                 .chunking = SL_CHUNK_EXPERTS,
                 .n_experts = 6,
                 .place = {.n_layers = 1, .first = first, .host = host}};
    static const uint32_t want[6] = {0, 0, 0, 1, 1, 1};
    assert_int_equal(sl_cut_create(&p, NULL, 0, &c, &err), SL_OK);
    for (uint32_t e = 0; e < 6; e++) assert_int_equal(c.group[e], want[e]);
    assert_int_equal(sl_cut_choose(&c, 100, 50), 2);
    sl_cut_free(&c);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_cut_create(&p, NULL, 0, &c, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
        sl_cut_free(&c);
    }
}

/* With costs, few rows go into one chunk, many into all of them, and the step says which. */
static void a_step_is_cut_as_is_fastest(void **state) {
    (void)state;
    static table t;
    sl_err err;
    const sl_model_spec m = {.n_experts = 8, .top_k = 2, .d_model = 64};
    sl_plan_worker worker[2] = {{.id = 0, .roles = SL_ROLE_ATTENTION},
                                {.id = 1, .roles = SL_ROLE_EXPERT}};
    sl_plan p = {.schedule = SL_SCHED_FINDEP,
                 .lanes = 1,
                 .chunks = 4,
                 .n_workers = 2,
                 .worker = worker,
                 .n_experts = 8,
                 .max_num_seqs = 4,
                 .max_num_batched_tokens = 4096,
                 .context = 4096,
                 .has_costs = true,
                 .costs = {.stage = {[SL_COST_ATTENTION] = {.fixed_us = 20, .row_us = 4},
                                     [SL_COST_EXPERT] = {.fixed_us = 20, .row_us = 4}},
                           .link = {.alpha_us = 10, .byte_us = 1e-3}}};
    make(&t, 4, 4096);
    sl_cut_free(&t.cut);
    assert_int_equal(sl_cut_create(&p, &m, 256, &t.cut, &err), SL_OK);
    sl_life *l = request(&t, 3000, 3000);
    sl_step_form(&t.step, 0);
    assert_true(t.step.n_cut > 1 && t.step.n_cut <= 4);
    run(&t, 0);
    sl_step_form(&t.step, 0);
    assert_int_equal(rows_of(&t, l), 1);
    assert_int_equal(t.step.n_cut, 1);
    const sl_choice x = {.lanes = 1, .chunks = 4};
    assert_int_equal(sl_cut_choose(&t.cut, 77, 500),
                     sl_choose_chunks(&p.costs, &t.cut.load, &x, 77, 500));
    assert_int_equal(sl_cut_choose(&t.cut, 0, 0), 4);
    /* Groups of experts: a divisor of what the plan has, and only where no bit depends on it. */
    uint32_t first[9];
    sl_host host[8];
    for (uint32_t e = 0; e < 8; e++) host[e] = (sl_host){1, UINT32_MAX};
    for (uint32_t e = 0; e < 9; e++) first[e] = e;
    p.place = (sl_placement){1, first, host};
    p.chunking = SL_CHUNK_EXPERTS;
    for (int exact = 0; exact < 2; exact++) {
        p.exact = exact;
        sl_cut_free(&t.cut);
        assert_int_equal(sl_cut_create(&p, &m, 256, &t.cut, &err), SL_OK);
        const uint32_t few = sl_cut_choose(&t.cut, 1, 1);
        assert_true(exact ? few < 4 && 4 % few == 0 : few == 4);
        assert_int_equal(sl_cut_choose(&t.cut, 3000, 1), 4);
        for (uint32_t e = 0; e < 8; e++) {
            assert_int_equal(sl_cut_group(&t.cut, 4, e), e / 2);
            assert_int_equal(sl_cut_group(&t.cut, 2, e), e / 4);
            assert_int_equal(sl_cut_group(&t.cut, 1, e), 0);
        }
    }
    p.chunking = SL_CHUNK_TOKENS;
    p.schedule = SL_SCHED_PINGPONG; /* nobody else's steps are cut by costs */
    sl_cut_free(&t.cut);
    assert_int_equal(sl_cut_create(&p, &m, 256, &t.cut, &err), SL_OK);
    assert_int_equal(sl_cut_choose(&t.cut, 1, 1), 1); /* but by their rows */
    assert_int_equal(sl_cut_choose(&t.cut, 9, 1), 4);
    unmake(&t);
}

/* ---- drawn sequences ---- */

/* Requests come, run and are cancelled over many steps: no step is too large, has a request twice
 * or rows that it may not have; every request that is not cancelled ends with all its tokens. */
static void drawn_loads(void **state) {
    (void)state;
    for (uint64_t seed = only_seed ? only_seed : 1; seed <= (only_seed ? only_seed : 60); seed++) {
        static table t;
        uint64_t rng = seed, now_us = 0, came = 0, left = 0;
        uint32_t slots = 1 + (uint32_t)sl_rng_below(&rng, 9);
        uint32_t max_rows = 1 + (uint32_t)sl_rng_below(&rng, 600);
        make(&t, slots, max_rows);
        for (int i = 0; i < 400 || left < came; i++) {
            if (i > 40000) fail_msg("seed %llu: somebody starves", (unsigned long long)seed);
            if (i < 400 && sl_rng_below(&rng, 3) == 0) {
                sl_life *l = sl_slots_take(&t.slots, 1 + (uint32_t)sl_rng_below(&rng, 900),
                                           1 + (uint32_t)sl_rng_below(&rng, 70), 0);
                if (l) l->pages = sl_life_max_pages(l);
                came += l != NULL;
            }
            sl_step_form(&t.step, now_us);
            uint32_t rows = 0, had[9] = {0};
            for (size_t j = 0; j < t.step.n_parts; j++) {
                const sl_step_part *p = &t.step.part[j];
                const sl_life *l = &t.slots.life[p->slot];
                assert_int_equal(had[p->slot]++, 0);
                assert_true(p->rows > 0 && p->rows <= sl_life_room(l));
                assert_true(l->done + p->rows <= l->tokens);
                assert_int_equal(p->sample, l->done + p->rows >= l->given);
                rows += p->rows;
            }
            assert_int_equal(rows, t.step.rows);
            assert_true(rows <= max_rows);
            sl_life *one = &t.slots.life[sl_rng_below(&rng, slots)];
            if (one->used && sl_rng_below(&rng, 40) == 0 && sl_life_end(one))
                sl_slots_release(&t.slots, one);
            now_us += 1000 + rows * 20 + sl_rng_below(&rng, 300);
            run(&t, now_us);
            left = came - t.slots.n_used[0];
            for (uint32_t j = 0; j < slots; j++)
                if (sl_rng_below(&rng, 2))
                    sl_life_ack(&t.slots.life[j], sl_life_generated(&t.slots.life[j]));
        }
        unmake(&t);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_row_each_and_a_prompt),
        cmocka_unit_test(nothing_to_run_is_an_empty_step),
        cmocka_unit_test(short_prompts_do_not_queue_behind_a_long_one),
        cmocka_unit_test(prompts_are_paced_after_their_first_rows),
        cmocka_unit_test(nobody_decodes_nothing_is_held_back),
        cmocka_unit_test(a_request_ends_with_the_step_that_has_its_rows),
        cmocka_unit_test(a_dropped_step_leaves_everybody_where_they_were),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(rows_are_cut_evenly),
        cmocka_unit_test(experts_are_cut_by_their_worker),
        cmocka_unit_test(a_step_is_cut_as_is_fastest),
        cmocka_unit_test(drawn_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

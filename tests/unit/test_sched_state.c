/* State of requests that has no position (stateful.h), in the care of sl_slots: whatever is cut,
 * given up, preempted, forked or taken back, rows find what the rows before them left. */
#include "sched/slots.h"
#include "stateful.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define TOKENS 40u

static const char folder[] = SL_SOURCE_DIR "/bench/lab/models/shared-top2";

static void no_wait(void *ctx, uint64_t deadline_ns) {
    (void)ctx, (void)deadline_ns;
}

typedef struct scene {
    sl_device *device;
    sl_slots slots;
    sl_mem x;
    float want[TOKENS]; /* of the first column, when all rows pass in one step */
} scene;

/* The next `rows` tokens of l pass; got: the first column of each, [rows]. They are not committed.
 */
static void pass(scene *s, const sl_life *l, uint32_t rows, float *got) {
    uint32_t pos[TOKENS], state[TOKENS], done[TOKENS], page = 0, width = s->device->spec->d_model;
    const uint32_t *pages[TOKENS];
    float *x = (float *)(uintptr_t)s->x.at;
    for (uint32_t i = 0; i < rows; i++) {
        pos[i] = l->done + i;
        state[i] = sl_slots_state(&s->slots, l);
        done[i] = l->done;
        pages[i] = &page;
        for (uint32_t j = 0; j < width; j++) x[i * width + j] = (float)(pos[i] * pos[i] % 23) + 1;
    }
    const sl_stage_call c = {
        .op = SL_OP_ATTEND,
        .rows = {.n = rows, .pos = pos, .pages = pages, .state = state, .done = done, .x = s->x}};
    sl_device_submit(s->device, &c);
    sl_device_drain(s->device);
    for (uint32_t i = 0; i < rows; i++) got[i] = x[i * width];
}

/* Tokens up to `end`, in steps of `step`, as if nothing had happened before. */
static void go_on(scene *s, sl_life *l, uint32_t end, uint32_t step) {
    float got[TOKENS];
    while (l->done < end) {
        uint32_t rows = SL_MIN(step, end - l->done);
        pass(s, l, rows, got);
        assert_memory_equal(got, &s->want[l->done], rows * sizeof *got);
        sl_life_advance(l, rows);
    }
}

static scene make(void) {
    const sl_device_spec spec = {.kind = SL_DEVICE_EMULATED, .time_scale = 1};
    const sl_device_opts o = {.folder = folder,
                              .hosts = {.attention = true},
                              .device = &spec,
                              .threads = 1,
                              .max_rows = TOKENS,
                              .kv_pages = 1,
                              .wait = no_wait};
    scene s = {0};
    sl_err err;
    if (stateful_open(&o, &s.device, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_slots_create(2, 2, &s.slots, &err), SL_OK);
    assert_int_equal(sl_device_take_rows(s.device, TOKENS, &s.x, &err), SL_OK);
    sl_life *l = sl_slots_take(&s.slots, TOKENS, 1, 2);
    pass(&s, l, TOKENS, s.want);
    for (uint32_t i = 2; i < TOKENS; i++) assert_true(s.want[i] != s.want[i - 1]);
    sl_slots_release(&s.slots, l);
    return s;
}

static void drop(scene *s) {
    sl_device_give(s->device, s->x);
    sl_slots_free(&s->slots);
    sl_device_close(s->device);
}

static void steps_of_any_size(void **state) {
    (void)state;
    scene s = make();
    static const uint32_t step[] = {1, 3, 7, TOKENS};
    for (size_t i = 0; i < SL_LEN(step); i++) {
        sl_life *l = sl_slots_take(&s.slots, TOKENS, 1, 2);
        go_on(&s, l, TOKENS, step[i]); /* a released slot's state is nobody's: preemption, reset */
        sl_slots_release(&s.slots, l);
    }
    drop(&s);
}

static void a_step_that_is_given_up_leaves_nothing(void **state) {
    (void)state;
    scene s = make();
    float got[TOKENS];
    sl_life *l = sl_slots_take(&s.slots, TOKENS, 1, 2);
    for (uint32_t end = 5; end <= TOKENS; end += 5) {
        pass(&s, l, 4, got);
        pass(&s, l, 2, got);
        go_on(&s, l, end, 3);
    }
    drop(&s);
}

static void a_fork_goes_on_where_the_other_is(void **state) {
    (void)state;
    scene s = make();
    uint32_t layers = s.device->spec->n_layers;
    sl_life *a = sl_slots_take(&s.slots, TOKENS, 1, 2), *b = sl_slots_take(&s.slots, TOKENS, 1, 2);
    go_on(&s, a, 17, 5);
    sl_life_fork(b, a);
    assert_int_equal(b->done, 17);
    stateful *d = (stateful *)s.device;
    stateful_reserve(d, sl_slots_state(&s.slots, b) | 1);
    memcpy(stateful_at(d, 0, sl_slots_state(&s.slots, b)),
           stateful_at(d, 0, sl_slots_state(&s.slots, a)), layers * sizeof(float));
    go_on(&s, a, 30, 2);
    go_on(&s, b, TOKENS, 9);
    go_on(&s, a, TOKENS, 9);
    drop(&s);
}

static void tokens_are_taken_back(void **state) {
    (void)state;
    scene s = make();
    /* steps of 10: committed are 20 and, before them, 10 */
    static const struct {
        uint32_t to, done;
    } rows[] = {{25, 20}, {20, 20}, {19, 10}, {10, 10}, {9, 0}, {0, 0}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        sl_life *l = sl_slots_take(&s.slots, TOKENS, 1, 2);
        go_on(&s, l, 20, 10);
        assert_int_equal(sl_life_truncate(l, rows[i].to, true), rows[i].done);
        go_on(&s, l, 23, 3);
        go_on(&s, l, 26, 3);
        assert_int_equal(sl_life_truncate(l, 24, true), 23); /* and again */
        assert_int_equal(sl_life_truncate(l, 22, true), 0);  /* one version was left */
        go_on(&s, l, TOKENS, 8);
        sl_slots_release(&s.slots, l);
    }
    sl_life *l = sl_slots_take(&s.slots, 10, 30, 2); /* a cache has every position */
    l->tokens = 25;
    sl_life_advance(l, 24);
    assert_int_equal(sl_life_truncate(l, 13, false), 13);
    assert_int_equal(l->tokens, 13);
    assert_int_equal(sl_life_truncate(l, 4, false), 4);
    assert_int_equal(l->tokens, 10); /* what came with it stays */
    drop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_any_size),
        cmocka_unit_test(a_step_that_is_given_up_leaves_nothing),
        cmocka_unit_test(a_fork_goes_on_where_the_other_is),
        cmocka_unit_test(tokens_are_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

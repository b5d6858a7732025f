/* State of requests that has no position (stateful.h), in the care of sl_slots: whatever is cut,
 * given up or preempted, rows find what the rows before them left. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_any_size),
        cmocka_unit_test(a_step_that_is_given_up_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

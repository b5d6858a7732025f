/* Slots of windows in memory of devices (net/row_slots.h): taken, announced, read and free again in
 * any order; what a late or strange peer may say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "net/row_slots.h"

#define SLOT 4096u

static void says(sl_status st, const sl_err *err, const char *what) {
    assert_int_equal(st, SL_ERR_PROTOCOL);
    if (!strstr(err->msg, what)) fail_msg("'%s' in: %s", what, err->msg);
}

static void what_fits_takes_a_free_one(void **state) {
    sl_row_slots_out o = {.slots = 2, .slot_bytes = SLOT}, none = {0};
    uint32_t a, b, c;
    (void)state;
    assert_false(sl_row_slots_take(&none, 1, &a));
    assert_false(sl_row_slots_take(&o, SLOT + 1, &a));
    assert_false(sl_row_slots_take(&o, 0, &a));
    assert_true(sl_row_slots_take(&o, SLOT, &a) && sl_row_slots_take(&o, 1, &b) && a != b);
    assert_false(sl_row_slots_take(&o, 1, &c));
    sl_row_slots_untake(&o, a);
    assert_true(sl_row_slots_take(&o, 1, &c) && c == a);
}

static void a_credit_is_of_what_was_announced(void **state) {
    sl_row_slots_out o = {.slots = 3, .slot_bytes = SLOT};
    uint32_t slot;
    sl_err err = {0};
    (void)state;
    assert_true(sl_row_slots_take(&o, 1, &slot) && slot == 0);
    says(sl_row_slots_credit(&o, 1, &err), &err, "read slots 1, it was told of 0");
    assert_int_equal(sl_row_slots_announce(&o, 0), 1);
    says(sl_row_slots_credit(&o, 3, &err), &err, "read slots 3");
    assert_int_equal(sl_row_slots_credit(&o, 1, &err), SL_OK);
    says(sl_row_slots_credit(&o, 1, &err), &err, "read slots 1");
    assert_true(sl_row_slots_take(&o, 1, &slot) && slot == 0);
    assert_int_equal(sl_row_slots_announce(&o, 0), 2);
}

static void late_writers_are_refused(void **state) {
    sl_row_slots_in in = {.slots = 2, .slot_bytes = SLOT};
    sl_err err = {0};
    (void)state;
    says(sl_row_slots_come(&in, 2, 1, &err), &err, "slot 2 of 2");
    says(sl_row_slots_come(&in, SL_ROW_SLOT_NONE, 1, &err), &err, "of 2");
    says(sl_row_slots_come(&in, 0, 2, &err), &err, "generation 2 after 0, which is read");
    assert_int_equal(sl_row_slots_come(&in, 0, 1, &err), SL_OK);
    says(sl_row_slots_come(&in, 0, 2, &err), &err, "still its own");
    sl_row_slots_gone(&in, 0);
    says(sl_row_slots_come(&in, 0, 2, &err), &err, "still its own"); /* who has no credit */
    assert_true(sl_row_slots_freed(&in) == 1 && sl_row_slots_freed(&in) == 0);
    says(sl_row_slots_come(&in, 0, 1, &err), &err, "generation 1 after 1");
    assert_int_equal(sl_row_slots_come(&in, 0, 2, &err), SL_OK);
}

/* Messages in order, read in any order, credits with some of the replies. */
static void drawn_traffic_is_in_order(void **state) {
    uint64_t rng = 7;
    sl_row_slots_out o = {.slots = 5, .slot_bytes = SLOT};
    sl_row_slots_in in = {.slots = 5, .slot_bytes = SLOT};
    sl_err err;
    uint32_t here[8], n = 0, refused = 0, went = 0;
    (void)state;
    for (uint32_t turn = 0; turn < 20000; turn++) {
        uint32_t slot;
        if (sl_rng_below(&rng, 2)) {
            if (!sl_row_slots_take(&o, 1 + sl_rng_below(&rng, SLOT), &slot)) {
                refused++;
            } else if (sl_rng_below(&rng, 8) == 0) {
                sl_row_slots_untake(&o, slot);
            } else {
                const sl_row_note note = {.slot = slot,
                                          .generation = sl_row_slots_announce(&o, slot)};
                uint8_t bytes[SL_ROW_NOTE_BYTES];
                sl_row_note_encode(&note, bytes);
                const sl_row_note got = sl_row_note_decode(bytes);
                assert_int_equal(sl_row_slots_come(&in, got.slot, got.generation, &err), SL_OK);
                here[n++] = slot;
                went++;
            }
        } else if (n) {
            const uint32_t i = (uint32_t)sl_rng_below(&rng, n);
            sl_row_slots_gone(&in, here[i]);
            here[i] = here[--n];
        }
        if (sl_rng_below(&rng, 3) == 0)
            assert_int_equal(sl_row_slots_credit(&o, sl_row_slots_freed(&in), &err), SL_OK);
    }
    assert_true(refused > 100 && went > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_takes_a_free_one),
        cmocka_unit_test(a_credit_is_of_what_was_announced),
        cmocka_unit_test(late_writers_are_refused),
        cmocka_unit_test(drawn_traffic_is_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Windows between devices of workers (engine/host/far.h) where something is wrong: memory that is
 * not offered, what a peer says that was told of none, connections that are gone. */
#include "engine/host/far.h"

#include "engine/worker/far_windows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define SLOTS 4u
#define SLOT  ((size_t)4096)

static bool lends; /* the device has memory to offer */
static uint32_t n_parted;

static sl_status offer(sl_device *d, size_t bytes, sl_mem *out, sl_device_key *key, sl_err *err) {
    (void)d;
    if (!lends) return sl_fail(err, SL_ERR_NOMEM, "no memory");
    *out = (sl_mem){.space = SL_SPACE_CUDA, .at = 1 << 20, .bytes = bytes};
    key->len = 1;
    return SL_OK;
}

static sl_status join(sl_device *d, sl_span key, sl_mem *out, sl_err *err) {
    (void)d, (void)key, (void)err;
    *out = (sl_mem){.space = SL_SPACE_CUDA, .at = 1 << 20, .bytes = SLOTS * SLOT};
    return SL_OK;
}

static void part(sl_device *d, sl_mem m) {
    (void)d, (void)m;
    n_parted++;
}

static const sl_device_ops ops = {.offer = offer, .join = join, .part = part};
static sl_device device = {.ops = &ops, .windows = true};
static uint8_t older, newer; /* connections, which nobody looks into */

static const sl_conn *conn(uint8_t *of) {
    return (const sl_conn *)(const void *)of;
}

typedef struct one {
    sl_worker w;
    sl_worker_peer peer[2];
} one;

/* Worker 0, and worker 1 at the end of a connection. */
static void begin(one *o) {
    *o = (one){.w = {.id = 0, .device = &device, .n_peers = 2}};
    o->w.peer = o->peer;
    o->peer[1].conn = (sl_conn *)(void *)&newer;
    o->peer[1].open = true;
    n_parted = 0;
}

/* A message of worker 1 that ends with this note. */
static sl_status says(one *o, uint16_t kind, sl_row_note n, sl_buf *b, sl_err *err) {
    static uint8_t bytes[64 + SL_ROW_NOTE_BYTES];
    sl_row_note_encode(&n, bytes + 64);
    *b = (sl_buf){.data = bytes, .len = sizeof bytes, .cap = sizeof bytes};
    sl_inbox_item it = {.h = {.kind = kind, .flags = SL_WIRE_FAR, .src = 1, .bytes = sizeof bytes},
                        .payload = b,
                        .far = o->peer[1].far};
    return sl_far_arrive(&o->w, &it, err);
}

/* Nothing lies in memory that there is not, whatever a peer says. */
static void without_memory_there_are_no_slots(void **state) {
    one o;
    sl_buf b;
    sl_err err = {0};
    (void)state;
    begin(&o);
    lends = false;
    sl_far_windows_open(&o.w, 1, SLOTS, SLOT);
    assert_non_null(o.peer[1].far); /* it is not tried again */
    assert_int_equal(says(&o, SL_MSG_DISPATCH, (sl_row_note){0, 1, 0}, &b, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "slot 0 of 0"));
    assert_int_equal(says(&o, SL_MSG_DISPATCH, (sl_row_note){SL_ROW_SLOT_NONE, 0, 1}, &b, &err),
                     SL_ERR_PROTOCOL);
    sl_far_close(&o.w);
    assert_int_equal(n_parted, 0);
    sl_far_free(&o.w);
}

static void notes_go_with_rows_alone(void **state) {
    one o;
    sl_buf b;
    sl_err err = {0};
    const sl_row_note none = {SL_ROW_SLOT_NONE, 0, 0};
    (void)state;
    begin(&o);
    lends = false;
    sl_far_windows_open(&o.w, 1, SLOTS, SLOT);
    assert_int_equal(says(&o, SL_MSG_HEARTBEAT, none, &b, &err), SL_ERR_PROTOCOL);
    assert_int_equal(says(&o, SL_MSG_RETURN, none, &b, &err), SL_OK);
    assert_int_equal(b.len, 64);
    sl_far_free(&o.w);
}

/* An offer that waited while its connection broke and another one came is not the other's. */
static void offers_are_of_their_connection(void **state) {
    one o;
    sl_err err = {0};
    uint8_t bytes[SL_WINDOW_MAX_OFFER];
    const uint8_t key = 7;
    const sl_window_offer said = {
        .shape = {.slots = SLOTS, .slot_bytes = SLOT, .first = 1}, .at = 4096, .key = {&key, 1}};
    const sl_span span = {bytes, sl_window_offer_encode(&said, bytes)};
    const sl_wire_header h = {.kind = SL_MSG_DEVICE_WINDOW, .src = 1};
    (void)state;
    begin(&o);
    assert_int_equal(sl_far_windows_on_offer(&o.w, &h, conn(&older), span, &err), SL_OK);
    assert_int_equal(sl_far_windows_on_offer(&o.w, &h, NULL, span, &err), SL_OK);
    assert_false(o.peer[1].has_offered || o.w.windows_due);
    assert_int_equal(sl_far_windows_on_offer(&o.w, &h, conn(&newer), span, &err), SL_OK);
    assert_true(o.peer[1].has_offered && o.w.windows_due);
    assert_int_equal(sl_far_windows_on_offer(&o.w, &h, conn(&newer), span, &err), SL_ERR_PROTOCOL);
}

/* A window is there as long as somebody names it, and no longer. */
static void windows_that_are_gone_are_freed(void **state) {
    one o;
    (void)state;
    begin(&o);
    lends = true;
    for (uint32_t i = 0; i < 3; i++) {
        sl_far_windows_open(&o.w, 0, SLOTS, SLOT); /* with itself: no message is needed */
        sl_far_window *f = o.peer[0].far;
        assert_true(f && f->own.bytes && f->other.bytes && !f->next);
        uint32_t slot;
        assert_true(sl_row_slots_take(&f->out, 100, &slot));
        f->leaving++;
        const sl_buf b = {.far = {.window = f, .slot = slot, .leaves = true}};
        sl_far_lose(&o.w, &o.peer[0]);
        assert_true(!o.peer[0].far && sl_far_is_lost(&b));
        sl_far_look(&o.w);
        assert_ptr_equal(o.w.far, f);
        sl_far_given(&b);
        sl_far_look(&o.w);
        assert_null(o.w.far);
        assert_int_equal(n_parted, 2 * (i + 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_there_are_no_slots),
        cmocka_unit_test(notes_go_with_rows_alone),
        cmocka_unit_test(offers_are_of_their_connection),
        cmocka_unit_test(windows_that_are_gone_are_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The bytes of every message, written down by hand (Python's struct, from docs/protocol.md), and
 * the refusal of every field that can be wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "net/wire.h"

/* clang-format off */
static const uint8_t header_bytes[] = {
    0x53, 0x4c, 0x49, 0x43, 0x08, 0x00, 0x20, 0x00, 0x03, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00,
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xfe, 0xca, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00,
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
static const uint8_t dispatch_bytes[] = {
    0x03, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00,
    0x0a, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x21, 0x00, 0x16, 0x00, 0x00, 0xb0, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
    0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x3f, 0x00, 0x00, 0x80, 0x3e,
    0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0, 0x00, 0x00, 0x00, 0x3f, 0x00, 0x00, 0x40, 0x40,
    0x00, 0x00, 0x80, 0x40, 0x00, 0x00, 0x00, 0x80,
};
static const uint8_t return_bytes[] = {
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x80, 0x3f, 0x40, 0xc0, 0x00, 0x3f,
};
static const uint8_t return_fp8_bytes[] = {
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x0a, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x3c, 0x70, 0xfc, 0x68, 0x00, 0x00, 0x00, 0x80, 0x40, 0x78, 0x80, 0x80, 0x00,
};
static const uint8_t submit_bytes[] = {
    0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12,
    0x10, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x3f, 0x00, 0x00, 0x60, 0x3f,
    0x28, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0x3d,
    0x00, 0x00, 0xc0, 0x3f, 0x00, 0x00, 0x80, 0xbe, 0x00, 0x00, 0xa0, 0x3f, 0x03, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x02, 0x03, 0x04,
    0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x07, 0x00, 0x00, 0x00,
    0x04, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x64, 0x00, 0x00, 0x00,
    0x65, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc0, 0xbf,
    0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc8, 0x42, 0x05, 0x14, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
    0x07, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00,
    0x0a, 0x00, 0x00, 0x00,
};
static const uint8_t tokens_bytes[] = {
    0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x2a, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x39, 0x30, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x4e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x3a, 0x30, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xbf, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0xbe,
};
static const uint8_t pairs_bytes[] = {
    0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x4e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
static const uint8_t set_bytes[] = {
    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
};
static const uint8_t worker_bytes[] = {
    0x01, 0x02, 0x00, 0x00,
};
static const uint8_t logits_head[] = {
    0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
/* clang-format on */

static const sl_model_spec model = {.d_model = 3, .n_experts = 8, .top_k = 4};

/* An aligned copy that tests may spoil. */
typedef struct spoiled {
    _Alignas(64) uint8_t bytes[512];
    sl_span span;
} spoiled;

static void copy_of(spoiled *s, const void *bytes, size_t n) {
    memset(s, 0xEE, sizeof *s);
    memcpy(s->bytes, bytes, n);
    s->span = (sl_span){s->bytes, n};
}

static void put_u32(spoiled *s, size_t at, uint32_t v) {
    memcpy(s->bytes + at, &v, 4);
}

static void says(sl_status got, sl_status want, const sl_err *err, const char *text) {
    if (got != want || !strstr(err->msg, text))
        fail_msg("status %d and '%s', expected %d and '%s'", got, err->msg, want, text);
}

/* ---- header ---- */

static const sl_wire_header golden_header = {
    .kind = SL_MSG_DISPATCH,
    .flags = SL_WIRE_SET | SL_WIRE_STAY,
    .src = 7,
    .session = 0x1122334455667788,
    .incarnation = 0xCAFE,
    .epoch = 5,
    .round = 0x100000002,
    .seq = 0x0A0B0C0D0E0F,
    .lane = 1,
    .layer = 9,
    .chunk = 2,
    .rows = 4,
    .bytes = 4096,
};

static void header_matches_its_bytes(void **state) {
    (void)state;
    uint8_t out[SL_WIRE_HEADER_BYTES];
    sl_wire_header back;
    sl_err err = {0};
    assert_int_equal(sizeof header_bytes, SL_WIRE_HEADER_BYTES);
    sl_wire_header_encode(&golden_header, out);
    assert_memory_equal(out, header_bytes, sizeof out);
    assert_int_equal(sl_wire_header_decode((sl_span){header_bytes, 72}, &back, &err), SL_OK);
    sl_wire_header_encode(&back, out);
    assert_memory_equal(out, header_bytes, sizeof out);
    uint64_t seq;
    memcpy(&seq, header_bytes + SL_WIRE_SEQ_AT, 8);
    assert_true(seq == golden_header.seq);
}

static void header_fields_are_checked(void **state) {
    (void)state;
    const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } bad[] = {
        {0, 0x44494C53, "magic"},  {4, 1 | 32 << 16, "version 1"},      {8, 2048, "flags 0x800"},
        {60, 65537, "65537 rows"}, {64, (256u << 20) + 1, "268435457"},
    };
    spoiled s;
    sl_wire_header h;
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        copy_of(&s, header_bytes, sizeof header_bytes);
        put_u32(&s, bad[i].at, bad[i].value);
        says(sl_wire_header_decode(s.span, &h, &err), SL_ERR_PROTOCOL, &err, bad[i].text);
    }
    for (size_t n = 0; n < 80; n++) {
        sl_err err = {0};
        copy_of(&s, header_bytes, sizeof header_bytes);
        s.span.len = n;
        if (n != 72)
            says(sl_wire_header_decode(s.span, &h, &err), SL_ERR_PROTOCOL, &err, "expected 72");
    }
    copy_of(&s, header_bytes, sizeof header_bytes);
    put_u32(&s, 4, SL_WIRE_VERSION | 999u << 16); /* unknown kinds are for the session to answer */
    sl_err err = {0};
    assert_int_equal(sl_wire_header_decode(s.span, &h, &err), SL_OK);
    assert_int_equal(h.kind, 999);
    assert_null(sl_msg_kind_name(999));
    assert_string_equal(sl_msg_kind_name(SL_MSG_LOGITS), "LOGITS");
    assert_string_equal(sl_msg_kind_name(SL_MSG_BUSY), "BUSY");
    assert_int_equal(SL_MSG_BUSY, 58);
}

/* ---- dispatch ---- */

static const sl_wire_header dispatch_header = {
    .kind = SL_MSG_DISPATCH, .flags = SL_WIRE_SET, .rows = 2};

static void dispatch_matches_its_bytes(void **state) {
    (void)state;
    const uint32_t set[] = {3, 9, 10}, first[] = {0, 2, 3}, expert[] = {5, 2, 7},
                   position[] = {0, 1, 3};
    const uint64_t tag[] = {sl_tag_make(11, 22, 33), 1};
    const float gate[] = {0.75f, 0.25f, 1.0f}, rows[] = {1, -2, 0.5f, 3, 4, -0.0f};
    spoiled s;
    sl_wire_dispatch d;
    sl_err err = {0};
    memset(&s, 0xEE, sizeof s);
    assert_int_equal(sl_wire_dispatch_bytes(&(sl_wire_counts){2, 3, 3, 0}, 3, SL_WIRE_F32),
                     sizeof dispatch_bytes);
    sl_wire_dispatch_layout(s.bytes, &(sl_wire_counts){2, 3, 3, 0}, 3, SL_WIRE_F32, &d);
    memcpy(d.set, set, sizeof set);
    memcpy(d.tag, tag, sizeof tag);
    memcpy(d.first, first, sizeof first);
    memcpy(d.expert, expert, sizeof expert);
    memcpy(d.position, position, sizeof position);
    memcpy(d.gate, gate, sizeof gate);
    sl_wire_pack(SL_WIRE_F32, rows, 2, 3, d.data);
    assert_memory_equal(s.bytes, dispatch_bytes, sizeof dispatch_bytes);

    copy_of(&s, dispatch_bytes, sizeof dispatch_bytes);
    sl_status st = sl_wire_dispatch_decode(&dispatch_header, s.span, &model, SL_WIRE_F32, &d, &err);
    says(st, SL_OK, &err, "");
    assert_int_equal(d.rows, 2);
    assert_int_equal(d.n_set, 3);
    assert_int_equal(d.n_entries, 3);
    assert_memory_equal(d.set, set, sizeof set);
    assert_memory_equal(d.first, first, sizeof first);
    assert_memory_equal(d.expert, expert, sizeof expert);
    assert_memory_equal(d.position, position, sizeof position);
    assert_memory_equal(d.gate, gate, sizeof gate);
    assert_memory_equal(d.data, rows, sizeof rows);
    assert_int_equal(sl_tag_slot(d.tag[0]), 11);
    assert_int_equal(sl_tag_generation(d.tag[0]), 22);
    assert_int_equal(sl_tag_index(d.tag[0]), 33);
    assert_int_equal((uintptr_t)d.data % 64, 0);
}

static void dispatch_fields_are_checked(void **state) {
    (void)state;
    const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } bad[] = {
        {0, 16385, "set of 16385"},
        {0, 4, "set[3] = 0 after 10"},
        {0, 0xFFFFFFFF, "set of"},
        {4, 4, "first[2] is 3, expected 4"},
        {4, 9, "9 entries"},
        {4, 0xFFFFFFFF, "entries for 2 rows"},
        {12, 3, "set[1] = 3 after 3"},
        {16, 0xFFFFFFFF, "no worker id"},
        {40, 1, "first[0]"},
        {44, 0, "row 0 has entries [0,0)"},
        {44, 3, "row 1 has entries"},
        {44, 0xFFFFFFFF, "row 0 has entries"},
        {48, 2, "first[2] is 2"},
        {56, 8, "expert 8 of 8"},
        {64, 0xFFFFFFFF, "expert"},
        {72, 1, "position 1 after 1"},
        {80, 4, "position 4 of 4"},
        {88, 0x7F800000, "gate 0"},
        {92, 0x7FC00000, "row 0: gate 1"},
    };
    spoiled s;
    sl_wire_dispatch d;
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        copy_of(&s, dispatch_bytes, sizeof dispatch_bytes);
        put_u32(&s, bad[i].at, bad[i].value);
        says(sl_wire_dispatch_decode(&dispatch_header, s.span, &model, SL_WIRE_F32, &d, &err),
             SL_ERR_PROTOCOL, &err, bad[i].text);
    }
}

static void dispatch_refers_to_earlier_rows(void **state) {
    (void)state;
    const sl_wire_counts n = {.rows = 3, .n_entries = 3, .n_old = 2};
    const sl_wire_header h = {.kind = SL_MSG_DISPATCH, .flags = SL_WIRE_OLD, .rows = 3};
    const float row[] = {1, 2, 3};
    spoiled s;
    sl_wire_dispatch d;
    sl_err err = {0};
    size_t bytes = sl_wire_dispatch_bytes(&n, 3, SL_WIRE_F32);
    memset(&s, 0xEE, sizeof s);
    sl_wire_dispatch_layout(s.bytes, &n, 3, SL_WIRE_F32, &d);
    for (uint32_t i = 0; i < 3; i++) {
        d.tag[i] = 70 + i;
        d.first[i] = d.expert[i] = i;
        d.position[i] = 0;
        d.gate[i] = 1;
    }
    d.first[3] = 3;
    d.old[0] = 9;
    d.old[1] = 4; /* any order */
    sl_wire_pack(SL_WIRE_F32, row, 1, 3, d.data);
    s.span = (sl_span){s.bytes, bytes};
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_OK, &err, "");
    assert_true(d.rows == 3 && d.n_old == 2 && d.old[0] == 9 && d.old[1] == 4 && d.tag[2] == 72);
    assert_memory_equal(d.data, row, sizeof row);
    put_u32(&s, 8, 4);
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "4 of 3 rows came before");
    put_u32(&s, 8, 0);
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "0 of 3 rows came before");
    put_u32(&s, 8, 1); /* then a row's data is missing */
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "expected");
    s.span.len = 0;
    says(sl_wire_dispatch_decode(&(sl_wire_header){.flags = SL_WIRE_OLD}, s.span, &model,
                                 SL_WIRE_F32, &d, &err),
         SL_ERR_PROTOCOL, &err, "OLD without a payload");
}

static void dispatch_sizes_and_bare_headers(void **state) {
    (void)state;
    spoiled s;
    sl_wire_dispatch d;
    sl_wire_header h = dispatch_header;
    for (size_t n = 1; n < 300; n++) {
        sl_err err = {0};
        copy_of(&s, dispatch_bytes, sizeof dispatch_bytes);
        s.span.len = n;
        if (n != sizeof dispatch_bytes)
            says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err),
                 SL_ERR_PROTOCOL, &err, "payload of");
    }
    sl_err err = {0};
    copy_of(&s, dispatch_bytes, sizeof dispatch_bytes);
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_ERR_PROTOCOL, &err,
         "payload of 152");
    h.flags = 0;
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "without the flag SET");
    h = dispatch_header;
    h.rows = 65537;
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "65537 rows");
    h.rows = 2;
    s.span.data += 8;
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_ARG, &err,
         "not 64-byte aligned");
    s.span = (sl_span){NULL, 0};
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "2 rows without a payload");
    h.rows = 0;
    says(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_ERR_PROTOCOL, &err,
         "SET without a payload");
    h.flags = SL_WIRE_STAY;
    assert_int_equal(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_OK);
    assert_int_equal(d.rows + d.n_set + d.n_entries, 0);
    /* No rows, but a set: what a member without work for this worker sends in layer 0. */
    const uint32_t set[] = {1, 2};
    size_t n = sl_wire_dispatch_bytes(&(sl_wire_counts){0, 2, 0, 0}, 3, SL_WIRE_F32);
    sl_wire_dispatch_layout(s.bytes, &(sl_wire_counts){0, 2, 0, 0}, 3, SL_WIRE_F32, &d);
    memcpy(d.set, set, sizeof set);
    d.first[0] = 0;
    h.flags = SL_WIRE_SET;
    s.span = (sl_span){s.bytes, n};
    assert_int_equal(sl_wire_dispatch_decode(&h, s.span, &model, SL_WIRE_F32, &d, &err), SL_OK);
    assert_int_equal(d.n_set, 2);
}

/* ---- return ---- */

static const sl_wire_header return_header = {
    .kind = SL_MSG_RETURN, .flags = SL_WIRE_SET, .rows = 1};

static void return_matches_its_bytes(void **state) {
    (void)state;
    const float row[] = {1, -3, 0.5f};
    float back[3];
    spoiled s;
    sl_wire_return d;
    sl_err err = {0};
    memset(&s, 0xEE, sizeof s);
    assert_int_equal(sl_wire_return_bytes(1, 1, 3, SL_WIRE_BF16), sizeof return_bytes);
    sl_wire_return_layout(s.bytes, 1, 1, 3, SL_WIRE_BF16, &d);
    d.set[0] = 6;
    d.tag[0] = 1;
    d.mask[0] = 10;
    sl_wire_pack(SL_WIRE_BF16, row, 1, 3, d.data);
    assert_memory_equal(s.bytes, return_bytes, sizeof return_bytes);
    copy_of(&s, return_bytes, sizeof return_bytes);
    sl_status st = sl_wire_return_decode(&return_header, s.span, &model, SL_WIRE_BF16, &d, &err);
    says(st, SL_OK, &err, "");
    assert_int_equal(d.set[0], 6);
    assert_int_equal(d.mask[0], 10);
    sl_wire_unpack(SL_WIRE_BF16, d.data, 1, 3, back);
    assert_memory_equal(back, row, sizeof row);
}

/* Behind the rows, where a flag says so and nowhere else. */
static void a_return_says_how_long_it_was_there(void **state) {
    (void)state;
    sl_wire_header h = return_header;
    spoiled s;
    sl_wire_return d;
    sl_err err = {0};
    copy_of(&s, return_bytes, sizeof return_bytes);
    h.flags |= SL_WIRE_TIMED;
    says(sl_wire_return_decode(&return_header, s.span, &model, SL_WIRE_BF16, &d, &err), SL_OK, &err,
         "");
    assert_int_equal(d.held_us, 0);
    says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_ERR_PROTOCOL, &err,
         "payload");
    s.span.len += SL_WIRE_TIMES_BYTES;
    says(sl_wire_return_decode(&return_header, s.span, &model, SL_WIRE_BF16, &d, &err),
         SL_ERR_PROTOCOL, &err, "payload");
    sl_wire_return_times(s.bytes + sizeof return_bytes, 0x01020304, 0xA0B0C0D0);
    says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_OK, &err, "");
    assert_true(d.task_us == 0x01020304 && d.held_us == 0xA0B0C0D0);
}

static void return_of_fp8_matches_its_bytes(void **state) {
    (void)state;
    const float rows[] = {1, -3, 0.5f, 1000, -0.001f, -0.0f};
    const float want[] = {1, -3, 0.5f, 1024, -0.0f, -0.0f};
    const sl_wire_header h = {.kind = SL_MSG_RETURN, .flags = SL_WIRE_SET, .rows = 2};
    const uint32_t scales[] = {0, 0x80000000, 0xBF800000, 0x7F800000, 0x3F800001, 0x00400000};
    float back[6];
    spoiled s;
    sl_wire_return d;
    sl_err err = {0};
    memset(&s, 0xEE, sizeof s);
    assert_int_equal(sl_wire_return_bytes(2, 1, 3, SL_WIRE_FP8), sizeof return_fp8_bytes);
    sl_wire_return_layout(s.bytes, 2, 1, 3, SL_WIRE_FP8, &d);
    d.set[0] = 6;
    d.tag[0] = 1, d.tag[1] = 2;
    d.mask[0] = 10, d.mask[1] = 5;
    sl_wire_pack(SL_WIRE_FP8, rows, 2, 3, d.data);
    assert_memory_equal(s.bytes, return_fp8_bytes, sizeof return_fp8_bytes);
    copy_of(&s, return_fp8_bytes, sizeof return_fp8_bytes);
    says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_FP8, &d, &err), SL_OK, &err, "");
    sl_wire_unpack(SL_WIRE_FP8, d.data, 2, 3, back);
    assert_memory_equal(back, want, sizeof want);
    for (size_t i = 0; i < SL_LEN(scales); i++) {
        put_u32(&s, 72, scales[i]);
        says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_FP8, &d, &err), SL_ERR_PROTOCOL,
             &err, "return: row 1: scale");
    }
}

static void return_fields_are_checked(void **state) {
    (void)state;
    const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } bad[] = {
        {0, 16385, "set of 16385"},   {0, 3, "set[1] = 0 after 6"}, {4, 33, "33 groups"},
        {8, 0xFFFFFFFF, "no worker"}, {24, 0, "mask 0x0"},          {24, 16, "mask 0x10"},
        {28, 1, "mask 0x10000000a"},
    };
    spoiled s;
    sl_wire_return d;
    sl_wire_header h = return_header;
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        copy_of(&s, return_bytes, sizeof return_bytes);
        put_u32(&s, bad[i].at, bad[i].value);
        says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_ERR_PROTOCOL,
             &err, bad[i].text);
    }
    sl_err err = {0};
    copy_of(&s, return_bytes, sizeof return_bytes);
    s.span.data += 32;
    says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_ERR_ARG, &err,
         "aligned");
    s.span.data -= 32;
    h.flags = 0;
    says(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_ERR_PROTOCOL, &err,
         "flag SET");
    /* An empty set with the flag: the lane sleeps. */
    h = (sl_wire_header){.kind = SL_MSG_RETURN, .flags = SL_WIRE_SET};
    s.span.len = sl_wire_return_bytes(0, 0, 3, SL_WIRE_BF16);
    memset(s.bytes, 0, s.span.len);
    assert_int_equal(sl_wire_return_decode(&h, s.span, &model, SL_WIRE_BF16, &d, &err), SL_OK);
    sl_model_spec wide = {.d_model = 3, .n_experts = 64, .top_k = 64};
    copy_of(&s, return_bytes, sizeof return_bytes);
    put_u32(&s, 28, 0x80000000);
    assert_int_equal(sl_wire_return_decode(&return_header, s.span, &wide, SL_WIRE_BF16, &d, &err),
                     SL_OK);
}

/* ---- control ---- */

static void sets_and_workers(void **state) {
    (void)state;
    const uint32_t ids[] = {4, 8}, *set = NULL;
    uint32_t n = 0, worker = 0;
    uint8_t out[16];
    spoiled s;
    sl_err err = {0};
    assert_int_equal(sl_wire_set_bytes(2), sizeof set_bytes);
    sl_wire_set_encode(ids, 2, out);
    assert_memory_equal(out, set_bytes, sizeof set_bytes);
    copy_of(&s, set_bytes, sizeof set_bytes);
    assert_int_equal(sl_wire_set_decode(s.span, &set, &n, &err), SL_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(set, ids, sizeof ids);
    for (size_t len = 0; len < 30; len++) {
        s.span.len = len;
        if (len != 16)
            assert_int_equal(sl_wire_set_decode(s.span, &set, &n, &err), SL_ERR_PROTOCOL);
    }
    s.span.len = 16;
    put_u32(&s, 12, 4);
    says(sl_wire_set_decode(s.span, &set, &n, &err), SL_ERR_PROTOCOL, &err, "set[1] = 4");
    put_u32(&s, 4, 4);
    says(sl_wire_set_decode(s.span, &set, &n, &err), SL_ERR_PROTOCOL, &err, "reserved");
    put_u32(&s, 0, 16385);
    says(sl_wire_set_decode(s.span, &set, &n, &err), SL_ERR_PROTOCOL, &err,
         "16385 workers, limit 16384");
    copy_of(&s, set_bytes, sizeof set_bytes);
    s.span.data += 4;
    put_u32(&s, 4, 2);
    put_u32(&s, 8, 0);
    says(sl_wire_set_decode(s.span, &set, &n, &err), SL_ERR_ARG, &err, "aligned");

    static _Alignas(64) uint8_t most[8 + 4 * SL_MAX_WORKERS];
    static uint32_t all[SL_MAX_WORKERS];
    for (uint32_t i = 0; i < SL_MAX_WORKERS; i++) all[i] = 3 * i;
    assert_int_equal(sl_wire_set_bytes(SL_MAX_WORKERS), sizeof most);
    sl_wire_set_encode(all, SL_MAX_WORKERS, most);
    const sl_span largest = {most, sizeof most};
    assert_int_equal(sl_wire_set_decode(largest, &set, &n, &err), SL_OK);
    assert_int_equal(n, SL_MAX_WORKERS);
    assert_memory_equal(set, all, sizeof all);

    sl_wire_worker_encode(513, out);
    assert_memory_equal(out, worker_bytes, sizeof worker_bytes);
    copy_of(&s, worker_bytes, sizeof worker_bytes);
    assert_int_equal(sl_wire_worker_decode(s.span, &worker, &err), SL_OK);
    assert_int_equal(worker, 513);
    s.span.len = 5;
    says(sl_wire_worker_decode(s.span, &worker, &err), SL_ERR_PROTOCOL, &err, "5 bytes");
    s.span.len = 3;
    says(sl_wire_worker_decode(s.span, &worker, &err), SL_ERR_PROTOCOL, &err, "3 bytes");
    s.span.len = 4;
    put_u32(&s, 0, SL_NO_WORKER);
    says(sl_wire_worker_decode(s.span, &worker, &err), SL_ERR_PROTOCOL, &err, "no worker");
}

static void submit_matches_its_bytes(void **state) {
    (void)state;
    const uint32_t tokens[] = {10, 11, 12}, pages[] = {100, 101}, stop[] = {2};
    const uint32_t allowed[] = {1u << 0 | 1u << 2 | 1u << 10 | 1u << 12},
                   unlike[] = {1, 7, 2, 8, 11};
    const sl_logit_bias bias[] = {{4, -1.5f}, {9, 100}};
    const sl_wire_submit want = {.request = 77,
                                 .max_tokens = 16,
                                 .flags = SL_SUBMIT_IGNORE_EOS | SL_SUBMIT_LOGPROBS,
                                 .n_prompt = 2,
                                 .report = {3, 1, tokens},
                                 .min_tokens = 5,
                                 .start = 1,
                                 .root = {{0x0807060504030201, 0x100F0E0D0C0B0A09}},
                                 .sampling = {.seed = 0x123456789ABCDEF0,
                                              .temperature = 0.5f,
                                              .top_p = 0.875f,
                                              .top_k = 40,
                                              .choice = 2,
                                              .min_p = 0.0625f,
                                              .presence_penalty = 1.5f,
                                              .frequency_penalty = -0.25f,
                                              .repetition_penalty = 1.25f,
                                              .thought_most = 7,
                                              .thought_open = 4,
                                              .thought_close = 5,
                                              .n_bias = 2,
                                              .n_allowed = 1,
                                              .n_bad = 5,
                                              .bias = bias,
                                              .allowed = allowed,
                                              .bad = unlike},
                                 .n_tokens = 3,
                                 .n_pages = 2,
                                 .n_stop = 1,
                                 .tokens = tokens,
                                 .pages = pages,
                                 .stop = stop};
    uint8_t out[sizeof submit_bytes];
    spoiled s;
    sl_wire_submit got;
    sl_err err = {0};
    assert_int_equal(sl_wire_submit_bytes(&want), sizeof submit_bytes);
    sl_wire_submit_encode(&want, out);
    assert_memory_equal(out, submit_bytes, sizeof submit_bytes);
    copy_of(&s, submit_bytes, sizeof submit_bytes);
    says(sl_wire_submit_decode(s.span, 13, &got, &err), SL_OK, &err, "");
    assert_int_equal(got.request, 77);
    const sl_sampling *g = &got.sampling;
    assert_true(g->seed == want.sampling.seed && g->temperature == 0.5f && g->top_p == 0.875f);
    assert_true(g->top_k == 40 && g->choice == 2 && g->min_p == 0.0625f);
    assert_true(g->presence_penalty == 1.5f && g->frequency_penalty == -0.25f);
    assert_true(g->repetition_penalty == 1.25f && g->n_bias == 2);
    assert_true(g->thought_most == 7 && g->thought_open == 4 && g->thought_close == 5);
    assert_memory_equal(got.tokens, tokens, sizeof tokens);
    assert_memory_equal(got.pages, pages, sizeof pages);
    assert_memory_equal(got.stop, stop, sizeof stop);
    assert_memory_equal(g->bias, bias, sizeof bias);
    assert_true(g->n_allowed == 1 && g->n_bad == 5 && *g->allowed == *allowed);
    assert_memory_equal(g->bad, unlike, sizeof unlike);
    assert_true(got.n_prompt == 2 && got.min_tokens == 5 && got.start == 1);
    assert_true(got.report.n_top == 3 && got.report.n_scored == 1 && *got.report.scored == 10);
    assert_true(sl_page_key_is(got.root, want.root));
    const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } bad[] = {
        {16, 0, "max_tokens is 0"},
        {24, 0x7FC00000, "temperature"},
        {24, 0xBF800000, "temperature: -1"},
        {24, 0x42CA0000, "temperature: 101"},
        {28, 0, "top_p: 0"},
        {28, 0x3F800001, "top_p"},
        {28, 0x7FC00000, "top_p"},
        {40, 64, "unknown flags"},
        {44, 4, "payload of 200 bytes"},
        {44, 0xFFFFFFFF, "payload of"},
        {48, 0xFFFFFFFF, "payload of"},
        {52, 65, "65 stop ids"},
        {52, 0, "payload of 200 bytes, 196"},
        {56, 0, "prompt of 0 in 3"},
        {56, 4, "prompt of 4 in 3"},
        {60, 0x3F800001, "min_p: 1"},
        {60, 0x7FC00000, "min_p: nan"},
        {64, 0x7F800000, "presence_penalty: inf"},
        {68, 0x7FC00000, "frequency_penalty: nan"},
        {72, 0xBF800000, "repetition_penalty: -1"},
        {76, 14, "logprobs: 14 likeliest tokens, limit 13"},
        {40, 1, "5 log-probabilities with flags 0x1"},
        {80, 1025, "payload of 200 bytes, 8384"},
        {80, 1, "payload of 200 bytes, 192"},
        {20, 18, "min_tokens 18 of 17"},
        {84, 3, "start at 3 of 3 tokens"},
        {88, SL_MAX_SHAPE + 1, "shape of 4194305 bytes"},
        {88, 4, "whose end is not its own"},
        {48, 0, "start at 1 of 3 tokens, 0 pages"},
        {156, 9, "logit_bias: id 9 after 9"},
        {160, 0x7FC00000, "logit_bias: nan for id 4"},
        {136, 13, "token 13, the vocabulary has 13"},
        {164, 13, "logit_bias: id 13, the vocabulary has 13"},
        {120, 0, "payload of 200 bytes, 196"},
        {124, 6, "payload of 200 bytes, 204"},
        {172, 0, "allowed_token_ids: empty"},
        {172, 1u << 13, "allowed_token_ids: an id above the 13"},
        {176, 0, "bad_words: 0 ids of sequence 0, 4 are left"},
        {176, 5, "bad_words: 5 ids of sequence 0, 4 are left"},
        {176, 0xFFFFFFFF, "ids of sequence 0"},
        {184, 3, "bad_words: 3 ids of sequence 1, 2 are left"},
        {192, 13, "bad_words: id 13, the vocabulary has 13"},
        {128, 0xFFFFFFFF, "payload of 200 bytes"},
        {196, 13, "logprob_token_ids: id 13, the vocabulary has 13"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        copy_of(&s, submit_bytes, sizeof submit_bytes);
        put_u32(&s, bad[i].at, bad[i].value);
        says(sl_wire_submit_decode(s.span, 13, &got, &err), SL_ERR_PROTOCOL, &err, bad[i].text);
    }
    for (size_t n = 0; n < 216; n++) {
        copy_of(&s, submit_bytes, sizeof submit_bytes);
        s.span.len = n;
        if (n != sizeof submit_bytes)
            assert_int_equal(sl_wire_submit_decode(s.span, 13, &got, &err), SL_ERR_PROTOCOL);
    }
    copy_of(&s, submit_bytes, sizeof submit_bytes);
    memmove(s.bytes + 4, s.bytes, sizeof submit_bytes);
    s.span.data += 4;
    says(sl_wire_submit_decode(s.span, 13, &got, &err), SL_ERR_ARG, &err, "8-byte aligned");
}

static void records_match_their_bytes(void **state) {
    (void)state;
    const sl_wire_token tokens[] = {{77, 5, 42, SL_FINISH_NONE, 3, 0, 12345},
                                    {78, 9, 2, SL_FINISH_STOP, 0, 2, 12346}},
                        *t;
    const sl_logprob logprobs[] = {{2, -0.5f}, {7, -0.25f}}, *lp;
    const sl_wire_pair pairs[] = {{77, 3}, {78, 4}}, *p;
    const sl_wire_header h = {.rows = 2}, three = {.rows = 3};
    uint8_t out[80];
    spoiled s;
    sl_err err = {0};
    assert_int_equal(sl_wire_tokens_bytes(2, 2), sizeof tokens_bytes);
    sl_wire_tokens_encode(tokens, 2, logprobs, 2, out);
    assert_memory_equal(out, tokens_bytes, sizeof tokens_bytes);
    copy_of(&s, tokens_bytes, sizeof tokens_bytes);
    assert_int_equal(sl_wire_tokens_decode(&h, s.span, &t, &lp, &err), SL_OK);
    assert_memory_equal(t, tokens, sizeof tokens);
    assert_memory_equal(lp, logprobs, sizeof logprobs);
    says(sl_wire_tokens_decode(&three, s.span, &t, &lp, &err), SL_ERR_PROTOCOL, &err,
         "80 bytes, 96");
    put_u32(&s, 16, SL_FINISH_COUNT);
    says(sl_wire_tokens_decode(&h, s.span, &t, &lp, &err), SL_ERR_PROTOCOL, &err, "finish 6");
    put_u32(&s, 16, 0);
    const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } bad[] = {
        {52, 150, "record 1: 150 log-probabilities, limit 149"},
        {52, 1, "80 bytes, 72 expected"},
        {52, 3, "80 bytes, 88 expected"},
        {52, 0, "80 bytes, 64 expected"},
        {20, 1, "80 bytes, 88 expected"},
        {16, 6u << 16, "record 0: 6 rows behind, at position 5"},
        {48, 9u << 16 | 0xFFFF, "record 1: finish 65535"},
        {64, 3, "record 1: token 2, but the log-probability of 3"},
        {68, 0x3F000000, "record 1: log-probability 0.5"},
        {76, 0xFF800000, "record 1: log-probability -inf"},
        {76, 0x7FC00000, "record 1: log-probability nan"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        copy_of(&s, tokens_bytes, sizeof tokens_bytes);
        put_u32(&s, bad[i].at, bad[i].value);
        says(sl_wire_tokens_decode(&h, s.span, &t, &lp, &err), SL_ERR_PROTOCOL, &err, bad[i].text);
    }
    s.span.data += 4;
    says(sl_wire_tokens_decode(&h, s.span, &t, &lp, &err), SL_ERR_ARG, &err, "aligned");

    const sl_wire_header none = {.rows = 0};
    assert_int_equal(sl_wire_tokens_decode(&none, (sl_span){NULL, 0}, &t, &lp, &err), SL_OK);
    assert_null(lp);

    sl_wire_pairs_encode(pairs, 2, out);
    assert_memory_equal(out, pairs_bytes, sizeof pairs_bytes);
    copy_of(&s, pairs_bytes, sizeof pairs_bytes);
    assert_int_equal(sl_wire_pairs_decode(&h, s.span, &p, &err), SL_OK);
    assert_memory_equal(p, pairs, sizeof pairs);
    says(sl_wire_pairs_decode(&three, s.span, &p, &err), SL_ERR_PROTOCOL, &err, "32 bytes, 48");
}

static void logits_match_their_bytes(void **state) {
    (void)state;
    const sl_wire_header h = {.rows = 2}, big = {.rows = 65536};
    const float *got = NULL;
    uint64_t request = 0, position = 0;
    spoiled s;
    sl_err err = {0};
    memset(&s, 0xEE, sizeof s);
    float *to = sl_wire_logits_layout(s.bytes, 77, 12);
    assert_memory_equal(s.bytes, logits_head, sizeof logits_head);
    for (int i = 0; i < 10; i++) to[i] = (float)i;
    s.span = (sl_span){s.bytes, sl_wire_logits_bytes(2, 5)};
    assert_int_equal(s.span.len, 64 + 40);
    assert_int_equal(sl_wire_logits_decode(&h, s.span, 5, &request, &position, &got, &err), SL_OK);
    assert_int_equal(request, 77);
    assert_int_equal(position, 12);
    assert_true(got[9] == 9);
    says(sl_wire_logits_decode(&h, s.span, 6, &request, &position, &got, &err), SL_ERR_PROTOCOL,
         &err, "104 bytes, 112");
    assert_int_equal(
        sl_wire_logits_decode(&big, s.span, UINT32_MAX, &request, &position, &got, &err),
        SL_ERR_PROTOCOL);
}

/* ---- rows ---- */

static uint16_t bf16(uint32_t bits) {
    float f;
    uint16_t out;
    memcpy(&f, &bits, 4);
    sl_wire_pack(SL_WIRE_BF16, &f, 1, 1, &out);
    return out;
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    assert_int_equal(bf16(0x3F800000), 0x3F80);
    assert_int_equal(bf16(0x3F808000), 0x3F80); /* half way, to even */
    assert_int_equal(bf16(0x3F818000), 0x3F82); /* half way, to even */
    assert_int_equal(bf16(0x3F808001), 0x3F81);
    assert_int_equal(bf16(0x3F807FFF), 0x3F80);
    assert_int_equal(bf16(0x80000000), 0x8000);
    assert_int_equal(bf16(0x7F7FFFFF), 0x7F80); /* beyond the largest: infinity */
    assert_int_equal(bf16(0x7F800000), 0x7F80);
    assert_int_equal(bf16(0xFF800000), 0xFF80);
    assert_int_equal(bf16(0x7F800001), 0x7FC0); /* NaN stays NaN */
    assert_int_equal(bf16(0xFFFFFFFF), 0xFFFF);
    assert_int_equal(bf16(0x00000001), 0x0000);
    assert_int_equal(bf16(0x00018000), 0x0002);
    for (uint32_t u = 0; u < 65536; u++) { /* what the format holds comes back exactly */
        uint16_t in = (uint16_t)u, out;
        float f;
        sl_wire_unpack(SL_WIRE_BF16, &in, 1, 1, &f);
        sl_wire_pack(SL_WIRE_BF16, &f, 1, 1, &out);
        assert_int_equal(isnan(f) ? out | 0x40 : out, isnan(f) ? in | 0x40 : in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_matches_its_bytes),
        cmocka_unit_test(header_fields_are_checked),
        cmocka_unit_test(dispatch_matches_its_bytes),
        cmocka_unit_test(dispatch_fields_are_checked),
        cmocka_unit_test(dispatch_refers_to_earlier_rows),
        cmocka_unit_test(dispatch_sizes_and_bare_headers),
        cmocka_unit_test(return_matches_its_bytes),
        cmocka_unit_test(return_of_fp8_matches_its_bytes),
        cmocka_unit_test(a_return_says_how_long_it_was_there),
        cmocka_unit_test(return_fields_are_checked),
        cmocka_unit_test(sets_and_workers),
        cmocka_unit_test(submit_matches_its_bytes),
        cmocka_unit_test(records_match_their_bytes),
        cmocka_unit_test(logits_match_their_bytes),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

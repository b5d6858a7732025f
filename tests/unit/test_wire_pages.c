/* KV pages on the wire: golden bytes, and every field that is checked. */
#include "net/wire.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A block has 2 sides of one head of two values: 512 bytes. */
static const sl_model_spec model = {.n_layers = 3, .n_kv_heads = 1, .head_dim = 2};

static const uint8_t fetch_bytes[] = {
    7,  0, 0, 0, 0, 0, 0, 0, /* transfer */
    8,  0, 0, 0, 0, 0, 0, 1, /* key */
    0,  2, 0, 0, 0, 0, 0, 0, /* and on */
    9,  0, 0, 0, 0, 0, 0, 0, /* request */
    10, 0, 0, 0,             /* index */
    11, 0, 0, 0,             /* page */
    12, 0, 0, 0,             /* from */
    0,  0, 0, 0,
};

static const uint8_t blocks_bytes[SL_WIRE_BLOCKS_BYTES] = {
    7,    0,    0,    0,    0, 0, 0, 0, /* transfer */
    8,    0,    0,    0,    0, 0, 0, 1, /* key */
    0,    2,    0,    0,    0, 0, 0, 0, /* and on */
    9,    0,    0,    0,    0, 0, 0, 0, /* request */
    10,   0,    0,    0,                /* index */
    0,    0,    0,    0,                /* type */
    1,    0,    0,    0,                /* first */
    2,    0,    0,    0,                /* n */
    0,    4,    0,    0,    0, 0, 0, 0, /* bytes */
    0x0D, 0xF0, 0xAD, 0xDE,             /* sum */
};

static void fetches_match_their_bytes(void **state) {
    (void)state;
    const sl_wire_fetch f = {7, {{8 | 1ull << 56, 512}}, 9, 10, 11, 12, 0}, *got = NULL;
    _Alignas(8) uint8_t out[(SL_MAX_FETCHES + 1) * sizeof f] = {0};
    sl_wire_header h = {.kind = SL_MSG_KV_FETCH, .rows = 1};
    sl_err err;
    sl_wire_fetches_encode(&f, 1, out);
    assert_memory_equal(out, fetch_bytes, sizeof fetch_bytes);
    sl_span in = {out, sizeof f};
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_OK);
    assert_memory_equal(got, &f, sizeof f);
    in.len--;
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
    h.rows = SL_MAX_FETCHES + 1;
    in.len = sizeof out;
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "9 fetches, limit 8"));
    h.rows = 1;
    in.len = sizeof f;
    out[44] = 1; /* reserved */
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
    out[44] = 0;
    memset(out + 8, 0, 16); /* no key */
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
}

static sl_wire_blocks two_blocks(void) {
    return (sl_wire_blocks){.transfer = 7,
                            .key = {{8 | 1ull << 56, 512}},
                            .request = 9,
                            .index = 10,
                            .first = 1,
                            .n = 2,
                            .bytes = 1024,
                            .sum = 0xDEADF00D};
}

static sl_status decode(uint16_t kind, const sl_wire_blocks *b, size_t len, const uint8_t **data,
                        sl_err *err) {
    static uint8_t payload[4096] __attribute__((aligned(64)));
    const sl_wire_header h = {.kind = kind};
    sl_wire_blocks out;
    sl_wire_blocks_encode(b, payload);
    sl_status st = sl_wire_blocks_decode(&h, (sl_span){payload, len}, &model, &out, data, err);
    if (st == SL_OK) assert_memory_equal(&out, b, sizeof out);
    if (st == SL_OK && *data) assert_ptr_equal(*data, payload + SL_WIRE_BLOCKS_BYTES);
    return st;
}

static void blocks_match_their_bytes(void **state) {
    (void)state;
    sl_wire_blocks b = two_blocks();
    uint8_t out[SL_WIRE_BLOCKS_BYTES];
    const uint8_t *data = NULL;
    sl_err err;
    assert_int_equal(sl_kv_block_bytes(&model), 512);
    memset(out, 0xEE, sizeof out);
    sl_wire_blocks_encode(&b, out);
    assert_memory_equal(out, blocks_bytes, sizeof out);
    assert_int_equal(decode(SL_MSG_KV_PAGES, &b, 64 + 1024, &data, &err), SL_OK);
    assert_non_null(data);
    b.bytes = b.sum = 0; /* it is not there */
    assert_int_equal(decode(SL_MSG_KV_PAGES, &b, 64, &data, &err), SL_OK);
    assert_null(data);
    b.bytes = 1024; /* the question has no data */
    assert_int_equal(decode(SL_MSG_KV_GET, &b, 64, &data, &err), SL_OK);
    assert_null(data);
}

static void refused(sl_wire_blocks b, uint16_t kind, size_t len, const char *why) {
    sl_err err = {0};
    const uint8_t *data;
    assert_int_equal(decode(kind, &b, len, &data, &err), SL_ERR_PROTOCOL);
    if (!strstr(err.msg, why)) fail_msg("'%s', not '%s'", err.msg, why);
}

static void every_field_of_blocks_is_checked(void **state) {
    (void)state;
    sl_wire_blocks b = two_blocks();
    refused(b, SL_MSG_KV_PAGES, 64 + 1023, "1087 bytes, 1088 expected");
    refused(b, SL_MSG_KV_PAGES, 63, "63 bytes, 64 expected");
    refused(b, SL_MSG_KV_GET, 64, "a sum of nothing");
#define SPOIL(field, value, why)                                                                   \
    b = two_blocks();                                                                              \
    b.field = (value);                                                                             \
    refused(b, SL_MSG_KV_PAGES, 64 + 1024, why)
    SPOIL(type, SL_KV_TYPES, "type 5");
    SPOIL(type, SL_KV_BF16, "of bf16, pages here are of f32");
    SPOIL(key, (sl_page_key){0}, "no key");
    SPOIL(reserved, 1, "1 reserved");
    SPOIL(n, 0, "0 blocks from 1 on, of 3");
    SPOIL(n, 3, "3 blocks from 1 on, of 3");
    SPOIL(n, UINT32_MAX, "4294967295 blocks");
    SPOIL(first, 2, "2 blocks from 2 on, of 3");
    SPOIL(first, UINT32_MAX, "from 4294967295 on");
    SPOIL(bytes, 1023, "1023 bytes for 2 blocks of 512");
    SPOIL(bytes, UINT64_MAX, "18446744073709551615 bytes for 2 blocks of 512");
    SPOIL(bytes, 0, "a sum of nothing");
#undef SPOIL
}

static const uint8_t kept_bytes[] = {
    9, 0, 0, 0, 0, 0, 0, 0, /* page, 0 */
    8, 0, 0, 0, 0, 0, 0, 1, /* key */
    0, 2, 0, 0, 0, 0, 0, 0, /* and on */
};

static void kept_pages_match_their_bytes(void **state) {
    (void)state;
    const sl_wire_kept two[] = {{.page = 9, .key = {{8 | 1ull << 56, 512}}},
                                {.page = 5, .key = {{0, 1}}}},
                       *got;
    _Alignas(8) uint8_t out[sizeof two];
    sl_wire_header h = {.kind = SL_MSG_KV_KEPT, .rows = 2};
    sl_err err = {0};
    sl_wire_kept_encode(two, 2, out);
    assert_memory_equal(out, kept_bytes, sizeof kept_bytes);
    sl_span in = {out, sizeof out};
    assert_int_equal(sl_wire_kept_decode(&h, in, &got, &err), SL_OK);
    assert_memory_equal(got, two, sizeof two);
    static const struct {
        size_t len, at, n; /* from at on n bytes are 1, or, without n, 16 are 0 */
        uint32_t rows;
        const char *why;
    } bad[] = {{47, 0, 1, 2, "payload of 47 bytes, 48 expected"},
               {0, 0, 1, 2, "payload of 0 bytes, 48 expected"},
               {48, 0, 1, 3, "payload of 48 bytes, 72 expected"},
               {48, 0, 1, 0, "no pages"},
               {48, 28, 1, 2, "kept page 5 without a key, or with 1 reserved"},
               {48, 32, 0, 2, "kept page 5 without a key, or with 0 reserved"}};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_wire_kept_encode(two, 2, out);
        memset(out + bad[i].at, bad[i].n > 0, bad[i].n ? bad[i].n : 16);
        in.len = bad[i].len;
        h.rows = bad[i].rows;
        assert_int_equal(sl_wire_kept_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
        if (!strstr(err.msg, bad[i].why)) fail_msg("'%s', not '%s'", err.msg, bad[i].why);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetches_match_their_bytes),
        cmocka_unit_test(blocks_match_their_bytes),
        cmocka_unit_test(every_field_of_blocks_is_checked),
        cmocka_unit_test(kept_pages_match_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

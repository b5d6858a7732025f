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
    9,  0, 0, 0, 0, 0, 0, 0, /* request */
    10, 0, 0, 0,             /* index */
    11, 0, 0, 0,             /* page */
    12, 0, 0, 0,             /* from */
    0,  0, 0, 0,
};

static const uint8_t blocks_bytes[SL_WIRE_BLOCKS_BYTES] = {
    7,    0,    0,    0,    0, 0, 0, 0, /* transfer */
    8,    0,    0,    0,    0, 0, 0, 1, /* key */
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
    const sl_wire_fetch f = {7, 8 | 1ull << 56, 9, 10, 11, 12, 0}, *got = NULL;
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
    out[36] = 1; /* reserved */
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
    out[36] = 0;
    memset(out + 8, 0, 8); /* no key */
    assert_int_equal(sl_wire_fetches_decode(&h, in, &got, &err), SL_ERR_PROTOCOL);
}

static sl_wire_blocks two_blocks(void) {
    return (sl_wire_blocks){.transfer = 7,
                            .key = 8 | 1ull << 56,
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
    SPOIL(type, SL_KV_TYPES, "type 1");
    SPOIL(key, 0, "no key");
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
    2, 0, 0, 0, 0, 0, 0, 0, /* pages, 0 */
    9, 0, 0, 0, 5, 0, 0, 0, /* which */
};

static void kept_texts_match_their_bytes(void **state) {
    (void)state;
    const uint32_t pages[] = {9, 5};
    uint32_t tokens[2 * SL_KV_PAGE_TOKENS];
    _Alignas(8) uint8_t out[2 * (8 + 2 * 4 * (1 + SL_KV_PAGE_TOKENS))];
    const sl_wire_kept t = {.n_pages = 2, .pages = pages, .tokens = tokens};
    sl_wire_kept got;
    sl_err err = {0};
    size_t one = sl_wire_kept_bytes(2), at = 0;
    for (uint32_t i = 0; i < SL_LEN(tokens); i++) tokens[i] = 100 + i;
    assert_int_equal(2 * one, sizeof out);
    sl_wire_kept_encode(&t, out);
    sl_wire_kept_encode(&t, out + one);
    assert_memory_equal(out, kept_bytes, sizeof kept_bytes);
    assert_memory_equal(out + sizeof kept_bytes, tokens, sizeof tokens);
    sl_span in = {out, sizeof out};
    for (uint32_t i = 1; i <= 2; i++) {
        assert_int_equal(sl_wire_kept_decode(in, &at, 164, &got, &err), SL_OK);
        assert_true(got.n_pages == 2 && at == i * one);
        assert_memory_equal(got.pages, pages, sizeof pages);
        assert_memory_equal(got.tokens, tokens, sizeof tokens);
    }
    assert_int_equal(sl_wire_kept_decode(in, &at, 164, &got, &err), SL_ERR_PROTOCOL); /* behind */
    size_t none = 0;
    assert_int_equal(sl_wire_kept_decode((sl_span){0}, &none, 164, &got, &err), SL_ERR_PROTOCOL);
    static const struct {
        size_t len;
        uint32_t word, value, vocab;
        const char *why;
    } bad[] = {{271, 0, 2, 164, "text of 2 pages, 0 reserved, in 271 bytes"},
               {272, 0, 0, 164, "text of 0 pages"},
               {272, 0, UINT32_MAX, 164, "text of 4294967295 pages"},
               {272, 1, 1, 164, "1 reserved"},
               {272, 2, 9, 163, "token 163, the vocabulary has 163"},
               {7, 0, 2, 164, "in 7 bytes"}};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        at = 0;
        sl_wire_kept_encode(&t, out);
        memcpy(out + 4 * bad[i].word, &bad[i].value, 4);
        in.len = bad[i].len;
        assert_int_equal(sl_wire_kept_decode(in, &at, bad[i].vocab, &got, &err), SL_ERR_PROTOCOL);
        if (!strstr(err.msg, bad[i].why)) fail_msg("'%s', not '%s'", err.msg, bad[i].why);
        assert_int_equal(at, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetches_match_their_bytes),
        cmocka_unit_test(blocks_match_their_bytes),
        cmocka_unit_test(every_field_of_blocks_is_checked),
        cmocka_unit_test(kept_texts_match_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

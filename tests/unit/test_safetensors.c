/* Headers of safetensors, good and bad. */
#include "format/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* A file in memory: header text, then data_bytes that only count. */
static sl_status parse(const char *header, uint64_t data_bytes, sl_st_header *out, sl_err *err) {
    size_t n = strlen(header);
    uint8_t *file = malloc(n + 8);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    sl_status st =
        sl_st_header_parse("x.safetensors", (sl_span){file, n + 8}, n + 8 + data_bytes, out, err);
    free(file);
    return st;
}

static void a_header_is_read(void **state) {
    (void)state;
    sl_st_header h;
    sl_err err = {0};
    const char *text = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                       "\"__metadata__\":{\"format\":\"pt\"},"
                       "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                       "\"none\":{\"dtype\":\"I64\",\"shape\":[0,18446744],\"data_offsets\":[4,4]},"
                       "\"one\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[28,30]},"
                       "\"four\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[30,32]}}   ";
    if (parse(text, 32, &h, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(h.n_tensors, 5);
    assert_string_equal(h.tensor[0].name, "a");
    assert_string_equal(h.tensor[2].name, "b");
    assert_int_equal(h.tensor[2].n_dims, 2);
    assert_int_equal(h.tensor[2].dim[1], 3);
    assert_int_equal(h.tensor[2].begin, strlen(text) + 8 + 4);
    assert_int_equal(h.tensor[2].end - h.tensor[2].begin, 24);
    sl_dtype t;
    assert_true(sl_st_dtype_usable(h.tensor[0].dtype, &t) && t == SL_BF16);
    assert_false(sl_st_dtype_usable(h.tensor[1].dtype, &t));
    sl_st_header_free(&h);
    if (parse("{}", 0, &h, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(h.n_tensors, 0);
    sl_st_header_free(&h);
}

/* One tensor "t" with the given fields. */
#define ONE(dtype, shape, offsets)                                                                 \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void bad_headers_get_one_clear_error(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint64_t data;
        sl_status code;
        const char *text;
    } bad[] = {
        {"[]", 0, SL_ERR_FORMAT, "x.safetensors: the header must be a JSON object"},
        {"{\"t\":3}", 0, SL_ERR_FORMAT, "x.safetensors: t: a tensor must be an object"},
        {"{", 0, SL_ERR_FORMAT, "x.safetensors: line 1 column 1: "},
        {ONE("\"F31\"", "[1]", "[0,4]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.dtype: unknown type \"F31\""},
        {ONE("7", "[1]", "[0,4]"), 4, SL_ERR_FORMAT, "x.safetensors: t.dtype: an integer (7)"},
        {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, SL_ERR_FORMAT,
         "x.safetensors: t.dtype: missing"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"stride\":1}}", 4,
         SL_ERR_UNSUPPORTED, "x.safetensors: t.stride: unknown field"},
        {ONE("\"F32\"", "[-1]", "[0,4]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.shape: dimension 0 is not a non-negative integer"},
        {ONE("\"F32\"", "[1,1.0]", "[0,4]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.shape: dimension 1 is not a non-negative integer"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, SL_ERR_LIMIT,
         "x.safetensors: t.shape: 9 dimensions, limit 8"},
        {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, SL_ERR_LIMIT,
         "x.safetensors: t.shape: the product of the dimensions overflows 64 bits"},
        {ONE("\"F32\"", "[4611686018427387904]", "[0,4]"), 4, SL_ERR_LIMIT,
         "x.safetensors: t.shape: the product of the dimensions overflows 64 bits"},
        {ONE("\"F4\"", "[3]", "[0,2]"), 2, SL_ERR_FORMAT,
         "x.safetensors: t.shape: 3 elements of 4 bits do not fill whole bytes"},
        {ONE("\"F32\"", "[1]", "[4,0]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.data_offsets: begin 4 is after end 0"},
        {ONE("\"F32\"", "[2]", "[0,8]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.data_offsets: end 8 is past the data of the file (4 bytes; truncated?)"},
        {ONE("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.data_offsets: end 9223372036854775807 is past the data"},
        {ONE("\"F32\"", "[1]", "[0,8]"), 8, SL_ERR_FORMAT,
         "x.safetensors: t.data_offsets: [0, 8] are 8 bytes, shape and dtype need 4"},
        {ONE("\"F32\"", "[1]", "[0]"), 4, SL_ERR_FORMAT,
         "x.safetensors: t.data_offsets: must be two non-negative integers"},
        {ONE("\"F32\"", "[1]", "[0,4]"), 6, SL_ERR_FORMAT,
         "x.safetensors: 2 bytes after the last tensor belong to no tensor"},
        {ONE("\"F32\"", "[1]", "[4,8]"), 8, SL_ERR_FORMAT,
         "x.safetensors: bytes 0 to 4 of the data belong to no tensor (before \"t\")"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, SL_ERR_FORMAT,
         "x.safetensors: tensor \"b\" begins at offset 4 and overlaps \"a\", which ends at 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, SL_ERR_FORMAT, "duplicate key \"a\""},
        {"{\"__metadata__\":{\"format\":1}}", 0, SL_ERR_FORMAT,
         "x.safetensors: __metadata__.format: must be a string"},
        {"{\"__metadata__\":[]}", 0, SL_ERR_FORMAT,
         "x.safetensors: __metadata__: must be an object"},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, SL_ERR_LIMIT,
         "tensor name of 0 bytes, limit 1 to 512"},
        {"{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, SL_ERR_FORMAT,
         "x.safetensors: a?b: control character at byte 1 of the tensor's name"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_st_header h = {0};
        sl_err err = {0};
        sl_status st = parse(bad[i].header, bad[i].data, &h, &err);
        if (st != bad[i].code || !strstr(err.msg, bad[i].text))
            fail_msg("%s\n got %d \"%s\"\nwant %d \"%s\"", bad[i].header, st, err.msg, bad[i].code,
                     bad[i].text);
        assert_null(h.tensor);
    }
}

static void absurd_lengths_are_refused_before_reading(void **state) {
    (void)state;
    size_t need = 0;
    sl_err err = {0};
    const uint8_t absurd[8] = {0, 0, 0, 0, 0, 0, 0, 0x80}, over[8] = {1, 0xe1, 0xf5, 5};
    const uint8_t hundred[8] = {100};
    assert_int_equal(sl_st_header_bytes("x", (sl_span){absurd, 8}, 1000, &need, &err),
                     SL_ERR_LIMIT);
    assert_string_equal(err.msg, "x: header length 9223372036854775808, limit 100000000");
    assert_int_equal(sl_st_header_bytes("x", (sl_span){over, 8}, 1u << 30, &need, &err),
                     SL_ERR_LIMIT);
    assert_string_equal(err.msg, "x: header length 100000001, limit 100000000");
    assert_int_equal(sl_st_header_bytes("x", (sl_span){hundred, 8}, 50, &need, &err),
                     SL_ERR_FORMAT);
    assert_string_equal(err.msg, "x: truncated: header length 100, but only 42 bytes follow it");
    assert_int_equal(sl_st_header_bytes("x", (sl_span){hundred, 3}, 3, &need, &err), SL_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "x: truncated: 3 bytes"));
    assert_int_equal(sl_st_header_bytes("x", (sl_span){hundred, 8}, 108, &need, &err), SL_OK);
    assert_int_equal(need, 108);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_read),
        cmocka_unit_test(bad_headers_get_one_clear_error),
        cmocka_unit_test(absurd_lengths_are_refused_before_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

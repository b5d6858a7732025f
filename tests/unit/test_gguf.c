/* GGUF files, whole and damaged: what is wrong is refused, and named. */
#include "base/mem.h"
#include "format/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* A file of three keys and two tensors; tests change one thing. */
typedef struct file {
    const char *magic;
    uint32_t version;
    uint64_t n_tensors, n_keys;
    const char *key[3];
    uint32_t kind[3]; /* of the keys: the second is a number, the third an array of strings */
    uint32_t align;
    uint32_t element;
    uint64_t elements;
    const char *name[2];
    uint32_t n_dims, type[2];
    uint64_t dim[2], offset[2];
    size_t cut, data; /* bytes cut off the end, bytes of data */
} file;

static const file whole = {
    .magic = "GGUF",
    .version = 3,
    .n_tensors = 2,
    .n_keys = 3,
    .key = {"general.architecture", "general.alignment", "list"},
    .kind = {SL_GGUF_STRING, SL_GGUF_U32, SL_GGUF_ARRAY},
    .align = 64,
    .element = SL_GGUF_STRING,
    .elements = 2,
    .name = {"a", "b"},
    .n_dims = 2,
    .type = {0, 8},
    .dim = {32, 3},
    .offset = {0, 384},
    .data = 384 + 3 * 34,
};

static void put_text(sl_wr *w, const char *s) {
    sl_wr_u64(w, strlen(s));
    sl_wr_bytes(w, s, strlen(s));
}

static size_t build(const file *f, uint8_t *out, size_t cap) {
    sl_wr w = sl_wr_of(out, cap);
    sl_wr_bytes(&w, f->magic, 4);
    sl_wr_u32(&w, f->version);
    sl_wr_u64(&w, f->n_tensors);
    sl_wr_u64(&w, f->n_keys);
    put_text(&w, f->key[0]);
    sl_wr_u32(&w, f->kind[0]);
    put_text(&w, "llama");
    put_text(&w, f->key[1]);
    sl_wr_u32(&w, f->kind[1]);
    sl_wr_u32(&w, f->align);
    put_text(&w, f->key[2]);
    sl_wr_u32(&w, f->kind[2]);
    sl_wr_u32(&w, f->element);
    sl_wr_u64(&w, f->elements);
    put_text(&w, "x");
    put_text(&w, "yz");
    for (int i = 0; i < 2; i++) {
        put_text(&w, f->name[i]);
        sl_wr_u32(&w, f->n_dims);
        for (uint32_t d = 0; d < f->n_dims; d++) sl_wr_u64(&w, d < 2 ? f->dim[d] : 1);
        sl_wr_u32(&w, f->type[i]);
        sl_wr_u64(&w, f->offset[i]);
    }
    while (w.ok && w.len % 64) sl_wr_u8(&w, 0);
    for (size_t i = 0; i < f->data; i++) sl_wr_u8(&w, (uint8_t)i);
    assert_true(w.ok);
    return w.len - f->cut;
}

static void refused(const file *f, sl_status want, const char *says) {
    uint8_t bytes[4096];
    sl_gguf *g = NULL;
    sl_err err = {0};
    sl_status st =
        sl_gguf_parse("m.gguf", (sl_span){bytes, build(f, bytes, sizeof bytes)}, &g, &err);
    if (st != want || !strstr(err.msg, says) || strncmp(err.msg, "m.gguf: ", 8) != 0)
        fail_msg("got %d \"%s\", expected %d with \"%s\"", st, err.msg, want, says);
}

#define REFUSED(want, says, ...)                                                                   \
    do {                                                                                           \
        file f = whole;                                                                            \
        __VA_ARGS__;                                                                               \
        refused(&f, want, says);                                                                   \
    } while (0)

static void a_whole_file_is_read(void **state) {
    (void)state;
    uint8_t bytes[4096];
    for (uint32_t version = 2; version <= 3; version++) {
        file f = whole;
        f.version = version;
        sl_gguf *g = NULL;
        sl_err err = {0};
        sl_span text = {0};
        uint64_t v = 0;
        const sl_gguf_kv *list = NULL;
        size_t at = 0, n = build(&f, bytes, sizeof bytes);
        if (sl_gguf_parse("m.gguf", (sl_span){bytes, n}, &g, &err) != SL_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(sl_gguf_keys(g), 3);
        assert_int_equal(sl_gguf_string(g, "general.architecture", SL_GGUF_REQUIRED, &text, &err),
                         0);
        assert_memory_equal(text.data, "llama", 5);
        assert_int_equal(sl_gguf_u64(g, "general.alignment", SL_GGUF_REQUIRED, 1, 64, &v, &err), 0);
        assert_int_equal(v, 64);
        assert_int_equal(sl_gguf_strings(g, "list", SL_GGUF_REQUIRED, &list, &err), 0);
        assert_true(sl_gguf_next_string(list, &at, &text) && text.len == 1);
        assert_true(sl_gguf_next_string(list, &at, &text) && text.len == 2);
        assert_false(sl_gguf_next_string(list, &at, &text));
        const sl_gguf_tensor *b = sl_gguf_tensor_find(g, "b");
        assert_non_null(b);
        assert_true(b->usable && b->dtype == SL_Q8_0 && b->n_dims == 2);
        assert_true(b->dim[0] == 3 && b->dim[1] == 32 && b->end == n);
        assert_null(sl_gguf_tensor_find(g, "c"));
        assert_int_equal(sl_gguf_u64(g, "none", SL_GGUF_OPTIONAL, 0, 1, &v, &err), 0);
        assert_int_equal(sl_gguf_u64(g, "none", SL_GGUF_REQUIRED, 0, 1, &v, &err), SL_ERR_FORMAT);
        assert_int_equal(sl_gguf_u64(g, "list", SL_GGUF_OPTIONAL, 0, 1, &v, &err), SL_ERR_FORMAT);
        assert_int_equal(sl_gguf_u64(g, "general.alignment", SL_GGUF_OPTIONAL, 0, 63, &v, &err),
                         SL_ERR_LIMIT);
        assert_string_equal(err.msg, "m.gguf: general.alignment: 64, limit 0 to 63");
        sl_gguf_close(g);
    }
}

static void a_damaged_head_is_refused(void **state) {
    (void)state;
    REFUSED(SL_ERR_FORMAT, "not a GGUF file", f.magic = "GGML");
    REFUSED(SL_ERR_UNSUPPORTED, "version 1", f.version = 1);
    REFUSED(SL_ERR_UNSUPPORTED, "big-endian", f.version = 3u << 24);
    REFUSED(SL_ERR_LIMIT, "keys, limit 65536", f.n_keys = 1ull << 62);
    REFUSED(SL_ERR_LIMIT, "tensors, limit 1048576", f.n_tensors = UINT64_MAX);
    REFUSED(SL_ERR_FORMAT, "type 13", f.kind[0] = 13);
    REFUSED(SL_ERR_FORMAT, "key \"list\" is given twice", f.key[1] = "list");
    REFUSED(SL_ERR_FORMAT, "not 1 to 4096 printable bytes", f.key[0] = "");
    REFUSED(SL_ERR_FORMAT, "not 1 to 4096 printable bytes", f.key[0] = "a\nb");
    REFUSED(SL_ERR_FORMAT, "general.alignment: 48 is no power of two", f.align = 48);
    REFUSED(SL_ERR_LIMIT, "general.alignment: 0, limit", f.align = 0);
    REFUSED(SL_ERR_UNSUPPORTED, "list: array of arrays", f.element = SL_GGUF_ARRAY);
    REFUSED(SL_ERR_FORMAT, "list: array of type 77", f.element = 77);
    REFUSED(SL_ERR_FORMAT, "elements of at least 8 bytes", f.elements = UINT64_MAX / 8);
    REFUSED(SL_ERR_FORMAT, "elements of at least 1 bytes", f.element = SL_GGUF_U8;
            f.elements = UINT64_MAX);
    REFUSED(SL_ERR_UNSUPPORTED, "split.count: a model in 64 files", f.key[1] = "split.count");
}

static void a_damaged_tensor_is_refused(void **state) {
    (void)state;
    REFUSED(SL_ERR_FORMAT, "tensor \"a\" is given twice", f.name[1] = "a");
    REFUSED(SL_ERR_FORMAT, "not 1 to 512 printable bytes", f.name[0] = "");
    REFUSED(SL_ERR_LIMIT, "5 dimensions, limit 1 to 4", f.n_dims = 5);
    REFUSED(SL_ERR_LIMIT, "0 dimensions", f.n_dims = 0);
    REFUSED(SL_ERR_FORMAT, "dimension 1 is 0", f.dim[1] = 0);
    REFUSED(SL_ERR_LIMIT, "product of the dimensions overflows", f.dim[1] = INT64_MAX);
    REFUSED(SL_ERR_FORMAT, "dimension 1 is 18446744073709551615", f.dim[1] = UINT64_MAX);
    REFUSED(SL_ERR_FORMAT, "tensor \"b\": rows of 16 values are not a multiple of 32",
            f.dim[0] = 16);
    REFUSED(SL_ERR_UNSUPPORTED, "tensor \"b\": unknown type 4", f.type[1] = 4);
    REFUSED(SL_ERR_UNSUPPORTED, "tensor \"b\": unknown type 4000", f.type[1] = 4000);
    REFUSED(SL_ERR_FORMAT, "offset 390 is not a multiple of the alignment 64", f.offset[1] = 390);
    REFUSED(SL_ERR_FORMAT, "past the end of the file", f.offset[1] = 1ull << 40);
    REFUSED(SL_ERR_FORMAT, "past the end of the file", f.offset[1] = UINT64_MAX - 63);
    REFUSED(SL_ERR_FORMAT, "past the end of the file", f.cut = 1);
    REFUSED(SL_ERR_FORMAT, "overlaps \"a\", which ends at 384", f.offset[1] = 320);
    REFUSED(SL_ERR_FORMAT, "64 bytes before tensor \"b\" belong to no tensor", f.offset[1] = 448;
            f.data += 64);
}

static void every_cut_is_refused(void **state) {
    (void)state;
    uint8_t bytes[4096];
    size_t n = build(&whole, bytes, sizeof bytes);
    for (size_t cut = 1; cut <= n; cut++) {
        sl_gguf *g = NULL;
        sl_err err = {0};
        uint8_t *exact =
            sl_alloc(n - cut + 1, 1); /* so that a sanitizer sees a read past the end */
        assert_non_null(exact);
        memcpy(exact, bytes, n - cut);
        assert_int_not_equal(sl_gguf_parse("m.gguf", (sl_span){exact, n - cut}, &g, &err), SL_OK);
        assert_null(g);
        sl_free(exact);
    }
}

static void memory_may_run_out(void **state) {
    (void)state;
    uint8_t bytes[4096];
    size_t n = build(&whole, bytes, sizeof bytes);
    for (uint64_t i = 1; i < 100; i++) {
        sl_gguf *g = NULL;
        sl_err err = {0};
        sl_mem_fail_at(i);
        sl_status st = sl_gguf_parse("m.gguf", (sl_span){bytes, n}, &g, &err);
        sl_mem_fail_at(0);
        sl_gguf_close(g);
        if (st == SL_OK) return;
        assert_int_equal(st, SL_ERR_NOMEM);
    }
    fail();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_is_read),        cmocka_unit_test(a_damaged_head_is_refused),
        cmocka_unit_test(a_damaged_tensor_is_refused), cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

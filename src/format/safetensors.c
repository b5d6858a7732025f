/* Headers of safetensors files, checked against the file's length. */
#include "format/safetensors.h"

#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
#define SL_ST_DTYPE_ROW(name, bits) {#name, bits},
    SL_ST_DTYPE_LIST(SL_ST_DTYPE_ROW)
#undef SL_ST_DTYPE_ROW
};

const char *sl_st_dtype_name(sl_st_dtype t) {
    return (size_t)t < SL_LEN(dtypes) ? dtypes[t].name : "unknown";
}

bool sl_st_dtype_usable(sl_st_dtype t, sl_dtype *out) {
    switch (t) {
    case SL_ST_F32:
        *out = SL_F32;
        return true;
    case SL_ST_F16:
        *out = SL_F16;
        return true;
    case SL_ST_BF16:
        *out = SL_BF16;
        return true;
    case SL_ST_F8_E4M3:
        *out = SL_F8_E4M3;
        return true;
    default:
        return false;
    }
}

const char *sl_st_shape_text(const uint64_t *dim, uint32_t n_dims, char *buf, size_t cap) {
    size_t used = (size_t)snprintf(buf, cap, "[");
    for (uint32_t i = 0; i < n_dims && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)dim[i]);
    if (used < cap) snprintf(buf + used, cap - used, "]");
    return buf;
}

sl_status sl_st_header_bytes(const char *file, sl_span first8, uint64_t file_bytes, size_t *out,
                             sl_err *err) {
    sl_cur c = sl_cur_of(first8);
    uint64_t n = sl_cur_u64(&c);
    if (!c.ok || file_bytes < 8)
        return sl_fail(
            err, SL_ERR_FORMAT,
            "%s: truncated: %llu bytes, a safetensors file starts with 8 bytes of header "
            "length",
            file, (unsigned long long)file_bytes);
    if (n > SL_ST_MAX_HEADER_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "%s: header length %llu, limit %u", file,
                       (unsigned long long)n, SL_ST_MAX_HEADER_BYTES);
    if (n > file_bytes - 8)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: truncated: header length %llu, but only %llu bytes follow it", file,
                       (unsigned long long)n, (unsigned long long)(file_bytes - 8));
    *out = (size_t)n + 8;
    return SL_OK;
}

static sl_status read_dtype(sl_json field, sl_st_tensor *t, sl_err *err) {
    const char *text = NULL;
    sl_status st = sl_json_string(field, "dtype", SL_JSON_REQUIRED, &text, err);
    if (st != SL_OK) return st;
    for (size_t i = 0; i < SL_LEN(dtypes); i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            t->dtype = (sl_st_dtype)i;
            return SL_OK;
        }
    return sl_json_fail(field, "dtype", err, SL_ERR_FORMAT, "unknown type \"%.32s\"", text);
}

static sl_status read_shape(sl_json field, sl_st_tensor *t, uint64_t *bytes, sl_err *err) {
    sl_json shape = {0};
    sl_status st = sl_json_array(field, "shape", SL_JSON_REQUIRED, &shape, err);
    if (st != SL_OK) return st;
    size_t n = sl_json_count(shape);
    if (n > SL_ST_MAX_DIMS)
        return sl_json_fail(field, "shape", err, SL_ERR_LIMIT, "%zu dimensions, limit %d", n,
                            SL_ST_MAX_DIMS);
    t->n_dims = (uint32_t)n;
    uint64_t elements = 1, bits;
    bool fits = true, empty = false;
    for (size_t i = 0; i < n; i++) {
        if (!sl_json_as_u64(sl_json_at(shape, i), &t->dim[i]))
            return sl_json_fail(field, "shape", err, SL_ERR_FORMAT,
                                "dimension %zu is not a non-negative integer", i);
        empty = empty || t->dim[i] == 0;
        fits = fits && !__builtin_mul_overflow(elements, t->dim[i], &elements);
    }
    if (empty) elements = 0;
    if ((!fits && !empty) || __builtin_mul_overflow(elements, dtypes[t->dtype].bits, &bits))
        return sl_json_fail(field, "shape", err, SL_ERR_LIMIT,
                            "the product of the dimensions overflows 64 bits");
    if (bits % 8 != 0)
        return sl_json_fail(field, "shape", err, SL_ERR_FORMAT,
                            "%llu elements of %u bits do not fill whole bytes",
                            (unsigned long long)elements, dtypes[t->dtype].bits);
    *bytes = bits / 8;
    return SL_OK;
}

static sl_status read_offsets(sl_json field, sl_st_tensor *t, uint64_t bytes, uint64_t data_begin,
                              uint64_t file_bytes, sl_err *err) {
    static const char key[] = "data_offsets";
    sl_json pair = {0};
    uint64_t begin = 0, end = 0;
    sl_status st = sl_json_array(field, key, SL_JSON_REQUIRED, &pair, err);
    if (st != SL_OK) return st;
    if (sl_json_count(pair) != 2 || !sl_json_as_u64(sl_json_at(pair, 0), &begin) ||
        !sl_json_as_u64(sl_json_at(pair, 1), &end))
        return sl_json_fail(field, key, err, SL_ERR_FORMAT,
                            "must be two non-negative integers [begin, end]");
    unsigned long long b = begin, e = end, have = file_bytes - data_begin;
    if (begin > end)
        return sl_json_fail(field, key, err, SL_ERR_FORMAT, "begin %llu is after end %llu", b, e);
    if (end > file_bytes - data_begin)
        return sl_json_fail(field, key, err, SL_ERR_FORMAT,
                            "end %llu is past the data of the file (%llu bytes; truncated?)", e,
                            have);
    if (end - begin != bytes)
        return sl_json_fail(field, key, err, SL_ERR_FORMAT,
                            "[%llu, %llu] are %llu bytes, shape and dtype need %llu", b, e, e - b,
                            (unsigned long long)bytes);
    t->begin = data_begin + begin;
    t->end = data_begin + end;
    return SL_OK;
}

static sl_status read_tensor(sl_json field, const char *name, uint64_t data_begin,
                             uint64_t file_bytes, sl_st_tensor *t, sl_err *err) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    uint64_t bytes = 0;
    if (sl_json_kind_of(field) != SL_JSON_OBJECT)
        return sl_json_fail(field, NULL, err, SL_ERR_FORMAT, "a tensor must be an object");
    size_t len = strlen(name);
    if (len == 0 || len > SL_ST_MAX_NAME)
        return sl_json_fail(field, NULL, err, SL_ERR_LIMIT,
                            "tensor name of %zu bytes, limit 1 to %d", len, SL_ST_MAX_NAME);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return sl_json_fail(field, NULL, err, SL_ERR_FORMAT,
                                "control character at byte %zu of the tensor's name", i);
    sl_status st = sl_json_only(field, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = read_dtype(field, t, err);
    if (st == SL_OK) st = read_shape(field, t, &bytes, err);
    if (st == SL_OK) st = read_offsets(field, t, bytes, data_begin, file_bytes, err);
    if (st != SL_OK) return st;
    t->name = sl_strdup(name);
    return t->name ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "tensor name");
}

static sl_status check_metadata(sl_json meta, sl_err *err) {
    if (sl_json_kind_of(meta) != SL_JSON_OBJECT)
        return sl_json_fail(meta, NULL, err, SL_ERR_FORMAT, "must be an object of strings");
    void *iter = NULL;
    const char *key = NULL;
    sl_json value = {0};
    while (sl_json_next(meta, &iter, &key, &value))
        if (sl_json_kind_of(value) != SL_JSON_STRING)
            return sl_json_fail(meta, key, err, SL_ERR_FORMAT, "must be a string");
    return SL_OK;
}

static int by_offset(const void *a, const void *b) {
    const sl_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The data section is covered exactly once. */
static sl_status check_cover(const char *file, const sl_st_header *h, uint64_t data_begin,
                             sl_err *err) {
    uint64_t at = data_begin;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const sl_st_tensor *t = &h->tensor[i];
        unsigned long long begin = t->begin - data_begin, done = at - data_begin;
        if (t->begin < at)
            return sl_fail(
                err, SL_ERR_FORMAT,
                "%s: tensor \"%s\" begins at offset %llu and overlaps \"%s\", which ends "
                "at %llu",
                file, t->name, begin, h->tensor[i - 1].name, done);
        if (t->begin > at)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: bytes %llu to %llu of the data belong to no tensor (before \"%s\")",
                           file, done, begin, t->name);
        at = t->end;
    }
    if (at != h->file_bytes)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: %llu bytes after the last tensor belong to no tensor", file,
                       (unsigned long long)(h->file_bytes - at));
    return SL_OK;
}

static sl_status read_tensors(sl_json root, uint64_t data_begin, sl_st_header *h, sl_err *err) {
    void *iter = NULL;
    const char *name = NULL;
    sl_json field = {0};
    while (sl_json_next(root, &iter, &name, &field)) {
        sl_status st;
        if (strcmp(name, "__metadata__") == 0) {
            st = check_metadata(field, err);
        } else {
            sl_st_tensor *t = &h->tensor[h->n_tensors];
            st = read_tensor(field, name, data_begin, h->file_bytes, t, err);
            if (st == SL_OK) h->n_tensors++;
        }
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_st_header_parse(const char *file, sl_span head, uint64_t file_bytes, sl_st_header *out,
                             sl_err *err) {
    sl_st_header h = {.file_bytes = file_bytes};
    sl_json_doc *doc = NULL;
    size_t data_begin = 0;
    sl_status st = sl_st_header_bytes(file, head, file_bytes, &data_begin, err);
    if (st != SL_OK) return st;
    if (data_begin > head.len)
        return sl_fail(err, SL_ERR_ARG, "%s: %zu header bytes needed, %zu given", file, data_begin,
                       head.len);
    st = sl_json_parse(file, (sl_span){head.data + 8, data_begin - 8}, &doc, err);
    if (st != SL_OK) goto out;
    sl_json root = sl_json_root(doc);
    if (sl_json_kind_of(root) != SL_JSON_OBJECT) {
        st = sl_fail(err, SL_ERR_FORMAT, "%s: the header must be a JSON object", file);
        goto out;
    }
    h.tensor = sl_alloc(sl_json_count(root), sizeof *h.tensor);
    if (!h.tensor) {
        st = sl_fail(err, SL_ERR_NOMEM, "%s: %zu tensors", file, sl_json_count(root));
        goto out;
    }
    st = read_tensors(root, data_begin, &h, err);
    if (st != SL_OK) goto out;
    qsort(h.tensor, h.n_tensors, sizeof *h.tensor, by_offset);
    st = check_cover(file, &h, data_begin, err);
    if (st != SL_OK) goto out;
    *out = h;
    h = (sl_st_header){0};
out:
    sl_st_header_free(&h);
    sl_json_doc_free(doc);
    return st;
}

void sl_st_header_free(sl_st_header *h) {
    for (size_t i = 0; h->tensor && i < h->n_tensors; i++) sl_free(h->tensor[i].name);
    sl_free(h->tensor);
    *h = (sl_st_header){0};
}

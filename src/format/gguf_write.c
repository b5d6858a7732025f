/* GGUF files written: metadata, table of tensors, data with its padding. */
#include "format/gguf_write.h"

#include "base/mem.h"
#include "base/output.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

typedef struct buffer {
    uint8_t *data;
    size_t len, cap;
} buffer;

/* The system keeps in large pages what reaches the file cache in whole ones of 2 MB. */
#define WRITE_BYTES ((size_t)4 << 20)

struct sl_gguf_out {
    char *path;
    char *file_memory; /* of file, WRITE_BYTES */
    sl_output file;
    buffer keys, tensors;
    bool failed; /* memory was out */
    uint64_t n_keys, n_tensors, offset;
    uint32_t align;
    uint64_t *bytes;       /* of each tensor */
    size_t bytes_cap, now; /* the tensor that is written */
    uint64_t done;         /* bytes of it */
};

static void put(sl_gguf_out *w, buffer *b, const void *s, size_t n) {
    if (w->failed || n == 0) return;
    if (n > b->cap - b->len) {
        size_t cap = 2 * b->cap + n + 4096;
        uint8_t *grown = sl_grow(b->data, b->cap, cap, 1);
        w->failed = grown == NULL;
        if (!grown) return;
        b->data = grown;
        b->cap = cap;
    }
    memcpy(b->data + b->len, s, n);
    b->len += n;
}

static void put_uint(sl_gguf_out *w, buffer *b, uint64_t v, size_t bytes) {
    uint8_t raw[8];
    for (size_t i = 0; i < bytes; i++) raw[i] = (uint8_t)(v >> (8 * i));
    put(w, b, raw, bytes);
}

static void put_text(sl_gguf_out *w, buffer *b, sl_span s) {
    put_uint(w, b, s.len, 8);
    put(w, b, s.data, s.len);
}

static void put_key(sl_gguf_out *w, const char *key, sl_gguf_type type) {
    put_text(w, &w->keys, (sl_span){(const uint8_t *)key, strlen(key)});
    put_uint(w, &w->keys, type, 4);
    w->n_keys++;
}

static sl_status io_error(const sl_gguf_out *w, const char *what, sl_err *err) {
    return sl_fail(err, SL_ERR_IO, "%s: cannot %s: %s", w->path, what, strerror(errno));
}

sl_status sl_gguf_out_open(const char *path, bool replace, sl_gguf_out **out, sl_err *err) {
    if (!replace && access(path, F_OK) == 0)
        return sl_fail(err, SL_ERR_ARG, "%s: is there already (--force replaces it)", path);
    sl_gguf_out *w = sl_alloc(1, sizeof *w);
    if (w) w->path = sl_strdup(path);
    if (w) w->file_memory = sl_alloc(WRITE_BYTES, 1);
    sl_status st = SL_OK;
    if (!w || !w->path || !w->file_memory)
        st = sl_fail(err, SL_ERR_NOMEM, "%s: writer", path);
    else
        st = sl_output_open(path, &w->file, err);
    if (st != SL_OK) {
        sl_gguf_out_free(w);
        return st;
    }
    (void)setvbuf(w->file.f, w->file_memory, _IOFBF, WRITE_BYTES);
    w->align = SL_GGUF_ALIGN;
    *out = w;
    return SL_OK;
}

void sl_gguf_out_free(sl_gguf_out *w) {
    if (!w) return;
    sl_output_abandon(&w->file);
    sl_free(w->path);
    sl_free(w->file_memory);
    sl_free(w->keys.data);
    sl_free(w->tensors.data);
    sl_free(w->bytes);
    sl_free(w);
}

void sl_gguf_out_u32(sl_gguf_out *w, const char *key, uint32_t v) {
    put_key(w, key, SL_GGUF_U32);
    put_uint(w, &w->keys, v, 4);
}

void sl_gguf_out_f32(sl_gguf_out *w, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(w, key, SL_GGUF_F32);
    put_uint(w, &w->keys, bits, 4);
}

void sl_gguf_out_bool(sl_gguf_out *w, const char *key, bool v) {
    put_key(w, key, SL_GGUF_BOOL);
    put_uint(w, &w->keys, v, 1);
}

void sl_gguf_out_string(sl_gguf_out *w, const char *key, sl_span v) {
    put_key(w, key, SL_GGUF_STRING);
    put_text(w, &w->keys, v);
}

void sl_gguf_out_array(sl_gguf_out *w, const char *key, sl_gguf_type type, uint64_t n) {
    put_key(w, key, SL_GGUF_ARRAY);
    put_uint(w, &w->keys, type, 4);
    put_uint(w, &w->keys, n, 8);
}

void sl_gguf_out_kv(sl_gguf_out *w, const sl_gguf_kv *kv) {
    put_text(w, &w->keys, kv->key);
    put_uint(w, &w->keys, kv->array ? SL_GGUF_ARRAY : kv->type, 4);
    if (kv->array) {
        put_uint(w, &w->keys, kv->type, 4);
        put_uint(w, &w->keys, kv->count, 8);
    } else if (kv->type == SL_GGUF_STRING) {
        put_uint(w, &w->keys, kv->value.len, 8);
    }
    put(w, &w->keys, kv->value.data, kv->value.len);
    w->n_keys++;
}

void sl_gguf_out_align(sl_gguf_out *w, uint32_t bytes) {
    SL_ASSERT(bytes <= SL_GGUF_ALIGN_MOST && w->n_tensors == 0);
    sl_gguf_out_u32(w, "general.alignment", bytes);
    w->align = bytes;
}

void sl_gguf_out_item(sl_gguf_out *w, sl_span s) {
    put_text(w, &w->keys, s);
}

void sl_gguf_out_item32(sl_gguf_out *w, uint32_t bits) {
    put_uint(w, &w->keys, bits, 4);
}

/* Numbers of the types that are written. */
static uint32_t number_of(sl_dtype type) {
    switch (type) {
    case SL_F32:
        return 0;
    case SL_F16:
        return 1;
    case SL_BF16:
        return 30;
    case SL_Q8_0:
        return 8;
    case SL_Q4_0:
        return 2;
    case SL_MXFP4:
        return 39;
    case SL_Q4_K:
        return 12;
    case SL_Q5_K:
        return 13;
    default:
        return 14;
    }
}

/* The entry of a tensor of so many bytes. */
static void put_tensor(sl_gguf_out *w, const char *name, uint32_t number, const uint64_t *dim,
                       uint32_t n_dims, uint64_t bytes) {
    put_text(w, &w->tensors, (sl_span){(const uint8_t *)name, strlen(name)});
    put_uint(w, &w->tensors, n_dims, 4);
    for (uint32_t i = n_dims; i-- > 0;) put_uint(w, &w->tensors, dim[i], 8);
    put_uint(w, &w->tensors, number, 4);
    put_uint(w, &w->tensors, w->offset, 8);
    if (w->n_tensors == w->bytes_cap) {
        size_t cap = 2 * w->bytes_cap + 256;
        uint64_t *grown = sl_grow(w->bytes, w->bytes_cap, cap, sizeof *grown);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->bytes = grown;
        w->bytes_cap = cap;
    }
    w->bytes[w->n_tensors++] = bytes;
    w->offset += (bytes + w->align - 1) / w->align * w->align;
}

void sl_gguf_out_tensor(sl_gguf_out *w, const char *name, sl_dtype type, const uint64_t *dim,
                        uint32_t n_dims) {
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < n_dims; i++) rows *= dim[i];
    put_tensor(w, name, number_of(type), dim, n_dims,
               rows * sl_dtype_row_bytes(type, (size_t)dim[n_dims - 1]));
}

void sl_gguf_out_copy(sl_gguf_out *w, const sl_gguf_tensor *t, uint32_t number) {
    put_tensor(w, t->name, number, t->dim, t->n_dims, t->end - t->begin);
}

static sl_status pad(sl_gguf_out *w, uint64_t n, sl_err *err) {
    static const uint8_t zero[SL_GGUF_ALIGN_MOST];
    size_t rest = (size_t)((w->align - n % w->align) % w->align);
    return fwrite(zero, 1, rest, w->file.f) == rest ? SL_OK : io_error(w, "write", err);
}

sl_status sl_gguf_out_begin(sl_gguf_out *w, sl_err *err) {
    buffer head = {0};
    put(w, &head, "GGUF", 4);
    put_uint(w, &head, 3, 4);
    put_uint(w, &head, w->n_tensors, 8);
    put_uint(w, &head, w->n_keys, 8);
    put(w, &head, w->keys.data, w->keys.len);
    put(w, &head, w->tensors.data, w->tensors.len);
    sl_status st = w->failed ? sl_fail(err, SL_ERR_NOMEM, "%s: head", w->path) : SL_OK;
    if (st == SL_OK && fwrite(head.data, 1, head.len, w->file.f) != head.len)
        st = io_error(w, "write", err);
    if (st == SL_OK) st = pad(w, head.len, err);
    sl_free(head.data);
    return st;
}

sl_status sl_gguf_out_data(sl_gguf_out *w, const void *data, size_t n, sl_err *err) {
    SL_ASSERT(w->now < w->n_tensors && n <= w->bytes[w->now] - w->done);
    if (fwrite(data, 1, n, w->file.f) != n) return io_error(w, "write", err);
    w->done += n;
    if (w->done < w->bytes[w->now]) return SL_OK;
    w->done = 0;
    return pad(w, w->bytes[w->now++], err);
}

sl_status sl_gguf_out_finish(sl_gguf_out *w, sl_err *err) {
    SL_ASSERT(w->now == w->n_tensors);
    return sl_output_close(&w->file, err);
}

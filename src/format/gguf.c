/* GGUF files, whole or in parts: metadata and tensors, all bounded before they are read. */
#include "format/gguf_int.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Types of tensors by their number in the file: values of a block, bytes of a block. Only the size
 * matters of those that no kernel here reads. Numbers not listed were withdrawn or are unknown. */
static const struct {
    uint32_t id;
    const char *name;
    uint32_t values, bytes;
    int dtype; /* -1: cannot hold weights here */
    sl_repack repack;
} types[] = {
    {0, "F32", 1, 4, SL_F32},
    {1, "F16", 1, 2, SL_F16},
    {2, "Q4_0", 32, 18, SL_Q4_0},
    {3, "Q4_1", 32, 20, -1},
    {6, "Q5_0", 32, 22, SL_Q8_0, SL_REPACK_Q5_0},
    {7, "Q5_1", 32, 24, -1},
    {8, "Q8_0", 32, 34, SL_Q8_0},
    {9, "Q8_1", 32, 36, -1},
    {10, "Q2_K", 256, 84, -1},
    {11, "Q3_K", 256, 110, -1},
    {12, "Q4_K", 256, 144, SL_Q4_K},
    {13, "Q5_K", 256, 176, SL_Q5_K},
    {14, "Q6_K", 256, 210, SL_Q6_K},
    {15, "Q8_K", 256, 292, -1},
    {16, "IQ2_XXS", 256, 66, -1},
    {17, "IQ2_XS", 256, 74, -1},
    {18, "IQ3_XXS", 256, 98, -1},
    {19, "IQ1_S", 256, 50, -1},
    {20, "IQ4_NL", 32, 18, SL_Q8_0, SL_REPACK_IQ4_NL},
    {21, "IQ3_S", 256, 110, -1},
    {22, "IQ2_S", 256, 82, -1},
    {23, "IQ4_XS", 256, 136, -1},
    {24, "I8", 1, 1, -1},
    {25, "I16", 1, 2, -1},
    {26, "I32", 1, 4, -1},
    {27, "I64", 1, 8, -1},
    {28, "F64", 1, 8, -1},
    {29, "IQ1_M", 256, 56, -1},
    {30, "BF16", 1, 2, SL_BF16},
    {34, "TQ1_0", 256, 54, -1},
    {35, "TQ2_0", 256, 66, -1},
    {39, "MXFP4", 32, 17, SL_MXFP4},
};

static const struct {
    const char *name;
    uint32_t bytes;
} kinds[] = {
#define SL_GGUF_ROW(name, bytes) {#name, bytes},
    SL_GGUF_TYPE_LIST(SL_GGUF_ROW)
#undef SL_GGUF_ROW
};

bool sl_gguf_is(const char *path) {
    static const char ending[] = ".gguf";
    size_t n = strlen(path), tail = sizeof ending - 1;
    struct stat s;
    bool there = stat(path, &s) == 0;
    if (there && S_ISDIR(s.st_mode)) return false;
    if (n > tail && strcmp(path + n - tail, ending) == 0) return true;
    char magic[4] = "";
    FILE *f = there && S_ISREG(s.st_mode) ? fopen(path, "rb") : NULL;
    if (!f) return false;
    bool is = fread(magic, 1, sizeof magic, f) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    fclose(f);
    return is;
}

sl_status sl_gguf_fail(const sl_gguf *g, const char *key, sl_err *err, sl_status code,
                       const char *fmt, ...) {
    char message[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return sl_fail(err, code, "%s: %.200s: %s", g->first.path, key, message);
}

static bool is_text(sl_span s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < 0x20 || s.data[i] == 0x7f) return false;
    return true;
}

/* A length and so many bytes. */
static bool read_string(sl_cur *c, sl_span *out) {
    uint64_t n = sl_cur_u64(c);
    if (n > sl_cur_left(c)) c->ok = false;
    const uint8_t *p = sl_cur_take(c, (size_t)n);
    *out = (sl_span){p, p ? (size_t)n : 0};
    return c->ok;
}

static sl_status truncated(const sl_gguf *g, const sl_cur *c, const char *what, sl_err *err) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: truncated: %s at byte %zu does not fit into %zu bytes",
                   g->first.path, what, c->pos, g->first.bytes.len);
}

/* ---- metadata ---- */

static sl_status read_array(const sl_gguf *g, sl_cur *c, const char *key, sl_gguf_kv *kv,
                            sl_err *err) {
    uint32_t type = sl_cur_u32(c);
    kv->count = sl_cur_u64(c);
    if (!c->ok) return truncated(g, c, "the head of an array", err);
    if (type >= SL_GGUF_TYPE_COUNT)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT,
                            "array of type %u, which is none of 0 to %d", type,
                            SL_GGUF_TYPE_COUNT - 1);
    if (type == SL_GGUF_ARRAY)
        return sl_gguf_fail(g, key, err, SL_ERR_UNSUPPORTED, "array of arrays");
    kv->type = (sl_gguf_type)type;
    size_t start = c->pos, least = kinds[type].bytes ? kinds[type].bytes : 8;
    if (kv->count > sl_cur_left(c) / least)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT,
                            "%llu elements of at least %zu bytes, but %zu bytes follow",
                            (unsigned long long)kv->count, least, sl_cur_left(c));
    sl_span skipped;
    if (type != SL_GGUF_STRING) (void)sl_cur_take(c, (size_t)kv->count * least);
    for (uint64_t i = 0; type == SL_GGUF_STRING && i < kv->count; i++)
        if (!read_string(c, &skipped)) return truncated(g, c, "a string of an array", err);
    kv->value = (sl_span){g->first.bytes.data + start, c->pos - start};
    return SL_OK;
}

static sl_status read_kv(const sl_gguf *g, sl_cur *c, sl_gguf_kv *kv, sl_err *err) {
    char key[201];
    if (!read_string(c, &kv->key)) return truncated(g, c, "the name of a key", err);
    if (kv->key.len == 0 || kv->key.len > SL_GGUF_MAX_KEY || !is_text(kv->key))
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: key of %zu bytes before byte %zu: not 1 to %u printable bytes",
                       g->first.path, kv->key.len, c->pos, SL_GGUF_MAX_KEY);
    snprintf(key, sizeof key, "%.*s", (int)SL_MIN(kv->key.len, sizeof key - 1),
             (const char *)kv->key.data);
    uint32_t type = sl_cur_u32(c);
    if (!c->ok) return truncated(g, c, "the type of a key", err);
    if (type >= SL_GGUF_TYPE_COUNT)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "type %u, which is none of 0 to %d", type,
                            SL_GGUF_TYPE_COUNT - 1);
    kv->type = (sl_gguf_type)type;
    kv->count = 1;
    kv->array = type == SL_GGUF_ARRAY;
    if (kv->array) return read_array(g, c, key, kv, err);
    if (type == SL_GGUF_STRING) {
        (void)read_string(c, &kv->value);
    } else {
        const uint8_t *p = sl_cur_take(c, kinds[type].bytes);
        kv->value = (sl_span){p, p ? kinds[type].bytes : 0};
    }
    if (!c->ok) return truncated(g, c, key, err);
    if (type == SL_GGUF_BOOL && kv->value.data[0] > 1)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "%u is neither false nor true",
                            kv->value.data[0]);
    return SL_OK;
}

static int by_key(const void *a, const void *b) {
    sl_span x = ((const sl_gguf_kv *)a)->key, y = ((const sl_gguf_kv *)b)->key;
    int c = memcmp(x.data, y.data, SL_MIN(x.len, y.len));
    return c ? c : x.len < y.len ? -1 : x.len > y.len;
}

static sl_status read_metadata(sl_gguf *g, sl_cur *c, uint64_t n, sl_err *err) {
    if (n > SL_GGUF_MAX_KEYS || n > sl_cur_left(c) / 13)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %llu keys, limit %u and what %zu bytes can hold",
                       g->first.path, (unsigned long long)n, SL_GGUF_MAX_KEYS, sl_cur_left(c));
    g->kv = sl_alloc((size_t)n, sizeof *g->kv);
    if (!g->kv)
        return sl_fail(err, SL_ERR_NOMEM, "%s: %llu keys", g->first.path, (unsigned long long)n);
    for (; g->n_kv < n; g->n_kv++) {
        sl_status st = read_kv(g, c, &g->kv[g->n_kv], err);
        if (st != SL_OK) return st;
    }
    qsort(g->kv, g->n_kv, sizeof *g->kv, by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (by_key(&g->kv[i - 1], &g->kv[i]) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: key \"%.*s\" is given twice", g->first.path,
                           (int)SL_MIN(g->kv[i].key.len, (size_t)200),
                           (const char *)g->kv[i].key.data);
    return SL_OK;
}

/* ---- tensors ---- */

/* What the file says to lie in strips: whole ones, of a type that is used as it is. */
static sl_status read_strips(const sl_gguf *g, sl_gguf_tensor *t, sl_err *err) {
    if (!t->usable || t->repack != SL_REPACK_NONE || !sl_strips_have(t->dtype))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": %s does not lie in strips",
                       g->first.path, t->name, t->type_name);
    const uint64_t rows = t->n_dims > 1 ? t->dim[t->n_dims - 2] : 1;
    if (!sl_strips_fit(t->dtype, rows, t->dim[t->n_dims - 1]))
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": %llu rows are no whole number of strips of %u",
                       g->first.path, t->name, (unsigned long long)rows, SL_STRIP_ROWS);
    t->strips = true;
    return SL_OK;
}

static sl_status read_type(const sl_gguf *g, uint32_t number, sl_gguf_tensor *t, uint64_t *bytes,
                           sl_err *err) {
    const uint32_t id = number < SL_GGUF_STRIPS ? number : number - SL_GGUF_STRIPS;
    uint64_t columns = t->dim[t->n_dims - 1], blocks = 1;
    size_t i = 0;
    while (i < SL_LEN(types) && types[i].id != id) i++;
    if (i == SL_LEN(types))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": unknown type %u", g->first.path,
                       t->name, number);
    t->number = number;
    t->type_name = types[i].name;
    t->usable = types[i].dtype >= 0;
    if (t->usable) t->dtype = (sl_dtype)types[i].dtype;
    t->repack = types[i].repack;
    if (columns % types[i].values != 0)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": rows of %llu values are not a multiple of %u (%s)",
                       g->first.path, t->name, (unsigned long long)columns, types[i].values,
                       types[i].name);
    blocks = columns / types[i].values;
    bool fits = true;
    for (uint32_t d = 0; d + 1 < t->n_dims; d++)
        fits = fits && !__builtin_mul_overflow(blocks, t->dim[d], &blocks);
    if (!fits || __builtin_mul_overflow(blocks, (uint64_t)types[i].bytes, bytes))
        return sl_fail(err, SL_ERR_LIMIT,
                       "%s: tensor \"%s\": the product of the dimensions overflows 64 bits",
                       g->first.path, t->name);
    return number == id ? SL_OK : read_strips(g, t, err);
}

/* Offsets are relative to the data until its begin is known; `end` holds the length so far. */
static sl_status read_tensor(const sl_gguf *g, sl_cur *c, sl_gguf_tensor *t, sl_err *err) {
    sl_span name;
    if (!read_string(c, &name)) return truncated(g, c, "the name of a tensor", err);
    if (name.len == 0 || name.len > SL_GGUF_MAX_NAME || !is_text(name))
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor name of %zu bytes before byte %zu: not 1 to %u printable bytes",
                       g->first.path, name.len, c->pos, SL_GGUF_MAX_NAME);
    t->name = sl_strndup((const char *)name.data, name.len);
    if (!t->name) return sl_fail(err, SL_ERR_NOMEM, "%s: tensor name", g->first.path);
    t->n_dims = sl_cur_u32(c);
    if (c->ok && (t->n_dims == 0 || t->n_dims > SL_GGUF_MAX_DIMS)) {
        uint32_t n = t->n_dims;
        t->n_dims = 0;
        return sl_fail(err, SL_ERR_LIMIT, "%s: tensor \"%s\": %u dimensions, limit 1 to %d",
                       g->first.path, t->name, n, SL_GGUF_MAX_DIMS);
    }
    for (uint32_t i = 0; c->ok && i < t->n_dims; i++) {
        uint64_t n = sl_cur_u64(c);
        t->dim[t->n_dims - 1 - i] = n;
        if (c->ok && (n == 0 || n > INT64_MAX))
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": dimension %u is %llu",
                           g->first.path, t->name, i, (unsigned long long)n);
    }
    uint32_t type = sl_cur_u32(c);
    t->begin = sl_cur_u64(c);
    if (!c->ok) return truncated(g, c, "the entry of a tensor", err);
    return read_type(g, type, t, &t->end, err);
}

static int by_place(const void *a, const void *b) {
    const sl_gguf_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b, void *ctx) {
    const sl_gguf *g = ctx;
    return strcmp(g->tensor[*(const uint32_t *)a].name, g->tensor[*(const uint32_t *)b].name);
}

/* Turns offsets into places in the file. The data is covered once, but for padding. */
static sl_status place_tensors(sl_gguf *g, uint64_t align, sl_err *err) {
    uint64_t begin = g->first.head_bytes, at = begin, have = g->first.bytes.len;
    qsort(g->tensor, g->n_tensors, sizeof *g->tensor, by_place);
    for (size_t i = 0; i < g->n_tensors; i++) {
        sl_gguf_tensor *t = &g->tensor[i];
        unsigned long long offset = t->begin, bytes = t->end;
        if (t->begin % align != 0)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor \"%s\": offset %llu is not a multiple of the alignment %llu",
                           g->first.path, t->name, offset, (unsigned long long)align);
        if (t->begin > have - begin || t->end > have - begin - t->begin)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor \"%s\": %llu bytes at offset %llu are past the end of the "
                           "file, whose data has %llu bytes (truncated?)",
                           g->first.path, t->name, bytes, offset,
                           (unsigned long long)(have - begin));
        t->begin += begin;
        t->end += t->begin;
        if (t->begin < at)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor \"%s\" at offset %llu overlaps \"%s\", which ends at %llu",
                           g->first.path, t->name, offset, g->tensor[i - 1].name,
                           (unsigned long long)(at - begin));
        if (t->begin - at >= align)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: %llu bytes before tensor \"%s\" belong to no tensor", g->first.path,
                           (unsigned long long)(t->begin - at), t->name);
        at = t->end;
    }
    return SL_OK;
}

sl_status sl_gguf_sort_names(sl_gguf *g, sl_err *err) {
    sl_free(g->by_name);
    g->by_name = sl_alloc(g->n_tensors, sizeof *g->by_name);
    if (!g->by_name)
        return sl_fail(err, SL_ERR_NOMEM, "%s: %zu tensors", g->first.path, g->n_tensors);
    for (uint32_t i = 0; i < g->n_tensors; i++) g->by_name[i] = i;
    qsort_r(g->by_name, g->n_tensors, sizeof *g->by_name, by_name, g);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->by_name[i - 1], &g->by_name[i], g) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is given twice", g->first.path,
                           g->tensor[g->by_name[i]].name);
    return SL_OK;
}

static sl_status read_tensors(sl_gguf *g, sl_cur *c, uint64_t n, sl_err *err) {
    uint64_t align = 32;
    if (n > SL_GGUF_MAX_TENSORS || n > sl_cur_left(c) / 33)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %llu tensors, limit %u and what %zu bytes can hold",
                       g->first.path, (unsigned long long)n, SL_GGUF_MAX_TENSORS, sl_cur_left(c));
    sl_status st =
        sl_gguf_u64(g, "general.alignment", SL_GGUF_OPTIONAL, 1, SL_GGUF_MAX_ALIGN, &align, err);
    if (st == SL_OK && (align & (align - 1)) != 0)
        st = sl_gguf_fail(g, "general.alignment", err, SL_ERR_FORMAT, "%llu is no power of two",
                          (unsigned long long)align);
    if (st != SL_OK) return st;
    g->tensor = sl_alloc((size_t)n, sizeof *g->tensor);
    if (!g->tensor)
        return sl_fail(err, SL_ERR_NOMEM, "%s: %llu tensors", g->first.path, (unsigned long long)n);
    while (st == SL_OK && g->n_tensors < n) st = read_tensor(g, c, &g->tensor[g->n_tensors++], err);
    if (st != SL_OK) return st;
    size_t pad = (size_t)((align - c->pos % align) % align);
    if (n && !sl_cur_take(c, pad)) return truncated(g, c, "the padding before the data", err);
    g->first.head_bytes = c->pos;
    st = place_tensors(g, align, err);
    return st == SL_OK ? sl_gguf_sort_names(g, err) : st;
}

static sl_status read_all(sl_gguf *g, sl_err *err) {
    sl_cur c = sl_cur_of(g->first.bytes);
    const uint8_t *magic = sl_cur_take(&c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"",
                       g->first.path);
    uint32_t version = sl_cur_u32(&c);
    if (c.ok && version != 2 && version != 3)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: GGUF version %u%s, expected 2 or 3",
                       g->first.path, version,
                       version != 0 && (version & 0xffffffu) == 0 ? " (a big-endian file)" : "");
    uint64_t n_tensors = sl_cur_u64(&c), n_kv = sl_cur_u64(&c);
    if (!c.ok) return truncated(g, &c, "the header", err);
    sl_status st = read_metadata(g, &c, n_kv, err);
    return st == SL_OK ? read_tensors(g, &c, n_tensors, err) : st;
}

sl_status sl_gguf_read(const char *name, sl_span bytes, sl_gguf **out, sl_err *err) {
    sl_gguf *g = sl_alloc(1, sizeof *g);
    if (g) g->first.path = sl_strdup(name);
    if (!g || !g->first.path) {
        sl_gguf_close(g);
        return sl_fail(err, SL_ERR_NOMEM, "%s: GGUF", name);
    }
    g->first.bytes = bytes;
    sl_status st = read_all(g, err);
    if (st == SL_OK)
        *out = g;
    else
        sl_gguf_close(g);
    return st;
}

sl_status sl_gguf_read_parts(const sl_gguf *g, uint64_t *out, sl_err *err) {
    *out = 1;
    sl_status st = sl_gguf_u64(g, "split.count", SL_GGUF_OPTIONAL, 0, SL_GGUF_MAX_PARTS, out, err);
    *out = SL_MAX(*out, 1);
    return st;
}

sl_status sl_gguf_parse(const char *name, sl_span bytes, sl_gguf **out, sl_err *err) {
    sl_gguf *g = NULL;
    uint64_t parts = 1;
    sl_status st = sl_gguf_read(name, bytes, &g, err);
    if (st == SL_OK) st = sl_gguf_read_parts(g, &parts, err);
    if (st == SL_OK && parts > 1)
        st = sl_gguf_fail(g, "split.count", err, SL_ERR_UNSUPPORTED, "a model in %llu files",
                          (unsigned long long)parts);
    if (st == SL_OK)
        *out = g;
    else
        sl_gguf_close(g);
    return st;
}

static void file_close(sl_gguf_file *f) {
    sl_free(f->path);
    sl_map_close(&f->map);
    *f = (sl_gguf_file){0};
}

void sl_gguf_close(sl_gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_tensors; i++) sl_free(g->tensor[i].name);
    sl_free(g->tensor);
    sl_free(g->by_name);
    sl_free(g->kv);
    for (uint32_t i = 0; i < g->n_more; i++) file_close(&g->more[i]);
    sl_free(g->more);
    file_close(&g->first);
    sl_free(g);
}

static const sl_gguf_file *file_of(const sl_gguf *g, uint32_t part) {
    return part == 0 ? &g->first : &g->more[part - 1];
}

const char *sl_gguf_path(const sl_gguf *g) {
    return g->first.path;
}

uint32_t sl_gguf_parts(const sl_gguf *g) {
    return 1 + g->n_more;
}

const char *sl_gguf_part_path(const sl_gguf *g, uint32_t part) {
    return file_of(g, part)->path;
}

sl_span sl_gguf_bytes(const sl_gguf *g, uint32_t part) {
    return file_of(g, part)->bytes;
}

sl_status sl_gguf_reopen(const sl_gguf *g, uint32_t part, int *out_fd, sl_err *err) {
    const sl_gguf_file *f = file_of(g, part);
    if (!f->map.path) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: is not mapped", f->path);
    return sl_map_reopen(&f->map, out_fd, err);
}

sl_span sl_gguf_head(const sl_gguf *g, uint32_t part) {
    const sl_gguf_file *f = file_of(g, part);
    return (sl_span){f->bytes.data, f->head_bytes};
}

size_t sl_gguf_tensors(const sl_gguf *g) {
    return g->n_tensors;
}

const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *g, size_t i) {
    return &g->tensor[i];
}

const sl_gguf_tensor *sl_gguf_tensor_find(const sl_gguf *g, const char *name) {
    size_t low = 0, high = g->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const sl_gguf_tensor *t = &g->tensor[g->by_name[mid]];
        int order = strcmp(t->name, name);
        if (order == 0) return t;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

size_t sl_gguf_keys(const sl_gguf *g) {
    return g->n_kv;
}

const sl_gguf_kv *sl_gguf_key_at(const sl_gguf *g, size_t i) {
    return &g->kv[i];
}

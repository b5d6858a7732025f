/* GGUF, versions 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md): typed metadata, a table of
 * tensors, their bytes, in one file that is mapped.
 *
 * Opening checks everything a reader could trip over: counts against what the file can hold,
 * lengths, types, ranks, products without overflow, names given twice, offsets against alignment
 * and the end of the file, overlaps, holes. Arrays inside arrays and big-endian files are refused.
 * A model may be in parts (split.count, NAME-00001-of-00003.gguf): the first is opened by its path
 * and the others with it. Thread: owner for open and close; any in between, nothing
 * changes then. */
#ifndef SL_FORMAT_GGUF_H
#define SL_FORMAT_GGUF_H

#include "base/span.h"
#include "base/status.h"
#include "quant/repack.h"
#include "quant/strips.h"
#include "spec/model.h"

#define SL_GGUF_MAX_KEYS    (1u << 16)
#define SL_GGUF_MAX_TENSORS (1u << 20)
#define SL_GGUF_MAX_PARTS   1024u
#define SL_GGUF_MAX_DIMS    4
#define SL_GGUF_MAX_NAME    512u
#define SL_GGUF_MAX_KEY     4096u
#define SL_GGUF_MAX_ALIGN   (1u << 20)

/* Types of metadata as numbered in the file: name, bytes of a value (0: varies). */
#define SL_GGUF_TYPE_LIST(X)                                                                       \
    X(U8, 1)                                                                                       \
    X(I8, 1)                                                                                       \
    X(U16, 2)                                                                                      \
    X(I16, 2)                                                                                      \
    X(U32, 4) X(I32, 4) X(F32, 4) X(BOOL, 1) X(STRING, 0) X(ARRAY, 0) X(U64, 8) X(I64, 8) X(F64, 8)

typedef enum sl_gguf_type {
#define SL_GGUF_ENUM(name, bytes) SL_GGUF_##name,
    SL_GGUF_TYPE_LIST(SL_GGUF_ENUM)
#undef SL_GGUF_ENUM
        SL_GGUF_TYPE_COUNT
} sl_gguf_type;

/* What the number of a type has more where rows lie in strips (quant/strips.h), as `sluice convert
 * --repack` writes them: far from the numbers that others give, so that other readers refuse it. */
#define SL_GGUF_STRIPS 0x534c0000u

/* One key. Spans are borrowed from the file. */
typedef struct sl_gguf_kv {
    sl_span key;
    sl_gguf_type type; /* of the value; of the elements of an array */
    bool array;
    uint64_t count; /* elements of an array; 1 */
    sl_span value;  /* bytes of the value or of all elements */
} sl_gguf_kv;

typedef struct sl_gguf_tensor {
    char *name;
    const char *type_name; /* "Q4_K": static */
    bool usable;           /* `dtype` can hold weights here */
    sl_dtype dtype;
    sl_repack repack; /* not NONE: what becomes `dtype` */
    bool strips;      /* rows lie in strips */
    uint32_t number;  /* of the type in the file */
    uint32_t n_dims;
    uint64_t dim[SL_GGUF_MAX_DIMS]; /* rows first, columns last: the reverse of the file's order */
    uint64_t begin, end;            /* byte range in the file */
    uint32_t part;                  /* the file; 0: the first */
} sl_gguf_tensor;

typedef struct sl_gguf sl_gguf;

/* Whether a path names a GGUF file: no folder, and it ends with .gguf or begins with "GGUF". */
bool sl_gguf_is(const char *path);

sl_status sl_gguf_open(const char *path, sl_gguf **out, sl_err *err) SL_MUST_CHECK;
/* The same of one file in memory, borrowed until close; `name` stands for the file in errors. */
sl_status sl_gguf_parse(const char *name, sl_span bytes, sl_gguf **out, sl_err *err) SL_MUST_CHECK;
void sl_gguf_close(sl_gguf *g); /* NULL-safe */

const char *sl_gguf_path(const sl_gguf *g);
uint32_t sl_gguf_parts(const sl_gguf *g); /* files, 1 or more */
const char *sl_gguf_part_path(const sl_gguf *g, uint32_t part);
sl_span sl_gguf_bytes(const sl_gguf *g, uint32_t part); /* the whole file */
/* As sl_map_reopen; SL_ERR_UNSUPPORTED when the bytes are borrowed. */
sl_status sl_gguf_reopen(const sl_gguf *g, uint32_t part, int *out_fd, sl_err *err) SL_MUST_CHECK;
/* Everything before the tensors' bytes. */
sl_span sl_gguf_head(const sl_gguf *g, uint32_t part);

/* Tensors in the order of parts and of their bytes. */
size_t sl_gguf_tensors(const sl_gguf *g);
const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *g, size_t i);
/* NULL when there is none of that name. */
const sl_gguf_tensor *sl_gguf_tensor_find(const sl_gguf *g, const char *name);

/* Keys of the first part in the order of their names. */
size_t sl_gguf_keys(const sl_gguf *g);
const sl_gguf_kv *sl_gguf_key_at(const sl_gguf *g, size_t i);
const sl_gguf_kv *sl_gguf_find(const sl_gguf *g, const char *key);

typedef enum sl_gguf_need { SL_GGUF_REQUIRED, SL_GGUF_OPTIONAL } sl_gguf_need;

/* Single values; a missing optional one leaves *out as it is. Any integer type will do for an
 * integer, f32 and f64 for a real. min and max are inclusive. */
sl_status sl_gguf_u64(const sl_gguf *g, const char *key, sl_gguf_need need, uint64_t min,
                      uint64_t max, uint64_t *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_gguf_f64(const sl_gguf *g, const char *key, sl_gguf_need need, double min, double max,
                      double *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_gguf_bool(const sl_gguf *g, const char *key, sl_gguf_need need, bool *out,
                       sl_err *err) SL_MUST_CHECK;
sl_status sl_gguf_string(const sl_gguf *g, const char *key, sl_gguf_need need, sl_span *out,
                         sl_err *err) SL_MUST_CHECK;

/* An array of strings, or of numbers: *out stays NULL when a missing one is optional. */
sl_status sl_gguf_strings(const sl_gguf *g, const char *key, sl_gguf_need need,
                          const sl_gguf_kv **out, sl_err *err) SL_MUST_CHECK;
sl_status sl_gguf_numbers(const sl_gguf *g, const char *key, sl_gguf_need need,
                          const sl_gguf_kv **out, sl_err *err) SL_MUST_CHECK;
/* Walks an array of strings: start with *at == 0; false at the end. Bounds are checked again, since
 * the file could change under its mapping. */
bool sl_gguf_next_string(const sl_gguf_kv *kv, size_t *at, sl_span *out);
/* Element i < count of an array of numbers (0 for a single value). Integers beyond 2^53 round. */
double sl_gguf_number_at(const sl_gguf_kv *kv, uint64_t i);

/* Fails with "file: key: message". */
sl_status sl_gguf_fail(const sl_gguf *g, const char *key, sl_err *err, sl_status code,
                       const char *fmt, ...) SL_PRINTF(5, 6);

#endif

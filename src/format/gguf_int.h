/* Inside of the GGUF reader: gguf.c reads one file, gguf_parts.c opens a model of one or more. */
#ifndef SL_FORMAT_GGUF_INT_H
#define SL_FORMAT_GGUF_INT_H

#include "format/gguf.h"
#include "format/map.h"

typedef struct sl_gguf_file {
    char *path;
    sl_map map; /* of nothing when the bytes are borrowed */
    sl_span bytes;
    size_t head_bytes;
} sl_gguf_file;

struct sl_gguf {
    sl_gguf_file first;
    sl_gguf_file *more; /* parts behind the first */
    uint32_t n_more;
    sl_gguf_kv *kv; /* of the first, sorted by key */
    size_t n_kv;
    sl_gguf_tensor *tensor; /* sorted by part and place */
    size_t n_tensors;
    uint32_t *by_name; /* places of tensors, sorted by name */
};

/* One file, which may be a part. */
sl_status sl_gguf_read(const char *name, sl_span bytes, sl_gguf **out, sl_err *err) SL_MUST_CHECK;
/* split.count, 1 where there is none. */
sl_status sl_gguf_read_parts(const sl_gguf *g, uint64_t *out, sl_err *err) SL_MUST_CHECK;
/* Fills by_name anew; SL_ERR_FORMAT for a name that two tensors have. */
sl_status sl_gguf_sort_names(sl_gguf *g, sl_err *err) SL_MUST_CHECK;

#endif

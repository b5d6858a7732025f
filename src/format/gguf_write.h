/* Writes a GGUF file, version 3: keys, then tensors, then their bytes, in this order.
 *
 * The head is gathered in memory. The file is whole or not there (base/output.h). Thread: owner. */
#ifndef SL_FORMAT_GGUF_WRITE_H
#define SL_FORMAT_GGUF_WRITE_H

#include "format/gguf.h"

#define SL_GGUF_ALIGN      32u /* bytes where tensors begin, if nothing else is asked for */
#define SL_GGUF_ALIGN_MOST 64u

typedef struct sl_gguf_out sl_gguf_out;

/* SL_ERR_ARG when the target is there, unless `replace`; SL_ERR_IO. */
sl_status sl_gguf_out_open(const char *path, bool replace, sl_gguf_out **out,
                           sl_err *err) SL_MUST_CHECK;
/* Gives up what is not finished. NULL-safe. */
void sl_gguf_out_free(sl_gguf_out *w);

/* Keys. Memory that runs out is reported by sl_gguf_out_begin. */
void sl_gguf_out_u32(sl_gguf_out *w, const char *key, uint32_t v);
void sl_gguf_out_f32(sl_gguf_out *w, const char *key, float v);
void sl_gguf_out_bool(sl_gguf_out *w, const char *key, bool v);
void sl_gguf_out_string(sl_gguf_out *w, const char *key, sl_span v);
/* Begins an array of n elements; exactly n calls of one of the functions below have to follow. */
void sl_gguf_out_array(sl_gguf_out *w, const char *key, sl_gguf_type type, uint64_t n);
void sl_gguf_out_item(sl_gguf_out *w, sl_span s);
void sl_gguf_out_item32(sl_gguf_out *w, uint32_t bits);

/* A key as another file has it. */
void sl_gguf_out_kv(sl_gguf_out *w, const sl_gguf_kv *kv);
/* Tensors begin at multiples of so many bytes, a power of two: before the first of them. */
void sl_gguf_out_align(sl_gguf_out *w, uint32_t bytes);

/* A tensor of dim[0..n_dims), rows before columns; columns are whole blocks of its type. */
void sl_gguf_out_tensor(sl_gguf_out *w, const char *name, sl_dtype type, const uint64_t *dim,
                        uint32_t n_dims);

/* One of another file, by another number of its type, with as many bytes. */
void sl_gguf_out_copy(sl_gguf_out *w, const sl_gguf_tensor *t, uint32_t number);

/* Writes the head. */
sl_status sl_gguf_out_begin(sl_gguf_out *w, sl_err *err) SL_MUST_CHECK;
/* Bytes of the tensors, in their order, in pieces of any size; padding between tensors is added
 * here. */
sl_status sl_gguf_out_data(sl_gguf_out *w, const void *data, size_t n, sl_err *err) SL_MUST_CHECK;
/* All bytes were given: makes them durable and gives the file its name. */
sl_status sl_gguf_out_finish(sl_gguf_out *w, sl_err *err) SL_MUST_CHECK;

#endif

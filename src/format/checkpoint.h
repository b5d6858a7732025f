/* The weights of a model: a GGUF file, or a Hugging Face folder with one model.safetensors or with
 * shards named by model.safetensors.index.json. Opening reads and checks every header; a file is
 * mapped only when a tensor in it is asked for. Thread: owner. */
#ifndef SL_FORMAT_CHECKPOINT_H
#define SL_FORMAT_CHECKPOINT_H

#include "format/gguf.h"
#include "format/safetensors.h"

#define SL_CKPT_MAX_FILES   2048
#define SL_CKPT_MAX_TENSORS 4000000u
#define SL_CKPT_MAX_INDEX   (256u << 20) /* bytes of the index file */

typedef struct sl_checkpoint sl_checkpoint;

/* A tensor and where it lives; pointers are borrowed until sl_ckpt_free. */
typedef struct sl_ckpt_tensor {
    const char *name, *dtype_name;
    bool usable; /* `dtype` can hold weights */
    sl_dtype dtype;
    sl_repack repack; /* not NONE: what becomes `dtype` when it is bound */
    bool strips;      /* rows lie in strips (quant/strips.h) */
    uint32_t n_dims;
    const uint64_t *dim; /* rows before columns */
    uint64_t begin, end; /* byte range in the file */
    uint32_t file;
} sl_ckpt_tensor;

/* Whether there are weights, of a kind that sl_ckpt_open reads or refuses by name. */
bool sl_ckpt_exists(const char *model);

/* The index and the shards must agree: every tensor of the index is in the shard it names and every
 * tensor of a shard is in the index. Names of shards with a path in them are refused. */
sl_status sl_ckpt_open(const char *model, sl_checkpoint **out, sl_err *err) SL_MUST_CHECK;
void sl_ckpt_free(sl_checkpoint *c);
/* The file behind it when it is GGUF, else NULL. */
const sl_gguf *sl_ckpt_gguf(const sl_checkpoint *c);

uint32_t sl_ckpt_files(const sl_checkpoint *c);
/* Files are sorted by name. Path and header bytes (length field included) borrowed until free. */
const char *sl_ckpt_path(const sl_checkpoint *c, uint32_t file);
sl_span sl_ckpt_header(const sl_checkpoint *c, uint32_t file);

size_t sl_ckpt_tensors(const sl_checkpoint *c);
/* Tensor i in the order of names; valid for i < sl_ckpt_tensors. */
sl_ckpt_tensor sl_ckpt_at(const sl_checkpoint *c, size_t i);
/* Its place i in that order; false when there is no tensor of that name. */
bool sl_ckpt_find(const sl_checkpoint *c, const char *name, size_t *out);

/* Maps the tensor's file if it is not mapped yet. The bytes are borrowed until sl_ckpt_free. */
sl_status sl_ckpt_data(sl_checkpoint *c, sl_ckpt_tensor t, sl_span *out, sl_err *err) SL_MUST_CHECK;
/* The file of a tensor whose bytes were asked for, as sl_map_reopen gives it. */
sl_status sl_ckpt_reopen(const sl_checkpoint *c, sl_ckpt_tensor t, int *out_fd,
                         sl_err *err) SL_MUST_CHECK;

#endif

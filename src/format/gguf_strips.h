/* A GGUF file again, with weights in strips (quant/strips.h): `sluice convert --repack`. */
#ifndef SL_FORMAT_GGUF_STRIPS_H
#define SL_FORMAT_GGUF_STRIPS_H

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"

typedef struct sl_gguf_strips_options {
    bool replace;            /* a file that is there */
    sl_pool *pool;           /* NULL: the caller's thread alone */
    sl_progress_fn progress; /* counts bytes of tensors; may be NULL */
    void *ctx;
} sl_gguf_strips_options;

typedef struct sl_gguf_strips_report {
    uint64_t bytes, in_strips; /* of all tensors, of those in strips */
    uint32_t tensors, n_in_strips;
} sl_gguf_strips_report;

/* Writes `out` with all keys and tensors of `path`, a file or the first of its parts; those of
 * Q8_0, Q4_0, Q4_K, Q5_K and Q6_K lie in strips, but for embeddings, what latent attention takes
 * apart, and rows that are no whole strips. SL_ERR_ARG: `out` is there, or nothing would change;
 * SL_ERR_UNSUPPORTED: weights lie in strips already. Thread: owner. */
sl_status sl_gguf_to_strips(const char *path, const char *out, const sl_gguf_strips_options *o,
                            sl_gguf_strips_report *report, sl_err *err) SL_MUST_CHECK;

#endif

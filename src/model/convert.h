/* A Hugging Face folder as one GGUF file that llama.cpp and Sluice read.
 *
 * Weights are rounded to the type asked for, row by row; norms, biases and routers stay f32. A row
 * that is no whole number of its blocks becomes Q8_0 where 32 divides it, else F16; the head of a
 * 4-bit model is Q8_0; MXFP4 is of experts alone. Rows of q and k are paired for arch llama and
 * arctic, W_UKV of latent attention becomes its two parts. What files of an architecture cannot say
 * is refused (convert_keys.c). The tokenizer is written twice: as tokenizer.ggml.*, from which
 * llama.cpp works, and as the text of tokenizer.json (tokenizer.huggingface.json). Thread: owner.
 */
#ifndef SL_MODEL_CONVERT_H
#define SL_MODEL_CONVERT_H

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "spec/model.h"

typedef struct sl_convert_options {
    sl_dtype type;           /* one of those that sl_block_encodes knows */
    bool replace;            /* a file that is there */
    sl_pool *pool;           /* NULL: the caller's thread alone */
    sl_progress_fn progress; /* counts weights; may be NULL */
    void *ctx;
} sl_convert_options;

typedef struct sl_convert_report {
    uint64_t weights, bytes; /* bytes of the tensors */
    uint32_t tensors, other; /* tensors, and those whose rows did not fit the type asked for */
} sl_convert_report;

/* SL_ERR_ARG: `out` is there; SL_ERR_UNSUPPORTED: a tokenizer or an architecture that GGUF has no
 * name for. */
sl_status sl_convert(const char *folder, const char *out, const sl_convert_options *o,
                     sl_convert_report *report, sl_err *err) SL_MUST_CHECK;

#endif

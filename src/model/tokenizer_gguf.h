/* A tokenizer from the metadata of a GGUF file (tokenizer.ggml.* or tokenizer.huggingface.json).
 * Kinds of tokenizers and pre-tokenizers that are not known here are refused by name. Thread:
 * owner. */
#ifndef SL_MODEL_TOKENIZER_GGUF_H
#define SL_MODEL_TOKENIZER_GGUF_H

#include "format/gguf.h"
#include "model/tokenizer.h"

/* The tokenizer borrows nothing from g. */
sl_status sl_tokenizer_from_gguf(const sl_gguf *g, sl_tokenizer **out, sl_err *err) SL_MUST_CHECK;

#endif

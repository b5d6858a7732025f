/* A tokenizer from the metadata of a GGUF file (tokenizer.ggml.* or tokenizer.huggingface.json).
 * Kinds of tokenizers and pre-tokenizers that are not known here are refused by name. Thread:
 * owner. */
#ifndef SL_TEXT_TOKENIZER_GGUF_H
#define SL_TEXT_TOKENIZER_GGUF_H

#include "format/gguf.h"
#include "format/json.h"
#include "text/tokenizer.h"

/* Known names of tokenizer.ggml.pre, without those that mean the same as another. */
#define SL_TOKENIZER_PRES                                                                          \
    "gpt-2, qwen2, smollm, llama-bpe, dbrx, glm4, olmo, gpt-4o, deepseek-llm, deepseek-v3, "       \
    "kimi-k2"

/* The name of the steps that `pre_tokenizer` of a tokenizer.json has; NULL when they have none.
 * `ignores`: ignore_merges of its model. Static. */
const char *sl_tokenizer_pre_name(sl_json pre, bool ignores);

/* The tokenizer borrows nothing from g. */
sl_status sl_tokenizer_from_gguf(const sl_gguf *g, sl_tokenizer **out, sl_err *err) SL_MUST_CHECK;

#endif

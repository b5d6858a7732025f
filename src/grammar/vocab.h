/* The texts of a tokenizer's tokens as a tree of bytes, made once and read by every grammar: which
 * tokens go on from a state is found by walking the tree beside the automaton. Tokens of plain
 * characters alone, of which a vocabulary mostly consists, stand apart, counted by length: inside a
 * string they are all allowed without being looked at. About 20 bytes a byte of the vocabulary.
 * Thread: any, once it is made. */
#ifndef SL_GRAMMAR_VOCAB_H
#define SL_GRAMMAR_VOCAB_H

#include "base/span.h"
#include "base/status.h"

#define SL_VOCAB_MAX_IDS   (1u << 20)
#define SL_VOCAB_MAX_BYTES (256u << 20) /* of all texts */

typedef struct sl_vocab sl_vocab;
struct sl_tokenizer;

/* texts[id], id < n: borrowed for this call; an empty one stands for no text (a special token), and
 * no grammar allows it. `ends`: tokens that end an answer, allowed where the text may end.
 * SL_ERR_LIMIT, SL_ERR_ARG: an end that is no id. */
sl_status sl_vocab_create(const sl_span *texts, uint32_t n, const uint32_t *ends, size_t n_ends,
                          sl_vocab **out, sl_err *err) SL_MUST_CHECK;
/* Of a tokenizer. Special tokens stand for bytes of their own that no UTF-8 has: only what allows
 * any tokens allows them, or a shape by their ids. `ends` beyond its ids are left out. */
sl_status sl_vocab_of_tokenizer(const struct sl_tokenizer *tok, const uint32_t *ends, size_t n_ends,
                                sl_vocab **out, sl_err *err) SL_MUST_CHECK;
void sl_vocab_free(sl_vocab *v); /* NULL-safe; after every grammar over it */
uint32_t sl_vocab_size(const sl_vocab *v);
/* 32-bit words of a mask. */
size_t sl_vocab_words(const sl_vocab *v);
/* The text of a token. Borrowed until sl_vocab_free. */
sl_span sl_vocab_text(const sl_vocab *v, uint32_t id);
bool sl_vocab_is_end(const sl_vocab *v, uint32_t id);

#endif

/* BPE tokenizers as published in Hugging Face folders (tokenizer.json, with tokenizer_config.json
 * where it adds tokens). BPE: Sennrich et al., arXiv:1508.07909. Two shapes:
 *
 * Byte-level (Qwen, GPT-2, Llama 3): text -> added tokens cut out -> normalizer (none or NFC) ->
 * pre-tokenizer (regular expressions) -> bytes -> merges by rank -> ids.
 * SentencePiece's (Mixtral, Llama 2; Kudo and Richardson, arXiv:1808.06226): text -> added tokens
 * cut out -> U+2581 for spaces, and one in front -> characters, those outside the vocabulary as
 * bytes -> merges by rank -> ids. Without a split a whole text is one word.
 *
 * Anything in the files that would change ids and is not known here is refused by name
 * (SL_ERR_UNSUPPORTED) when the tokenizer is opened. Thread: owner for open and free; a tokenizer
 * never changes in between, so any for all the rest. */
#ifndef SL_TEXT_TOKENIZER_H
#define SL_TEXT_TOKENIZER_H

#include "base/span.h"
#include "base/status.h"

#define SL_TOKENIZER_MAX_IDS   (1u << 20)  /* ids of one vocabulary */
#define SL_TOKENIZER_MAX_FILE  (64u << 20) /* bytes of tokenizer.json or tiktoken.model */
#define SL_TOKENIZER_MAX_TEXT  (16u << 20) /* bytes of one text to encode */
#define SL_TOKENIZER_MAX_PIECE 4096u       /* bytes of one token */

typedef struct sl_tokenizer sl_tokenizer;

/* Growable list of token ids. Zero-initialise; free with sl_ids_free. */
typedef struct sl_ids {
    uint32_t *data;
    size_t len, cap;
} sl_ids;

sl_status sl_ids_push(sl_ids *ids, uint32_t id, sl_err *err) SL_MUST_CHECK;
/* n more at once; `from` NULL: room for them, to be filled in. False: no memory. */
bool sl_ids_copy(sl_ids *ids, const uint32_t *from, size_t n);
void sl_ids_free(sl_ids *ids);

/* Length of the longest prefix of s that is whole UTF-8 characters. */
size_t sl_utf8_valid_prefix(sl_span s);

/* Reads folder/tokenizer.json, else folder/tiktoken.model of a kind that is known
 * (docs/formats.md), and, when there is one, folder/tokenizer_config.json; of a GGUF file, its
 * metadata (text/tokenizer_gguf.h). */
sl_status sl_tokenizer_open(const char *folder, sl_tokenizer **out, sl_err *err) SL_MUST_CHECK;

/* The same from memory; `config` may be empty ({NULL, 0}). `name` stands for the folder in errors.
 */
sl_status sl_tokenizer_parse(const char *name, sl_span tokenizer_json, sl_span config_json,
                             sl_tokenizer **out, sl_err *err) SL_MUST_CHECK;

/* The same of a tiktoken.model, as Kimi-K2 has it: lines of a token's bytes in base64 and its rank,
 * and special tokens behind the last rank, named in `config`. */
sl_status sl_tokenizer_parse_tiktoken(const char *name, sl_span ranks, sl_span config_json,
                                      sl_tokenizer **out, sl_err *err) SL_MUST_CHECK;

void sl_tokenizer_free(sl_tokenizer *tok); /* NULL-safe */

/* A stretch of a text. Special tokens are recognised only where they lie wholly inside one stretch
 * with parse_special; everything else is encoded as if the stretches were one string, so that words
 * and merges may cross their borders. Added tokens that are not special count everywhere. */
typedef struct sl_text_part {
    sl_span text;
    bool parse_special;
} sl_text_part;

/* Appends the ids of `text` (UTF-8) to out. add_template puts the tokens around it that the
 * tokenizer's post-processor asks for (a beginning-of-text token, for models that have one).
 * Time is n log n in the longest word. SL_ERR_FORMAT: not UTF-8; SL_ERR_LIMIT: text too long, or a
 * pattern that backtracks without end. On error, out keeps what it held before. */
sl_status sl_tokenizer_encode(const sl_tokenizer *tok, sl_span text, bool parse_special,
                              bool add_template, sl_ids *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_tokenizer_encode_parts(const sl_tokenizer *tok, const sl_text_part *parts, size_t n,
                                    bool add_template, sl_ids *out, sl_err *err) SL_MUST_CHECK;

/* Text of ids as valid UTF-8 with a NUL after it, to be freed with sl_free; a broken sequence
 * becomes U+FFFD, in SentencePiece's shape one for each of its bytes. Ids inside the vocabulary's
 * range that stand for no token yield nothing. SL_ERR_ARG: an id >= sl_tokenizer_vocab_size. */
sl_status sl_tokenizer_decode(const sl_tokenizer *tok, const uint32_t *ids, size_t n,
                              bool skip_special, char **out, size_t *out_len,
                              sl_err *err) SL_MUST_CHECK;

/* Bytes of one token, not necessarily whole characters; empty for ids that stand for none. Borrowed
 * until sl_tokenizer_free. */
sl_span sl_tokenizer_piece(const sl_tokenizer *tok, uint32_t id);

/* The same as the vocabulary writes it, UTF-8 without a NUL: an added token as it is, bytes as the
 * characters that stand for them, in SentencePiece's shape with U+2581 for spaces. Writes it to out
 * and returns its length; 0 for ids that stand for none. */
#define SL_TOKENIZER_MAX_SPELLING (2 * SL_TOKENIZER_MAX_PIECE)
size_t sl_tokenizer_spelling(const sl_tokenizer *tok, uint32_t id,
                             char out[SL_TOKENIZER_MAX_SPELLING]);

/* An added token, by its place in the file's list. */
typedef struct sl_tokenizer_added {
    uint32_t id;
    sl_span content; /* borrowed until sl_tokenizer_free */
    bool special, lstrip, rstrip, single_word, normalized;
} sl_tokenizer_added;
bool sl_tokenizer_added_at(const sl_tokenizer *tok, size_t i, sl_tokenizer_added *out);

/* Appends the tokens that every text gets in front. SL_ERR_NOMEM. */
sl_status sl_tokenizer_begin(const sl_tokenizer *tok, sl_ids *out, sl_err *err) SL_MUST_CHECK;

/* The first of these, -1: none; and whether it is SentencePiece's shape.
 */
int64_t sl_tokenizer_begins_with(const sl_tokenizer *tok);
bool sl_tokenizer_is_sentencepiece(const sl_tokenizer *tok);

/* Highest id + 1. A model's embedding may be larger (padding), never meaningfully smaller. */
uint32_t sl_tokenizer_vocab_size(const sl_tokenizer *tok);

/* Id of an added token's content, else of the token with exactly these bytes (in SentencePiece's
 * shape: written so in the file), else -1. */
int64_t sl_tokenizer_find(const sl_tokenizer *tok, const char *content);

bool sl_tokenizer_is_special(const sl_tokenizer *tok, uint32_t id);

/* Streaming decoder: bytes of an unfinished UTF-8 sequence wait until it is complete. No
 * allocation; zero-initialise. Thread: owner. */
typedef struct sl_detok {
    uint8_t held[4];
    uint32_t n_held;
    bool each_byte; /* of a broken sequence is replaced */
    /* Some text came out. SentencePiece's shape drops a space before the first; a stream that
     * continues a text sets this at the beginning to keep it. */
    bool started;
} sl_detok;

/* Most bytes one push can yield: each byte of a piece, and each held one, may become U+FFFD. */
#define SL_DETOK_MAX_OUT (3 * (SL_TOKENIZER_MAX_PIECE + 4))

/* Writes the text that `id` completes to out (valid UTF-8, no NUL added) and returns its length,
 * often 0. Ids that stand for no token, and special ones when skip_special, yield nothing. */
size_t sl_detok_push(sl_detok *d, const sl_tokenizer *tok, uint32_t id, bool skip_special,
                     char out[SL_DETOK_MAX_OUT]);

/* The end of the stream: what is still held is broken and becomes U+FFFD (at most 9 bytes). */
size_t sl_detok_flush(sl_detok *d, char out[SL_DETOK_MAX_OUT]);

#endif

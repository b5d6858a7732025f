/* Insides of a tokenizer, shared by the files tokenizer*.c. tokenizer_load.c fills it,
 * tokenizer_pattern.c compiles and runs its patterns, tokenizer_spm.c has what SentencePiece's
 * shape does otherwise, tokenizer_bpe.c merges, tokenizer.c runs it all. tokenizer_gguf.c and
 * tokenizer_tiktoken.c put other files into the words of tokenizer.json (tokenizer_write.c);
 * tokenizer_open.c finds out whose file it is; tokenizer_base.c is below all of them; fim.c puts
 * tokens of fill-in-the-middle around texts. */
#ifndef SL_TEXT_TOKENIZER_INT_H
#define SL_TEXT_TOKENIZER_INT_H

#include "format/json.h"
#include "text/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SL_TOK_NONE         UINT32_MAX
#define SL_TOK_MAX_SPLITS   16u
#define SL_TOK_MAX_TEMPLATE 8u
#define SL_TOK_MAX_PATTERN  4096u /* bytes of one regular expression */
/* utf8proc sorts a run of combining marks in quadratic time. */
#define SL_TOK_MAX_MARKS 1024u
#define SL_TOK_MARK      "\xE2\x96\x81" /* U+2581 */
#define SL_TOK_MARK_LEN  3u

enum sl_tok_flag {
    SL_TOK_DEFINED = 1, /* the id stands for a token */
    SL_TOK_ADDED = 2,
    SL_TOK_SPECIAL = 4,
};

/* A stretch of sl_tokenizer.blob. */
typedef struct sl_tok_str {
    uint32_t at, len;
} sl_tok_str;

typedef struct sl_tok_piece {
    sl_tok_str bytes; /* what the token decodes to */
    sl_tok_str word;  /* what it is found by: bytes, in SentencePiece's shape its content */
    uint32_t flags;
} sl_tok_piece;

typedef struct sl_tok_added {
    sl_tok_str content; /* as in the file */
    sl_tok_str pattern; /* what is looked for: normalized content where `normalized` says so */
    uint32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} sl_tok_added;

/* Some of the added tokens, sorted by pattern, for longest-match search. */
typedef struct sl_tok_lexicon {
    uint32_t *order; /* indices into added */
    size_t n;
    bool first[256]; /* bytes that some pattern starts with */
} sl_tok_lexicon;

/* (left id, right id) -> (rank, merged id); open addressing, empty slots have id SL_TOK_NONE. */
typedef struct sl_tok_merge {
    uint32_t left, right, rank, id;
} sl_tok_merge;

typedef struct sl_tok_split {
    pcre2_code *code;
    bool drop_match, drop_rest;
} sl_tok_split;

/* Where a pre-tokenizer puts a mark that the text lacks. */
typedef enum sl_tok_prepend {
    SL_TOK_PREPEND_NEVER,
    SL_TOK_PREPEND_FIRST, /* before the beginning of the text only */
    SL_TOK_PREPEND_ALWAYS,
} sl_tok_prepend;

/* SentencePiece's shape: words are text in which a mark (U+2581) stands for each space. Either the
 * normalizer puts the marks there or a Metaspace step does. */
typedef struct sl_tok_spm {
    bool on;
    bool byte_fallback; /* a character the vocabulary lacks becomes the tokens of its bytes */
    bool normalizes;    /* the normalizer turns spaces into marks ... */
    bool prepends;      /* ... and puts one before every stretch */
    bool metaspace, splits;
    sl_tok_prepend scheme; /* of Metaspace; `splits`: and cuts before every mark */
    bool strips;           /* decoding drops one space from the beginning of a text */
} sl_tok_spm;

/* Tokens of fill-in-the-middle that a file may name. */
enum {
    SL_TOK_FIM_PREFIX,
    SL_TOK_FIM_SUFFIX,
    SL_TOK_FIM_MIDDLE,
    SL_TOK_FIM_PAD,
    SL_TOK_FIM_REPO,
    SL_TOK_FIM_FILE,
    SL_TOK_FIM_N,
};

struct sl_tokenizer {
    uint8_t *blob;
    size_t blob_len, blob_cap;
    sl_tok_piece *pieces;
    size_t n_ids, ids_cap;
    sl_tok_added *added;
    size_t n_added, added_cap;
    sl_tok_lexicon raw, normalized;
    sl_tok_merge *merges;
    size_t merge_slots;    /* power of two */
    uint32_t *words;       /* ids by sl_tok_piece.word */
    size_t word_slots;     /* power of two */
    uint32_t byte_id[256]; /* tokens of single bytes */
    uint32_t unk_id;
    bool fuse_unk, ignore_merges, nfc, prefix_space;
    size_t prefix_at; /* prefix_space acts before this split */
    sl_tok_split splits[SL_TOK_MAX_SPLITS];
    size_t n_splits;
    sl_tok_spm spm;
    uint32_t before[SL_TOK_MAX_TEMPLATE], after[SL_TOK_MAX_TEMPLATE];
    size_t n_before, n_after;
    bool has_fim; /* the file names such tokens: */
    uint32_t fim[SL_TOK_FIM_N];
};

static inline sl_span sl_tok_bytes(const sl_tokenizer *tok, sl_tok_str s) {
    return (sl_span){tok->blob + s.at, s.len};
}

static inline bool sl_tok_has_mark(sl_span text, size_t at) {
    return text.len - at >= SL_TOK_MARK_LEN &&
           memcmp(text.data + at, SL_TOK_MARK, SL_TOK_MARK_LEN) == 0;
}

/* Working memory of one encode call. */
typedef struct sl_tok_work {
    uint32_t *id;          /* symbols of a word */
    uint32_t *prev, *next; /* its linked list */
    uint64_t *heap;        /* rank << 32 | position, smallest on top */
    void *arrays;          /* what they are all in */
    size_t cap, n_heap;
    pcre2_match_data *match;
    pcre2_match_context *limits;
} sl_tok_work;

void sl_tok_work_free(sl_tok_work *w);

/* tokenizer_bpe.c: appends the ids of one word (bytes after pre-tokenization). */
sl_status sl_tok_word_encode(const sl_tokenizer *tok, sl_tok_work *w, sl_span word, sl_ids *out,
                             sl_err *err) SL_MUST_CHECK;
/* Makes room for n merges or n words. */
sl_status sl_tok_merges_reserve(sl_tokenizer *tok, size_t n, sl_err *err) SL_MUST_CHECK;
sl_status sl_tok_words_reserve(sl_tokenizer *tok, size_t n, sl_err *err) SL_MUST_CHECK;
/* A pair given twice keeps its last rank. */
void sl_tok_merge_put(sl_tokenizer *tok, sl_tok_merge m);
void sl_tok_word_put(sl_tokenizer *tok, uint32_t id);
/* Id of the token of this word, or SL_TOK_NONE. */
uint32_t sl_tok_word_find(const sl_tokenizer *tok, sl_span word);

/* What merging by the merges put so far leaves of a word: *n symbols, the first two in part. */
sl_status sl_tok_word_parts(const sl_tokenizer *tok, sl_tok_work *w, sl_span word, uint32_t part[2],
                            size_t *n, sl_err *err) SL_MUST_CHECK;
/* Fills byte_id from the words of one byte. */
void sl_tok_byte_ids(sl_tokenizer *tok);

/* tokenizer_load.c: `config` is tokenizer_config.json or NULL. */
sl_status sl_tok_load(const sl_json_doc *doc, const sl_json_doc *config, sl_tokenizer **out,
                      sl_err *err) SL_MUST_CHECK;

/* tokenizer_base.c: a string field as a span, and comparing one. */
sl_status sl_tok_text_field(sl_json obj, const char *key, sl_json_need need, sl_span *out,
                            sl_err *err) SL_MUST_CHECK;
bool sl_tok_is(sl_span s, const char *text);

/* tokenizer_spm.c: reads the steps that SentencePiece's shape may have, refusing all others. */
sl_status sl_tok_spm_decoder(sl_tokenizer *tok, sl_json decoder, sl_err *err) SL_MUST_CHECK;
sl_status sl_tok_spm_normalizer(sl_tokenizer *tok, sl_json normalizer, sl_err *err) SL_MUST_CHECK;
sl_status sl_tok_spm_pre_tokenizer(sl_tokenizer *tok, sl_json root, sl_err *err) SL_MUST_CHECK;
/* What content decodes to: marks as spaces, <0xE4> as its byte. At most content.len bytes. */
void sl_tok_spm_bytes(sl_span content, uint8_t *out, size_t *out_len);
/* Fills byte_id from the tokens <0x00> to <0xFF>. */
void sl_tok_spm_byte_ids(sl_tokenizer *tok);
/* The text with marks for spaces, and one in front with `prepend`; to be freed with sl_free. */
sl_status sl_tok_spm_mark(sl_span text, bool prepend, sl_span *out, sl_err *err) SL_MUST_CHECK;
/* Encodes text between added tokens; `first`: it begins the whole text. */
sl_status sl_tok_spm_run(const sl_tokenizer *tok, sl_tok_work *w, sl_span text, bool first,
                         sl_ids *out, sl_err *err) SL_MUST_CHECK;

/* tokenizer_pattern.c: adds a split by a regular expression (or by a literal string). `where` is
 * the JSON object the pattern came from, for errors. */
sl_status sl_tok_split_add(sl_tokenizer *tok, sl_json where, sl_span pattern, bool literal,
                           bool drop_match, bool drop_rest, sl_err *err) SL_MUST_CHECK;
/* Runs text through split `at` and all that follow; words go to sl_tok_word_encode. */
sl_status sl_tok_split_run(const sl_tokenizer *tok, sl_tok_work *w, size_t at, sl_span text,
                           sl_ids *out, sl_err *err) SL_MUST_CHECK;

/* tokenizer_write.c: growable text in the words of tokenizer.json; once memory is out, `ok` (to be
 * set before the first call) stays false. data is to be freed with sl_free. */
typedef struct sl_tok_text {
    char *data;
    size_t len, cap;
    bool ok;
} sl_tok_text;

void sl_tok_say(sl_tok_text *t, const char *s);
void sl_tok_quote(sl_tok_text *t, sl_span s); /* a JSON string */
void sl_tok_number(sl_tok_text *t, uint64_t v);

/* tokenizer_tiktoken.c: folder/tiktoken.model in the words of tokenizer.json; `config` is
 * tokenizer_config.json or nothing. SL_ERR_NOTFOUND: there is no such file. */
sl_status sl_tiktoken_open(const char *folder, sl_json config, sl_tok_text *out,
                           sl_err *err) SL_MUST_CHECK;
/* The same from memory, of a known kind. */
sl_status sl_tiktoken_text(const char *name, sl_span ranks, sl_json config, sl_tok_text *out,
                           sl_err *err) SL_MUST_CHECK;

/* The steps of Kimi-K2's split: Chinese, words by their case, numbers, the rest. */
#define SL_TOK_KIMI_UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define SL_TOK_KIMI_LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define SL_TOK_KIMI_WORD(upper, lower)                                                             \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" SL_TOK_KIMI_UPPER upper SL_TOK_KIMI_LOWER lower               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define SL_TOK_KIMI_STEPS                                                                          \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","     \
    "\"pattern\":{\"Regex\":\"[\\\\p{Han}]+|" SL_TOK_KIMI_WORD("*", "+")                           \
        SL_TOK_KIMI_WORD("+", "*") "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"       \
                                   "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},"               \
                                   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"           \
                                   "\"use_regex\":false}]}"

/* tokenizer_text.c: Unicode. */
/* The code point before / at byte `at`, or -1 at the end of the text. Text is valid UTF-8. */
int32_t sl_utf8_before(sl_span text, size_t at, size_t *start);
int32_t sl_utf8_at(sl_span text, size_t at, size_t *end);
bool sl_unicode_is_space(int32_t c);
bool sl_unicode_is_word(int32_t c);
/* NFC of valid UTF-8. *changed == false: text is in that form already and *out is not set.
 * Otherwise *out is to be freed with free. */
sl_status sl_unicode_nfc(sl_span text, bool *changed, sl_span *out, sl_err *err) SL_MUST_CHECK;
/* The code point that stands for a byte in vocabularies, and the way back: bytes of s into out (at
 * most s.len), false when a character stands for no byte. */
int32_t sl_byte_level_char(uint8_t byte);
bool sl_byte_level_bytes(sl_span s, uint8_t *out, size_t *out_len);

#endif

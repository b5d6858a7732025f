/* Fill-in-the-middle: prompts that ask a model for what stands between two texts.
 *
 * Models that can do this were trained on texts whose middle was moved behind the rest, with tokens
 * in front of each of the three (Bavarian et al., arXiv:2207.14255). Which tokens, and in which
 * order, is a row of text/fim.def, chosen by the tokens that the tokenizer has, or by the ids that
 * a GGUF file names (tokenizer.ggml.fim_*_token_id). Pure. Thread: any. */
#ifndef SL_TEXT_FIM_H
#define SL_TEXT_FIM_H

#include "text/tokenizer.h"

#define SL_FIM_MAX_ENDS 8u
#define SL_FIM_NONE     UINT32_MAX

/* How a model is asked. */
typedef struct sl_fim {
    const char *name;                /* static; NULL: the tokenizer has no such tokens */
    bool suffix_first;               /* what is behind the gap stands before the rest */
    uint32_t prefix, suffix, middle; /* tokens; middle may be SL_FIM_NONE */
    uint32_t repo, file;             /* or SL_FIM_NONE */
    uint32_t end[SL_FIM_MAX_ENDS];   /* tokens that end an answer */
    uint32_t n_ends;
} sl_fim;

/* The format of a tokenizer; name is NULL where there is none. */
sl_fim sl_fim_of(const sl_tokenizer *tok);

/* Another file that the model may look at. */
typedef struct sl_fim_file {
    sl_span name; /* empty: "file" */
    sl_span text;
} sl_fim_file;

/* What is around the gap; borrowed. All of it stays text, whatever it spells, but for what the
 * tokenizer does not mark as special: that is a token wherever it stands. */
typedef struct sl_fim_gap {
    sl_span before;    /* text, or: */
    const sl_ids *ids; /* its tokens; NULL: it is the text */
    sl_span behind;
    const sl_fim_file *file; /* [n_files], the last one nearest to the gap */
    size_t n_files;
    size_t room;  /* of tokens: of the files the last ones are taken that it leaves */
    bool special; /* what the tokenizer begins texts with comes first */
} sl_fim_gap;

/* Appends the prompt: beginning of text, files, what is around the gap. Without files
 * [prefix] before [suffix] behind [middle], or [suffix] behind [prefix] before; with them, where
 * the format has tokens for it, [repo] NAME [file] NAME TEXT ... [file] NAME in front, else names
 * and texts as lines. f->name is not NULL. Errors as sl_tokenizer_encode. */
sl_status sl_fim_encode(const sl_fim *f, const sl_tokenizer *tok, const sl_fim_gap *gap,
                        sl_ids *out, sl_err *err) SL_MUST_CHECK;

#endif

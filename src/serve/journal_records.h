/* What the journal's records say: a request that was accepted, tokens of it and ends of its
 * choices, and that an answer is no longer kept. Bytes are checked as if a stranger had written
 * them. Pure. Thread: any. */
#ifndef SL_SERVE_JOURNAL_RECORDS_H
#define SL_SERVE_JOURNAL_RECORDS_H

#include "base/span.h"
#include "base/status.h"
#include "spec/sampling.h"

#define SL_JOURNAL_ID_BYTES    48u
#define SL_JOURNAL_MAX_CHOICES 128u
#define SL_JOURNAL_MAX_TOKENS  (1u << 24) /* of a prompt, or of a choice */
#define SL_JOURNAL_MAX_NUMBER  (1ull << 48)

typedef enum sl_journal_type {
    SL_JOURNAL_OPEN = 1, /* accepted */
    SL_JOURNAL_TOKENS,   /* of one choice, and perhaps its end */
    SL_JOURNAL_DROP,     /* not kept any more: failed, given up, too old, or no room */
} sl_journal_type;

/* Who asked, or by which key: a keyed hash (src/serve/caller.c has the rule). */
typedef struct sl_journal_digest {
    uint8_t byte[32];
} sl_journal_digest;

/* Pointers are borrowed: of what is written, or into the record that was read, where numbers are
 * not aligned (sl_journal_u32_at). */
typedef struct sl_journal_request {
    uint64_t number; /* of the request in this journal, from 1 on */
    uint8_t kind;    /* sl_dialect_id */
    bool has_key;
    char id[SL_JOURNAL_ID_BYTES];
    sl_journal_digest caller, key;
    uint64_t created_s, seed;
    uint32_t stride; /* log-probabilities of a token */
    uint32_t n_prompts, n_choices;
    sl_span body;
    sl_span most;  /* u32 [n_choices]: max_tokens of each */
    sl_span room;  /* u32 [n_choices]: tokens that may be kept of each, those of the prompt too */
    sl_span sizes; /* u32 [n_prompts]: tokens of each */
    sl_span ids;   /* u32: the prompts' tokens, one behind the other */
} sl_journal_request;

typedef struct sl_journal_tokens {
    uint64_t number;
    uint32_t choice, at, n, stride; /* n tokens from the at-th on */
    uint8_t finish;                 /* sl_finish: NONE, STOP or LENGTH */
    uint64_t ended_s;               /* with the end: seconds since 1970 */
    uint32_t n_found;               /* of the prompt's tokens: their rows were there */
    sl_span ids;                    /* u32 [n] */
    sl_span logprobs;               /* u32, f32 [n][stride] */
} sl_journal_tokens;

static inline uint32_t sl_journal_u32_at(sl_span s, size_t i) {
    sl_cur c = {.data = s.data, .len = s.len, .pos = 4 * i, .ok = true};
    return sl_cur_u32(&c);
}

size_t sl_journal_request_bytes(const sl_journal_request *r);
void sl_journal_request_write(const sl_journal_request *r, uint8_t *out);
sl_status sl_journal_request_read(sl_span payload, sl_journal_request *out,
                                  sl_err *err) SL_MUST_CHECK;

size_t sl_journal_tokens_bytes(const sl_journal_tokens *t);
void sl_journal_tokens_write(const sl_journal_tokens *t, uint8_t *out);
sl_status sl_journal_tokens_read(sl_span payload, sl_journal_tokens *out,
                                 sl_err *err) SL_MUST_CHECK;

#define SL_JOURNAL_DROP_BYTES 8u
void sl_journal_drop_write(uint64_t number, uint8_t *out);
sl_status sl_journal_drop_read(sl_span payload, uint64_t *number, sl_err *err) SL_MUST_CHECK;

#endif

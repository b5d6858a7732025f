/* Bodies of /v1/chat/completions and /v1/completions: untrusted JSON becomes checked parameters.
 * Fields that would change the result and are not supported are refused by name, as are fields
 * nobody knows; fields that change nothing here are taken and ignored. Pure. Thread: any. */
#ifndef SL_SERVE_PARAMS_H
#define SL_SERVE_PARAMS_H

#include "format/json.h"
#include "text/chat.h"
#include "text/fim.h"
#include "spec/model.h"
#include "spec/sampling.h"
#include "serve/reply.h"
#include "serve/stop.h"

#define SL_API_MAX_MESSAGES 4096u
#define SL_API_MAX_CHOICES  128u                /* prompts times n */
#define SL_API_MAX_FILES    256u                /* of input_extra */
#define SL_API_MAX_MEMORY   ((size_t)256 << 20) /* of a parsed body */

/* What requests are checked against; borrowed. */
typedef struct sl_api_limits {
    const char *model;        /* the name it is served under, and in answers */
    const char *const *alias; /* [n_alias], further names */
    size_t n_alias;
    uint32_t vocab;         /* token ids of a prompt are below */
    uint32_t context;       /* prompt and answer together */
    bool fills;             /* the tokenizer has tokens of fill-in-the-middle */
    sl_generation_spec gen; /* sampling where a request is silent */
} sl_api_limits;

/* What an answer is to be like. */
typedef enum sl_api_shape {
    SL_API_ANY,
    SL_API_JSON,   /* any JSON object */
    SL_API_SCHEMA, /* JSON of a schema: shape_of */
    SL_API_REGEX,  /* shape_of is a text, as is that of */
    SL_API_GBNF,
    SL_API_CHOICE, /* shape_of is a list of texts */
} sl_api_shape;

/* One prompt of /v1/completions. */
typedef struct sl_api_prompt {
    sl_span text; /* when ids is empty */
    sl_ids ids;
    sl_json mixed; /* or present: an array of texts and ids, which follow one another; `text` is the
                      first one where that is a text */
} sl_api_prompt;

/* A bias of all tokens of a text. */
typedef struct sl_api_bias {
    sl_span text;
    float bias;
} sl_api_bias;

/* What only some dialects have. */
typedef struct sl_api_extra {
    bool at_most;            /* max_tokens is a bound that the context may undercut */
    bool as_it_is;           /* `thinking` may say what the model does in any case */
    bool fills;              /* the answer is a gap's, whatever is behind it */
    bool to_end;             /* without max_tokens the context bounds it */
    sl_chat_switch store;    /* whether the answer is to be kept */
    sl_jbuf echo;            /* what an answer repeats of its request: fields of its object */
    const char *shape_field; /* static: what a chat has as response_format; NULL: nothing */
} sl_api_extra;

typedef struct sl_api_params {
    sl_json_doc *doc; /* owns the strings below that are not joined */
    char *kept;       /* or what is left of them, see sl_api_params_forget */
    sl_api_kind kind;
    bool stream, include_usage, continuous_usage, ignore_eos, return_token_ids;
    bool no_cache;          /* it shares no KV pages with others */
    bool salted;            /* and only with those that say the same: */
    uint8_t cache_salt[32]; /* a hash of it */
    bool include_stop;      /* the stop string that ended a text is shown */
    bool show_special;      /* special tokens are shown */
    uint32_t max_tokens;    /* 0: the request is silent */
    uint32_t min_tokens;    /* <= max_tokens when that is given */
    bool truncate;          /* prompts keep some of their tokens: */
    uint32_t keep_tokens;   /* so many, or 0: as many as leave room for the answer */
    bool keep_first;        /* the first ones, and not the last */
    bool no_answer;         /* completion with max_tokens 0: 1 is made and dropped */
    uint32_t n;             /* choices of each prompt */
    bool echo, logprobs;
    bool prompt_logprobs; /* of the tokens of the prompt, with so many of the likeliest: */
    uint32_t n_prompt_top;
    bool verbose;        /* the answer has the text of its prompt */
    bool timings_each;   /* every chunk says how long it took so far, and the answer how long */
    bool ids_as_tokens;  /* log-probabilities name tokens by their ids */
    bool hide_reasoning; /* chat: it is counted and not shown */
    bool go_on; /* chat: the answer goes on from the last message, which is the assistant's */
    bool echo_message; /* with go_on: and begins with it */
    uint32_t n_top;    /* with logprobs: in the answer, unless ids are scored in their place: */
    uint32_t scored[SL_MAX_SCORED], n_scored;
    sl_logit_bias *bias; /* owned, ascending ids; sampling points to it, as it does to: */
    uint32_t *allowed, *bad;
    sl_json bad_words;      /* an array of texts that `bad` is made of (bad_words.c), or absent */
    sl_api_bias *bias_text; /* [n_bias_texts], owned: to become ids */
    size_t n_bias_texts;
    bool has_seed;
    sl_sampling sampling; /* seed only valid with has_seed */
    sl_span stop[SL_STOP_MAX_STRINGS];
    size_t n_stop;
    uint32_t stop_id[SL_MAX_STOP_IDS];
    uint32_t n_stop_ids;
    uint32_t n_own_ends;       /* ids behind these: of the format that fills gaps */
    sl_chat_message *messages; /* chat; n_messages > 0 */
    sl_jbuf *joined;           /* content of messages given in parts */
    sl_json_doc *quoted;       /* messages with arguments that were no JSON, as texts; or NULL */
    size_t n_messages;
    sl_json tools;  /* chat: an array of those that may be called, or absent */
    bool one_call;  /* of them: the answer ends with the first call */
    sl_span forced; /* the one that is to be called; data == NULL: the model chooses */
    bool required;  /* one of them is to be called, whichever */
    sl_api_shape shape;
    sl_json shape_of;         /* see sl_api_shape */
    sl_json_doc *shape_doc;   /* owns that of a schema that came as a text; or NULL */
    const char *shape_field;  /* that asked for it */
    bool compact;             /* JSON of that shape has no white space between its tokens */
    sl_chat_switch thinking;  /* chat: reasoning on or off, as the request says */
    const char *budget_field; /* chat: that says how long a thought may be; NULL: none does */
    uint32_t budget;
    sl_span effort;          /* chat: reasoning_effort; data == NULL: the request is silent */
    sl_json template_kwargs; /* chat: an object, or absent */
    sl_api_prompt *prompts;  /* completion; n_prompts > 0 */
    size_t n_prompts;
    sl_span suffix;    /* completion: what is behind the gap after each prompt */
    sl_fim_file *file; /* [n_files] that the model may look at, with a gap */
    size_t n_files;
    sl_ids ids;                     /* /detokenize */
    bool no_special, no_generation; /* the text alone, without what begins and ends it */
    bool token_strs;                /* /tokenize: the tokens as strings, too */
    sl_api_extra extra;
} sl_api_params;

/* Whether the answer is to stand between a prompt and a suffix. */
static inline bool sl_api_fills(const sl_api_params *p) {
    return p->extra.fills || p->suffix.len > 0;
}

bool sl_api_serves(const sl_api_limits *limits, const char *model);
/* Whether the engine reports on the tokens of the prompt; how many log-probabilities it gives with
 * a token, 0: none, and which; borrows from p. */
bool sl_api_scores_prompt(const sl_api_params *p);
uint32_t sl_api_stride(const sl_api_params *p);
sl_report sl_api_report(const sl_api_params *p);

/* A bias of one more token, or the same again: SL_ERR_ARG when it has another one, SL_ERR_LIMIT
 * beyond SL_MAX_LOGIT_BIAS, SL_ERR_NOMEM. */
sl_status sl_api_add_bias(sl_api_params *p, uint32_t id, float bias) SL_MUST_CHECK;

/* On failure *e says what to answer, and nothing is left to free. */
sl_status sl_api_params_parse(sl_api_kind kind, sl_span body, const sl_api_limits *limits,
                              sl_api_params *out, sl_api_error *e) SL_MUST_CHECK;
/* Bodies of /tokenize ({prompt | messages, ...}: `kind` says which it was) and /detokenize
 * ({model, tokens}: `ids`). */
sl_status sl_api_tokenize_parse(sl_span body, const sl_api_limits *limits, sl_api_params *out,
                                sl_api_error *e) SL_MUST_CHECK;
sl_status sl_api_detokenize_parse(sl_span body, const sl_api_limits *limits, sl_api_params *out,
                                  sl_api_error *e) SL_MUST_CHECK;
/* Arguments of calls in `messages` that are no JSON, as an answer that was cut has them, become
 * JSON strings of that text: templates that take arguments as values get the text. *some: there
 * were any. SL_ERR_NOMEM. */
sl_status sl_api_quote_arguments(sl_api_params *p, bool *some, sl_err *err) SL_MUST_CHECK;
/* A request may wait for long: frees the body once its texts are encoded and its stop strings
 * copied. Messages, prompts in ids and stop strings are gone (n_stop stays), a prompt in text keeps
 * its first SL_TOKENIZER_MAX_PIECE bytes. SL_ERR_NOMEM: nothing happened. */
sl_status sl_api_params_forget(sl_api_params *p, sl_err *err) SL_MUST_CHECK;
void sl_api_params_free(sl_api_params *p);

/* The JSON Schemas of these bodies, from the tables by which they are read; and of one field of the
 * first two, which exists. */
void sl_api_write_body(sl_jbuf *b, sl_api_kind kind, const sl_api_limits *limits);
void sl_api_write_field(sl_jbuf *b, sl_api_kind kind, const char *name,
                        const sl_api_limits *limits);
void sl_api_write_tokenize(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_detokenize(sl_jbuf *b, const sl_api_limits *limits);

#endif

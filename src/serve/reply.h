/* OpenAI's objects as JSON text: errors, completions, stream chunks, and their framing as
 * server-sent events. Pure. Thread: any, for different buffers. */
#ifndef SL_SERVE_REPLY_H
#define SL_SERVE_REPLY_H

#include "serve/jbuf.h"

typedef enum sl_api_kind { SL_API_CHAT, SL_API_COMPLETION } sl_api_kind;

/* An error on its way to a client. */
typedef struct sl_api_error {
    unsigned http;          /* 4xx or 5xx */
    const char *type;       /* static */
    const char *code;       /* static or NULL */
    char param[96];         /* field at fault, "" for none */
    bool named;             /* as its client knows it (serve/dialect.h) */
    unsigned retry_after_s; /* not 0: when it is worth another try */
    bool draining;          /* the server is about to leave */
    char msg[640];
} sl_api_error;

/* 400 invalid_request_error about `param` (may be NULL); returns SL_ERR_ARG. */
sl_status sl_api_error_bad(sl_api_error *e, const char *param, const char *fmt, ...)
    SL_PRINTF(3, 4);
/* 400 unknown_parameter: nobody knows the field; returns SL_ERR_UNSUPPORTED. */
sl_status sl_api_error_unknown(sl_api_error *e, const char *field);
/* What a status of the engine, the tokenizer or a parser means to a client; returns st. */
sl_status sl_api_error_of(sl_api_error *e, sl_status st, const char *param, const char *msg);
/* 503 draining: this server takes no new requests and leaves when the open ones are answered. */
void sl_api_error_draining(sl_api_error *e);
/* 503 too_many_connections. */
void sl_api_error_connections(sl_api_error *e, uint32_t limit);
/* 404 model_not_found. */
void sl_api_error_model(sl_api_error *e, const char *asked, const char *served);

struct sl_blocks;

typedef struct sl_reply_usage {
    uint64_t prompt, completion;
    uint64_t cached;  /* of the prompts: tokens whose rows were there */
    uint64_t thought; /* of the completion: tokens of reasoning */
} sl_reply_usage;

/* How long an answer of one choice took, so far. */
typedef struct sl_reply_timings {
    uint64_t n_prompt, n_cached, n_made; /* tokens; of the prompt, whose rows were there */
    double first_s;                      /* from the request's first byte to the first token */
    double queued_s;                     /* of these, in the queue */
    double prompt_s;                     /* from its start to the first token */
    double made_s;                       /* from the first token to the last */
} sl_reply_timings;

/* What every object of one answer repeats; strings are borrowed. */
typedef struct sl_reply_head {
    sl_api_kind kind;
    const char *id;
    const char *model;
    const char *fingerprint;      /* of what decides its bits; NULL or "": not known */
    uint64_t created;             /* seconds since 1970 */
    bool with_usage;              /* chunks say "usage":null until the last one */
    const sl_reply_usage *so_far; /* or, when not NULL, the usage so far */

    const sl_reply_timings *timings; /* NULL: nobody asked */
    sl_span prompt_text;             /* NULL data: nobody asked */
    bool timings_each;               /* in every chunk, not in the last one alone */

    /* of dialects whose answers are blocks */
    const sl_reply_usage *usage; /* so far */
    struct sl_blocks *blocks;    /* what has been written of the answer */
    bool stored;                 /* it is kept */
    sl_span echo;                /* what the answer repeats of its request */
} sl_reply_head;

/* Tokens to show beside the text, for clients that asked for them; NULL data: none. */
typedef struct sl_reply_ids {
    bool whole; /* of a whole answer, which says null of what nobody asked for */
    const uint32_t *prompt;
    size_t n_prompt;
    const uint32_t *tokens;
    size_t n_tokens;
    sl_span scores; /* of the prompt's tokens: entries of a JSON array */
} sl_reply_ids;

/* {"error":{...}} */
void sl_reply_error(sl_jbuf *b, const sl_api_error *e);
/* A call of a tool, or what is new of it. */
typedef struct sl_reply_call {
    uint32_t index; /* in the message */
    bool begins;    /* id and name are new */
    char id[72];
    sl_jbuf name, arguments;
} sl_reply_call;

/* A stretch of a choice that is of one kind: in order, they are all of it. */
typedef enum sl_run_kind { SL_RUN_TEXT, SL_RUN_REASONING, SL_RUN_CALL } sl_run_kind;
typedef struct sl_reply_run {
    sl_run_kind kind;
    size_t n; /* bytes of the text or the reasoning that come next; of a call: which of the calls */
    size_t n_scores; /* bytes of the choice's scores that come next */
} sl_reply_run;

/* What of the request ended a choice: one of its stop strings or of its stop ids, or neither. */
typedef struct sl_reply_stop {
    sl_span text; /* data == NULL: no string did */
    bool by_id;   /* this id did: */
    uint32_t id;
} sl_reply_stop;

/* One of the choices, or what is new of it. */
typedef struct sl_reply_choice {
    uint32_t index;
    sl_span text;
    sl_span reasoning; /* of a chat, what was thought before the text; empty: nothing */
    const sl_reply_call *calls;
    size_t n_calls;
    const sl_reply_run *runs; /* of dialects whose answers are blocks */
    size_t n_runs;
    const char *finish; /* "stop", "length" or "tool_calls"; NULL while it goes on */
    sl_reply_stop stop; /* with finish */
    bool full;          /* with "length": the context ended it */
    sl_reply_ids ids;
    sl_span logprobs; /* a JSON object; empty: null */
    sl_span raw;      /* where its prompt's text is wanted: that of its tokens */
    sl_span scores;   /* with runs: entries of the same for the text's tokens */
} sl_reply_choice;

/* The whole answer: open, every choice, close. A chat has one prompt, whose ids stand beside the
 * choices: in close, and in the event of the role. */
void sl_reply_open(sl_jbuf *b, const sl_reply_head *h);
void sl_reply_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_reply_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                    sl_reply_usage usage);

/* ,"timings":{...},"metrics":{...} in the words of llama.cpp and of vLLM; nothing if t is NULL. */
void sl_reply_timings_write(sl_jbuf *b, const sl_reply_timings *t);

/* Events: "data: {...}\n\n". */
void sl_reply_event_error(sl_jbuf *b, const sl_api_error *e);
/* The first chunk of a chat's choice: who speaks. Shows the index and prompt of c alone. */
void sl_reply_event_role(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
/* New text; finish is NULL but in the last one of a choice. */
void sl_reply_event_text(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
/* The chunk without choices that stream_options.include_usage asks for. */
void sl_reply_event_usage(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage);
void sl_reply_event_done(sl_jbuf *b);
/* What clients skip: ": TEXT\n". It has no empty line behind it: some take that for the end of an
 * event once they have seen an id. */
void sl_reply_comment(sl_jbuf *b, const char *text);

#endif

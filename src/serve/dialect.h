/* Dialects of the API: how bodies become parameters, and how answers become bytes.
 *
 * A dialect is a row of a table. Whatever it looks like, a request asks for a chat or for a
 * completion (params.h), and its answer is what choices made of the engine's tokens; everything
 * between the two is the same for all. Where a body is not a chat's it is rewritten as one, so that
 * messages, tools and sampling are read in one place; what that refuses is named as the dialect has
 * it. Pure. Thread: any, for different answers. */
#ifndef SL_SERVE_DIALECT_H
#define SL_SERVE_DIALECT_H

#include "serve/params.h"
#include "serve/reply.h"

typedef enum sl_dialect_id { /* the journal has these numbers */
                             SL_DIALECT_CHAT,
                             SL_DIALECT_COMPLETION,
                             SL_DIALECT_MESSAGES, /* Anthropic's */
                             SL_DIALECT_RESPONSES,
                             SL_DIALECT_INFILL, /* llama.cpp's */
                             SL_DIALECT_N,
} sl_dialect_id;

/* A field of a body that is rewritten. Those that have no row are refused. */
typedef struct sl_dialect_field {
    const char *name;
    enum {
        SL_FIELD_COPY,   /* it is chat's `as` */
        SL_FIELD_OWN,    /* `translate` makes chat's `as` of it, or something else (NULL) */
        SL_FIELD_IGNORE, /* it changes nothing here */
        SL_FIELD_REFUSE, /* known, and not supported */
    } rule;
    const char *as;
} sl_dialect_field;

typedef struct sl_dialect {
    sl_api_kind kind;      /* what its requests ask for */
    const char *id_prefix; /* of its answers */

    /* Bodies that are rewritten: what becomes of their fields, and who writes those of a chat that
     * are not copied, each with a comma before it. NULL: they are read as they are. */
    const sl_dialect_field *fields;
    size_t n_fields;
    sl_status (*translate)(sl_json root, const sl_api_limits *limits, sl_jbuf *chat,
                           sl_api_extra *extra, sl_api_error *e);
    bool needs_max_tokens;
    const char *talk; /* field that has the last message, which an answer goes on from; or NULL */
    bool stores;      /* answers are kept unless the request says otherwise, and may go on */

    const char *request_id_header; /* of answers, beside X-Request-Id; NULL: none */
    bool in_blocks;                /* the order of texts, thoughts and calls is wanted */

    /* A refusal as a body. */
    void (*error)(sl_jbuf *b, const sl_api_error *e);

    /* A whole answer: open, every choice, close. */
    void (*open)(sl_jbuf *b, const sl_reply_head *h);
    void (*add)(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
    void (*close)(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids, sl_reply_usage u);

    /* A stream: of each choice its beginning (NULL: nothing is said), what is new, why it ended;
     * then the end of all, or an error. */
    void (*begin)(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
    void (*news)(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
    void (*finish)(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
    void (*end)(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage);
    void (*fail)(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e);
    /* What is said of a stream that has been quiet; nothing of the answer. */
    void (*remark)(sl_jbuf *b, const char *text);
} sl_dialect;

extern const sl_dialect sl_dialects[SL_DIALECT_N];

static inline sl_dialect_id sl_dialect_id_of(const sl_dialect *d) {
    return (sl_dialect_id)(d - sl_dialects);
}

/* A body in that dialect: as sl_api_params_parse. */
sl_status sl_dialect_read(const sl_dialect *d, sl_span body, const sl_api_limits *limits,
                          sl_api_params *out, sl_api_error *e) SL_MUST_CHECK;
/* The JSON Schema of its bodies, from the tables by which they are read. */
void sl_dialect_write_body(sl_jbuf *b, const sl_dialect *d, const sl_api_limits *limits);
/* What is wrong with a field of the chat, under the name that the client knows; again: nothing. */
void sl_dialect_rename_error(const sl_dialect *d, sl_api_error *e);

#endif

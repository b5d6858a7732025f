/* Dialects of the API: how bodies become parameters, and how answers become bytes.
 *
 * A dialect is a row of a table. Whatever it looks like, a request asks for a chat or for a
 * completion (params.h), and its answer is what choices made of the engine's tokens; everything
 * between the two is the same for all. Pure. Thread: any, for different answers. */
#ifndef SL_SERVE_DIALECT_H
#define SL_SERVE_DIALECT_H

#include "serve/params.h"
#include "serve/reply.h"

typedef enum sl_dialect_id { /* the journal has these numbers */
                             SL_DIALECT_CHAT,
                             SL_DIALECT_COMPLETION,
                             SL_DIALECT_N,
} sl_dialect_id;

typedef struct sl_dialect {
    sl_api_kind kind;      /* what its requests ask for */
    const char *id_prefix; /* of its answers */

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

#endif

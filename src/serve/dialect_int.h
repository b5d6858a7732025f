/* Inside of the dialects: what their rows are made of. */
#ifndef SL_SERVE_DIALECT_INT_H
#define SL_SERVE_DIALECT_INT_H

#include "serve/blocks.h"
#include "serve/dialect.h"

/* Fields of sampling, and others of chats that every dialect may have under their own names. */
#define SL_SAMPLING(type, name, ...) {#name, SL_FIELD_COPY, #name},
#define SL_DIALECT_COMMON                                                                          \
    {"model", SL_FIELD_COPY, "model"}, {"stream", SL_FIELD_COPY, "stream"},                        \
        {"seed", SL_FIELD_COPY, "seed"}, {"ignore_eos", SL_FIELD_COPY, "ignore_eos"},              \
        {"stop_token_ids", SL_FIELD_COPY, "stop_token_ids"},                                       \
        {"logit_bias", SL_FIELD_COPY, "logit_bias"},                                               \
        {"allowed_token_ids", SL_FIELD_COPY, "allowed_token_ids"},                                 \
        {"bad_words", SL_FIELD_COPY, "bad_words"},                                                 \
        {"chat_template_kwargs", SL_FIELD_COPY, "chat_template_kwargs"},                           \
        {"cache_salt", SL_FIELD_COPY, "cache_salt"}, {"cache", SL_FIELD_COPY, "cache"},

/* Refuses fields of `v` that are none of these, but for null and empty ones; `where` names it. */
sl_status sl_dialect_only(sl_json v, const char *where, const char *const *known, size_t n,
                          const char *param, sl_api_error *e) SL_MUST_CHECK;

/* messages_read.c: Anthropic's bodies */
#define SL_MESSAGES_FIELDS 39u
extern const sl_dialect_field sl_messages_fields[];
sl_status sl_messages_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *chat,
                                sl_api_extra *extra, sl_api_error *e) SL_MUST_CHECK;

/* messages_write.c: Anthropic's answers */
void sl_messages_error(sl_jbuf *b, const sl_api_error *e);
void sl_messages_open(sl_jbuf *b, const sl_reply_head *h);
void sl_messages_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_messages_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                       sl_reply_usage usage);
void sl_messages_begin(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_messages_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_messages_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_messages_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage);
void sl_messages_fail(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e);
void sl_messages_remark(sl_jbuf *b, const char *text);

/* responses_read.c: bodies of /v1/responses */
#define SL_RESPONSES_FIELDS 46u
extern const sl_dialect_field sl_responses_fields[];
sl_status sl_responses_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *chat,
                                 sl_api_extra *extra, sl_api_error *e) SL_MUST_CHECK;

/* responses_write.c: responses */
void sl_responses_open(sl_jbuf *b, const sl_reply_head *h);
void sl_responses_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_responses_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                        sl_reply_usage usage);
void sl_responses_begin(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_responses_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_responses_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_responses_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage);
void sl_responses_fail(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e);
/* One that its client has given up, whole. */
void sl_responses_cancelled(sl_jbuf *b, const sl_reply_head *h);

/* infill_read.c: bodies of /infill */
#define SL_INFILL_FIELDS 41u
extern const sl_dialect_field sl_infill_fields[];
sl_status sl_infill_translate(sl_json root, const sl_api_limits *limits, sl_jbuf *completion,
                              sl_api_extra *extra, sl_api_error *e) SL_MUST_CHECK;

/* infill_write.c: what fills a gap */
void sl_infill_open(sl_jbuf *b, const sl_reply_head *h);
void sl_infill_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_infill_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                     sl_reply_usage usage);
void sl_infill_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_infill_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c);
void sl_infill_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage);

#endif

/* The table of dialects. */
#include "serve/dialect.h"

static void openai_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage) {
    if (h->with_usage) sl_reply_event_usage(b, h, usage);
    sl_reply_event_done(b);
}

static void openai_fail(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e) {
    (void)h;
    sl_reply_event_error(b, e);
}

#define OPENAI                                                                                     \
    .error = sl_reply_error, .open = sl_reply_open, .add = sl_reply_add, .close = sl_reply_close,  \
    .news = sl_reply_event_text, .finish = sl_reply_event_text, .end = openai_end,                 \
    .fail = openai_fail, .remark = sl_reply_comment

const sl_dialect sl_dialects[SL_DIALECT_N] = {
    [SL_DIALECT_CHAT] = {.kind = SL_API_CHAT,
                         .id_prefix = "chatcmpl-",
                         .begin = sl_reply_event_role,
                         OPENAI},
    [SL_DIALECT_COMPLETION] = {.kind = SL_API_COMPLETION, .id_prefix = "cmpl-", OPENAI},
};

sl_status sl_dialect_read(const sl_dialect *d, sl_span body, const sl_api_limits *limits,
                          sl_api_params *out, sl_api_error *e) {
    return sl_api_params_parse(d->kind, body, limits, out, e);
}

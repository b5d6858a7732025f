/* The table of dialects, and how bodies that are not chats' are read as chats. */
#include "serve/dialect_int.h"

#include "serve/params_int.h"

#include <stdio.h>

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
    [SL_DIALECT_MESSAGES] = {.kind = SL_API_CHAT,
                             .id_prefix = "msg_",
                             .fields = sl_messages_fields,
                             .n_fields = SL_MESSAGES_FIELDS,
                             .translate = sl_messages_translate,
                             .needs_max_tokens = true,
                             .talk = "messages",
                             .request_id_header = "request-id",
                             .in_blocks = true,
                             .error = sl_messages_error,
                             .open = sl_messages_open,
                             .add = sl_messages_add,
                             .close = sl_messages_close,
                             .begin = sl_messages_begin,
                             .news = sl_messages_news,
                             .finish = sl_messages_finish,
                             .end = sl_messages_end,
                             .fail = sl_messages_fail,
                             .remark = sl_messages_remark},
    [SL_DIALECT_RESPONSES] = {.kind = SL_API_CHAT,
                              .id_prefix = "resp_",
                              .fields = sl_responses_fields,
                              .n_fields = SL_RESPONSES_FIELDS,
                              .translate = sl_responses_translate,
                              .stores = true,
                              .in_blocks = true,
                              .error = sl_reply_error,
                              .open = sl_responses_open,
                              .add = sl_responses_add,
                              .close = sl_responses_close,
                              .begin = sl_responses_begin,
                              .news = sl_responses_news,
                              .finish = sl_responses_finish,
                              .end = sl_responses_end,
                              .fail = sl_responses_fail,
                              .remark = sl_reply_comment},
    [SL_DIALECT_INFILL] = {.kind = SL_API_COMPLETION,
                           .id_prefix = "infill-",
                           .fields = sl_infill_fields,
                           .n_fields = SL_INFILL_FIELDS,
                           .translate = sl_infill_translate,
                           .error = sl_reply_error,
                           .open = sl_infill_open,
                           .add = sl_infill_add,
                           .close = sl_infill_close,
                           .news = sl_infill_news,
                           .finish = sl_infill_finish,
                           .end = sl_infill_end,
                           .fail = openai_fail,
                           .remark = sl_reply_comment},
};

/* ---- bodies that are rewritten ---- */

static sl_status refuse(const char *key, bool known, sl_api_error *e) {
    if (known) return sl_api_error_bad(e, key, "%s: not supported by this server", key);
    return sl_api_error_unknown(e, key);
}

static sl_status copy_fields(const sl_dialect *d, sl_json root, sl_jbuf *chat, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json v; sl_json_next(root, &iter, &key, &v);) {
        const sl_dialect_field *f = NULL;
        if (sl_json_kind_of(v) == SL_JSON_NULL) continue;
        for (size_t i = 0; i < d->n_fields && !f; i++)
            if (!strcmp(d->fields[i].name, key)) f = &d->fields[i];
        if (!f || f->rule == SL_FIELD_REFUSE) return refuse(key, f != NULL, e);
        if (f->rule != SL_FIELD_COPY) continue;
        sl_jbuf_fmt(chat, "%s\"%s\":", chat->len > 1 ? "," : "", f->as);
        sl_jbuf_json(chat, v);
    }
    return SL_OK;
}

/* Whether it was that field that is wrong. */
static bool rename_field(sl_api_error *e, const char *from, const char *to) {
    size_t n = strlen(from);
    char said[sizeof e->msg];
    if (strcmp(from, e->param) != 0 || !strcmp(from, to)) return false;
    memcpy(said, e->msg, sizeof said);
    if (!strncmp(said, from, n)) snprintf(e->msg, sizeof e->msg, "%s%.500s", to, said + n);
    snprintf(e->param, sizeof e->param, "%s", to);
    e->named = true;
    return true;
}

void sl_dialect_rename_error(const sl_dialect *d, sl_api_error *e) {
    if (e->named) return;
    if (d->talk && rename_field(e, "continue_final_message", d->talk)) return;
    for (size_t i = 0; i < d->n_fields; i++)
        if (d->fields[i].as && rename_field(e, d->fields[i].as, d->fields[i].name)) return;
}

/* The shape of an answer, which may come in one of several fields, has the name of the one. */
static void rename_shape(sl_status st, const char *field, sl_api_params *p, sl_api_error *e) {
    if (!field) return;
    if (st != SL_OK)
        rename_field(e, "response_format", field);
    else if (p->shape != SL_API_ANY)
        p->shape_field = field;
}

static sl_status rewrite(const sl_dialect *d, sl_json root, const sl_api_limits *limits,
                         sl_jbuf *chat, sl_api_extra *extra, sl_api_error *e) {
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, NULL, "request body: not a JSON object");
    sl_jbuf_put(chat, "{", 1);
    sl_status st = copy_fields(d, root, chat, e);
    if (st == SL_OK && chat->len == 1) { /* nothing was copied, and commas follow */
        sl_jbuf_fmt(chat, "\"model\":");
        sl_jbuf_cstring(chat, limits->model);
    }
    if (st == SL_OK) st = d->translate(root, limits, chat, extra, e);
    sl_jbuf_put(chat, "}", 1);
    if (st == SL_OK && !(chat->ok && extra->echo.ok))
        st = sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    return st;
}

static sl_status read_rewritten(const sl_dialect *d, sl_span body, const sl_api_limits *limits,
                                sl_api_params *out, sl_api_error *e) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_jbuf chat = sl_jbuf_init();
    sl_api_extra extra = {.echo = sl_jbuf_init()};
    sl_status st = sl_json_parse_within("request body", body, SL_API_MAX_MEMORY, &doc, &err);
    if (st == SL_OK)
        e->named = (st = rewrite(d, sl_json_root(doc), limits, &chat, &extra, e)) != SL_OK;
    else
        sl_api_error_of(e, st, NULL, err.msg);
    sl_json_doc_free(doc);
    if (st == SL_OK) {
        sl_span text = {(uint8_t *)chat.data, chat.len};
        st = sl_api_params_parse(d->kind, text, limits, out, e);
        rename_shape(st, extra.shape_field, out, e);
        if (st != SL_OK) sl_dialect_rename_error(d, e);
    }
    sl_jbuf_free(&chat);
    if (st == SL_OK)
        out->extra = extra;
    else
        sl_jbuf_free(&extra.echo);
    return st;
}

sl_status sl_dialect_read(const sl_dialect *d, sl_span body, const sl_api_limits *limits,
                          sl_api_params *out, sl_api_error *e) {
    return d->translate ? read_rewritten(d, body, limits, out, e)
                        : sl_api_params_parse(d->kind, body, limits, out, e);
}

sl_status sl_dialect_only(sl_json v, const char *where, const char *const *known, size_t n,
                          const char *param, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    for (sl_json f; sl_json_next(v, &iter, &key, &f);) {
        bool fine = sl_json_kind_of(f) == SL_JSON_NULL || sl_api_is_empty(f);
        for (size_t i = 0; i < n && !fine; i++) fine = !strcmp(known[i], key);
        if (!fine) return sl_api_error_bad(e, param, "%s.%.64s: not supported", where, key);
    }
    return SL_OK;
}

/* ---- the same as a JSON Schema ---- */

/* What a dialect makes something else of is described by it alone. */
static void write_field(sl_jbuf *b, const sl_dialect *d, const sl_dialect_field *f,
                        const sl_api_limits *limits) {
    switch (f->rule) {
    case SL_FIELD_COPY:
        sl_api_write_field(b, d->kind, f->as, limits);
        return;
    case SL_FIELD_OWN:
        sl_jbuf_fmt(b, "{}");
        return;
    case SL_FIELD_IGNORE:
        sl_jbuf_fmt(b, "{\"description\":\"ignored\"}");
        return;
    case SL_FIELD_REFUSE:
        sl_jbuf_fmt(b, "{\"type\":\"null\"}");
        return;
    }
}

void sl_dialect_write_body(sl_jbuf *b, const sl_dialect *d, const sl_api_limits *limits) {
    const char *required[2];
    size_t n_required = 0;
    if (!d->translate) {
        sl_api_write_body(b, d->kind, limits);
        return;
    }
    sl_schema_open(b);
    for (size_t i = 0; i < d->n_fields; i++) {
        const sl_dialect_field *f = &d->fields[i];
        bool needed = f->as && (!strcmp(f->as, "messages") || !strcmp(f->as, "suffix") ||
                                !strcmp(f->as, "prompt") ||
                                (d->needs_max_tokens && !strcmp(f->as, "max_tokens")));
        sl_schema_name(b, f->name);
        write_field(b, d, f, limits);
        if (needed && n_required < SL_LEN(required)) required[n_required++] = f->name;
    }
    sl_schema_close(b, required, n_required);
}

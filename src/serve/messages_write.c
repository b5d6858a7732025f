/* Answers as Anthropic's messages, whole or event by event. */
#include "serve/dialect_int.h"

#include <inttypes.h>

void sl_messages_error(sl_jbuf *b, const sl_api_error *e) {
    static const struct {
        unsigned http;
        const char *type;
    } types[] = {
        {401, "authentication_error"}, {403, "permission_error"},  {404, "not_found_error"},
        {408, "timeout_error"},        {413, "request_too_large"}, {429, "rate_limit_error"},
        {503, "overloaded_error"},
    };
    const char *type = e->http < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < SL_LEN(types); i++)
        if (types[i].http == e->http) type = types[i].type;
    sl_jbuf_fmt(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    sl_jbuf_cstring(b, e->msg);
    sl_jbuf_fmt(b, "}}");
}

/* ---- blocks ---- */

static void put_string(sl_jbuf *b, const sl_jbuf *text) {
    sl_jbuf_string(b, text->data ? text->data : "", text->len);
}

/* Arguments are an object here. What the model wrote and is none is kept as Anthropic's own guide
 * says, under a name that no function has. */
static void put_input(sl_jbuf *b, const sl_jbuf *arguments) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_span text = {(const uint8_t *)arguments->data, arguments->len};
    bool object = text.len > 0 && sl_json_parse("arguments", text, &doc, &err) == SL_OK &&
                  sl_json_kind_of(sl_json_root(doc)) == SL_JSON_OBJECT;
    sl_jbuf_fmt(b, ",\"input\":");
    if (object) {
        sl_jbuf_json(b, sl_json_root(doc));
    } else if (text.len == 0) {
        sl_jbuf_fmt(b, "{}");
    } else {
        sl_jbuf_fmt(b, "{\"INVALID_JSON\":");
        put_string(b, arguments);
        sl_jbuf_put(b, "}", 1);
    }
    sl_json_doc_free(doc);
}

/* The block but for what is in it; its object is open. */
static void put_block(sl_jbuf *b, const sl_blocks *k) {
    if (k->kind == SL_RUN_TEXT) {
        sl_jbuf_fmt(b, "{\"type\":\"text\",\"citations\":null");
    } else if (k->kind == SL_RUN_REASONING) {
        sl_jbuf_fmt(b, "{\"type\":\"thinking\",\"signature\":\"\"");
    } else {
        sl_jbuf_fmt(b, "{\"type\":\"tool_use\",\"id\":");
        sl_jbuf_cstring(b, k->call_id);
        sl_jbuf_fmt(b, ",\"name\":");
        put_string(b, &k->name);
    }
}

static void put_item(sl_jbuf *b, const sl_reply_head *h) {
    const sl_blocks *k = h->blocks;
    put_block(b, k);
    if (k->kind == SL_RUN_CALL)
        put_input(b, &k->text);
    else
        sl_event_text(b, k->kind == SL_RUN_TEXT ? "text" : "thinking", k->text.data, k->text.len);
    sl_jbuf_put(b, "}", 1);
}

static void open_event(sl_jbuf *b, const sl_reply_head *h, const char *type) {
    sl_event_open(b, type);
    sl_jbuf_fmt(b, ",\"index\":%" PRIu32, h->blocks->n - 1);
}

static void begin_block(sl_jbuf *b, const sl_reply_head *h) {
    static const char *const empty[] = {[SL_RUN_TEXT] = "\"text\":\"\"",
                                        [SL_RUN_REASONING] = "\"thinking\":\"\"",
                                        [SL_RUN_CALL] = "\"input\":{}"};
    open_event(b, h, "content_block_start");
    sl_jbuf_fmt(b, ",\"content_block\":");
    put_block(b, h->blocks);
    sl_jbuf_fmt(b, ",%s}", empty[h->blocks->kind]);
    sl_event_close(b);
}

static void put_delta(sl_jbuf *b, const sl_reply_head *h, const char *type, const char *key,
                      sl_span text) {
    open_event(b, h, "content_block_delta");
    sl_jbuf_fmt(b, ",\"delta\":{\"type\":\"%s\"", type);
    sl_event_text(b, key, (const char *)text.data, text.len);
    sl_jbuf_put(b, "}", 1);
    sl_event_close(b);
}

static void add_piece(sl_jbuf *b, const sl_reply_head *h, sl_span text) {
    static const struct {
        const char *type, *key;
    } deltas[] = {[SL_RUN_TEXT] = {"text_delta", "text"},
                  [SL_RUN_REASONING] = {"thinking_delta", "thinking"},
                  [SL_RUN_CALL] = {"input_json_delta", "partial_json"}};
    put_delta(b, h, deltas[h->blocks->kind].type, deltas[h->blocks->kind].key, text);
}

static void end_block(sl_jbuf *b, const sl_reply_head *h) {
    if (h->blocks->kind == SL_RUN_REASONING)
        put_delta(b, h, "signature_delta", "signature", (sl_span){0});
    open_event(b, h, "content_block_stop");
    sl_event_close(b);
}

static const sl_block_style style = {put_item, begin_block, add_piece, end_block};

/* ---- messages ---- */

static const char *stop_reason(const sl_blocks *k) {
    if (!k->finish) return "end_turn";
    if (!strcmp(k->finish, "tool_calls")) return "tool_use";
    if (!strcmp(k->finish, "length"))
        return k->full ? "model_context_window_exceeded" : "max_tokens";
    return k->stop.len ? "stop_sequence" : "end_turn";
}

/* Why it ended, of the message or of its last change. */
static void put_stop(sl_jbuf *b, const sl_blocks *k) {
    sl_jbuf_fmt(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(k));
    if (k->stop.len)
        put_string(b, &k->stop);
    else
        sl_jbuf_fmt(b, "null");
}

static void put_usage(sl_jbuf *b, sl_reply_usage u) {
    sl_jbuf_fmt(b,
                ",\"usage\":{\"input_tokens\":%" PRIu64 ",\"cache_creation_input_tokens\":0,"
                "\"cache_read_input_tokens\":%" PRIu64 ",\"output_tokens\":%" PRIu64
                ",\"output_tokens_details\":{\"thinking_tokens\":%" PRIu64 "}}",
                u.prompt - u.cached, u.cached, u.completion, u.thought);
}

static void put_head(sl_jbuf *b, const sl_reply_head *h) {
    sl_jbuf_fmt(b, "{\"id\":");
    sl_jbuf_cstring(b, h->id);
    sl_jbuf_fmt(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    sl_jbuf_cstring(b, h->model);
    sl_jbuf_fmt(b, ",\"content\":[");
}

void sl_messages_open(sl_jbuf *b, const sl_reply_head *h) {
    put_head(b, h);
}

void sl_messages_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_add(NULL, h, &style, c);
    sl_blocks_end(NULL, h, &style, c);
    b->ok = b->ok && h->blocks->items.ok && h->blocks->text.ok && h->blocks->name.ok;
    sl_jbuf_put(b, h->blocks->items.data, h->blocks->items.len);
}

void sl_messages_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                       sl_reply_usage usage) {
    (void)ids;
    sl_jbuf_fmt(b, "],");
    put_stop(b, h->blocks);
    put_usage(b, usage);
    sl_jbuf_put(b, "}", 1);
}

void sl_messages_begin(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    (void)c;
    sl_event_open(b, "message_start");
    sl_jbuf_fmt(b, ",\"message\":");
    put_head(b, h);
    sl_jbuf_fmt(b, "],\"stop_reason\":null,\"stop_sequence\":null");
    put_usage(b, *h->usage);
    sl_jbuf_put(b, "}", 1);
    sl_event_close(b);
}

void sl_messages_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_add(b, h, &style, c);
}

void sl_messages_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_end(b, h, &style, c);
}

void sl_messages_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage) {
    sl_event_open(b, "message_delta");
    sl_jbuf_fmt(b, ",\"delta\":{");
    put_stop(b, h->blocks);
    sl_jbuf_put(b, "}", 1);
    put_usage(b, usage);
    sl_event_close(b);
    sl_event_open(b, "message_stop");
    sl_event_close(b);
}

void sl_messages_fail(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e) {
    (void)h;
    sl_jbuf_fmt(b, "event: error\ndata: ");
    sl_messages_error(b, e);
    sl_jbuf_fmt(b, "\n\n");
}

void sl_messages_remark(sl_jbuf *b, const char *text) {
    (void)text;
    sl_event_open(b, "ping");
    sl_event_close(b);
}

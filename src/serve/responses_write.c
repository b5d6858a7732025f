/* Answers as OpenAI's responses, whole or event by event. */
#include "serve/dialect_int.h"

#include <inttypes.h>
#include <stdio.h>

static void put_string(sl_jbuf *b, const sl_jbuf *text) {
    sl_jbuf_string(b, text->data ? text->data : "", text->len);
}

/* ---- items ---- */

/* The id of the open item: that of the answer with its place behind. */
static void put_id(sl_jbuf *b, const sl_reply_head *h, const char *key) {
    static const char *const prefix[] = {
        [SL_RUN_TEXT] = "msg", [SL_RUN_REASONING] = "rs", [SL_RUN_CALL] = "fc"};
    const char *own = strchr(h->id, '_');
    sl_jbuf_fmt(b, "\"%s\":\"%s_%s%04" PRIx32 "\"", key, prefix[h->blocks->kind],
                own ? own + 1 : h->id, h->blocks->n - 1);
}

/* Entries of log-probabilities: of the whole open item, or of its news. */
static void put_scores(sl_jbuf *b, const char *entries, size_t n) {
    sl_jbuf_fmt(b, ",\"logprobs\":[");
    sl_jbuf_put(b, entries, n);
    sl_jbuf_put(b, "]", 1);
}

static void put_part(sl_jbuf *b, const sl_reply_head *h, const sl_jbuf *text) {
    const sl_blocks *k = h->blocks;
    if (k->kind == SL_RUN_TEXT) {
        sl_jbuf_fmt(b, "{\"type\":\"output_text\",\"annotations\":[]");
        put_scores(b, k->scores.data, text->len ? k->scores.len : 0);
    } else {
        sl_jbuf_fmt(b, "{\"type\":\"reasoning_text\"");
    }
    sl_event_text(b, "text", text->data, text->len);
    sl_jbuf_put(b, "}", 1);
}

/* The open item with what it has so far; begins: with nothing. */
static void put_state(sl_jbuf *b, const sl_reply_head *h, bool begins) {
    const sl_blocks *k = h->blocks;
    bool cut = k->finish && !strcmp(k->finish, "length");
    sl_jbuf_put(b, "{", 1);
    put_id(b, h, "id");
    sl_jbuf_fmt(b, ",\"status\":\"%s\"", begins ? "in_progress" : cut ? "incomplete" : "completed");
    if (k->kind == SL_RUN_CALL) {
        sl_jbuf_fmt(b, ",\"type\":\"function_call\",\"call_id\":");
        sl_jbuf_cstring(b, k->call_id);
        sl_jbuf_fmt(b, ",\"name\":");
        put_string(b, &k->name);
        sl_event_text(b, "arguments", k->text.data, begins ? 0 : k->text.len);
    } else {
        sl_jbuf_fmt(b, "%s,\"content\":[",
                    k->kind == SL_RUN_TEXT ? ",\"type\":\"message\",\"role\":\"assistant\""
                                           : ",\"type\":\"reasoning\",\"summary\":[]");
        if (!begins) put_part(b, h, &k->text);
        sl_jbuf_put(b, "]", 1);
    }
    sl_jbuf_put(b, "}", 1);
}

static void put_item(sl_jbuf *b, const sl_reply_head *h) {
    put_state(b, h, false);
}

static void open_event(sl_jbuf *b, const sl_reply_head *h, const char *type) {
    sl_event_open(b, type);
    sl_jbuf_fmt(b, ",\"sequence_number\":%" PRIu64, h->blocks->sequence++);
}

/* Of the open item, and of its one part, if it has parts. */
static void open_item_event(sl_jbuf *b, const sl_reply_head *h, const char *type, bool part) {
    open_event(b, h, type);
    sl_jbuf_put(b, ",", 1);
    put_id(b, h, "item_id");
    sl_jbuf_fmt(b, ",\"output_index\":%" PRIu32 "%s", h->blocks->n - 1,
                part ? ",\"content_index\":0" : "");
}

static void put_item_event(sl_jbuf *b, const sl_reply_head *h, const char *type, bool begins) {
    open_event(b, h, type);
    sl_jbuf_fmt(b, ",\"output_index\":%" PRIu32 ",\"item\":", h->blocks->n - 1);
    put_state(b, h, begins);
    sl_event_close(b);
}

static void put_part_event(sl_jbuf *b, const sl_reply_head *h, const char *type,
                           const sl_jbuf *text) {
    open_item_event(b, h, type, true);
    sl_jbuf_fmt(b, ",\"part\":");
    put_part(b, h, text);
    sl_event_close(b);
}

static void begin_item(sl_jbuf *b, const sl_reply_head *h) {
    put_item_event(b, h, "response.output_item.added", true);
    if (h->blocks->kind != SL_RUN_CALL)
        put_part_event(b, h, "response.content_part.added", &(sl_jbuf){0});
}

static void add_piece(sl_jbuf *b, const sl_reply_head *h, sl_span text) {
    static const char *const types[] = {[SL_RUN_TEXT] = "response.output_text.delta",
                                        [SL_RUN_REASONING] = "response.reasoning_text.delta",
                                        [SL_RUN_CALL] = "response.function_call_arguments.delta"};
    sl_run_kind kind = h->blocks->kind;
    open_item_event(b, h, types[kind], kind != SL_RUN_CALL);
    if (kind == SL_RUN_TEXT) put_scores(b, (const char *)h->blocks->news.data, h->blocks->news.len);
    sl_event_text(b, "delta", (const char *)text.data, text.len);
    sl_event_close(b);
}

static void end_item(sl_jbuf *b, const sl_reply_head *h) {
    static const struct {
        const char *type, *key;
    } done[] = {[SL_RUN_TEXT] = {"response.output_text.done", "text"},
                [SL_RUN_REASONING] = {"response.reasoning_text.done", "text"},
                [SL_RUN_CALL] = {"response.function_call_arguments.done", "arguments"}};
    const sl_blocks *k = h->blocks;
    open_item_event(b, h, done[k->kind].type, k->kind != SL_RUN_CALL);
    if (k->kind == SL_RUN_TEXT) put_scores(b, k->scores.data, k->scores.len);
    if (k->kind == SL_RUN_CALL) {
        sl_jbuf_fmt(b, ",\"name\":");
        put_string(b, &k->name);
    }
    sl_event_text(b, done[k->kind].key, k->text.data, k->text.len);
    sl_event_close(b);
    if (k->kind != SL_RUN_CALL) put_part_event(b, h, "response.content_part.done", &k->text);
    put_item_event(b, h, "response.output_item.done", false);
}

static const sl_block_style style = {put_item, begin_item, add_piece, end_item};

/* ---- responses ---- */

static void put_usage(sl_jbuf *b, sl_reply_usage u) {
    sl_jbuf_fmt(b,
                "{\"input_tokens\":%" PRIu64 ",\"input_tokens_details\":{\"cached_tokens\":%" PRIu64
                ",\"cache_write_tokens\":0},\"output_tokens\":%" PRIu64
                ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRIu64
                "},\"total_tokens\":%" PRIu64 "}",
                u.prompt, u.cached, u.completion, u.thought, u.prompt + u.completion);
}

static void put_error(sl_jbuf *b, const sl_api_error *e) {
    if (!e) {
        sl_jbuf_fmt(b, "null");
        return;
    }
    sl_jbuf_fmt(b, "{\"code\":\"%s\",\"message\":",
                e->http == 429 ? "rate_limit_exceeded" : "server_error");
    sl_jbuf_cstring(b, e->msg);
    sl_jbuf_put(b, "}", 1);
}

static void open_response(sl_jbuf *b, const sl_reply_head *h, const char *status, bool cut,
                          const sl_api_error *e) {
    sl_jbuf_fmt(b, "{\"id\":");
    sl_jbuf_cstring(b, h->id);
    sl_jbuf_fmt(b,
                ",\"object\":\"response\",\"created_at\":%" PRIu64
                ",\"status\":\"%s\",\"background\":false,\"store\":%s,\"model\":",
                h->created, status, h->stored ? "true" : "false");
    sl_jbuf_cstring(b, h->model);
    sl_jbuf_put(b, (const char *)h->echo.data, h->echo.len);
    sl_jbuf_fmt(b, ",\"error\":");
    put_error(b, e);
    sl_jbuf_fmt(b, ",\"incomplete_details\":%s,\"output\":[",
                cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
}

/* Its list of items is closed. */
static void close_response(sl_jbuf *b, const sl_reply_usage *u) {
    sl_jbuf_fmt(b, ",\"usage\":");
    if (u)
        put_usage(b, *u);
    else
        sl_jbuf_fmt(b, "null");
    sl_jbuf_put(b, "}", 1);
}

static bool was_cut(const sl_blocks *k) {
    return k->finish && !strcmp(k->finish, "length");
}

void sl_responses_open(sl_jbuf *b, const sl_reply_head *h) {
    (void)b, (void)h; /* how it ended comes first, see sl_responses_close */
}

/* Text and tokens of what went in or came out, as vLLM shows them. */
static void put_raw(sl_jbuf *b, const char *key, sl_span text, const uint32_t *ids, size_t n) {
    sl_jbuf_fmt(b, ",\"%s\":[{\"type\":\"raw_message_tokens\",\"message\":", key);
    sl_jbuf_string(b, (const char *)text.data, text.len);
    sl_jbuf_fmt(b, ",\"tokens\":");
    sl_jbuf_ids(b, ids, n);
    sl_jbuf_fmt(b, "}]");
}

void sl_responses_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_add(NULL, h, &style, c);
    sl_blocks_end(NULL, h, &style, c);
    if (c->raw.data)
        put_raw(&h->blocks->raw, "output_messages", c->raw, c->ids.tokens, c->ids.n_tokens);
    b->ok = b->ok && h->blocks->raw.ok;
    b->ok = b->ok && h->blocks->items.ok && h->blocks->text.ok && h->blocks->scores.ok &&
            h->blocks->name.ok;
    open_response(b, h, was_cut(h->blocks) ? "incomplete" : "completed", was_cut(h->blocks), NULL);
    sl_jbuf_put(b, h->blocks->items.data, h->blocks->items.len);
}

void sl_responses_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                        sl_reply_usage usage) {
    const sl_jbuf *raw = &h->blocks->raw;
    sl_jbuf_put(b, "]", 1);
    if (raw->len) {
        put_raw(b, "input_messages", h->prompt_text, ids->prompt, ids->n_prompt);
        sl_jbuf_put(b, raw->data, raw->len);
    }
    close_response(b, &usage);
}

static void put_response_event(sl_jbuf *b, const sl_reply_head *h, const char *status,
                               const sl_reply_usage *u, const sl_api_error *e) {
    char type[48];
    bool ends = u || e;
    snprintf(type, sizeof type, "response.%s", status);
    open_event(b, h, type);
    sl_jbuf_fmt(b, ",\"response\":");
    open_response(b, h, ends ? status : "in_progress", u && was_cut(h->blocks), e);
    if (ends) sl_jbuf_put(b, h->blocks->items.data, h->blocks->items.len);
    sl_jbuf_put(b, "]", 1);
    close_response(b, u);
    sl_event_close(b);
}

void sl_responses_begin(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    (void)c;
    put_response_event(b, h, "created", NULL, NULL);
    put_response_event(b, h, "in_progress", NULL, NULL);
}

void sl_responses_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_add(b, h, &style, c);
}

void sl_responses_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_blocks_end(b, h, &style, c);
}

void sl_responses_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage) {
    put_response_event(b, h, was_cut(h->blocks) ? "incomplete" : "completed", &usage, NULL);
}

void sl_responses_fail(sl_jbuf *b, const sl_reply_head *h, const sl_api_error *e) {
    if (h->blocks->sequence == 0) sl_responses_begin(b, h, NULL);
    put_response_event(b, h, "failed", NULL, e);
}

void sl_responses_cancelled(sl_jbuf *b, const sl_reply_head *h) {
    open_response(b, h, "cancelled", false, NULL);
    sl_jbuf_put(b, "]", 1);
    close_response(b, NULL);
}

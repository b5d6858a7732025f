/* Answers and errors as the API's objects, whole or event by event. */
#include "serve/reply.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

sl_status sl_api_error_bad(sl_api_error *e, const char *param, const char *fmt, ...) {
    *e = (sl_api_error){.http = 400, .type = "invalid_request_error"};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, args);
    va_end(args);
    return SL_ERR_ARG;
}

sl_status sl_api_error_unknown(sl_api_error *e, const char *field) {
    (void)sl_api_error_bad(e, field, "unknown field \"%.64s\"", field);
    e->code = "unknown_parameter";
    return SL_ERR_UNSUPPORTED;
}

sl_status sl_api_error_of(sl_api_error *e, sl_status st, const char *param, const char *msg) {
    static const struct {
        sl_status st;
        unsigned http;
        const char *type, *code;
    } table[] = {
        {SL_ERR_ARG, 400, "invalid_request_error", NULL},
        {SL_ERR_FORMAT, 400, "invalid_request_error", NULL},
        {SL_ERR_UNSUPPORTED, 400, "invalid_request_error", "unsupported_value"},
        {SL_ERR_LIMIT, 400, "invalid_request_error", NULL},
        {SL_ERR_OVERLOADED, 429, "rate_limit_error", "overloaded"},
        {SL_ERR_WORKER_LOST, 503, "server_error", "worker_lost"},
        {SL_ERR_NOT_FINITE, 500, "server_error", "not_finite"},
        {SL_ERR_CRASHES, 500, "server_error", "crashes_workers"},
        {SL_ERR_CANCELLED, 503, "server_error", "cancelled"},
        {SL_ERR_PEER_DOWN, 503, "server_error", "worker_lost"},
        {SL_ERR_TIMEOUT, 503, "server_error", "timeout"},
    };
    *e = (sl_api_error){.http = 500, .type = "server_error"};
    for (size_t i = 0; i < SL_LEN(table); i++) {
        if (table[i].st != st) continue;
        e->http = table[i].http;
        e->type = table[i].type;
        e->code = table[i].code;
        e->retry_after_s = st == SL_ERR_OVERLOADED ? 1 : 0;
    }
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    snprintf(e->msg, sizeof e->msg, "%s", msg && msg[0] ? msg : sl_status_text(st));
    return st;
}

void sl_api_error_draining(sl_api_error *e) {
    *e = (sl_api_error){.http = 503,
                        .type = "server_error",
                        .code = "draining",
                        .retry_after_s = 5,
                        .draining = true};
    snprintf(e->msg, sizeof e->msg, "The server is shutting down and takes no new requests.");
}

void sl_api_error_connections(sl_api_error *e, uint32_t limit) {
    *e = (sl_api_error){
        .http = 503, .type = "server_error", .code = "too_many_connections", .retry_after_s = 1};
    snprintf(e->msg, sizeof e->msg,
             "%" PRIu32 " connections wait for tokens, no more may (--max-connections); try again.",
             limit);
}

void sl_api_error_model(sl_api_error *e, const char *asked, const char *served) {
    sl_api_error_bad(e, "model", "The model `%.200s` does not exist; this server has `%.200s`.",
                     asked, served);
    e->http = 404;
    e->code = "model_not_found";
}

void sl_reply_error(sl_jbuf *b, const sl_api_error *e) {
    sl_jbuf_fmt(b, "{\"error\":{\"message\":");
    sl_jbuf_cstring(b, e->msg);
    sl_jbuf_fmt(b, ",\"type\":");
    sl_jbuf_cstring(b, e->type);
    sl_jbuf_fmt(b, ",\"param\":");
    sl_jbuf_cstring(b, e->param[0] ? e->param : NULL);
    sl_jbuf_fmt(b, ",\"code\":");
    sl_jbuf_cstring(b, e->code);
    sl_jbuf_fmt(b, "}}");
}

static void put_head(sl_jbuf *b, const sl_reply_head *h, const char *object) {
    sl_jbuf_fmt(b, "{\"id\":");
    sl_jbuf_cstring(b, h->id);
    sl_jbuf_fmt(b, ",\"object\":\"%s\",\"created\":%" PRIu64 ",\"model\":", object, h->created);
    sl_jbuf_cstring(b, h->model);
    if (!h->fingerprint || !h->fingerprint[0]) return;
    sl_jbuf_fmt(b, ",\"system_fingerprint\":");
    sl_jbuf_cstring(b, h->fingerprint);
}

/* Only chats have reasoning. */
static void put_usage(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage u) {
    sl_jbuf_fmt(b,
                ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                ",\"total_tokens\":%" PRIu64
                ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}",
                u.prompt, u.completion, u.prompt + u.completion, u.cached);
    if (h->kind == SL_API_CHAT)
        sl_jbuf_fmt(b, ",\"completion_tokens_details\":{\"reasoning_tokens\":%" PRIu64 "}",
                    u.thought);
    sl_jbuf_put(b, "}", 1);
}

/* ,"NAME":OF/BY; without something to divide by what is `otherwise`, or nothing. */
static void put_rate(sl_jbuf *b, const char *name, double of, double by, const char *otherwise) {
    if (by > 0)
        sl_jbuf_fmt(b, ",\"%s\":%.12g", name, of / by);
    else if (otherwise)
        sl_jbuf_fmt(b, ",\"%s\":%s", name, otherwise);
}

void sl_reply_timings_write(sl_jbuf *b, const sl_reply_timings *t) {
    if (!t) return;
    double prompt = (double)(t->n_prompt - t->n_cached), made = (double)t->n_made;
    double steps = made > 1 ? made - 1 : 0; /* the first token is the prompt's */
    sl_jbuf_fmt(b, ",\"timings\":{\"cache_n\":%" PRIu64 ",\"prompt_n\":%.0f,\"prompt_ms\":%.12g",
                t->n_cached, prompt, 1e3 * t->prompt_s);
    put_rate(b, "prompt_per_token_ms", 1e3 * t->prompt_s, prompt, "0");
    put_rate(b, "prompt_per_second", prompt, t->prompt_s, "0");
    sl_jbuf_fmt(b, ",\"predicted_n\":%.0f,\"predicted_ms\":%.12g", made, 1e3 * t->made_s);
    put_rate(b, "predicted_per_token_ms", 1e3 * t->made_s, steps, "0");
    put_rate(b, "predicted_per_second", steps, t->made_s, "0");
    sl_jbuf_fmt(b,
                "},\"metrics\":{\"time_to_first_token_ms\":%.12g,\"queue_time_ms\":%.12g,"
                "\"generation_time_ms\":%.12g",
                1e3 * t->first_s, 1e3 * t->queued_s, 1e3 * t->made_s);
    put_rate(b, "mean_itl_ms", 1e3 * t->made_s, steps, NULL);
    put_rate(b, "tokens_per_second", made, t->prompt_s + t->made_s, NULL);
    sl_jbuf_put(b, "}", 1);
}

static void put_ids(sl_jbuf *b, const char *name, const uint32_t *id, size_t n, bool whole) {
    if (!id && !whole) return;
    sl_jbuf_fmt(b, ",\"%s\":", name);
    if (id)
        sl_jbuf_ids(b, id, n);
    else
        sl_jbuf_fmt(b, "null");
}

static void put_prompt(sl_jbuf *b, const sl_reply_ids *ids) {
    put_ids(b, "prompt_token_ids", ids->prompt, ids->n_prompt, ids->whole);
    if (!ids->whole) return;
    sl_jbuf_fmt(b, ",\"prompt_logprobs\":");
    if (!ids->scores.data) {
        sl_jbuf_fmt(b, "null");
        return;
    }
    sl_jbuf_put(b, "[", 1);
    sl_jbuf_put(b, (const char *)ids->scores.data, ids->scores.len);
    sl_jbuf_put(b, "]", 1);
}

/* What of the request ended a choice, where it has ended: null is the end that the model made. */
static void put_stop(sl_jbuf *b, const sl_reply_choice *c) {
    if (!c->finish) return;
    sl_jbuf_fmt(b, ",\"stop_reason\":");
    if (c->stop.text.data)
        sl_jbuf_string(b, (const char *)c->stop.text.data, c->stop.text.len);
    else if (c->stop.by_id)
        sl_jbuf_fmt(b, "%" PRIu32, c->stop.id);
    else
        sl_jbuf_cstring(b, NULL);
}

/* What ends the object of a choice. A chat's prompt stands beside its choices. */
static void put_tail(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_jbuf_fmt(b, ",\"logprobs\":");
    if (c->logprobs.len)
        sl_jbuf_put(b, (const char *)c->logprobs.data, c->logprobs.len);
    else
        sl_jbuf_fmt(b, "null");
    sl_jbuf_fmt(b, ",\"finish_reason\":");
    sl_jbuf_cstring(b, c->finish);
    put_stop(b, c);
    if (h->kind == SL_API_COMPLETION) put_prompt(b, &c->ids);
    put_ids(b, "token_ids", c->ids.tokens, c->ids.n_tokens, c->ids.whole);
    sl_jbuf_fmt(b, "}");
}

void sl_reply_open(sl_jbuf *b, const sl_reply_head *h) {
    put_head(b, h, h->kind == SL_API_CHAT ? "chat.completion" : "text_completion");
    sl_jbuf_fmt(b, ",\"choices\":[");
}

/* Two names for it are about: that of DeepSeek's API, and a newer one. */
static void put_reasoning(sl_jbuf *b, sl_span text) {
    static const char *const names[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        sl_jbuf_fmt(b, "%s\"%s\":", i ? "," : "", names[i]);
        sl_jbuf_string(b, (const char *)text.data, text.len);
    }
}

/* Of a stream, each says where it belongs, and who it is once. */
static void put_calls(sl_jbuf *b, const sl_reply_choice *c, bool stream) {
    sl_jbuf_fmt(b, "\"tool_calls\":[");
    for (size_t i = 0; i < c->n_calls; i++) {
        const sl_reply_call *call = &c->calls[i];
        sl_jbuf_fmt(b, "%s{", i ? "," : "");
        if (stream) sl_jbuf_fmt(b, "\"index\":%" PRIu32 ",", call->index);
        if (call->begins) {
            sl_jbuf_fmt(b, "\"id\":");
            sl_jbuf_cstring(b, call->id);
            sl_jbuf_fmt(b, ",\"type\":\"function\",");
        }
        sl_jbuf_fmt(b, "\"function\":{");
        if (call->begins) {
            sl_jbuf_fmt(b, "\"name\":");
            sl_jbuf_string(b, call->name.data, call->name.len);
            sl_jbuf_fmt(b, ",");
        }
        sl_jbuf_fmt(b, "\"arguments\":");
        sl_jbuf_string(b, call->arguments.data, call->arguments.len);
        sl_jbuf_fmt(b, "}}");
    }
    sl_jbuf_fmt(b, "]");
}

void sl_reply_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_jbuf_fmt(b, "%s{\"index\":%" PRIu32 ",", c->index ? "," : "", c->index);
    if (h->kind == SL_API_CHAT)
        sl_jbuf_fmt(b, "\"message\":{\"role\":\"assistant\",\"content\":");
    else
        sl_jbuf_fmt(b, "\"text\":");
    if (c->text.len == 0 && c->n_calls > 0)
        sl_jbuf_fmt(b, "null");
    else
        sl_jbuf_string(b, (const char *)c->text.data, c->text.len);
    if (h->kind == SL_API_CHAT && c->reasoning.len) {
        sl_jbuf_fmt(b, ",");
        put_reasoning(b, c->reasoning);
    }
    if (c->n_calls > 0) {
        sl_jbuf_fmt(b, ",");
        put_calls(b, c, false);
    }
    if (h->kind == SL_API_CHAT) sl_jbuf_fmt(b, ",\"refusal\":null}");
    put_tail(b, h, c);
}

void sl_reply_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                    sl_reply_usage usage) {
    sl_jbuf_fmt(b, "]");
    if (h->kind == SL_API_CHAT) put_prompt(b, ids);
    put_usage(b, h, usage);
    sl_reply_timings_write(b, h->timings);
    if (h->prompt_text.data) {
        sl_jbuf_fmt(b, ",\"__verbose\":{\"prompt\":");
        sl_jbuf_string(b, (const char *)h->prompt_text.data, h->prompt_text.len);
        sl_jbuf_put(b, "}", 1);
    }
    sl_jbuf_fmt(b, "}");
}

static void event_open(sl_jbuf *b, const sl_reply_head *h) {
    sl_jbuf_fmt(b, "data: ");
    put_head(b, h, h->kind == SL_API_CHAT ? "chat.completion.chunk" : "text_completion");
}

static void event_close(sl_jbuf *b, const sl_reply_head *h) {
    if (h->so_far)
        put_usage(b, h, *h->so_far);
    else if (h->with_usage)
        sl_jbuf_fmt(b, ",\"usage\":null");
    sl_jbuf_fmt(b, "}\n\n");
}

void sl_reply_event_error(sl_jbuf *b, const sl_api_error *e) {
    sl_jbuf_fmt(b, "data: ");
    sl_reply_error(b, e);
    sl_jbuf_fmt(b, "\n\n");
}

void sl_reply_event_role(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    event_open(b, h);
    sl_jbuf_fmt(b,
                ",\"choices\":[{\"index\":%" PRIu32
                ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
                c->index);
    put_tail(b, h, &(sl_reply_choice){0});
    sl_jbuf_fmt(b, "]");
    put_prompt(b, &c->ids);
    event_close(b, h);
}

void sl_reply_event_text(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    event_open(b, h);
    sl_jbuf_fmt(b, ",\"choices\":[{\"index\":%" PRIu32 ",", c->index);
    if (h->kind == SL_API_COMPLETION) {
        sl_jbuf_fmt(b, "\"text\":");
        sl_jbuf_string(b, (const char *)c->text.data, c->text.len);
    } else {
        const char *comma = "";
        sl_jbuf_fmt(b, "\"delta\":{");
        if (c->reasoning.len > 0) {
            put_reasoning(b, c->reasoning);
            comma = ",";
        }
        if (c->text.len > 0) {
            sl_jbuf_fmt(b, "%s\"content\":", comma);
            sl_jbuf_string(b, (const char *)c->text.data, c->text.len);
            comma = ",";
        }
        if (c->n_calls > 0) {
            sl_jbuf_fmt(b, "%s", comma);
            put_calls(b, c, true);
        }
        sl_jbuf_fmt(b, "}");
    }
    put_tail(b, h, c);
    sl_jbuf_fmt(b, "]");
    /* the last chunk: with usage, one more follows */
    if (h->timings_each || (c->finish && !h->with_usage)) sl_reply_timings_write(b, h->timings);
    event_close(b, h);
}

void sl_reply_event_usage(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage) {
    event_open(b, h);
    sl_jbuf_fmt(b, ",\"choices\":[]");
    put_usage(b, h, usage);
    sl_reply_timings_write(b, h->timings);
    sl_jbuf_fmt(b, "}\n\n");
}

void sl_reply_event_done(sl_jbuf *b) {
    sl_jbuf_fmt(b, "data: [DONE]\n\n");
}

void sl_reply_comment(sl_jbuf *b, const char *text) {
    sl_jbuf_fmt(b, ": %s\n", text);
}

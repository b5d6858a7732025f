/* Paths and methods to what answers them. */
#include "serve/server_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"

#include <inttypes.h>
#include <stdio.h>

#define ASKED_BYTES 2048u /* of the names of headers in a preflight */

#define JSON_TYPE "application/json"

/* What the server can do for a new request. */
typedef enum health { HEALTH_OK, HEALTH_RECOVERING, HEALTH_MISSING, HEALTH_DRAINING } health;

static health health_of(sl_server *s, sl_engine_stats *stats) {
    sl_engine_stats_get(s->o.engine, stats);
    return sl_server_is_draining(s) ? HEALTH_DRAINING
           : stats->recovering      ? HEALTH_RECOVERING
           : stats->serving         ? HEALTH_OK
                                    : HEALTH_MISSING;
}

static enum MHD_Result reply_health(sl_call *call, bool recovering_is_fine) {
    sl_engine_stats stats = {0};
    health h = health_of(call->server, &stats);
    bool fine = h == HEALTH_OK || (recovering_is_fine && h == HEALTH_RECOVERING);

    static const char *const words[] = {
        [HEALTH_OK] = "ok",
        [HEALTH_RECOVERING] = "recovering",
        [HEALTH_MISSING] = "workers are missing",
        [HEALTH_DRAINING] = "draining",
    };
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"status\":\"%s\"", words[h]);
    if (h == HEALTH_RECOVERING && stats.lost[0]) {
        sl_jbuf_fmt(&b, ",\"lost\":");
        sl_jbuf_cstring(&b, stats.lost);
    }
    if (stats.n_drained) sl_jbuf_fmt(&b, ",\"drained_workers\":%" PRIu32, stats.n_drained);
    sl_jbuf_fmt(&b, "}");
    return sl_call_reply(call, fine ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, JSON_TYPE, &b);
}

/* Whether this server answers what it is asked, if only in a moment: whoever restarts one that is
 * recovering loses what it is about to save. */
static enum MHD_Result answer_health(sl_call *call, const char *rest) {
    (void)rest;
    return reply_health(call, true);
}

/* Whether new requests had better go here or, for now, to another server. */
static enum MHD_Result answer_ready(sl_call *call, const char *rest) {
    (void)rest;
    return reply_health(call, false);
}

/* The process answers: whether it also serves is /health's and /readyz's. */
static enum MHD_Result answer_live(sl_call *call, const char *rest) {
    (void)rest;
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"status\":\"ok\"}");
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

static enum MHD_Result answer_metrics(sl_call *call, const char *rest) {
    (void)rest;
    sl_engine_stats stats = {0};
    sl_engine_stats_get(call->server->o.engine, &stats);
    sl_jbuf b = sl_jbuf_init();
    sl_server *s = call->server;
    sl_engine_detail detail = {0};
    sl_err err;
    if (sl_engine_detail_get(s->o.engine, &detail, &err) != SL_OK)
        sl_log(SL_LOG_WARN, "serve", "metrics without workers and layers: %s", err.msg);
    sl_metrics_kept kept = sl_kept_stats(s);
    sl_metrics_clients clients = {.n = sl_conns_open(&s->conns)};
    if (s->tls) clients.tls = sl_tls_front_stats_get(s->tls);
    sl_metrics_write(&s->metrics, &stats, &detail, &clients, &kept, s->o.weights, s->model, &b);
    sl_engine_detail_free(&detail);
    return sl_call_reply(call, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &b);
}

static enum MHD_Result answer_version(sl_call *call, const char *rest) {
    (void)rest;
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"version\":\"%s\",\"numerics\":", sl_version());
    sl_jbuf_cstring(&b, call->server->numerics);
    sl_jbuf_put(&b, "}", 1);
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

/* Generations that are not answered to their end, as vLLM's routers ask for them. */
static enum MHD_Result answer_load(sl_call *call, const char *rest) {
    (void)rest;
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"server_load\":%" PRIu32 "}", sl_server_running(call->server));
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

static void put_model(sl_jbuf *b, const sl_server *s, const char *name) {
    sl_jbuf_fmt(b, "{\"id\":");
    sl_jbuf_cstring(b, name);
    sl_jbuf_fmt(b,
                ",\"object\":\"model\",\"created\":%" PRIu64
                ",\"owned_by\":\"sluice\",\"parent\":null,\"max_model_len\":%" PRIu32 ",\"root\":",
                s->created, s->limits.context);
    sl_jbuf_cstring(b, s->model);
    sl_jbuf_put(b, "}", 1);
}

static enum MHD_Result answer_models(sl_call *call, const char *rest) {
    (void)rest;
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < call->server->n_names; i++) {
        if (i > 0) sl_jbuf_put(&b, ",", 1);
        put_model(&b, call->server, call->server->names[i]);
    }
    sl_jbuf_fmt(&b, "]}");
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

static enum MHD_Result answer_model(sl_call *call, const char *rest) {
    sl_api_error e;
    sl_jbuf b = sl_jbuf_init();
    if (!*rest) return answer_models(call, rest);
    if (!sl_api_serves(&call->server->limits, rest)) {
        sl_api_error_model(&e, rest, call->server->model);
        return sl_call_reply_error(call, &e);
    }
    put_model(&b, call->server, rest);
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

static sl_span body_of(const sl_call *call) {
    return (sl_span){(const uint8_t *)call->body.data, call->body.len};
}

/* As the vocabulary writes them; null: an id that stands for none. */
static void put_spellings(sl_jbuf *b, const sl_tokenizer *tok, const sl_ids *ids) {
    char text[SL_TOKENIZER_MAX_SPELLING];
    sl_jbuf_put(b, "[", 1);
    for (size_t i = 0; i < ids->len; i++) {
        size_t n = sl_tokenizer_spelling(tok, ids->data[i], text);
        if (i > 0) sl_jbuf_put(b, ",", 1);
        if (n)
            sl_jbuf_string(b, text, n);
        else
            sl_jbuf_cstring(b, NULL);
    }
    sl_jbuf_put(b, "]", 1);
}

static sl_status tokenize(sl_call *call, sl_api_error *e) {
    const sl_server *s = call->server;
    sl_status st = sl_api_tokenize_parse(body_of(call), &s->limits, &call->params, e);
    if (st == SL_OK) st = sl_call_encode(call, e);
    if (st != SL_OK) return st;
    sl_jbuf *b = &call->answer;
    sl_jbuf_fmt(b, "{\"count\":%zu,\"max_model_len\":%" PRIu32 ",\"tokens\":", call->prompt[0].len,
                s->limits.context);
    sl_jbuf_ids(b, call->prompt[0].data, call->prompt[0].len);
    sl_jbuf_fmt(b, ",\"token_strs\":");
    if (call->params.token_strs)
        put_spellings(b, s->o.tokenizer, &call->prompt[0]);
    else
        sl_jbuf_cstring(b, NULL);
    sl_jbuf_fmt(b, "}");
    return SL_OK;
}

/* Of ids that stand for a text: padding of the embedding stands for none. */
static sl_api_limits text_limits(const sl_server *s) {
    sl_api_limits limits = s->limits;
    limits.vocab = sl_tokenizer_vocab_size(s->o.tokenizer);
    return limits;
}

static sl_status detokenize(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    const sl_server *s = call->server;
    const sl_api_limits limits = text_limits(s);
    char *text = NULL;
    size_t n = 0;
    sl_status st = sl_api_detokenize_parse(body_of(call), &limits, &call->params, e);
    if (st != SL_OK) return st;
    const sl_ids *ids = &call->params.ids;
    st = sl_tokenizer_decode(s->o.tokenizer, ids->data, ids->len, false, &text, &n, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, "tokens", err.msg);
    sl_jbuf_fmt(&call->answer, "{\"prompt\":");
    sl_jbuf_string(&call->answer, text, n);
    sl_jbuf_fmt(&call->answer, "}");
    sl_free(text);
    return SL_OK;
}

/* A large document is freed where it was read. */
static void forget_body(sl_call *call) {
    sl_api_params_free(&call->params);
    sl_call_drop_body(call);
}

static void read_tokenize(sl_call *call) {
    if (tokenize(call, &call->refusal) != SL_OK) sl_jbuf_free(&call->answer);
    forget_body(call);
}

static void read_count(sl_call *call) {
    sl_api_error *e = &call->refusal;
    const sl_server *s = call->server;
    sl_status st = sl_dialect_read(call->dialect, body_of(call), &s->limits, &call->params, e);
    if (st == SL_OK) st = sl_call_encode(call, e);
    if (st == SL_OK) st = sl_call_take_tools(call, e);
    if (st != SL_OK) sl_dialect_rename_error(call->dialect, e);
    if (st == SL_OK) sl_jbuf_fmt(&call->answer, "{\"input_tokens\":%zu}", call->prompt[0].len);
    forget_body(call);
}

static void read_detokenize(sl_call *call) {
    if (detokenize(call, &call->refusal) != SL_OK) sl_jbuf_free(&call->answer);
    forget_body(call);
}

static enum MHD_Result reply_answer(sl_call *call) {
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &call->answer);
}

static enum MHD_Result answer_tokenize(sl_call *call, const char *rest) {
    (void)rest;
    return sl_work_do(call, call->body.len, read_tokenize, reply_answer);
}

/* The versions of Anthropic's API that a client may name: what is answered here is the same in
 * both. */
static bool speaks_version(sl_call *call, sl_api_error *e) {
    static const char *const ours[] = {"2023-06-01", "2026-10-21"};
    const char *given = sl_call_header(call, "anthropic-version");
    bool known = !given;
    for (size_t i = 0; i < SL_LEN(ours) && !known; i++) known = !strcmp(given, ours[i]);
    if (known) return true;
    sl_api_error_bad(e, NULL, "anthropic-version: \"%.32s\", supported are %s and %s", given,
                     ours[0], ours[1]);
    return false;
}

static enum MHD_Result answer_detokenize(sl_call *call, const char *rest) {
    (void)rest;
    return sl_work_do(call, call->body.len, read_detokenize, reply_answer);
}

/* The tokens of a body that could be a request. */
static enum MHD_Result answer_count(sl_call *call, const char *rest) {
    (void)rest;
    sl_api_error e;
    if (!speaks_version(call, &e)) return sl_call_reply_error(call, &e);
    bool shaped = sl_call_may_shape(body_of(call)); /* which is compiled */
    return sl_work_do(call, shaped ? SIZE_MAX : call->body.len, read_count, reply_answer);
}

static enum MHD_Result answer_messages(sl_call *call, const char *rest) {
    sl_api_error e;
    return speaks_version(call, &e) ? sl_call_generate(call, rest) : sl_call_reply_error(call, &e);
}

/* A chat or a continuation, whichever the body is of. */
static sl_status choose_invocation(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_status st =
        sl_json_parse_within("request body", body_of(call), SL_API_MAX_MEMORY, &doc, &err);
    if (st != SL_OK) return sl_api_error_of(e, st, NULL, err.msg);
    sl_json root = sl_json_root(doc);
    bool chat = sl_json_kind_of(sl_json_get(root, "messages")) > SL_JSON_NULL;
    bool text = sl_json_kind_of(sl_json_get(root, "prompt")) > SL_JSON_NULL;
    sl_json_doc_free(doc);
    if (chat == text)
        return sl_api_error_bad(e, chat ? "prompt" : "messages",
                                "body: %s of messages (a chat) and prompt (a continuation)",
                                chat ? "both" : "none");
    call->dialect = &sl_dialects[chat ? SL_DIALECT_CHAT : SL_DIALECT_COMPLETION];
    return SL_OK;
}

static enum MHD_Result answer_invocation(sl_call *call, const char *rest) {
    call->complete = choose_invocation;
    return sl_call_generate(call, rest);
}

/* ---- bodies as JSON Schemas ---- */

static void invocation_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    (void)r;
    sl_jbuf_fmt(b, "{\"anyOf\":[");
    sl_dialect_write_body(b, &sl_dialects[SL_DIALECT_CHAT], &s->limits);
    sl_jbuf_put(b, ",", 1);
    sl_dialect_write_body(b, &sl_dialects[SL_DIALECT_COMPLETION], &s->limits);
    sl_jbuf_fmt(b, "]}");
}

static void chat_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    sl_dialect_write_body(b, &sl_dialects[r->dialect], &s->limits);
}

static void tokenize_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    (void)r;
    sl_api_write_tokenize(b, &s->limits);
}

static void detokenize_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    (void)r;
    const sl_api_limits limits = text_limits(s);
    sl_api_write_detokenize(b, &limits);
}

static void plan_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    (void)r, (void)s;
    sl_plan_request_schema(b);
}

static void wish_body(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    (void)r;
    sl_admin_write_wish(b, &s->limits);
}

/* ---- the table ---- */

#define GET    SL_GET
#define POST   SL_POST
#define DELETE SL_DELETE
#define KEY    SL_TO_KEY
#define OPEN   SL_TO_ALL
#define ADMIN  SL_TO_ADMIN

const sl_route sl_routes[] = {
    {"/v1/chat/completions", POST, KEY, sl_call_generate, "a chat", .body = chat_body},
    {"/v1/chat/completions/", GET, KEY, sl_call_fetch, "an answer that is kept", "{id}"},
    {"/v1/completions", POST, KEY, sl_call_generate, "a continuation of a text or of token ids",
     .body = chat_body, .dialect = SL_DIALECT_COMPLETION},
    {"/v1/completions/", GET, KEY, sl_call_fetch, "an answer that is kept", "{id}",
     .dialect = SL_DIALECT_COMPLETION},
    {"/invocations", POST, KEY, answer_invocation, "a chat or a continuation, as SageMaker asks",
     .body = invocation_body},
    {"/infill", POST, KEY, sl_call_generate, "what stands between two texts", .body = chat_body,
     .dialect = SL_DIALECT_INFILL},
    {"/v1/messages", POST, KEY, answer_messages, "a chat in Anthropic's form", .body = chat_body,
     .dialect = SL_DIALECT_MESSAGES},
    {"/v1/messages/count_tokens", POST, KEY, answer_count,
     "tokens of a body that could be a message", .body = chat_body, .dialect = SL_DIALECT_MESSAGES},
    {"/v1/messages/", GET, KEY, sl_call_fetch, "a message that is kept", "{id}",
     .dialect = SL_DIALECT_MESSAGES},
    {"/v1/responses", POST, KEY, sl_responses_create, "a chat in the form of responses",
     .body = chat_body, .dialect = SL_DIALECT_RESPONSES},
    {"/v1/responses/", GET, KEY, sl_responses_get, "a response that is kept, or what it was asked",
     "{id} {id}/input_items", .dialect = SL_DIALECT_RESPONSES},
    {"/v1/responses/", POST, KEY, sl_responses_post, "ends a response that runs", "{id}/cancel",
     .dialect = SL_DIALECT_RESPONSES},
    {"/v1/responses/", DELETE, KEY, sl_responses_delete, "forgets a response", "{id}",
     .dialect = SL_DIALECT_RESPONSES},
    {"/v1/models", GET, KEY, answer_models, "the model under each of its names"},
    {"/v1/models/", GET, KEY, answer_model, "the model under one of them", "{id}"},
    {"/live", GET, KEY, sl_live_answer, "what goes on, as events"},
    {"/props", GET, KEY, sl_props_answer, "what the server is"},
    {"/slots", GET, KEY, sl_slots_answer, "what runs, the caller's own"},
    {"/openapi.json", GET, KEY, sl_openapi_answer, "this document"},
    {"/plan", POST, KEY, sl_planner_plan, "deployments planned", .body = plan_body},
    {"/plan/options", GET, KEY, sl_planner_catalogue, "what may be planned"},
    {"/plan/running", GET, KEY, sl_planner_progress, "how far planning is"},
    {"/tokenize", POST, KEY, answer_tokenize, "token ids of a text or a chat",
     .body = tokenize_body},
    {"/detokenize", POST, KEY, answer_detokenize, "text of token ids", .body = detokenize_body},
    {"/tokenizer_info", GET, KEY, sl_vocabulary_answer, "the tokenizer"},
    {"/", GET, OPEN, sl_page_index, "the web page"},
    {"/page/", GET, OPEN, sl_page_answer, "a file of it", "{file}"},
    {"/favicon.ico", GET, OPEN, sl_page_icon, "its icon"}, /* browsers ask by themselves */
    {"/health", GET, OPEN, answer_health, "whether requests are answered"},
    {"/readyz", GET, OPEN, answer_ready, "whether they are answered now"},
    {"/ping", GET, OPEN, answer_health, "as /health"},
    {"/livez", GET, OPEN, answer_live, "whether the process answers"},
    {"/metrics", GET, OPEN, answer_metrics, "counters in Prometheus' text format"},
    {"/load", GET, OPEN, answer_load, "how many answers are being made"},
    {"/version", GET, OPEN, answer_version, "which version this is"},
    {"/admin/workers", GET, ADMIN, sl_admin_list, "the workers"},
    {"/admin/workers/", POST, ADMIN, sl_admin_wish, "what one of them is to do",
     "{id}/drain {id}/restart {id}/join {id}/kill", .body = wish_body},
};
const size_t sl_n_routes = SL_LEN(sl_routes);

static bool takes(const sl_route *r, const char *method) {
    static const char *const names[] = {[GET] = "GET", [POST] = "POST", [DELETE] = "DELETE"};
    return !strcmp(method, names[r->method]) || (r->method == GET && !strcmp(method, "HEAD"));
}

/* The row of the path and the method, or the path's first one; NULL: there is none. Nobody learns
 * of those for which the server has no key. */
static const sl_route *find_route(const sl_server *s, const char *path, const char *method) {
    const sl_route *found = NULL;
    for (size_t i = 0; i < sl_n_routes && !(found && takes(found, method)); i++) {
        size_t n = strlen(sl_routes[i].path);
        bool prefix = n > 1 && sl_routes[i].path[n - 1] == '/';
        bool same =
            prefix ? !strncmp(path, sl_routes[i].path, n) : !strcmp(path, sl_routes[i].path);
        if (found && strcmp(found->path, sl_routes[i].path) != 0) continue;
        if (same && (!found || takes(&sl_routes[i], method))) found = &sl_routes[i];
    }
    return found && found->to == ADMIN && !s->admin_key ? NULL : found;
}

/* What a path takes, for who asked for something else. */
static const char *allowed(const sl_route *r) {
    bool several = r + 1 < sl_routes + sl_n_routes && !strcmp(r->path, r[1].path);
    if (several) return "GET, HEAD, POST, DELETE";
    return r->method == POST ? "POST" : "GET, HEAD";
}

static bool authorised(sl_call *call, const sl_route *r) {
    sl_server *s = call->server;
    bool admin = r && r->to == ADMIN; /* which has a key, or is found by nobody */
    if ((r && r->to == OPEN) || !(admin || s->keyed)) return true;
    const char *given = sl_call_header(call, MHD_HTTP_HEADER_AUTHORIZATION);
    bool bearer = given && !strncasecmp(given, "Bearer ", 7);
    if (admin) return bearer && sl_key_matches(given + 7, s->admin_key);
    return sl_caller_key(call) != NULL;
}

/* A compressed body: its size says nothing about what it holds. */
static bool is_encoded(sl_call *call) {
    const char *given = sl_call_header(call, MHD_HTTP_HEADER_CONTENT_ENCODING);
    return given && strcasecmp(given, "identity") != 0;
}

bool sl_server_wants_body(sl_call *call, const char *path, const char *method) {
    const sl_route *r = find_route(call->server, path, method);
    sl_api_error e;
    return r && r->method == POST && !strcmp(method, "POST") && authorised(call, r) &&
           sl_server_trusts_origin(call, &e);
}

/* A browser asks whether a page may ask. Who is in the list may ask for anything but /admin; the
 * key comes with what it asks then. */
static enum MHD_Result answer_preflight(sl_call *call, const char *path) {
    static char none[1];
    sl_api_error e;
    const char *asked = sl_call_header(call, "Access-Control-Request-Headers");
    if (!sl_cors_allows(call) || !strncmp(path, "/admin", 6)) {
        sl_api_error_bad(&e, NULL, "Origin: \"%.100s\" may not ask for %.100s (--cors-origin)",
                         sl_call_header(call, MHD_HTTP_HEADER_ORIGIN), path);
        e.http = MHD_HTTP_FORBIDDEN;
        e.code = "origin_not_allowed";
        return sl_call_reply_error(call, &e);
    }
    if (asked && strlen(asked) > ASKED_BYTES) {
        sl_api_error_bad(&e, NULL, "Access-Control-Request-Headers: %zu bytes, limit %u",
                         strlen(asked), ASKED_BYTES);
        return sl_call_reply_error(call, &e);
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(0, none, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    call->phase = SL_CALL_REPLIED;
    bool ok = MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE") &&
              MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    if (asked && *asked)
        ok = ok && MHD_add_response_header(r, "Access-Control-Allow-Headers", asked);
    return sl_call_queue(call, MHD_HTTP_NO_CONTENT, r, ok);
}

enum MHD_Result sl_server_route(sl_call *call, const char *path, const char *method) {
    sl_server *s = call->server;
    sl_api_error e;
    if (atomic_load_explicit(&s->stopping, memory_order_acquire)) {
        sl_api_error_of(&e, SL_ERR_CANCELLED, NULL, "the server is stopping");
        return sl_call_reply_error(call, &e);
    }
    if (!sl_server_trusts_origin(call, &e)) return sl_call_reply_error(call, &e);
    if (sl_cors_asks(call, method)) return answer_preflight(call, path);
    const sl_route *r = find_route(s, path, method);
    call->path = r ? r->path : NULL;
    if (r) call->dialect = &sl_dialects[r->dialect];
    if (!authorised(call, r)) {
        sl_api_error_bad(&e, NULL, "missing or wrong %s key (Authorization: Bearer KEY)",
                         r && r->to == ADMIN ? "admin" : "API");
        e.http = MHD_HTTP_UNAUTHORIZED;
        e.code = "invalid_api_key";
        return sl_call_reply_error(call, &e);
    }
    if (!r) {
        sl_api_error_bad(&e, NULL, "unknown path %.200s", path);
        e.http = MHD_HTTP_NOT_FOUND;
        e.code = "unknown_url";
        return sl_call_reply_error(call, &e);
    }
    if (!takes(r, method)) {
        call->allow = allowed(r);
        sl_api_error_bad(&e, NULL, "%.32s is not allowed here; use %s", method, call->allow);
        e.http = MHD_HTTP_METHOD_NOT_ALLOWED;
        e.code = "method_not_allowed";
        return sl_call_reply_error(call, &e);
    }
    if (r->method == POST && is_encoded(call)) {
        sl_api_error_bad(&e, NULL, "Content-Encoding: only \"identity\" is supported");
        e.http = MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
        e.code = "unsupported_encoding";
        return sl_call_reply_error(call, &e);
    }
    if (call->too_large) return sl_call_reply_too_large(call);
    if (call->crowded) return sl_call_reply_crowded(call);
    return r->answer(call, path + strlen(r->path));
}

/* What whoever runs the server may ask of it, with the key for that: how the workers are, and that
 * one leaves, restarts, comes or is killed. What was asked goes on after the answer: it is seen at
 * the worker.
 */
#include "serve/form.h"
#include "serve/server_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <stdio.h>

#define JSON_TYPE   "application/json"
#define MAX_BODY    4096u
#define GRACE_S     30.0 /* for requests to end where they are, unless the body says otherwise */
#define MAX_GRACE_S 86400

/* ---- the workers ---- */

static void put_worker(sl_jbuf *b, const sl_worker_stats *w) {
    sl_jbuf_fmt(b,
                "{\"id\":%" PRIu32 ",\"role\":\"%s\"%s,\"state\":\"%s\",\"pid\":%" PRId64
                ",\"requests\":%" PRIu32 ",\"kv_pages\":%" PRIu32 ",\"kv_pages_free\":%" PRIu32
                ",\"operation\":",
                w->id, sl_metrics_role(w->roles), w->prefill ? ",\"prefill\":true" : "",
                sl_metrics_life(w->life), w->pid, w->running, w->pages, w->pages_free);
    if (!w->wish) {
        sl_jbuf_fmt(b, "null}");
        return;
    }
    sl_jbuf_fmt(b, "{\"number\":%" PRIu32 ",\"done\":%s,\"error\":", w->wish,
                w->wish_done ? "true" : "false");
    sl_jbuf_cstring(b, w->wish_done && w->wish_status != SL_OK ? w->wish_error : NULL);
    sl_jbuf_fmt(b, "}}");
}

enum MHD_Result sl_admin_list(sl_call *call, const char *rest) {
    (void)rest;
    sl_engine_detail d = {0};
    sl_api_error e;
    sl_err err;
    sl_status st = sl_engine_detail_get(call->server->o.engine, &d, &err);
    if (st != SL_OK) {
        sl_api_error_of(&e, st, NULL, err.msg);
        return sl_call_reply_error(call, &e);
    }
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"workers\":[");
    for (uint32_t i = 0; i < d.n_workers; i++) {
        if (i > 0) sl_jbuf_put(&b, ",", 1);
        put_worker(&b, &d.worker[i]);
    }
    sl_jbuf_fmt(&b, "]}");
    sl_engine_detail_free(&d);
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

/* ---- wishes ---- */

static const char *const verbs[] = {[SL_WISH_LEAVE] = "drain",
                                    [SL_WISH_RESTART] = "restart",
                                    [SL_WISH_RETURN] = "join",
                                    [SL_WISH_KILL] = "kill"};

/* "ID/VERB" */
static bool read_path(const char *rest, uint32_t *worker, sl_wish_kind *kind) {
    char *end;
    if (*rest < '0' || *rest > '9') return false;
    unsigned long id = strtoul(rest, &end, 10);
    if (end - rest > 9 || *end != '/') return false;
    *worker = (uint32_t)id;
    for (size_t i = 0; i < SL_LEN(verbs); i++) {
        *kind = (sl_wish_kind)i;
        if (strcmp(end + 1, verbs[i]) == 0) return true;
    }
    return false;
}

static const sl_field wish_fields[] = {{"timeout", false, SL_IS_NUMBER(0, MAX_GRACE_S)}};

void sl_admin_write_wish(sl_jbuf *b, const sl_api_limits *limits) {
    sl_fields_write(b, wish_fields, SL_LEN(wish_fields), limits);
}

static sl_status read_fields(sl_json root, double *grace_s, sl_err *err) {
    sl_api_error e;
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_fail(err, SL_ERR_ARG, "the body is not an object");
    if (sl_fields_check(wish_fields, SL_LEN(wish_fields), root, &e) != SL_OK)
        return sl_fail(err, SL_ERR_ARG, "%s", e.msg);
    (void)sl_json_as_f64(sl_json_get(root, "timeout"), grace_s);
    return SL_OK;
}

/* {"timeout": seconds}, or nothing. */
static sl_status read_body(const sl_call *call, double *grace_s, sl_err *err) {
    const sl_span body = {(const uint8_t *)call->body.data, call->body.len};
    sl_json_doc *doc = NULL;
    *grace_s = GRACE_S;
    if (body.len == 0) return SL_OK;
    if (body.len > MAX_BODY)
        return sl_fail(err, SL_ERR_ARG, "a body of %zu bytes, limit %u", body.len, MAX_BODY);
    sl_status st = sl_json_parse("body", body, &doc, err);
    if (st == SL_OK) st = read_fields(sl_json_root(doc), grace_s, err);
    sl_json_doc_free(doc);
    return st;
}

/* What cannot be, or not now, is in conflict with how the workers are. */
static void refuse(sl_api_error *e, sl_status st, const char *why) {
    sl_api_error_of(e, st, NULL, why);
    if (st == SL_ERR_NOTFOUND) {
        *e = (sl_api_error){
            .http = MHD_HTTP_NOT_FOUND, .type = "invalid_request_error", .code = "unknown_worker"};
    } else if (st == SL_ERR_ARG || st == SL_ERR_INFEASIBLE || st == SL_ERR_AGAIN ||
               st == SL_ERR_LIMIT || st == SL_ERR_UNSUPPORTED) {
        const char *code = st == SL_ERR_ARG           ? "done_already"
                           : st == SL_ERR_AGAIN       ? "not_now"
                           : st == SL_ERR_LIMIT       ? "no_memory"
                           : st == SL_ERR_UNSUPPORTED ? "not_local"
                                                      : "last_worker";
        *e = (sl_api_error){.http = MHD_HTTP_CONFLICT,
                            .type = "invalid_request_error",
                            .code = code,
                            .retry_after_s = st == SL_ERR_AGAIN};
    }
    snprintf(e->msg, sizeof e->msg, "%s", why);
}

enum MHD_Result sl_admin_wish(sl_call *call, const char *rest) {
    uint32_t worker, number;
    sl_wish_kind kind;
    sl_api_error e;
    sl_err err = {0};
    double grace_s;
    if (!read_path(rest, &worker, &kind)) {
        sl_api_error_bad(&e, NULL,
                         "/admin/workers/%.60s: there are ID/drain, ID/restart, ID/join, ID/kill",
                         rest);
        e.http = MHD_HTTP_NOT_FOUND;
        e.code = "unknown_url";
        return sl_call_reply_error(call, &e);
    }
    if (read_body(call, &grace_s, &err) != SL_OK) {
        sl_api_error_bad(&e, NULL, "%s", err.msg);
        return sl_call_reply_error(call, &e);
    }
    sl_status st = sl_engine_wish(call->server->o.engine, kind, worker, (uint32_t)(1e3 * grace_s),
                                  &number, &err);
    if (st != SL_OK) {
        refuse(&e, st, err.msg);
        return sl_call_reply_error(call, &e);
    }
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"id\":%" PRIu32, worker);
    if (kind != SL_WISH_KILL) sl_jbuf_fmt(&b, ",\"operation\":%" PRIu32, number);
    sl_jbuf_fmt(&b, "}");
    return sl_call_reply(call, MHD_HTTP_ACCEPTED, JSON_TYPE, &b);
}

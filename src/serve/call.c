/* One HTTP request from accept to the last byte, and who holds it. */
#include "serve/server_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

/* A client's X-Request-Id is kept when it is short and harmless, else one is made. */
static void set_request_id(sl_call *call, const char *client_id, uint64_t random) {
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t n = client_id ? strspn(client_id, fine) : 0;
    if (n > 0 && client_id[n] == 0 && n < sizeof call->request_id)
        memcpy(call->request_id, client_id, n + 1);
    else
        snprintf(call->request_id, sizeof call->request_id, "req-%016" PRIx64, random);
}

static void link_call(sl_server *s, sl_call *call) {
    pthread_mutex_lock(&s->lock);
    s->refs++;
    call->serial = ++s->next_serial;
    call->next = s->calls;
    if (s->calls) s->calls->prev = call;
    s->calls = call;
    pthread_mutex_unlock(&s->lock);
}

static void unlink_call(sl_server *s, sl_call *call) {
    pthread_mutex_lock(&s->lock);
    if (call->prev)
        call->prev->next = call->next;
    else
        s->calls = call->next;
    if (call->next) call->next->prev = call->prev;
    s->n_answering -= call->answering;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

sl_call *sl_call_create(sl_server *s, sl_conn *conn, struct MHD_Connection *c,
                        const char *client_id) {
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return NULL;
    sl_call *call = sl_alloc(1, sizeof *call);
    if (!call) return NULL;
    if (pthread_mutex_init(&call->lock, NULL) != 0) {
        sl_free(call);
        return NULL;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    call->server = s;
    call->conn = conn;
    call->connection = c;
    call->fd = info ? info->connect_fd : -1;
    call->dialect = &sl_dialects[SL_DIALECT_CHAT];
    call->body = call->events = call->step = call->answer = sl_jbuf_init();
    call->blocks = sl_blocks_init();
    call->start_ns = call->spoke_ns = sl_now_ns();
    atomic_init(&call->refs, 1);
    set_request_id(call, client_id, random);
    link_call(s, call);
    return call;
}

sl_call *sl_call_create_unheard(sl_server *s) {
    sl_call *call = sl_alloc(1, sizeof *call);
    if (!call) return NULL;
    if (pthread_mutex_init(&call->lock, NULL) != 0) {
        sl_free(call);
        return NULL;
    }
    sl_server_ref(s);
    call->server = s;
    call->fd = -1;
    call->dialect = &sl_dialects[SL_DIALECT_CHAT];
    call->body = call->events = call->step = call->answer = sl_jbuf_init();
    call->blocks = sl_blocks_init();
    call->start_ns = sl_now_ns();
    atomic_init(&call->refs, 1);
    return call;
}

void sl_call_unref(sl_call *call) {
    /* release what this holder wrote; the last one acquires it all before freeing */
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) return;
    sl_server *s = call->server;
    sl_choices_free(call);
    sl_tool_set_free(call->tools);
    sl_shared_let_go(call->shape);
    sl_ids_free(&call->forced);
    sl_free(call->prompt_text);
    sl_api_params_free(&call->params);
    sl_blocks_free(&call->blocks);
    for (size_t i = 0; i < call->n_prompts; i++) sl_ids_free(&call->prompt[i]);
    sl_free(call->prompt);
    sl_call_drop_body(call);
    sl_cursor_free(&call->cursor);
    sl_jbuf_free(&call->step);
    sl_jbuf_free(&call->events);
    sl_jbuf_free(&call->answer);
    pthread_mutex_destroy(&call->lock);
    sl_free(call);
    sl_server_unref(s);
}

void sl_call_abort_with(sl_call *call, sl_call_abort why) {
    pthread_mutex_lock(&call->lock);
    bool open = !call->closed;
    bool running = open && !call->working; /* its choices may be in the making */
    if (open) {
        if (call->abort == SL_ABORT_NONE) call->abort = why;
        call->muted = true;
        if (call->suspended) {
            call->suspended = false;
            MHD_resume_connection(call->connection);
        }
        if (call->abort == SL_ABORT_SLOW && !call->shut) {
            /* a client that does not read leaves libmicrohttpd nothing to notice */
            call->shut = true;
            shutdown(call->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&call->lock);
    if (running) sl_choices_cancel(call);
}

void sl_call_close(sl_call *call) {
    sl_server *s = call->server;
    pthread_mutex_lock(&call->lock);
    call->closed = true;
    call->muted = true;
    bool ran = call->started;
    pthread_mutex_unlock(&call->lock);
    sl_watch_remove(call);
    sl_choices_cancel(call);
    sl_kept_leave(call);
    if (call->watches) sl_server_leave_watcher(s);
    if (ran && !call->counted)
        sl_metrics_finished(&s->metrics, SL_OUTCOME_ABORT,
                            1e-9 * (double)(sl_now_ns() - call->start_ns));
    sl_log_request(SL_LOG_INFO, "serve", call->request_id, "%s: %u after %.3f s",
                   call->path ? call->path : "unknown path", call->http,
                   1e-9 * (double)(sl_now_ns() - call->start_ns));
    unlink_call(s, call);
    sl_call_unref(call);
}

enum MHD_Result sl_call_queue(sl_call *call, unsigned http, struct MHD_Response *r, bool ok) {
    const char *own = call->dialect->request_id_header;
    ok = ok && MHD_add_response_header(r, "X-Request-Id", call->request_id);
    if (own) ok = ok && MHD_add_response_header(r, own, call->request_id);
    if (call->replayed) ok = ok && MHD_add_response_header(r, "Idempotent-Replayed", "true");
    ok = ok && sl_cors_add(call, r);
    if (call->closes) ok = ok && MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    call->http = http;
    enum MHD_Result done = ok ? MHD_queue_response(call->connection, http, r) : MHD_NO;
    MHD_destroy_response(r);
    return done;
}

enum MHD_Result sl_call_reply(sl_call *call, unsigned http, const char *content_type, sl_jbuf *b) {
    call->phase = SL_CALL_REPLIED;
    sl_call_drop_body(call);
    if (!b->ok) {
        sl_jbuf_free(b);
        return MHD_NO;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback(b->len, b->data, sl_free);
    if (!r) sl_jbuf_free(b);
    *b = sl_jbuf_init();
    if (!r) return MHD_NO;
    bool ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    if (http == MHD_HTTP_UNAUTHORIZED)
        ok = ok && MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (call->retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", call->retry_after_s);
        ok = ok && MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    }
    if (http == MHD_HTTP_METHOD_NOT_ALLOWED)
        ok = ok && MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, call->allow);
    return sl_call_queue(call, http, r, ok);
}

enum MHD_Result sl_call_reply_error(sl_call *call, const sl_api_error *e) {
    sl_jbuf b = sl_jbuf_init();
    call->dialect->error(&b, e);
    sl_metrics_refused(&call->server->metrics, e->draining);
    call->retry_after_s = e->retry_after_s;
    return sl_call_reply(call, e->http, "application/json", &b);
}

void sl_call_drop_body(sl_call *call) {
    /* a counter: no other memory is published by it */
    atomic_fetch_sub_explicit(&call->server->held, call->held, memory_order_relaxed);
    call->held = 0;
    sl_jbuf_free(&call->body);
}

/* Counts n more bytes of the body; false if they cannot be kept. */
static bool hold(sl_call *call, size_t n) {
    sl_server *s = call->server;
    call->held += n;
    size_t all = atomic_fetch_add_explicit(&s->held, n, memory_order_relaxed) + n;
    size_t excess = all > s->o.max_held_bytes ? all - s->o.max_held_bytes : 0;
    return sl_conn_receive(&s->conns, call->conn, n, call->held, excess);
}

bool sl_call_add_body(sl_call *call, const char *data, size_t n) {
    size_t limit = call->server->o.max_body_bytes;
    call->n_body += n;
    call->too_large = call->n_body > limit;
    if (call->keep_body && !call->too_large && !call->crowded) {
        call->crowded = !hold(call, n);
        if (!call->crowded) sl_jbuf_put(&call->body, data, n);
    } else {
        sl_conn_receive(&call->server->conns, call->conn, n, 0, 0);
    }
    if (call->too_large || call->crowded) sl_call_drop_body(call);
    return call->body.ok && call->n_body / SL_CALL_DISCARD <= limit;
}

enum MHD_Result sl_call_reply_crowded(sl_call *call) {
    sl_api_error e;
    sl_api_error_bad(&e, NULL, "request bodies of all clients: more than %zu bytes; try again",
                     call->server->o.max_held_bytes);
    e.http = MHD_HTTP_SERVICE_UNAVAILABLE;
    e.type = "server_error";
    e.code = "too_many_bytes";
    e.retry_after_s = 1;
    return sl_call_reply_error(call, &e);
}

enum MHD_Result sl_call_reply_malformed(sl_call *call, const char *fault) {
    sl_api_error e;
    sl_api_error_bad(&e, NULL, "malformed request: %s", fault);
    e.code = "malformed_request";
    call->closes = true;
    return sl_call_reply_error(call, &e);
}

enum MHD_Result sl_call_reply_too_large(sl_call *call) {
    sl_api_error e;
    sl_api_error_bad(&e, NULL, "request body: larger than %zu bytes",
                     call->server->o.max_body_bytes);
    e.http = MHD_HTTP_CONTENT_TOO_LARGE;
    e.code = "request_too_large";
    return sl_call_reply_error(call, &e);
}

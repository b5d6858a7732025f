/* The server's life: sockets, threads of HTTP, draining, the end. */
#include "serve/server_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/plan_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_BODY_BYTES   ((size_t)16 << 20)
#define DEFAULT_HELD_BYTES   ((size_t)64 << 20)
#define DEFAULT_ANSWER_BYTES ((size_t)16 << 20)
#define CONNECTION_BYTES     ((size_t)32 << 10) /* headers and buffers of one connection */
#define SPARE_FILES          128u /* workers, model, log, ... besides the connections */
#define DRAIN_S              2
#define LAST_EVENTS_S        10

/* Whether the client closed before the end of its body. libmicrohttpd takes a read shorter than its
 * buffer as the last one until epoll reports again, which it does not when the close came with
 * those bytes: the connection would keep what arrived of the body until it has been idle for too
 * long. */
static bool left_early(const sl_call *call) {
    char byte;
    return call->n_body < call->n_expected &&
           recv(call->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Stands for a call whose request names a path that no proxy and no browser would send. */
static char unclean_target;

/* The path as it was sent: libmicrohttpd decodes it in place. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *c) {
    (void)cls;
    (void)c;
    return target && !sl_framing_target_is_clean(target) ? &unclean_target : NULL;
}

/* The head of a request is here. */
static enum MHD_Result begin_call(sl_server *s, sl_conn *conn, struct MHD_Connection *c,
                                  const char *url, const char *method, const char *version,
                                  void **con_cls) {
    bool clean = *con_cls != &unclean_target, chunked;
    sl_call *call =
        sl_call_create(s, conn, c, MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Request-Id"));
    *con_cls = call;
    if (!call) return MHD_NO;
    const char *fault = sl_framing_fault(c, method, url, version, &chunked);
    if (!fault && !clean) fault = "the path has spaces, control characters or %00";
    if (fault) return sl_call_reply_malformed(call, fault);
    call->keep_body = sl_server_wants_body(call, url, method);
    const char *length =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    size_t n = length ? strtoull(length, NULL, 10) : 0;
    call->n_expected = chunked ? SIZE_MAX : n;
    /* libmicrohttpd ends a chunk's line at a lone LF, too, and tells nobody */
    call->closes = chunked;
    return n / SL_CALL_DISCARD > s->o.max_body_bytes ? sl_call_reply_too_large(call) : MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **con_cls) {
    sl_server *s = cls;
    sl_conn *conn = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (!conn) return MHD_NO;
    if (!*con_cls || *con_cls == &unclean_target)
        return sl_conn_enter(&s->conns, conn, SL_CONN_BODY)
                   ? begin_call(s, conn, c, url, method, version, con_cls)
                   : MHD_NO;
    sl_call *call = *con_cls;
    if (*size > 0) {
        bool ok = sl_call_add_body(call, data, *size);
        *size = 0;
        return ok && !left_early(call) ? MHD_YES : MHD_NO;
    }
    if (call->phase == SL_CALL_BODY)
        return sl_conn_enter(&s->conns, conn, SL_CONN_ANSWER) ? sl_server_route(call, url, method)
                                                              : MHD_NO;
    if (call->phase == SL_CALL_WORK) return sl_work_done(call);
    return call->phase == SL_CALL_WAIT ? sl_call_advance(call) : MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode code) {
    (void)code;
    sl_server *s = cls;
    sl_call *call = *con_cls != &unclean_target ? *con_cls : NULL;
    sl_conn *conn = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    *con_cls = NULL;
    if (call) sl_call_close(call);
    if (conn) sl_conn_enter(&s->conns, conn, SL_CONN_IDLE);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context,
                          enum MHD_ConnectionNotificationCode code) {
    sl_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *socket_context = sl_conn_begin(&s->conns, c);
    else
        sl_conn_end(&s->conns, *socket_context);
}

/* Connections that may be open at once: besides those with requests for tokens there are some that
 * hear that they are too many, ask for /health and /metrics, or do nothing. */
static uint32_t open_connections(uint32_t max_connections) {
    return max_connections + max_connections / 4;
}

/* All open files that the system lets this process have, and as many connections as they allow. */
static sl_status allow_files(sl_server *s, sl_err *err) {
    struct rlimit r;
    uint32_t asked = s->o.max_connections;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return sl_fail(err, SL_ERR_IO, "open files: %s", strerror(errno));
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0)
        return sl_fail(err, SL_ERR_IO, "open files: %llu: %s", (unsigned long long)r.rlim_cur,
                       strerror(errno));
    rlim_t each = s->o.tls ? 1 + SL_TLS_FRONT_FILES : 1;
    rlim_t others = each * SL_CONNS_SPARE + SPARE_FILES;
    if (s->o.tls) others += SL_TLS_FRONT_FILES * SL_TLS_FRONT_LEAVING;
    if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= each * open_connections(asked) + others)
        return SL_OK;
    rlim_t room = r.rlim_cur > others ? (r.rlim_cur - others) / each : 0;
    s->o.max_connections = (uint32_t)(room * 4 / 5);
    if (s->o.max_connections == 0)
        return sl_fail(err, SL_ERR_LIMIT,
                       "open files: this process may have %llu, connections need more than %llu; "
                       "raise that limit (ulimit -Hn)",
                       (unsigned long long)r.rlim_cur, (unsigned long long)others);
    sl_log(SL_LOG_WARN, "serve",
           "max-connections: %u instead of %u, as this process may have %llu open files (ulimit "
           "-Hn)",
           s->o.max_connections, asked, (unsigned long long)r.rlim_cur);
    return SL_OK;
}

static sl_status start_daemon(sl_server *s, sl_err *err) {
    unsigned threads = s->o.threads;
    struct MHD_OptionItem pool[] = {{MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)threads, NULL},
                                    {MHD_OPTION_END, 0, NULL}};
    if (threads == 1) pool[0].option = MHD_OPTION_END;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0,
        NULL, NULL, on_request, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_URI_LOG_CALLBACK, on_target, s,
        MHD_OPTION_CONNECTION_LIMIT, threads * (s->conns.o.limit + SL_CONNS_SPARE),
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.idle_timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES, MHD_OPTION_ARRAY, pool,
        MHD_OPTION_END);
    if (!s->daemon)
        return sl_fail(err, SL_ERR_IO,
                       "the HTTP server does not start (%u threads, %u connections)", threads,
                       s->o.max_connections);
    return SL_OK;
}

/* Bytes of the longest token times the context; normalisation shrinks a text to a third at most. */
static size_t longest_text(const sl_tokenizer *tok, uint32_t context) {
    size_t longest = 1;
    for (uint32_t id = 0; id < sl_tokenizer_vocab_size(tok); id++)
        longest = SL_MAX(longest, sl_tokenizer_piece(tok, id).len);
    return 3 * longest * context;
}

/* Splits "a,b" into s->names; the first is s->model. */
static sl_status copy_names(const char *list, sl_server *s, sl_err *err) {
    size_t n = 1;
    for (const char *p = list; *p; p++) n += *p == ',';
    s->names = sl_alloc(n, sizeof *s->names);
    if (!s->names) return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(list, ",");
        if (len == 0)
            return sl_fail(err, SL_ERR_ARG, "served-model-name: name %zu of %zu is empty", i + 1,
                           n);
        s->names[i] = sl_strndup(list, len);
        if (!s->names[i]) return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
        s->n_names++;
        list += len + (list[len] == ',');
    }
    s->model = s->names[0];
    return SL_OK;
}

/* How chats answer: as the template's text says, or with calls as the options do. */
static sl_status choose_style(const sl_server_opts *o, sl_server *s, sl_err *err) {
    const char *name = o->tool_format ? o->tool_format : "auto";
    bool given = strcmp(name, "auto") != 0;
    sl_tool_format format = SL_TOOLS_NONE;
    s->style = sl_answer_style_with(o->chat ? sl_chat_style(o->chat) : s->style, o->tokenizer);
    if (given && !sl_tool_format_find(name, &format))
        return sl_fail(err, SL_ERR_ARG, "tool-format: \"%.40s\" is no format that is known", name);
    if (format == SL_TOOLS_HARMONY && s->style.tools != SL_TOOLS_HARMONY)
        return sl_fail(err, SL_ERR_ARG,
                       "tool-format: harmony wants special tokens that this model does not have");
    if (given) s->style.tools = format;
    if (!o->chat) return SL_OK;
    sl_log(SL_LOG_INFO, "serve", "calls of tools: %s, %s%s", sl_tool_format_name(s->style.tools),
           given ? "as --tool-format says" : "by the chat template",
           s->style.tools == SL_TOOLS_NONE ? ": tools are refused" : "");
    return SL_OK;
}

static sl_status copy_opts(const sl_server_opts *o, sl_server *s, sl_err *err) {
    if (!o->engine || !o->tokenizer || !o->served_model_name || !o->served_model_name[0])
        return sl_fail(err, SL_ERR_ARG, "server: engine, tokenizer and model name are needed");
    const sl_model_spec *spec = sl_engine_spec(o->engine);
    s->o = *o;
    if (!s->o.context) s->o.context = spec->max_position;
    if (!s->o.threads) s->o.threads = 2;
    if (!s->o.max_connections) s->o.max_connections = 1024;
    if (!s->o.idle_timeout_s) s->o.idle_timeout_s = 120;
    if (!s->o.stall_timeout_s) s->o.stall_timeout_s = 10;
    if (!s->o.max_unread_tokens) s->o.max_unread_tokens = 4096;
    if (!s->o.max_body_bytes) s->o.max_body_bytes = DEFAULT_BODY_BYTES;
    if (!s->o.max_held_bytes) s->o.max_held_bytes = DEFAULT_HELD_BYTES;
    if (!s->o.max_answer_bytes) s->o.max_answer_bytes = DEFAULT_ANSWER_BYTES;
    if (!s->o.work_threads) s->o.work_threads = 2;
    if (!s->o.max_work) s->o.max_work = 1024;
    if (!s->o.responses_bytes) s->o.responses_bytes = DEFAULT_HELD_BYTES;
    if (!s->o.plan_timeout_s) s->o.plan_timeout_s = 60;
    if (!s->o.responses_ttl_s) s->o.responses_ttl_s = 600;
    s->o.work_threads = SL_MIN(s->o.work_threads, SL_WORK_MAX_THREADS);
    sl_status st = copy_names(o->served_model_name, s, err);
    if (st == SL_OK) st = choose_style(o, s, err);
    if (st != SL_OK) return st;
    bool key = o->api_key && o->api_key[0], admin = o->admin_key && o->admin_key[0];
    if (key) s->api_key = sl_strdup(o->api_key);
    if (admin) s->admin_key = sl_strdup(o->admin_key);
    if ((key && !s->api_key) || (admin && !s->admin_key))
        return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
    s->keyed = key || o->api_keys;
    st = sl_keys_set(&s->keys, s->api_key, o->api_keys, err);
    if (st == SL_OK) st = sl_cors_set(s, o->cors_origin, err);
    if (st != SL_OK) return st;
    s->o.host = s->o.api_keys = s->o.cors_origin = NULL;
    s->o.api_key = s->api_key;
    s->o.admin_key = s->admin_key;
    s->o.served_model_name = s->model;
    s->limits = (sl_api_limits){.model = s->model,
                                .alias = (const char *const *)s->names,
                                .n_alias = s->n_names,
                                .vocab = spec->vocab,
                                .context = s->o.context,
                                .gen = o->generation};
    s->created = sl_wall_s();
    s->o.plan = NULL;
    if (o->plan) s->max_num_seqs = o->plan->max_num_seqs;
    if (o->plan) s->numerics = sl_numerics_name(sl_plan_numerics(o->plan));
    s->fim = sl_fim_of(o->tokenizer);
    s->limits.fills = s->fim.name != NULL;
    s->max_text_bytes = longest_text(o->tokenizer, s->o.context);
    return o->plan ? sl_fingerprint(spec, o->plan, o->chat, s->fingerprint, err) : SL_OK;
}

sl_status sl_server_create(const sl_server_opts *o, sl_server **out, sl_err *err) {
    sl_server *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
    s->listen_fd = s->epoll_fd = s->event_fd = -1;
    s->refs = 1;
    sl_status st = sl_metrics_create(&s->metrics, err);
    if (st != SL_OK) {
        sl_free(s);
        return st;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->guides_lock, NULL);
    pthread_mutex_init(&s->work.lock, NULL);
    pthread_mutex_init(&s->store.lock, NULL);
    pthread_cond_init(&s->work.changed, NULL);
    sl_keys_init(&s->keys);
    sl_conns_init(&s->conns);
    sl_live_init(&s->live);
    sl_planner_init(&s->planner);
    st = copy_opts(o, s, err);
    if (st == SL_OK) st = allow_files(s, err);
    s->conns.o = (sl_conns_opts){.limit = open_connections(s->o.max_connections),
                                 .idle_ms = s->o.idle_timeout_s * 1000,
                                 .stall_ms = s->o.stall_timeout_s * 1000};
    if (st == SL_OK) st = sl_server_listen(s, o->host && o->host[0] ? o->host : "127.0.0.1", err);
    if (st == SL_OK && o->tls) st = sl_tls_front_start(o->tls, &s->tls, err);
    if (st == SL_OK) st = sl_watch_start(s, err);
    if (st == SL_OK) st = sl_resume(s, err);
    if (st == SL_OK) st = sl_keeper_start(s, err);
    if (st == SL_OK) st = sl_work_start(s, err);
    if (st == SL_OK) st = sl_live_start(s, err);
    if (st == SL_OK) st = sl_planner_start(s, err);
    if (st == SL_OK) st = start_daemon(s, err);
    if (st == SL_OK) st = sl_watch_listen(s, err);
    if (st != SL_OK) goto out;
    *out = s;
    s = NULL;
out:
    sl_server_free(s);
    return st;
}

/* Ends every call that has not been told yet. */
static void abort_calls(sl_server *s) {
    for (;;) {
        pthread_mutex_lock(&s->lock);
        sl_call *call = s->calls;
        while (call && call->told) call = call->next;
        if (call) {
            call->told = true;
            atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
        }
        pthread_mutex_unlock(&s->lock);
        if (!call) return;
        sl_call_abort_with(call, SL_ABORT_STOPPING);
        sl_call_unref(call);
    }
}

/* Waits until no request is open (idle) or no call is left; gives up after `seconds`. */
static void wait_until(sl_server *s, bool idle, time_t seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&s->lock);
    while (idle ? s->calls != NULL : s->refs > 1)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until) == ETIMEDOUT) break;
    pthread_mutex_unlock(&s->lock);
}

void sl_server_free(sl_server *s) {
    if (!s) return;
    /* pairs with the load of every new request */
    atomic_store_explicit(&s->stopping, true, memory_order_release);
    if (s->daemon) {
        shutdown(s->listen_fd, SHUT_RDWR);
        abort_calls(s);
    }
    sl_work_stop(s); /* whose calls are answered now */
    sl_live_stop(s);
    sl_planner_stop(s);
    if (s->daemon) wait_until(s, true, DRAIN_S);
    sl_watch_stop(s); /* before the daemon, which it hands connections to */
    if (s->daemon) MHD_stop_daemon(s->daemon);
    sl_tls_front_stop(s->tls); /* the daemon has closed its ends */
    sl_keeper_stop(s);
    sl_kept_close(s);
    wait_until(s, false, LAST_EVENTS_S);
    sl_server_unref(s); /* a call the engine still holds keeps the rest alive */
}

sl_status sl_server_set_keys(sl_server *s, const char *lines, sl_err *err) {
    return sl_keys_set(&s->keys, s->api_key, lines, err);
}

void sl_server_set_tls(sl_server *s, sl_tls_pair *pair) {
    sl_tls_front_renew(s->tls, pair);
}

uint16_t sl_server_port(const sl_server *s) {
    return s->port;
}

const char *sl_server_url(const sl_server *s) {
    return s->url;
}

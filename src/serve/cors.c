/* Pages of other sites that may ask from a browser (--cors-origin): who they are, and what
 * answers say of it. Paths of whoever runs the server are for no page. */
#include "serve/server_int.h"

#include "base/mem.h"

static bool is_origin(const char *text, size_t n) {
    const char *host = memmem(text, n, "://", 3);
    if (!host || host == text || host + 3 == text + n) return false;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~' || strchr("*?#@\\\"", text[i])) return false;
    return !memchr(host + 3, '/', n - (size_t)(host + 3 - text));
}

static sl_status add(sl_server *s, const char *text, size_t n, sl_err *err) {
    if (!is_origin(text, n) && !(n == 1 && *text == '*'))
        return sl_fail(err, SL_ERR_ARG,
                       "cors-origin: \"%.*s\" is neither * nor SCHEME://HOST or SCHEME://HOST:PORT",
                       (int)SL_MIN(n, (size_t)100), text);
    if (*text == '*' && !s->keyed)
        return sl_fail(
            err, SL_ERR_ARG,
            "cors-origin: * lets every page use this server; give it an API key, or name "
            "the sites");
    s->any_origin = s->any_origin || *text == '*';
    s->origin[s->n_origins] = sl_strndup(text, n);
    if (!s->origin[s->n_origins]) return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
    s->n_origins++;
    return SL_OK;
}

sl_status sl_cors_set(sl_server *s, const char *list, sl_err *err) {
    size_t n = 1;
    sl_status st = SL_OK;
    if (!list || !list[0]) return SL_OK;
    for (const char *p = list; *p; p++) n += *p == ',';
    s->origin = sl_alloc(n, sizeof *s->origin);
    if (!s->origin) return sl_fail(err, SL_ERR_NOMEM, "server: out of memory");
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        size_t len = strcspn(list, ",");
        st = add(s, list, len, err);
        list += len + (list[len] == ',');
    }
    return st;
}

const char *sl_cors_allows(const sl_call *call) {
    const sl_server *s = call->server;
    const char *origin = s->n_origins ? sl_call_header(call, MHD_HTTP_HEADER_ORIGIN) : NULL;
    if (!origin) return NULL;
    if (s->any_origin) return "*";
    for (size_t i = 0; i < s->n_origins; i++)
        if (!strcasecmp(origin, s->origin[i])) return origin;
    return NULL;
}

bool sl_cors_add(const sl_call *call, struct MHD_Response *r) {
    static const char shown[] = "X-Request-Id, Idempotent-Replayed, Retry-After, request-id";
    const sl_server *s = call->server;
    bool ok = true;
    if (s->n_origins == 0 || (call->path && !strncmp(call->path, "/admin", 6))) return true;
    if (!s->any_origin) ok = MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
    const char *origin = sl_cors_allows(call);
    if (!origin) return ok;
    return ok && MHD_add_response_header(r, "Access-Control-Allow-Origin", origin) &&
           MHD_add_response_header(r, "Access-Control-Expose-Headers", shown);
}

bool sl_cors_asks(const sl_call *call, const char *method) {
    return call->server->n_origins && !strcmp(method, "OPTIONS") &&
           sl_call_header(call, MHD_HTTP_HEADER_ORIGIN) &&
           sl_call_header(call, "Access-Control-Request-Method");
}

/* Requests to the hub over libcurl: redirections, the token, ranges, refusals. */
#include "hub/curl/http.h"

#include "base/mem.h"
#include "base/options.h"
#include "base/version.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define MAX_HOPS    5u
#define MAX_REFUSAL (256u << 10) /* bytes of an answer that is no success */
#define CONNECT_S   20L
#define SILENCE_S   30L

typedef struct origin {
    char scheme[8], host[256], port[8];
} origin;

struct sl_hub_http {
    const sl_hub_settings *s;
    CURLM *multi;
    origin home;
};

static bool read_part(CURLU *u, CURLUPart part, unsigned flags, char *out, size_t cap) {
    char *text = NULL;
    bool ok = curl_url_get(u, part, &text, flags) == CURLUE_OK && strlen(text) < cap;
    if (ok) memcpy(out, text, strlen(text) + 1);
    curl_free(text);
    return ok;
}

/* False: no URL of http or https. */
static bool origin_of(const char *url, origin *out) {
    CURLU *u = curl_url();
    bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              read_part(u, CURLUPART_SCHEME, 0, out->scheme, sizeof out->scheme) &&
              read_part(u, CURLUPART_HOST, 0, out->host, sizeof out->host) &&
              read_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, out->port, sizeof out->port) &&
              (strcasecmp(out->scheme, "http") == 0 || strcasecmp(out->scheme, "https") == 0);
    curl_url_cleanup(u);
    return ok;
}

static bool same_origin(const origin *a, const origin *b) {
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}

static bool is_loopback(const origin *o) {
    return strcmp(o->host, "127.0.0.1") == 0 || strcmp(o->host, "[::1]") == 0 ||
           strcasecmp(o->host, "localhost") == 0;
}

static void init_curl(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

sl_status sl_hub_http_create(const sl_hub_settings *s, sl_hub_http **out, sl_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    sl_hub_http *h = sl_alloc(1, sizeof *h);
    if (h) h->multi = curl_multi_init();
    if (!h || !h->multi) {
        sl_free(h);
        return sl_fail(err, SL_ERR_NOMEM, "connections to %s", s->endpoint);
    }
    h->s = s;
    sl_status st = SL_OK;
    if (!origin_of(s->endpoint, &h->home))
        st = sl_fail(err, SL_ERR_ARG, "HF_ENDPOINT: '%s' is no URL of http or https", s->endpoint);
    else if (s->token[0] && strcasecmp(h->home.scheme, "https") != 0 && !is_loopback(&h->home))
        st = sl_fail(err, SL_ERR_ARG,
                     "HF_ENDPOINT: a token is not sent to %s in the clear; use https, or have no "
                     "HF_TOKEN and no file of it (HF_TOKEN_PATH may name one that is not there)",
                     s->endpoint);
    if (st != SL_OK) {
        sl_hub_http_free(h);
        return st;
    }
    *out = h;
    return SL_OK;
}

void sl_hub_http_free(sl_hub_http *h) {
    if (!h) return;
    curl_multi_cleanup(h->multi);
    sl_free(h);
}

/* ---- what an answer says ---- */

/* The value of header `name` in a line, trimmed; false: another header, or too long. */
static bool header_value(const char *line, size_t n, const char *name, char *out, size_t cap) {
    size_t m = strlen(name);
    if (n <= m || strncasecmp(line, name, m) != 0 || line[m] != ':') return false;
    const char *from = line + m + 1, *end = line + n;
    while (from < end && (*from == ' ' || *from == '\t')) from++;
    while (end > from && strchr(" \t\r\n", end[-1])) end--;
    size_t len = (size_t)(end - from);
    if (len >= cap) return false;
    memcpy(out, from, len);
    out[len] = 0;
    return true;
}

/* <URL>; rel="next" among others */
static void read_link(sl_hub_call *c, const char *value) {
    const char *at = value;
    while ((at = strchr(at, '<'))) {
        const char *end = strchr(at, '>'), *comma = end ? strchr(end, ',') : NULL;
        if (!end) return;
        size_t n = (size_t)(end - at) - 1;
        const char *rel = strstr(end, "rel=\"next\"");
        if (rel && (!comma || rel < comma) && n < sizeof c->next) {
            memcpy(c->next, at + 1, n);
            c->next[n] = 0;
            return;
        }
        at = end;
    }
}

static void read_range(sl_hub_call *c, const char *value) {
    unsigned long long from, to, total;
    if (sscanf(value, "bytes %llu-%llu/%llu", &from, &to, &total) == 3)
        c->ranged = from == c->from && to >= from && to - from < c->bytes && total == c->total;
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx) {
    sl_hub_call *c = ctx;
    char value[2560];
    n *= size;
    if (n > 5 && strncasecmp(line, "HTTP/", 5) == 0) { /* of the next answer, as after 100 */
        c->code[0] = c->next[0] = 0;
        c->retry_s = 0;
        c->ranged = false;
    } else if (header_value(line, n, "X-Error-Code", value, sizeof c->code)) {
        for (char *s = value; *s; s++)
            if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e) *s = '?';
        memcpy(c->code, value, strlen(value) + 1);
    } else if (header_value(line, n, "Link", value, sizeof value)) {
        read_link(c, value);
    } else if (header_value(line, n, "Retry-After", value, sizeof value)) {
        c->retry_s = (unsigned)SL_MIN(strtoul(value, NULL, 10), 60ul);
    } else if (header_value(line, n, "Content-Range", value, sizeof value)) {
        read_range(c, value);
    }
    return n;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *ctx) {
    sl_hub_call *c = ctx;
    long status = 0;
    curl_off_t got = 0;
    n *= size;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200 || status > 299) { /* read, so that the connection can go on, and dropped */
        curl_easy_getinfo(c->easy, CURLINFO_SIZE_DOWNLOAD_T, &got);
        return got > (curl_off_t)MAX_REFUSAL ? 0 : n;
    }
    if (c->bytes && !c->ranged) {
        c->no_ranges = status == 200;
        return 0;
    }
    c->stopped = !c->on_body(c->ctx, (const uint8_t *)bytes, n);
    return c->stopped ? 0 : n;
}

/* ---- requests ---- */

static bool add_header(sl_hub_call *c, const char *fmt, const char *value) {
    char text[640];
    snprintf(text, sizeof text, fmt, value);
    struct curl_slist *more = curl_slist_append(c->headers, text);
    if (more) c->headers = more;
    return more != NULL;
}

static bool set_up(sl_hub_http *h, sl_hub_call *c, const origin *to) {
    char range[64];
    CURL *e = c->easy;
    const char *bundle = sl_options_hub(SL_SSL_CERT_FILE);
    bool ok = add_header(c, "User-Agent: sluice/%s", sl_version());
    if (h->s->token[0] && same_origin(to, &h->home))
        ok = ok && add_header(c, "Authorization: Bearer %s", h->s->token);
    if (c->bytes) {
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)c->from,
                 (unsigned long long)(c->from + c->bytes - 1));
        ok = ok && curl_easy_setopt(e, CURLOPT_RANGE, range) == CURLE_OK;
    }
    ok = ok && curl_easy_setopt(e, CURLOPT_URL, c->url) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    if (ok && bundle) ok = curl_easy_setopt(e, CURLOPT_CAINFO, bundle) == CURLE_OK;
    if (is_loopback(to)) ok = ok && curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK;
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION,
                     (long)CURL_HTTP_VERSION_1_1); /* several connections */
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    return ok;
}

static void let_go(sl_hub_http *h, sl_hub_call *c) {
    if (c->easy) {
        curl_multi_remove_handle(h->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    curl_slist_free_all(c->headers);
    c->easy = c->headers = NULL;
}

/* Bytes of a URL before its query, which may hold a storage's signature: for errors. */
static int plain_part(const char *url) {
    return (int)SL_MIN(strcspn(url, "?#"), (size_t)200);
}

/* Sends the request to c->url. */
static sl_status send_call(sl_hub_http *h, sl_hub_call *c, sl_err *err) {
    origin to;
    if (!origin_of(c->url, &to))
        return sl_fail(err, SL_ERR_FORMAT, "%.*s: is no URL of http or https", plain_part(c->url),
                       c->url);
    if (strcasecmp(h->home.scheme, "https") == 0 && strcasecmp(to.scheme, "https") != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%.*s: %s sends from https to http", plain_part(c->url),
                       c->url, h->s->endpoint);
    c->easy = curl_easy_init();
    if (!c->easy || !set_up(h, c, &to) || curl_multi_add_handle(h->multi, c->easy) != CURLM_OK) {
        let_go(h, c);
        return sl_fail(err, SL_ERR_NOMEM, "%.*s: a request", plain_part(c->url), c->url);
    }
    return SL_OK;
}

sl_status sl_hub_http_start(sl_hub_http *h, sl_hub_call *c, const char *url, sl_err *err) {
    *c = (sl_hub_call){.from = c->from,
                       .bytes = c->bytes,
                       .total = c->total,
                       .on_body = c->on_body,
                       .ctx = c->ctx};
    c->url = sl_strdup(url);
    if (!c->url) return sl_fail(err, SL_ERR_NOMEM, "%.200s: a request", url);
    sl_status st = send_call(h, c, err);
    if (st != SL_OK) sl_hub_http_stop(h, c);
    return st;
}

void sl_hub_http_stop(sl_hub_http *h, sl_hub_call *c) {
    let_go(h, c);
    sl_free(c->url);
    c->url = NULL;
}

/* True: the request goes on elsewhere. */
static bool redirected(sl_hub_http *h, sl_hub_call *c) {
    char *to = NULL;
    if (c->status < 300 || c->status > 399) return false;
    curl_easy_getinfo(c->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to) return false;
    if (++c->hops > MAX_HOPS) {
        c->st = sl_fail(&c->err, SL_ERR_FORMAT, "%.*s: more than %u redirections",
                        plain_part(c->url), c->url, MAX_HOPS);
        return false;
    }
    char *url = sl_strdup(to);
    let_go(h, c);
    if (url) {
        sl_free(c->url);
        c->url = url;
    }
    c->st = url ? send_call(h, c, &c->err) : sl_fail(&c->err, SL_ERR_NOMEM, "a redirection");
    return c->st == SL_OK;
}

/* What libcurl says of a transfer that is through. */
static void judge(sl_hub_call *c, CURLcode result) {
    long status = 0;
    origin at = {.host = "?"};
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    c->status = (unsigned)status;
    c->st = SL_OK;
    if (result == CURLE_OK && !(c->bytes && status == 200)) return;
    origin_of(c->url, &at);
    c->no_ranges = c->no_ranges || (result == CURLE_OK && status == 200);
    sl_status code = SL_ERR_IO;
    if (result == CURLE_SSL_CACERT_BADFILE) {
        const char *bundle = sl_options_hub(SL_SSL_CERT_FILE);
        c->st =
            sl_fail(&c->err, SL_ERR_ARG, "SSL_CERT_FILE: certificates to trust cannot be read%s%s",
                    bundle ? " from " : "", bundle ? bundle : "");
        return;
    }
    if (result == CURLE_OPERATION_TIMEDOUT) code = SL_ERR_TIMEOUT;
    if (result == CURLE_WRITE_ERROR || result == CURLE_OK) code = SL_ERR_FORMAT;
    if (result == CURLE_PEER_FAILED_VERIFICATION) code = SL_ERR_AUTH;
    c->st = sl_fail(&c->err, code, "%s: %s", at.host,
                    c->no_ranges            ? "gives no ranges of a file"
                    : code == SL_ERR_FORMAT ? "its answer does not fit what was asked for"
                                            : curl_easy_strerror(result));
}

sl_hub_call *sl_hub_http_turn(sl_hub_http *h, int wait_ms) {
    int running = 0, left = 0;
    curl_multi_perform(h->multi, &running);
    for (int waited = 0;; waited = 1) {
        CURLMsg *m = curl_multi_info_read(h->multi, &left);
        if (m && m->msg == CURLMSG_DONE) {
            sl_hub_call *c = NULL;
            CURLcode result = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
            judge(c, result);
            if (c->st == SL_OK && redirected(h, c)) continue;
            sl_hub_http_stop(h, c);
            return c;
        }
        if (m) continue;
        if (waited) return NULL;
        curl_multi_poll(h->multi, NULL, 0, wait_ms, NULL);
        curl_multi_perform(h->multi, &running);
    }
}

bool sl_hub_call_may_retry(const sl_hub_call *c) {
    if (c->st == SL_ERR_IO || c->st == SL_ERR_TIMEOUT) return true;
    return c->st == SL_OK && (c->status == 408 || c->status == 429 || c->status >= 500);
}

sl_status sl_hub_call_refused(const sl_hub_call *c, const sl_hub_settings *s, const sl_hub_name *n,
                              const char *what, sl_err *err) {
    const char *token = s->token[0]
                            ? "the token (HF_TOKEN or its file) does not open it"
                            : "a token is needed: HF_TOKEN, or a file as HF_TOKEN_PATH says";
    if (c->st != SL_OK) {
        *err = c->err;
        return sl_err_prefix(err, "%s", what);
    }
    if (strcmp(c->code, "GatedRepo") == 0)
        return sl_fail(err, SL_ERR_AUTH, "%s: is gated: its terms are accepted at %s/%s/%s, and %s",
                       what, s->endpoint, n->org, n->model, token);
    if (strcmp(c->code, "RevisionNotFound") == 0)
        return sl_fail(err, SL_ERR_NOTFOUND, "%s: has no revision '%s'", what, n->revision);
    if (c->status == 401 || c->status == 403)
        return sl_fail(
            err, SL_ERR_AUTH,
            "%s: %s answers %u: there is no such model, or it is private or gated, and %s", what,
            s->endpoint, c->status, token);
    if (c->status == 404)
        return sl_fail(err, SL_ERR_NOTFOUND, "%s: is not at %s", what, s->endpoint);
    return sl_fail(err, SL_ERR_IO, "%s: %s answers %u%s%s", what, s->endpoint, c->status,
                   c->code[0] ? " " : "", c->code);
}

/* Questions to the hub's API, asked again where that may help. */
#include "hub/curl/api.h"

#include "base/clock.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <time.h>

#define MAX_PAGES 1000u
#define URL_BYTES 4096u

bool sl_hub_escape(const char *text, bool keep_slash, char *out, size_t cap) {
    size_t n = 0;
    for (const char *s = text; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = isalnum(c) || strchr("-._~", c) || (keep_slash && c == '/');
        if (n + 4 > cap) return false;
        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", c);
    }
    out[n] = 0;
    return n + 1 < cap;
}

bool sl_hub_may_wait(const sl_hub_settings *s, uint64_t since_ns) {
    return (double)(sl_now_ns() - since_ns) < s->retry_s * 1e9;
}

uint64_t sl_hub_wait_ns(unsigned tries, unsigned retry_s) {
    uint64_t ns = 250000000ull << SL_MIN(tries ? tries - 1 : 0, 4u);
    return SL_MAX(ns, retry_s * 1000000000ull);
}

typedef struct answer {
    uint8_t *bytes;
    size_t n, cap;
    bool too_long;
} answer;

static bool take_bytes(void *ctx, const uint8_t *bytes, size_t n) {
    answer *a = ctx;
    a->too_long = n > SL_HUB_MAX_ANSWER - a->n;
    if (a->too_long) return false;
    while (a->n + n > a->cap) {
        uint8_t *grown = sl_grow(a->bytes, a->cap, a->cap ? 2 * a->cap : 65536, 1);
        if (!grown) return false;
        a->bytes = grown;
        a->cap = a->cap ? 2 * a->cap : 65536;
    }
    memcpy(a->bytes + a->n, bytes, n);
    a->n += n;
    return true;
}

static sl_status ask(sl_hub_http *h, const sl_hub_settings *s, const sl_hub_name *n,
                     const char *url, answer *a, char next[URL_BYTES], sl_err *err) {
    char what[2 * SL_HUB_PART + 2];
    snprintf(what, sizeof what, "%s/%s", n->org, n->model);
    for (uint64_t began = sl_now_ns(), tries = 1;; tries++) {
        sl_hub_call c = {.on_body = take_bytes, .ctx = a};
        a->n = 0;
        sl_status st = sl_hub_http_start(h, &c, url, err);
        if (st != SL_OK) return st;
        while (!sl_hub_http_turn(h, 100)) continue; /* libcurl's own deadlines end it */
        if (a->too_long)
            return sl_fail(err, SL_ERR_LIMIT, "%s: an answer of over %u bytes", url,
                           SL_HUB_MAX_ANSWER);
        if (c.st == SL_OK && c.status == 200) {
            if (next) snprintf(next, URL_BYTES, "%s", c.next);
            return SL_OK;
        }
        if (!sl_hub_call_may_retry(&c) || !sl_hub_may_wait(s, began))
            return sl_hub_call_refused(&c, s, n, what, err);
        uint64_t ns = sl_hub_wait_ns((unsigned)tries, c.retry_s);
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
    }
}

sl_status sl_hub_api_list(sl_hub_http *h, const sl_hub_settings *s, const sl_hub_name *n,
                          char commit[SL_HUB_COMMIT + 1], sl_hub_listing *out, sl_err *err) {
    char url[URL_BYTES], next[URL_BYTES], revision[3 * SL_HUB_REVISION + 4];
    answer a = {0};
    if (!sl_hub_escape(n->revision, false, revision, sizeof revision))
        return sl_fail(err, SL_ERR_LIMIT, "%s: revision", n->revision);
    snprintf(url, sizeof url, "%s/api/models/%s/%s/revision/%s", s->endpoint, n->org, n->model,
             revision);
    sl_status st = ask(h, s, n, url, &a, NULL, err);
    if (st == SL_OK) st = sl_hub_commit_parse(url, (sl_span){a.bytes, a.n}, commit, err);
    bool pinned = sl_hub_is_hex(n->revision, SL_HUB_COMMIT);
    if (st == SL_OK && pinned && strcmp(n->revision, commit) != 0)
        st = sl_fail(err, SL_ERR_FORMAT, "%s: answers with commit %s", url, commit);
    snprintf(next, sizeof next, "%s/api/models/%s/%s/tree/%s?recursive=true", s->endpoint, n->org,
             n->model, commit);
    for (unsigned page = 0; st == SL_OK && next[0]; page++) {
        memcpy(url, next, sizeof url);
        if (page == MAX_PAGES)
            st = sl_fail(err, SL_ERR_LIMIT, "%s: more than %u pages of files", url, MAX_PAGES);
        if (st == SL_OK) st = ask(h, s, n, url, &a, next, err);
        if (st == SL_OK) st = sl_hub_tree_parse(url, (sl_span){a.bytes, a.n}, out, err);
    }
    sl_free(a.bytes);
    return st;
}

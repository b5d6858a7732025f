/* Stop texts found in a stream that arrives in pieces. */
#include "serve/stop.h"

#include "base/mem.h"

typedef struct pattern {
    char *text;
    uint32_t *fail; /* fail[j]: longest proper border of text[0..j] */
    size_t len, state;
} pattern;

struct sl_stop {
    pattern p[SL_STOP_MAX_STRINGS];
    size_t n;
    bool matched, include;
    size_t hit; /* which, when matched */
    size_t n_held;
    char held[SL_STOP_MAX_BYTES];
};

static void build_borders(pattern *p) {
    size_t k = 0;
    for (size_t j = 1; j < p->len; j++) {
        while (k > 0 && p->text[j] != p->text[k]) k = p->fail[k - 1];
        if (p->text[j] == p->text[k]) k++;
        p->fail[j] = (uint32_t)k;
    }
}

sl_status sl_stop_create(const sl_span *strings, size_t n, sl_stop **out, sl_err *err) {
    if (n > SL_STOP_MAX_STRINGS)
        return sl_fail(err, SL_ERR_LIMIT, "stop: %zu strings, limit %u", n, SL_STOP_MAX_STRINGS);
    sl_status st = SL_OK;
    sl_stop *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "stop: out of memory");
    for (; s->n < n; s->n++) {
        size_t len = strings[s->n].len;
        if (len == 0) {
            st = sl_fail(err, SL_ERR_ARG, "stop: string %zu is empty", s->n);
            goto out;
        }
        if (len > SL_STOP_MAX_BYTES) {
            st = sl_fail(err, SL_ERR_LIMIT, "stop: string %zu has %zu bytes, limit %u", s->n, len,
                         SL_STOP_MAX_BYTES);
            goto out;
        }
        pattern *p = &s->p[s->n];
        p->len = len;
        p->text = sl_strndup((const char *)strings[s->n].data, len);
        p->fail = sl_alloc(len, sizeof *p->fail);
        if (!p->text || !p->fail) {
            sl_free(p->text);
            sl_free(p->fail);
            st = sl_fail(err, SL_ERR_NOMEM, "stop: out of memory");
            goto out;
        }
        build_borders(p);
    }
    *out = s;
    s = NULL;
out:
    sl_stop_free(s);
    return st;
}

void sl_stop_free(sl_stop *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        sl_free(s->p[i].text);
        sl_free(s->p[i].fail);
    }
    sl_free(s);
}

void sl_stop_include(sl_stop *s, bool include) {
    s->include = include;
}

/* Advances every automaton by c. Returns the length of the longest string completed by it, or 0;
 * *keep is the longest prefix of any string that the text now ends with. */
static size_t step(sl_stop *s, char c, size_t *keep) {
    size_t done = 0;
    *keep = 0;
    for (size_t i = 0; i < s->n; i++) {
        pattern *p = &s->p[i];
        while (p->state > 0 && p->text[p->state] != c) p->state = p->fail[p->state - 1];
        if (p->text[p->state] == c) p->state++;
        if (p->state == p->len) {
            if (p->len > done) s->hit = i;
            done = SL_MAX(done, p->len);
            p->state = p->fail[p->len - 1];
        }
        *keep = SL_MAX(*keep, p->state);
    }
    return done;
}

bool sl_stop_feed(sl_stop *s, const char *text, size_t n, sl_jbuf *out) {
    if (s->matched) return true;
    /* held + text[0..i] is what is not released yet; its last `keep` bytes stay held */
    for (size_t i = 0; i < n; i++) {
        size_t keep, done = step(s, text[i], &keep);
        size_t seen = s->n_held + i + 1;
        if (done > 0) {
            size_t release = s->include ? seen : seen - done;
            sl_jbuf_put(out, s->held, SL_MIN(release, s->n_held));
            if (release > s->n_held) sl_jbuf_put(out, text, release - s->n_held);
            s->n_held = 0;
            s->matched = true;
            return true;
        }
        if (i + 1 < n) continue;
        size_t release = seen - keep, from_held = SL_MIN(release, s->n_held);
        sl_jbuf_put(out, s->held, from_held);
        memmove(s->held, s->held + from_held, s->n_held - from_held);
        s->n_held -= from_held;
        size_t from_text = release - from_held;
        sl_jbuf_put(out, text, from_text);
        memcpy(s->held + s->n_held, text + from_text, n - from_text);
        s->n_held += n - from_text;
    }
    return false;
}

bool sl_stop_hit(const sl_stop *s, sl_span *out) {
    if (!s->matched) return false;
    const pattern *p = &s->p[s->hit];
    *out = (sl_span){(const uint8_t *)p->text, p->len};
    return true;
}

void sl_stop_break(sl_stop *s, sl_jbuf *out) {
    sl_stop_flush(s, out);
    for (size_t i = 0; i < s->n; i++) s->p[i].state = 0;
}

void sl_stop_flush(sl_stop *s, sl_jbuf *out) {
    if (!s->matched) sl_jbuf_put(out, s->held, s->n_held);
    s->n_held = 0;
}

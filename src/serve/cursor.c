/* Ids of events: written, read, and what they leave out. */
#include "serve/cursor.h"

#include "base/mem.h"

#include <inttypes.h>
#include <string.h>

#define MAX_DIGITS 12u /* of a number: more events than any answer has */

bool sl_cursor_begin(sl_cursor *c, size_t n) {
    c->said = sl_alloc(n, sizeof *c->said);
    c->heard = sl_alloc(n, sizeof *c->heard);
    if (!c->said || !c->heard) {
        sl_cursor_free(c);
        return false;
    }
    c->n = n;
    return true;
}

void sl_cursor_free(sl_cursor *c) {
    sl_free(c->said);
    sl_free(c->heard);
    *c = (sl_cursor){0};
}

/* How many events "17" or "-" leaves behind; where it ends. NULL: it is neither. */
static const char *read_place(const char *s, uint64_t *heard) {
    *heard = 0;
    if (*s == '-') return s + 1;
    uint64_t v = 0;
    size_t n = 0;
    while (n <= MAX_DIGITS && s[n] >= '0' && s[n] <= '9') v = 10 * v + (uint64_t)(s[n++] - '0');
    if (n == 0 || n > MAX_DIGITS) return NULL;
    *heard = v + 1;
    return s + n;
}

bool sl_cursor_go_on(sl_cursor *c, const char *id) {
    for (size_t i = 0; i < c->n; i++) {
        id = read_place(id, &c->heard[i]);
        if (!id || *id != (i + 1 < c->n ? ',' : 0)) return false;
        id++;
    }
    return true;
}

static void put_id(const sl_cursor *c, sl_jbuf *out) {
    sl_jbuf_fmt(out, "id: ");
    for (size_t i = 0; i < c->n; i++) {
        uint64_t has = SL_MAX(c->said[i], c->heard[i]);
        if (i) sl_jbuf_put(out, ",", 1);
        if (has)
            sl_jbuf_fmt(out, "%" PRIu64, has - 1);
        else
            sl_jbuf_put(out, "-", 1);
    }
    sl_jbuf_put(out, "\n", 1);
}

void sl_cursor_put(sl_cursor *c, size_t choice, const sl_jbuf *events, sl_jbuf *out) {
    out->ok = out->ok && events->ok;
    for (size_t at = 0, n; at < events->len; at += n) {
        const char *event = events->data + at, *end = strstr(event, "\n\n");
        n = end ? (size_t)(end - event) + 2 : events->len - at;
        if (c->said[choice]++ < c->heard[choice]) continue;
        put_id(c, out);
        sl_jbuf_put(out, event, n);
    }
}

bool sl_cursor_is_beyond(const sl_cursor *c) {
    for (size_t i = 0; i < c->n; i++)
        if (c->heard[i] > c->said[i]) return true;
    return false;
}

/* A growable text buffer that writes JSON and server-sent events. A failed allocation turns `ok`
 * off for good and further writes do nothing, so callers check once at the end.
 * Zero-initialise with sl_jbuf_init. Thread: owner. */
#ifndef SL_SERVE_JBUF_H
#define SL_SERVE_JBUF_H

#include "base/span.h"
#include "base/status.h"
#include "format/json.h"

typedef struct sl_jbuf {
    char *data; /* NUL after len bytes, when not NULL */
    size_t len, cap;
    bool ok;
} sl_jbuf;

static inline sl_jbuf sl_jbuf_init(void) {
    return (sl_jbuf){.ok = true};
}
void sl_jbuf_free(sl_jbuf *b);  /* leaves an empty, usable buffer */
void sl_jbuf_clear(sl_jbuf *b); /* keeps the memory */

void sl_jbuf_put(sl_jbuf *b, const char *bytes, size_t n);
void sl_jbuf_fmt(sl_jbuf *b, const char *fmt, ...) SL_PRINTF(2, 3);

/* A JSON string with its quotes. Control characters are escaped; bytes that are not UTF-8 become
 * U+FFFD, so the result is always valid. */
void sl_jbuf_string(sl_jbuf *b, const char *bytes, size_t n);
void sl_jbuf_cstring(sl_jbuf *b, const char *s); /* NULL is written as null */
/* A value as it was read; an absent one writes nothing. */
void sl_jbuf_json(sl_jbuf *b, sl_json v);
/* [1,2,3] */
void sl_jbuf_ids(sl_jbuf *b, const uint32_t *ids, size_t n);

#endif

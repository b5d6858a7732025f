/* Byte spans, and cursors that read and write little-endian values without ever leaving them.
 * Thread: any; a cursor belongs to its user. */
#ifndef SL_BASE_SPAN_H
#define SL_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed bytes. */
typedef struct sl_span {
    const uint8_t *data;
    size_t len;
} sl_span;

static inline bool sl_span_is(sl_span s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* Reading cursor. Once a read fails, `ok` stays false and every further read yields 0. */
typedef struct sl_cur {
    const uint8_t *data;
    size_t len, pos;
    bool ok;
} sl_cur;

static inline sl_cur sl_cur_of(sl_span s) {
    return (sl_cur){.data = s.data, .len = s.len, .pos = 0, .ok = true};
}

/* Borrows the next n bytes, or returns NULL and clears ok. */
static inline const uint8_t *sl_cur_take(sl_cur *c, size_t n) {
    if (!c->ok || n > c->len - c->pos) {
        c->ok = false;
        return NULL;
    }
    const uint8_t *p = c->data + c->pos;
    c->pos += n;
    return p;
}

static inline uint64_t sl_cur_uint(sl_cur *c, size_t bytes) {
    const uint8_t *p = sl_cur_take(c, bytes);
    uint64_t v = 0;
    for (size_t i = 0; p && i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline uint8_t sl_cur_u8(sl_cur *c) {
    return (uint8_t)sl_cur_uint(c, 1);
}
static inline uint16_t sl_cur_u16(sl_cur *c) {
    return (uint16_t)sl_cur_uint(c, 2);
}
static inline uint32_t sl_cur_u32(sl_cur *c) {
    return (uint32_t)sl_cur_uint(c, 4);
}
static inline uint64_t sl_cur_u64(sl_cur *c) {
    return sl_cur_uint(c, 8);
}

static inline float sl_cur_f32(sl_cur *c) {
    uint32_t u = sl_cur_u32(c);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline size_t sl_cur_left(const sl_cur *c) {
    return c->ok ? c->len - c->pos : 0;
}

/* Writing cursor over caller's memory. `ok` turns false when it would overflow. */
typedef struct sl_wr {
    uint8_t *data;
    size_t cap, len;
    bool ok;
} sl_wr;

static inline sl_wr sl_wr_of(void *data, size_t cap) {
    return (sl_wr){.data = data, .cap = cap, .len = 0, .ok = true};
}

/* Reserves n bytes and returns where they are, or NULL. */
static inline uint8_t *sl_wr_take(sl_wr *w, size_t n) {
    if (!w->ok || n > w->cap - w->len) {
        w->ok = false;
        return NULL;
    }
    uint8_t *p = w->data + w->len;
    w->len += n;
    return p;
}

static inline void sl_wr_uint(sl_wr *w, uint64_t v, size_t bytes) {
    uint8_t *p = sl_wr_take(w, bytes);
    for (size_t i = 0; p && i < bytes; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static inline void sl_wr_u8(sl_wr *w, uint8_t v) {
    sl_wr_uint(w, v, 1);
}
static inline void sl_wr_u16(sl_wr *w, uint16_t v) {
    sl_wr_uint(w, v, 2);
}
static inline void sl_wr_u32(sl_wr *w, uint32_t v) {
    sl_wr_uint(w, v, 4);
}
static inline void sl_wr_u64(sl_wr *w, uint64_t v) {
    sl_wr_uint(w, v, 8);
}

static inline void sl_wr_f32(sl_wr *w, float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    sl_wr_u32(w, u);
}

static inline void sl_wr_bytes(sl_wr *w, const void *src, size_t n) {
    uint8_t *p = sl_wr_take(w, n);
    if (p && n) memcpy(p, src, n);
}

#endif

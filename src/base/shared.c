/* Bytes that several hold. */
#include "base/shared.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

struct sl_shared {
    atomic_uint holders;
    size_t n;
    uint8_t bytes[];
};

sl_shared *sl_shared_create(sl_span bytes) {
    sl_shared *s = sl_alloc(1, sizeof *s + bytes.len);
    if (!s) return NULL;
    atomic_init(&s->holders, 1);
    s->n = bytes.len;
    if (bytes.len) memcpy(s->bytes, bytes.data, bytes.len);
    return s;
}

sl_shared *sl_shared_hold(sl_shared *s) {
    if (s) atomic_fetch_add_explicit(&s->holders, 1, memory_order_relaxed);
    return s;
}

void sl_shared_let_go(sl_shared *s) {
    /* acquire, release: with the other one's, so that nobody reads what is freed */
    if (s && atomic_fetch_sub_explicit(&s->holders, 1, memory_order_acq_rel) == 1) sl_free(s);
}

sl_span sl_shared_bytes(const sl_shared *s) {
    return s ? (sl_span){s->bytes, s->n} : (sl_span){0};
}

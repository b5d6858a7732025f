/* Bytes that several hold: constant, counted, freed with the last who lets go. Thread: any. */
#ifndef SL_BASE_SHARED_H
#define SL_BASE_SHARED_H

#include "base/span.h"

typedef struct sl_shared sl_shared;

/* A copy, held once. NULL: no memory. */
sl_shared *sl_shared_create(sl_span bytes);
/* Held once more; returns it. NULL-safe. */
sl_shared *sl_shared_hold(sl_shared *s);
void sl_shared_let_go(sl_shared *s); /* NULL-safe */
/* Borrowed from whoever holds it; empty of NULL. */
sl_span sl_shared_bytes(const sl_shared *s);

#endif

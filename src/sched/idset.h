/* Sets of worker ids: who is in a round, who computes experts, who is dead. As large as its members
 * are many, whatever the largest id is. Thread: owner of the set. */
#ifndef SL_SCHED_IDSET_H
#define SL_SCHED_IDSET_H

#include "base/status.h"
#include "spec/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ids[0..n) ascending, no duplicates. Zero-initialise; free with sl_idset_free. A set decoded from
 * a message may point at borrowed memory with cap 0, as long as nothing is inserted into it. */
typedef struct sl_idset {
    uint32_t *ids;
    size_t n;
    size_t cap;
} sl_idset;

/* SL_ERR_LIMIT above SL_MAX_WORKERS, SL_ERR_NOMEM. */
sl_status sl_idset_reserve(sl_idset *s, size_t cap, sl_err *err);
/* Adding an id that is in the set already is no error. */
sl_status sl_idset_add(sl_idset *s, uint32_t id, sl_err *err);
/* True if the id was in the set. */
bool sl_idset_remove(sl_idset *s, uint32_t id);
bool sl_idset_has(const sl_idset *s, uint32_t id);
/* *index: of the id, or where it would go. */
bool sl_idset_find(const sl_idset *s, uint32_t id, size_t *index);
bool sl_idset_equal(const sl_idset *a, const sl_idset *b);
sl_status sl_idset_copy(const sl_idset *from, sl_idset *to, sl_err *err);
/* A set built from untrusted ids: SL_ERR_PROTOCOL unless strictly ascending, SL_ERR_LIMIT if n is
 * above SL_MAX_WORKERS. Borrowed: out->ids points at ids. */
sl_status sl_idset_check(uint32_t *ids, size_t n, sl_idset *out, sl_err *err);
/* Forgets the ids, keeps the memory. */
void sl_idset_clear(sl_idset *s);
void sl_idset_free(sl_idset *s);

#endif

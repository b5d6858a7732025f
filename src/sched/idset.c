/* Worker ids in ascending order, in memory of their own or of a message. */
#include "sched/idset.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

/* Index of the first id that is not below `id`. */
static size_t lower_bound(const sl_idset *s, uint32_t id) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->ids[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

sl_status sl_idset_reserve(sl_idset *s, size_t cap, sl_err *err) {
    SL_ASSERT(s->cap > 0 || s->n == 0); /* not borrowed */
    if (cap <= s->cap) return SL_OK;
    if (cap > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_LIMIT, "a set of %zu workers, at most %u", cap, SL_MAX_WORKERS);
    uint32_t *ids = sl_grow(s->ids, s->cap, cap, sizeof *ids);
    if (!ids) return sl_fail(err, SL_ERR_NOMEM, "no memory for a set of %zu workers", cap);
    s->ids = ids;
    s->cap = cap;
    return SL_OK;
}

sl_status sl_idset_add(sl_idset *s, uint32_t id, sl_err *err) {
    size_t at = lower_bound(s, id);
    if (at < s->n && s->ids[at] == id) return SL_OK;
    if (s->n == s->cap) {
        size_t cap = SL_MIN(SL_MAX(s->cap * 2, 8), SL_MAX_WORKERS);
        sl_status st = sl_idset_reserve(s, SL_MAX(cap, s->n + 1), err);
        if (st != SL_OK) return st;
    }
    memmove(s->ids + at + 1, s->ids + at, (s->n - at) * sizeof *s->ids);
    s->ids[at] = id;
    s->n++;
    return SL_OK;
}

bool sl_idset_remove(sl_idset *s, uint32_t id) {
    SL_ASSERT(s->cap > 0 || s->n == 0);
    size_t at = lower_bound(s, id);
    if (at == s->n || s->ids[at] != id) return false;
    s->n--;
    memmove(s->ids + at, s->ids + at + 1, (s->n - at) * sizeof *s->ids);
    return true;
}

bool sl_idset_find(const sl_idset *s, uint32_t id, size_t *index) {
    *index = lower_bound(s, id);
    return *index < s->n && s->ids[*index] == id;
}

bool sl_idset_has(const sl_idset *s, uint32_t id) {
    size_t at;
    return sl_idset_find(s, id, &at);
}

bool sl_idset_equal(const sl_idset *a, const sl_idset *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

sl_status sl_idset_copy(const sl_idset *from, sl_idset *to, sl_err *err) {
    sl_status st = sl_idset_reserve(to, from->n, err);
    if (st != SL_OK) return st;
    if (from->n > 0) memcpy(to->ids, from->ids, from->n * sizeof *to->ids);
    to->n = from->n;
    return SL_OK;
}

sl_status sl_idset_check(uint32_t *ids, size_t n, sl_idset *out, sl_err *err) {
    if (n > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_LIMIT, "a set of %zu workers, at most %u", n, SL_MAX_WORKERS);
    for (size_t i = 1; i < n; i++)
        if (ids[i - 1] >= ids[i])
            return sl_fail(err, SL_ERR_PROTOCOL,
                           "worker set is not ascending: %" PRIu32 " before %" PRIu32, ids[i - 1],
                           ids[i]);
    *out = (sl_idset){.ids = ids, .n = n};
    return SL_OK;
}

void sl_idset_clear(sl_idset *s) {
    s->n = 0;
}

void sl_idset_free(sl_idset *s) {
    if (s->cap > 0) sl_free(s->ids);
    *s = (sl_idset){0};
}

/* The pages with which a request can begin, as others computed them: its tokens as keys of full
 * pages (sched/pages.h), found one after the other from the first on. Part of the coordinator's
 * books (sched/admit.h).
 *
 *   1. Of what a pool has, a request begins with the longest row of pages that have the keys of its
 *      first tokens. It has them beside whoever else has them.
 *   2. A page has its key from when all its rows are sure on, and its last row never comes from
 *      others: who shares a page writes nothing to it.
 *   3. Keys are found once each, from the one before, and only as far as anybody asks.
 *
 * Pure. Fields are for reading. Thread: owner. */
#ifndef SL_SCHED_PREFIX_H
#define SL_SCHED_PREFIX_H

#include "sched/pages.h"

/* What is known of a request's tokens. Zeroed: nothing, and then its pages have no keys. */
typedef struct sl_prefix_text {
    const uint32_t *tokens; /* those that are known, at any time; borrowed until it ends */
    sl_page_key root;       /* of keys (sl_pages_root) */
    bool shares;            /* its pages have keys: others find them, also when it has ended */
    uint32_t spare;         /* its first rows that need not be computed for their own sake */
} sl_prefix_text;

typedef struct sl_prefix {
    sl_prefix_text is;
    sl_page_key *key;     /* [cap] of its full pages, the first... */
    uint32_t n_keys, cap; /* ...so many, as they were asked for */
    uint32_t n_told;      /* of its pages: their pool has their keys */
} sl_prefix;

/* What was found last in one pool. */
typedef struct sl_prefix_seen {
    uint64_t who, turns; /* by this request, when the pool's n_turns was this */
    uint32_t n, held;
} sl_prefix_seen;

/* Another request of at most n pages has this text: what an earlier one had here is used again.
 * False: no memory. */
bool sl_prefix_begin(sl_prefix *x, const sl_prefix_text *is, uint32_t n) SL_MUST_CHECK;
void sl_prefix_free(sl_prefix *x); /* zeroed is fine */

/* Of its page `index`, all of whose tokens are known. */
sl_page_key sl_prefix_key(sl_prefix *x, uint32_t index);
/* Its first pages that the pool has, of those before row `rows`, are seen->n, and of these somebody
 * has seen->held. `who` is its number, which no other one ever has. *seen: as it was left when
 * anybody looked for pages of this pool last; zeroed at first. Who looks again while he waits looks
 * only for what has come since, so that a long text costs once. */
void sl_prefix_find(sl_prefix *x, const sl_pages *pool, uint32_t rows, uint64_t who,
                    sl_prefix_seen *seen);
/* It has the first n, which were just found, from now on, written to pages. */
void sl_prefix_take(sl_prefix *x, sl_pages *pool, uint32_t n, uint32_t *pages);
/* Its first n pages are these, all of whose rows are sure: others find them. */
void sl_prefix_tell(sl_prefix *x, sl_pages *pool, const uint32_t *pages, uint32_t n);

#endif

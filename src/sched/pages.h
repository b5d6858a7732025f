/* KV pages of one attention worker, as numbers: which are free, how many hold each, and what is in
 * them. The coordinator's books; what lies in a page is its worker's business.
 *
 * A page has holders: whoever took it, and whoever shares it. A held page may have a key that
 * stands for its content (sl_pages_chain): who begins with the same tokens can share it, and as a
 * page is full before it has a key, nobody who shares it writes to it. A page with a key that the
 * last one has given back is cached: it is there for whoever asks for its key, until somebody wants
 * a page and none is free. Then those go first that were given back longest ago. All others that
 * nobody holds are free.
 *
 * Never-used pages are taken lowest first, but before them those given back last, so that a lightly
 * used pool stays small. Memory grows with the highest page that was ever held, unless it is asked
 * for at creation. Pure. Thread: owner. */
#ifndef SL_SCHED_PAGES_H
#define SL_SCHED_PAGES_H

#include "base/status.h"
#include "spec/page_key.h"

#include <stddef.h>

#define SL_PAGES_NONE UINT32_MAX

typedef struct sl_page {
    sl_page_key key;
    uint32_t holders;      /* 0: free, or, with a key, cached */
    uint32_t next;         /* free: the one given back before it; with a key: of the same bucket */
    uint32_t older, newer; /* cached: in the order in which they were given back */
} sl_page;

typedef struct sl_pages {
    uint32_t n_total, n_free, n_cached; /* the others are held */
    uint32_t n_keys;                    /* pages with one, held or cached */
    sl_page *page;                      /* [cap] */
    uint32_t *bucket;                   /* [cap] first page by key */
    uint32_t cap;
    uint32_t n_touched;      /* pages from here on were never held */
    uint32_t back;           /* given back last; SL_PAGES_NONE */
    uint32_t oldest, newest; /* cached ones; SL_PAGES_NONE */
    uint64_t n_evicted;      /* so far: cached ones whose page somebody wanted */
    uint64_t n_turns;        /* so far: that a key went, or a page became cached, or held again */
} sl_pages;

/* n pages, all free, with memory for the books of `room` of them. SL_ERR_NOMEM. */
sl_status sl_pages_create(uint32_t n, uint32_t room, sl_pages *out, sl_err *err) SL_MUST_CHECK;
void sl_pages_free(sl_pages *p); /* zeroed is fine */

/* Pages that whoever comes can have. */
static inline uint32_t sl_pages_spare(const sl_pages *p) {
    return p->n_free + p->n_cached;
}

/* Takes n pages, or none: free ones, and for want of them cached ones. False: there are fewer; or,
 * when there are not, their books found no memory. */
bool sl_pages_take(sl_pages *p, uint32_t n, uint32_t *ids) SL_MUST_CHECK;
/* One more holder of a page that is held, or cached. */
void sl_pages_share(sl_pages *p, uint32_t id);
/* One holder less of each of n pages; those without a key are taken again in the order of ids, of
 * the others the last one goes first. */
void sl_pages_give(sl_pages *p, const uint32_t *ids, uint32_t n);

/* ---- what is in them ---- */

/* The key that those of a request's pages begin with: of these n bytes, all that rows depend on
 * besides its tokens. Requests that begin with another one share nothing. */
sl_page_key sl_pages_root(const void *about, size_t n);
/* The key of the page that ends with these SL_KV_PAGE_TOKENS tokens, after one of key `before` (the
 * root: it is the first). Never none. BLAKE2b, so that nobody can make two texts with one key. */
sl_page_key sl_pages_chain(sl_page_key before, const uint32_t *tokens);
/* The keys of one request's full pages, found as they are asked for; with a root and zeroed: of no
 * page yet. Its tokens only ever grow. */
typedef struct sl_pages_keys {
    sl_page_key root;
    sl_page_key key; /* of the last of the first... */
    uint32_t n;      /* ...n pages */
} sl_pages_keys;
/* Of page `index`, all of whose tokens are there. Each is found from the one before. */
sl_page_key sl_pages_key_of(sl_pages_keys *k, const uint32_t *tokens, uint32_t index);

/* What a held page without a key contains from now on; key: not none. Nothing, if another page has
 * it already. */
void sl_pages_set_key(sl_pages *p, uint32_t id, sl_page_key key);
/* The page with this key; SL_PAGES_NONE. */
uint32_t sl_pages_find(const sl_pages *p, sl_page_key key);
/* Nobody knows what is in pages any more: they have no keys, cached ones are free. */
void sl_pages_forget(sl_pages *p);
/* Of a pool that nobody has pages of, these n are cached from now on, as if given back in this
 * order, and no others: what was in them before it was made. Of pages with one key the first
 * counts. False: somebody has pages, or some are not of the pool, or one is there twice; or there
 * is no memory. Nothing is cached then. */
bool sl_pages_adopt(sl_pages *p, const uint32_t *ids, const sl_page_key *keys,
                    uint32_t n) SL_MUST_CHECK;

/* Those that are cached, the newest `most` of them, in the order in which they were given back, to
 * ids; how many these are. What would be adopted so is cached in the same order. */
uint32_t sl_pages_newest(const sl_pages *p, uint32_t most, uint32_t *ids);

#endif

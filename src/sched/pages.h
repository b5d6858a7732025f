/* KV pages of one attention worker, as numbers: which are free, how many hold each, and what is in
 * them. The coordinator's books; what lies in a page is its worker's business.
 *
 * A page has holders: whoever took it, and whoever shares it. It is free when the last one has
 * given it back. A held page may have a key that stands for its content, the hash of all tokens of
 * its request up to the page's end (sl_pages_chain): requests that begin with the same tokens can
 * share it. A free page has none.
 *
 * Never-used pages are taken lowest first, but before them those given back last, so that a lightly
 * used pool stays small. Memory grows with the highest page that was ever held, unless it is asked
 * for at creation. Pure. Thread: owner. */
#ifndef SL_SCHED_PAGES_H
#define SL_SCHED_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SL_PAGES_NONE UINT32_MAX

typedef struct sl_page {
    uint64_t key;     /* 0: none */
    uint32_t holders; /* 0: free */
    uint32_t next;    /* free: the one given back before it; held, with a key: of the same bucket */
} sl_page;

typedef struct sl_pages {
    uint32_t n_total, n_free;
    sl_page *page;    /* [cap] */
    uint32_t *bucket; /* [cap] first page by key % cap */
    uint32_t cap;
    uint32_t n_touched; /* pages from here on were never held */
    uint32_t back;      /* given back last; SL_PAGES_NONE */
} sl_pages;

/* n pages, all free, with memory for the books of `room` of them. SL_ERR_NOMEM. */
sl_status sl_pages_create(uint32_t n, uint32_t room, sl_pages *out, sl_err *err) SL_MUST_CHECK;
void sl_pages_free(sl_pages *p); /* zeroed is fine */

/* Takes n pages, or none. False: fewer are free; or, when they are not, their books found no
 * memory. */
bool sl_pages_take(sl_pages *p, uint32_t n, uint32_t *ids) SL_MUST_CHECK;
/* Takes these n pages of a pool of which all are free: what was in them before it was made. False:
 * some are not free or not of the pool, or one is there twice; or there is no memory. None is taken
 * then. */
bool sl_pages_claim(sl_pages *p, const uint32_t *ids, uint32_t n) SL_MUST_CHECK;
/* One more holder of a held page. */
void sl_pages_share(sl_pages *p, uint32_t id);
/* One holder less of each of n pages; they are taken again in the order of ids. */
void sl_pages_give(sl_pages *p, const uint32_t *ids, uint32_t n);

/* The key of the page that ends with these SL_KV_PAGE_TOKENS tokens, after one of key `before`
 * (0: it is the first). Never 0. Others may have the same: whoever shares compares tokens. */
uint64_t sl_pages_chain(uint64_t before, const uint32_t *tokens);
/* The keys of one request's full pages, found as they are asked for; zeroed: of no page yet. Its
 * tokens only ever grow. */
typedef struct sl_pages_keys {
    uint64_t key; /* of the last of the first... */
    uint32_t n;   /* ...n pages */
} sl_pages_keys;
/* Of page `index`, all of whose tokens are there. Each is found from the one before. */
uint64_t sl_pages_key_of(sl_pages_keys *k, const uint32_t *tokens, uint32_t index);
/* What a held page without a key contains from now on; key: not 0. */
void sl_pages_set_key(sl_pages *p, uint32_t id, uint64_t key);
/* A held page with this key; SL_PAGES_NONE. */
uint32_t sl_pages_find(const sl_pages *p, uint64_t key);

#endif

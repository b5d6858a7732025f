/* KV pages of requests whose coordinator is gone: what one attention worker has kept of them, as
 * long as nobody else wants the pages.
 *
 *   1. Of a request there are the first pages, full ones all of whose rows were computed, and the
 *      tokens that they were computed from. No key stands for these: whoever goes on with the pages
 *      has the same tokens.
 *   2. In the coordinator's books they are taken out of the worker's pool, and count as free: they
 *      go first, before copies (sched/copies.h).
 *   3. A request that comes again takes over the pages that it has tokens for; what the worker has
 *      beyond them, it drew and nobody heard of it.
 *
 * The worker keeps the same list before, with no pool. Pure. Thread: owner. */
#ifndef SL_SCHED_ESTATE_H
#define SL_SCHED_ESTATE_H

#include "sched/pages.h"

#define SL_ESTATE_NONE UINT32_MAX

/* Of one request. */
typedef struct sl_estate_text {
    uint32_t n_pages; /* > 0 */
    uint32_t *pages;  /* [n_pages] in the order of positions */
    uint32_t *tokens; /* [n_pages][SL_KV_PAGE_TOKENS] */
    void *arrays;     /* what both are in */
} sl_estate_text;

/* Zeroed: empty. */
typedef struct sl_estate {
    sl_estate_text *text; /* [n] */
    uint32_t n, cap;
    uint32_t n_pages; /* of all */
} sl_estate;

/* One more text of n_pages > 0 pages; tokens and pages are copied. False: no memory. */
bool sl_estate_add(sl_estate *e, const uint32_t *tokens, const uint32_t *pages,
                   uint32_t n_pages) SL_MUST_CHECK;
/* Takes all its pages out of the pool, of which all are free. False: see sl_pages_claim. */
bool sl_estate_claim(const sl_estate *e, sl_pages *pool) SL_MUST_CHECK;
/* The text of a request of these n tokens, as far as both go, that spares it most pages, *n_pages:
 * of equal ones the shortest. SL_ESTATE_NONE. */
uint32_t sl_estate_find(const sl_estate *e, const uint32_t *tokens, uint32_t n, uint32_t *n_pages);
/* A text goes: its first n pages to `pages`, where the caller has them from now on, the others back
 * to the pool. */
void sl_estate_take(sl_estate *e, uint32_t text, uint32_t n, uint32_t *pages, sl_pages *pool);
/* A text goes, and its place is the last one's; pool NULL: it was out of none. */
void sl_estate_drop(sl_estate *e, uint32_t text, sl_pages *pool);
/* Pages go, the last of the last text first, until n of the pool are free or none is left. */
void sl_estate_yield(sl_estate *e, uint32_t n, sl_pages *pool);
/* All goes; pool NULL: it was out of none. */
void sl_estate_clear(sl_estate *e, sl_pages *pool);

#endif

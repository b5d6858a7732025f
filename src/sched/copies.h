/* Copies of KV pages at other workers, part of the coordinator's books (sched/admit.h): which there
 * are, which are on their way, and which go when memory is short.
 *
 *   1. An attention worker may have a buddy, which keeps copies of pages of its requests. A page is
 *      copied when all its rows are sure, and a request's pages in their order: what is there are
 *      always its first pages.
 *   2. A copy lies in a page of the buddy's pool. It is held by nobody else, and goes as soon as
 *      somebody wants a page: of the request that was copied last the last ones first.
 *   3. Each transfer has a number that never comes again. One whose copy is not wanted any more is
 *      forgotten: its page may be another's then, and the worker that fetches knows that from being
 *      told to whom the page goes. What it says of a forgotten transfer counts only as an answer.
 *   4. Copies outlast the worker that they were made of: their request goes on where they are, and
 *      takes them over as its pages. They end with it, or with the worker that has them.
 *
 * Pure. A transfer costs O(1), making room what looking through the requests costs. Fields are for
 * reading. Thread: owner. */
#ifndef SL_SCHED_COPIES_H
#define SL_SCHED_COPIES_H

#include "sched/pages.h"
#include "spec/limits.h"

#define SL_KV_COPIES_NONE UINT32_MAX

/* Of one request. */
typedef struct sl_kv_copies_of {
    uint32_t at;      /* the worker that has them; SL_KV_COPIES_NONE: there are none */
    uint32_t n_here;  /* of its pages are there, the first ones, and... */
    uint32_t n_asked; /* ...so many with those on their way */
    uint32_t tried;   /* one could not be had when so many were sure: there have to be more */
    uint32_t cap, *page;
    uint64_t order; /* of the first one */
} sl_kv_copies_of;

typedef struct sl_kv_copies_flight {
    uint64_t transfer;
    uint32_t request, index;
} sl_kv_copies_flight;

typedef struct sl_kv_copies_worker {
    uint32_t buddy;    /* SL_KV_COPIES_NONE */
    uint32_t n_pages;  /* of its pool: are copies, there or on their way */
    uint32_t n_owed;   /* transfers that it was told of and has not answered, forgotten ones too */
    uint32_t n_flight; /* those that were not forgotten */
    sl_kv_copies_flight flight[SL_MAX_FETCHES];
    bool hands; /* its requests go on elsewhere, each where its copies are: it needs no buddy */
    bool due;   /* of its own requests' pages some may be to be copied */
} sl_kv_copies_worker;

typedef struct sl_kv_copies {
    sl_kv_copies_worker *worker; /* [n_workers] */
    sl_kv_copies_of *of;         /* [cap] by index of request */
    uint32_t n_workers, cap;
    uint32_t n_due;
    uint64_t transfers, orders;
    uint64_t n_made, n_failed; /* so far: copies that came, that could not be had */
} sl_kv_copies;

/* No worker has a buddy. SL_ERR_NOMEM. */
sl_status sl_kv_copies_create(uint32_t n_workers, sl_kv_copies *out, sl_err *err) SL_MUST_CHECK;
void sl_kv_copies_free(sl_kv_copies *c); /* zeroed is fine */
/* Room for requests below cap. False: no memory. */
bool sl_kv_copies_reserve(sl_kv_copies *c, uint32_t cap) SL_MUST_CHECK;

void sl_kv_copies_pair(sl_kv_copies *c, uint32_t worker, uint32_t buddy);
/* Pages of requests at this worker may be to be copied; or are not, as far as is known. */
void sl_kv_copies_set_due(sl_kv_copies *c, uint32_t worker, bool due);
/* The same for all whose buddy it is, or may be. */
void sl_kv_copies_wake(sl_kv_copies *c, uint32_t buddy);

/* Copies may be made into this pool. */
bool sl_kv_copies_has_room(const sl_pages *pool);
/* Worker `to`, whose pool that is, may be told to fetch one more. */
bool sl_kv_copies_may_ask(const sl_kv_copies *c, uint32_t to, const sl_pages *pool);
/* Of the request, of which the first n_sure pages are sure, a next one is to be copied. */
static inline bool sl_kv_copies_wants(const sl_kv_copies *c, uint32_t request, uint32_t n_sure) {
    const sl_kv_copies_of *of = &c->of[request];
    return of->n_asked < n_sure && of->tried < n_sure;
}
/* Copies of the request's first pages that are at `worker`. */
static inline uint32_t sl_kv_copies_at(const sl_kv_copies *c, uint32_t request, uint32_t worker) {
    const sl_kv_copies_of *of = &c->of[request];
    return of->at == worker ? of->n_here : 0;
}
/* The next page of the request, whose copies are at `to` if there are any, is on its way there. The
 * copy's index is n_asked - 1, its number c->transfers. False: no memory. */
bool sl_kv_copies_ask(sl_kv_copies *c, uint32_t request, uint32_t to, sl_pages *pool) SL_MUST_CHECK;
/* Worker `at`, whose pool that is, says what became of a transfer: it is there, or it cannot be
 * had, and those behind it are not waited for. The request; SL_KV_COPIES_NONE: it was forgotten, or
 * never was. */
uint32_t sl_kv_copies_answer(sl_kv_copies *c, uint32_t at, uint64_t transfer, bool here,
                             sl_pages *pool);
/* None of the request is asked for again before more than n_sure of its pages are sure. */
void sl_kv_copies_defer(sl_kv_copies *c, uint32_t request, uint32_t n_sure);
/* Of the request's copies only the first n stay. */
void sl_kv_copies_cut(sl_kv_copies *c, uint32_t request, uint32_t n, sl_pages *pool);
/* What is on its way is forgotten: its source is gone. */
void sl_kv_copies_settle(sl_kv_copies *c, uint32_t request, sl_pages *pool);
/* Its first n pages are copies from now on no longer, but its own, written to pages; returns n. */
uint32_t sl_kv_copies_take(sl_kv_copies *c, uint32_t request, uint32_t *pages);
/* Copies at the worker give way until n pages of its pool are free or cached, or none are left. */
void sl_kv_copies_yield(sl_kv_copies *c, uint32_t worker, uint32_t n, sl_pages *pool);
/* The worker is gone, and all that it had. */
void sl_kv_copies_lose(sl_kv_copies *c, uint32_t worker, sl_pages *pool);

#endif

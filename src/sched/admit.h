/* Who runs where, and who gets KV pages: the coordinator's decisions over indices of requests and
 * of attention workers.
 *
 *   1. Running requests grow page by page, those of a worker in the order in which they started, so
 *      that each has room for its known tokens and for SL_MAX_AHEAD more: as far as its worker may
 *      run before the coordinator has heard of them.
 *   2. When a pool is empty and a request cannot go on without a page, the youngest of that worker
 *      gives way: its pages come back, it waits again in its old place, and is computed again from
 *      its tokens. The oldest never gives way, and a pool holds one request of full length at
 *      least, so somebody always makes progress.
 *   3. Requests start in the order in which they came, nobody overtakes the oldest; each at the
 *      open worker with most free pages, or where its pages are (7), and stays there until it ends
 *      or gives way.
 *   4. Of a worker that is gone the pages may be there still. Requests that stay keep theirs, and
 *      start there again, before others do, when somebody else is in its place; unless there are
 *      suspects then. What is sure is what the worker was known to have done: rows that came before
 *      a token was drawn.
 *   5. Requests that never ran are turned away: the newest while too many wait, the oldest when it
 *      has waited too long. The work of those that ran would be lost.
 *   6. Full pages are copied to a buddy, if there is one (sched/copies.h), when nothing else is to
 *      be done. Copies count as free pages. A request that waits and has some goes on where they
 *      are, if it may start there.
 *   7. Full pages of requests that share theirs have keys (sched/pages.h) from when all their rows
 *      are sure, and stay in the cache of their pool when nobody holds them. Cached pages count as
 *      free, and go before copies. A request that starts begins with those pages that have the keys
 *      of its first tokens, the longest row of them there is at its worker; it computes one row at
 *      least, and of what it shares it writes nothing, as these are full pages. It starts where it
 *      finds most, but each request that runs there counts as one page less: what it spares are
 *      rows of once, and its neighbours are rows of every step. Of copies (6) and pages that are
 *      found where it starts it takes those of which there are more. What workers kept of requests
 *      of a coordinator that is gone is cached, too.
 *   8. Workers may be for prompts. A request with so many rows to compute that are nowhere yet
 *      starts at one of those, if any is open, and parks there when it has drawn a token. Its full
 *      pages are copied to another worker as they are sure: to the one that runs and expects least.
 *      When no more can be copied it gives way, and goes on where the copies are, where a place is
 *      kept for it, before others start there. Who cannot start is overtaken by those who go to
 * workers of the other kind.
 *   9. Suspects (sched/suspect.h) start alone, one at a time, the newest first, and before others.
 *      One that has to be alone everywhere makes all others give way. Any other one takes a worker
 *      that is idle; if there is none, the one that runs least takes nobody else, and when no
 *      worker is still to come its requests give way. The other workers go on.
 *
 * Events in; decisions out, one at a time and in order, from sl_admit_next. Engine and simulator
 * call it with what happened; equal events give equal decisions. No I/O, clock or threads. A step
 * costs O(log workers), and where a pool is empty what looking through the requests of that worker
 * costs. While anybody waits it costs O(workers), and once for each start, and for what changes in
 * a pool, the pages that are found there. Fields are for reading; a pointer to a request is good
 * until sl_admit_submit. Thread: owner. */
#ifndef SL_SCHED_ADMIT_H
#define SL_SCHED_ADMIT_H

#include "sched/copies.h"
#include "sched/prefix.h"
#include "sched/watch.h"

#define SL_ADMIT_NONE UINT32_MAX

typedef enum sl_admit_state {
    SL_ADMIT_UNUSED,
    SL_ADMIT_WAITING,    /* it has no worker */
    SL_ADMIT_STAYING,    /* its worker is gone, its pages are not: it waits for who comes there */
    SL_ADMIT_RUNNING,    /* its worker has it */
    SL_ADMIT_CANCELLING, /* its worker is told to end it */
    SL_ADMIT_PREEMPTING, /* its worker is told to give its pages back; it waits again after */
} sl_admit_state;

/* A request is in the list of those that wait or in that of its worker; and perhaps in the list of
 * those there that lack pages. */
enum { SL_ADMIT_PLACE, SL_ADMIT_LACKING, SL_ADMIT_LISTS };

typedef struct sl_admit_link {
    uint32_t prev, next;
} sl_admit_link;

typedef struct sl_admit_request {
    sl_admit_state state;
    uint32_t prompt, most; /* tokens: given with it, drawn at most */
    uint32_t drawn;        /* tokens that the coordinator knows */
    uint32_t starts;
    uint32_t worker; /* unless it waits */
    uint32_t sure;   /* of its tokens: rows that are known to be in its pages */
    uint32_t n_pages, cap_pages;
    uint32_t *pages; /* of its worker, in the order of positions; room for all it may ever need */
    sl_prefix text;
    uint32_t found;   /* rows that were there when it started last */
    uint64_t age;     /* order of coming; no two are equal, ever */
    uint64_t began;   /* order of starts */
    uint64_t came_us; /* as given with it */
    bool lacks;       /* it is in its worker's list `lacking` */
    bool parks;       /* it runs at a worker for prompts, until its next token is drawn */
    bool parked;      /* that one was */
    uint32_t
        kept_at;     /* for it, which gives way or waits, a place is kept there; or SL_ADMIT_NONE */
    bool suspect;    /* it runs alone, ... */
    bool everywhere; /* ...at all workers, not only at its own */
    sl_admit_link link[SL_ADMIT_LISTS];
} sl_admit_request;

typedef struct sl_admit_list {
    uint32_t first, last, n;
    uint8_t which; /* of a request's links */
} sl_admit_list;

/* Empty, by those links of requests. */
sl_admit_list sl_admit_list_of(uint8_t which);
/* Request `request` of the table `of` goes before another one, or with SL_ADMIT_NONE to the end. */
void sl_admit_insert(sl_admit_request *of, sl_admit_list *l, uint32_t request, uint32_t before);
void sl_admit_take_out(sl_admit_request *of, sl_admit_list *l, uint32_t request);

typedef struct sl_admit_worker {
    sl_pages pages;
    uint32_t n_counted;    /* of its free pages: are in sl_admit.n_free_pages */
    uint32_t n_cached;     /* the same, of sl_admit.n_cached_pages */
    uint32_t n_unused;     /* the same, of sl_admit.n_unused_pages */
    bool open;             /* requests may start there */
    bool resumes;          /* whoever has the pages goes on there: they are shared */
    bool prompts;          /* it is for prompts */
    uint32_t n_kept;       /* places for requests that were handed over, and are on their way */
    sl_prefix_seen seen;   /* by who looked last for pages there */
    uint32_t n_leaving;    /* of `running`: their pages are on the way back */
    sl_admit_list running; /* in the order of their starts */
    sl_admit_list lacking; /* of these: they want more pages than they have */
    sl_admit_list staying; /* while it is not open; in the order of their starts */
    bool due;              /* it is in the list of those that are to be looked at */
    uint32_t next_due;
} sl_admit_worker;

typedef struct sl_admit_shape {
    uint32_t n_workers;        /* indices 0 .. n_workers - 1 */
    uint32_t max_running;      /* requests of a worker */
    uint32_t max_queue;        /* requests that wait and never ran */
    uint64_t queue_timeout_us; /* 0: no limit */
    uint32_t prompt_rows;      /* that are to be computed make it a request for prompts' workers */
    const sl_watch *watch;     /* ADMIT; NULL: nobody */
} sl_admit_shape;

typedef struct sl_admit {
    sl_admit_shape shape;
    sl_admit_request *request; /* [cap] */
    uint32_t cap, free;        /* free: first unused one */
    sl_admit_worker *worker;
    uint32_t *most; /* tree over workers: free pages where a request may start, the most below it */
    uint32_t leaves;
    sl_admit_list waiting; /* by age: those that ran stand before those that never did */
    uint32_t n_again;      /* of these: they have run */
    sl_admit_list held;    /* suspects that wait, by age */
    uint32_t n_suspects;   /* also those that run */
    uint32_t alone;        /* the suspect that runs as it should; or SL_ADMIT_NONE, and then... */
    uint32_t reserved;     /* ...a worker may be kept for one; else SL_ADMIT_NONE */
    uint32_t n_pools;      /* workers that have pages */
    uint32_t n_running, n_staying, n_open;
    uint32_t n_prompts; /* workers for prompts, open or not */
    uint32_t n_kept;    /* places for requests that were handed over */
    uint64_t n_handed;  /* so far: requests that went on elsewhere when their prompt was there */
    uint64_t n_pages, n_free_pages;  /* of all workers */
    uint64_t n_cached_pages;         /* the same: what is in them is known, and nobody has them */
    uint64_t n_unused_pages;         /* the same: copies */
    uint64_t rows_asked, rows_found; /* so far: of those that share as they started: known, found */
    sl_kv_copies copies;             /* of pages of requests that run, or ran */
    uint32_t first_due, last_due;
    uint64_t ages, starts;
    bool failed; /* books found no memory: decisions are no longer right */
} sl_admit;

typedef enum sl_admit_kind {
    SL_ADMIT_PAGE,    /* `page` is the next one of the request: tell its worker */
    SL_ADMIT_PREEMPT, /* tell its worker to end it; call sl_admit_gave_way when that has */
    SL_ADMIT_HAND,    /* the same, as its prompt is there: it goes on where its copies are */
    SL_ADMIT_RESUME,  /* at `worker` again, with the pages that it had and what is sure of them */
    SL_ADMIT_START,   /* at `worker`, with the pages that it has */
    SL_ADMIT_FULL,    /* too many wait: end it, with sl_admit_end */
    SL_ADMIT_LATE,    /* it waited too long: the same */
    SL_ADMIT_COPY,    /* `worker` is to fetch page `index` of the request from `from` into `page` */
} sl_admit_kind;

typedef struct sl_admit_decision {
    sl_admit_kind kind;
    uint32_t request;
    uint32_t worker; /* PAGE, PREEMPT, HAND, RESUME, START, COPY */
    uint32_t page;   /* PAGE, COPY */
    uint32_t index, from;
    uint64_t transfer; /* COPY: its number */
} sl_admit_decision;

/* No worker has pages or is open. SL_ERR_NOMEM. */
sl_status sl_admit_create(const sl_admit_shape *shape, sl_admit *out, sl_err *err) SL_MUST_CHECK;
void sl_admit_free(sl_admit *a); /* zeroed is fine */

/* The worker has n pages; `room`: see sl_pages_create. Once for each. */
sl_status sl_admit_add_pages(sl_admit *a, uint32_t worker, uint32_t n, uint32_t room,
                             sl_err *err) SL_MUST_CHECK;
/* It is for prompts. Before requests come. */
void sl_admit_set_prompts(sl_admit *a, uint32_t worker);
/* Requests may start there, first those that stayed. */
void sl_admit_open(sl_admit *a, uint32_t worker);
/* None starts there any more. Those that run stay in the books until they end. Again is fine. */
void sl_admit_close(sl_admit *a, uint32_t worker);

/* A request of `prompt` tokens (> 0) that draws at most `most` (> 0) waits from now on. A pool must
 * have pages for all its positions. SL_ERR_NOMEM. */
sl_status sl_admit_submit(sl_admit *a, uint32_t prompt, uint32_t most, uint64_t now_us,
                          uint32_t *request, sl_err *err) SL_MUST_CHECK;
/* Right after that: it ran elsewhere before these books were opened, and drew `drawn` (< most)
 * tokens there: it is not turned away. Not behind one that never ran. */
void sl_admit_ran_before(sl_admit *a, uint32_t request, uint32_t drawn);
/* One more of its tokens is known; of those before it all but the last `behind` have rows in its
 * pages. Not while it waits or stays. */
void sl_admit_token(sl_admit *a, uint32_t request, uint32_t behind);
/* So many of its rows, fewer than it has tokens, are in its pages. While it runs. */
void sl_admit_rows(sl_admit *a, uint32_t request, uint32_t rows);
/* Its client gives it up, and it runs: true if its worker is to be told. It stays until
 * that confirms: sl_admit_end. */
bool sl_admit_cancel(sl_admit *a, uint32_t request);
/* From now on it runs only alone, at all workers or at its own; it gives way if it does not. Not
 * while it stays. */
void sl_admit_suspect(sl_admit *a, uint32_t request, bool everywhere);
/* It is like others again. */
void sl_admit_clear(sl_admit *a, uint32_t request);
/* Its worker has ended it, as SL_ADMIT_PREEMPT or SL_ADMIT_HAND wanted, or is gone, or it is not to
 * stay any longer: its pages come back, it waits again. */
void sl_admit_gave_way(sl_admit *a, uint32_t request);
/* Its worker, which is closed, is gone, but not the pages: it stays. It was RUNNING, and is no
 * suspect. */
void sl_admit_stay(sl_admit *a, uint32_t request);
/* Copies of pages of requests at `worker` are kept by `buddy` from now on; SL_ADMIT_NONE: by
 * nobody. */
void sl_admit_pair(sl_admit *a, uint32_t worker, uint32_t buddy);
/* What became of a transfer to this worker. */
void sl_admit_copied(sl_admit *a, uint32_t worker, uint64_t transfer, bool here);
/* Right after sl_admit_submit, and sl_admit_ran_before: what is known of its tokens. SL_ERR_NOMEM.
 */
sl_status sl_admit_know(sl_admit *a, uint32_t request, const sl_prefix_text *text,
                        sl_err *err) SL_MUST_CHECK;
/* Its first rows that need not be computed for their own sake are so many by now. */
void sl_admit_spare(sl_admit *a, uint32_t request, uint32_t rows);
/* Requests that begin at this worker can begin with pages that are there, or they cannot. */
void sl_admit_set_resumes(sl_admit *a, uint32_t worker, bool resumes);
/* These n pages of the worker, which runs nothing, have what these keys say: sl_pages_adopt. Before
 * it is open; once. */
bool sl_admit_adopt(sl_admit *a, uint32_t worker, const uint32_t *pages, const sl_page_key *keys,
                    uint32_t n) SL_MUST_CHECK;
/* What is in the worker's pages is gone with it. */
void sl_admit_forget(sl_admit *a, uint32_t worker);
/* Copies that the worker has, or is about to have, are gone with it. */
void sl_admit_lose_copies(sl_admit *a, uint32_t worker);
/* Rows of the request that need not be computed again when it goes on where its copies are. */
uint32_t sl_admit_copied_rows(const sl_admit *a, uint32_t request);
/* Somewhere else it could start now, if nobody was before it. */
bool sl_admit_has_place(const sl_admit *a, uint32_t request);
/* One of those that run at this worker is to give way, as with SL_ADMIT_PREEMPT, so that it goes on
 * elsewhere. False: there is none. */
bool sl_admit_move(sl_admit *a, uint32_t worker, uint32_t *request);
/* It is over, whatever its state: its pages come back, its index is free. */
void sl_admit_end(sl_admit *a, uint32_t request);

/* The next decision; false: there is none until something happens. All are carried out here, but
 * FULL and LATE: these requests wait until sl_admit_end. */
bool sl_admit_next(sl_admit *a, uint64_t now_us, sl_admit_decision *out);

/* Nobody else runs at this worker, because it is a suspect. */
static inline bool sl_admit_is_alone(const sl_admit *a, uint32_t request, uint32_t worker) {
    const sl_admit_request *r = &a->request[request];
    return a->alone == request && (r->everywhere || r->worker == worker);
}

/* Its worker has it. */
static inline bool sl_admit_runs(const sl_admit_request *r) {
    return r->state >= SL_ADMIT_RUNNING;
}
/* Tokens that it would be computed from. */
static inline uint32_t sl_admit_known(const sl_admit_request *r) {
    return r->prompt + r->drawn;
}

#endif

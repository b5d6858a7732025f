/* The coordinator's books: lists of requests by index, pools by worker, a tree that finds the
 * worker with most free pages. */
#include "sched/admit_int.h"

#include "base/mem.h"
#include "base/mutate.h"
#include "spec/kv.h"
#include "spec/limits.h"

#define FIRST_CAP 64u
#define LOOKS     16u /* at the first ones in line, where there are workers of two kinds */

/* ---- the worker with most free pages ---- */

bool admit_takes(const sl_admit *a, uint32_t worker, uint32_t request) {
    const sl_admit_worker *w = &a->worker[worker];
    bool own = request != SL_ADMIT_NONE && a->request[request].kept_at == worker;
    bool kept = worker == a->reserved ||
                (a->alone != SL_ADMIT_NONE && a->request[a->alone].worker == worker);
    return w->open && !kept && w->running.n + w->staying.n + w->n_kept < a->shape.max_running + own;
}

void admit_note(sl_admit *a, uint32_t worker) {
    sl_admit_worker *w = &a->worker[worker];
    uint32_t copies = a->copies.worker[worker].n_pages;
    a->n_free_pages += (uint64_t)w->pages.n_free - w->n_counted;
    w->n_counted = w->pages.n_free;
    a->n_cached_pages += (uint64_t)w->pages.n_cached - w->n_cached;
    w->n_cached = w->pages.n_cached;
    a->n_unused_pages += (uint64_t)copies - w->n_unused;
    w->n_unused = copies;
    uint32_t at = a->leaves + worker, before = a->most[at];
    bool in_tree = !w->prompts && admit_takes(a, worker, SL_ADMIT_NONE);
    a->most[at] = in_tree ? admit_spare(a, worker) : 0;
    if (a->most[at] > before) admit_hands_due(a);
    for (at /= 2; at > 0; at /= 2) a->most[at] = SL_MAX(a->most[2 * at], a->most[2 * at + 1]);
}

/* Of those with most, the first; SL_ADMIT_NONE: nobody has `pages` (> 0). */
static uint32_t pick_worker(const sl_admit *a, uint32_t pages) {
    uint32_t at = 1;
    if (a->most[at] < pages) return SL_ADMIT_NONE;
    while (at < a->leaves) at = 2 * at + (a->most[2 * at] < a->most[at]);
    return at - a->leaves;
}

/* ---- pages ---- */

uint32_t admit_wanted(const sl_admit_request *r) {
    uint64_t ahead = (uint64_t)sl_admit_known(r) + SL_MAX_AHEAD;
    return sl_kv_pages_for(SL_MIN(ahead, sl_kv_positions(r->prompt, r->most)));
}

bool admit_fits(const sl_admit *a, uint32_t worker, uint32_t request) {
    return admit_takes(a, worker, request) &&
           admit_spare(a, worker) >= admit_wanted(&a->request[request]);
}

static bool lacks_pages(const sl_admit_request *r) {
    return r->state == SL_ADMIT_RUNNING && !r->parks && r->n_pages < admit_wanted(r);
}

/* It cannot go on without a page. */
static bool is_stuck(const sl_admit_request *r) {
    return sl_admit_known(r) >= r->n_pages * SL_KV_PAGE_TOKENS;
}

static bool take_pages(sl_admit *a, sl_admit_request *r, uint32_t n) {
    sl_pages *pool = &a->worker[r->worker].pages;
    sl_kv_copies_yield(&a->copies, r->worker, n, pool);
    if (!sl_pages_take(pool, n, r->pages + r->n_pages)) {
        a->failed |= n <= sl_pages_spare(pool);
        return false;
    }
    r->n_pages += n;
    return true;
}

static void make_due(sl_admit *a, uint32_t worker) {
    sl_admit_worker *w = &a->worker[worker];
    if (w->due) return;
    w->due = true;
    w->next_due = SL_ADMIT_NONE;
    if (a->first_due == SL_ADMIT_NONE)
        a->first_due = worker;
    else
        a->worker[a->last_due].next_due = worker;
    a->last_due = worker;
}

static void stop_lacking(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    if (!r->lacks) return;
    sl_admit_take_out(a->request, &a->worker[r->worker].lacking, request);
    r->lacks = false;
}

/* Into the list of those that lack pages, in the order of starts. */
static void start_lacking(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    sl_admit_list *l = &a->worker[r->worker].lacking;
    uint32_t before = SL_ADMIT_NONE, at = l->last;
    for (; at != SL_ADMIT_NONE && a->request[at].began > r->began;
         at = a->request[at].link[SL_ADMIT_LACKING].prev)
        before = at;
    sl_admit_insert(a->request, l, request, before);
    r->lacks = true;
}

/* Out of the list of those that run at its worker. */
static void stop_running(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    sl_admit_worker *w = &a->worker[r->worker];
    stop_lacking(a, request);
    sl_admit_take_out(a->request, &w->running, request);
    a->n_running--;
    w->n_leaving -= r->state != SL_ADMIT_RUNNING;
}

static void stop_staying(sl_admit *a, uint32_t request) {
    sl_admit_take_out(a->request, &a->worker[a->request[request].worker].staying, request);
    a->n_staying--;
}

/* ---- what is in them ---- */

uint32_t admit_sure(const sl_admit_request *r, bool early) {
    return (r->sure + (early ? SL_KV_PAGE_TOKENS / 2 : 0)) / SL_KV_PAGE_TOKENS;
}

void admit_tell_pages(sl_admit *a, sl_admit_request *r) {
    sl_admit_worker *w = &a->worker[r->worker];
    bool early = SL_MUTATION(EARLY_KEY) || SL_MUTATION(EARLY_SHARE);
    uint32_t n = SL_MIN(admit_sure(r, early), sl_admit_known(r) / SL_KV_PAGE_TOKENS);
    if (w->resumes) sl_prefix_tell(&r->text, &w->pages, r->pages, SL_MIN(n, r->n_pages));
}

uint32_t admit_find(sl_admit *a, uint32_t request, uint32_t worker, uint32_t *held) {
    sl_admit_request *r = &a->request[request];
    sl_admit_worker *w = &a->worker[worker];
    *held = 0;
    if (r->suspect || !w->resumes) return 0;
    sl_prefix_find(&r->text, &w->pages, sl_admit_known(r) - 1, r->age, &w->seen);
    *held = w->seen.held;
    return w->seen.n;
}

/* More of its rows are sure. */
static void note_sure(sl_admit *a, uint32_t request) {
    admit_tell_pages(a, &a->request[request]);
    admit_copies_due(a, request);
}

/* Out of its worker, whose pages it has no longer but for `forgotten` ones. */
static void leave_worker(sl_admit *a, uint32_t request, uint32_t forgotten) {
    sl_admit_request *r = &a->request[request];
    sl_admit_worker *w = &a->worker[r->worker];
    if (r->state == SL_ADMIT_STAYING)
        stop_staying(a, request);
    else
        stop_running(a, request);
    sl_pages_give(&w->pages, r->pages, r->n_pages - forgotten);
    r->n_pages = r->text.n_told = 0;
    r->sure = 0;
    admit_settle_copies(a, request);
    if (a->alone == request) a->alone = SL_ADMIT_NONE;
    admit_note(a, r->worker);
    if (w->lacking.n > 0) make_due(a, r->worker);
}

/* ---- decisions ---- */

void admit_begin_leaving(sl_admit *a, uint32_t request, sl_admit_state state) {
    sl_admit_request *r = &a->request[request];
    stop_lacking(a, request);
    a->worker[r->worker].n_leaving += r->state == SL_ADMIT_RUNNING;
    r->state = state;
}

/* The youngest gives way when anybody is stuck, unless pages are on their way back already. */
static bool preempt(sl_admit *a, uint32_t worker, sl_admit_decision *out) {
    sl_admit_worker *w = &a->worker[worker];
    uint32_t stuck = w->lacking.first, youngest = w->running.first;
    if (w->n_leaving > 0 || w->running.n < 2) return false;
    while (stuck != SL_ADMIT_NONE && !is_stuck(&a->request[stuck]))
        stuck = a->request[stuck].link[SL_ADMIT_LACKING].next;
    if (stuck == SL_ADMIT_NONE) return false;
    for (uint32_t at = youngest; at != SL_ADMIT_NONE; at = a->request[at].link[SL_ADMIT_PLACE].next)
        if (a->request[at].age > a->request[youngest].age) youngest = at;
    admit_begin_leaving(a, youngest, SL_ADMIT_PREEMPTING);
    *out = (sl_admit_decision){.kind = SL_ADMIT_PREEMPT, .request = youngest, .worker = worker};
    return true;
}

/* It runs there from now on. */
static void run_at(sl_admit *a, uint32_t request, uint32_t worker, sl_admit_kind how,
                   sl_admit_decision *out) {
    sl_admit_request *r = &a->request[request];
    sl_admit_insert(a->request, &a->worker[worker].running, request, SL_ADMIT_NONE);
    a->n_running++;
    r->state = SL_ADMIT_RUNNING;
    r->starts++;
    r->began = ++a->starts;
    r->parks = a->worker[worker].prompts && !r->suspect;
    r->parked = false;
    admit_unkeep(a, request);
    admit_note(a, worker);
    *out = (sl_admit_decision){.kind = how, .request = request, .worker = worker};
}

/* Those that stayed go on. */
static bool resume_at(sl_admit *a, uint32_t worker, sl_admit_decision *out) {
    uint32_t request = a->worker[worker].staying.first;
    if (!a->worker[worker].open || request == SL_ADMIT_NONE) return false;
    stop_staying(a, request);
    run_at(a, request, worker, SL_ADMIT_RESUME, out);
    if (lacks_pages(&a->request[request])) start_lacking(a, request);
    return true;
}

static bool grow_at(sl_admit *a, uint32_t worker, sl_admit_decision *out) {
    uint32_t request = a->worker[worker].lacking.first;
    if (resume_at(a, worker, out)) return true;
    if (request == SL_ADMIT_NONE) return false;
    sl_admit_request *r = &a->request[request];
    if (!take_pages(a, r, 1)) return preempt(a, worker, out);
    admit_note(a, worker);
    if (!lacks_pages(r)) stop_lacking(a, request);
    *out = (sl_admit_decision){.kind = SL_ADMIT_PAGE,
                               .request = request,
                               .worker = worker,
                               .page = r->pages[r->n_pages - 1]};
    return true;
}

static bool grow(sl_admit *a, sl_admit_decision *out) {
    while (a->first_due != SL_ADMIT_NONE) {
        sl_admit_worker *w = &a->worker[a->first_due];
        if (grow_at(a, a->first_due, out)) return true;
        w->due = false;
        a->first_due = w->next_due;
    }
    return false;
}

/* The line in which a request waits. */
static sl_admit_list *line_of(sl_admit *a, uint32_t request) {
    return a->request[request].suspect ? &a->held : &a->waiting;
}

/* It waits in order of coming. */
static void enter_line(sl_admit *a, uint32_t request) {
    const sl_admit_request *r = &a->request[request];
    sl_admit_list *line = line_of(a, request);
    uint32_t at = line->first;
    while (at != SL_ADMIT_NONE && a->request[at].age < r->age)
        at = a->request[at].link[SL_ADMIT_PLACE].next;
    sl_admit_insert(a->request, line, request, at);
    a->n_again += !r->suspect && r->starts > 0;
}

static void leave_line(sl_admit *a, uint32_t request) {
    const sl_admit_request *r = &a->request[request];
    sl_admit_take_out(a->request, line_of(a, request), request);
    a->n_again -= !r->suspect && r->starts > 0;
}

/* It has the n pages that were found at its worker. */
static void begin_with(sl_admit *a, sl_admit_request *r, uint32_t n) {
    sl_prefix_take(&r->text, &a->worker[r->worker].pages, n, r->pages);
    r->n_pages = n;
    r->found = r->sure = n * SL_KV_PAGE_TOKENS;
}

/* With its copies or with what is found there, of which there is more; what others have takes no
 * room, too. */
static bool begin_at(sl_admit *a, uint32_t request, uint32_t worker, sl_admit_decision *out) {
    sl_admit_request *r = &a->request[request];
    uint32_t copied = sl_kv_copies_at(&a->copies, request, worker), spare = admit_spare(a, worker),
             held;
    uint32_t found = admit_find(a, request, worker, &held), wanted = admit_wanted(r);
    if (copied >= found && spare >= wanted) found = held = 0;
    if (spare < wanted - held) return false;
    r->worker = worker;
    r->found = 0;
    if (found && copied) admit_cut_copies(a, request, 0);
    if (found)
        begin_with(a, r, found);
    else if (copied)
        admit_take_copies(a, r, request);
    a->rows_asked += r->text.is.shares ? sl_admit_known(r) : 0;
    a->rows_found += r->text.is.shares ? r->found : 0;
    if (!take_pages(a, r, admit_wanted(r) - r->n_pages)) return false;
    leave_line(a, request);
    if (r->suspect) a->alone = request;
    run_at(a, request, worker, SL_ADMIT_START, out);
    return true;
}

/* ---- suspects ---- */

/* The first that runs at this worker, and of suspects only with `caught`, gives way. */
static bool send_away(sl_admit *a, uint32_t worker, bool caught, sl_admit_decision *out) {
    uint32_t at = a->worker[worker].running.first;
    for (; at != SL_ADMIT_NONE; at = a->request[at].link[SL_ADMIT_PLACE].next) {
        const sl_admit_request *r = &a->request[at];
        if (r->state != SL_ADMIT_RUNNING || (caught && (!r->suspect || a->alone == at))) continue;
        admit_begin_leaving(a, at, SL_ADMIT_PREEMPTING);
        *out = (sl_admit_decision){.kind = SL_ADMIT_PREEMPT, .request = at, .worker = worker};
        return true;
    }
    return false;
}

static bool send_all_away(sl_admit *a, bool caught, sl_admit_decision *out) {
    for (uint32_t i = 0; i < a->shape.n_workers; i++)
        if (send_away(a, i, caught, out)) return true;
    return false;
}

static void reserve(sl_admit *a, uint32_t worker) {
    uint32_t before = a->reserved;
    if (before == worker) return;
    a->reserved = worker;
    if (before != SL_ADMIT_NONE) admit_note(a, before);
    if (worker != SL_ADMIT_NONE) admit_note(a, worker);
}

/* The open worker that runs least. */
static uint32_t quietest(const sl_admit *a) {
    uint32_t best = SL_ADMIT_NONE;
    for (uint32_t i = 0; i < a->shape.n_workers; i++) {
        const sl_admit_worker *w = &a->worker[i];
        if (w->open && (best == SL_ADMIT_NONE || w->running.n < a->worker[best].running.n))
            best = i;
    }
    return best;
}

static bool try_alone(sl_admit *a, sl_admit_decision *out) {
    if (a->n_suspects == 0) return false;
    if (send_all_away(a, true, out)) return true;
    if (a->alone != SL_ADMIT_NONE || a->held.n == 0) return false;
    uint32_t request = a->held.last, worker = quietest(a);
    bool everywhere = a->request[request].everywhere;
    if (everywhere && send_all_away(a, false, out)) return true;
    if (worker == SL_ADMIT_NONE || (everywhere && a->n_running > 0)) return false;
    if (a->worker[worker].running.n == 0) {
        reserve(a, SL_ADMIT_NONE);
        return begin_at(a, request, worker, out);
    }
    reserve(a, worker); /* a worker that comes back is idle */
    return a->n_open == a->n_pools && send_away(a, worker, false, out);
}

/* Nobody may run beside the suspect that runs, or is the next one to. */
static bool all_wait(const sl_admit *a) {
    uint32_t suspect = a->alone != SL_ADMIT_NONE ? a->alone : a->held.last;
    return suspect != SL_ADMIT_NONE && a->request[suspect].everywhere;
}

/* Where it finds most of its pages, among workers of that kind; `other` is where it goes if it
 * finds none, and may be nowhere. *found: how many. Who runs already where it finds them takes part
 * in each of its steps, and a page is rows of one: a worker with so many more requests than another
 * as it has more of the pages is no better. */
static uint32_t place_of_pages(sl_admit *a, uint32_t request, uint32_t other, bool prompts,
                               uint32_t *found) {
    uint32_t held, best = other, wanted = admit_wanted(&a->request[request]);
    int64_t most = INT64_MIN;
    *found = 0;
    if (!a->request[request].text.is.tokens || (!prompts && a->most[1] == 0)) return other;
    if (other != SL_ADMIT_NONE) {
        *found = admit_find(a, request, other, &held);
        most = (int64_t)*found - a->worker[other].running.n;
    }
    for (uint32_t i = 0; i < a->shape.n_workers; i++) {
        const sl_admit_worker *w = &a->worker[i];
        if (i == other || w->prompts != prompts || w->pages.n_keys == 0) continue;
        if (!admit_takes(a, i, request)) continue;
        uint32_t n = admit_find(a, request, i, &held);
        int64_t is = (int64_t)n - w->running.n;
        if (n == 0 || is <= most || admit_spare(a, i) < wanted - held) continue;
        best = i;
        *found = n;
        most = is;
    }
    return best;
}

/* Of the workers for prompts the one that runs least, of those the one with most pages; *open:
 * there is an open one. */
static uint32_t pick_for_prompt(const sl_admit *a, uint32_t request, bool *open) {
    uint32_t best = SL_ADMIT_NONE;
    *open = false;
    for (uint32_t i = 0; a->n_prompts > 0 && i < a->shape.n_workers; i++) {
        const sl_admit_worker *w = &a->worker[i];
        if (!w->prompts) continue;
        *open |= w->open;
        if (!admit_fits(a, i, request)) continue;
        if (best == SL_ADMIT_NONE || w->running.n < a->worker[best].running.n ||
            (w->running.n == a->worker[best].running.n && admit_spare(a, i) > admit_spare(a, best)))
            best = i;
    }
    return best;
}

/* A place is kept for it, and it may have it. */
static bool is_handed(const sl_admit *a, uint32_t request) {
    uint32_t at = a->request[request].kept_at;
    return at != SL_ADMIT_NONE && admit_fits(a, at, request);
}

/* Where it starts, if it may: at a worker for prompts if it would have so many rows to compute
 * elsewhere, and at least a page of them. *prompts: whether it is one for these. */
static uint32_t place_of(sl_admit *a, uint32_t request, bool *prompts) {
    const sl_admit_request *r = &a->request[request];
    bool open;
    uint32_t found, copies = admit_place_of_copies(a, request);
    *prompts = false;
    if (copies != SL_ADMIT_NONE && a->n_prompts == 0) return copies;
    uint32_t apart = pick_for_prompt(a, request, &open);
    uint32_t place = place_of_pages(a, request, pick_worker(a, admit_wanted(r)), false, &found);
    uint32_t copied = copies == SL_ADMIT_NONE ? 0 : a->copies.of[request].n_here;
    uint32_t rows = sl_admit_known(r) - SL_MAX(found, copied) * SL_KV_PAGE_TOKENS;
    *prompts = open && rows >= SL_MAX(a->shape.prompt_rows, SL_KV_PAGE_TOKENS);
    if (*prompts) return place_of_pages(a, request, apart, true, &found);
    return copies != SL_ADMIT_NONE ? copies : place;
}

/* Those who were handed over: their places are kept. */
static bool start_handed(sl_admit *a, sl_admit_decision *out) {
    uint32_t request = a->waiting.first;
    if (a->n_kept == 0 || all_wait(a)) return false;
    for (; request != SL_ADMIT_NONE; request = a->request[request].link[SL_ADMIT_PLACE].next)
        if (is_handed(a, request) && begin_at(a, request, a->request[request].kept_at, out))
            return true;
    return false;
}

/* In order: nobody overtakes the oldest, but those who go to workers of the other kind. */
static bool start(sl_admit *a, sl_admit_decision *out) {
    bool stuck[2] = {false, a->n_prompts == 0}, prompts;
    uint32_t request = a->waiting.first, looks = LOOKS;
    if (all_wait(a)) return false;
    for (; request != SL_ADMIT_NONE && looks > 0 && !(stuck[0] && stuck[1]); looks--) {
        uint32_t worker = place_of(a, request, &prompts);
        if (!stuck[prompts] && worker != SL_ADMIT_NONE && begin_at(a, request, worker, out))
            return true;
        stuck[prompts] = true;
        request = a->request[request].link[SL_ADMIT_PLACE].next;
    }
    return false;
}

static bool turn_away(const sl_admit *a, uint64_t now_us, sl_admit_decision *out) {
    *out = (sl_admit_decision){.kind = SL_ADMIT_FULL, .request = a->waiting.last};
    if (a->waiting.n - a->n_again > a->shape.max_queue) return true;
    if (a->shape.queue_timeout_us == 0 || a->waiting.n == a->n_again) return false;
    uint32_t oldest = a->waiting.first;
    while (a->request[oldest].starts > 0) oldest = a->request[oldest].link[SL_ADMIT_PLACE].next;
    *out = (sl_admit_decision){.kind = SL_ADMIT_LATE, .request = oldest};
    return now_us - a->request[oldest].came_us >= a->shape.queue_timeout_us;
}

bool sl_admit_next(sl_admit *a, uint64_t now_us, sl_admit_decision *out) {
    if (!grow(a, out) && !try_alone(a, out) && !start_handed(a, out) && !admit_hand(a, out) &&
        !start(a, out) && !turn_away(a, now_us, out) && !admit_copy(a, out))
        return false;
    sl_watch_tell(a->shape.watch, ADMIT, now_us, out->kind, out->request, out->worker, out->page,
                  a->request[out->request].starts);
    return true;
}

/* ---- events ---- */

void sl_admit_set_prompts(sl_admit *a, uint32_t worker) {
    a->n_prompts += !a->worker[worker].prompts;
    a->worker[worker].prompts = a->copies.worker[worker].hands = true;
    admit_note(a, worker);
}

void sl_admit_open(sl_admit *a, uint32_t worker) {
    a->n_open += !a->worker[worker].open;
    a->worker[worker].open = true;
    admit_note(a, worker);
    /* Beside a suspect nobody comes but by the rules for those that wait. */
    while (a->n_suspects > 0 && a->worker[worker].staying.n > 0)
        sl_admit_gave_way(a, a->worker[worker].staying.first);
    if (a->worker[worker].staying.n > 0) make_due(a, worker);
    sl_kv_copies_wake(&a->copies, worker);
}

void sl_admit_close(sl_admit *a, uint32_t worker) {
    a->n_open -= a->worker[worker].open;
    a->worker[worker].open = false;
    admit_note(a, worker);
}

static bool more_requests(sl_admit *a) {
    uint32_t cap = SL_MAX(2 * a->cap, FIRST_CAP);
    if (!sl_kv_copies_reserve(&a->copies, cap)) return false;
    sl_admit_request *bigger = sl_grow(a->request, a->cap, cap, sizeof *bigger);
    if (!bigger) return false;
    a->request = bigger;
    for (uint32_t i = cap; i > a->cap; i--) {
        bigger[i - 1].link[SL_ADMIT_PLACE].next = a->free;
        a->free = i - 1;
    }
    a->cap = cap;
    return true;
}

/* That it may ever need. */
static uint32_t kv_pages(uint32_t prompt, uint32_t most) {
    return sl_kv_pages_for(sl_kv_positions(prompt, most));
}

sl_status sl_admit_submit(sl_admit *a, uint32_t prompt, uint32_t most, uint64_t now_us,
                          uint32_t *request, sl_err *err) {
    if (a->free == SL_ADMIT_NONE && !more_requests(a))
        return sl_fail(err, SL_ERR_NOMEM, "books of %u requests", a->cap);
    uint32_t cap_pages = kv_pages(prompt, most), id = a->free;
    sl_admit_request *r = &a->request[id];
    if (cap_pages > r->cap_pages) { /* what an earlier request had here is used again */
        uint32_t *pages = sl_alloc(cap_pages, sizeof *pages);
        if (!pages) return sl_fail(err, SL_ERR_NOMEM, "books of a request of %u pages", cap_pages);
        sl_free(r->pages);
        r->pages = pages;
        r->cap_pages = cap_pages;
    }
    a->free = r->link[SL_ADMIT_PLACE].next;
    *r = (sl_admit_request){.state = SL_ADMIT_WAITING,
                            .prompt = prompt,
                            .most = most,
                            .pages = r->pages,
                            .cap_pages = r->cap_pages,
                            .text = {.key = r->text.key, .cap = r->text.cap},
                            .age = ++a->ages,
                            .kept_at = SL_ADMIT_NONE,
                            .came_us = now_us};
    sl_admit_insert(a->request, &a->waiting, id, SL_ADMIT_NONE);
    *request = id;
    return SL_OK;
}

void sl_admit_ran_before(sl_admit *a, uint32_t request, uint32_t drawn) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(r->state == SL_ADMIT_WAITING && r->starts == 0 && drawn < r->most);
    r->drawn = drawn;
    r->starts = 1;
    a->n_again++;
}

void sl_admit_token(sl_admit *a, uint32_t request, uint32_t behind) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(r->state >= SL_ADMIT_RUNNING && r->drawn < r->most && behind <= sl_admit_known(r));
    r->sure = SL_MAX(r->sure, sl_admit_known(r) - behind); /* its own row is computed next */
    r->drawn++;
    r->parked = r->parks;
    note_sure(a, request);
    if (!lacks_pages(r)) return;
    if (!r->lacks) start_lacking(a, request);
    if (admit_spare(a, r->worker) > 0 || is_stuck(r)) make_due(a, r->worker);
}

void sl_admit_rows(sl_admit *a, uint32_t request, uint32_t rows) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(sl_admit_runs(r) && rows < sl_admit_known(r));
    r->sure = SL_MAX(r->sure, rows);
    note_sure(a, request);
}

bool sl_admit_cancel(sl_admit *a, uint32_t request) {
    SL_ASSERT(a->request[request].state >= SL_ADMIT_RUNNING);
    bool tell = a->request[request].state == SL_ADMIT_RUNNING;
    admit_begin_leaving(a, request, SL_ADMIT_CANCELLING);
    return tell;
}

void sl_admit_gave_way(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(r->state == SL_ADMIT_PREEMPTING || r->state == SL_ADMIT_RUNNING ||
              r->state == SL_ADMIT_STAYING);
    leave_worker(a, request, SL_MUTATION(FORGOTTEN_PAGE));
    r->state = SL_ADMIT_WAITING;
    enter_line(a, request);
}

void sl_admit_suspect(sl_admit *a, uint32_t request, bool everywhere) {
    sl_admit_request *r = &a->request[request];
    bool waits = r->state == SL_ADMIT_WAITING;
    SL_ASSERT(r->state != SL_ADMIT_UNUSED && r->state != SL_ADMIT_STAYING);
    if (a->alone == request && everywhere && !r->everywhere) { /* others run elsewhere */
        a->alone = SL_ADMIT_NONE;
        admit_note(a, r->worker);
    }
    bool moves = waits && !r->suspect; /* from one line to the other */
    if (moves) leave_line(a, request);
    a->n_suspects += !r->suspect;
    r->suspect = true;
    r->everywhere |= everywhere;
    if (moves) enter_line(a, request);
}

static void unsuspect(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    a->n_suspects -= r->suspect;
    r->suspect = r->everywhere = false;
    if (a->n_suspects == 0) reserve(a, SL_ADMIT_NONE);
}

void sl_admit_clear(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    bool waits = r->state == SL_ADMIT_WAITING;
    if (!r->suspect) return;
    if (waits) leave_line(a, request);
    unsuspect(a, request);
    if (waits) enter_line(a, request);
    if (a->alone != request) return;
    a->alone = SL_ADMIT_NONE;
    admit_note(a, r->worker);
}

void sl_admit_stay(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(r->state == SL_ADMIT_RUNNING && !r->suspect && !a->worker[r->worker].open);
    stop_running(a, request);
    admit_settle_copies(a, request);
    sl_admit_insert(a->request, &a->worker[r->worker].staying, request, SL_ADMIT_NONE);
    a->n_staying++;
    r->state = SL_ADMIT_STAYING;
    admit_note(a, r->worker);
}

void sl_admit_pair(sl_admit *a, uint32_t worker, uint32_t buddy) {
    sl_kv_copies_pair(&a->copies, worker, buddy);
}

void sl_admit_copied(sl_admit *a, uint32_t worker, uint64_t transfer, bool here) {
    uint32_t request =
        sl_kv_copies_answer(&a->copies, worker, transfer, here, &a->worker[worker].pages);
    if (request != SL_KV_COPIES_NONE && !here)
        sl_kv_copies_defer(&a->copies, request,
                           admit_sure(&a->request[request], SL_MUTATION(EARLY_KEY)));
    admit_note(a, worker);
    sl_kv_copies_wake(&a->copies, worker);
}

void sl_admit_lose_copies(sl_admit *a, uint32_t worker) {
    sl_kv_copies_lose(&a->copies, worker, &a->worker[worker].pages);
    admit_note(a, worker);
}

sl_status sl_admit_know(sl_admit *a, uint32_t request, const sl_prefix_text *text, sl_err *err) {
    sl_admit_request *r = &a->request[request];
    uint32_t pages = kv_pages(r->prompt, r->most);
    SL_ASSERT(r->state == SL_ADMIT_WAITING);
    if (sl_prefix_begin(&r->text, text, pages)) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "keys of a request of %u pages", pages);
}

void sl_admit_spare(sl_admit *a, uint32_t request, uint32_t rows) {
    a->request[request].text.is.spare = rows;
}

void sl_admit_set_resumes(sl_admit *a, uint32_t worker, bool resumes) {
    a->worker[worker].resumes = resumes;
}

bool sl_admit_adopt(sl_admit *a, uint32_t worker, const uint32_t *pages, const sl_page_key *keys,
                    uint32_t n) {
    sl_admit_worker *w = &a->worker[worker];
    SL_ASSERT(!w->open);
    bool ok = sl_pages_adopt(&w->pages, pages, keys, n);
    admit_note(a, worker);
    return ok;
}

void sl_admit_forget(sl_admit *a, uint32_t worker) {
    sl_pages_forget(&a->worker[worker].pages);
    admit_note(a, worker);
}

uint32_t sl_admit_copied_rows(const sl_admit *a, uint32_t request) {
    uint32_t at = admit_place_of_copies(a, request);
    return at == SL_ADMIT_NONE ? 0 : a->copies.of[request].n_here * SL_KV_PAGE_TOKENS;
}

bool sl_admit_has_place(const sl_admit *a, uint32_t request) {
    return pick_worker(a, admit_wanted(&a->request[request])) != SL_ADMIT_NONE;
}

bool sl_admit_move(sl_admit *a, uint32_t worker, uint32_t *request) {
    uint32_t at = a->worker[worker].running.first;
    while (at != SL_ADMIT_NONE && a->request[at].state != SL_ADMIT_RUNNING)
        at = a->request[at].link[SL_ADMIT_PLACE].next;
    if (at == SL_ADMIT_NONE) return false;
    admit_begin_leaving(a, at, SL_ADMIT_PREEMPTING);
    *request = at;
    return true;
}

void sl_admit_end(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    SL_ASSERT(r->state != SL_ADMIT_UNUSED);
    if (r->state == SL_ADMIT_WAITING)
        leave_line(a, request);
    else
        leave_worker(a, request, 0);
    admit_cut_copies(a, request, 0);
    admit_unkeep(a, request);
    unsuspect(a, request);
    r->state = SL_ADMIT_UNUSED;
    r->link[SL_ADMIT_PLACE].next = a->free;
    a->free = request;
}

/* ---- life ---- */

sl_status sl_admit_create(const sl_admit_shape *shape, sl_admit *out, sl_err *err) {
    sl_admit a = {.shape = *shape,
                  .free = SL_ADMIT_NONE,
                  .waiting = sl_admit_list_of(SL_ADMIT_PLACE),
                  .held = sl_admit_list_of(SL_ADMIT_PLACE),
                  .alone = SL_ADMIT_NONE,
                  .reserved = SL_ADMIT_NONE,
                  .first_due = SL_ADMIT_NONE,
                  .leaves = 1};
    while (a.leaves < shape->n_workers) a.leaves *= 2;
    a.worker = sl_alloc(shape->n_workers, sizeof *a.worker);
    a.most = sl_alloc(2 * (size_t)a.leaves, sizeof *a.most);
    if (!a.worker || !a.most || sl_kv_copies_create(shape->n_workers, &a.copies, err) != SL_OK) {
        sl_admit_free(&a);
        return sl_fail(err, SL_ERR_NOMEM, "books of %u workers", shape->n_workers);
    }
    for (uint32_t i = 0; i < shape->n_workers; i++) {
        a.worker[i].running = sl_admit_list_of(SL_ADMIT_PLACE);
        a.worker[i].lacking = sl_admit_list_of(SL_ADMIT_LACKING);
        a.worker[i].staying = sl_admit_list_of(SL_ADMIT_PLACE);
    }
    *out = a;
    return SL_OK;
}

void sl_admit_free(sl_admit *a) {
    for (uint32_t i = 0; a->worker && i < a->shape.n_workers; i++)
        sl_pages_free(&a->worker[i].pages);
    for (uint32_t i = 0; i < a->cap; i++) {
        sl_free(a->request[i].pages);
        sl_prefix_free(&a->request[i].text);
    }
    sl_kv_copies_free(&a->copies);
    sl_free(a->request);
    sl_free(a->worker);
    sl_free(a->most);
    *a = (sl_admit){0};
}

sl_status sl_admit_add_pages(sl_admit *a, uint32_t worker, uint32_t n, uint32_t room, sl_err *err) {
    sl_status st = sl_pages_create(n, room, &a->worker[worker].pages, err);
    if (st != SL_OK) return st;
    a->n_pages += n;
    a->n_pools++;
    admit_note(a, worker);
    return SL_OK;
}

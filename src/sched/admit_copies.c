/* Copies in the coordinator's books (sched/admit.h): whose pages go where next, and prompts that
 * are handed over to who has copies of their pages. */
#include "base/mutate.h"
#include "sched/admit_int.h"
#include "spec/kv.h"

void admit_cut_copies(sl_admit *a, uint32_t request, uint32_t n) {
    uint32_t at = a->copies.of[request].at;
    if (at == SL_KV_COPIES_NONE) return;
    sl_kv_copies_cut(&a->copies, request, n, &a->worker[at].pages);
    admit_note(a, at);
}

void admit_settle_copies(sl_admit *a, uint32_t request) {
    uint32_t at = a->copies.of[request].at;
    sl_kv_copies_defer(&a->copies, request, 0); /* also where the first one could not be had */
    if (at == SL_KV_COPIES_NONE) return;
    sl_kv_copies_settle(&a->copies, request, &a->worker[at].pages);
    admit_note(a, at);
}

static bool wants_copy(const sl_admit *a, uint32_t request) {
    return sl_kv_copies_wants(&a->copies, request,
                              admit_sure(&a->request[request], SL_MUTATION(EARLY_KEY)));
}

void admit_copies_due(sl_admit *a, uint32_t request) {
    sl_admit_request *r = &a->request[request];
    if (r->parked || wants_copy(a, request)) sl_kv_copies_set_due(&a->copies, r->worker, true);
}

void admit_hands_due(sl_admit *a) {
    for (uint32_t i = 0; a->n_prompts > 0 && i < a->shape.n_workers; i++)
        if (a->worker[i].prompts) sl_kv_copies_set_due(&a->copies, i, true);
}

/* ---- prompts that go on elsewhere ---- */

/* Requests at workers for prompts whose copies are at `to`. */
static uint32_t expected(const sl_admit *a, uint32_t to) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->shape.n_workers; i++) {
        uint32_t at = a->worker[i].prompts ? a->worker[i].running.first : SL_ADMIT_NONE;
        for (; at != SL_ADMIT_NONE; at = a->request[at].link[SL_ADMIT_PLACE].next)
            n += a->copies.of[at].at == to;
    }
    return n;
}

/* Who runs and expects least: of equal ones the one with most pages. Who is full may be so no
 * longer when the prompt is there. */
static uint32_t pick_target(const sl_admit *a) {
    uint32_t best = SL_ADMIT_NONE, least = UINT32_MAX;
    for (uint32_t i = 0; i < a->shape.n_workers; i++) {
        const sl_admit_worker *w = &a->worker[i];
        if (w->prompts || !w->open) continue;
        uint32_t load = w->running.n + w->n_kept + expected(a, i);
        if (load > least || (load == least && admit_spare(a, i) <= admit_spare(a, best))) continue;
        best = i;
        least = load;
    }
    return best;
}

/* Where a request goes that has drawn its token, when no page is on its way, and no other one will
 * be: those that are there are all, or could not be had, or there is no room for more. */
static uint32_t goes_to(const sl_admit *a, uint32_t request) {
    const sl_admit_request *r = &a->request[request];
    const sl_kv_copies_of *of = &a->copies.of[request];
    uint32_t to = of->at;
    if (r->state != SL_ADMIT_RUNNING || !r->parked || r->suspect) return SL_ADMIT_NONE;
    if (of->n_asked > of->n_here && !SL_MUTATION(HASTY_HAND)) return SL_ADMIT_NONE;
    bool wants = wants_copy(a, request);
    if (wants && (to == SL_KV_COPIES_NONE || sl_kv_copies_has_room(&a->worker[to].pages)))
        return SL_ADMIT_NONE;
    if (to == SL_KV_COPIES_NONE) to = pick_target(a);
    return to != SL_ADMIT_NONE && admit_fits(a, to, request) ? to : SL_ADMIT_NONE;
}

static bool hand_from(sl_admit *a, uint32_t from, sl_admit_decision *out) {
    uint32_t at = a->worker[from].prompts ? a->worker[from].running.first : SL_ADMIT_NONE;
    uint32_t to = SL_ADMIT_NONE;
    for (; at != SL_ADMIT_NONE; at = a->request[at].link[SL_ADMIT_PLACE].next)
        if ((to = goes_to(a, at)) != SL_ADMIT_NONE) break;
    if (at == SL_ADMIT_NONE) return false;
    admit_begin_leaving(a, at, SL_ADMIT_PREEMPTING);
    a->request[at].kept_at = to;
    a->worker[to].n_kept++;
    a->n_kept++;
    a->n_handed++;
    admit_note(a, to);
    *out = (sl_admit_decision){.kind = SL_ADMIT_HAND, .request = at, .worker = from};
    return true;
}

void admit_unkeep(sl_admit *a, uint32_t request) {
    uint32_t at = a->request[request].kept_at;
    if (at == SL_ADMIT_NONE) return;
    a->request[request].kept_at = SL_ADMIT_NONE;
    a->worker[at].n_kept--;
    a->n_kept--;
    admit_note(a, at);
}

/* ---- pages ---- */

/* One more page may be copied to that worker. */
static bool may_copy_to(const sl_admit *a, uint32_t to) {
    return to != SL_KV_COPIES_NONE && a->worker[to].open &&
           sl_kv_copies_may_ask(&a->copies, to, &a->worker[to].pages);
}

/* Copies of this prompt go on where they are, as long as that worker is there. */
static bool has_target(const sl_admit *a, uint32_t request) {
    uint32_t at = a->copies.of[request].at;
    return at != SL_KV_COPIES_NONE && a->worker[at].open && !a->worker[at].prompts;
}

/* The next page of the first of those who run there that has one to be copied: to the buddy, of
 * prompts to who will go on with it. */
static bool copy_from(sl_admit *a, uint32_t from, sl_admit_decision *out) {
    const bool hands = a->worker[from].prompts;
    uint32_t usual = hands ? SL_KV_COPIES_NONE : a->copies.worker[from].buddy;
    uint32_t at = a->worker[from].running.first;
    if (!hands && !may_copy_to(a, usual)) return false;
    for (; at != SL_ADMIT_NONE; at = a->request[at].link[SL_ADMIT_PLACE].next) {
        const sl_kv_copies_of *of = &a->copies.of[at];
        if (a->request[at].state != SL_ADMIT_RUNNING || (hands && !wants_copy(a, at))) continue;
        const bool stays = hands && has_target(a, at);
        if (hands && !stays && usual == SL_KV_COPIES_NONE) usual = pick_target(a);
        const uint32_t to = stays ? of->at : usual;
        if (!may_copy_to(a, to)) continue;
        sl_pages *pool = &a->worker[to].pages;
        if (of->at != to) admit_cut_copies(a, at, 0); /* it is another one by now */
        if (!wants_copy(a, at)) continue;
        if (!sl_kv_copies_ask(&a->copies, at, to, pool)) return false;
        admit_note(a, to);
        *out = (sl_admit_decision){.kind = SL_ADMIT_COPY,
                                   .request = at,
                                   .worker = to,
                                   .page = of->page[of->n_asked - 1],
                                   .index = of->n_asked - 1,
                                   .from = from,
                                   .transfer = a->copies.transfers};
        return true;
    }
    return false;
}

bool admit_hand(sl_admit *a, sl_admit_decision *out) {
    for (uint32_t i = 0; a->n_prompts > 0 && a->copies.n_due > 0 && i < a->shape.n_workers; i++)
        if (a->copies.worker[i].due && hand_from(a, i, out)) return true;
    return false;
}

bool admit_copy(sl_admit *a, sl_admit_decision *out) {
    for (uint32_t i = 0; a->copies.n_due > 0 && i < a->shape.n_workers; i++) {
        if (!a->copies.worker[i].due) continue;
        if (copy_from(a, i, out)) return true;
        sl_kv_copies_set_due(&a->copies, i, false);
    }
    return false;
}

uint32_t admit_place_of_copies(const sl_admit *a, uint32_t request) {
    uint32_t at = a->copies.of[request].at;
    return at != SL_KV_COPIES_NONE && admit_fits(a, at, request) ? at : SL_ADMIT_NONE;
}

void admit_take_copies(sl_admit *a, sl_admit_request *r, uint32_t request) {
    bool hasty = SL_MUTATION(HASTY_HAND) && r->kept_at == r->worker;
    r->n_pages = sl_kv_copies_take(&a->copies, request, r->pages);
    r->sure = SL_MIN((r->n_pages + hasty) * SL_KV_PAGE_TOKENS, sl_admit_known(r) - 1);
    admit_tell_pages(a, r);
}

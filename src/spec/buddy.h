/* Who keeps copies of whose KV pages (--kv-replicas): a rule over the plan, so that whoever has the
 * plan says the same. Pure. Thread: any. */
#ifndef SL_SPEC_BUDDY_H
#define SL_SPEC_BUDDY_H

#include "spec/plan.h"

#define SL_BUDDY_NONE UINT32_MAX

/* The attention worker that keeps copies of worker `id`'s pages: on another machine if any is, the
 * workers of one machine at different ones of the others in turn, else the next one of the plan.
 * SL_BUDDY_NONE: nobody does. Two are on one machine when their addresses are but for the port. */
uint32_t sl_plan_buddy(const sl_plan *p, uint32_t id);

/* One of the two keeps copies of the other's pages. */
static inline bool sl_plan_are_buddies(const sl_plan *p, uint32_t a, uint32_t b) {
    return p->kv_replicas && (sl_plan_buddy(p, a) == b || sl_plan_buddy(p, b) == a);
}

/* KV pages go from one of the two to the other: of those that worker `a` or `b` sees. */
static inline bool sl_plan_move_pages(const sl_plan *p, uint32_t a, uint32_t b) {
    const sl_plan_worker *x = &p->worker[a], *y = &p->worker[b];
    return sl_plan_are_buddies(p, a, b) ||
           (x->pages && !y->pages && (y->roles & SL_ROLE_ATTENTION)) ||
           (y->pages && !x->pages && (x->roles & SL_ROLE_ATTENTION));
}

#endif

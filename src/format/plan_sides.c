/* Sides of a plan: places for prompts, what each side sees, and what cannot be together. */
#include "format/plan_sides.h"

#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"

#define BOTH (SL_ROLE_ATTENTION | SL_ROLE_EXPERT)

static uint32_t roles_of(const sl_plan *p, bool prefill) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].prefill == prefill) roles |= p->worker[i].roles;
    return roles;
}

/* ---- places ---- */

sl_status sl_plan_add_prefill(uint32_t attention, uint32_t experts, bool both, sl_plan *p,
                              sl_err *err) {
    const uint32_t there = p->n_workers;
    if (experts && !attention)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: %u expert workers for prompts (--prefill-experts) "
                       "and none with attention (--prefill)",
                       experts);
    if (experts && both)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: workers for prompts whose experts stay in memory (--offload-experts) "
                       "have both roles: leave out --prefill-experts");
    const sl_plan_worker is = {.cpu = -1, .prefill = true};
    sl_status st =
        sl_plan_grow(attention, experts, &is,
                     "those for prompts (--prefill): --prefill-experts is for plans that keep "
                     "roles apart",
                     p, err);
    for (uint32_t i = there; st == SL_OK && both && i < p->n_workers; i++)
        p->worker[i].roles = BOTH;
    return st == SL_OK ? sl_plan_spread_prefill(p, err) : st;
}

/* ---- what a side sees ---- */

/* Roles and marks alone; its places are the caller's. */
static void look_from(bool prefill, bool apart, sl_plan *p) {
    for (uint32_t i = 0; i < p->n_workers; i++) {
        sl_plan_worker *w = &p->worker[i];
        const bool other = w->prefill != prefill;
        w->pages = other && (w->roles & SL_ROLE_ATTENTION);
        if (other && apart) w->roles = 0;
        w->prefill = false;
    }
}

sl_status sl_plan_spread_prefill(sl_plan *p, sl_err *err) {
    sl_plan side;
    sl_placement_free(&p->prefill_place);
    if (!(roles_of(p, true) & SL_ROLE_EXPERT)) return SL_OK;
    sl_status st = sl_plan_copy(p, &side, err);
    if (st != SL_OK) return st;
    look_from(true, true, &side);
    st = sl_placement_spread(false, &side, err);
    if (st == SL_OK) {
        p->prefill_place = side.place;
        side.place = (sl_placement){0};
    }
    sl_plan_free(&side);
    return st;
}

/* With both roles dep is ep. */
static void suit_roles(sl_plan *side) {
    if (sl_schedule_traits_of(side->schedule)->sides != SL_SIDES_APART) return;
    for (uint32_t i = 0; i < side->n_workers; i++)
        if (side->worker[i].roles == BOTH) side->schedule = SL_SCHED_EP;
}

sl_status sl_plan_view(const sl_plan *p, bool prefill, sl_plan *out, sl_err *err) {
    const bool apart = sl_plan_sides_apart(p), sides = sl_plan_has_prefill(p);
    sl_status st = sl_plan_copy(p, out, err);
    if (st != SL_OK || !sides) return st;
    look_from(prefill, apart, out);
    if (apart && prefill) suit_roles(out);
    if (apart && prefill) {
        sl_placement other = out->place;
        out->place = out->prefill_place;
        out->prefill_place = other;
    }
    sl_placement_free(&out->prefill_place);
    return st;
}

void sl_plan_take_schedule(const sl_plan *from, sl_plan *to) {
    sl_plan is = *from;
    is.worker = to->worker;
    is.place = to->place;
    is.prefill_place = to->prefill_place;
    *to = is;
}

/* ---- those who are there ---- */

/* What those of the side do who are there. */
static uint32_t roles_there(const sl_plan *p, bool prefill, const uint8_t *there) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].prefill == prefill && there[i]) roles |= p->worker[i].roles;
    return roles;
}

/* Places of a side's experts for those of it who are there. */
static sl_status rehost(const sl_plan *home, bool prefill, const uint8_t *there, sl_placement *out,
                        sl_err *err) {
    sl_plan side;
    if (!sl_plan_has_prefill(home)) return sl_placement_rehost(home, there, out, err);
    sl_status st = sl_plan_view(home, prefill, &side, err);
    if (st != SL_OK) return st;
    st = sl_placement_rehost(&side, there, out, err);
    sl_plan_free(&side);
    return st;
}

sl_status sl_plan_among(const sl_plan *home, const uint8_t *there, sl_plan *out, sl_err *err) {
    const bool apart = sl_plan_sides_apart(home);
    const bool whole = !apart || roles_there(home, true, there) == roles_of(home, true);
    sl_placement place = {0}, prefill = {0};
    if (!(roles_there(home, false, there) & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_INFEASIBLE, "plan: no attention worker is there");
    sl_status st = rehost(home, false, there, &place, err);
    if (st == SL_OK && apart && whole) st = rehost(home, true, there, &prefill, err);
    if (st == SL_OK && !whole)
        st = sl_placement_copy(&home->prefill_place, home->n_experts, &prefill, err);
    if (st == SL_OK) st = sl_plan_copy(home, out, err);
    if (st != SL_OK) {
        sl_placement_free(&place);
        sl_placement_free(&prefill);
        return st;
    }
    sl_placement_free(&out->place);
    sl_placement_free(&out->prefill_place);
    out->place = place;
    out->prefill_place = prefill;
    for (uint32_t i = 0; i < out->n_workers; i++)
        if (!there[i] || (!whole && out->worker[i].prefill)) out->worker[i].roles = 0;
    return SL_OK;
}

/* ---- JSON ---- */

sl_status sl_sides_of_worker(sl_json row, bool in_file, sl_plan_worker *w, sl_err *err) {
    sl_status st = sl_json_bool(row, "prefill", SL_JSON_OPTIONAL, &w->prefill, err);
    if (st == SL_OK) st = sl_json_bool(row, "pages", SL_JSON_OPTIONAL, &w->pages, err);
    if (st == SL_OK && w->pages && in_file)
        st = sl_json_fail(row, "pages", err, SL_ERR_ARG, "the coordinator says that, no plan does");
    if (st == SL_OK && w->prefill && w->spare)
        st = sl_json_fail(row, "spare", err, SL_ERR_UNSUPPORTED,
                          "a worker for prompts is there at first");
    return st;
}

void sl_sides_print_worker(const sl_plan_worker *w, json_t *row) {
    if (w->prefill) json_object_set_new(row, "prefill", json_true());
    if (w->prefill) json_object_del(row, "experts"); /* they are spread evenly */
    if (w->pages) json_object_set_new(row, "pages", json_true());
}

sl_status sl_sides_from_json(sl_json v, sl_plan *p, sl_err *err) {
    return sl_json_u32(v, "prefill_rows", SL_JSON_OPTIONAL, 1, UINT32_MAX, &p->prefill_rows, err);
}

void sl_sides_print(const sl_plan *p, json_t *doc) {
    if (sl_plan_has_prefill(p))
        json_object_set_new(doc, "prefill_rows", json_integer(p->prefill_rows));
}

sl_status sl_sides_check(const sl_plan *p, sl_err *err) {
    const uint32_t prompts = roles_of(p, true);
    if (!sl_plan_has_prefill(p)) return SL_OK;
    if (!(prompts & SL_ROLE_ATTENTION))
        return sl_fail(err, SL_ERR_ARG,
                       "plan: workers for prompts (prefill), and none of them has "
                       "attention");
    if (prompts == BOTH || !sl_schedule_traits_of(p->schedule)->barriers) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "plan: schedule %s: rows of prompts and of others would wait for each other at "
                   "each layer: workers for prompts need experts of their own (--prefill-experts), "
                   "or schedule aep",
                   sl_schedule_name(p->schedule));
}

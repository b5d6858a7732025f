/* What src/sched/room says about memory, asked before somebody leaves or comes on purpose, and told
 * when a loss leaves no choice. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "base/memory.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <string.h>

sl_status sl_rooming_open(sl_engine *e, sl_err *err) {
    sl_rooming *r = &e->rooming;
    size_t n = e->plan.n_workers;
    r->arrays =
        sl_alloc_arrays(SL_ARRAY(r->free, n), SL_ARRAY(r->machine, n), SL_ARRAY(r->added, n),
                        SL_ARRAY(r->there, n), SL_ARRAY(r->takes, n), SL_ARRAY(r->own, n));
    return r->arrays ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "memory of %zu workers", n);
}

void sl_rooming_close(sl_engine *e) {
    sl_free(e->rooming.arrays);
    e->rooming = (sl_rooming){0};
}

/* ---- what there is ---- */

static uint64_t limited(const sl_engine *e, uint64_t bytes) {
    return e->o.adapt_memory ? SL_MIN(bytes, e->o.adapt_memory) : bytes;
}

/* Workers on one GPU say the same; of which machine it is they have said before. */
static uint64_t gpu_of(const sl_engine *e, uint32_t id) {
    const uint64_t index = sl_plan_device_of(&e->plan, id).index;
    return e->worker[id].stats.machine ^ (index + 1) * 0x9E3779B97F4A7C15ull;
}

/* Experts take memory of the worker's GPU. */
static bool has_own(const sl_plan *p, uint32_t id) {
    return sl_plan_on_gpu(p, id) && !sl_plan_device_of(p, id).offload;
}

sl_room sl_rooming_look(sl_engine *e) {
    sl_rooming *r = &e->rooming;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_worker_stats *s = &e->worker[i].stats;
        r->own[i] = has_own(&e->plan, i);
        const uint64_t said = r->own[i] ? s->device_free : s->memory_free;
        const uint64_t there = s->wall_us ? said : UINT64_MAX;
        r->free[i] = r->own[i] ? there : limited(e, there);
        r->machine[i] = r->own[i] ? gpu_of(e, i) : s->machine;
    }
    return (sl_room){e->plan.n_workers, r->free, r->machine, r->own};
}

void sl_rooming_heard(sl_engine *e, uint32_t id, bool first) {
    const sl_worker_stats *s = &e->worker[id].stats;
    const bool hosts = e->home.worker[id].roles & SL_ROLE_EXPERT;
    if (first && hosts && s->device_free != UINT64_MAX)
        sl_log(SL_LOG_INFO, "engine", "worker %u: cuda:%u has %.2f MB left for experts", id,
               sl_plan_device_of(&e->plan, id).index, 1e-6 * (double)s->device_free);
}

/* ---- what is asked ---- */

/* Who serves, and is to. */
static bool stays(const sl_engine *e, uint32_t id) {
    const sl_recover_place *p = &e->recover.place[id];
    return sl_roster_serves(&e->roster, id) && sl_drain_wants(&e->drain, id) && !p->rests &&
           !p->doomed && !p->dropped;
}

/* r->added by the plan of those in r->there, as recovery will make it. */
static sl_status count_added(sl_engine *e, const sl_plan *home, sl_err *err) {
    sl_rooming *r = &e->rooming;
    sl_plan to;
    sl_status st = sl_plan_among(home, r->there, &to, err);
    if (st != SL_OK) return st;
    sl_placement_added(&e->plan, &to, e->spec.n_moe, r->added);
    sl_plan_free(&to);
    return SL_OK;
}

/* Bytes of this machine's memory that requests of workers that leave write elsewhere, where pages
 * were never written to. Pages on a GPU are all there from the start. */
static uint64_t kv_that_moves(sl_engine *e) {
    uint64_t moves = 0, free = 0, written = 0;
    if (sl_device_is_modelled(&e->plan.device)) return 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const sl_pages *p = &e->admit.worker[i].pages;
        if (!(e->plan.worker[i].roles & SL_ROLE_ATTENTION)) continue;
        if (!e->rooming.there[i]) {
            moves += p->n_total - sl_pages_spare(p); /* what is cached does not move */
            continue;
        }
        if (sl_plan_on_gpu(&e->plan, i)) continue;
        free += sl_pages_spare(p);
        written += sl_pages_spare(p) - (p->n_total - p->n_touched);
    }
    moves = SL_MIN(moves, free); /* what finds no page waits */
    return moves > written ? (moves - written) * sl_kv_page_bytes(&e->spec) : 0;
}

static sl_status ask(sl_engine *e, const sl_room *room, uint64_t kv_bytes, const char *what,
                     uint32_t id, sl_err *err) {
    const sl_rooming *r = &e->rooming;
    const sl_room_need need = {.added = r->added,
                               .expert_bytes = e->o.expert_bytes,
                               .takes = kv_bytes ? r->takes : NULL,
                               .kv_bytes = kv_bytes};
    sl_room_lack lack;
    char why[200];
    if (sl_room_has(room, &need, &lack)) return SL_OK;
    sl_room_say(&lack, why, sizeof why);
    return sl_fail(err, SL_ERR_LIMIT, "worker %u %s: %s", id, what, why);
}

sl_status sl_rooming_leave(sl_engine *e, uint32_t id, sl_err *err) {
    sl_rooming *r = &e->rooming;
    const sl_room room = sl_rooming_look(e);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        r->there[i] = i != id && stays(e, i);
        r->takes[i] = r->there[i] && (e->home.worker[i].roles & SL_ROLE_ATTENTION) &&
                      !sl_plan_on_gpu(&e->plan, i);
    }
    sl_status st = count_added(e, &e->home, err);
    return st == SL_OK ? ask(e, &room, kv_that_moves(e), "stays", id, err) : st;
}

sl_status sl_rooming_among(sl_engine *e, const uint8_t *there, sl_err *err) {
    const sl_room room = sl_rooming_look(e);
    memcpy(e->rooming.there, there, e->plan.n_workers);
    sl_status st = count_added(e, &e->home, err);
    return st == SL_OK ? ask(e, &room, 0, "is lost", 0, err) : st;
}

/* What it gets when everybody is there: who is lost at the moment is recovery's business. Of a
 * machine that nobody has come from nothing is known. */
sl_status sl_rooming_come(sl_engine *e, const sl_plan *home, uint32_t id, sl_err *err) {
    sl_rooming *r = &e->rooming;
    const sl_room room = sl_rooming_look(e);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        bool wanted = sl_drain_wants(&e->drain, i) && !home->worker[i].spare;
        r->there[i] = i == id || wanted;
    }
    sl_status st = count_added(e, home, err);
    uint32_t gets = r->added[id];
    if (st != SL_OK) return st;
    memset(r->added, 0, e->plan.n_workers * sizeof *r->added);
    r->added[id] = gets;
    const bool here = e->recover.place[id].can_start && !has_own(&e->plan, id);
    r->free[id] = limited(e, here ? sl_memory_free() : UINT64_MAX);
    return ask(e, &room, 0, "cannot come", id, err);
}

void sl_rooming_tell(sl_engine *e, const sl_plan *to) {
    sl_err err;
    const sl_room room = sl_rooming_look(e);
    uint32_t lost = SL_ROSTER_NONE;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (e->plan.worker[i].roles && !to->worker[i].roles && sl_drain_wants(&e->drain, i))
            lost = i;
    if (lost == SL_ROSTER_NONE) return; /* who left on purpose was asked about */
    sl_placement_added(&e->plan, to, e->spec.n_moe, e->rooming.added);
    if (ask(e, &room, 0, "is lost, and others take over what does not fit", lost, &err) != SL_OK)
        sl_log(SL_LOG_WARN, "engine", "%s", err.msg);
}

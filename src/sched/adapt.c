/* Windows of measured load, and the verdict on a placement that is made from them. */
#include "sched/adapt.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

#define JUDGED_BY 4u /* windows after a change */
/* Windows that a change waits while their load still turns into another one. */
#define MOST_WAITS 4u
/* One in so many places of a device's memory stays free. */
#define HEADROOM 8u

sl_status sl_adapt_create(const sl_rebalance_shape *s, const sl_adapt_opts *o, uint64_t now_us,
                          sl_adapt *out, sl_err *err) {
    size_t n = (size_t)s->n_blocks * s->n_experts;
    *out = (sl_adapt){.o = *o, .opened_us = now_us, .pause_us = o->pause_us};
    sl_status st = sl_rebalance_create(s, &out->balance, err);
    if (st == SL_OK) st = sl_spread_create(s, &out->now, err);
    if (st == SL_OK) st = sl_spread_create(s, &out->next, err);
    if (st == SL_OK) st = sl_spread_create(s, &out->before, err);
    if (st != SL_OK) {
        sl_adapt_free(out);
        return st;
    }
    out->arrays = sl_alloc_arrays(
        SL_ARRAY(out->earlier.rows, n), SL_ARRAY(out->earlier.calls, n),
        SL_ARRAY(out->last.rows, n), SL_ARRAY(out->last.calls, n), SL_ARRAY(out->open.rows, n),
        SL_ARRAY(out->open.calls, n), SL_ARRAY(out->added, s->n_workers),
        SL_ARRAY(out->limits.most, s->n_workers), SL_ARRAY(out->limits.gets, s->n_workers),
        SL_ARRAY(out->limits.full, s->n_workers));
    if (out->arrays) return SL_OK;
    sl_adapt_free(out);
    return sl_fail(err, SL_ERR_NOMEM, "load of %u blocks of %u experts", s->n_blocks, s->n_experts);
}

void sl_adapt_free(sl_adapt *a) {
    sl_rebalance_free(&a->balance);
    sl_spread_free(&a->now);
    sl_spread_free(&a->next);
    sl_spread_free(&a->before);
    sl_free(a->arrays);
    *a = (sl_adapt){0};
}

void sl_adapt_add(sl_adapt *a, uint32_t block, uint32_t expert, sl_adapt_said said) {
    size_t i = (size_t)block * a->balance.shape.n_experts + expert;
    /* Rows that were dropped, as a change broke their steps, come again. */
    double came = fmax(0, (double)said.rows + (double)said.queued);
    a->open.rows[i] += came;
    a->open.calls[i] += (double)said.calls;
    a->open_rows += came;
}

static void reopen(sl_adapt *a, uint64_t now_us) {
    size_t n = (size_t)a->balance.shape.n_blocks * a->balance.shape.n_experts;
    memset(a->open.rows, 0, n * sizeof *a->open.rows);
    memset(a->open.calls, 0, n * sizeof *a->open.calls);
    a->open_rows = 0;
    a->opened_us = now_us;
}

/* The last window goes to the earlier ones, the open one is the last. */
static void close_window(sl_adapt *a, uint64_t now_us) {
    size_t n = (size_t)a->balance.shape.n_blocks * a->balance.shape.n_experts;
    for (size_t i = 0; i < n; i++) {
        a->earlier.rows[i] = a->o.decay * a->earlier.rows[i] + a->last.rows[i];
        a->earlier.calls[i] = a->o.decay * a->earlier.calls[i] + a->last.calls[i];
    }
    sl_rebalance_load oldest = a->last;
    a->last = a->open;
    a->open = oldest;
    a->last_us = now_us - a->opened_us;
    a->last_rows = a->open_rows;
    a->n_closed = SL_MIN(a->n_closed + 1, 2u);
    sl_rebalance_join_calls(&a->balance, &a->now, &a->last);
    reopen(a, now_us);
}

static double ratio(sl_rebalance_cost c) {
    return c.bound_us > 0 ? c.us / c.bound_us : 1;
}

static sl_rebalance_cost cost(sl_adapt *a, const sl_rebalance_load *l, const sl_spread *by,
                              const sl_adapt_view *v) {
    return sl_rebalance_cost_of(&a->balance, l, by, v->n_hosts);
}

/* What the old placement would cost over what the one that holds does. */
static double worth(sl_adapt *a, const sl_rebalance_load *l, const sl_spread *old,
                    const sl_spread *by, const sl_adapt_view *v) {
    double was = cost(a, l, old, v).us, is = cost(a, l, by, v).us;
    return is > 0 ? was / is : 1;
}

/* Whether the last change keeps what it promised. */
static void judge(sl_adapt *a, const sl_adapt_view *v) {
    if (a->to_judge == 0) return;
    a->kept += (worth(a, &a->last, &a->before, &a->now, v) - 1) / JUDGED_BY;
    if (--a->to_judge > 0) return;
    if (a->kept >= (a->promised - 1) / 2) {
        a->n_doublings -= a->n_doublings > 0;
        return;
    }
    a->n_doublings = SL_MIN(a->n_doublings + 1, a->o.max_doublings);
    a->rests_until_us = a->changed_us + (a->o.rest_us << a->n_doublings);
}

/* What even experts seem to cost above the least because rows come by chance: about the mean of the
 * most of n_hosts numbers of rows. */
static double chance(const sl_adapt *a, const sl_adapt_view *v) {
    const sl_rebalance_shape *s = &a->balance.shape;
    double of_one = a->last_rows / v->n_hosts / (s->barrier ? s->n_blocks : 1);
    return of_one > 0 ? sqrt(log(v->n_hosts) / of_one) : 0;
}

static bool is_uneven(sl_adapt *a, const sl_adapt_view *v) {
    return a->imbalance >= a->o.uneven && ratio(cost(a, &a->earlier, &a->now, v)) >= a->o.uneven;
}

static void rest(sl_adapt *a, uint64_t now_us) {
    a->phase = SL_ADAPT_COUNTS;
    a->rests_until_us = now_us + (a->o.rest_us << a->n_doublings);
}

/* Workers whose devices share this one's memory, it among them. */
static uint32_t n_sharing(const sl_adapt_view *v, uint32_t worker) {
    uint32_t n = 0;
    for (uint32_t j = 0; j < v->n_hosts; j++) {
        const uint32_t w = v->host[j];
        n += v->room.own[w] && v->room.machine[w] == v->room.machine[worker];
    }
    return n;
}

/* Places of a device's memory, of which it has `has` now and may fill so many more. */
static void limit(sl_rebalance_limits *l, uint32_t worker, uint32_t has, uint64_t more) {
    const uint64_t all = SL_MIN(has + more, (uint64_t)UINT32_MAX - 1);
    const uint64_t spare = SL_MAX(all / HEADROOM, SL_MIN(all, (uint64_t)1));
    l->gets[worker] = (uint32_t)(all - has);
    l->most[worker] = (uint32_t)(all - spare);
}

static void set_limits(sl_adapt *a, const sl_adapt_view *v) {
    const sl_spread *now = &a->now;
    const uint32_t n = a->balance.shape.n_workers, n_pieces = now->first[a->balance.shape.n_blocks];
    a->limited = false;
    a->limits.lacks = UINT32_MAX;
    memset(a->limits.full, 0, n);
    memset(a->added, 0, n * sizeof *a->added); /* how many there are now */
    for (uint32_t i = 0; i < n_pieces; i++) a->added[now->piece[i].worker]++;
    for (uint32_t i = 0; i < n; i++) a->limits.most[i] = a->limits.gets[i] = UINT32_MAX;
    for (uint32_t j = 0; v->room.own && j < v->n_hosts; j++) {
        const uint32_t w = v->host[j];
        if (!v->room.own[w]) continue;
        a->limited = true;
        if (a->o.expert_bytes == 0) continue;
        const bool known =
            v->room.free[w] != UINT64_MAX; /* else it gets none before it has spoken */
        const uint64_t more = known ? v->room.free[w] / a->o.expert_bytes / n_sharing(v, w) : 0;
        limit(&a->limits, w, a->added[w], more);
        a->limits.full[w] = known && more == 0;
    }
}

/* Something was to go where no more fits: of several experts, one. */
static bool lacks_room(sl_adapt *a, const sl_adapt_view *v) {
    const uint32_t w = a->limits.lacks;
    if (!a->limited || w == UINT32_MAX) return false;
    const sl_room_lack lack = {w, a->o.expert_bytes, v->room.free[w], true};
    sl_room_say(&lack, a->why, sizeof a->why);
    return true;
}

static bool fits(sl_adapt *a, const sl_adapt_view *v) {
    const sl_room_need need = {.added = a->added, .expert_bytes = a->o.expert_bytes};
    sl_room_lack lack;
    bool has = sl_room_has(&v->room, &need, &lack);
    if (!has) sl_room_say(&lack, a->why, sizeof a->why);
    return has;
}

/* Microseconds that the change costs: its pause, and the worker with the most to map. */
static double price_us(sl_adapt *a) {
    uint32_t most = 0;
    a->promise.n_moved = 0;
    sl_rebalance_added(&a->balance, &a->now, &a->next, a->added);
    for (uint32_t i = 0; i < a->balance.shape.n_workers; i++) {
        most = SL_MAX(most, a->added[i]);
        a->promise.n_moved += a->added[i];
    }
    return a->pause_us + most * (double)a->o.expert_bytes / 1048576.0 * a->o.touch_us;
}

static sl_adapt_word refused(sl_adapt *a, uint64_t now_us) {
    a->n_doublings = SL_MIN(a->n_doublings + 1, a->o.max_doublings);
    rest(a, now_us);
    return SL_ADAPT_REFUSED;
}

/* `next` is whole. */
static sl_adapt_word decide(sl_adapt *a, const sl_adapt_view *v, uint64_t now_us) {
    sl_rebalance_cost was = cost(a, &a->last, &a->now, v), is = cost(a, &a->last, &a->next, v);
    double better =
        SL_MIN(is.us > 0 ? was.us / is.us : 1, worth(a, &a->earlier, &a->now, &a->next, v));
    double price = price_us(a);
    a->promise.before = ratio(was);
    a->promise.after = ratio(is);
    a->promise.saved = a->last_us > 0 ? (was.us - is.us) / (double)a->last_us : 0;
    a->phase = SL_ADAPT_COUNTS;
    if (better < a->o.worth || a->promise.saved * (double)a->o.horizon_us <= price)
        return lacks_room(a, v) ? refused(a, now_us) : SL_ADAPT_NOTHING;
    bool turns = !a->limited && a->promise.after > a->o.uneven + chance(a, v); /* bound: no room */
    if (turns && ++a->n_waits < MOST_WAITS) return SL_ADAPT_NOTHING;
    a->n_waits = 0;
    if (!fits(a, v)) return refused(a, now_us);
    a->promised = better;
    a->phase = SL_ADAPT_CHANGES;
    return SL_ADAPT_CHANGE;
}

bool sl_adapt_is_due(const sl_adapt *a, uint64_t now_us) {
    if (a->phase != SL_ADAPT_COUNTS) return a->phase == SL_ADAPT_THINKS;
    return now_us >= a->opened_us + a->o.window_us &&
           a->open_rows >= a->o.window_rows * a->balance.shape.n_blocks;
}

sl_adapt_word sl_adapt_next(sl_adapt *a, const sl_adapt_view *v, uint64_t now_us) {
    const sl_rebalance_shape *s = &a->balance.shape;
    sl_err err;
    if (!sl_adapt_is_due(a, now_us) || v->n_hosts < 2) return SL_ADAPT_NOTHING;
    if (a->phase == SL_ADAPT_COUNTS) {
        if (!sl_spread_of(s, v->now, &a->now)) return SL_ADAPT_NOTHING;
        close_window(a, now_us);
        a->imbalance = ratio(cost(a, &a->last, &a->now, v));
        judge(a, v);
        if (a->n_closed < 2 || now_us < a->rests_until_us || !is_uneven(a, v))
            return SL_ADAPT_NOTHING;
        a->phase = SL_ADAPT_THINKS;
        a->block = 0;
        set_limits(a, v);
    }
    const sl_rebalance_task t = {.load = &a->earlier,
                                 .now = &a->now,
                                 .host = v->host,
                                 .n_hosts = v->n_hosts,
                                 .limits = a->limited ? &a->limits : NULL};
    if (sl_rebalance_block(&a->balance, &t, a->block, &a->next, &err) != SL_OK) {
        rest(a, now_us);
        return SL_ADAPT_NOTHING;
    }
    return ++a->block < s->n_blocks ? SL_ADAPT_NOTHING : decide(a, v, now_us);
}

void sl_adapt_changed(sl_adapt *a, bool taken, uint64_t pause_us, uint64_t now_us) {
    if (a->phase != SL_ADAPT_CHANGES) return;
    if (!taken) a->n_doublings = SL_MIN(a->n_doublings + 1, a->o.max_doublings);
    rest(a, now_us);
    reopen(a, now_us);
    if (!taken) return;
    sl_spread_copy(&a->balance.shape, &a->now, &a->before);
    a->pause_us = (double)pause_us;
    a->changed_us = now_us;
    a->to_judge = JUDGED_BY;
    a->kept = 0;
}

void sl_adapt_disturbed(sl_adapt *a, uint64_t now_us) {
    if (a->phase == SL_ADAPT_THINKS) a->phase = SL_ADAPT_COUNTS;
    a->to_judge = 0;
    reopen(a, now_us);
}

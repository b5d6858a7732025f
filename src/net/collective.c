/* Collectives, whoever the ranks are: the calls, waiting, and the one tree of additions. */
#include "net/collective_int.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <string.h>

#define LINE_FLOATS 16u
#define STOOD_NS    1000000000u /* more between two looks at the clock is no time of anybody's */

/* ---- waiting ---- */

/* Who has ended and is waited for, be it by those whom this rank waits for; but where it waits for
 * rank 0 to speak: the others may have heard that they can leave. What one wrote before it came is
 * there. */
static sl_status look_for_gone(sl_coll *c, bool patient) {
    for (uint32_t i = 0; i < (patient ? 1 : c->o.rank.of); i++)
        if (i != c->o.rank.index && c->ops->is_gone(c, i) && !c->ops->has_come(c, i))
            return sl_fail(&c->err, SL_ERR_PEER_DOWN, "rank %u of %u has ended", i, c->o.rank.of);
    return SL_OK;
}

sl_status sl_coll_look(sl_coll *c, sl_coll_wait *w, uint32_t rank, bool patient) {
    const uint64_t now = sl_now_ns();
    if (!w->now) w->now = w->ticked = w->looked = now;
    w->spent += SL_MIN(now - w->now, (uint64_t)STOOD_NS);
    w->now = now;
    if (c->o.tick && now - w->ticked >= c->o.tick_us * 1000ull) {
        c->o.tick(c->o.ctx);
        w->ticked = sl_now_ns();
    }
    if (now - w->looked >= SL_COLL_LOOK_NS) {
        w->looked = now;
        if (look_for_gone(c, patient) != SL_OK) return c->err.code;
    }
    if (!patient && w->spent > c->o.deadline_ms * 1000000ull)
        return sl_fail(&c->err, SL_ERR_TIMEOUT, "rank %u of %u did not come within %u ms", rank,
                       c->o.rank.of, c->o.deadline_ms);
    return SL_OK;
}

/* ---- rows ---- */

#define BLOCK 256u

static void add_block(float *sum, const float *a, const float *b) {
    for (uint32_t i = 0; i < BLOCK; i++) sum[i] = a[i] + b[i];
}

static void add_some(float *sum, const float *a, const float *b, size_t n) {
    if (n == BLOCK) {
        add_block(sum, a, b);
        return;
    }
    for (size_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
}

void sl_coll_add_up(uint32_t ranks, const float *const *from, size_t n, float *to) {
    SL_ASSERT(sl_ranks_can_be(ranks)); /* the tree is whole */
    float sum[SL_MAX_RANKS / 2][BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t some = SL_MIN(n - i, (size_t)BLOCK);
        for (uint32_t r = 0; r < ranks; r += 2)
            add_some(sum[r / 2], from[r] + i, from[r + 1] + i, some);
        for (uint32_t step = 1; step < ranks / 2; step *= 2)
            for (uint32_t r = 0; r < ranks / 2; r += 2 * step)
                add_some(sum[r], sum[r], sum[r + step], some);
        memcpy(to + i, sum[0], some * sizeof *to);
    }
}

sl_extent sl_coll_columns(sl_rank r, size_t width) {
    const sl_extent lines = sl_rank_range(r, (uint32_t)((width + LINE_FLOATS - 1) / LINE_FLOATS));
    const uint32_t first = SL_MIN((uint32_t)width, lines.first * LINE_FLOATS);
    return (sl_extent){first,
                       SL_MIN((uint32_t)width, (lines.first + lines.n) * LINE_FLOATS) - first};
}

sl_status sl_coll_check_part(sl_coll *c, uint32_t rank, sl_extent its, size_t width) {
    if (its.first <= width && its.n <= width - its.first) return SL_OK;
    return sl_fail(&c->err, SL_ERR_PROTOCOL, "rank %u of %u has columns %u to %llu of %zu", rank,
                   c->o.rank.of, its.first, (unsigned long long)its.first + its.n, width);
}

void sl_coll_put_part(const float *from, size_t at, size_t n, sl_extent its, size_t width,
                      float *whole) {
    for (size_t done = 0; done < n;) {
        const size_t row = (at + done) / its.n, column = (at + done) % its.n;
        const size_t some = SL_MIN(n - done, its.n - column);
        float *to = whole + row * width + its.first + column;
        if (to != from + done) memcpy(to, from + done, some * sizeof *to);
        done += some;
    }
}

/* ---- calls ---- */

/* The end of a call that began then. Only the rank's own thread writes, so no addition is lost. */
static sl_status told(sl_coll *c, uint64_t began, sl_status st, sl_err *err) {
    const uint64_t spent = atomic_load_explicit(&c->spent_ns, memory_order_relaxed);
    atomic_store_explicit(&c->spent_ns, spent + (sl_now_ns() - began), memory_order_relaxed);
    if (st != SL_OK) *err = c->err;
    return st;
}

uint64_t sl_coll_spent_ns(const sl_coll *c) {
    return atomic_load_explicit(&c->spent_ns, memory_order_relaxed);
}

/* What was begun before comes first. */
static sl_status ready(sl_coll *c, sl_coll_step last) {
    c->last = last;
    if (c->err.code != SL_OK || !c->ops->finish) return c->err.code;
    return c->ops->finish(c, UINT64_MAX);
}

sl_status sl_coll_meet(sl_coll *c, sl_coll_step step, sl_err *err) {
    SL_ASSERT(c->err.code != SL_OK || step == SL_COLL_ALL || step != c->last);
    const uint64_t began = sl_now_ns();
    sl_status st = ready(c, step);
    if (st == SL_OK) st = c->ops->step(c, step);
    const bool for_work = step == SL_COLL_SPEAKS && c->o.rank.index > 0;
    return told(c, for_work ? sl_now_ns() : began, st, err);
}

sl_status sl_coll_all_reduce(sl_coll *c, float *y, size_t n, sl_err *err) {
    const uint64_t began = sl_now_ns();
    const sl_status st = ready(c, SL_COLL_ALL);
    return told(c, began, st != SL_OK ? st : c->ops->all_reduce(c, y, n), err);
}

sl_status sl_coll_reduce_scatter(sl_coll *c, float *y, uint32_t n_rows, uint32_t width,
                                 uint32_t *first, uint32_t *n, sl_err *err) {
    const uint64_t began = sl_now_ns();
    const sl_extent mine = sl_coll_columns(c->o.rank, width);
    const sl_status st = ready(c, SL_COLL_ALL);
    *first = mine.first;
    *n = mine.n;
    return told(c, began, st != SL_OK ? st : c->ops->reduce_scatter(c, y, n_rows, width, mine),
                err);
}

sl_status sl_coll_all_gather(sl_coll *c, const float *part, uint32_t n_rows, uint32_t first,
                             uint32_t n, uint32_t width, float *whole, sl_err *err) {
    const uint64_t began = sl_now_ns();
    const sl_status st = ready(c, SL_COLL_ALL);
    const sl_extent mine = {first, n};
    return told(c, began,
                st != SL_OK ? st : c->ops->all_gather(c, part, n_rows, mine, width, whole), err);
}

/* ---- while rows travel ---- */

static sl_status begin(sl_coll *c, const float *part, size_t stride, uint32_t n_rows,
                       sl_extent mine, uint32_t width, float *whole, uint64_t *ticket,
                       sl_err *err) {
    SL_ASSERT(c->ops->begin != NULL);
    const uint64_t began = sl_now_ns();
    c->last = SL_COLL_ALL;
    *ticket = 0;
    if (c->err.code != SL_OK) return told(c, began, c->err.code, err);
    return told(c, began, c->ops->begin(c, part, stride, n_rows, mine, width, whole, ticket), err);
}

sl_status sl_coll_begin_gather(sl_coll *c, const float *part, uint32_t n_rows, uint32_t first,
                               uint32_t n, uint32_t width, float *whole, uint64_t *ticket,
                               sl_err *err) {
    return begin(c, part, n, n_rows, (sl_extent){first, n}, width, whole, ticket, err);
}

sl_status sl_coll_begin_share(sl_coll *c, float *rows, uint32_t n_rows, uint32_t first, uint32_t n,
                              uint32_t width, uint64_t *ticket, sl_err *err) {
    return begin(c, rows + first, width, n_rows, (sl_extent){first, n}, width, rows, ticket, err);
}

sl_status sl_coll_finish(sl_coll *c, uint64_t ticket, sl_err *err) {
    SL_ASSERT(c->ops->finish != NULL);
    const uint64_t began = sl_now_ns();
    return told(c, began, c->err.code != SL_OK ? c->err.code : c->ops->finish(c, ticket), err);
}

/* ---- life ---- */

void sl_coll_check(const sl_coll_opts *o) {
    SL_ASSERT(o->rank.of <= SL_MAX_RANKS && !sl_rank_alone(o->rank));
    SL_ASSERT(o->rank.index < o->rank.of && o->deadline_ms > 0);
}

void sl_coll_free(sl_coll *c) {
    if (c) c->ops->free(c);
}

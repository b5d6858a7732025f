/* Collectives in memory that all ranks map. A rank counts its step up in its own place, and waits
 * until the others have counted theirs up, polling for a while and then sleeping on a futex there.
 *
 * Ordering: what a rank wrote before it counts (release) is there for whoever has seen the count
 * (acquire), and for whoever has seen a count of that one's, and so on. Rows travel through slots,
 * two for each rank, which calls use in turn. A slot is written again two calls later. Between
 * these lies a step at which everybody waits for everybody, and a rank counts it up only when it
 * has read what it wanted: so nobody writes what somebody still reads. */
#include "net/collective_int.h"

#include "base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOT_BYTES  (256u << 10) /* two for each rank: larger rows go through in pieces */
#define SLOT_FLOATS (SLOT_BYTES / sizeof(float))
#define SLEEP_NS    100000000u /* at a time, where there is nothing else to do */

/* What a rank lets the others see besides its slot. */
typedef struct shown {
    const float *rows; /* of one memory */
    uint32_t first, n;
} shown;

/* One rank's place. Nobody else writes it, but for who sleeps there. */
typedef struct place {
    _Alignas(64) _Atomic uint32_t number; /* of steps that it has come to; a futex */
    _Atomic uint32_t sleepers;            /* who wait for it there */
    _Alignas(64) shown shown[2];
} place;

typedef struct memory {
    sl_coll base;
    place *place; /* [ranks] */
    float *slot;  /* [ranks][2][SLOT_FLOATS] */
    uint32_t number, turn;
} memory;

static memory *of(sl_coll *c) {
    return (memory *)c;
}

/* ---- waiting ---- */

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Whether the rank of that place has come to the step; it may be ahead. */
static bool is_there(const place *p, uint32_t number) {
    return (int32_t)(atomic_load_explicit(&p->number, memory_order_acquire) - number) >= 0;
}

static void sleep_there(place *p, uint32_t number, uint64_t ns) {
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    /* Sequentially consistent with count_up: one of the two sees the other. */
    atomic_fetch_add(&p->sleepers, 1);
    const uint32_t now = atomic_load(&p->number);
    if ((int32_t)(now - number) < 0) syscall(SYS_futex, &p->number, FUTEX_WAIT, now, &ts, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void count_up(memory *c) {
    place *own = &c->place[c->base.o.rank.index];
    atomic_store(&own->number, ++c->number);
    if (atomic_load(&own->sleepers))
        syscall(SYS_futex, &own->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* How long who waits may sleep at a time. */
static uint64_t sleep_of(const sl_coll_opts *o, bool patient) {
    if (o->tick) return SL_MAX(o->tick_us, 1u) * 1000ull;
    return o->is_gone && !patient ? SL_COLL_LOOK_NS : SLEEP_NS;
}

static sl_status wait_for(memory *c, uint32_t rank, bool patient) {
    place *p = &c->place[rank];
    if (is_there(p, c->number)) return SL_OK;
    const uint64_t sleep_ns = sleep_of(&c->base.o, patient);
    sl_coll_wait w = {0};
    sl_status st = SL_OK;
    while (st == SL_OK && !is_there(p, c->number)) {
        if (w.spent < c->base.o.poll_ns)
            for (int i = 0; i < 32 && !is_there(p, c->number); i++) relax();
        else
            sleep_there(p, c->number, sleep_ns);
        if (!is_there(p, c->number)) st = sl_coll_look(&c->base, &w, rank, patient);
    }
    return st;
}

static sl_status take_step(memory *c, sl_coll_step step) {
    const uint32_t own = c->base.o.rank.index;
    sl_status st = c->base.err.code;
    if (st != SL_OK) return st;
    count_up(c);
    if (step == SL_COLL_SPEAKS) return own ? wait_for(c, 0, true) : SL_OK;
    if (step == SL_COLL_HEARS && own) return SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++)
        if (i != own) st = wait_for(c, i, false);
    return st;
}

/* ---- rows on their way ---- */

static float *slot_of(const memory *c, uint32_t rank) {
    return c->slot + (2 * rank + c->turn % 2) * SLOT_FLOATS;
}

static shown *shown_of(const memory *c, uint32_t rank) {
    return &c->place[rank].shown[c->turn % 2];
}

/* The part of y from `at` on, n values, of which every rank's lie in its slot: those of row r and
 * columns first .. first + count - 1, for all r, are added up. */
static void add_columns(const memory *c, float *y, size_t at, size_t n, size_t width, size_t first,
                        size_t count) {
    const float *from[SL_MAX_RANKS];
    for (size_t r = at / width; count && r * width < at + n; r++) {
        const size_t begin = SL_MAX(at, r * width + first);
        const size_t end = SL_MIN(at + n, r * width + first + count);
        if (begin >= end) continue;
        for (uint32_t i = 0; i < c->base.o.rank.of; i++) from[i] = slot_of(c, i) + (begin - at);
        from[c->base.o.rank.index] = y + begin;
        sl_coll_add_up(c->base.o.rank.of, from, end - begin, y + begin);
    }
}

static sl_status reduce_where_it_lies(memory *c, float *y, uint32_t n_rows, uint32_t width,
                                      sl_extent mine) {
    const float *from[SL_MAX_RANKS];
    shown_of(c, c->base.o.rank.index)->rows = y;
    sl_status st = take_step(c, SL_COLL_ALL);
    for (uint32_t r = 0; st == SL_OK && mine.n && r < n_rows; r++) {
        const size_t at = (size_t)r * width + mine.first;
        for (uint32_t i = 0; i < c->base.o.rank.of; i++) from[i] = shown_of(c, i)->rows + at;
        sl_coll_add_up(c->base.o.rank.of, from, mine.n, y + at);
    }
    c->turn++;
    return st;
}

static sl_status memory_reduce_scatter(sl_coll *base, float *y, uint32_t n_rows, uint32_t width,
                                       sl_extent mine) {
    memory *c = of(base);
    const size_t all = (size_t)n_rows * width;
    sl_status st = SL_OK;
    if (c->base.o.one_memory) return reduce_where_it_lies(c, y, n_rows, width, mine);
    for (size_t at = 0; st == SL_OK && at < all; at += SLOT_FLOATS) {
        const size_t some = SL_MIN(all - at, SLOT_FLOATS);
        memcpy(slot_of(c, c->base.o.rank.index), y + at, some * sizeof *y);
        st = take_step(c, SL_COLL_ALL);
        if (st == SL_OK) add_columns(c, y, at, some, width, mine.first, mine.n);
        c->turn++;
    }
    return st;
}

/* Each rank adds up all ranks' values by itself. */
static sl_status sum_alone(memory *c, float *y, size_t n) {
    const float *from[SL_MAX_RANKS];
    memcpy(slot_of(c, c->base.o.rank.index), y, n * sizeof *y);
    sl_status st = take_step(c, SL_COLL_ALL);
    for (uint32_t i = 0; i < c->base.o.rank.of; i++) from[i] = slot_of(c, i);
    if (st == SL_OK) sl_coll_add_up(c->base.o.rank.of, from, n, y);
    return st;
}

/* Each rank adds up a share of the values, in y, and takes the others' sums. Its slot has the
 * others' shares first, and where nobody looks for any its own's sums. */
static sl_status share_sums(memory *c, float *y, size_t n) {
    const sl_rank self = c->base.o.rank;
    const sl_extent mine = sl_coll_columns(self, n);
    const size_t after = (size_t)mine.first + mine.n;
    const float *from[SL_MAX_RANKS];
    float *own = slot_of(c, self.index);
    memcpy(own, y, mine.first * sizeof *y);
    memcpy(own + after, y + after, (n - after) * sizeof *y);
    sl_status st = take_step(c, SL_COLL_ALL);
    if (st != SL_OK) return st;
    for (uint32_t i = 0; i < self.of; i++)
        from[i] = (i == self.index ? y : slot_of(c, i)) + mine.first;
    sl_coll_add_up(self.of, from, mine.n, y + mine.first);
    memcpy(own + mine.first, y + mine.first, mine.n * sizeof *y);
    st = take_step(c, SL_COLL_ALL);
    for (uint32_t i = 0; st == SL_OK && i < self.of; i++) {
        const sl_extent its = sl_coll_columns((sl_rank){i, self.of}, n);
        if (i != self.index) memcpy(y + its.first, slot_of(c, i) + its.first, its.n * sizeof *y);
    }
    return st;
}

static sl_status memory_all_reduce(sl_coll *base, float *y, size_t n) {
    memory *c = of(base);
    sl_status st = SL_OK;
    for (size_t at = 0; st == SL_OK && at < n; at += SLOT_FLOATS) {
        const size_t some = SL_MIN(n - at, SLOT_FLOATS);
        const bool alone = some * c->base.o.rank.of <= SL_COLL_ALONE_FLOATS;
        st = (alone ? sum_alone : share_sums)(c, y + at, some);
        c->turn++;
    }
    return st;
}

static sl_extent extent_of(const memory *c, uint32_t rank) {
    const shown *s = shown_of(c, rank);
    return (sl_extent){s->first, s->n};
}

/* Piece by piece of all ranks' parts, until the longest is through. */
static sl_status gather_by_slots(memory *c, const float *part, uint32_t n_rows, sl_extent mine,
                                 size_t width, float *whole) {
    const size_t own = (size_t)n_rows * mine.n;
    size_t most = own;
    sl_status st = SL_OK;
    for (size_t at = 0; st == SL_OK && (at == 0 || at < most); at += SLOT_FLOATS) {
        if (at < own)
            memcpy(slot_of(c, c->base.o.rank.index), part + at,
                   SL_MIN(own - at, SLOT_FLOATS) * sizeof *part);
        *shown_of(c, c->base.o.rank.index) = (shown){.first = mine.first, .n = mine.n};
        st = take_step(c, SL_COLL_ALL);
        for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++) {
            const sl_extent its = extent_of(c, i);
            const size_t len = (size_t)n_rows * its.n;
            most = SL_MAX(most, len);
            st = sl_coll_check_part(&c->base, i, its, width);
            const float *from = i == c->base.o.rank.index ? part + at : slot_of(c, i);
            if (st == SL_OK && at < len)
                sl_coll_put_part(from, at, SL_MIN(len - at, SLOT_FLOATS), its, width, whole);
        }
        c->turn++;
    }
    return st;
}

static sl_status gather_where_it_lies(memory *c, const float *part, uint32_t n_rows, sl_extent mine,
                                      size_t width, float *whole) {
    *shown_of(c, c->base.o.rank.index) = (shown){part, mine.first, mine.n};
    sl_status st = take_step(c, SL_COLL_ALL);
    for (uint32_t i = 0; st == SL_OK && i < c->base.o.rank.of; i++) {
        const sl_extent its = extent_of(c, i);
        st = sl_coll_check_part(&c->base, i, its, width);
        if (st == SL_OK && its.n)
            sl_coll_put_part(shown_of(c, i)->rows, 0, (size_t)n_rows * its.n, its, width, whole);
    }
    c->turn++;
    return st == SL_OK ? take_step(c, SL_COLL_ALL) : st; /* part may be written */
}

static sl_status memory_all_gather(sl_coll *base, const float *part, uint32_t n_rows,
                                   sl_extent mine, uint32_t width, float *whole) {
    memory *c = of(base);
    return c->base.o.one_memory ? gather_where_it_lies(c, part, n_rows, mine, width, whole)
                                : gather_by_slots(c, part, n_rows, mine, width, whole);
}

/* ---- life ---- */

static sl_status memory_step(sl_coll *base, sl_coll_step step) {
    return take_step(of(base), step);
}

static bool memory_has_come(const sl_coll *base, uint32_t rank) {
    const memory *c = (const memory *)base;
    return is_there(&c->place[rank], c->number);
}

static bool memory_is_gone(const sl_coll *c, uint32_t rank) {
    return c->o.is_gone && c->o.is_gone(c->o.ctx, rank);
}

static void memory_free(sl_coll *c) {
    sl_free(c);
}

size_t sl_coll_bytes(uint32_t ranks) {
    return ranks * (sizeof(place) + 2 * SLOT_BYTES);
}

sl_status sl_coll_open(const sl_coll_opts *o, void *shared, sl_coll **out, sl_err *err) {
    static const sl_coll_ops ops = {.free = memory_free,
                                    .step = memory_step,
                                    .all_reduce = memory_all_reduce,
                                    .reduce_scatter = memory_reduce_scatter,
                                    .all_gather = memory_all_gather,
                                    .has_come = memory_has_come,
                                    .is_gone = memory_is_gone};
    sl_coll_check(o);
    SL_ASSERT((uintptr_t)shared % 64 == 0);
    memory *c = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "collectives of %u ranks", o->rank.of);
    c->base = (sl_coll){.ops = &ops, .o = *o};
    c->place = shared;
    c->slot = (float *)(void *)(c->place + o->rank.of);
    *out = &c->base;
    return SL_OK;
}

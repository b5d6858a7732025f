/* A gang: ranks that compute as one device, each on a device of its own with its part of the
 * weights and its heads' KV (docs/tensor-parallel.md). Ranks are threads of this process, so rows
 * lie once for all of them; the caller's thread is rank 0. A call is handed to all ranks, which
 * meet where sums cross them, and is through when submit returns. */
#include "stage/gang/meet.h"
#include "stage/stage_int.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A rank that does not come for so long will not come. */
#define DEADLINE_MS 600000u

/* As the threads of a pool; ranks that have no core each leave it to others at once. */
#define POLL_NS 30000u

typedef struct gang gang;

/* What all ranks do at once; false: it failed, and the rank's err says why. */
typedef bool (*gang_job)(gang *g, uint32_t rank, void *arg);

typedef struct member {
    gang *of;
    uint32_t rank;
    sl_device *device;
    sl_gang link; /* what its model meets the others by */
    sl_meeting_guest works, idles;
    pthread_t thread;
    bool ok;
    sl_err err;
    /* What it lets the others see, from one meeting to the next. */
    _Alignas(64) const float *rows;
    uint32_t first, n;
} member;

struct gang {
    sl_device base;
    uint32_t n, started;
    sl_meeting meeting;
    gang_job job;
    void *arg;
    sl_device_opts opts; /* while it opens */
    member *member;      /* [n] */
};

/* ---- all ranks at once ---- */

static void *rank_main(void *arg) {
    member *m = arg;
    gang *g = m->of;
    for (;;) {
        sl_meeting_join(&g->meeting, &m->idles);
        const gang_job job = g->job;
        if (job) m->ok = job(g, m->rank, g->arg);
        sl_meeting_join(&g->meeting, &m->works);
        if (!job) return NULL;
    }
}

/* False: it failed somewhere, *err says where first. job NULL: the other ranks leave. */
static bool all_do(gang *g, gang_job job, void *arg, sl_err *err) {
    g->job = job;
    g->arg = arg;
    sl_meeting_join(&g->meeting, &g->member[0].works);
    if (job) g->member[0].ok = job(g, 0, arg);
    sl_meeting_join(&g->meeting, &g->member[0].works);
    for (uint32_t i = 0; job && i < g->n; i++) {
        if (g->member[i].ok) continue;
        *err = g->member[i].err;
        return false;
    }
    return true;
}

/* ---- what ranks tell each other ---- */

static void meet(void *ctx) {
    member *m = ctx;
    sl_meeting_join(&m->of->meeting, &m->works);
}

/* n values of all ranks from `at` on, by the tree of the ranks, into those of rank `to`. */
static void add_up(const gang *g, const sl_exec *ex, size_t at, size_t n, uint32_t to) {
    float sum[SL_MAX_RANKS / 2][256];
    for (size_t i = 0; i < n; i += SL_LEN(sum[0])) {
        const size_t some = SL_MIN(n - i, SL_LEN(sum[0]));
        for (uint32_t r = 0; r < g->n; r += 2) {
            memcpy(sum[r / 2], g->member[r].rows + at + i, some * sizeof(float));
            sl_vec_add(ex, sum[r / 2], g->member[r + 1].rows + at + i, some);
        }
        for (uint32_t step = 1; step < g->n / 2; step *= 2)
            for (uint32_t r = 0; r < g->n / 2; r += 2 * step)
                sl_vec_add(ex, sum[r], sum[r + step], some);
        memcpy((float *)g->member[to].rows + at + i, sum[0], some * sizeof(float));
    }
}

static void sum(void *ctx, const sl_exec *ex, float *y, uint32_t n_rows, uint32_t width,
                uint32_t *first, uint32_t *n) {
    member *m = ctx;
    const gang *g = m->of;
    const sl_exec alone = {.k = ex->k};
    /* Whole cache lines, where there are enough. */
    const sl_extent mine = sl_rank_range((sl_rank){m->rank, g->n}, (width + 15) / 16);
    m->rows = y;
    meet(m);
    *first = SL_MIN(width, mine.first * 16);
    *n = SL_MIN(width, (mine.first + mine.n) * 16) - *first;
    for (uint32_t r = 0; r < n_rows; r++)
        add_up(g, &alone, (size_t)r * width + *first, *n, m->rank);
}

static void gather(void *ctx, const float *part, uint32_t n_rows, uint32_t first, uint32_t n,
                   uint32_t width, float *whole) {
    member *m = ctx;
    const gang *g = m->of;
    m->rows = part;
    m->first = first;
    m->n = n;
    meet(m);
    for (uint32_t i = 0; i < g->n; i++) {
        const member *from = &g->member[i];
        for (uint32_t r = 0; r < n_rows; r++)
            memcpy(whole + (size_t)r * width + from->first, from->rows + (size_t)r * from->n,
                   from->n * sizeof *whole);
    }
    meet(m);
}

/* ---- calls ---- */

static bool do_call(gang *g, uint32_t rank, void *arg) {
    sl_device_submit(g->member[rank].device, arg);
    return true;
}

/* Rows that only move need no gang. */
static bool is_for_one(sl_stage_op op) {
    return op == SL_OP_PACK || op == SL_OP_UNPACK || op == SL_OP_MOVE || op == SL_OP_MERGE;
}

static void gang_submit(sl_device *base, const sl_stage_call *c) {
    gang *g = (gang *)base;
    sl_err err;
    sl_stage_call call = *c;
    if (is_for_one(c->op))
        do_call(g, 0, &call);
    else
        SL_ASSERT(all_do(g, do_call, &call, &err));
    sl_device_ran(base, c->queue);
}

typedef struct hosting {
    const uint8_t *hosted;
    uint32_t max_pairs;
    bool patient;
    sl_hosting left[SL_MAX_RANKS];
} hosting;

static bool do_host(gang *g, uint32_t rank, void *arg) {
    hosting *h = arg;
    member *m = &g->member[rank];
    return sl_device_host(m->device, h->hosted, h->max_pairs, h->patient, &h->left[rank],
                          &m->err) == SL_OK;
}

static sl_status gang_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                           sl_hosting *left, sl_err *err) {
    gang *g = (gang *)base;
    hosting h = {.hosted = hosted, .max_pairs = max_pairs, .patient = patient};
    if (!all_do(g, do_host, &h, err)) return err->code;
    *left = SL_HOSTING_DONE;
    for (uint32_t i = 0; i < g->n; i++) {
        if (h.left[i] == SL_HOSTING_GOES_ON) *left = SL_HOSTING_GOES_ON;
        if (h.left[i] == SL_HOSTING_WAITS && *left == SL_HOSTING_DONE) *left = SL_HOSTING_WAITS;
    }
    return SL_OK;
}

/* ---- pages: as those of one device, of all heads ---- */

typedef void (*tile_fn)(float *whole, float *mine, size_t floats);

static void tile_to(float *whole, float *mine, size_t floats) {
    memcpy(whole, mine, floats * sizeof *whole);
}

static void tile_from(float *whole, float *mine, size_t floats) {
    memcpy(mine, whole, floats * sizeof *mine);
}

/* Calls fn for each tile of a rank in one block of a page and its place among all heads'. */
static void each_tile(const gang *g, uint32_t rank, uint32_t page, uint32_t layer, float *block,
                      tile_fn fn) {
    const sl_model_spec *all = g->base.spec;
    const sl_device *d = g->member[rank].device;
    const sl_extent heads = sl_cpu_kv_heads(d);
    const size_t tile = sl_kv_tile_floats(all);
    if (heads.n == 0) return;
    float *mine = sl_cpu_block(d, page, layer);
    for (uint32_t side = 0; side < sl_kv_sides(all); side++)
        for (uint32_t h = 0; h < heads.n; h++)
            fn(block + ((size_t)side * all->n_kv_heads + heads.first + h) * tile,
               mine + ((size_t)side * heads.n + h) * tile, tile);
}

static void gang_read_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n, void *to) {
    const gang *g = (gang *)base;
    const size_t block = sl_kv_block_bytes(base->spec) / sizeof(float);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < g->n; r++)
            each_tile(g, r, page, first + i, (float *)to + i * block, tile_to);
}

static void gang_write_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                            const void *from) {
    const gang *g = (gang *)base;
    const size_t block = sl_kv_block_bytes(base->spec) / sizeof(float);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < g->n; r++)
            each_tile(g, r, page, first + i, (float *)from + i * block, tile_from);
}

/* ---- opening and closing ---- */

static bool do_close(gang *g, uint32_t rank, void *arg) {
    (void)arg;
    sl_device *d = g->member[rank].device;
    if (d) d->ops->close(d);
    g->member[rank].device = NULL;
    return true;
}

static void gang_close(sl_device *base) {
    gang *g = (gang *)base;
    sl_err err;
    if (g->started + 1 == g->n) {
        all_do(g, do_close, NULL, &err);
        all_do(g, NULL, NULL, &err);
    }
    for (uint32_t i = 1; i <= g->started; i++) pthread_join(g->member[i].thread, NULL);
    sl_free(g->member);
    sl_free(g);
}

static bool do_open(gang *g, uint32_t rank, void *arg) {
    member *m = &g->member[rank];
    sl_device_opts o = g->opts;
    (void)arg;
    o.ranks = 0;
    o.kv_fd = 0;
    o.hosts.rank = (sl_rank){rank, g->n};
    o.threads = SL_MAX(o.threads / g->n, 1u);
    o.gang = &m->link;
    if (rank) o.tick = NULL;
    if (rank) o.progress = NULL; /* ranks read about as much: one speaks for all */
    return sl_cpu_open(&o, &m->device, &m->err) == SL_OK;
}

/* Ranks that got nothing of something: more ranks than there are units of it. */
static void note_who_idles(gang *g) {
    size_t at = 0, cap = sizeof g->base.note;
    for (uint32_t i = 0; i < g->n && at < cap; i++) {
        const sl_idle idle = sl_cpu_idle(g->member[i].device);
        if (!idle.heads && !idle.dense && !idle.expert && !idle.shared) continue;
        int n = snprintf(g->base.note + at, cap - at, "%srank %u of %u has none of%s%s%s%s",
                         at ? "; " : "", i, g->n, idle.heads ? " heads" : "",
                         idle.dense ? " dense" : "", idle.expert ? " experts" : "",
                         idle.shared ? " shared" : "");
        at += n > 0 ? (size_t)n : 0;
    }
}

static void make_members(gang *g, const sl_device_opts *o) {
    for (uint32_t i = 0; i < g->n; i++) {
        member *m = &g->member[i];
        m->of = g;
        m->rank = i;
        m->link = (sl_gang){.sum = sum, .gather = gather, .meet = meet, .ctx = m};
        m->works = (sl_meeting_guest){.rank = i, .deadline_ms = DEADLINE_MS};
        m->idles = (sl_meeting_guest){.rank = i};
    }
    g->member[0].works.tick = o->tick;
    g->member[0].works.ctx = o->ctx;
    g->member[0].works.tick_us = o->tick_us;
}

/* All or none: a meeting waits for each. */
static sl_status start_ranks(gang *g, sl_err *err) {
    for (uint32_t i = 1; i < g->n; i++) {
        int e = pthread_create(&g->member[i].thread, NULL, rank_main, &g->member[i]);
        if (e == 0) {
            g->started++;
            continue;
        }
        /* Those that wait for work find none, with this thread in the places of the missing. */
        g->job = NULL;
        for (uint32_t round = 0; round < 2; round++) {
            atomic_fetch_add(&g->meeting.came, g->n - g->started - 1);
            sl_meeting_join(&g->meeting, &g->member[0].works);
        }
        return sl_fail(err, SL_ERR_LIMIT, "rank %u of %u does not start: error %d", i, g->n, e);
    }
    return SL_OK;
}

sl_status sl_gang_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = gang_close,
                                      .submit = gang_submit,
                                      .take = sl_host_take,
                                      .give = sl_host_give,
                                      .host = gang_host,
                                      .read_page = gang_read_page,
                                      .write_page = gang_write_page};
    if (!sl_ranks_can_be(o->ranks))
        return sl_fail(err, SL_ERR_ARG, "a gang of %u ranks: 1, 2, 4 or 8", o->ranks);
    if (o->device->kind != SL_DEVICE_CPU)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a gang of %u ranks: their devices can only be cpu",
                       o->ranks);
    gang *g = sl_alloc(1, sizeof *g);
    member *members = sl_alloc(o->ranks, sizeof *members);
    if (!g || !members) {
        sl_free(g), sl_free(members);
        return sl_fail(err, SL_ERR_NOMEM, "a gang of %u ranks", o->ranks);
    }
    g->base = (sl_device){.ops = &ops, .in_place = true, .resumes = true};
    g->n = g->meeting.n = o->ranks;
    g->meeting.poll_ns = sysconf(_SC_NPROCESSORS_ONLN) >= (long)o->ranks ? POLL_NS : 0;
    g->member = members;
    g->opts = *o;
    make_members(g, o);
    sl_status st = start_ranks(g, err);
    if (st == SL_OK && !all_do(g, do_open, NULL, err)) st = err->code;
    if (st != SL_OK) {
        gang_close(&g->base);
        return st;
    }
    g->base.spec = sl_cpu_stored_of(g->member[0].device);
    note_who_idles(g);
    *out = &g->base;
    return SL_OK;
}

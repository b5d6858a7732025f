/* Times of the stages: the functions of src/model that workers call, on rows as they come in
 * decoding, with weights and keys that no cache still holds. */
#include "profile.h"

#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/topology.h"
#include "engine/measure/stage_lab.h"
#include "engine/measure/state_walk.h"
#include "kernel/delta.h"
#include "model/sampler.h"
#include "plan/fit.h"
#include "quant/kv_rows.h"
#include "spec/kv.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_ROWS      256u
#define MAX_GROUPS    32u
#define MAX_PAIRS     2048u /* rows of all experts of a task */
#define MAX_HEAD_ROWS 64u
#define MAX_CONTEXT   2048u
#define CYCLE_LAYERS  8u
#define FLUSH_LEAST   ((size_t)64 << 20) /* read between calls, or as much as the largest cache */
#define FLUSH_MOST    ((size_t)512 << 20)
#define FLUSHED_REPS  8u
#define KV_BYTES      ((size_t)256 << 20)
#define BESIDE_KV     ((size_t)64 << 20) /* of the neighbour */
#define POINT_NS      40000000ull        /* a point is repeated for so long... */
#define MIN_REPS      5u                 /* ...but so often */
#define MAX_REPS      64u
#define SLOW_NS       300000000ull /* calls as slow as this are repeated less, and nothing larger */
#define LEAST_POINTS  4u           /* of a stage, also past the deadline */

typedef struct bench {
    const sl_model *m;
    const sl_model_spec *spec;
    const sl_exec *ex;
    sl_arena scratch;
    float *x, *h, *y, *logits, *gate;
    uint32_t *expert, *row, *id, *pos;
    uint8_t *kv;
    size_t kv_bytes;
    uint32_t *page; /* [n_pages] */
    const uint32_t **row_pages;
    uint32_t n_pages;
    uint32_t layers; /* of attention, that take turns */
    uint32_t calls;  /* that were one run */
    sl_state_walk walk;
    sl_states states; /* of linear attention */
    uint32_t drawn;
    uint32_t turn;               /* which weights are next */
    uint32_t max_sites;          /* (block, expert) pairs that take turns */
    double bytes[SL_COST_COUNT]; /* of weights that stages read */
    size_t kv_budget;
    uint64_t *flush, flushed;
    size_t flush_bytes;
    bool flushes;
    uint64_t deadline_ns;
    sl_profile_progress *progress;
    sl_profile_point point[SL_PROFILE_MAX_POINTS];
    uint32_t n_points;
} bench;

typedef struct task {
    uint32_t rows, context, groups;
} task;

typedef void (*run_fn)(bench *b, const task *t);

/* ---- the stages ---- */

static uint32_t next_layer(bench *b, sl_ffn_kind kind, bool any) {
    for (uint32_t i = 0; i < b->spec->n_layers; i++) {
        uint32_t l = b->turn++ % b->spec->n_layers;
        if (any || b->spec->ffn[l] == kind) return l;
    }
    return 0;
}

static sl_rows rows_of(bench *b, const task *t) {
    return (sl_rows){.n = t->rows,
                     .id = b->id,
                     .pos = b->pos,
                     .kv = sl_kv_pool_of(b->spec, b->kv),
                     .pages = b->row_pages};
}

static void attend(bench *b, const sl_rows *rows, uint32_t layer) {
    sl_rows r = *rows;
    if (b->spec->linear[layer]) {
        sl_state_walk_place(&b->walk, r.n, false);
        r.pos = b->walk.pos;
        r.state = b->walk.state;
        r.done = b->walk.done;
        r.states = &b->states;
    }
    sl_block_attention(b->m, b->ex, layer, &r, b->x, &b->scratch);
}

/* Every row is a request of its own that has `context` keys. Where blocks differ all of them are
 * one run. */
static void run_attention(bench *b, const task *t) {
    uint32_t per_row = sl_kv_pages_for(t->context);
    sl_rows rows = rows_of(b, t);
    for (uint32_t r = 0; r < t->rows; r++) {
        uint32_t first = (uint32_t)((uint64_t)r * per_row % (b->n_pages - per_row + 1));
        b->row_pages[r] = b->page + first;
        b->pos[r] = t->context - 1;
    }
    if (b->spec->n_linear == 0) {
        attend(b, &rows, b->turn++ % b->layers);
        return;
    }
    for (uint32_t l = 0; l < b->layers; l++) attend(b, &rows, l);
    sl_state_walk_pass(&b->walk, t->rows, false);
    b->calls = b->layers;
}

static void run_router(bench *b, const task *t) {
    sl_rows rows = rows_of(b, t);
    sl_block_route(b->m, b->ex, next_layer(b, SL_FFN_MOE, false), &rows, b->x, b->h, b->expert,
                   b->gate, &b->scratch);
}

static void run_dense(bench *b, const task *t) {
    sl_block_dense(b->m, b->ex, next_layer(b, SL_FFN_DENSE, false), t->rows, b->x, &b->scratch);
}

static void run_shared(bench *b, const task *t) {
    memcpy(b->h, b->x, (size_t)t->rows * b->spec->d_model * sizeof *b->h);
    sl_block_shared(b->m, b->ex, next_layer(b, SL_FFN_MOE, false), t->rows, b->x, b->h,
                    &b->scratch);
}

/* `groups` experts of one block with `rows` rows each. */
static void run_experts(bench *b, const task *t) {
    uint32_t per_layer = SL_MIN(b->spec->n_experts / t->groups * t->groups, b->max_sites);
    uint32_t sites = b->max_sites / t->groups;
    uint32_t site = (uint32_t)((uint64_t)b->turn * 7919 % sites) * t->groups; /* in no order */
    uint32_t layer = SL_MIN(site / per_layer, b->spec->n_moe - 1u);
    uint32_t expert[MAX_GROUPS], first[MAX_GROUPS + 1];
    for (uint32_t g = 0; g <= t->groups; g++) first[g] = g * t->rows;
    for (uint32_t g = 0; g < t->groups; g++) expert[g] = (site + g) % per_layer;
    for (uint32_t i = 0; i < t->groups * t->rows; i++) b->row[i] = i % t->rows;
    const sl_expert_batch batch = {.n_groups = t->groups,
                                   .expert = expert,
                                   .first = first,
                                   .row = b->row,
                                   .x = b->x,
                                   .y = b->y};
    b->turn++;
    sl_block_experts(b->m, b->ex, b->spec->moe_layer[layer], &batch, &b->scratch);
}

/* What a step has once: rows come from the embedding, and tokens from the logits. */
static void run_head(bench *b, const task *t) {
    const sl_sampling greedy = {.top_p = 1};
    const sl_history past = {b->id, 1, 1};
    for (uint32_t i = 0; i < t->rows; i++) b->row[i] = i;
    sl_model_embed(b->m, b->ex, b->id, t->rows, b->h);
    sl_model_head(b->m, b->ex, b->x, b->row, t->rows, b->logits, &b->scratch);
    for (uint32_t i = 0; i < t->rows; i++)
        b->drawn += sl_sample(&greedy, b->logits + (size_t)i * b->spec->vocab, b->spec->vocab, 1,
                              &past, &b->scratch);
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One thread alone: what it ran for, so that time slices of other programs do not count. */
static uint64_t kernel_now_ns(const bench *b) {
    struct timespec ts;
    if (sl_pool_threads(b->ex->pool) > 1) return sl_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* When a worker comes back to a block, all others have been through the caches. Experts need no
 * help: those that take turns are larger than any cache. */
static void flush_caches(bench *b) {
    uint64_t sum = 0;
    for (size_t i = 0; i < b->flush_bytes / sizeof *b->flush; i += 8) sum += b->flush[i];
    b->flushed += sum;
}

/* Median of the repetitions, microseconds a call. Not less: weights that a large cache happens to
 * hold are fast, and in a model they are not there. */
static double time_task(bench *b, run_fn run, const task *t) {
    double us[MAX_REPS];
    uint32_t n = 0, most = b->flushes ? FLUSHED_REPS : MAX_REPS;
    uint64_t spent = 0;
    b->calls = 1;
    run(b, t); /* the first call meets cold code and pages */
    while (n < most) {
        if (b->flushes) flush_caches(b);
        uint64_t begin = kernel_now_ns(b);
        run(b, t);
        uint64_t took = kernel_now_ns(b) - begin;
        us[n++] = (double)took / 1e3;
        spent += took;
        if (took > SLOW_NS && n >= 2) break;
        if (spent > POINT_NS && n >= MIN_REPS) break;
    }
    qsort(us, n, sizeof *us, by_value);
    return us[n / 2] / b->calls;
}

/* False: nothing larger. */
static bool add_point(bench *b, const char *what, run_fn run, const task *t) {
    if (b->n_points == SL_PROFILE_MAX_POINTS) return false;
    if (b->n_points >= LEAST_POINTS && sl_now_ns() > b->deadline_ns) return false;
    double us = time_task(b, run, t);
    b->point[b->n_points++] = (sl_profile_point){
        .rows = t->rows, .keys = (double)t->rows * t->context, .us = us / SL_MAX(t->groups, 1u)};
    sl_profile_step(b->progress, what);
    return us * 1e3 < (double)SLOW_NS;
}

/* Kernels compute rows in groups, so there are numbers that fill them and numbers that do not;
 * `coarse`: only those that do. */
static void rows_series(bench *b, const char *what, run_fn run, task t, uint32_t max_rows,
                        bool coarse) {
    static const uint32_t rows[] = {1,  2,  3,  4,  5,  6,  8,   9,   12, 13,
                                    16, 17, 24, 32, 48, 64, 101, 128, 256};
    for (size_t i = 0; i < SL_LEN(rows) && rows[i] <= max_rows; i++) {
        if (coarse && (rows[i] & (rows[i] - 1))) continue;
        t.rows = rows[i];
        if (!add_point(b, what, run, &t)) return;
    }
}

static sl_status finish(bench *b, sl_profile_stage *s, sl_err *err) {
    sl_status st = sl_fit_stage(b->point, b->n_points, &s->cost, &s->fit, err);
    if (st == SL_OK) st = sl_profile_keep(b->point, b->n_points, &s->points, err);
    s->present = true;
    b->n_points = 0;
    return st;
}

static sl_status measure_attention(bench *b, sl_profile *p, sl_err *err) {
    for (uint32_t context = 32; context <= MAX_CONTEXT; context *= 4)
        if (sl_kv_pages_for(context) <= b->n_pages)
            rows_series(b, "attention", run_attention, (task){.context = context}, MAX_ROWS,
                        context != 32 && context != 512);
    return finish(b, &p->stage[SL_COST_ATTENTION], err);
}

static uint32_t most_groups(const bench *b) {
    return SL_MIN(SL_MIN(MAX_GROUPS, b->spec->n_experts), b->max_sites);
}

/* What a task takes however many experts it has: within a task one expert's weights are asked for
 * while those of the one before it are multiplied. A task of one beside the same expert among
 * `groups`, whose times `cost` was fitted to: median over some numbers of rows. */
static void measure_task(bench *b, uint32_t groups, sl_stage_cost *cost) {
    static const uint32_t rows[] = {1, 2, 4, 8, 16};
    double us[SL_LEN(rows)];
    if (groups < 2) return;
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        const double alone = time_task(b, run_experts, &(task){.rows = rows[i], .groups = 1});
        us[i] = (alone - sl_stage_cost_us(cost, rows[i], 0)) / (1 - 1.0 / groups);
    }
    qsort(us, SL_LEN(rows), sizeof *us, by_value);
    const double once = us[SL_LEN(rows) / 2], most = cost->fixed_us + cost->floor_us;
    const double task_us = SL_MIN(SL_MAX(once, 0), most); /* an expert's time: more is noise */
    *cost = sl_stage_cost_less(cost, task_us / groups);
    cost->task_us = task_us;
}

static sl_status measure_experts(bench *b, sl_profile *p, sl_err *err) {
    const task t = {.groups = most_groups(b)};
    rows_series(b, "experts", run_experts, t, SL_MIN(MAX_ROWS, MAX_PAIRS / t.groups), false);
    sl_status st = finish(b, &p->stage[SL_COST_EXPERT], err);
    if (st == SL_OK) measure_task(b, t.groups, &p->stage[SL_COST_EXPERT].cost);
    return st;
}

/* ---- weights that lie in a cache ---- */

#define WORTH_IT   0.03 /* of a stage's time: what is less is noise */
#define NEAR_BYTES 8e6  /* more than a core's second cache has, */
#define NEAR_MORE  4e6  /* and for each further thread */
#define MOST_FITS  16u

/* A task of experts where so many bytes of them take turns and have gone around twice. */
static double time_around(bench *b, const task *t, double bytes, double expert_bytes) {
    const uint32_t all = b->max_sites, least = 2 * t->groups;
    b->max_sites = SL_MIN(SL_MAX((uint32_t)ceil(bytes / expert_bytes), least), all);
    for (uint32_t i = 0; i < 2 * b->max_sites / t->groups; i++) run_experts(b, t);
    const double us = time_task(b, run_experts, t);
    b->max_sites = all;
    return us;
}

/* How large a cache is that keeps `share` of `bytes` which are read around and around: each time
 * round it takes (1 - share) bytes from memory (spec/costs.h). */
static double cache_that_keeps(double share, double bytes) {
    return (1 - share) * bytes / -log(share);
}

/* Experts' weights by how many of them take turns: all, very few, and as many as the largest cache
 * may have room for. A machine shares that with whoever else is on it, so its size says little. */
static void measure_cache(bench *b, sl_profile *p) {
    sl_profile_stage *s = &p->stage[SL_COST_EXPERT];
    const double size = (double)sl_topology_largest_cache();
    const task t = {.rows = 1, .groups = SL_MIN(2u, most_groups(b))};
    double fits[MOST_FITS];
    uint32_t n = 0;
    if (s->bytes <= 0) return;
    const double seconds = NEAR_BYTES + NEAR_MORE * (sl_pool_threads(b->ex->pool) - 1);
    const double least = SL_MAX(seconds, 2 * t.groups * s->bytes);
    if (size < least || b->max_sites * s->bytes < 2 * size) return;
    const double cold = time_task(b, run_experts, &t), near = time_around(b, &t, least, s->bytes);
    if (cold - near < WORTH_IT * cold) return;
    for (double bytes = 2 * least; bytes <= 2 * size && n < MOST_FITS; bytes *= 2) {
        if (sl_now_ns() > b->deadline_ns) break;
        const double share = (cold - time_around(b, &t, bytes, s->bytes)) / (cold - near);
        if (share > 0.05 && share < 0.95) fits[n++] = cache_that_keeps(share, bytes);
        sl_profile_step(b->progress, "caches");
    }
    if (n == 0) return;
    qsort(fits, n, sizeof *fits, by_value);
    p->cache_bytes = fits[n / 2];
    s->cost.again_us = (cold - near) / t.groups;
}

/* Attention of a block a moment after the same block's. */
static void measure_attention_again(bench *b, sl_profile *p) {
    sl_stage_cost *cost = &p->stage[SL_COST_ATTENTION].cost;
    const task t = {.rows = 1, .context = 32};
    double us[FLUSHED_REPS];
    if (p->cache_bytes <= 0) return;
    const double cold = time_task(b, run_attention, &t);
    for (uint32_t i = 0; i < FLUSHED_REPS; i++) {
        flush_caches(b);
        run_attention(b, &t);
        b->turn--;
        const uint64_t from = kernel_now_ns(b);
        run_attention(b, &t);
        us[i] = (double)(kernel_now_ns(b) - from) / 1e3;
    }
    qsort(us, FLUSHED_REPS, sizeof *us, by_value);
    const double spared = cold - us[FLUSHED_REPS / 2];
    if (spared > WORTH_IT * cold) cost->again_us = spared;
}

static sl_status measure_stage(bench *b, sl_cost_kind kind, const char *what, run_fn run,
                               uint32_t max_rows, sl_profile *p, sl_err *err) {
    rows_series(b, what, run, (task){0}, max_rows, false);
    return finish(b, &p->stage[kind], err);
}

/* ---- beside a neighbour ---- */

/* A worker on another core, which computes the same on other weights. */
typedef struct neighbour {
    bench *b;
    run_fn run;
    task t;
    atomic_bool stop; /* relaxed: nothing is published with it */
} neighbour;

static void *neighbour_main(void *arg) {
    neighbour *n = arg;
    while (!atomic_load_explicit(&n->stop, memory_order_relaxed)) n->run(n->b, &n->t);
    return NULL;
}

/* Median over a few numbers of rows of the time beside a neighbour over the time alone. */
static sl_status measure_beside(bench *b, bench *other, sl_cost_kind kind, run_fn run, task t,
                                sl_profile *p, sl_err *err) {
    static const uint32_t rows[] = {1, 4, 8};
    double times[SL_LEN(rows)];
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        t.rows = rows[i];
        neighbour n = {.b = other, .run = run, .t = t};
        pthread_t thread;
        double alone = time_task(b, run, &t);
        if (pthread_create(&thread, NULL, neighbour_main, &n) != 0)
            return sl_fail(err, SL_ERR_LIMIT, "no thread for a neighbour");
        times[i] = time_task(b, run, &t) / alone;
        atomic_store_explicit(&n.stop, true, memory_order_relaxed);
        pthread_join(thread, NULL);
    }
    qsort(times, SL_LEN(times), sizeof *times, by_value);
    p->stage[kind].beside = SL_MAX(times[SL_LEN(times) / 2], 1.0);
    sl_profile_step(b->progress, "beside a neighbour");
    return SL_OK;
}

/* ---- memory ---- */

static void fill_floats(float *out, size_t n, uint64_t *rng) {
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((double)(sl_rng_next(rng) >> 40) / (1 << 23) - 1.0);
}

/* Rows of blocks, which lie one after the other. */
static void fill_rows(const sl_model_spec *s, uint8_t *out, size_t bytes, uint64_t *rng) {
    const size_t row = sl_kv_row_bytes(s);
    float x[SL_HEAD_DIM_MAX];
    for (size_t at = 0; at + row <= bytes; at += row) {
        fill_floats(x, s->head_dim, rng);
        sl_kv_round_row(s->kv_type, x, sl_kv_value_dim(s), s->head_dim, out + at);
    }
}

/* Pages are reserved whole, as an attention worker's are; only those blocks that take turns are
 * written, and only what is written takes memory. */
static sl_status make_pages(bench *b, uint64_t *rng, sl_err *err) {
    const sl_model_spec *s = b->spec;
    const uint32_t keyed = sl_kv_blocks(s, 0, b->layers);
    size_t page = sl_kv_page_bytes(s), used = sl_kv_block_bytes(s) * SL_MAX(keyed, 1u);
    uint64_t available = sl_profile_memory_available();
    size_t budget = available ? SL_MIN(b->kv_budget, available / 8) : b->kv_budget;
    b->n_pages =
        (uint32_t)SL_MIN(budget / used, (size_t)MAX_ROWS * MAX_CONTEXT / SL_KV_PAGE_TOKENS);
    if (b->n_pages < 2)
        return sl_fail(err, SL_ERR_LIMIT, "a KV page has %.1f MB, and %.1f MB are available",
                       (double)used / 1e6, (double)budget / 1e6);
    b->kv_bytes = page * b->n_pages;
    b->kv = mmap(NULL, b->kv_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->kv == MAP_FAILED) b->kv = NULL;
    b->page = sl_alloc(b->n_pages, sizeof *b->page);
    if (!b->kv || !b->page)
        return sl_fail(err, SL_ERR_NOMEM, "no memory for %u KV pages", b->n_pages);
    for (uint32_t i = 0; i < b->n_pages; i++) {
        b->page[i] = i;
        fill_rows(s, b->kv + i * page, used, rng);
    }
    return SL_OK;
}

static sl_status make_buffers(bench *b, uint64_t rng, sl_err *err) {
    const sl_model_spec *s = b->spec;
    size_t d = s->d_model, pairs = MAX_PAIRS;
    size_t scratch =
        SL_MAX(sl_model_scratch_bytes(s, MAX_ROWS), sl_experts_scratch_bytes(s, pairs));
    sl_status st = sl_arena_create(scratch, &b->scratch, err);
    if (st != SL_OK) return st;
    b->x = sl_alloc(MAX_ROWS * d, sizeof *b->x);
    b->h = sl_alloc(MAX_ROWS * d, sizeof *b->h);
    b->y = sl_alloc(pairs * d, sizeof *b->y);
    b->logits = sl_alloc((size_t)MAX_HEAD_ROWS * s->vocab, sizeof *b->logits);
    b->gate = sl_alloc((size_t)MAX_ROWS * s->top_k, sizeof *b->gate);
    b->expert = sl_alloc((size_t)MAX_ROWS * s->top_k, sizeof *b->expert);
    b->row = sl_alloc(pairs, sizeof *b->row);
    b->id = sl_alloc(MAX_ROWS, sizeof *b->id);
    b->pos = sl_alloc(MAX_ROWS, sizeof *b->pos);
    b->row_pages = sl_alloc(MAX_ROWS, sizeof *b->row_pages);
    if (!b->x || !b->h || !b->y || !b->logits || !b->gate || !b->expert || !b->row || !b->id ||
        !b->pos || !b->row_pages)
        return sl_fail(err, SL_ERR_NOMEM, "no memory for %u rows of %zu values", MAX_ROWS, d);
    fill_floats(b->x, MAX_ROWS * d, &rng);
    b->layers = sl_lab_first_blocks(s, CYCLE_LAYERS).n;
    if (s->n_linear == 0) b->layers = SL_MIN(s->n_layers, CYCLE_LAYERS);
    st = sl_state_walk_open(s, (sl_extent){0, b->layers}, MAX_ROWS, &b->walk, err);
    if (st == SL_OK && b->walk.n) st = sl_states_open(s, b->walk.n, false, &b->states, err);
    if (st != SL_OK) return st;
    sl_model_stage_bytes(b->m, b->bytes);
    const double sites = (double)sl_profile_weight_bytes() / SL_MAX(b->bytes[SL_COST_EXPERT], 1);
    b->max_sites = (uint32_t)SL_MAX(SL_MIN((double)s->n_moe * s->n_experts, sites), 1);
    return make_pages(b, &rng, err);
}

/* A neighbour's caches are not flushed: it needs none. */
static sl_status make_flush(bench *b, sl_err *err) {
    b->flush_bytes = SL_MIN(SL_MAX(sl_topology_largest_cache(), FLUSH_LEAST), FLUSH_MOST);
    b->flush = sl_alloc(b->flush_bytes, 1);
    if (!b->flush) return sl_fail(err, SL_ERR_NOMEM, "no memory for %zu bytes", b->flush_bytes);
    memset(b->flush, 1, b->flush_bytes); /* pages of their own */
    return SL_OK;
}

static void free_buffers(bench *b) {
    sl_states_close(&b->states);
    sl_state_walk_close(&b->walk);
    if (b->kv) munmap(b->kv, b->kv_bytes);
    sl_free(b->page);
    sl_free(b->flush);
    sl_free(b->x);
    sl_free(b->h);
    sl_free(b->y);
    sl_free(b->logits);
    sl_free(b->gate);
    sl_free(b->expert);
    sl_free(b->row);
    sl_free(b->id);
    sl_free(b->pos);
    sl_free((void *)b->row_pages);
    sl_arena_free(&b->scratch);
}

/* Weights come from their file on first use. */
static void touch_weights(bench *b) {
    uint32_t layers = b->spec->n_layers;
    for (uint32_t i = 0; i < b->layers; i += b->calls) {
        b->calls = 1;
        run_attention(b, &(task){.rows = 1, .context = 32});
    }
    for (uint32_t i = 0; i < layers; i++) run_router(b, &(task){.rows = 1});
    for (uint32_t i = 0; i < b->max_sites && sl_now_ns() < b->deadline_ns; i++)
        run_experts(b, &(task){.rows = 1, .groups = 1});
    b->turn = 0;
}

static sl_status measure_alone(bench *b, sl_profile *p, sl_err *err) {
    const sl_model_spec *s = b->spec;
    touch_weights(b);
    for (int k = 0; k < SL_COST_COUNT; k++) p->stage[k].bytes = b->bytes[k];
    sl_status st = measure_experts(b, p, err);
    if (st == SL_OK) measure_cache(b, p);
    b->flushes = true;
    if (st == SL_OK) st = measure_attention(b, p, err);
    if (st == SL_OK) measure_attention_again(b, p);
    if (st == SL_OK) st = measure_stage(b, SL_COST_ROUTER, "router", run_router, MAX_ROWS, p, err);
    if (st == SL_OK && s->n_moe < s->n_layers)
        st = measure_stage(b, SL_COST_DENSE, "dense", run_dense, MAX_ROWS, p, err);
    if (st == SL_OK && s->d_ff_shared)
        st = measure_stage(b, SL_COST_SHARED, "shared", run_shared, MAX_ROWS, p, err);
    if (st == SL_OK) st = measure_stage(b, SL_COST_HEAD, "head", run_head, MAX_HEAD_ROWS, p, err);
    return st;
}

/* Only where a second worker has cores of its own. */
static sl_status measure_together(bench *b, bench *other, sl_profile *p, sl_err *err) {
    const sl_model_spec *s = b->spec;
    uint32_t groups = SL_MIN(4u, SL_MIN(s->n_experts, b->max_sites));
    uint32_t context = sl_kv_pages_for(128) <= other->n_pages ? 128 : 16;
    sl_exec ex = *b->ex;
    sl_status st = SL_OK;
    if (2 * p->threads > p->cores) return SL_OK;
    st = sl_pool_create(p->threads, &ex.pool, err);
    if (st != SL_OK) return st;
    other->ex = &ex;
    other->turn = b->max_sites / 2;
    b->flushes = false;
    st = measure_beside(b, other, SL_COST_EXPERT, run_experts, (task){.groups = groups}, p, err);
    b->flushes = true;
    if (st == SL_OK)
        st = measure_beside(b, other, SL_COST_ATTENTION, run_attention, (task){.context = context},
                            p, err);
    if (st == SL_OK && s->n_moe < s->n_layers)
        st = measure_beside(b, other, SL_COST_DENSE, run_dense, (task){0}, p, err);
    if (st == SL_OK && s->d_ff_shared)
        st = measure_beside(b, other, SL_COST_SHARED, run_shared, (task){0}, p, err);
    if (st == SL_OK) st = measure_beside(b, other, SL_COST_HEAD, run_head, (task){0}, p, err);
    sl_pool_free(ex.pool);
    return st;
}

sl_status sl_profile_kernels(const sl_model *m, const sl_exec *ex, uint64_t deadline_ns,
                             sl_profile_progress *progress, sl_profile *p, sl_err *err) {
    bench *b = sl_alloc(2, sizeof *b), *other = b + 1;
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "no memory to measure");
    for (int i = 0; i < 2; i++)
        b[i] = (bench){.m = m,
                       .spec = sl_model_spec_of(m),
                       .ex = ex,
                       .kv_budget = i ? BESIDE_KV : KV_BYTES,
                       .deadline_ns = deadline_ns,
                       .progress = progress};
    sl_status st = make_buffers(b, 7, err);
    if (st == SL_OK) st = make_flush(b, err);
    if (st == SL_OK) st = measure_alone(b, p, err);
    if (st == SL_OK) st = make_buffers(other, 8, err);
    if (st == SL_OK) st = measure_together(b, other, p, err);
    free_buffers(other);
    free_buffers(b);
    sl_free(b);
    return st;
}

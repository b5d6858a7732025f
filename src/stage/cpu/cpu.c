/* The CPU: stages are src/model's functions, on the caller's thread and a pool that helps it. A
 * call is through when submit returns. */
#include "stage/stage_int.h"

#include "base/log.h"
#include "base/memfd.h"
#include "base/quiet.h"
#include "kernel/delta.h"
#include "stage/cpu/mtp_pages.h"
#include "stage/cpu/near.h"

#include <string.h>

/* Asked for at once: the system first looks for pages in all lists of all cores. */
#define ENLARGE_BYTES ((size_t)8 << 20)

typedef struct cpu {
    sl_device base;
    sl_model *model;
    sl_pool *pool;
    sl_exec exec;
    sl_arena scratch;
    sl_kv_pool kv;
    uint8_t *pages; /* where they lie */
    uint32_t kv_pages;
    size_t kv_large; /* bytes of them that have large pages; SIZE_MAX: it is not to be asked for */
    uint32_t max_rows;   /* as opened with */
    const sl_gang *gang; /* NULL: alone */
    sl_rank rank;
    sl_extent blocks; /* that pages have room for */
    sl_states states; /* of linear attention; n 0: the model has none */
    sl_mtp_pages mtp; /* of the block that predicts a further token */
} cpu;

/* Rows that a rank does for all, where a row needs no sum over ranks. */
static sl_rowset own_rows(const cpu *d, const sl_rowset *r) {
    if (!d->gang || d->gang->apart) return *r;
    const sl_extent mine = sl_rank_range(d->rank, r->n);
    const size_t row = d->base.spec->d_model * sizeof(float), k = d->base.spec->top_k;
    sl_rowset own = *r;
    own.n = mine.n;
    own.id = r->id ? r->id + mine.first : NULL;
    own.pos = r->pos ? r->pos + mine.first : NULL;
    own.pages = r->pages ? r->pages + mine.first : NULL;
    own.x.at += mine.first * row;
    own.h.at += mine.first * row;
    own.expert = r->expert ? r->expert + mine.first * k : NULL;
    own.gate = r->gate ? r->gate + mine.first * k : NULL;
    return own;
}

/* Rows of the head: of ranks in one memory the first one's. */
static bool has_heads(const cpu *d) {
    return d->rank.index == 0 || d->gang->apart;
}

static void head(cpu *d, const sl_stage_call *c) {
    const sl_stage_head *h = &c->head;
    if (h->first == 0 && !h->made && has_heads(d))
        sl_model_head_rows(d->model, &d->exec, sl_mem_ptr(c->rows.x), h->row, h->n,
                           sl_mem_ptr(h->h));
    if (h->first == 0 && !h->made && d->gang) d->gang->meet(d->gang->ctx);
    sl_model_head_part(d->model, &d->exec, sl_mem_ptr(h->h), h->n, h->first, h->count, h->logits,
                       &d->scratch);
}

static void rows_only(cpu *d, const sl_stage_call *c) {
    size_t level = d->scratch.used;
    float *sum = sl_arena_take(&d->scratch, 2 * (size_t)d->base.spec->d_model, sizeof *sum);
    SL_ASSERT(sum != NULL);
    bool known = sl_stage_run_rows(&d->exec, d->base.spec, c, sum);
    SL_ASSERT(known);
    d->scratch.used = level;
}

/* Pages of a file get large pages when they are first used: private memory does by itself. */
static void enlarge(cpu *d, const sl_rowset *r) {
    const size_t page = d->kv.page, bytes = d->kv_pages * page;
    size_t end = 0;
    for (uint32_t i = 0; i < r->n; i++)
        end = SL_MAX(end, (r->pages[i][r->pos[i] / SL_KV_PAGE_TOKENS] + 1u) * page);
    if (end <= d->kv_large) return;
    size_t to = SL_MIN((end / ENLARGE_BYTES + 1) * ENLARGE_BYTES, bytes);
    d->kv_large = sl_memfd_enlarge(d->pages, d->kv_large, to) ? to : SIZE_MAX;
}

/* Of a rank, those that need no sum over ranks: the rows that it does for all. */
static void run_model(cpu *d, const sl_stage_call *c) {
    const sl_stage_model s = {.model = d->model,
                              .exec = &d->exec,
                              .scratch = &d->scratch,
                              .kv = d->kv,
                              .states = d->states.n ? &d->states : NULL};
    sl_stage_call own = *c;
    if (c->op == SL_OP_EMBED || c->op == SL_OP_ROUTE) own.rows = own_rows(d, &c->rows);
    if (c->op == SL_OP_INSIDE)
        sl_stage_run_inside(&s, c);
    else if (!sl_stage_run_model(&s, &own))
        rows_only(d, c);
}

/* Guesses: the bits that they are made of are nobody's. */
static void run_mtp(cpu *d, const sl_stage_call *c) {
    sl_exec exec = d->exec;
    exec.expand_rows = 0; /* that form sees everything */
    const sl_stage_model s = {.model = d->model,
                              .exec = &exec,
                              .scratch = &d->scratch,
                              .kv = d->mtp.kv,
                              .heads = has_heads(d)};
    const size_t level = d->scratch.used;
    uint32_t *low = sl_arena_take(&d->scratch, c->rows.n, sizeof *low);
    SL_ASSERT(low != NULL);
    sl_mtp_pages_write(&d->mtp, c->rows.pos, c->rows.pages, c->rows.n, low);
    sl_stage_run_mtp(&s, c, low);
    d->scratch.used = level;
}

static void cpu_submit(sl_device *base, const sl_stage_call *c) {
    cpu *d = (cpu *)base;
    if (c->op == SL_OP_ATTEND && base->kept && d->kv_large != SIZE_MAX) enlarge(d, &c->rows);
    if (c->op == SL_OP_ATTEND && base->mtp && c->layer == d->blocks.first)
        sl_mtp_pages_forget(&d->mtp, c->rows.pos, c->rows.pages, c->rows.n);
    if (c->op == SL_OP_HEAD)
        head(d, c);
    else if (c->op == SL_OP_MTP)
        run_mtp(d, c);
    else
        run_model(d, c);
    sl_device_ran(base, c->queue);
}

static void cpu_share(sl_device *base, size_t n, sl_pool_fn fn, void *ctx) {
    sl_pool_run(((cpu *)base)->pool, n, 1, fn, ctx);
}

static void cpu_close(sl_device *base) {
    cpu *d = (cpu *)base;
    sl_pool_free(d->pool);
    sl_states_close(&d->states); /* whose sizes the model knows */
    sl_model_free(d->model);
    sl_arena_free(&d->scratch);
    sl_mtp_pages_close(&d->mtp);
    if (base->kept)
        sl_memfd_unmap(d->pages, d->kv_pages * d->kv.page);
    else
        sl_release(d->pages, d->kv_pages, d->kv.page);
    sl_free(d);
}

/* Pages that were there before, perhaps: of a rank those in its part of the file. */
static sl_status map_pages(cpu *d, int fd, uint32_t n, size_t bytes, uint8_t **out, sl_err *err) {
    const uint32_t ranks = SL_MAX(d->rank.of, 1u);
    size_t all;
    if (!sl_kv_file_bytes(sl_model_stored_of(d->model), n, ranks, &all))
        return sl_fail(err, SL_ERR_LIMIT, "%u KV pages of %u ranks overflow a file", n, ranks);
    sl_status st = sl_memfd_check(fd, all, err);
    if (st != SL_OK) return sl_err_prefix(err, "file of KV pages");
    *out = sl_memfd_map_from(fd, all / ranks * d->rank.index, bytes);
    if (!*out) return sl_fail(err, SL_ERR_NOMEM, "mapping %zu bytes of KV pages", bytes);
    d->base.kept = true;
    d->kv_large = bytes < SL_LARGE_PAGE ? SIZE_MAX : 0;
    return SL_OK;
}

/* Reserved, not touched: a page costs memory when it is first written. */
static sl_status make_pages(cpu *d, uint32_t n, int fd, sl_err *err) {
    const sl_model_spec *mine = sl_model_spec_of(d->model);
    size_t page = sl_kv_blocks(mine, d->blocks.first, d->blocks.n) * sl_kv_block_bytes(mine), bytes;
    if (page == 0) return SL_OK; /* a rank without heads */
    if (__builtin_mul_overflow(n, page, &bytes))
        return sl_fail(err, SL_ERR_LIMIT, "%u KV pages overflow the address space", n);
    uint8_t *base = NULL;
    sl_status st = SL_OK;
    if (fd)
        st = map_pages(d, fd, n, bytes, &base, err);
    else if (!(base = sl_reserve(n, page)))
        st = sl_fail(err, SL_ERR_NOMEM, "%zu bytes of KV pages", bytes);
    if (st != SL_OK) return st;
    d->pages = base;
    d->kv = sl_kv_pool_of_blocks(mine, base, d->blocks.first, d->blocks.n);
    d->kv_pages = n;
    return SL_OK;
}

/* Places of requests for what has no position. */
static sl_status make_states(cpu *d, const sl_device_opts *o, sl_err *err) {
    const sl_model_spec *m = d->base.spec;
    if (!m->n_linear || !o->hosts.attention) return SL_OK;
    d->base.resumes = false; /* they are not in pages */
    d->base.placed = true;
    d->base.rewinds = o->guesses;
    sl_log(SL_LOG_INFO, "stage", "states of linear attention: up to %u requests of %.3f MB each",
           o->requests, (double)sl_states_bytes(m, o->guesses) / 1e6);
    return sl_states_open(m, o->requests, o->guesses, &d->states, err);
}

/* At least what calls of so many pairs need. */
static sl_status make_scratch(cpu *d, uint32_t max_pairs, sl_err *err) {
    const sl_model_spec *m = sl_model_spec_of(d->model);
    size_t adding = 2 * (size_t)m->d_model * sizeof(float) + 64, rows = 0, pairs = 0, both = 0;
    size_t mtp = 0;
    if (d->max_rows) rows = sl_stage_rows_bytes(d->model, d->max_rows);
    if (max_pairs) pairs = sl_stage_pairs_bytes(d->model, max_pairs);
    if (d->base.inside) both = rows + pairs + sl_stage_inside_bytes(m, d->max_rows);
    if (d->base.mtp) mtp = sl_stage_mtp_bytes(d->model) + d->max_rows * sizeof(uint32_t) + 64;
    size_t cap = SL_MAX(SL_MAX(SL_MAX(rows, pairs), adding), SL_MAX(both, mtp));
    if (cap <= d->scratch.cap) return SL_OK;
    sl_arena bigger;
    sl_status st = sl_arena_create(cap, &bigger, err);
    if (st != SL_OK) return st;
    sl_arena_free(&d->scratch);
    d->scratch = bigger;
    return SL_OK;
}

static sl_status cpu_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                          sl_hosting *left, sl_err *err) {
    cpu *d = (cpu *)base;
    sl_status st = make_scratch(d, max_pairs, err);
    return st == SL_OK ? sl_model_host(d->model, hosted, patient, left, err) : st;
}

/* Where block `first` of the page begins. */
static uint8_t *blocks_of(const cpu *d, uint32_t page, uint32_t first, uint32_t n) {
    const sl_model_spec *m = sl_model_spec_of(d->model);
    SL_ASSERT(page < d->kv_pages && n > 0 && n <= m->n_layers && first <= m->n_layers - n);
    SL_ASSERT(first >= d->blocks.first && first + n <= d->blocks.first + d->blocks.n);
    SL_ASSERT(n == sl_kv_blocks(m, first, n)); /* blocks of linear attention have nothing there */
    return sl_kv_page(&d->kv, page) + sl_kv_blocks(m, 0, first) * sl_kv_block_bytes(m);
}

static void cpu_read_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n, void *to) {
    memcpy(to, blocks_of((cpu *)base, page, first, n), n * sl_kv_block_bytes(base->spec));
}

static void cpu_write_page(sl_device *base, uint32_t page, uint32_t first, uint32_t n,
                           const void *from) {
    sl_cpu_page_came(base, page);
    memcpy(blocks_of((cpu *)base, page, first, n), from, n * sl_kv_block_bytes(base->spec));
}

/* ---- of a rank, for its gang ---- */

const sl_model_spec *sl_cpu_stored_of(const sl_device *d) {
    return sl_model_stored_of(((const cpu *)d)->model);
}

sl_idle sl_cpu_idle(const sl_device *d) {
    return sl_model_idle(((const cpu *)d)->model);
}

bool sl_cpu_has_expert(const sl_device *d, uint32_t layer, uint32_t expert) {
    sl_expert_mats mats;
    return sl_model_expert(((const cpu *)d)->model, layer, expert, &mats);
}

bool sl_cpu_out(const sl_device *d, sl_extent *out) {
    return sl_model_out(((const cpu *)d)->model, out);
}

sl_extent sl_cpu_kv_heads(const sl_device *d) {
    return sl_model_kv_heads(((const cpu *)d)->model);
}

sl_extent sl_cpu_blocks(const sl_device *d) {
    return ((const cpu *)d)->blocks;
}

uint8_t *sl_cpu_block(const sl_device *d, uint32_t page, uint32_t layer) {
    return blocks_of((const cpu *)d, page, layer, 1);
}

void sl_cpu_page_came(sl_device *d, uint32_t page) {
    if (d->mtp) sl_mtp_pages_drop(&((cpu *)d)->mtp, page);
}

/* ---- opening ---- */

typedef struct opening {
    cpu *d;
    const sl_device_opts *o;
    sl_status status;
    sl_numa *near; /* of its weights; NULL: they stay where they lie */
    bool touched;  /* its weights, all of them */
    sl_err *err;
} opening;

static void open_model(opening *l, const atomic_bool *hurry) {
    l->status = sl_stage_kernels(l->o->isa, &l->d->exec.k, l->err);
    if (l->status != SL_OK) return;
    l->status = sl_model_open_until(l->o->folder, &l->o->hosts, hurry, &l->d->model, l->err);
}

/* With what it takes to find most weights touched afterwards. */
static bool open_quietly(void *ctx, const atomic_bool *hurry) {
    opening *l = ctx;
    sl_pool *alone = NULL;
    sl_err err;
    open_model(l, hurry);
    if (l->status == SL_ERR_AGAIN) return false;
    if (l->status == SL_OK && hurry && sl_pool_create(1, &alone, &err) == SL_OK) {
        const sl_touching how = {.stop = hurry, .near = l->near}; /* nobody waits for it */
        sl_model_touch(l->d->model, alone, &how);
        l->touched = !atomic_load_explicit(hurry, memory_order_relaxed);
    }
    sl_pool_free(alone);
    return true;
}

static sl_status load(cpu *d, const sl_device_opts *o, sl_numa *near, bool *touched, sl_err *err) {
    opening l = {.d = d, .o = o, .near = near, .err = err};
    /* Ranks elsewhere hear nothing of one that reads for long without a tick. */
    const bool loud = !o->quiet_ms && o->loud && o->tick;
    const sl_quiet quiet = {.tick = o->tick,
                            .ctx = o->ctx,
                            .tick_us = o->tick_us,
                            .at_most_ms = o->quiet_ms,
                            .loud = loud};
    if (o->quiet_ms || loud)
        sl_quiet_run(&quiet, open_quietly, &l);
    else
        open_model(&l, NULL);
    *touched = l.touched;
    return l.status;
}

static void warn_of_strips(const cpu *d) {
    if (!sl_model_in_strips(d->model) || sl_kernels_like_strips(d->exec.k)) return;
    sl_log(SL_LOG_WARN, "stage",
           "weights lie in strips, which are for AVX-512 VNNI: the file that they were made from "
           "(sluice convert --repack) is faster here");
}

static void say_copies(const cpu *d) {
    const uint64_t bytes = sl_model_copied(d->model);
    if (bytes == 0) return;
    sl_log(SL_LOG_INFO, "stage",
           "%s%.3f MB of weights are in memory of its own: files have them otherwise than kernels "
           "read them",
           sl_cpu_who_is(d->rank).text, (double)bytes / 1e6);
}

sl_status sl_cpu_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = cpu_close,
                                      .submit = cpu_submit,
                                      .take = sl_host_take,
                                      .give = sl_host_give,
                                      .host = cpu_host,
                                      .share = cpu_share,
                                      .read_page = cpu_read_page,
                                      .write_page = cpu_write_page};
    cpu *d = sl_alloc(1, sizeof *d);
    if (!d) return sl_fail(err, SL_ERR_NOMEM, "device");
    d->base = (sl_device){.ops = &ops, .in_place = true, .resumes = true};
    d->max_rows = o->max_rows;
    d->gang = o->gang;
    d->rank = o->hosts.rank;
    bool touched;
    sl_numa numa, *near = o->numa && sl_cpu_near_begin(d->rank, NULL, &numa) ? &numa : NULL;
    sl_status st = load(d, o, near, &touched, err);
    if (st == SL_OK) st = sl_pool_create(o->threads, &d->pool, err);
    if (st == SL_OK) {
        warn_of_strips(d);
        say_copies(d);
        d->base.spec = sl_model_stored_of(d->model);
        d->blocks = o->hosts.blocks.n ? o->hosts.blocks : (sl_extent){0, d->base.spec->n_layers};
        d->base.inside = o->inside;
        d->base.mtp = o->hosts.mtp && o->hosts.attention;
        if (o->gang) sl_model_join(d->model, o->gang);
        d->exec.pool = d->pool;
        d->base.sharers = sl_pool_threads(d->pool);
        d->exec.activations = o->activations;
        if (!o->exact) d->exec.expand_rows = sl_model_expand_rows(d->base.spec);
        if (o->tick) sl_pool_set_tick(d->pool, o->tick, o->ctx, o->tick_us);
        /* Seconds where files have to be read first: heartbeats go on under it. What a quiet thread
         * has touched is not asked for again: that alone takes a core for 70 us a MB. */
        const sl_touching how = {.progress = o->progress, .ctx = o->progress_ctx, .near = near};
        if (!touched) sl_model_touch(d->model, d->pool, &how);
        if (near) sl_cpu_near_say(d->rank, near);
        st = make_scratch(d, o->max_pairs, err);
    }
    if (st == SL_OK && o->kv_pages) st = make_pages(d, o->kv_pages, o->kv_fd, err);
    if (st == SL_OK) st = make_states(d, o, err);
    if (st == SL_OK && d->base.mtp)
        st = sl_mtp_pages_open(sl_model_spec_of(d->model), o->kv_pages, &d->mtp, err);
    if (st == SL_OK)
        *out = &d->base;
    else
        cpu_close(&d->base);
    return st;
}

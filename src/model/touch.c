/* Pages of bound weights put into the process before the first step, and onto its memory node where
 * that is wanted. */
#include "model/model_int.h"

#include "base/clock.h"
#include "base/memory.h"
#include "format/map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)2 << 20)
#define WORTH_IT                                                                                   \
    ((size_t)16 << 20) /* bytes of weights below which faults cost nothing to speak of */
#define ASKED      4u
#define ASKED_EACH ((size_t)128 << 10) /* of a file by posix_fadvise: more at once is cut off */
#define READ_NS    60000000000ull      /* for so long opening waits for the disk */
#define AROUND     ((size_t)64 << 10)  /* a fault maps what is in memory of such a window */
#define PASSES     3 /* over pages that are to move: neighbours have some for a while */

#if !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ MADV_WILLNEED
#endif

/* Whether a few pages of the piece are in memory: then the rest is, too, or nearly. Asking for all
 * would cost a third of what is saved. Where the system does not say (a filter of system calls),
 * they are: nobody waits for what he would never hear of. */
static bool in_memory(uint8_t *at, size_t len, size_t page) {
    uint8_t there = 0;
    for (size_t i = 0; i < ASKED; i++)
        if (mincore(at + len * i / ASKED / page * page, 1, &there) == 0 && !(there & 1))
            return false;
    return true;
}

/* What opening a model may read before it leaves the rest to who uses it: pools share it. */
typedef struct reading {
    _Atomic int64_t room; /* bytes of memory for weights */
    uint64_t until_ns;
    pthread_t owner;        /* who hears how far it is: one thread of the pool */
    sl_progress_fn told;    /* NULL: nobody */
    void *ctx;              /* of it */
    _Atomic uint64_t there; /* bytes that this process has in memory... */
    uint64_t all;           /* ...of so many that are bound */
    bool again;             /* a further pass: of what is in memory, in silence */
    sl_numa *near;          /* as of sl_touching */
} reading;

static void tell(reading *r, size_t bytes) {
    uint64_t there = bytes + atomic_fetch_add_explicit(&r->there, bytes, memory_order_relaxed);
    if (r->told && !r->again && pthread_equal(pthread_self(), r->owner))
        r->told(r->ctx, there, r->all);
}

/* For a piece that is in memory, too: it takes room of its own. */
static bool may_read(reading *r, size_t bytes, bool there) {
    if (r->again) return there;
    if (atomic_fetch_sub_explicit(&r->room, (int64_t)bytes, memory_order_relaxed) < (int64_t)bytes)
        return false;
    return sl_now_ns() < r->until_ns;
}

/* Best effort: what fails here will fault when it is used. r: what is not in memory is read now,
 * which comes in large pages; NULL: it is asked for, in small ones. False: it was not in memory. */
static bool touch(const uint8_t *data, size_t bytes, size_t page, reading *r) {
    uintptr_t begin = (uintptr_t)data / page * page, end = (uintptr_t)data + bytes;
    uint8_t *at = (uint8_t *)begin;
    bool now = in_memory(at, end - begin, page), fills = now;
    if (r) fills = may_read(r, bytes, now);
    if (r && !fills) return false;
    int failed = madvise(at, end - begin, fills ? MADV_POPULATE_READ : MADV_WILLNEED);
    if (failed && fills && errno == EINVAL) (void)madvise(at, end - begin, MADV_WILLNEED);
    if (r) tell(r, bytes);
    return now;
}

/* ---- an expert ---- */

static size_t mat_bytes(const sl_mat *m) {
    return m->data ? sl_mat_bytes(m) : 0;
}

static size_t expert_bytes(const sl_expert_weights *w) {
    return mat_bytes(&w->gate) + mat_bytes(&w->up) + mat_bytes(&w->down);
}

static uint32_t pieces_of(const sl_mat *m) {
    return (uint32_t)((mat_bytes(m) + PIECE - 1) / PIECE);
}

uint32_t sl_expert_pieces(const sl_expert_weights *w) {
    return pieces_of(&w->gate) + pieces_of(&w->up) + pieces_of(&w->down);
}

static bool touch_piece(const sl_mat *m, uint32_t i, size_t page) {
    size_t at = i * PIECE;
    return touch((const uint8_t *)m->data + at, SL_MIN(PIECE, mat_bytes(m) - at), page, NULL);
}

uint32_t sl_expert_touch(const sl_expert_weights *w, uint32_t first, uint32_t most, bool patient) {
    const sl_mat *const mats[] = {&w->gate, &w->up, &w->down};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t n = 0, begin = 0;
    for (size_t j = 0; j < SL_LEN(mats); begin += pieces_of(mats[j]), j++) {
        for (uint32_t i = 0; i < pieces_of(mats[j]); i++) {
            if (begin + i < first) continue;
            if (n == most || (!touch_piece(mats[j], i, page) && patient)) return n;
            n++;
        }
    }
    return n;
}

/* ---- all that is bound ---- */

typedef struct touch_ctx {
    const sl_expert_weights *expert; /* NULL: pieces of `mat` */
    const sl_mat *mat;
    size_t page;
    const atomic_bool *stop;
    reading *reading;
} touch_ctx;

static bool stops(const touch_ctx *c) {
    return c->stop && atomic_load_explicit(c->stop, memory_order_relaxed);
}

static void touch_mat(const sl_mat *m, size_t begin, size_t end, const touch_ctx *c,
                      sl_numa_batch *near) {
    for (size_t at = begin; at < end; at += PIECE) {
        const uint8_t *piece = (const uint8_t *)m->data + at;
        const size_t bytes = SL_MIN(PIECE, end - at);
        touch(piece, bytes, c->page, c->reading);
        sl_numa_add(near, piece, bytes);
    }
}

static void unmap(uintptr_t begin, uintptr_t end) {
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* What faults have mapped around the matrix. Of a file alone: other memory would be lost. */
static void leave_others(const sl_mat *m, size_t page) {
    const uintptr_t data = (uintptr_t)m->data, end = data + mat_bytes(m);
    const sl_span file = sl_map_around(m->data);
    const uintptr_t first = (uintptr_t)file.data, last = first + file.len;
    if (file.len == 0 || end > last) return;
    unmap(SL_MAX(first, data / AROUND * AROUND), data / page * page);
    unmap((end + page - 1) / page * page, SL_MIN(last, (end + AROUND - 1) / AROUND * AROUND));
}

/* Whole pages last: what is left of others is theirs to move. */
static void touch_mats(const sl_mat *const *mats, size_t n, const touch_ctx *c) {
    sl_numa_batch near;
    sl_numa_begin(c->reading->near, &near);
    for (size_t j = 0; j < n; j++) touch_mat(mats[j], 0, mat_bytes(mats[j]), c, &near);
    sl_numa_flush(&near);
    for (size_t j = 0; j < n && near.of; j++) leave_others(mats[j], c->page);
}

/* Some pieces of a matrix that several threads share. */
static void touch_pieces(const touch_ctx *c, size_t i) {
    const size_t bytes = mat_bytes(c->mat), end = SL_MIN(bytes, (i + 1) * PIECE);
    sl_numa_batch near;
    sl_numa_begin(c->reading->near, &near);
    touch_mat(c->mat, i * PIECE, end, c, &near);
    sl_numa_flush(&near);
    if (near.of && (i == 0 || end == bytes)) leave_others(c->mat, c->page);
}

static void touch_items(void *ctx, size_t begin, size_t end) {
    const touch_ctx *c = ctx;
    for (size_t i = begin; i < end && !stops(c); i++) {
        if (c->mat) {
            touch_pieces(c, i);
            continue;
        }
        const sl_expert_weights *e = &c->expert[i];
        const sl_mat *const mats[] = {&e->gate, &e->up, &e->down};
        touch_mats(mats, SL_LEN(mats), c);
    }
}

static void touch_weights(const sl_weights *w, bool embed, sl_pool *pool, const touch_ctx *all) {
    for (size_t i = 0; i < SL_LEN(w->mat); i++) {
        if (i == SL_ROLE_EMBED && !embed) continue;
        touch_ctx c = *all;
        c.mat = &w->mat[i];
        sl_pool_run(pool, (mat_bytes(c.mat) + PIECE - 1) / PIECE, 1, touch_items, &c);
    }
}

/* Read from the file, where it has to be in memory, but not in this process. */
static void ask_for_embed(const sl_model *m) {
    const size_t bytes = m->embed.bytes;
    for (size_t at = 0; at < bytes; at += ASKED_EACH)
        (void)posix_fadvise(m->embed.fd, (off_t)(m->embed.begin + at),
                            (off_t)SL_MIN(ASKED_EACH, bytes - at), POSIX_FADV_WILLNEED);
}

static size_t weights_bytes(const sl_weights *w, bool embed) {
    size_t bytes = 0;
    for (size_t i = 0; i < SL_LEN(w->mat); i++)
        if (i != SL_ROLE_EMBED || embed) bytes += mat_bytes(&w->mat[i]);
    return bytes;
}

/* What touch_weights and the experts' pieces will come to. */
static uint64_t bytes_to_touch(const sl_model *m) {
    uint64_t bytes = weights_bytes(&m->whole, !m->embed.open);
    for (uint32_t l = 0; l < sl_model_blocks(m); l++) bytes += weights_bytes(&m->block[l], true);
    for (size_t i = 0; i < (size_t)sl_model_routed(m) * m->spec.n_experts; i++)
        bytes += expert_bytes(&m->expert[i]);
    return bytes;
}

static void touch_all(sl_model *m, sl_pool *pool, touch_ctx *c) {
    if (c->reading->near) sl_numa_again(c->reading->near); /* one that was stopped counted, too */
    c->expert = NULL;
    touch_weights(&m->whole, !m->embed.open, pool, c);
    for (uint32_t l = 0; l < sl_model_blocks(m); l++) touch_weights(&m->block[l], true, pool, c);
    c->expert = m->expert;
    sl_pool_run(pool, (size_t)sl_model_routed(m) * m->spec.n_experts, 1, touch_items, c);
}

/* Once more, while that moves pages: a neighbour had them mapped for a moment. */
static void move_the_rest(sl_model *m, sl_pool *pool, touch_ctx *c) {
    sl_numa *near = c->reading->near;
    uint64_t moved = 0;
    c->reading->again = true;
    for (int pass = 1; near && pass < PASSES && !stops(c); pass++) {
        const sl_numa_told t = sl_numa_tell(near);
        if (t.moved == moved || t.others + t.left + t.absent == 0) break;
        moved = t.moved;
        touch_all(m, pool, c);
    }
}

void sl_model_touch_within(sl_model *m, sl_pool *pool, const sl_touching *how, uint64_t room,
                           uint64_t read_ns) {
    static const sl_touching silently = {0};
    if (!how) how = &silently;
    reading r = {.room = (int64_t)SL_MIN(room, (uint64_t)INT64_MAX),
                 .until_ns = sl_now_ns() + read_ns,
                 .owner = pthread_self(),
                 .told = how->progress,
                 .ctx = how->ctx,
                 .all = bytes_to_touch(m),
                 .near = how->near};
    touch_ctx c = {.page = (size_t)sysconf(_SC_PAGESIZE), .stop = how->stop, .reading = &r};
    if (m->embed.open && room && read_ns) ask_for_embed(m);
    touch_all(m, pool, &c);
    move_the_rest(m, pool, &c);
}

void sl_model_touch(sl_model *m, sl_pool *pool, const sl_touching *how) {
    long page = sysconf(_SC_PAGESIZE);
    size_t n_experts = (size_t)sl_model_routed(m) * m->spec.n_experts, bytes = 0;
    for (size_t i = 0; i < n_experts; i++) {
        bytes += expert_bytes(&m->expert[i]);
        m->expert[i].touched = sl_expert_pieces(&m->expert[i]);
    }
    for (size_t i = 0; i < SL_LEN(m->whole.mat); i++) bytes += mat_bytes(&m->whole.mat[i]);
    const bool worth_it = bytes >= WORTH_IT || (how && how->near);
    if (m->random || page < 4096 || !worth_it) return;
    uint64_t room = sl_memory_free();
    sl_model_touch_within(m, pool, how, room - room / 10, READ_NS);
}

/* Pages of bound weights put into the process before the first step. */
#include "model/model_int.h"

#include "base/clock.h"
#include "base/memory.h"

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
} reading;

static void tell(reading *r, size_t bytes) {
    uint64_t there = bytes + atomic_fetch_add_explicit(&r->there, bytes, memory_order_relaxed);
    if (r->told && pthread_equal(pthread_self(), r->owner)) r->told(r->ctx, there, r->all);
}

/* For a piece that is in memory, too: it takes room of its own. */
static bool may_read(reading *r, size_t bytes) {
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
    if (r) fills = may_read(r, bytes);
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

static void touch_mat(const sl_mat *m, size_t begin, size_t end, const touch_ctx *c) {
    for (size_t at = begin; at < end; at += PIECE)
        touch((const uint8_t *)m->data + at, SL_MIN(PIECE, end - at), c->page, c->reading);
}

static void touch_items(void *ctx, size_t begin, size_t end) {
    const touch_ctx *c = ctx;
    for (size_t i = begin; i < end && !stops(c); i++) {
        if (c->mat) {
            size_t bytes = mat_bytes(c->mat);
            touch_mat(c->mat, i * PIECE, SL_MIN(bytes, (i + 1) * PIECE), c);
            continue;
        }
        const sl_expert_weights *e = &c->expert[i];
        const sl_mat *mats[] = {&e->gate, &e->up, &e->down};
        for (size_t j = 0; j < SL_LEN(mats); j++) touch_mat(mats[j], 0, mat_bytes(mats[j]), c);
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
    size_t bytes = mat_bytes(&m->whole.mat[SL_ROLE_EMBED]);
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

void sl_model_touch_within(sl_model *m, sl_pool *pool, const sl_touching *how, uint64_t room,
                           uint64_t read_ns) {
    static const sl_touching silently = {0};
    if (!how) how = &silently;
    reading r = {.room = (int64_t)SL_MIN(room, (uint64_t)INT64_MAX),
                 .until_ns = sl_now_ns() + read_ns,
                 .owner = pthread_self(),
                 .told = how->progress,
                 .ctx = how->ctx,
                 .all = bytes_to_touch(m)};
    touch_ctx c = {.page = (size_t)sysconf(_SC_PAGESIZE), .stop = how->stop, .reading = &r};
    if (m->embed.open && room && read_ns) ask_for_embed(m);
    touch_weights(&m->whole, !m->embed.open, pool, &c);
    for (uint32_t l = 0; l < sl_model_blocks(m); l++) touch_weights(&m->block[l], true, pool, &c);
    c.expert = m->expert;
    sl_pool_run(pool, (size_t)sl_model_routed(m) * m->spec.n_experts, 1, touch_items, &c);
}

void sl_model_touch(sl_model *m, sl_pool *pool, const sl_touching *how) {
    long page = sysconf(_SC_PAGESIZE);
    size_t n_experts = (size_t)sl_model_routed(m) * m->spec.n_experts, bytes = 0;
    for (size_t i = 0; i < n_experts; i++) {
        bytes += expert_bytes(&m->expert[i]);
        m->expert[i].touched = sl_expert_pieces(&m->expert[i]);
    }
    for (size_t i = 0; i < SL_LEN(m->whole.mat); i++) bytes += mat_bytes(&m->whole.mat[i]);
    if (m->random || page < 4096 || bytes < WORTH_IT) return;
    uint64_t room = sl_memory_free();
    sl_model_touch_within(m, pool, how, room - room / 10, READ_NS);
}

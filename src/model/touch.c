/* Pages of bound weights put into the process before the first step. */
#include "model/model_int.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)2 << 20)
#define WORTH_IT                                                                                   \
    ((size_t)16 << 20) /* bytes of weights below which faults cost nothing to speak of */
#define ASKED 4u

#if !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ MADV_WILLNEED
#endif

/* Whether a few pages of the piece are in memory: then the rest is, too, or nearly. Asking for all
 * would cost a third of what is saved. */
static bool in_memory(uint8_t *at, size_t len, size_t page) {
    uint8_t there = 0;
    for (size_t i = 0; i < ASKED; i++)
        if (mincore(at + len * i / ASKED / page * page, 1, &there) != 0 || !(there & 1))
            return false;
    return true;
}

/* Best effort: what fails here will fault when it is used. False: it has to be read first. */
static bool touch(const uint8_t *data, size_t bytes, size_t page) {
    uintptr_t begin = (uintptr_t)data / page * page, end = (uintptr_t)data + bytes;
    uint8_t *at = (uint8_t *)begin;
    bool now = in_memory(at, end - begin, page);
    (void)madvise(at, end - begin, now ? MADV_POPULATE_READ : MADV_WILLNEED);
    return now;
}

/* ---- an expert ---- */

static size_t mat_bytes(const sl_mat *m) {
    return m->data ? (size_t)m->n * sl_dtype_row_bytes(m->dtype, m->k) : 0;
}

static uint32_t pieces_of(const sl_mat *m) {
    return (uint32_t)((mat_bytes(m) + PIECE - 1) / PIECE);
}

uint32_t sl_expert_pieces(const sl_expert_weights *w) {
    return pieces_of(&w->gate) + pieces_of(&w->up) + pieces_of(&w->down);
}

static bool touch_piece(const sl_mat *m, uint32_t i, size_t page) {
    size_t at = i * PIECE;
    return touch((const uint8_t *)m->data + at, SL_MIN(PIECE, mat_bytes(m) - at), page);
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
} touch_ctx;

static bool stops(const touch_ctx *c) {
    return c->stop && atomic_load_explicit(c->stop, memory_order_relaxed);
}

static void touch_mat(const sl_mat *m, size_t begin, size_t end, size_t page) {
    for (size_t at = begin; at < end; at += PIECE)
        touch((const uint8_t *)m->data + at, SL_MIN(PIECE, end - at), page);
}

static void touch_items(void *ctx, size_t begin, size_t end) {
    const touch_ctx *c = ctx;
    for (size_t i = begin; i < end && !stops(c); i++) {
        if (c->mat) {
            size_t bytes = mat_bytes(c->mat);
            touch_mat(c->mat, i * PIECE, SL_MIN(bytes, (i + 1) * PIECE), c->page);
            continue;
        }
        const sl_expert_weights *e = &c->expert[i];
        const sl_mat *mats[] = {&e->gate, &e->up, &e->down};
        for (size_t j = 0; j < SL_LEN(mats); j++)
            touch_mat(mats[j], 0, mat_bytes(mats[j]), c->page);
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

void sl_model_touch(sl_model *m, sl_pool *pool, const atomic_bool *stop) {
    long page = sysconf(_SC_PAGESIZE);
    size_t n_experts = (size_t)m->spec.n_moe * m->spec.n_experts, bytes = 0;
    for (size_t i = 0; i < n_experts; i++) {
        bytes += mat_bytes(&m->expert[i].gate);
        m->expert[i].touched = sl_expert_pieces(&m->expert[i]);
    }
    for (size_t i = 0; i < SL_LEN(m->whole.mat); i++) bytes += mat_bytes(&m->whole.mat[i]);
    if (m->random || page < 4096 || bytes < WORTH_IT) return;
    /* Read from the file, where it has to be in memory, but not in this process. */
    if (m->embed.open)
        (void)posix_fadvise(m->embed.fd, (off_t)m->embed.begin,
                            (off_t)mat_bytes(&m->whole.mat[SL_ROLE_EMBED]), POSIX_FADV_WILLNEED);
    touch_ctx c = {.page = (size_t)page, .stop = stop};
    touch_weights(&m->whole, !m->embed.open, pool, &c);
    for (uint32_t l = 0; l < m->spec.n_layers; l++) touch_weights(&m->block[l], true, pool, &c);
    c.expert = m->expert;
    sl_pool_run(pool, n_experts, 1, touch_items, &c);
}

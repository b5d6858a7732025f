/* Slabs of a GPU's memory, and the limit of what a worker takes there. */
#include "stage/cuda/slabs.h"

#include "base/mem.h"
#include "stage/cuda.h"

#include <string.h>

#define ALIGN 256u
#define SLAB  ((size_t)64 << 20)
#define PART  16u /* a slab is no more than one part of so many of what the limit leaves */

sl_status sl_cuda_slabs_take(sl_cuda_slabs *m, size_t bytes, const char *what, uint64_t *out,
                             sl_err *err) {
    if (m->limit && (m->taken > m->limit || bytes > m->limit - m->taken))
        return sl_fail(err, SL_ERR_NOMEM,
                       "cuda:%u: %s of %.1f MB do not fit: %.1f of the %.1f MB of --gpu-memory are "
                       "taken; allow more, take fewer --kv-pages, or more workers for the experts",
                       m->index, what, (double)bytes / 1e6, (double)m->taken / 1e6,
                       (double)m->limit / 1e6);
    sl_status st = sl_cuda_alloc(m->c, bytes, out, err);
    if (st == SL_OK)
        m->taken += bytes;
    else if (st == SL_ERR_NOMEM)
        (void)sl_err_prefix(err, "%s", what);
    return st;
}

void sl_cuda_slabs_return(sl_cuda_slabs *m, uint64_t at, size_t bytes) {
    if (!at) return;
    sl_cuda_free(m->c, at);
    m->taken -= bytes;
}

sl_status sl_cuda_slabs_grow(sl_cuda_slabs *m, size_t bytes, const char *what, sl_cuda_piece *p,
                             sl_err *err) {
    uint64_t more = 0;
    if (bytes <= p->bytes) return SL_OK;
    sl_status st = sl_cuda_slabs_take(m, bytes, what, &more, err);
    if (st != SL_OK) return st; /* what there was goes on */
    sl_cuda_slabs_return(m, p->at, p->bytes);
    *p = (sl_cuda_piece){more, bytes};
    return SL_OK;
}

static size_t whole(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static sl_status note_slab(sl_cuda_slabs *m, sl_cuda_piece slab, sl_err *err) {
    if (m->n_slabs == m->cap_slabs) {
        size_t cap = SL_MAX(2 * m->cap_slabs, (size_t)64);
        void *more = sl_grow(m->slabs, m->n_slabs, cap, sizeof *m->slabs);
        if (!more) return sl_fail(err, SL_ERR_NOMEM, "list of %zu slabs", cap);
        m->slabs = more;
        m->cap_slabs = cap;
    }
    m->slabs[m->n_slabs++] = slab;
    return SL_OK;
}

/* ---- what nobody has ---- */

/* A slab begins there: the bytes before are another one's, though they may lie next to it. */
static bool begins_slab(const sl_cuda_slabs *m, uint64_t at) {
    for (size_t i = 0; i < m->n_slabs; i++)
        if (m->slabs[i].at == at) return true;
    return false;
}

static bool touches(const sl_cuda_slabs *m, const sl_cuda_piece *a, const sl_cuda_piece *b) {
    return a->at + a->bytes == b->at && !begins_slab(m, b->at);
}

static void leave_out(sl_cuda_slabs *m, size_t i) {
    memmove(m->freed + i, m->freed + i + 1, (--m->n_freed - i) * sizeof *m->freed);
}

/* False: there is no memory for the list. */
static bool put_free(sl_cuda_slabs *m, sl_cuda_piece p) {
    size_t i = m->n_freed;
    if (m->n_freed == m->cap_freed) {
        size_t cap = SL_MAX(2 * m->cap_freed, (size_t)64);
        void *more = sl_grow(m->freed, m->n_freed, cap, sizeof *m->freed);
        if (!more) return false;
        m->freed = more;
        m->cap_freed = cap;
    }
    while (i > 0 && m->freed[i - 1].at > p.at) i--;
    memmove(m->freed + i + 1, m->freed + i, (m->n_freed++ - i) * sizeof *m->freed);
    m->freed[i] = p;
    if (i + 1 < m->n_freed && touches(m, &m->freed[i], &m->freed[i + 1])) {
        m->freed[i].bytes += m->freed[i + 1].bytes;
        leave_out(m, i + 1);
    }
    if (i > 0 && touches(m, &m->freed[i - 1], &m->freed[i])) {
        m->freed[i - 1].bytes += m->freed[i].bytes;
        leave_out(m, i);
    }
    return true;
}

/* The smallest free part that has so many bytes; n_freed: none has. */
static size_t best_of(const sl_cuda_slabs *m, size_t bytes) {
    size_t best = m->n_freed;
    for (size_t i = 0; i < m->n_freed; i++) {
        if (m->freed[i].bytes < bytes) continue;
        if (best == m->n_freed || m->freed[i].bytes < m->freed[best].bytes) best = i;
    }
    return best;
}

/* For a piece of so many bytes where the limit leaves `left`: some of these, as rows and pages want
 * memory, too. */
static size_t slab_bytes(uint64_t left, size_t bytes) {
    return (size_t)SL_MAX(SL_MIN((uint64_t)SLAB, left / PART), (uint64_t)bytes);
}

/* Bytes that the limit leaves. */
static uint64_t within(const sl_cuda_slabs *m) {
    if (!m->limit) return UINT64_MAX;
    return m->limit > m->taken ? m->limit - m->taken : 0;
}

static sl_status next_slab(sl_cuda_slabs *m, size_t bytes, sl_err *err) {
    size_t size = slab_bytes(within(m), bytes);
    uint64_t at = 0;
    sl_status st = sl_cuda_slabs_take(m, size, "weights", &at, err);
    if (st == SL_ERR_NOMEM && size > bytes)
        st = sl_cuda_slabs_take(m, size = bytes, "weights", &at, err);
    if (st != SL_OK) return st;
    const sl_cuda_piece slab = {at, size};
    st = note_slab(m, slab, err);
    if (st == SL_OK && !put_free(m, slab)) {
        m->n_slabs--;
        st = sl_fail(err, SL_ERR_NOMEM, "list of what is free on cuda:%u", m->index);
    }
    if (st != SL_OK) sl_cuda_slabs_return(m, at, size);
    return st;
}

sl_status sl_cuda_slabs_cut(sl_cuda_slabs *m, size_t bytes, uint64_t *out, sl_err *err) {
    bytes = whole(SL_MAX(bytes, (size_t)1));
    size_t i = best_of(m, bytes);
    if (i == m->n_freed) {
        sl_status st = next_slab(m, bytes, err);
        if (st != SL_OK) return st;
        i = best_of(m, bytes);
    }
    *out = m->freed[i].at;
    m->freed[i].at += bytes;
    m->freed[i].bytes -= bytes;
    if (!m->freed[i].bytes) leave_out(m, i);
    return SL_OK;
}

void sl_cuda_slabs_drop(sl_cuda_slabs *m, uint64_t at, size_t bytes) {
    /* Without memory for the list it is lost until the slab goes. */
    (void)put_free(m, (sl_cuda_piece){at, whole(SL_MAX(bytes, (size_t)1))});
}

/* ---- how much more there can be ---- */

/* Bytes that the driver would give. */
static uint64_t untaken(sl_cuda_slabs *m, uint64_t beside) {
    const uint64_t there = sl_cuda_free_bytes(m->c);
    const uint64_t bytes =
        m->limit ? SL_MIN(within(m), there) : there - SL_MIN(there, SL_CUDA_LEFT);
    return bytes - SL_MIN(bytes, beside);
}

uint64_t sl_cuda_slabs_room(sl_cuda_slabs *m, const sl_cuda_cut *cut, uint64_t beside) {
    /* The small ones lie beside any of the others. */
    const uint64_t place = whole(cut->piece) + whole(cut->small);
    uint64_t left = untaken(m, beside), places = 0;
    if (!cut->n || !cut->piece) return 0;
    while (left >= place) {
        const uint64_t slab = SL_MIN(left, slab_bytes(m->limit ? left : UINT64_MAX, place));
        places += slab / place;
        left -= slab;
    }
    for (size_t i = 0; i < m->n_freed; i++) places += m->freed[i].bytes / place;
    return places / cut->n;
}

void sl_cuda_slabs_free(sl_cuda_slabs *m) {
    for (size_t i = 0; i < m->n_slabs; i++) sl_cuda_free(m->c, m->slabs[i].at);
    sl_free(m->slabs);
    sl_free(m->freed);
    *m = (sl_cuda_slabs){0};
}

/* Slabs of a GPU's memory, and the limit of what a worker takes there. */
#include "stage/cuda/slabs.h"

#include "base/mem.h"

#define ALIGN 256u
#define SLAB  ((size_t)64 << 20)

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

static sl_status note_slab(sl_cuda_slabs *m, uint64_t at, sl_err *err) {
    if (m->n_slabs == m->cap_slabs) {
        size_t cap = SL_MAX(2 * m->cap_slabs, (size_t)64);
        void *more = sl_grow(m->slabs, m->n_slabs, cap, sizeof *m->slabs);
        if (!more) return sl_fail(err, SL_ERR_NOMEM, "list of %zu slabs", cap);
        m->slabs = more;
        m->cap_slabs = cap;
    }
    m->slabs[m->n_slabs++] = at;
    return SL_OK;
}

/* As large as the limit allows, so that the last experts fit, too. */
static sl_status next_slab(sl_cuda_slabs *m, size_t bytes, sl_err *err) {
    size_t size = SL_MAX(SLAB, bytes);
    uint64_t at = 0;
    if (m->limit && m->limit > m->taken) size = SL_MAX(SL_MIN(size, m->limit - m->taken), bytes);
    sl_status st = sl_cuda_slabs_take(m, size, "weights", &at, err);
    if (st == SL_ERR_NOMEM && size > bytes)
        st = sl_cuda_slabs_take(m, size = bytes, "weights", &at, err);
    if (st != SL_OK) return st;
    st = note_slab(m, at, err);
    if (st != SL_OK) {
        sl_cuda_slabs_return(m, at, size);
        return st;
    }
    m->slab = (sl_cuda_piece){at, size};
    return SL_OK;
}

sl_status sl_cuda_slabs_cut(sl_cuda_slabs *m, size_t bytes, uint64_t *out, sl_err *err) {
    bytes = whole(SL_MAX(bytes, (size_t)1));
    for (size_t i = m->n_freed; i-- > 0;) {
        if (m->freed[i].bytes != bytes) continue;
        *out = m->freed[i].at;
        m->freed[i] = m->freed[--m->n_freed];
        return SL_OK;
    }
    if (bytes > m->slab.bytes) {
        sl_status st = next_slab(m, bytes, err);
        if (st != SL_OK) return st;
    }
    *out = m->slab.at;
    m->slab.at += bytes;
    m->slab.bytes -= bytes;
    return SL_OK;
}

void sl_cuda_slabs_drop(sl_cuda_slabs *m, uint64_t at, size_t bytes) {
    bytes = whole(SL_MAX(bytes, (size_t)1));
    if (m->n_freed == m->cap_freed) {
        size_t cap = SL_MAX(2 * m->cap_freed, (size_t)64);
        void *more = sl_grow(m->freed, m->n_freed, cap, sizeof *m->freed);
        if (!more) return; /* it is lost until the slab goes */
        m->freed = more;
        m->cap_freed = cap;
    }
    m->freed[m->n_freed++] = (sl_cuda_piece){at, bytes};
}

void sl_cuda_slabs_free(sl_cuda_slabs *m) {
    for (size_t i = 0; i < m->n_slabs; i++) sl_cuda_free(m->c, m->slabs[i]);
    sl_free(m->slabs);
    sl_free(m->freed);
    *m = (sl_cuda_slabs){0};
}

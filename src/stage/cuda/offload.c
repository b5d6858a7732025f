/* Places for experts of blocks, what is copied there and when, and memory that is registered. */
#include "stage/cuda/offload.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/memory.h"
#include "model/model.h"
#include "stage/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGN 256u
#define PART  ((size_t)32 << 20)  /* registered at once, between ticks */
#define OVER  ((size_t)8 << 20)   /* bytes of a part of pinned memory */
#define SLICE ((size_t)512 << 10) /* the least that a thread fills */
#define FILLS 4u                  /* threads that do: others decode on the same cores */

/* Of a block's experts that a call asks for: so many parts in MOST_OF are most of them. */
#define MOST    3u
#define MOST_OF 4u

static size_t whole(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t sl_cuda_offload_stride(const sl_cuda_cut *cut) {
    return cut->n * whole(cut->piece) + whole(cut->small) + SL_CUDA_EXPERT_PIECES * ALIGN;
}

static uint32_t places_of(uint32_t n_blocks) {
    return SL_MIN(n_blocks, SL_CUDA_PLACES);
}

uint64_t sl_cuda_offload_bytes(const sl_cuda_cut *cut, uint32_t n_blocks, uint32_t n_experts) {
    return (uint64_t)places_of(n_blocks) * n_experts * sl_cuda_offload_stride(cut);
}

uint64_t sl_cuda_offload_room(const sl_model_spec *m, const sl_model_info *i) {
    const sl_cuda_cut cut = {i->expert_piece, i->expert_small, i->expert_pieces};
    return sl_cuda_offload_bytes(&cut, m->n_moe, m->n_experts);
}

static sl_cuda_place *place_of(sl_cuda_offload *o, uint32_t block) {
    return &o->place[block % SL_CUDA_PLACES];
}

sl_status sl_cuda_offload_create(sl_cuda *c, sl_cuda_slabs *memory, const sl_cuda_cut *cut,
                                 uint32_t n_blocks, uint32_t n_experts, void (*tick)(void *),
                                 void *tick_ctx, sl_cuda_offload *out, sl_err *err) {
    *out = (sl_cuda_offload){.c = c,
                             .memory = memory,
                             .index = memory->index,
                             .n_blocks = n_blocks,
                             .n_experts = n_experts,
                             .stride = sl_cuda_offload_stride(cut),
                             .next = SL_CUDA_NO_BLOCK,
                             .tick = tick,
                             .tick_ctx = tick_ctx};
    out->arrays = sl_alloc_arrays(
        SL_ARRAY(out->kept, (size_t)n_blocks * n_experts), SL_ARRAY(out->asked, n_experts),
        SL_ARRAY(out->place[0].has, n_experts), SL_ARRAY(out->place[1].has, n_experts));
    if (!out->arrays) return sl_fail(err, SL_ERR_NOMEM, "list of experts in the host's memory");
    sl_status st = sl_cuda_beside(c, err);
    for (uint32_t i = 0; st == SL_OK && i < places_of(n_blocks); i++) {
        sl_cuda_place *p = &out->place[i];
        p->block = SL_CUDA_NO_BLOCK;
        st = sl_cuda_slabs_take(memory, n_experts * out->stride,
                                "a place for a block's experts (--offload-experts)", &p->at, err);
        if (st == SL_OK) st = sl_cuda_event_create(c, &p->there, err);
        if (st == SL_OK) st = sl_cuda_event_create(c, &p->read, err);
    }
    return st;
}

void sl_cuda_offload_release(sl_cuda_offload *o) {
    if (!o->c) return;
    sl_cuda_drain_beside(o->c);
    for (size_t i = 0; i < o->n_spans; i++) sl_cuda_release(o->c, o->span[i].at);
    o->n_spans = 0;
}

void sl_cuda_offload_free(sl_cuda_offload *o) {
    if (!o->c) return;
    sl_cuda_offload_release(o);
    for (uint32_t i = 0; i < SL_CUDA_STEPS_OVER; i++) {
        sl_cuda_event_free(o->c, o->over[i].read);
        sl_cuda_unpin(o->c, o->over[i].host);
    }
    for (uint32_t i = 0; i < SL_CUDA_PLACES; i++) {
        sl_cuda_event_free(o->c, o->place[i].there);
        sl_cuda_event_free(o->c, o->place[i].read);
        sl_cuda_slabs_return(o->memory, o->place[i].at, o->n_experts * o->stride);
    }
    if (o->bytes)
        sl_log(SL_LOG_INFO, "cuda",
               "cuda:%u: %.1f MB of experts' weights were copied, %.1f by way of pinned memory",
               o->index, 1e-6 * (double)o->bytes, 1e-6 * (double)o->over_bytes);
    sl_free(o->span);
    sl_free(o->arrays);
    *o = (sl_cuda_offload){0};
}

/* ---- what is registered ---- */

/* The number of the first span that ends behind p. */
static size_t span_at(const sl_cuda_offload *o, const uint8_t *p) {
    size_t low = 0, high = o->n_spans;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (o->span[mid].at + o->span[mid].bytes > p)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* How many of these bytes one span has from the first on; 0: none has the first. */
static size_t registered(const sl_cuda_offload *o, const uint8_t *p, size_t bytes) {
    const size_t i = span_at(o, p);
    if (i == o->n_spans || o->span[i].at > p) return 0;
    return SL_MIN(bytes, (size_t)(o->span[i].at + o->span[i].bytes - p));
}

static sl_status note_span(sl_cuda_offload *o, sl_cuda_span s, sl_err *err) {
    if (o->n_spans == o->cap_spans) {
        const size_t cap = SL_MAX(2 * o->cap_spans, (size_t)16);
        void *more = sl_grow(o->span, o->n_spans, cap, sizeof *o->span);
        if (!more) return sl_fail(err, SL_ERR_NOMEM, "list of %zu parts of memory", cap);
        o->span = more;
        o->cap_spans = cap;
    }
    const size_t i = span_at(o, s.at);
    memmove(o->span + i + 1, o->span + i, (o->n_spans++ - i) * sizeof *o->span);
    o->span[i] = s;
    return SL_OK;
}

static void refuse(sl_cuda_offload *o, const char *why) {
    o->refused = true;
    sl_log(SL_LOG_INFO, "cuda",
           "cuda:%u: experts' weights go by way of pinned memory, as their own cannot be "
           "registered: %s",
           o->index, why);
}

/* What is registered stays in memory, so that others are to have some left. */
static bool has_room(size_t bytes) {
    const uint64_t free_bytes = sl_memory_free();
    return bytes <= free_bytes - free_bytes / 10;
}

/* Registers [at, end), whole pages of which nothing is registered, but for a refusal. */
static sl_status add_spans(sl_cuda_offload *o, const uint8_t *at, const uint8_t *end, sl_err *err) {
    sl_err why;
    while (at < end && !o->refused) {
        const sl_cuda_span s = {at, SL_MIN(PART, (size_t)(end - at))};
        if (o->tick) o->tick(o->tick_ctx);
        if (!has_room(s.bytes))
            refuse(o, "it would leave the machine too little");
        else if (sl_cuda_register(o->c, s.at, s.bytes, &why) != SL_OK)
            refuse(o, why.msg);
        if (o->refused) return SL_OK;
        sl_status st = note_span(o, s, err);
        if (st != SL_OK) {
            sl_cuda_release(o->c, s.at);
            return st;
        }
        at += s.bytes;
    }
    return SL_OK;
}

static int by_address(const void *a, const void *b) {
    const sl_cuda_span *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Pages of all pieces, by address, joined where they touch; returns how many. */
static size_t list_pages(const sl_cuda_offload *o, sl_cuda_span *out) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n = 0, joined = 0;
    for (size_t e = 0; e < (size_t)o->n_blocks * o->n_experts; e++)
        for (uint32_t i = 0; i < o->kept[e].n; i++) {
            const uintptr_t from = (uintptr_t)o->kept[e].piece[i].from;
            const uintptr_t first = from / page * page;
            const size_t bytes =
                (from - first + o->kept[e].piece[i].bytes + page - 1) / page * page;
            out[n++] = (sl_cuda_span){o->kept[e].piece[i].from - (from - first), bytes};
        }
    qsort(out, n, sizeof *out, by_address);
    for (size_t i = 0; i < n; i++) {
        sl_cuda_span *last = out + joined - 1;
        if (joined && out[i].at <= last->at + last->bytes)
            last->bytes = SL_MAX(last->bytes, (size_t)(out[i].at + out[i].bytes - last->at));
        else
            out[joined++] = out[i];
    }
    return joined;
}

/* What of these pages is not registered. */
static sl_status add_missing(sl_cuda_offload *o, const sl_cuda_span *pages, sl_err *err) {
    const uint8_t *at = pages->at, *end = at + pages->bytes;
    sl_status st = SL_OK;
    while (st == SL_OK && at < end && !o->refused) {
        const size_t i = span_at(o, at), there = registered(o, at, (size_t)(end - at));
        const uint8_t *next = i < o->n_spans && o->span[i].at < end ? o->span[i].at : end;
        if (there == 0) st = add_spans(o, at, next, err);
        at = there ? at + there : next;
    }
    return st;
}

sl_status sl_cuda_offload_settle(sl_cuda_offload *o, sl_err *err) {
    size_t n = 0;
    sl_status st = SL_OK;
    if (o->refused) return SL_OK;
    for (size_t e = 0; e < (size_t)o->n_blocks * o->n_experts; e++) n += o->kept[e].n;
    sl_cuda_span *pages = sl_alloc(n + 1, sizeof *pages);
    if (!pages) return sl_fail(err, SL_ERR_NOMEM, "list of %zu parts of memory", n);
    n = list_pages(o, pages);
    for (size_t i = 0; st == SL_OK && i < n; i++) st = add_missing(o, &pages[i], err);
    sl_free(pages);
    return st;
}

/* Memory that may be freed is registered no more, with all that was registered beside it. What is
 * mapped stays until the device closes. */
static void forget_spans(sl_cuda_offload *o, const uint8_t *at, size_t bytes) {
    size_t i = span_at(o, at);
    if (sl_weights_are_mapped(at)) return;
    while (i < o->n_spans && o->span[i].at < at + bytes) {
        sl_cuda_release(o->c, o->span[i].at);
        memmove(o->span + i, o->span + i + 1, (--o->n_spans - i) * sizeof *o->span);
    }
}

/* ---- who is kept ---- */

sl_status sl_cuda_offload_put(sl_cuda_offload *o, size_t expert, const void *data, size_t bytes,
                              const void **out, sl_err *err) {
    const uint32_t block = (uint32_t)(expert / o->n_experts);
    const size_t number = expert % o->n_experts;
    sl_cuda_kept *k = &o->kept[expert];
    const size_t at = k->n ? whole(k->piece[k->n - 1].at + k->piece[k->n - 1].bytes) : 0;
    if (k->n == SL_CUDA_EXPERT_PIECES || at > o->stride || bytes > o->stride - at)
        return sl_fail(err, SL_ERR_LIMIT,
                       "cuda:%u: expert %zu of block %u has more than %zu bytes or %u pieces",
                       o->index, number, block, o->stride, SL_CUDA_EXPERT_PIECES);
    k->piece[k->n].from = data;
    k->piece[k->n].bytes = bytes;
    k->piece[k->n++].at = at;
    *out = (const void *)(uintptr_t)(place_of(o, block)->at + number * o->stride + at);
    return SL_OK;
}

/* All of an expert leave together, or the last one that came alone. */
void sl_cuda_offload_drop(sl_cuda_offload *o, size_t expert, const void *at) {
    sl_cuda_place *p = place_of(o, (uint32_t)(expert / o->n_experts));
    sl_cuda_kept *k = &o->kept[expert];
    const uint64_t base = p->at + expert % o->n_experts * o->stride;
    uint32_t i = 0;
    while (i < k->n && base + k->piece[i].at != (uint64_t)(uintptr_t)at) i++;
    SL_ASSERT(i < k->n);
    forget_spans(o, k->piece[i].from, k->piece[i].bytes);
    o->next = SL_CUDA_NO_BLOCK;
    for (k->n--; i < k->n; i++) k->piece[i] = k->piece[i + 1];
    if (p->block != expert / o->n_experts) return;
    p->has[expert % o->n_experts] = 0;
    p->left.expert = SL_CUDA_NO_BLOCK;
}

/* ---- copies ---- */

/* A part of pinned memory with some room: the one that is being filled, or the next, once what was
 * there is on the GPU. NULL: there is none, and a failure. */
static sl_cuda_over *over_with_room(sl_cuda_offload *o) {
    sl_cuda_over *v = &o->over[o->filling];
    sl_err err;
    uint64_t unused;
    void *host = NULL;
    if (v->host && v->used < OVER) return v;
    if (v->host) sl_cuda_event_record_beside(o->c, v->read);
    if (v->host) v = &o->over[o->filling = (o->filling + 1) % SL_CUDA_STEPS_OVER];
    if (o->tick) o->tick(o->tick_ctx);
    if (!v->host) {
        sl_status st = sl_cuda_pin(o->c, OVER, &host, &unused, &err);
        v->host = host;
        if (st == SL_OK) st = sl_cuda_event_create(o->c, &v->read, &err);
        if (st != SL_OK) {
            sl_cuda_fail(o->c, st, "experts' weights: %s", err.msg);
            return NULL;
        }
    }
    sl_cuda_event_wait(o->c, v->read);
    v->used = 0;
    return v;
}

typedef struct slices {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes, each;
} slices;

static void fill_slices(void *ctx, size_t begin, size_t end) {
    const slices *s = ctx;
    const size_t first = SL_MIN(begin * s->each, s->bytes);
    const size_t last = SL_MIN(end * s->each, s->bytes);
    memcpy(s->to + first, s->from + first, last - first);
}

static void fill(sl_cuda_offload *o, uint8_t *to, const uint8_t *from, size_t bytes) {
    const size_t n = SL_MIN((bytes + SLICE - 1) / SLICE, (size_t)FILLS);
    slices s = {to, from, bytes, (bytes + n - 1) / n};
    if (o->pool && n > 1)
        sl_pool_run(o->pool, n, 1, fill_slices, &s);
    else
        fill_slices(&s, 0, n);
}

/* As much of these bytes as one part has room for, or one span; returns how many. */
static size_t copy_some(sl_cuda_offload *o, uint64_t to, const uint8_t *from, size_t bytes) {
    size_t n = registered(o, from, bytes);
    if (n > 0) {
        sl_cuda_copy_in_beside(o->c, to, from, n);
    } else {
        sl_cuda_over *v = over_with_room(o);
        n = v ? SL_MIN(bytes, OVER - v->used) : bytes; /* nothing is asked after a failure */
        if (v) {
            fill(o, v->host + v->used, from, n);
            sl_cuda_copy_in_beside(o->c, to, v->host + v->used, n);
            v->used += n;
            o->over_bytes += n;
        }
    }
    o->bytes += n;
    return n;
}

/* The rest of an expert, from where it was left, as long as so many bytes have not passed through
 * pinned memory. False: there is more. */
static bool bring_expert(sl_cuda_offload *o, uint32_t block, uint32_t e, uint64_t until) {
    sl_cuda_place *p = place_of(o, block);
    const sl_cuda_kept *k = &o->kept[(size_t)block * o->n_experts + e];
    sl_cuda_left *l = &p->left;
    if (l->expert != e) *l = (sl_cuda_left){.expert = e};
    for (; l->piece < k->n; l->piece++, l->at = 0)
        while (l->at < k->piece[l->piece].bytes) {
            const uint64_t to = p->at + e * o->stride + k->piece[l->piece].at + l->at;
            if (o->over_bytes >= until) return false;
            l->at +=
                copy_some(o, to, k->piece[l->piece].from + l->at, k->piece[l->piece].bytes - l->at);
        }
    l->expert = SL_CUDA_NO_BLOCK;
    p->has[e] = 1;
    return true;
}

/* Those of a block that are wanted (NULL: all) and not there begin to come there, until so many
 * bytes have passed through pinned memory. False: there are more. */
static bool bring(sl_cuda_offload *o, uint32_t block, const uint8_t *wanted, uint64_t most) {
    sl_cuda_place *p = place_of(o, block);
    const uint64_t until = most < UINT64_MAX - o->over_bytes ? o->over_bytes + most : UINT64_MAX;
    if (p->block != block) {
        memset(p->has, 0, o->n_experts);
        sl_cuda_after_beside(o->c, p->read); /* what read the block that was there */
        p->block = block;
        p->left.expert = SL_CUDA_NO_BLOCK;
    }
    for (uint32_t e = 0; e < o->n_experts; e++) {
        const bool here = o->kept[(size_t)block * o->n_experts + e].n > 0;
        if (!here || p->has[e] || (wanted && !wanted[e])) continue;
        if (!bring_expert(o, block, e, until)) return false;
    }
    return true;
}

void sl_cuda_offload_need(sl_cuda_offload *o, uint32_t block, const uint32_t *expert,
                          const uint32_t *first, uint32_t n) {
    sl_cuda_place *p = place_of(o, block);
    uint64_t wanted = 0, here = 0;
    memset(o->asked, 0, o->n_experts);
    for (uint32_t g = 0; g < n; g++) {
        if (first[g] == first[g + 1]) continue;
        o->asked[expert[g]] = 1;
        wanted++;
    }
    for (uint32_t e = 0; e < o->n_experts; e++)
        here += o->kept[(size_t)block * o->n_experts + e].n > 0;
    o->most = MOST_OF * wanted >= MOST * here;
    (void)bring(o, block, o->most ? NULL : o->asked, UINT64_MAX);
    sl_cuda_event_record_beside(o->c, p->there);
    sl_cuda_after(o->c, p->there);
}

void sl_cuda_offload_used(sl_cuda_offload *o, uint32_t block) {
    const uint32_t next = (block + 1) % o->n_blocks;
    sl_cuda_event_record(o->c, place_of(o, block)->read);
    o->next = o->most && place_of(o, next) != place_of(o, block) ? next : SL_CUDA_NO_BLOCK;
    sl_cuda_offload_ahead(o);
}

void sl_cuda_offload_ahead(sl_cuda_offload *o) {
    if (o->next != SL_CUDA_NO_BLOCK && bring(o, o->next, NULL, OVER)) o->next = SL_CUDA_NO_BLOCK;
}

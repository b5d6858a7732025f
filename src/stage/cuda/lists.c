/* Lists of the host that kernels read: they lie in parts of pinned memory, which the GPU reads over
 * the bus. A part fills up, is left at the next fence with a mark behind all that reads it, and is
 * used again when that has run. So a step costs a copy of its lists and, once in a megabyte, a
 * mark; nothing is allocated once there are parts enough. */
#include "stage/cuda/context.h"

#include "base/mem.h"

#include <string.h>

#define PART_BYTES ((size_t)1 << 20)
#define PARTS      4u    /* at the start */
#define PARTS_CALM 16u   /* from so many on one that is being read is waited for */
#define PARTS_MOST 4096u /* gigabytes: lists that no fence ends */
#define LIST_ALIGN 64u

static sl_status add_part(sl_cuda *c, size_t bytes, sl_err *err) {
    sl_cuda_lists *l = &c->lists;
    void *host;
    sl_cuda_part part = {.bytes = SL_MAX(bytes, PART_BYTES)};
    if (l->n == PARTS_MOST) return sl_fail(err, SL_ERR_LIMIT, "%u parts of lists", l->n);
    sl_cuda_part *grown = sl_grow(l->parts, l->n, l->n + 1, sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_NOMEM, "no memory for lists");
    l->parts = grown;
    sl_status st = sl_cuda_pin(c, part.bytes, &host, &part.address, err);
    if (st != SL_OK) return st;
    part.host = host;
    st = SL_CU_DO(c->d, err, cuEventCreate, &part.read, SL_CU_EVENT_UNTIMED);
    if (st == SL_OK)
        l->parts[l->n++] = part;
    else
        sl_cuda_unpin(c, host);
    return st;
}

sl_status sl_cuda_lists_create(sl_cuda *c, sl_err *err) {
    sl_status st = SL_OK;
    while (st == SL_OK && c->lists.n < PARTS) st = add_part(c, PART_BYTES, err);
    if (st == SL_OK) c->lists.parts[0].state = SL_CUDA_PART_USED;
    return st;
}

void sl_cuda_lists_free(sl_cuda *c) {
    sl_cuda_lists *l = &c->lists;
    for (uint32_t i = 0; i < l->n; i++) {
        (void)c->d->cuEventDestroy_v2(l->parts[i].read);
        (void)c->d->cuMemFreeHost(l->parts[i].host);
    }
    sl_free(l->parts);
    sl_free(l->junk);
    *l = (sl_cuda_lists){0};
}

/* A part that has room: a free one, else the one that is free first. l->n: none. */
static uint32_t pick(const sl_cuda_lists *l, size_t bytes) {
    uint32_t best = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        const sl_cuda_part *p = &l->parts[i];
        if (p->bytes < bytes || p->state == SL_CUDA_PART_USED) continue;
        if (p->state == SL_CUDA_PART_FREE) return i;
        if (best == l->n || p->number < l->parts[best].number) best = i;
    }
    return best;
}

/* Opens a part for a list that does not fit the open one. False: there is a failure. */
static bool turn(sl_cuda *c, size_t bytes) {
    sl_cuda_lists *l = &c->lists;
    sl_err err = {0};
    uint32_t i = pick(l, bytes);
    if (i < l->n && l->parts[i].state == SL_CUDA_PART_FENCED) {
        const sl_cu_result r = c->d->cuEventQuery(l->parts[i].read);
        if (r == SL_CU_NOT_READY && l->n < PARTS_CALM)
            i = l->n;
        else if (r == SL_CU_NOT_READY && !SL_CUDA_DO(c, cuEventSynchronize, l->parts[i].read))
            return false;
        else if (r != SL_CU_NOT_READY && !sl_cuda_did(c, "cuEventQuery", r))
            return false;
    }
    if (i == l->n && add_part(c, bytes, &err) != SL_OK) {
        sl_cuda_fail(c, err.code, "lists: %s", err.msg);
        return false;
    }
    l->open = i;
    l->parts[i].state = SL_CUDA_PART_USED;
    l->parts[i].used = 0;
    return true;
}

/* After a failure, and for a graph that cannot be, nobody reads a list, but its caller writes it.
 */
static void *junk(sl_cuda_lists *l, size_t bytes) {
    if (l->junk_bytes < bytes) {
        sl_free(l->junk);
        l->junk = sl_alloc(bytes, 1);
        SL_ASSERT(l->junk);
        l->junk_bytes = bytes;
    }
    return l->junk;
}

void *sl_cuda_list_room(sl_cuda *c, size_t bytes, const void **out) {
    sl_cuda_lists *l = &c->lists;
    const size_t taken = (bytes + LIST_ALIGN - 1) / LIST_ALIGN * LIST_ALIGN;
    const sl_cuda_part *open = &l->parts[l->open];
    SL_ASSERT(taken >= bytes);
    *out = NULL;
    if (sl_cuda_refuses(c, "a list of the host is read") || c->failed) return junk(l, taken);
    if (open->bytes - open->used < taken && !turn(c, taken)) return junk(l, taken);
    sl_cuda_part *p = &l->parts[l->open];
    void *room = p->host + p->used;
    *out = (const void *)(uintptr_t)(p->address + p->used);
    p->used += taken;
    return room;
}

const void *sl_cuda_list(sl_cuda *c, const void *list, size_t bytes) {
    const void *address;
    void *room = sl_cuda_list_room(c, bytes, &address);
    if (bytes) memcpy(room, list, bytes);
    return address;
}

void sl_cuda_fence(sl_cuda *c) {
    sl_cuda_lists *l = &c->lists;
    if (c->recording.on) return; /* which has no lists, and a mark would be the graph's */
    if (c->failed || l->fenced == l->open) return; /* still in the part of the last fence */
    for (uint32_t i = 0; i < l->n; i++) {
        sl_cuda_part *p = &l->parts[i];
        if (p->state != SL_CUDA_PART_USED || i == l->open) continue;
        if (!SL_CUDA_DO(c, cuEventRecord, p->read, c->stream)) return;
        p->state = SL_CUDA_PART_FENCED;
        p->number = ++l->fences;
    }
    l->fenced = l->open;
}

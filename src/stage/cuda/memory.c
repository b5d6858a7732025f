/* Memory of a GPU and of the host for it, copies, marks. */
#include "base/mem.h"
#include "stage/cuda/context.h"

#include <stdatomic.h>

/* Memory. */

void sl_cuda_moves(sl_cuda *c) {
    (void)atomic_fetch_add_explicit(&c->moved, 1, memory_order_relaxed); /* its owner asks: none */
}

sl_status sl_cuda_alloc(sl_cuda *c, size_t bytes, uint64_t *out, sl_err *err) {
    size_t free_bytes = 0, all = 0;
    *out = 0;
    sl_status st = sl_cuda_enter(c, err);
    if (st != SL_OK) return st;
    sl_cuda_moves(c);
    const sl_cu_result r = c->d->cuMemAlloc_v2(out, SL_MAX(bytes, (size_t)1));
    if (r == SL_CU_OUT_OF_MEMORY && c->d->cuMemGetInfo_v2(&free_bytes, &all) == SL_CU_OK)
        return sl_fail(err, SL_ERR_NOMEM, "%s has no %zu bytes: of %zu, %zu are free", c->info.name,
                       bytes, all, free_bytes);
    return sl_cu_check(c->d, "cuMemAlloc_v2", r, err);
}

void sl_cuda_free(sl_cuda *c, uint64_t address) {
    sl_err err;
    if (!address || sl_cuda_enter(c, &err) != SL_OK) return;
    sl_cuda_moves(c);
    (void)c->d->cuMemFree_v2(address);
}

uint64_t sl_cuda_scratch(sl_cuda *c, size_t bytes) {
    sl_err err = {0};
    uint64_t bigger;
    if (c->failed) return 0;
    if (bytes <= c->scratch_bytes) return c->scratch;
    if (sl_cuda_refuses(c, "scratch grows")) return 0;
    bytes = SL_MAX(bytes, 2 * c->scratch_bytes);
    if (sl_cuda_alloc(c, bytes, &bigger, &err) != SL_OK) {
        sl_cuda_fail(c, err.code, "scratch: %s", err.msg);
        return 0;
    }
    sl_cuda_fill(c, bigger, 0, bytes);
    sl_cuda_free(c, c->scratch);
    c->scratch = bigger;
    c->scratch_bytes = bytes;
    return bigger;
}

uint64_t sl_cuda_free_bytes(sl_cuda *c) {
    size_t free_bytes = 0, all;
    return !c->failed && SL_CUDA_DO(c, cuMemGetInfo_v2, &free_bytes, &all) ? free_bytes : 0;
}

sl_status sl_cuda_pin(sl_cuda *c, size_t bytes, void **out, uint64_t *address, sl_err *err) {
    *out = NULL;
    *address = 0;
    sl_status st = sl_cuda_enter(c, err);
    if (st == SL_OK)
        st = SL_CU_DO(c->d, err, cuMemHostAlloc, out, SL_MAX(bytes, (size_t)1),
                      SL_CU_HOST_PORTABLE | SL_CU_HOST_MAPPED);
    if (st != SL_OK) return sl_err_prefix(err, "%zu bytes of pinned memory", bytes);
    st = SL_CU_DO(c->d, err, cuMemHostGetDevicePointer_v2, address, *out, 0);
    if (st == SL_OK) return SL_OK;
    sl_cuda_unpin(c, *out);
    *out = NULL;
    return st;
}

void sl_cuda_unpin(sl_cuda *c, void *p) {
    sl_err err;
    if (!p || sl_cuda_enter(c, &err) != SL_OK) return;
    if (c->stream) (void)c->d->cuStreamSynchronize(c->stream);
    (void)c->d->cuMemFreeHost(p);
}

sl_status sl_cuda_register(sl_cuda *c, const void *p, size_t bytes, sl_err *err) {
    sl_status st = sl_cuda_enter(c, err);
    if (st == SL_OK)
        st = SL_CU_DO(c->d, err, cuMemHostRegister_v2, (void *)(uintptr_t)p, bytes,
                      SL_CU_HOST_PORTABLE | SL_CU_HOST_READ);
    return st == SL_OK ? st : sl_err_prefix(err, "%zu bytes to be registered", bytes);
}

void sl_cuda_release(sl_cuda *c, const void *p) {
    sl_err err;
    if (!p || sl_cuda_enter(c, &err) != SL_OK) return;
    if (c->beside) (void)c->d->cuStreamSynchronize(c->beside);
    (void)c->d->cuMemHostUnregister((void *)(uintptr_t)p);
}

/* Copies. */

sl_status sl_cuda_copy_in(sl_cuda *c, uint64_t to, const void *from, size_t bytes, sl_err *err) {
    if (!bytes) return SL_OK;
    sl_status st = sl_cuda_enter(c, err);
    if (st == SL_OK) st = SL_CU_DO(c->d, err, cuMemcpyHtoD_v2, to, from, bytes);
    /* Which may return when the bytes are staged: streams here do not wait for its own. */
    return st == SL_OK ? SL_CU_DO(c->d, err, cuStreamSynchronize, NULL) : st;
}

sl_status sl_cuda_copy_out(sl_cuda *c, void *to, uint64_t from, size_t bytes, sl_err *err) {
    sl_cuda_drain(c);
    sl_status st = sl_cuda_failed(c, err);
    if (st == SL_OK && bytes) st = SL_CU_DO(c->d, err, cuMemcpyDtoH_v2, to, from, bytes);
    return st;
}

void sl_cuda_copy_in_later(sl_cuda *c, uint64_t to, const void *from, size_t bytes) {
    sl_cuda_settle(c);
    if (!c->failed && bytes) SL_CUDA_DO(c, cuMemcpyHtoDAsync_v2, to, from, bytes, c->stream);
}

void sl_cuda_copy_out_later(sl_cuda *c, void *to, uint64_t from, size_t bytes) {
    sl_cuda_settle(c);
    if (!c->failed && bytes) SL_CUDA_DO(c, cuMemcpyDtoHAsync_v2, to, from, bytes, c->stream);
}

void sl_cuda_copy(sl_cuda *c, uint64_t to, uint64_t from, size_t bytes) {
    sl_cuda_settle(c);
    if (!c->failed && bytes) SL_CUDA_DO(c, cuMemcpyDtoDAsync_v2, to, from, bytes, c->stream);
}

void sl_cuda_copy_in_beside(sl_cuda *c, uint64_t to, const void *from, size_t bytes) {
    if (!c->failed && bytes) SL_CUDA_DO(c, cuMemcpyHtoDAsync_v2, to, from, bytes, c->beside);
}

void sl_cuda_fill(sl_cuda *c, uint64_t to, uint8_t byte, size_t bytes) {
    sl_cuda_settle(c);
    if (!c->failed && bytes) SL_CUDA_DO(c, cuMemsetD8Async, to, byte, bytes, c->stream);
}

/* Marks. */

sl_status sl_cuda_event_create(sl_cuda *c, sl_cuda_event **out, sl_err *err) {
    sl_cuda_event *e = sl_alloc(1, sizeof *e);
    *out = NULL;
    if (!e) return sl_fail(err, SL_ERR_NOMEM, "no memory for an event");
    sl_status st = SL_CU_DO(c->d, err, cuEventCreate, &e->handle, 0);
    if (st == SL_OK)
        *out = e;
    else
        sl_free(e);
    return st;
}

void sl_cuda_event_free(sl_cuda *c, sl_cuda_event *e) {
    if (e) (void)c->d->cuEventDestroy_v2(e->handle);
    sl_free(e);
}

void sl_cuda_event_record(sl_cuda *c, sl_cuda_event *e) {
    sl_cuda_settle(c);
    if (!c->failed) e->put = SL_CUDA_DO(c, cuEventRecord, e->handle, c->stream);
}

bool sl_cuda_event_is_done(sl_cuda *c, sl_cuda_event *e) {
    if (c->failed || !e->put) return true;
    const sl_cu_result r = c->d->cuEventQuery(e->handle);
    if (r == SL_CU_NOT_READY) return false;
    (void)sl_cuda_did(c, "cuEventQuery", r);
    return true;
}

void sl_cuda_event_wait(sl_cuda *c, sl_cuda_event *e) {
    if (!c->failed && e->put) SL_CUDA_DO(c, cuEventSynchronize, e->handle);
}

float sl_cuda_event_ms(sl_cuda *c, const sl_cuda_event *from, const sl_cuda_event *to) {
    float ms = 0;
    if (!c->failed) SL_CUDA_DO(c, cuEventElapsedTime, &ms, from->handle, to->handle);
    return ms;
}

/* What runs beside. */

sl_status sl_cuda_beside(sl_cuda *c, sl_err *err) {
    if (c->beside) return SL_OK;
    sl_status st = sl_cuda_enter(c, err);
    return st == SL_OK ? SL_CU_DO(c->d, err, cuStreamCreate, &c->beside, SL_CU_STREAM_NON_BLOCKING)
                       : st;
}

void sl_cuda_event_record_beside(sl_cuda *c, sl_cuda_event *e) {
    if (!c->failed) e->put = SL_CUDA_DO(c, cuEventRecord, e->handle, c->beside);
}

void sl_cuda_after(sl_cuda *c, const sl_cuda_event *e) {
    sl_cuda_settle(c);
    if (!c->failed && e->put) SL_CUDA_DO(c, cuStreamWaitEvent, c->stream, e->handle, 0);
}

void sl_cuda_after_beside(sl_cuda *c, const sl_cuda_event *e) {
    if (!c->failed && e->put) SL_CUDA_DO(c, cuStreamWaitEvent, c->beside, e->handle, 0);
}

void sl_cuda_drain_beside(sl_cuda *c) {
    if (c->beside)
        (void)sl_cuda_did(c, "cuStreamSynchronize", c->d->cuStreamSynchronize(c->beside));
}

/* Memory that GPUs share: by address within a process, by CUDA's handles between processes. */
#include "stage/cuda/windows.h"

#include "base/mem.h"
#include "stage/cuda/context.h"

#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

/* The driver's steps: nothing else lies in what another process maps. */
#define STEP ((size_t)2 << 20)

/* Memory that devices of this process have offered. */
typedef struct sl_cuda_lent {
    struct sl_cuda_lent *next;
    const sl_cu_driver *d;
    sl_cu_device device;
    sl_cu_context context; /* kept: memory would go with it */
    uint64_t number, at;
    size_t bytes;
    uint32_t users; /* who offered it, and those who joined it */
    bool lends;     /* other processes can join it, */
    bool near;      /* somebody of this one has tried */
} sl_cuda_lent;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_cuda_lent *lents;
/* What another process may still have joined, and nobody of this one has any more: freeing it under
 * a mapping is undefined, so it goes with this process. */
static sl_cuda_lent *left;
static uint32_t n_left;
static uint64_t numbers, process;
static pid_t process_is;

/* With the lock. A child of this process is another one. */
static uint64_t this_process(void) {
    if (process_is != getpid()) {
        randombytes_buf(&process, sizeof process);
        process_is = getpid();
        lents = left = NULL; /* of the parent: nothing that a child could reach */
        n_left = 0;
    }
    return process;
}

/* ---- keys ---- */

/* u64 process, u64 number, u64 bytes, u32 whether there is a handle, u32 0, the handle. */
typedef struct joint {
    uint64_t process, number, bytes;
    uint32_t has_handle;
    sl_cu_ipc_handle handle;
} joint;

static void encode(const joint *k, sl_device_key *out) {
    sl_wr w = sl_wr_of(out->bytes, sizeof out->bytes);
    sl_wr_u64(&w, k->process);
    sl_wr_u64(&w, k->number);
    sl_wr_u64(&w, k->bytes);
    sl_wr_u32(&w, k->has_handle);
    sl_wr_u32(&w, 0);
    sl_wr_bytes(&w, k->handle.all, sizeof k->handle.all);
    out->len = w.len;
}

static sl_status decode(sl_span in, joint *out, sl_err *err) {
    sl_cur c = sl_cur_of(in);
    joint k = {.process = sl_cur_u64(&c), .number = sl_cur_u64(&c), .bytes = sl_cur_u64(&c)};
    k.has_handle = sl_cur_u32(&c);
    const uint32_t zero = sl_cur_u32(&c);
    const uint8_t *handle = sl_cur_take(&c, sizeof k.handle.all);
    if (!c.ok || sl_cur_left(&c) || zero || k.has_handle > 1)
        return sl_fail(err, SL_ERR_PROTOCOL, "a key of %zu bytes to memory of a GPU", in.len);
    memcpy(k.handle.all, handle, sizeof k.handle.all);
    *out = k;
    return SL_OK;
}

/* ---- the device's own list ---- */

static sl_status reserve(sl_cuda_windows *w, sl_err *err) {
    if (w->n < w->cap) return SL_OK;
    sl_cuda_window *grown = sl_grow(w->window, w->n, w->n + 8, sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_NOMEM, "%zu windows", w->n + 8);
    w->window = grown;
    w->cap = w->n + 8;
    return SL_OK;
}

/* There is room. */
static void keep(sl_cuda_windows *w, uint64_t at, size_t bytes, sl_cuda_lent *of, sl_mem *out) {
    *out = (sl_mem){.space = SL_SPACE_CUDA, .at = at, .bytes = bytes};
    for (size_t i = 0; i < w->n; i++) {
        if (w->window[i].at != at) continue;
        w->window[i].times++;
        return;
    }
    w->window[w->n++] = (sl_cuda_window){.at = at, .bytes = bytes, .times = 1, .of = of};
}

bool sl_cuda_windows_have(sl_cuda_windows *w, const void *p) {
    const uint64_t at = (uint64_t)(uintptr_t)p;
    for (size_t i = 0, k = w->last; i < w->n; i++, k++) {
        if (k >= w->n) k = 0;
        if (at < w->window[k].at || at - w->window[k].at >= w->window[k].bytes) continue;
        w->last = k;
        return true;
    }
    return false;
}

/* ---- what is offered ---- */

static sl_status lend(sl_cuda *c, sl_cuda_lent *l, sl_err *err) {
    sl_status st = SL_CU_DO(c->d, err, cuDevicePrimaryCtxRetain, &l->context, c->device);
    if (st != SL_OK) return st;
    st = sl_cuda_alloc(c, l->bytes, &l->at, err);
    if (st != SL_OK) (void)c->d->cuDevicePrimaryCtxRelease_v2(c->device);
    return st;
}

/* The last one that knew of it: in the context that it is of. */
static void give_up(sl_cuda_lent *l) {
    if (l->d->cuCtxSetCurrent(l->context) == SL_CU_OK) (void)l->d->cuMemFree_v2(l->at);
    (void)l->d->cuDevicePrimaryCtxRelease_v2(l->device);
    sl_free(l);
}

static void leave(sl_cuda_lent *l) {
    pthread_mutex_lock(&lock);
    const bool last = --l->users == 0, stays = l->lends && !l->near;
    for (sl_cuda_lent **at = &lents; last && *at; at = &(*at)->next) {
        if (*at != l) continue;
        *at = l->next;
        break;
    }
    if (last && stays) {
        l->next = left;
        left = l;
        n_left++;
    }
    pthread_mutex_unlock(&lock);
    if (last && !stays) give_up(l);
}

/* Nobody has it yet. Where a driver lends nothing to other processes those of this one can still
 * join. */
static void make_key(const sl_cuda *c, sl_cuda_lent *l, uint64_t of, sl_device_key *out) {
    joint k = {.process = of, .number = l->number, .bytes = l->bytes};
    k.has_handle = c->d->cuIpcGetMemHandle && c->d->cuIpcGetMemHandle(&k.handle, l->at) == SL_CU_OK;
    l->lends = k.has_handle;
    encode(&k, out);
}

/* What lies about unused does not grow with each connection that breaks. */
static sl_status may_offer(sl_err *err) {
    pthread_mutex_lock(&lock);
    (void)this_process();
    const uint32_t n = n_left;
    pthread_mutex_unlock(&lock);
    if (n < SL_CUDA_WINDOWS_LEFT) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT,
                   "%u windows of lost connections keep memory of GPUs until this process ends", n);
}

sl_status sl_cuda_windows_offer(sl_cuda_windows *w, size_t bytes, sl_mem *out, sl_device_key *key,
                                sl_err *err) {
    sl_status st = may_offer(err);
    if (st == SL_OK) st = reserve(w, err);
    if (st != SL_OK) return st;
    sl_cuda_lent *l = sl_alloc(1, sizeof *l);
    if (!l) return sl_fail(err, SL_ERR_NOMEM, "a window");
    *l = (sl_cuda_lent){.d = w->c->d,
                        .device = w->c->device,
                        .bytes = (bytes + STEP - 1) / STEP * STEP,
                        .users = 1};
    st = lend(w->c, l, err);
    if (st != SL_OK) {
        sl_free(l);
        return sl_err_prefix(err, "a window of %zu bytes", bytes);
    }
    pthread_mutex_lock(&lock);
    const uint64_t of = this_process();
    l->number = ++numbers;
    pthread_mutex_unlock(&lock);
    make_key(w->c, l, of, key);
    pthread_mutex_lock(&lock);
    l->next = lents;
    lents = l;
    pthread_mutex_unlock(&lock);
    keep(w, l->at, l->bytes, l, out);
    return SL_OK;
}

/* ---- what is joined ---- */

/* This context's kernels reach memory of that one. */
static sl_status reach(const sl_cuda *c, const sl_cuda_lent *l, sl_err *err) {
    int can = 0;
    if (l->device == c->device) return SL_OK;
    if (!c->d->cuDeviceCanAccessPeer || !c->d->cuCtxEnablePeerAccess)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the CUDA driver lets no GPU reach another one");
    sl_status st = SL_CU_DO(c->d, err, cuDeviceCanAccessPeer, &can, c->device, l->device);
    if (st == SL_OK && !can)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "GPU %d does not reach memory of GPU %d", c->device,
                       l->device);
    if (st == SL_OK) st = sl_cuda_enter(c, err);
    if (st != SL_OK) return st;
    const sl_cu_result r = c->d->cuCtxEnablePeerAccess(l->context, 0);
    return r == SL_CU_PEERS_ALREADY ? SL_OK : sl_cu_check(c->d, "cuCtxEnablePeerAccess", r, err);
}

static sl_status join_own(sl_cuda_windows *w, const joint *k, sl_mem *out, sl_err *err) {
    pthread_mutex_lock(&lock);
    sl_cuda_lent *l = lents;
    while (l && l->number != k->number) l = l->next;
    if (l) l->users++, l->near = true;
    pthread_mutex_unlock(&lock);
    if (!l) return sl_fail(err, SL_ERR_UNSUPPORTED, "memory of a GPU that is gone");
    sl_status st = reach(w->c, l, err);
    if (st == SL_OK)
        keep(w, l->at, l->bytes, l, out);
    else
        leave(l);
    return st;
}

/* What another process said is as long as it says. */
static sl_status check_range(const sl_cuda *c, uint64_t at, uint64_t bytes, sl_err *err) {
    sl_cu_address base = at;
    size_t there = bytes;
    sl_status st = SL_CU_DO(c->d, err, cuMemGetAddressRange_v2, &base, &there, at);
    if (st == SL_OK && (base != at || there < bytes))
        st = sl_fail(err, SL_ERR_PROTOCOL, "memory of a GPU of %llu bytes, %zu are there",
                     (unsigned long long)bytes, there);
    return st;
}

static sl_status join_other(sl_cuda_windows *w, const joint *k, sl_mem *out, sl_err *err) {
    const sl_cu_driver *d = w->c->d;
    sl_cu_address at = 0;
    if (!k->has_handle || !d->cuIpcOpenMemHandle_v2 || !d->cuIpcCloseMemHandle ||
        !d->cuMemGetAddressRange_v2)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "the CUDA driver shares no memory between processes");
    sl_status st = sl_cuda_enter(w->c, err);
    if (st != SL_OK) return st;
    const sl_cu_result r = d->cuIpcOpenMemHandle_v2(&at, k->handle, SL_CU_IPC_PEERS);
    st = sl_cu_check(d, "cuIpcOpenMemHandle_v2", r, err);
    if (st != SL_OK) {
        err->code = SL_ERR_UNSUPPORTED;
        return err->code;
    }
    st = check_range(w->c, at, k->bytes, err);
    if (st == SL_OK)
        keep(w, at, k->bytes, NULL, out);
    else
        (void)d->cuIpcCloseMemHandle(at);
    return st;
}

sl_status sl_cuda_windows_join(sl_cuda_windows *w, sl_span bytes, sl_mem *out, sl_err *err) {
    joint k = {0};
    sl_status st = decode(bytes, &k, err);
    if (st == SL_OK) st = reserve(w, err);
    if (st != SL_OK) return st;
    pthread_mutex_lock(&lock);
    const bool own = k.process == this_process();
    pthread_mutex_unlock(&lock);
    return own ? join_own(w, &k, out, err) : join_other(w, &k, out, err);
}

/* ---- its end ---- */

void sl_cuda_windows_part(sl_cuda_windows *w, sl_mem m) {
    sl_err err;
    for (size_t i = 0; i < w->n; i++) {
        const sl_cuda_window is = w->window[i];
        if (is.at != m.at) continue;
        if (--w->window[i].times == 0) w->window[i] = w->window[--w->n];
        if (is.of)
            leave(is.of);
        else if (sl_cuda_enter(w->c, &err) == SL_OK)
            (void)w->c->d->cuIpcCloseMemHandle(is.at);
        sl_cuda_adopt(w->c); /* the memory may have been another GPU's */
        return;
    }
}

void sl_cuda_windows_free(sl_cuda_windows *w) {
    while (w->n) sl_cuda_windows_part(w, (sl_mem){.at = w->window[0].at});
    sl_free(w->window);
    *w = (sl_cuda_windows){0};
}

/* ---- rows ---- */

sl_cuda_row_places sl_cuda_windows_places(sl_cuda_windows *w, const sl_stage_pack *p,
                                          sl_arena *lists) {
    sl_cuda_row_places out = {.at = sl_arena_take(lists, p->n, sizeof *out.at)};
    uint32_t *row = sl_arena_take(lists, p->n, sizeof *row);
    SL_ASSERT(out.at && row);
    for (uint32_t i = 0; i < p->n; i++) {
        const bool far = sl_cuda_windows_have(w, p->at[i]);
        if (!p->at[i]) continue;
        row[out.n] = p->row ? p->row[i] : i;
        out.at[out.n++] = far ? p->at[i] : NULL;
        out.by_host += !far;
    }
    out.row = p->row || out.n < p->n ? row : NULL;
    return out;
}

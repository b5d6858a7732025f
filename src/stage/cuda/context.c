/* Which GPUs there are; opening one: its context and stream, the kernels, whether they run. */
#include "stage/cuda/context.h"

#include "base/mem.h"
#include "stage/cuda/kernels/args_check.h"

#include <string.h>

/* What is there. */

sl_status sl_cuda_count(uint32_t *out, sl_err *err) {
    const sl_cu_driver *d;
    int n = 0;
    *out = 0;
    sl_status st = sl_cu_load(&d, err);
    if (st == SL_OK) st = SL_CU_DO(d, err, cuDeviceGetCount, &n);
    if (st == SL_OK) *out = (uint32_t)n;
    return st;
}

static sl_status attribute(const sl_cu_driver *d, sl_cu_device device, int which, uint32_t *out,
                           sl_err *err) {
    int value = 0;
    sl_status st = SL_CU_DO(d, err, cuDeviceGetAttribute, &value, which, device);
    *out = (uint32_t)value;
    return st;
}

/* All but free memory. */
static sl_status describe(const sl_cu_driver *d, uint32_t index, sl_cu_device *device,
                          sl_cuda_info *out, sl_err *err) {
    int n = 0, version = 0;
    size_t bytes = 0;
    *out = (sl_cuda_info){0};
    sl_status st = SL_CU_DO(d, err, cuDeviceGetCount, &n);
    if (st == SL_OK && index >= (uint32_t)n)
        st = sl_fail(err, SL_ERR_UNSUPPORTED, "there is no GPU %u: %d are there", index, n);
    if (st == SL_OK) st = SL_CU_DO(d, err, cuDriverGetVersion, &version);
    if (st == SL_OK) st = SL_CU_DO(d, err, cuDeviceGet, device, (int)index);
    if (st == SL_OK)
        st = SL_CU_DO(d, err, cuDeviceGetName, out->name, (int)sizeof out->name, *device);
    if (st == SL_OK) st = SL_CU_DO(d, err, cuDeviceTotalMem_v2, &bytes, *device);
    if (st == SL_OK) st = attribute(d, *device, SL_CU_ATTRIBUTE_MAJOR, &out->major, err);
    if (st == SL_OK) st = attribute(d, *device, SL_CU_ATTRIBUTE_MINOR, &out->minor, err);
    if (st == SL_OK) st = attribute(d, *device, SL_CU_ATTRIBUTE_SMS, &out->sms, err);
    if (st == SL_OK)
        st = attribute(d, *device, SL_CU_ATTRIBUTE_SHARED_BYTES, &out->shared_bytes, err);
    out->memory_bytes = bytes;
    out->driver = (uint32_t)version;
    return st;
}

static sl_status free_memory(const sl_cu_driver *d, uint64_t *out, sl_err *err) {
    size_t free_bytes = 0, all;
    sl_status st = SL_CU_DO(d, err, cuMemGetInfo_v2, &free_bytes, &all);
    *out = free_bytes;
    return st;
}

sl_status sl_cuda_identify(uint32_t index, sl_cuda_info *out, sl_err *err) {
    const sl_cu_driver *d;
    sl_cu_device device;
    sl_status st = sl_cu_load(&d, err);
    return st == SL_OK ? describe(d, index, &device, out, err) : st;
}

sl_status sl_cuda_describe(uint32_t index, sl_cuda_info *out, sl_err *err) {
    const sl_cu_driver *d;
    sl_cu_device device;
    sl_cu_context context;
    sl_status st = sl_cu_load(&d, err);
    if (st == SL_OK) st = describe(d, index, &device, out, err);
    if (st == SL_OK) st = SL_CU_DO(d, err, cuDevicePrimaryCtxRetain, &context, device);
    if (st != SL_OK) return st;
    st = SL_CU_DO(d, err, cuCtxSetCurrent, context);
    if (st == SL_OK) st = free_memory(d, &out->free_bytes, err);
    (void)d->cuDevicePrimaryCtxRelease_v2(device);
    return st;
}

/* Opening. */

static sl_status load_image(sl_cuda *c, const void *image, sl_err *err) {
    SL_ASSERT(c->n_modules < SL_CUDA_IMAGES);
    const sl_cu_result r = c->d->cuModuleLoadData(&c->modules[c->n_modules], image);
    if (r == SL_CU_NO_BINARY)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "this program has no kernels for GPUs like %s, of compute capability %u.%u",
                       c->info.name, c->info.major, c->info.minor);
    if (r == SL_CU_OK) c->n_modules++;
    return sl_cu_check(c->d, "cuModuleLoadData", r, err);
}

static sl_status load_images(sl_cuda *c, sl_err *err) {
    if (c->d->image) return load_image(c, c->d->image, err);
    if (!sl_cuda_image(0))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "this program was built without CUDA kernels");
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && sl_cuda_image(i); i++)
        st = load_image(c, sl_cuda_image(i), err);
    return st;
}

static sl_status find_kernel(sl_cuda *c, uint32_t k, sl_err *err) {
    const char *name = sl_cuda_kernel_name(k);
    for (uint32_t i = 0; i < c->n_modules; i++) {
        const sl_cu_result r = c->d->cuModuleGetFunction(&c->kernels[k], c->modules[i], name);
        if (r == SL_CU_OK) return SL_OK;
        if (r != SL_CU_NOT_FOUND) return sl_cu_check(c->d, "cuModuleGetFunction", r, err);
    }
    return sl_fail(err, SL_ERR_INTERNAL, "no image has the kernel %s", name);
}

/* One kernel reads a list and writes to pinned memory: where that does not work nothing else would,
 * and nothing would say so as clearly. */
static sl_status try_out(sl_cuda *c, sl_err *err) {
    enum { N = 100 };
    uint32_t list[N], *got;
    uint64_t address;
    void *pinned;
    sl_status st = sl_cuda_pin(c, N * sizeof *got, &pinned, &address, err);
    if (st != SL_OK) return st;
    got = pinned;
    memset(got, 0, N * sizeof *got);
    for (uint32_t i = 0; i < N; i++) list[i] = i * i;
    const sl_k_check_args args = {.x = sl_cuda_list(c, list, sizeof list),
                                  .y = (uint32_t *)(uintptr_t)address,
                                  .n = N,
                                  .add = 7};
    sl_cuda_launch(c, SL_CUDA_sl_k_check, 1, 1, 1, 128, 0, &args);
    sl_cuda_fence(c);
    sl_cuda_drain(c);
    st = sl_cuda_failed(c, err);
    for (uint32_t i = 0; st == SL_OK && i < N; i++)
        if (got[i] != sl_check_value(list[i], 7))
            st = sl_fail(err, SL_ERR_INTERNAL, "%s computes wrong: value %u is %u, not %u",
                         c->info.name, i, got[i], sl_check_value(list[i], 7));
    sl_cuda_unpin(c, pinned);
    return st;
}

sl_status sl_cuda_open(uint32_t device, sl_numerics numerics, sl_cuda **out, sl_err *err) {
    *out = NULL;
    sl_cuda *c = sl_alloc(1, sizeof *c);
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "no memory for a context of CUDA");
    c->numerics = numerics;
    sl_status st = sl_cu_load(&c->d, err);
    if (st == SL_OK) st = describe(c->d, device, &c->device, &c->info, err);
    if (st == SL_OK) st = SL_CU_DO(c->d, err, cuDevicePrimaryCtxRetain, &c->context, c->device);
    if (st == SL_OK) st = sl_cuda_enter(c, err);
    if (st == SL_OK) st = free_memory(c->d, &c->info.free_bytes, err);
    if (st == SL_OK) st = load_images(c, err);
    for (uint32_t k = 0; st == SL_OK && k < SL_CUDA_KERNEL_COUNT; k++) st = find_kernel(c, k, err);
    if (st == SL_OK)
        st = SL_CU_DO(c->d, err, cuStreamCreate, &c->stream, SL_CU_STREAM_NON_BLOCKING);
    if (st == SL_OK) st = sl_cuda_lists_create(c, err);
    if (st == SL_OK) st = try_out(c, err);
    if (st == SL_OK)
        *out = c;
    else
        sl_cuda_close(c);
    return st == SL_OK ? SL_OK : sl_err_prefix(err, "cuda:%u", device);
}

void sl_cuda_close(sl_cuda *c) {
    if (!c) return;
    if (c->context && c->d->cuCtxSetCurrent(c->context) == SL_CU_OK) { /* errors change nothing */
        if (c->stream) (void)c->d->cuStreamSynchronize(c->stream);
        if (c->beside) (void)c->d->cuStreamSynchronize(c->beside);
        sl_cuda_lists_free(c);
        if (c->scratch) (void)c->d->cuMemFree_v2(c->scratch);
        if (c->parts) (void)c->d->cuMemFree_v2(c->parts);
        if (c->vec_done) (void)c->d->cuMemFree_v2(c->vec_done);
        if (c->wide) (void)c->d->cuMemFree_v2(c->wide);
        if (c->stream) (void)c->d->cuStreamDestroy_v2(c->stream);
        if (c->beside) (void)c->d->cuStreamDestroy_v2(c->beside);
        for (uint32_t i = 0; i < c->n_modules; i++) (void)c->d->cuModuleUnload(c->modules[i]);
    }
    if (c->context) (void)c->d->cuDevicePrimaryCtxRelease_v2(c->device);
    sl_free(c);
}

void sl_cuda_set_many(sl_cuda *c, bool many) {
    c->many = many && c->numerics == SL_NUMERICS_FAST;
    sl_cuda_moves(c);
}

void sl_cuda_set_few(sl_cuda *c, sl_cuda_few few) {
    c->few = few;
    sl_cuda_moves(c);
}

sl_numerics sl_cuda_numerics_of(const sl_cuda *c) {
    return c->numerics;
}

const sl_cuda_info *sl_cuda_info_of(const sl_cuda *c) {
    return &c->info;
}

/* The driver library without a GPU: the entry points that stage/cuda/driver.h names, over the
 * emulator, with the kernels of kernels.def as the C compiler has made them. It checks what the
 * hardware would check, and some of what it would not: copies that are done later only have pinned
 * memory of the host, and ranges lie within one allocation. */
#include "fake_driver.h"
#include "fake_int.h"

#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Its image of kernels, a name for those that are linked. */
FAKE_CALL const char sluice_cuda_image[] = "kernels of the emulator";

#define FAKE_SHARED_BYTES 232448u
#define FAKE_SMS          4

#define SL_CUDA_KERNEL(name, args)                                                                 \
    void name##_thunk(const void *);                                                               \
    extern const uint32_t name##_bytes;
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL

static fake_kernel kernels[] = {
#define SL_CUDA_KERNEL(name, args) {#name, name##_thunk, &name##_bytes, 49152},
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
};

fake_kernel *fake_kernel_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(kernels); i++)
        if (!strcmp(kernels[i].name, name)) return &kernels[i];
    return NULL;
}

static _Thread_local sl_cu_context current; /* device + 1 */

int fake_device(void) {
    return (int)(uintptr_t)current - 1;
}

static int count(void) {
    return (int)fake_number("SLUICE_FAKE_CUDA_COUNT", 2);
}

/* A call that fails when a test wants it, and one that needs a context. */
#define ENTER(name)                                                                                \
    do {                                                                                           \
        const sl_cu_result wanted_ = fake_failure(#name);                                          \
        if (wanted_ != SL_CU_OK) return wanted_;                                                   \
    } while (0)
#define ENTER_CONTEXT(name)                                                                        \
    ENTER(name);                                                                                   \
    if (!current) return SL_CU_INVALID_CONTEXT
/* One that waits, or may: nobody may ask for it while he captures a stream. */
#define ENTER_WAITING(name)                                                                        \
    ENTER_CONTEXT(name);                                                                           \
    if (fake_forbidden()) return SL_CU_CAPTURE_UNSUPPORTED

/* Each is declared as driver.h has it. */
#define SL_CU_CALL(name, parameters) FAKE_CALL sl_cu_result name parameters;
SL_CU_CALLS(SL_CU_CALL)
#undef SL_CU_CALL

static const struct {
    sl_cu_result r;
    const char *name, *text;
} errors[] = {
    {SL_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {SL_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {SL_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {SL_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {SL_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {SL_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {SL_CU_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image for the device"},
    {SL_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {SL_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {SL_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {SL_CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {SL_CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {SL_CU_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "operation would result in a merge of separate capture sequences"},
    {SL_CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {SL_CU_PEERS_ALREADY, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {FAKE_PEERS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {FAKE_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {FAKE_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {SL_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
};

sl_cu_result cuGetErrorName(sl_cu_result r, const char **out) {
    *out = NULL;
    for (size_t i = 0; i < SL_LEN(errors); i++)
        if (errors[i].r == r) *out = errors[i].name;
    return *out ? SL_CU_OK : SL_CU_INVALID_VALUE;
}

sl_cu_result cuGetErrorString(sl_cu_result r, const char **out) {
    *out = NULL;
    for (size_t i = 0; i < SL_LEN(errors); i++)
        if (errors[i].r == r) *out = errors[i].text;
    return *out ? SL_CU_OK : SL_CU_INVALID_VALUE;
}

/* GPUs. */

sl_cu_result cuInit(unsigned flags) {
    ENTER(cuInit);
    return flags ? SL_CU_INVALID_VALUE : count() ? SL_CU_OK : SL_CU_NO_DEVICE;
}

sl_cu_result cuDriverGetVersion(int *version) {
    *version = 13000;
    return SL_CU_OK;
}

sl_cu_result cuDeviceGetCount(int *n) {
    ENTER(cuDeviceGetCount);
    *n = count();
    return SL_CU_OK;
}

sl_cu_result cuDeviceGet(sl_cu_device *out, int index) {
    ENTER(cuDeviceGet);
    *out = index;
    return index >= 0 && index < count() ? SL_CU_OK : SL_CU_INVALID_DEVICE;
}

sl_cu_result cuDeviceGetName(char *out, int cap, sl_cu_device d) {
    ENTER(cuDeviceGetName);
    snprintf(out, (size_t)cap, "Emulated GPU %d", d);
    return SL_CU_OK;
}

sl_cu_result cuDeviceGetAttribute(int *out, int attribute, sl_cu_device d) {
    ENTER(cuDeviceGetAttribute);
    (void)d;
    switch (attribute) {
    case SL_CU_ATTRIBUTE_SMS:
        *out = FAKE_SMS;
        return SL_CU_OK;
    case SL_CU_ATTRIBUTE_MAJOR:
        *out = 9;
        return SL_CU_OK;
    case SL_CU_ATTRIBUTE_MINOR:
        *out = 0;
        return SL_CU_OK;
    case SL_CU_ATTRIBUTE_SHARED_BYTES:
        *out = FAKE_SHARED_BYTES;
        return SL_CU_OK;
    default:
        return SL_CU_INVALID_VALUE;
    }
}

sl_cu_result cuDeviceTotalMem_v2(size_t *bytes, sl_cu_device d) {
    ENTER(cuDeviceTotalMem_v2);
    (void)d;
    *bytes = fake_memory();
    return SL_CU_OK;
}

sl_cu_result cuDevicePrimaryCtxRetain(sl_cu_context *out, sl_cu_device d) {
    ENTER(cuDevicePrimaryCtxRetain);
    if (d < 0 || d >= count()) return SL_CU_INVALID_DEVICE;
    *out = (sl_cu_context)(uintptr_t)(d + 1);
    fake_context(d, true);
    return SL_CU_OK;
}

sl_cu_result cuDevicePrimaryCtxRelease_v2(sl_cu_device d) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    fake_context(d, false);
    return SL_CU_OK;
}

sl_cu_result cuCtxSetCurrent(sl_cu_context c) {
    ENTER(cuCtxSetCurrent);
    current = c;
    return SL_CU_OK;
}

/* Memory. */

FAKE_CALL sluice_fake_cuda_used_fn sluice_fake_cuda_used;
uint64_t sluice_fake_cuda_used(void) {
    return fake_used(FAKE_DEVICE) + fake_used(FAKE_HOST);
}

sl_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *all) {
    ENTER_CONTEXT(cuMemGetInfo_v2);
    *all = fake_memory();
    *free_bytes = *all - fake_used(FAKE_DEVICE);
    return SL_CU_OK;
}

sl_cu_result cuMemAlloc_v2(sl_cu_address *out, size_t bytes) {
    void *p = NULL;
    ENTER_WAITING(cuMemAlloc_v2);
    const sl_cu_result r = fake_alloc(FAKE_DEVICE, bytes, &p);
    *out = (uintptr_t)p;
    return r;
}

sl_cu_result cuMemFree_v2(sl_cu_address p) {
    ENTER_WAITING(cuMemFree_v2);
    fake_streams_wait();
    return fake_free(FAKE_DEVICE, (void *)(uintptr_t)p);
}

sl_cu_result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER_WAITING(cuMemHostAlloc);
    return flags & SL_CU_HOST_MAPPED ? fake_alloc(FAKE_HOST, bytes, out) : SL_CU_INVALID_VALUE;
}

sl_cu_result cuMemHostGetDevicePointer_v2(sl_cu_address *out, void *p, unsigned flags) {
    ENTER_CONTEXT(cuMemHostGetDevicePointer_v2);
    *out = (uintptr_t)p;
    return !flags && fake_holds(FAKE_HOST, p, 1) ? SL_CU_OK : SL_CU_INVALID_VALUE;
}

sl_cu_result cuMemFreeHost(void *p) {
    ENTER_WAITING(cuMemFreeHost);
    fake_streams_wait();
    return fake_free(FAKE_HOST, p);
}

sl_cu_result cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    ENTER_WAITING(cuMemHostRegister_v2);
    return flags & SL_CU_HOST_READ ? fake_register(p, bytes) : SL_CU_INVALID_VALUE;
}

sl_cu_result cuMemHostUnregister(void *p) {
    ENTER_WAITING(cuMemHostUnregister);
    fake_streams_wait();
    return fake_unregister(p);
}

/* Memory of other GPUs and processes. */

FAKE_CALL sl_cu_result cuDeviceCanAccessPeer(int *out, sl_cu_device d, sl_cu_device peer);
sl_cu_result cuDeviceCanAccessPeer(int *out, sl_cu_device d, sl_cu_device peer) {
    ENTER(cuDeviceCanAccessPeer);
    return fake_can_reach(out, d, peer);
}

FAKE_CALL sl_cu_result cuCtxEnablePeerAccess(sl_cu_context peer, unsigned flags);
sl_cu_result cuCtxEnablePeerAccess(sl_cu_context peer, unsigned flags) {
    ENTER_CONTEXT(cuCtxEnablePeerAccess);
    return flags ? SL_CU_INVALID_VALUE : fake_reach(fake_device(), (int)(uintptr_t)peer - 1);
}

FAKE_CALL sl_cu_result cuIpcGetMemHandle(sl_cu_ipc_handle *out, sl_cu_address p);
sl_cu_result cuIpcGetMemHandle(sl_cu_ipc_handle *out, sl_cu_address p) {
    ENTER_CONTEXT(cuIpcGetMemHandle);
    return fake_lend(out, (void *)(uintptr_t)p);
}

FAKE_CALL sl_cu_result cuIpcOpenMemHandle_v2(sl_cu_address *out, sl_cu_ipc_handle h,
                                             unsigned flags);
sl_cu_result cuIpcOpenMemHandle_v2(sl_cu_address *out, sl_cu_ipc_handle h, unsigned flags) {
    void *p = NULL;
    ENTER_WAITING(cuIpcOpenMemHandle_v2);
    const sl_cu_result r = fake_borrow(&p, &h, flags);
    *out = (uintptr_t)p;
    return r;
}

FAKE_CALL sl_cu_result cuIpcCloseMemHandle(sl_cu_address p);
sl_cu_result cuIpcCloseMemHandle(sl_cu_address p) {
    ENTER_WAITING(cuIpcCloseMemHandle);
    return fake_return((void *)(uintptr_t)p);
}

FAKE_CALL sl_cu_result cuMemGetAddressRange_v2(sl_cu_address *base, size_t *bytes, sl_cu_address p);
sl_cu_result cuMemGetAddressRange_v2(sl_cu_address *base, size_t *bytes, sl_cu_address p) {
    fake_block b;
    ENTER_CONTEXT(cuMemGetAddressRange_v2);
    if (!fake_find(FAKE_DEVICE, (void *)(uintptr_t)p, &b)) return SL_CU_INVALID_VALUE;
    *base = (uintptr_t)b.p;
    *bytes = b.bytes;
    return SL_CU_OK;
}

/* Copies. */

sl_cu_result cuMemcpyHtoD_v2(sl_cu_address to, const void *from, size_t bytes) {
    ENTER_WAITING(cuMemcpyHtoD_v2);
    if (!fake_holds(FAKE_DEVICE, (void *)(uintptr_t)to, bytes)) return SL_CU_INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SL_CU_OK;
}

sl_cu_result cuMemcpyDtoH_v2(void *to, sl_cu_address from, size_t bytes) {
    ENTER_WAITING(cuMemcpyDtoH_v2);
    if (!fake_holds(FAKE_DEVICE, (void *)(uintptr_t)from, bytes)) return SL_CU_INVALID_VALUE;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    fake_count(FAKE_BYTES_OUT, bytes);
    return SL_CU_OK;
}

static sl_cu_result copy(fake_place where, void *to, fake_place whence, const void *from,
                         size_t bytes, sl_cu_stream s) {
    const fake_work w = {.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes};
    if (!fake_holds(where, to, bytes) || !fake_holds(whence, from, bytes))
        return SL_CU_INVALID_VALUE;
    return fake_stream_add(s, &w);
}

sl_cu_result cuMemcpyHtoDAsync_v2(sl_cu_address to, const void *from, size_t bytes,
                                  sl_cu_stream s) {
    ENTER_CONTEXT(cuMemcpyHtoDAsync_v2);
    return copy(FAKE_DEVICE, (void *)(uintptr_t)to, FAKE_HOST, from, bytes, s);
}

sl_cu_result cuMemcpyDtoHAsync_v2(void *to, sl_cu_address from, size_t bytes, sl_cu_stream s) {
    ENTER_CONTEXT(cuMemcpyDtoHAsync_v2);
    if (!fake_is_captured(s)) fake_count(FAKE_BYTES_OUT, bytes);
    return copy(FAKE_HOST, to, FAKE_DEVICE, (void *)(uintptr_t)from, bytes, s);
}

sl_cu_result cuMemcpyDtoDAsync_v2(sl_cu_address to, sl_cu_address from, size_t bytes,
                                  sl_cu_stream s) {
    ENTER_CONTEXT(cuMemcpyDtoDAsync_v2);
    return copy(FAKE_DEVICE, (void *)(uintptr_t)to, FAKE_DEVICE, (void *)(uintptr_t)from, bytes, s);
}

sl_cu_result cuMemsetD8Async(sl_cu_address to, unsigned char byte, size_t bytes, sl_cu_stream s) {
    const fake_work w = {
        .kind = FAKE_FILL, .to = (void *)(uintptr_t)to, .byte = byte, .bytes = bytes};
    ENTER_CONTEXT(cuMemsetD8Async);
    return fake_holds(FAKE_DEVICE, w.to, bytes) ? fake_stream_add(s, &w) : SL_CU_INVALID_VALUE;
}

/* Streams and marks. */

sl_cu_result cuStreamCreate(sl_cu_stream *out, unsigned flags) {
    ENTER_WAITING(cuStreamCreate);
    return flags == SL_CU_STREAM_NON_BLOCKING ? fake_stream_create(out) : SL_CU_INVALID_VALUE;
}

sl_cu_result cuStreamSynchronize(sl_cu_stream s) {
    ENTER_WAITING(cuStreamSynchronize);
    return s ? fake_stream_wait(s) : SL_CU_OK; /* the driver's own stream: copies have ended */
}

sl_cu_result cuStreamDestroy_v2(sl_cu_stream s) {
    ENTER_WAITING(cuStreamDestroy_v2);
    return fake_stream_destroy(s);
}

sl_cu_result cuStreamWaitEvent(sl_cu_stream s, sl_cu_event e, unsigned flags) {
    ENTER_CONTEXT(cuStreamWaitEvent);
    return flags ? SL_CU_INVALID_VALUE : fake_stream_after(s, e);
}

sl_cu_result cuEventCreate(sl_cu_event *out, unsigned flags) {
    ENTER_CONTEXT(cuEventCreate);
    (void)flags;
    return fake_mark_create(out);
}

sl_cu_result cuEventRecord(sl_cu_event e, sl_cu_stream s) {
    const fake_work w = {.kind = FAKE_MARK, .mark = e};
    ENTER_CONTEXT(cuEventRecord);
    return fake_stream_add(s, &w);
}

sl_cu_result cuEventQuery(sl_cu_event e) {
    ENTER_WAITING(cuEventQuery);
    return fake_mark_query(e);
}

sl_cu_result cuEventSynchronize(sl_cu_event e) {
    ENTER_WAITING(cuEventSynchronize);
    return fake_mark_wait(e);
}

sl_cu_result cuEventElapsedTime(float *ms, sl_cu_event from, sl_cu_event to) {
    ENTER_CONTEXT(cuEventElapsedTime);
    return fake_mark_ms(from, to, ms);
}

sl_cu_result cuEventDestroy_v2(sl_cu_event e) {
    ENTER_CONTEXT(cuEventDestroy_v2);
    fake_mark_free(e);
    return SL_CU_OK;
}

/* Kernels. */

sl_cu_result cuModuleLoadData(sl_cu_module *out, const void *image) {
    ENTER_WAITING(cuModuleLoadData);
    *out = (sl_cu_module)(uintptr_t)image;
    return image == sluice_cuda_image ? SL_CU_OK : SL_CU_INVALID_IMAGE;
}

sl_cu_result cuModuleGetFunction(sl_cu_function *out, sl_cu_module m, const char *name) {
    ENTER_CONTEXT(cuModuleGetFunction);
    (void)m;
    *out = (sl_cu_function)(void *)fake_kernel_find(name);
    return *out ? SL_CU_OK : SL_CU_NOT_FOUND;
}

sl_cu_result cuModuleUnload(sl_cu_module m) {
    ENTER_WAITING(cuModuleUnload);
    (void)m;
    return SL_CU_OK;
}

sl_cu_result cuFuncSetAttribute(sl_cu_function f, int attribute, int value) {
    ENTER_CONTEXT(cuFuncSetAttribute);
    if (attribute != SL_CU_FUNCTION_DYNAMIC_SHARED || value < 0 || value > (int)FAKE_SHARED_BYTES)
        return SL_CU_INVALID_VALUE;
    /* a real driver has this by module: here what one context asked for takes nothing from another
     */
    fake_kernel *k = (void *)f;
    uint32_t was = k->dynamic;
    k->asked = true;
    while (was < (uint32_t)value &&
           !atomic_compare_exchange_weak(&k->dynamic, &was, (uint32_t)value))
        continue;
    return SL_CU_OK;
}

/* As the emulator of boxes has it (stage/cuda/kernels/async.h): address, rows, values of a row,
 * rows of a box, bytes between rows. */
FAKE_CALL sl_cu_result cuTensorMapEncodeTiled(void *out, int type, uint32_t rank, uint64_t address,
                                              const uint64_t *dim, const uint64_t *stride,
                                              const uint32_t *box, const uint32_t *step,
                                              int interleave, int swizzle, int fetch, int fill);
sl_cu_result cuTensorMapEncodeTiled(void *out, int type, uint32_t rank, uint64_t address,
                                    const uint64_t *dim, const uint64_t *stride,
                                    const uint32_t *box, const uint32_t *step, int interleave,
                                    int swizzle, int fetch, int fill) {
    const uint64_t words[16] = {address, dim[1], dim[0], box[1], stride[0]};
    ENTER(cuTensorMapEncodeTiled);
    (void)fetch;
    if (type != SL_CU_MAP_BF16 || rank != 2 || address % 16 || stride[0] < dim[0] * 2 ||
        stride[0] % 16 || box[0] != 64 || box[1] > 256 || step[0] != 1 || step[1] != 1 ||
        interleave || swizzle != SL_CU_MAP_SWIZZLE_128 || fill)
        return SL_CU_INVALID_VALUE;
    memcpy(out, words, sizeof words);
    return SL_CU_OK;
}

static sl_cu_result launch(const fake_kernel *k, const unsigned grid[3], const unsigned block[3],
                           unsigned shared, sl_cu_stream s, void **args, bool early) {
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 ||
        grid[2] > 65535 || !block[0] || block[0] > 1024 || block[1] != 1 || block[2] != 1 ||
        shared > k->dynamic || *k->bytes > 32764) /* since CUDA 12.1; 4096 before */
        return SL_CU_INVALID_VALUE;
    /* A bug of a kernel: so many rows at once cannot be widened. */
    if (grid[0] >= fake_number("SLUICE_FAKE_CUDA_FAULT_ROWS", UINT64_MAX) &&
        strcmp(k->name, "sl_k_widen") == 0)
        return SL_CU_ILLEGAL_ADDRESS;
    if (!fake_is_captured(s) && !fake_can_run(k, args[0], grid[0])) return SL_CU_ILLEGAL_ADDRESS;
    fake_work w = {.kind = FAKE_LAUNCH,
                   .kernel = k,
                   .grid = {grid[0], grid[1], grid[2]},
                   .threads = block[0],
                   .dynamic = shared,
                   .asked = k->asked,
                   .early = early,
                   .args = malloc(*k->bytes)};
    if (!w.args) return SL_CU_OUT_OF_MEMORY;
    memcpy(w.args, args[0], *k->bytes);
    fake_count(FAKE_LAUNCHES, !fake_is_captured(s));
    fake_count(FAKE_EARLY, early && !fake_is_captured(s));
    return fake_stream_add(s, &w);
}

sl_cu_result cuLaunchKernel(sl_cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            sl_cu_stream s, void **args, void **extra) {
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    ENTER_CONTEXT(cuLaunchKernel);
    if (extra) return SL_CU_INVALID_VALUE;
    return launch((const void *)f, grid, block, shared, s, args, false);
}

/* Kernels run one after another here, whatever they may. */
FAKE_CALL sl_cu_result cuLaunchKernelEx(const sl_cu_launch_config *how, sl_cu_function f,
                                        void **args, void **extra);
sl_cu_result cuLaunchKernelEx(const sl_cu_launch_config *how, sl_cu_function f, void **args,
                              void **extra) {
    ENTER_CONTEXT(cuLaunchKernelEx);
    if (extra || how->n_attributes != 1 || how->attributes->id != SL_CU_LAUNCH_EARLY)
        return SL_CU_INVALID_VALUE;
    return launch((const void *)f, how->grid, how->block, how->shared, how->stream, args,
                  how->attributes->value.allowed != 0);
}

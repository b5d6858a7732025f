/* NVIDIA's driver library: opening it, and its errors in words. */
#include "stage/cuda/driver.h"

#include "base/options.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_cu_driver driver;
static bool loaded;

/* Functions and objects have pointers of one size: POSIX says so, C does not. */
static bool look_up(void *library, const char *name, void *out) {
    void *p = dlsym(library, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static sl_status load(sl_err *err) {
    const char *named = sl_options_cuda_driver(), *file = named ? named : "libcuda.so.1";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) return sl_fail(err, SL_ERR_UNSUPPORTED, "no CUDA driver: %s", dlerror());
#define SL_CU_CALL(name, parameters)                                                               \
    if (!look_up(library, #name, &driver.name))                                                    \
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the CUDA driver %s has no %s: it is too old",     \
                       file, #name);
    SL_CU_CALLS(SL_CU_CALL)
#undef SL_CU_CALL
    (void)look_up(library, "cuTensorMapEncodeTiled", &driver.cuTensorMapEncodeTiled);
    (void)look_up(library, "cuLaunchKernelEx", &driver.cuLaunchKernelEx);
    (void)look_up(library, "cuStreamBeginCapture_v2", &driver.cuStreamBeginCapture_v2);
    (void)look_up(library, "cuStreamEndCapture", &driver.cuStreamEndCapture);
    (void)look_up(library, "cuGraphInstantiateWithFlags", &driver.cuGraphInstantiateWithFlags);
    (void)look_up(library, "cuGraphLaunch", &driver.cuGraphLaunch);
    (void)look_up(library, "cuGraphExecDestroy", &driver.cuGraphExecDestroy);
    (void)look_up(library, "cuGraphDestroy", &driver.cuGraphDestroy);
    (void)look_up(library, "cuDeviceCanAccessPeer", &driver.cuDeviceCanAccessPeer);
    (void)look_up(library, "cuCtxEnablePeerAccess", &driver.cuCtxEnablePeerAccess);
    (void)look_up(library, "cuIpcGetMemHandle", &driver.cuIpcGetMemHandle);
    (void)look_up(library, "cuIpcOpenMemHandle_v2", &driver.cuIpcOpenMemHandle_v2);
    (void)look_up(library, "cuIpcCloseMemHandle", &driver.cuIpcCloseMemHandle);
    (void)look_up(library, "cuMemGetAddressRange_v2", &driver.cuMemGetAddressRange_v2);
    (void)look_up(library, "sluice_cuda_image", &driver.image);
    sl_err why = {0};
    if (SL_CU_DO(&driver, &why, cuInit, 0) == SL_OK) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "no CUDA: %s", why.msg);
}

sl_status sl_cu_load(const sl_cu_driver **out, sl_err *err) {
    sl_status st = SL_OK;
    pthread_mutex_lock(&lock);
    if (!loaded) st = load(err); /* it stays open also where something is missing */
    loaded = st == SL_OK;
    pthread_mutex_unlock(&lock);
    *out = st == SL_OK ? &driver : NULL;
    return st;
}

static sl_status status_of(sl_cu_result r) {
    switch (r) {
    case SL_CU_OUT_OF_MEMORY:
        return SL_ERR_NOMEM;
    case SL_CU_STUB_LIBRARY:
    case SL_CU_NO_DEVICE:
    case SL_CU_INVALID_DEVICE:
    case SL_CU_NO_BINARY:
        return SL_ERR_UNSUPPORTED;
    default:
        return SL_ERR_INTERNAL;
    }
}

sl_status sl_cu_check(const sl_cu_driver *d, const char *call, sl_cu_result r, sl_err *err) {
    const char *name = NULL, *text = NULL;
    if (r == SL_CU_OK) return SL_OK;
    if (d->cuGetErrorName(r, &name) != SL_CU_OK || !name) name = "an unknown error";
    if (d->cuGetErrorString(r, &text) != SL_CU_OK || !text) text = "no description";
    return sl_fail(err, status_of(r), "%s: %s (%d, %s)", call, name, r, text);
}

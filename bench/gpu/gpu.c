/* The GPU of the benches: the driver's calls, modules, launches, graphs and their times. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As cuda.h spells them: its macros give the versions. */
#define DRIVER_CALLS(X)                                                                            \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent)                                                                             \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction)                                                                         \
    X(cuFuncSetAttribute)                                                                          \
    X(cuStreamCreate)                                                                              \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphDestroy)                                                                              \
    X(cuGraphExecDestroy)                                                                          \
    X(cuLaunchKernelEx)                                                                            \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemsetD8Async)                                                                             \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventElapsedTime)                                                                          \
    X(cuGetErrorString)                                                                            \
    X(cuTensorMapEncodeTiled)

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static struct {
#define FIELD(call) __typeof__(&call) call;
    DRIVER_CALLS(FIELD)
#undef FIELD
} cu;

#define NAME(call) TEXT(call),
static const char *const names[] = {DRIVER_CALLS(NAME)};
#undef NAME

CUstream gpu_stream;
int gpu_sms;
char gpu_name[256];

#define MODULES 16
static CUmodule module[MODULES];
static int n_modules;

void gpu_die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static void check(CUresult r, const char *what) {
    const char *text = "?";
    if (r == CUDA_SUCCESS) return;
    if (cu.cuGetErrorString) cu.cuGetErrorString(r, &text);
    gpu_die("%s: error %d, %s", what, (int)r, text);
}

void gpu_open(const char *driver) {
    void *lib = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!lib) gpu_die("no driver: %s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(lib, names[i]);
        if (!symbol) gpu_die("the driver has no %s", names[i]);
        memcpy((uint8_t *)&cu + i * sizeof symbol, &symbol, sizeof symbol);
    }
    CUdevice d;
    CUcontext c;
    check(cu.cuInit(0), "cuInit");
    check(cu.cuDeviceGet(&d, 0), "cuDeviceGet");
    check(cu.cuDeviceGetName(gpu_name, sizeof gpu_name, d), "cuDeviceGetName");
    check(cu.cuDeviceGetAttribute(&gpu_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d), "sms");
    check(cu.cuDevicePrimaryCtxRetain(&c, d), "cuDevicePrimaryCtxRetain");
    check(cu.cuCtxSetCurrent(c), "cuCtxSetCurrent");
    check(cu.cuStreamCreate(&gpu_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

void gpu_module(const void *image) {
    if (n_modules == MODULES) gpu_die("too many modules");
    check(cu.cuModuleLoadData(&module[n_modules++], image), "cuModuleLoadData");
}

CUfunction gpu_function(const char *name) {
    CUfunction f = NULL;
    for (int i = 0; i < n_modules; i++) {
        if (cu.cuModuleGetFunction(&f, module[i], name) != CUDA_SUCCESS) continue;
        int d = 0, most = 0, fixed = 0;
        cu.cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d);
        (void)fixed;
        /* Static shared memory counts, too: less until it is taken. */
        for (int s = most; s > 48 * 1024; s -= 1024) {
            if (cu.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, s) ==
                CUDA_SUCCESS)
                break;
        }
        return f;
    }
    gpu_die("no kernel %s", name);
}

void gpu_launch(CUfunction f, uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared,
                uint32_t cluster, int early, const void *args, size_t args_bytes) {
    CUlaunchAttribute attr[2];
    CUlaunchConfig c;
    memset(attr, 0, sizeof attr);
    memset(&c, 0, sizeof c);
    c.gridDimX = grid_x;
    c.gridDimY = grid_y;
    c.gridDimZ = 1;
    c.blockDimX = threads;
    c.blockDimY = c.blockDimZ = 1;
    c.sharedMemBytes = shared;
    c.hStream = gpu_stream;
    c.attrs = attr;
    if (early) {
        attr[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attr[c.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attr[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attr[c.numAttrs].value.clusterDim.x = cluster;
        attr[c.numAttrs].value.clusterDim.y = 1;
        attr[c.numAttrs++].value.clusterDim.z = 1;
    }
    void *list[1] = {(void *)args};
    (void)args_bytes;
    check(cu.cuLaunchKernelEx(&c, f, list, NULL), "launch");
}

CUdeviceptr gpu_alloc(size_t bytes) {
    CUdeviceptr p;
    check(cu.cuMemAlloc(&p, bytes), "cuMemAlloc");
    return p;
}

void gpu_free(CUdeviceptr p) {
    check(cu.cuMemFree(p), "cuMemFree");
}

void gpu_put(CUdeviceptr to, const void *from, size_t bytes) {
    check(cu.cuMemcpyHtoDAsync(to, from, bytes, gpu_stream), "copy in");
    gpu_sync("copy in");
}

void gpu_get(void *to, CUdeviceptr from, size_t bytes) {
    check(cu.cuMemcpyDtoHAsync(to, from, bytes, gpu_stream), "copy out");
    gpu_sync("copy out");
}

void gpu_set(CUdeviceptr to, uint8_t byte, size_t bytes) {
    check(cu.cuMemsetD8Async(to, byte, bytes, gpu_stream), "set");
}

void gpu_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    check(cu.cuMemcpyDtoDAsync(to, from, bytes, gpu_stream), "copy");
}

void gpu_sync(const char *what) {
    check(cu.cuStreamSynchronize(gpu_stream), what);
}

void gpu_tensor_map(void *out, CUdeviceptr base, uint64_t rows, uint64_t row_values,
                    uint32_t box_rows) {
    const cuuint64_t dim[2] = {row_values, rows}, stride[1] = {row_values * 2};
    const cuuint32_t box[2] = {64, box_rows}, step[2] = {1, 1};
    check(cu.cuTensorMapEncodeTiled(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)base, dim,
                                    stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
          "cuTensorMapEncodeTiled");
}

void gpu_capture(void) {
    check(cu.cuStreamBeginCapture(gpu_stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin capture");
}

gpu_graph gpu_captured(void) {
    gpu_graph g;
    check(cu.cuStreamEndCapture(gpu_stream, &g.graph), "end capture");
    check(cu.cuGraphInstantiateWithFlags(&g.exec, g.graph, 0), "instantiate");
    return g;
}

void gpu_graph_free(gpu_graph g) {
    cu.cuGraphExecDestroy(g.exec);
    cu.cuGraphDestroy(g.graph);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gpu_replay_us(gpu_graph g, int warm, int n, double *best) {
    enum { MOST = 512 };
    static CUevent event[MOST + 1];
    double us[MOST];
    if (n > MOST) n = MOST;
    if (!event[0])
        for (int i = 0; i <= MOST; i++) check(cu.cuEventCreate(&event[i], 0), "event");
    for (int i = 0; i < warm; i++) check(cu.cuGraphLaunch(g.exec, gpu_stream), "replay");
    check(cu.cuEventRecord(event[0], gpu_stream), "record");
    for (int i = 0; i < n; i++) {
        check(cu.cuGraphLaunch(g.exec, gpu_stream), "replay");
        check(cu.cuEventRecord(event[i + 1], gpu_stream), "record");
    }
    gpu_sync("replays");
    for (int i = 0; i < n; i++) {
        float ms;
        check(cu.cuEventElapsedTime(&ms, event[i], event[i + 1]), "elapsed");
        us[i] = ms * 1e3;
    }
    qsort(us, (size_t)n, sizeof *us, by_value);
    if (best) *best = us[0];
    return us[n / 2];
}

double gpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint32_t gpu_numbers(const char *text, uint32_t *out, uint32_t most) {
    uint32_t n = 0;
    for (char *end; n < most && *text; text = *end ? end + 1 : end) {
        out[n++] = (uint32_t)strtoul(text, &end, 10);
        if (end == text) gpu_die("a list of numbers: %s", text);
    }
    return n;
}

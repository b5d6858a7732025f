/* NVIDIA's driver API: the calls that Sluice makes, looked up in libcuda.so.1 when a GPU is first
 * asked for. The declarations are Sluice's own, so that a program that can drive GPUs builds and
 * starts without any of NVIDIA's files. Thread: any. */
#ifndef SL_STAGE_CUDA_DRIVER_H
#define SL_STAGE_CUDA_DRIVER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef int sl_cu_result;
typedef int sl_cu_device;
typedef uint64_t sl_cu_address;
typedef struct CUctx_st *sl_cu_context;
typedef struct CUmod_st *sl_cu_module;
typedef struct CUfunc_st *sl_cu_function;
typedef struct CUstream_st *sl_cu_stream;
typedef struct CUevent_st *sl_cu_event;
typedef struct CUgraph_st *sl_cu_graph;
typedef struct CUgraphExec_st *sl_cu_graph_exec;

/* Numbers of the API. */
enum {
    SL_CU_OK = 0,
    SL_CU_INVALID_VALUE = 1,
    SL_CU_OUT_OF_MEMORY = 2,
    SL_CU_STUB_LIBRARY = 34,
    SL_CU_NO_DEVICE = 100,
    SL_CU_INVALID_DEVICE = 101,
    SL_CU_INVALID_IMAGE = 200,
    SL_CU_INVALID_CONTEXT = 201,
    SL_CU_NO_BINARY = 209,
    SL_CU_INVALID_HANDLE = 400,
    SL_CU_NOT_FOUND = 500,
    SL_CU_NOT_READY = 600,
    SL_CU_ILLEGAL_ADDRESS = 700,
    SL_CU_PEERS_ALREADY = 704,
    SL_CU_CAPTURE_UNSUPPORTED = 900, /* while a stream is captured */
    SL_CU_CAPTURE_INVALIDATED = 901,
    SL_CU_CAPTURE_UNMATCHED = 903,
    SL_CU_CAPTURED_EVENT = 907,
    SL_CU_CAPTURE_WRONG_THREAD = 908,

    SL_CU_ATTRIBUTE_SMS = 16,
    SL_CU_ATTRIBUTE_MAJOR = 75,
    SL_CU_ATTRIBUTE_MINOR = 76,
    SL_CU_ATTRIBUTE_SHARED_BYTES = 97, /* most of a block, when asked for */
    SL_CU_FUNCTION_DYNAMIC_SHARED = 8,
    SL_CU_STREAM_NON_BLOCKING = 1,
    SL_CU_EVENT_UNTIMED = 2,
    SL_CU_HOST_PORTABLE = 1,
    SL_CU_HOST_MAPPED = 2,
    SL_CU_HOST_READ = 8,      /* nobody writes to memory that is registered so */
    SL_CU_LAUNCH_EARLY = 6,   /* attribute: programmatic stream serialization */
    SL_CU_IPC_PEERS = 1,      /* of memory of another process: GPUs reach each other's */
    SL_CU_CAPTURE_THREAD = 1, /* what must not be during a capture is so of its thread alone */

    SL_CU_MAP_BF16 = 9, /* of tensor maps: type, swizzle, what is fetched at once */
    SL_CU_MAP_SWIZZLE_128 = 3,
    SL_CU_MAP_FETCH_256 = 3
};

typedef struct sl_cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char all[64];
        int allowed;
    } value;
} sl_cu_launch_attribute;

typedef struct sl_cu_launch_config {
    unsigned grid[3], block[3], shared;
    sl_cu_stream stream;
    sl_cu_launch_attribute *attributes;
    unsigned n_attributes;
} sl_cu_launch_config;

/* Memory of one process, for others. */
typedef struct sl_cu_ipc_handle {
    char all[64];
} sl_cu_ipc_handle;

/* X(name, parameters) */
#define SL_CU_CALLS(X)                                                                             \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorName, (sl_cu_result r, const char **out))                                          \
    X(cuGetErrorString, (sl_cu_result r, const char **out))                                        \
    X(cuDeviceGetCount, (int *n))                                                                  \
    X(cuDeviceGet, (sl_cu_device * out, int index))                                                \
    X(cuDeviceGetName, (char *out, int cap, sl_cu_device d))                                       \
    X(cuDeviceGetAttribute, (int *out, int attribute, sl_cu_device d))                             \
    X(cuDeviceTotalMem_v2, (size_t * bytes, sl_cu_device d))                                       \
    X(cuDevicePrimaryCtxRetain, (sl_cu_context * out, sl_cu_device d))                             \
    X(cuDevicePrimaryCtxRelease_v2, (sl_cu_device d))                                              \
    X(cuCtxSetCurrent, (sl_cu_context c))                                                          \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * all))                                        \
    X(cuMemAlloc_v2, (sl_cu_address * out, size_t bytes))                                          \
    X(cuMemFree_v2, (sl_cu_address p))                                                             \
    X(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))                                  \
    X(cuMemHostGetDevicePointer_v2, (sl_cu_address * out, void *p, unsigned flags))                \
    X(cuMemFreeHost, (void *p))                                                                    \
    X(cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))                               \
    X(cuMemHostUnregister, (void *p))                                                              \
    X(cuMemcpyHtoD_v2, (sl_cu_address to, const void *from, size_t bytes))                         \
    X(cuMemcpyDtoH_v2, (void *to, sl_cu_address from, size_t bytes))                               \
    X(cuMemcpyHtoDAsync_v2, (sl_cu_address to, const void *from, size_t bytes, sl_cu_stream s))    \
    X(cuMemcpyDtoHAsync_v2, (void *to, sl_cu_address from, size_t bytes, sl_cu_stream s))          \
    X(cuMemcpyDtoDAsync_v2, (sl_cu_address to, sl_cu_address from, size_t bytes, sl_cu_stream s))  \
    X(cuMemsetD8Async, (sl_cu_address to, unsigned char byte, size_t bytes, sl_cu_stream s))       \
    X(cuStreamCreate, (sl_cu_stream * out, unsigned flags))                                        \
    X(cuStreamSynchronize, (sl_cu_stream s))                                                       \
    X(cuStreamDestroy_v2, (sl_cu_stream s))                                                        \
    X(cuStreamWaitEvent, (sl_cu_stream s, sl_cu_event e, unsigned flags))                          \
    X(cuEventCreate, (sl_cu_event * out, unsigned flags))                                          \
    X(cuEventRecord, (sl_cu_event e, sl_cu_stream s))                                              \
    X(cuEventQuery, (sl_cu_event e))                                                               \
    X(cuEventSynchronize, (sl_cu_event e))                                                         \
    X(cuEventElapsedTime, (float *ms, sl_cu_event from, sl_cu_event to))                           \
    X(cuEventDestroy_v2, (sl_cu_event e))                                                          \
    X(cuModuleLoadData, (sl_cu_module * out, const void *image))                                   \
    X(cuModuleGetFunction, (sl_cu_function * out, sl_cu_module m, const char *name))               \
    X(cuModuleUnload, (sl_cu_module m))                                                            \
    X(cuFuncSetAttribute, (sl_cu_function f, int attribute, int value))                            \
    X(cuLaunchKernel, (sl_cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z,        \
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,      \
                       sl_cu_stream s, void **args, void **extra))

typedef struct sl_cu_driver {
#define SL_CU_CALL(name, parameters) sl_cu_result(*name) parameters;
    SL_CU_CALLS(SL_CU_CALL)
#undef SL_CU_CALL
    /* Since CUDA 12, for GPUs since sm_90; NULL: it has none. The address is the GPU's. */
    sl_cu_result (*cuTensorMapEncodeTiled)(void *out, int type, uint32_t rank, uint64_t address,
                                           const uint64_t *dim, const uint64_t *stride,
                                           const uint32_t *box, const uint32_t *step,
                                           int interleave, int swizzle, int fetch, int fill);
    /* Since CUDA 11.8; NULL: it has none. */
    sl_cu_result (*cuLaunchKernelEx)(const sl_cu_launch_config *how, sl_cu_function f, void **args,
                                     void **extra);
    /* Graphs, since CUDA 11.4 all of them; NULL: it has none. */
    sl_cu_result (*cuStreamBeginCapture_v2)(sl_cu_stream s, int mode);
    sl_cu_result (*cuStreamEndCapture)(sl_cu_stream s, sl_cu_graph *out);
    sl_cu_result (*cuGraphInstantiateWithFlags)(sl_cu_graph_exec *out, sl_cu_graph g,
                                                unsigned long long flags);
    sl_cu_result (*cuGraphLaunch)(sl_cu_graph_exec g, sl_cu_stream s);
    sl_cu_result (*cuGraphExecDestroy)(sl_cu_graph_exec g);
    sl_cu_result (*cuGraphDestroy)(sl_cu_graph g);
    /* Memory of other GPUs and of other processes; NULL: it has none. */
    sl_cu_result (*cuDeviceCanAccessPeer)(int *out, sl_cu_device d, sl_cu_device peer);
    sl_cu_result (*cuCtxEnablePeerAccess)(sl_cu_context peer, unsigned flags);
    sl_cu_result (*cuIpcGetMemHandle)(sl_cu_ipc_handle *out, sl_cu_address p);
    sl_cu_result (*cuIpcOpenMemHandle_v2)(sl_cu_address *out, sl_cu_ipc_handle h, unsigned flags);
    sl_cu_result (*cuIpcCloseMemHandle)(sl_cu_address p);
    sl_cu_result (*cuMemGetAddressRange_v2)(sl_cu_address *base, size_t *bytes, sl_cu_address p);
    /* A driver that has kernels of its own, as that of the tests, exports sluice_cuda_image: it is
     * loaded instead of the program's. NULL: any other. */
    const void *image;
} sl_cu_driver;

/* The driver, with cuInit done; it stays until the process ends. SL_ERR_UNSUPPORTED says which file
 * cannot be opened, which call it lacks, or what cuInit said. */
sl_status sl_cu_load(const sl_cu_driver **out, sl_err *err) SL_MUST_CHECK;

/* SL_OK, or a failure that names the call and CUDA's error. */
sl_status sl_cu_check(const sl_cu_driver *d, const char *call, sl_cu_result r,
                      sl_err *err) SL_MUST_CHECK;
#define SL_CU_DO(d, err, call, ...) sl_cu_check(d, #call, (d)->call(__VA_ARGS__), err)

#endif

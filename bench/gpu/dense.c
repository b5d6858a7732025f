/* The rate of a dense product by cuBLASLt, loaded at run time. */
#include "gpu.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LT_CALLS(X)                                                                                \
    X(cublasLtCreate)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmul)

static struct {
#define FIELD(call) __typeof__(&call) call;
    LT_CALLS(FIELD)
#undef FIELD
} lt;

#define NAME(call) #call,
static const char *const names[] = {LT_CALLS(NAME)};
#undef NAME

static void *open_library(const char *given, char *note, size_t note_bytes) {
    static const char *const where[] = {
        "libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.1[23]",
        "/usr/local/cuda*/targets/*/lib/libcublasLt.so.1[23]",
        "/opt/torch/.venv/lib/python3*/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
        "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.1[23]",
        "/usr/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.1[23]",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.1[23]",
        "libcublasLt.so.12",
    };
    void *lib = given ? dlopen(given, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (lib) snprintf(note, note_bytes, "%s", given);
    for (size_t i = 0; !lib && i < sizeof where / sizeof *where; i++) {
        glob_t g;
        if (where[i][0] != '/') {
            lib = dlopen(where[i], RTLD_NOW | RTLD_GLOBAL);
            if (lib) snprintf(note, note_bytes, "%s", where[i]);
        } else if (glob(where[i], 0, NULL, &g) == 0) {
            for (size_t j = 0; !lib && j < g.gl_pathc; j++) {
                lib = dlopen(g.gl_pathv[j], RTLD_NOW | RTLD_GLOBAL);
                if (lib) snprintf(note, note_bytes, "%s", g.gl_pathv[j]);
            }
            globfree(&g);
        }
    }
    if (!lib) return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(lib, names[i]);
        if (!symbol) return NULL;
        memcpy((unsigned char *)&lt + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return lib;
}

double gpu_dense_tflops(const char *library, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c,
                        uint64_t m, uint64_t n, uint64_t k, char *note, size_t note_bytes) {
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulPreference_t p;
    cublasLtMatmulHeuristicResult_t found[8];
    const float one = 1, zero = 0;
    const cublasOperation_t t = CUBLAS_OP_T, s = CUBLAS_OP_N;
    size_t room = 64u << 20;
    int n_found = 0;
    snprintf(note, note_bytes, "no cuBLASLt");
    if (!open_library(library, note, note_bytes)) return 0;
    if (lt.cublasLtCreate(&h)) return 0;
    CUdeviceptr work = gpu_alloc(room);
    lt.cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt.cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    lt.cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &s, sizeof s);
    lt.cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, k, m, (int64_t)k); /* weights [m][k] */
    lt.cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, k, n, (int64_t)k); /* rows [n][k] */
    lt.cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, m, n, (int64_t)m);
    lt.cublasLtMatmulPreferenceCreate(&p);
    lt.cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                            sizeof room);
    lt.cublasLtMatmulAlgoGetHeuristic(h, d, la, lb, lc, lc, p, 8, found, &n_found);
    double best = 0;
    for (int i = 0; i < n_found && i < 4; i++) {
        gpu_sync("product");
        const int times = 10;
        double from = 0;
        int bad = 0;
        for (int r = 0; r < times + 3 && !bad; r++) {
            if (r == 3) {
                gpu_sync("product");
                from = gpu_now();
            }
            bad = lt.cublasLtMatmul(h, d, &one, (void *)a, la, (void *)b, lb, &zero, (void *)c, lc,
                                    (void *)c, lc, &found[i].algo, (void *)work, room,
                                    gpu_stream) != CUBLAS_STATUS_SUCCESS;
        }
        gpu_sync("product");
        const double rate = 2e-12 * (double)m * (double)n * (double)k * times / (gpu_now() - from);
        if (!bad && rate > best) best = rate;
    }
    gpu_free(work);
    return best;
}

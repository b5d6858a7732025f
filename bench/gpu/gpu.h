/* What the GPU bench needs of the driver: libcuda loaded at run time, modules from bytes of the
 * program, launches that may start early, graphs, times. Everything dies with a message on the
 * first error. */
#ifndef SL_BENCH_GPU_H
#define SL_BENCH_GPU_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gpu_graph {
    CUgraph graph;
    CUgraphExec exec;
} gpu_graph;

extern CUstream gpu_stream;
extern int gpu_sms;
extern char gpu_name[256];

void gpu_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* driver: its library; NULL: libcuda.so.1. */
void gpu_open(const char *driver);
void gpu_module(const void *image);
/* By name, of any module. */
CUfunction gpu_function(const char *name);
/* `early`: the kernel may start while the one before it still runs (it waits by itself). */
void gpu_launch(CUfunction f, uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared,
                uint32_t cluster, int early, const void *args, size_t args_bytes);
CUdeviceptr gpu_alloc(size_t bytes);
void gpu_free(CUdeviceptr p);
void gpu_put(CUdeviceptr to, const void *from, size_t bytes);
void gpu_get(void *to, CUdeviceptr from, size_t bytes);
void gpu_set(CUdeviceptr to, uint8_t byte, size_t bytes);
void gpu_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes); /* in order, returns at once */
void gpu_sync(const char *what);
/* 2D map of rows of bf16 for the copy engine: boxes of 64 values by box_rows rows, swizzled. */
void gpu_tensor_map(void *out, CUdeviceptr base, uint64_t rows, uint64_t row_values,
                    uint32_t box_rows);

void gpu_capture(void);
gpu_graph gpu_captured(void);
void gpu_graph_free(gpu_graph g);
/* Microseconds of one replay: median of n, and the fastest. */
double gpu_replay_us(gpu_graph g, int warm, int n, double *best);

double gpu_now(void);
/* Rate of a dense product m x n x k of bf16 by cuBLASLt, TFLOP/s; 0: no library. library: its file;
 * NULL: where it usually is. a, b, c: m * k, n * k and m * n values. */
double gpu_dense_tflops(const char *library, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c,
                        uint64_t m, uint64_t n, uint64_t k, char *note, size_t note_bytes);

/* Numbers with one character between them, as an option says them; how many. */
uint32_t gpu_numbers(const char *text, uint32_t *out, uint32_t most);

#endif

/* Argument structs of the bench's own kernels (bench_gpu.cu). */
#ifndef SL_BENCH_GPU_ARGS_H
#define SL_BENCH_GPU_ARGS_H

#include <stdint.h>

/* n values of bf16, even over (-scale, scale), a function of seed and position. */
typedef struct sl_bench_fill_args {
    uint32_t *to;
    uint64_t n; /* a multiple of 2 */
    float scale;
    uint32_t seed;
} sl_bench_fill_args;

/* n pieces of 16 bytes: read all (and `to` gets a word that nobody expects), or copied. */
typedef struct sl_bench_stream_args {
    const uint8_t *from;
    uint8_t *to;
    uint64_t n;
} sl_bench_stream_args;

#endif

/* What tests ask of the driver library without a GPU (fake_driver.c), by dlsym: it is the file in
 * SLUICE_CUDA_DRIVER. Variables set the same as long as nobody calls these:
 *   SLUICE_FAKE_CUDA_SEED    as sluice_fake_cuda_seed
 *   SLUICE_FAKE_CUDA_MEMORY  bytes of each of the two GPUs; 8 GiB
 *   SLUICE_FAKE_CUDA_COUNT   how many GPUs there are; 2
 *   SLUICE_FAKE_CUDA_PEERS   0: none reaches memory of another one
 *   SLUICE_FAKE_CUDA_IPC     0: no memory is shared between processes
 *   SLUICE_FAKE_CUDA_REGISTER  0: memory of the process cannot be registered */
#ifndef SL_TESTS_CUDA_FAKE_DRIVER_H
#define SL_TESTS_CUDA_FAKE_DRIVER_H

#include <stdint.h>

/* 0: what is asked is done soon, in order of blocks and threads. Another: nothing is done before
 * somebody waits for it, or has asked several times whether it is done; orders are drawn. */
typedef void sluice_fake_cuda_seed_fn(uint64_t seed);
/* The nth call of that name from now on (1: the next) fails with this number; "execute" is the nth
 * work of a stream while it runs, after which all calls of the stream fail so. */
typedef void sluice_fake_cuda_fail_fn(const char *call, uint32_t nth, int result);
/* Bytes that are allocated on the GPUs and pinned on the host. */
typedef uint64_t sluice_fake_cuda_used_fn(void);
/* What was done so far, by fake_counted. */
typedef enum fake_counted {
    FAKE_LAUNCHES,        /* of kernels, but for those of graphs */
    FAKE_EARLY,           /* of these, before the one in front has ended */
    FAKE_GRAPHS,          /* launches of graphs */
    FAKE_OF_GRAPHS,       /* kernels of these */
    FAKE_EARLY_OF_GRAPHS, /* of these, early ones */
    FAKE_GRAPHS_GONE,     /* destroyed */
    FAKE_BYTES_OUT,       /* copied from a GPU to the host */
    FAKE_COUNTS
} fake_counted;
typedef void sluice_fake_cuda_counts_fn(uint64_t out[FAKE_COUNTS]);

#endif

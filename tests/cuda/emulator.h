/* The emulator of CUDA's blocks: runs kernels that gcc has compiled (stage/cuda/kernels/device.h),
 * each thread of a block on a stack of its own, one block after another; another one begins earlier
 * only where all threads poll for what others do (sl_emu_yield). Threads run until they
 * meet others: at a barrier, or where lanes of a warp exchange values; all of a meeting go on when
 * the last one has come. One who cannot come any more, since it has left the kernel or waits
 * elsewhere, ends the process with kernel, block and thread. Where nobody meets, a block costs as
 * much as so many calls.
 *
 * Shared memory holds garbage (all bits set: no number, of any type) when a block begins, and what
 * is written behind its ends is found. Thread: any; each launch on the calling thread. */
#ifndef SL_TESTS_CUDA_EMULATOR_H
#define SL_TESTS_CUDA_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EMU_MAX_THREADS  1024u
#define EMU_MAX_BLOCKS   16u     /* at the same time */
#define EMU_STATIC_BYTES 49152u  /* of shared memory, and all of it that needs no asking for */
#define EMU_SHARED_BYTES 232448u /* all that a block can have */

typedef struct emu_launch {
    const char *kernel;          /* its name, for messages */
    void (*thunk)(const void *); /* NAME_thunk of SL_KERNEL */
    const void *args;
    uint32_t grid[3], threads;
    uint32_t dynamic_bytes;
    bool plain; /* nobody asked for more shared memory than a kernel has by itself */
    /* 0: blocks and threads in their order; else in one that it draws: what only holds in order is
     * found by some seed. */
    uint64_t seed;
} emu_launch;

void emu_run(const emu_launch *l);
/* Frees what the calling thread's launches left for the next ones. */
void emu_release(void);

#endif

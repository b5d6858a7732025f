/* What the emulator's own test (test_emulator.c) hands to its kernels. */
#ifndef SL_TESTS_CUDA_EMULATED_KERNELS_H
#define SL_TESTS_CUDA_EMULATED_KERNELS_H

#include <stdint.h>

typedef struct emu_sum_args {
    const float *x;
    float *y;
} emu_sum_args;

typedef struct emu_warp_args {
    uint32_t *out, *count;
} emu_warp_args;

typedef struct emu_tile_args {
    const uint8_t *a, *b; /* 16 and 8 rows of 32 bytes */
    float *d;             /* [16][8] */
    uint32_t format;      /* bf16, f16, s8, e4m3 */
} emu_tile_args;

typedef struct emu_trans_args {
    const uint16_t *x;
    uint16_t *y;
} emu_trans_args;

typedef struct emu_pipe_args {
    const uint32_t *x;
    uint32_t *y, n;
} emu_pipe_args;

typedef struct emu_grid_args {
    uint32_t *part, *came, *y;
} emu_grid_args;

typedef enum emu_fault {
    EMU_BARRIER_LEFT,
    EMU_LANE_LEFT,
    EMU_OTHER_WAY,
    EMU_STUCK,
    EMU_IN_VAIN,
    EMU_OUTSIDE,
    EMU_NOT_ALIGNED,
    EMU_TRAP,
    EMU_DEADLY, /* from here on nobody dies of it */
    EMU_GARBAGE = EMU_DEADLY,
    EMU_NOT_AWAITED,
    EMU_IN_ORDER, /* from here on only a watcher sees it */
    EMU_READ_FIRST,
    EMU_BY_SHUFFLE,
    EMU_OTHER_BLOCK,
    EMU_WITHOUT_RELEASE
} emu_fault;

typedef struct emu_fault_args {
    uint32_t *out;
    emu_fault fault;
} emu_fault_args;

#endif

/* Where a block of 256 in a strip (quant/strips.h) has what, for kernels: lines of codes, of what
 * codes have above four bits, of scales, and which parts of the block a line's codes belong to.
 * Codes are unpacked in steps: so many lines, whose low halves belong to one part of the block and
 * the high ones to another. */
#ifndef SL_KERNEL_STRIP_STEPS_H
#define SL_KERNEL_STRIP_STEPS_H

#include "kernel/kernel_int.h"

SL_INLINE uint32_t sl_strip_steps(sl_dtype dtype) {
    return dtype == SL_Q6_K ? 8 : 4;
}

/* Values of a part. */
SL_INLINE uint32_t sl_strip_part(sl_dtype dtype) {
    return 128 / sl_strip_steps(dtype);
}

SL_INLINE uint32_t sl_strip_low_part(sl_dtype dtype, uint32_t step) {
    return dtype == SL_Q6_K ? step / 4 * 8 + step % 4 : 2 * step;
}

SL_INLINE uint32_t sl_strip_high_part(sl_dtype dtype, uint32_t step) {
    return sl_strip_low_part(dtype, step) + (dtype == SL_Q6_K ? 4 : 1);
}

/* The first line of codes, of higher bits, and of what the block's head has. */
SL_INLINE uint32_t sl_strip_codes(sl_dtype dtype) {
    return dtype == SL_Q6_K ? 0 : dtype == SL_Q5_K ? 12 : 4;
}

SL_INLINE uint32_t sl_strip_high(sl_dtype dtype) {
    return dtype == SL_Q6_K ? 32 : 4;
}

SL_INLINE uint32_t sl_strip_head(sl_dtype dtype) {
    return dtype == SL_Q6_K ? 48 : 0;
}

/* Line of higher bits that line i of a step takes, and how far down they lie for the low half; the
 * high half's are one bit further in Q5_K, four in Q6_K. */
SL_INLINE uint32_t sl_strip_high_line(sl_dtype dtype, uint32_t step, uint32_t i) {
    return dtype == SL_Q6_K ? step / 4 * 8 + step % 2 * 4 + i : i;
}

SL_INLINE uint32_t sl_strip_high_shift(sl_dtype dtype, uint32_t step) {
    return dtype == SL_Q6_K ? step % 4 / 2 * 2 : 2 * step;
}

#endif

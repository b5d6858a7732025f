/* The scalar steps that define results, for the instruction sets of processors: formulas
 * (kernel/formula.h), and values of any plain type. */
#ifndef SL_KERNEL_SCALAR_H
#define SL_KERNEL_SCALAR_H

#include "kernel/formula.h"
#include "kernel/kernel.h"

/* Value i of an array of a plain type, of any alignment. */
static inline float sl_load_any(const void *src, sl_dtype dtype, size_t i) {
    const uint8_t *p = (const uint8_t *)src + i * sl_dtype_bytes(dtype);
    float f;
    uint16_t h;
    if (dtype == SL_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    return dtype == SL_F16 ? sl_f16_to_f32(h) : sl_bf16_to_f32(h);
}

#endif

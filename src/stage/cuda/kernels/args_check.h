/* The kernel that a context tries out when it opens. */
#ifndef SL_STAGE_CUDA_ARGS_CHECK_H
#define SL_STAGE_CUDA_ARGS_CHECK_H

#include "base/fn.h"

#include <stdint.h>

/* y[i] = sl_check_value(x[i], add), i < n. */
typedef struct sl_k_check_args {
    const uint32_t *x;
    uint32_t *y;
    uint32_t n, add;
} sl_k_check_args;

SL_FN uint32_t sl_check_value(uint32_t x, uint32_t add) {
    return x * 2654435761u + add;
}

#endif

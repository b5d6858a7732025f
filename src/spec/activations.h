/* How activations are rounded before products with weights: a fact of the plan, the same for all
 * workers, because it decides bits (docs/numbers.md). */
#ifndef SL_SPEC_ACTIVATIONS_H
#define SL_SPEC_ACTIVATIONS_H

#include <stdbool.h>

typedef enum sl_activations {
    SL_ACTIVATIONS_F32,        /* not at all */
    SL_ACTIVATIONS_INT8,       /* to 8 bits before weights in blocks of GGUF */
    SL_ACTIVATIONS_BF16,       /* as INT8, and to BF16 before weights in BF16 */
    SL_ACTIVATIONS_BF16_PARTS, /* the same rows, whose products are summed in parts of 32 values */
    SL_ACTIVATIONS_COUNT
} sl_activations;

#define SL_ACTIVATIONS_DEFAULT SL_ACTIVATIONS_INT8

/* Counted up whenever the same plan gives other bits than before, so that nobody goes on with KV
 * that an older build has left. 2: MXFP4 as integers. */
#define SL_NUMERICS_REVISION 2u

/* Whether rows are rounded to BF16 before weights in BF16. */
static inline bool sl_activations_are_bf16(sl_activations a) {
    return a == SL_ACTIVATIONS_BF16 || a == SL_ACTIVATIONS_BF16_PARTS;
}

/* By sl_activations. */
extern const char *const sl_activations_names[SL_ACTIVATIONS_COUNT];

#endif

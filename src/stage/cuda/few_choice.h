/* Which forms of the kernels for very few rows a GPU is fastest with (sl_cuda_few): measured there,
 * when a model is loaded, on its own first blocks. A form that was never run on that GPU is taken
 * only if it has just been faster than the first one, with the same results. */
#ifndef SL_STAGE_CUDA_FEW_CHOICE_H
#define SL_STAGE_CUDA_FEW_CHOICE_H

#include "stage/cuda/cuda_int.h"
#include "stage/stage_int.h"

#define SL_CUDA_FEW_FORMS 8u
/* Blocks that a trial goes through: more weights than a second cache has. */
#define SL_CUDA_FEW_BLOCKS 8u

/* Form i of all. */
static inline sl_cuda_few sl_cuda_few_form(uint32_t i) {
    return (sl_cuda_few){.ring = i & 1, .fetch = i & 2, .routes = i & 4};
}

/* How long form i takes, in any unit, 0: it could not be run; and the n values that it makes. */
typedef struct sl_cuda_few_trial {
    double (*run)(void *ctx, uint32_t i, float *out);
    void *ctx;
    uint32_t n;
    float *first, *out; /* room for n values each */
} sl_cuda_few_trial;

/* The fastest, by the best of some interleaved runs each: form 0 unless another one takes less than
 * 98 % of its time and makes what it makes, within 1e-4 of the largest value. */
uint32_t sl_cuda_few_choose(const sl_cuda_few_trial *t);

/* Tries the forms on one row through the first SL_CUDA_FEW_BLOCKS blocks with experts of the model
 * on d, which takes SL_OP_INSIDE and has all of these experts and a page; c becomes the fastest
 * form's. Page 0 is written. Waits. A failure is the device's. */
void sl_cuda_few_try(sl_device *d, sl_cuda *c);

#endif

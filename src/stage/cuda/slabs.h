/* A GPU's memory for weights: many pieces, which come and go with experts. The driver gives memory
 * in steps of 2 MB, so pieces are cut from slabs. What is dropped joins what is free beside it in
 * its slab, so that pieces of any size take the place of those that went. Thread: owner of the
 * context. */
#ifndef SL_STAGE_CUDA_SLABS_H
#define SL_STAGE_CUDA_SLABS_H

#include "stage/cuda/cuda_int.h"

typedef struct sl_cuda_piece {
    uint64_t at;
    size_t bytes;
} sl_cuda_piece;

typedef struct sl_cuda_slabs {
    sl_cuda *c;
    uint32_t index; /* of the GPU, for errors */
    uint64_t limit; /* bytes; 0: what is free */
    uint64_t taken;
    sl_cuda_piece *slabs;
    size_t n_slabs, cap_slabs;
    sl_cuda_piece *freed; /* parts of slabs that nobody has, by address */
    size_t n_freed, cap_freed;
} sl_cuda_slabs;

/* What an expert is cut into: `n` pieces of `piece` bytes at most, and `small` bytes of others, far
 * smaller. */
typedef struct sl_cuda_cut {
    size_t piece, small;
    uint32_t n;
} sl_cuda_cut;

/* Memory of its own, from the driver, within the limit. SL_ERR_NOMEM says what (`what`: "KV pages")
 * does not fit where, and what to try. To be given back by sl_cuda_slabs_return. */
sl_status sl_cuda_slabs_take(sl_cuda_slabs *m, size_t bytes, const char *what, uint64_t *out,
                             sl_err *err) SL_MUST_CHECK;
void sl_cuda_slabs_return(sl_cuda_slabs *m, uint64_t at, size_t bytes);
/* At least so many bytes in *p, which is zero at first: what there was is given back where it is
 * too small and there is more, without its contents. */
sl_status sl_cuda_slabs_grow(sl_cuda_slabs *m, size_t bytes, const char *what, sl_cuda_piece *p,
                             sl_err *err) SL_MUST_CHECK;

/* A piece of a slab, 256-byte aligned. */
sl_status sl_cuda_slabs_cut(sl_cuda_slabs *m, size_t bytes, uint64_t *out,
                            sl_err *err) SL_MUST_CHECK;
/* As it was cut; others take its place. What runs is not waited for. */
void sl_cuda_slabs_drop(sl_cuda_slabs *m, uint64_t at, size_t bytes);

/* How many such experts find room when `beside` bytes are taken otherwise before; said with
 * caution, as pieces have to lie somewhere. */
uint64_t sl_cuda_slabs_room(sl_cuda_slabs *m, const sl_cuda_cut *cut, uint64_t beside);

void sl_cuda_slabs_free(sl_cuda_slabs *m);

#endif

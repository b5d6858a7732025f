/* Memory of one GPU that others pack rows into: what a device offers to those of other workers, and
 * what it has joined of theirs.
 *
 * Within a process what is offered is one address for all GPUs that reach each other; it stays
 * until the last who joined it has parted from it, whoever offered it. Between processes of a
 * machine it is joined by CUDA's handle (IPC), and stays until the process that offered it ends:
 * who offered it does not learn whether the other has closed it, and CUDA does not say what becomes
 * of memory that is freed before. Rows are there when the call that packed them is through: who was
 * told of them by then may read them by launches of any GPU. Thread: the context's owner. */
#ifndef SL_STAGE_CUDA_WINDOWS_H
#define SL_STAGE_CUDA_WINDOWS_H

#include "stage/cuda/cuda_int.h"
#include "stage/stage.h"

/* Windows of a process that are kept so and of no use any more: with so many none is offered. */
#define SL_CUDA_WINDOWS_LEFT 16u

typedef struct sl_cuda_window {
    uint64_t at;
    size_t bytes;
    uint32_t times;          /* it is offered or joined so often */
    struct sl_cuda_lent *of; /* of this process; NULL: of another one */
} sl_cuda_window;

typedef struct sl_cuda_windows {
    sl_cuda *c;
    sl_cuda_window *window;
    size_t n, cap;
    size_t last; /* where an address was found */
} sl_cuda_windows;

/* As sl_device_ops say; part does not wait. SL_ERR_LIMIT of offer: too many are left over. */
sl_status sl_cuda_windows_offer(sl_cuda_windows *w, size_t bytes, sl_mem *out, sl_device_key *key,
                                sl_err *err) SL_MUST_CHECK;
sl_status sl_cuda_windows_join(sl_cuda_windows *w, sl_span key, sl_mem *out,
                               sl_err *err) SL_MUST_CHECK;
void sl_cuda_windows_part(sl_cuda_windows *w, sl_mem m);
/* Parts from all; before the context is closed. */
void sl_cuda_windows_free(sl_cuda_windows *w);

/* Whether this place of a row is in one of them. */
bool sl_cuda_windows_have(sl_cuda_windows *w, const void *at);

/* Rows of a PACK as kernels are to have them: those that nobody wants are left out, and those whose
 * place is the host's have none yet. */
typedef struct sl_cuda_row_places {
    uint32_t n, by_host;
    const uint32_t *row; /* [n] of `rows`; NULL: i itself */
    uint8_t **at;        /* [n]; NULL: the host's */
} sl_cuda_row_places;
/* Lists are the arena's. */
sl_cuda_row_places sl_cuda_windows_places(sl_cuda_windows *w, const sl_stage_pack *p,
                                          sl_arena *lists);

#endif

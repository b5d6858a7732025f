/* GPUs of this machine, for people: which there are, and why one is not used. The device itself is
 * opened as any other (stage/stage.h). */
#ifndef SL_STAGE_CUDA_H
#define SL_STAGE_CUDA_H

#include "base/status.h"
#include "model/model.h"
#include "spec/device.h"
#include "spec/model.h"

typedef struct sl_cuda_gpu {
    uint32_t index; /* as in cuda:0 */
    char name[96];
    uint32_t major, minor; /* compute capability */
    uint32_t sms;          /* multiprocessors */
    uint64_t memory_bytes, free_bytes;
    char why[256]; /* it is not used: it or this program lacks something; "": it can be */
} sl_cuda_gpu;

typedef struct sl_cuda_gpus {
    uint32_t n;
    sl_cuda_gpu *gpu;                    /* [n] */
    uint32_t driver_major, driver_minor; /* CUDA version that the driver speaks; 0: no GPU */
    char why[256]; /* there are none to be seen: no driver, say; "": there are */
} sl_cuda_gpus;

/* Looks at each by opening it, which takes some tenths of a second. Free with sl_cuda_gpus_free. */
void sl_cuda_list_devices(sl_cuda_gpus *out);
void sl_cuda_gpus_free(sl_cuda_gpus *g);

/* Bytes that calls of a worker take of its GPU beside weights and KV: of so many rows (0: it has no
 * attention), (row, expert) pairs (0: no experts) and rows of logits. At most, whatever the
 * numerics; all else is far less. */
uint64_t sl_cuda_calls_bytes(const sl_model_spec *m, uint32_t max_rows, uint32_t max_pairs,
                             uint32_t head_rows);
/* Bytes that places for experts take which stay in the machine's memory (stage/cuda/offload.h). */
uint64_t sl_cuda_offload_room(const sl_model_spec *m, const sl_model_info *info);
/* So much of what is free is left to calls that grow, where no limit is said. */
#define SL_CUDA_LEFT ((uint64_t)256 << 20)

/* The kind of GPU `index`: all of one kind have the same bits with numerics exact. */
sl_status sl_cuda_kind(uint32_t index, char out[SL_GPU_KIND_BYTES], sl_err *err) SL_MUST_CHECK;

#endif

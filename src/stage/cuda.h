/* GPUs of this machine, for people: which there are, and why one is not used. The device itself is
 * opened as any other (stage/stage.h). */
#ifndef SL_STAGE_CUDA_H
#define SL_STAGE_CUDA_H

#include "base/status.h"
#include "spec/device.h"

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

/* The kind of GPU `index`: all of one kind have the same bits with numerics exact. */
sl_status sl_cuda_kind(uint32_t index, char out[SL_GPU_KIND_BYTES], sl_err *err) SL_MUST_CHECK;

#endif

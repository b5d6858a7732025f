/* Logits of the CUDA device: where a call of HEAD has them on the GPU, and what of them comes to
 * the host: all, or what rows seek (model/seek.h). Thread: owner of the device. */
#ifndef SL_STAGE_CUDA_LOGITS_H
#define SL_STAGE_CUDA_LOGITS_H

#include "stage/cuda/slabs.h"
#include "stage/stage.h"

typedef struct sl_cuda_logits {
    sl_cuda *c;
    uint32_t vocab;
    bool finds;       /* calls may seek */
    sl_cuda_piece at; /* f32, of the GPU, of the last call; behind them scratch of seeking */
    uint64_t found, whole, asked; /* rows of calls that seek: found, not; logits asked for after */
} sl_cuda_logits;

/* Memory of the GPU that calls of so many rows take. */
uint64_t sl_cuda_logits_bytes(const sl_model_spec *m, uint32_t rows, bool finds);
/* Whether calls of so many rows find room in what there is, else makes it: nothing may use what
 * there is. SL_ERR_NOMEM. */
bool sl_cuda_logits_fit(const sl_cuda_logits *h, const sl_model_spec *m, uint32_t rows);
sl_status sl_cuda_logits_reserve(sl_cuda_logits *h, const sl_model_spec *m, uint32_t rows,
                                 sl_cuda_slabs *memory, sl_err *err) SL_MUST_CHECK;

/* Bytes of results of a call, which are multiples of 64. */
size_t sl_cuda_logits_result(const sl_cuda_logits *h, const sl_stage_head *call);
/* The logits of the call's rows, which are computed where h has them, or what is sought of them,
 * come to `result` in pinned memory, which kernels find at `at`. */
void sl_cuda_logits_bring(sl_cuda_logits *h, const sl_stage_head *call, uint8_t *result,
                          uint64_t at);
/* From there to where the call wants them. */
void sl_cuda_logits_give(const sl_cuda_logits *h, const sl_stage_head *call, const uint8_t *result);

/* As sl_device_ops.read_logits says. */
sl_status sl_cuda_logits_read(sl_cuda_logits *h, uint32_t row, float *to,
                              sl_err *err) SL_MUST_CHECK;

/* Says how many rows were found, if there were any. */
void sl_cuda_logits_tell(const sl_cuda_logits *h);

#endif

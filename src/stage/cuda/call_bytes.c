/* Sizes that follow from a model and what calls may be. */
#include "stage/cuda/call_bytes.h"

#include "stage/cuda.h"
#include "stage/cuda/experts.h"
#include "stage/cuda/logits.h"

#define LISTS_MORE 65536u

size_t sl_cuda_list_bytes(const sl_model_spec *m, size_t rows, size_t pairs) {
    const size_t each = 4 * sizeof(sl_gemm_job) + 12 * sizeof(void *);
    return (pairs + m->n_heads) * each + pairs * 48u + rows * (m->top_k * 16u + 16u) +
           m->n_experts * 16u + LISTS_MORE;
}

size_t sl_cuda_scratch_for(const sl_model_spec *m, uint32_t max_rows, uint32_t max_pairs) {
    size_t rows = max_rows ? sl_model_scratch_bytes(m, max_rows) : 0;
    return SL_MAX(rows, max_pairs ? sl_experts_scratch_bytes(m, max_pairs) : 0);
}

uint64_t sl_cuda_calls_bytes(const sl_model_spec *m, uint32_t max_rows, uint32_t max_pairs,
                             uint32_t head_rows) {
    return sl_cuda_scratch_for(m, max_rows, max_pairs) + sl_cuda_experts_bytes(m, max_pairs) +
           sl_cuda_logits_bytes(m, head_rows, true);
}

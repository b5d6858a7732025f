/* Rows that travel, on the GPU: to the formats of the wire, back, and into the residual stream. */
#include "stage/cuda/exec_rows.h"

#include "stage/cuda/kernels/args_rows.h"

static sl_k_wire_args wire_args(sl_cuda *c, sl_wire_format wire, float *rows, const uint32_t *row,
                                uint32_t n, uint32_t d, const void *at) {
    sl_k_wire_args a = {.rows = rows, .d = d, .wire = wire};
    a.at = sl_cuda_list(c, at, n * sizeof *a.at);
    if (row) a.row = sl_cuda_list(c, row, n * sizeof *row);
    return a;
}

void sl_cuda_pack(sl_cuda *c, sl_wire_format wire, const float *rows, const uint32_t *row,
                  uint32_t n, uint32_t d, uint8_t *const *at) {
    const sl_k_wire_args a = wire_args(c, wire, (float *)(uintptr_t)rows, row, n, d, at);
    sl_cuda_launch(c, SL_CUDA_sl_k_pack, n, 1, 1, SL_CUDA_ROW_THREADS, 0, &a);
    sl_cuda_fence(c);
}

void sl_cuda_unpack(sl_cuda *c, sl_wire_format wire, float *rows, const uint32_t *row, uint32_t n,
                    uint32_t d, const uint8_t *const *at) {
    const sl_k_wire_args a = wire_args(c, wire, rows, row, n, d, at);
    sl_cuda_launch(c, SL_CUDA_sl_k_unpack, n, 1, 1, SL_CUDA_ROW_THREADS, 0, &a);
    sl_cuda_fence(c);
}

void sl_cuda_merge(sl_cuda *c, const sl_cuda_merge_rows *m) {
    sl_k_merge_args a = {
        .to = m->to, .x = m->x, .shared = m->shared, .d = m->d, .k = m->k, .wire = m->wire};
    SL_ASSERT(m->k <= SL_MAX_TOP_K && (m->to != m->x || !m->from));
    a.piece = sl_cuda_list(c, m->piece, (size_t)m->n * m->k * sizeof *m->piece);
    if (m->from) a.from = sl_cuda_list(c, m->from, m->n * sizeof *m->from);
    sl_cuda_launch(c, SL_CUDA_sl_k_merge, m->n,
                   (m->d + 4 * SL_CUDA_ROW_THREADS - 1) / (4 * SL_CUDA_ROW_THREADS), 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
    sl_cuda_fence(c);
}

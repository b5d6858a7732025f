/* Calls that put rows where stages want them. Thread: owner of the context. */
#ifndef SL_STAGE_CUDA_ROW_CALLS_H
#define SL_STAGE_CUDA_ROW_CALLS_H

#include "stage/cuda/windows.h"
#include "stage/stage_int.h"

/* A worker's GPU, where rows of others lie, memory for lists of one call, and the model. */
typedef struct sl_cuda_rows {
    sl_cuda *c;
    sl_cuda_windows *windows;
    sl_arena *lists;
    const sl_model_spec *spec;
} sl_cuda_rows;

void sl_cuda_rows_unpack(const sl_cuda_rows *r, const sl_stage_pack *p);
void sl_cuda_rows_move(const sl_cuda_rows *r, const sl_stage_move *m);
void sl_cuda_rows_merge(const sl_cuda_rows *r, const sl_stage_call *c);

#endif

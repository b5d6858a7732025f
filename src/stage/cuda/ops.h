/* The operations of src/kernel/ops.h on a GPU: exec.ops_ctx is its sl_cuda, exec.lists host memory
 * for lists. Thread: owner of the context. */
#ifndef SL_STAGE_CUDA_OPS_H
#define SL_STAGE_CUDA_OPS_H

#include "kernel/ops.h"

extern const sl_exec_ops sl_cuda_ops;

#endif

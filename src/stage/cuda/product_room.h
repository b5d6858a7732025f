/* How the tiles of products lie in shared memory, for whoever shapes their launches:
 * exec_products.c, and fast_plan.c for groups of routed experts. */
#ifndef SL_STAGE_CUDA_PRODUCT_ROOM_H
#define SL_STAGE_CUDA_PRODUCT_ROOM_H

#include "quant/act.h"
#include "stage/cuda/kernels/args_products.h"

/* A stage of `cols` rows of weights of type t and `rows` of x, rounded ones of a kind or f32
 * (SL_ACT_NONE), with `chunk` values each, a multiple of 256. */
sl_product_room sl_product_room_of(sl_dtype t, sl_act_kind kind, uint32_t rows, uint32_t cols,
                                   uint32_t chunk);

#endif

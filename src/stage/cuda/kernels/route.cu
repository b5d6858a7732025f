/* The kernel of routers: a warp a row. */
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/route_row.h"

SL_KERNEL(sl_k_route, sl_k_route_args) {
    SL_DYNAMIC(float, room);
    sl_fast_wait();
    sl_fast_let_next();
    sl_route_row(&a, blockIdx.x, room);
}

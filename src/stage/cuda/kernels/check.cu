/* The kernel that a context tries out when it opens: does this GPU run what is in the program, and
 * see the host's lists? */
#include "stage/cuda/kernels/args_check.h"
#include "stage/cuda/kernels/device.h"

SL_KERNEL(sl_k_check, sl_k_check_args) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) a.y[i] = sl_check_value(a.x[i], a.add);
}

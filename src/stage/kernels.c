/* Which kernels devices compute with. */
#include "stage/stage_int.h"

sl_status sl_stage_kernels(const char *isa, const sl_kernels **out, sl_err *err) {
    *out = sl_kernels_select(isa);
    return *out ? SL_OK : sl_fail(err, SL_ERR_UNSUPPORTED, "kernels '%s' cannot run here", isa);
}

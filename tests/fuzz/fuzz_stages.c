/* The input of `sluice simulate --stages`: parsed, checked, and run when it is small. */
#include "format/stage_run_file.h"
#include "sim/stages.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_stage_run r;
    sl_stage_result out;
    sl_err err;
    if (sl_stage_run_parse("stages", (sl_span){data, size}, &r, &err) != SL_OK) return 0;
    if (sl_stage_run_check(&r, &err) != SL_OK) return 0;
    if ((uint64_t)r.layers * r.iterations * r.lanes * r.chunks > 2000) return 0;
    if (sl_stage_run_makespan(&r, &out, &err) != SL_OK) abort();
    return 0;
}

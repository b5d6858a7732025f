/* Kept times of kernels, and the words that name a mix: any bytes. */
#include "kernel/choice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sl_kernel_times t;
    uint8_t from[SL_SLOTS];
    char spec[SL_KERNELS_SPEC_MAX];
    if (sl_kernel_times_read((sl_span){data, size}, "key", &t)) {
        sl_kernels_pick(&t, from);
        sl_kernels_spec(from, spec);
        sl_kernels_select(spec);
    }
    if (size >= sizeof spec) return 0;
    memcpy(spec, data, size);
    spec[size] = 0;
    sl_kernels_select(spec);
    return 0;
}

/* Any bytes as a shape: compiled, with masks that say what bytes say, or refused with a message. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const sl_vocab *v = fuzz_vocab();
    sl_grammar *g = NULL;
    sl_err err = {0};
    if (size > 4096) return 0;
    const sl_status st = sl_grammar_of_shape(v, (sl_span){data, size}, &g, &err);
    fuzz_made(st, g, v, &err, 24);
    return 0;
}

/* Any bytes as a safetensors file: the header parses or is refused, and what parses is consistent.
 */
#include "format/safetensors.h"

#include "mutate.h"

#include <string.h>

const size_t fuzz_prefix = 8;

/* The header ends with its last brace. */
size_t fuzz_repair(uint8_t *data, size_t size) {
    size_t end = size;
    while (end > 8 && data[end - 1] != '}') end--;
    if (end <= 8) return size;
    uint64_t bytes = end - 8;
    memcpy(data, &bytes, sizeof bytes);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_st_header h = {0};
    sl_err err = {0};
    if (sl_st_header_parse("fuzz", (sl_span){data, size}, size, &h, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
        return 0;
    }
    uint64_t at = h.n_tensors > 0 ? h.tensor[0].begin : size;
    for (size_t i = 0; i < h.n_tensors; i++) {
        const sl_st_tensor *t = &h.tensor[i];
        SL_ASSERT(t->begin == at && t->end >= t->begin && t->n_dims <= SL_ST_MAX_DIMS);
        at = t->end;
    }
    SL_ASSERT(at == size);
    sl_st_header_free(&h);
    return 0;
}

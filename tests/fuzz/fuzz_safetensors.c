/* Any bytes as a safetensors file: the header parses or is refused, and what parses is consistent.
 */
#include "format/safetensors.h"

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

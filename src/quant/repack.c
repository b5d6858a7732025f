/* Blocks of rare types to Q8_0, without a loss. */
#include "quant/repack.h"

#include "base/status.h"

#include <string.h>

#define VALUES 32u /* of a block */

/* Whole numbers that codes of IQ4_NL stand for. */
static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

static size_t block_bytes(sl_repack r) {
    return r == SL_REPACK_Q5_0 ? 22 : 18;
}

size_t sl_repack_bytes(sl_repack r, size_t n) {
    return n / VALUES * block_bytes(r);
}

static void unpack_q5_0(const uint8_t *b, uint8_t *out) {
    const uint8_t *high = b + 2, *codes = b + 6;
    for (uint32_t i = 0; i < VALUES; i++) {
        uint32_t low = codes[i % 16] >> (i / 16 * 4) & 15, bit = high[i / 8] >> i % 8 & 1;
        out[i] = (uint8_t)((low | bit << 4) - 16);
    }
}

static void unpack_iq4_nl(const uint8_t *b, uint8_t *out) {
    const uint8_t *codes = b + 2;
    for (uint32_t i = 0; i < VALUES; i++)
        out[i] = (uint8_t)table[codes[i % 16] >> (i / 16 * 4) & 15];
}

void sl_repack_q8_0(sl_repack r, const uint8_t *src, size_t n, uint8_t *dst) {
    SL_ASSERT(r != SL_REPACK_NONE && n % VALUES == 0);
    for (size_t i = 0; i < n; i += VALUES, src += block_bytes(r), dst += 2 + VALUES) {
        memcpy(dst, src, 2);
        if (r == SL_REPACK_Q5_0)
            unpack_q5_0(src, dst + 2);
        else
            unpack_iq4_nl(src, dst + 2);
    }
}

/* The integers that a block of weights holds. Thread: any. */
#ifndef SL_QUANT_CODES_H
#define SL_QUANT_CODES_H

#include "quant/block.h"

/* All codes of one block, in the order of k: signed, those of types with a minimum (Q4_K, Q5_K)
 * unsigned, those of MXFP4 doubled. */
static inline void sl_block_codes(sl_dtype t, const uint8_t *b, int8_t code[SL_BLOCK_MAX]) {
    if (t == SL_Q8_0) memcpy(code, b + 2, 32);
    for (uint32_t i = 0; t == SL_Q4_0 && i < 16; i++) {
        code[i] = (int8_t)((b[2 + i] & 15) - 8);
        code[16 + i] = (int8_t)((b[2 + i] >> 4) - 8);
    }
    for (uint32_t i = 0; t == SL_MXFP4 && i < 16; i++) {
        static const int8_t of[16] = SL_MXFP4_CODES;
        code[i] = of[b[1 + i] & 15];
        code[16 + i] = of[b[1 + i] >> 4];
    }
    for (uint32_t i = 0; (t == SL_Q4_K || t == SL_Q5_K) && i < 256; i++) {
        uint32_t s = i / 32, j = i % 32;
        uint32_t low = b[(t == SL_Q4_K ? 16 : 48) + s / 2 * 32 + j] >> (s & 1 ? 4 : 0) & 15;
        code[i] = (int8_t)(low | (t == SL_Q5_K ? (b[16 + j] >> s & 1u) << 4 : 0));
    }
    for (uint32_t i = 0; t == SL_Q6_K && i < 256; i++) {
        uint32_t s = i / 16, j = i % 16;
        uint32_t low = b[s / 8 * 64 + s % 4 * 16 + j] >> (s % 8 < 4 ? 0 : 4) & 15;
        uint32_t high = b[128 + s / 8 * 32 + s % 2 * 16 + j] >> s / 2 % 4 * 2 & 3;
        code[i] = (int8_t)((int32_t)(low | high << 4) - 32);
    }
}

#endif

/* Rounded rows to words and back. */
#include "quant/act_words.h"

#include <string.h>

/* A block of codes, its size known where it is copied: calls for 32 bytes take longer than they. */
static void copy_codes(void *to, const void *from, uint32_t block) {
    if (block == 32)
        memcpy(to, from, 32);
    else
        memcpy(to, from, block);
}

void sl_act_to_words(sl_act_kind kind, const uint8_t *row, uint32_t k, float *words) {
    const uint32_t block = sl_act_block(kind);
    if (kind == SL_ACT_BF16) {
        memcpy(words, row, k * sizeof(uint16_t));
        return;
    }
    const float *scale = sl_act_scales(row, k);
    for (uint32_t b = 0; b < k / block; b++, words += block / 4 + 1) {
        copy_codes(words, row + (size_t)b * block, block);
        memcpy(words + block / 4, scale + b, sizeof *scale);
    }
}

/* Of n codes, a multiple of 8 and at most 256: eight at a time, as numbers from 0 on, whose sums in
 * 16 bits do not meet. */
static int16_t sum_of(const uint8_t *code, uint32_t n) {
    const uint64_t low = 0x00ff00ff00ff00ffu;
    uint64_t sums = 0;
    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t eight;
        memcpy(&eight, code + i, sizeof eight);
        eight ^= 0x8080808080808080u;
        sums += (eight & low) + (eight >> 8 & low);
    }
    sums = (sums & 0x0000ffff0000ffffu) + (sums >> 16 & 0x0000ffff0000ffffu);
    return (int16_t)((int)((sums + (sums >> 32)) & 0xffffffffu) - 128 * (int)n);
}

void sl_act_from_words(sl_act_kind kind, const float *words, uint32_t k, uint8_t *row) {
    const uint32_t block = sl_act_block(kind), of = sl_act_sum_of(kind);
    if (kind == SL_ACT_BF16) {
        memcpy(row, words, k * sizeof(uint16_t));
        return;
    }
    int16_t *sum = (int16_t *)sl_act_sums(kind, row, k);
    float *scale = (float *)sl_act_scales(row, k);
    for (uint32_t b = 0; b < k / block; b++, words += block / 4 + 1, row += block) {
        copy_codes(row, words, block);
        memcpy(scale + b, words + block / 4, sizeof *scale);
        for (uint32_t i = 0; i < block; i += of) *sum++ = sum_of(row + i, of);
    }
}

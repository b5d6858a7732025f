/* Rounded rows to words and back. */
#include "quant/act_words.h"

#include <string.h>

void sl_act_to_words(sl_act_kind kind, const uint8_t *row, uint32_t k, float *words) {
    const uint32_t block = sl_act_block(kind);
    if (kind == SL_ACT_BF16) {
        memcpy(words, row, k * sizeof(uint16_t));
        return;
    }
    const float *scale = sl_act_scales(row, k);
    for (uint32_t b = 0; b < k / block; b++, words += block / 4 + 1) {
        memcpy(words, row + (size_t)b * block, block);
        memcpy(words + block / 4, scale + b, sizeof *scale);
    }
}

/* Of n codes from row on. */
static int16_t sum_of(const int8_t *code, uint32_t n) {
    int sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += code[i];
    return (int16_t)sum;
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
        memcpy(row, words, block);
        memcpy(scale + b, words + block / 4, sizeof *scale);
        for (uint32_t i = 0; i < block; i += of) *sum++ = sum_of((const int8_t *)row + i, of);
    }
}

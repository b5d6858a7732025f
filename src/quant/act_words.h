/* Rounded rows (quant/act.h) as ranks pass them to each other: block after block, so that some
 * columns of a row are one piece, in whole words of 4 bytes, which is what collectives move.
 *
 * In 8 bits a block is its codes, then its scale; sums of codes are made again where it arrives. In
 * BF16 a word is two values. Thread: any. */
#ifndef SL_QUANT_ACT_WORDS_H
#define SL_QUANT_ACT_WORDS_H

#include "quant/act.h"

/* Values that are whole words together: part of a row begins and ends with these. */
static inline uint32_t sl_act_unit(sl_act_kind kind) {
    return kind == SL_ACT_BF16 ? 2 : sl_act_block(kind);
}

/* Words of k values, whole units. */
static inline uint32_t sl_act_words(sl_act_kind kind, uint32_t k) {
    const uint32_t block = sl_act_unit(kind);
    return k / block * (kind == SL_ACT_BF16 ? 1 : block / 4 + 1);
}

/* A row of k values, to sl_act_words. Words are moved, not read as numbers. */
void sl_act_to_words(sl_act_kind kind, const uint8_t *row, uint32_t k, float *words);
/* And back, to sl_act_row_bytes: the row as it was, but for what lies behind its end. */
void sl_act_from_words(sl_act_kind kind, const float *words, uint32_t k, uint8_t *row);

#endif

/* Weights in strips: matrices of blocks of GGUF whose rows lie as products of integers take them.
 *
 * A strip is sixteen rows. Words of four bytes that have the same place in each of the rows lie
 * side by side, in the order of rows: a line of 64 bytes. So a vector is loaded that has the same
 * four codes of sixteen columns, and a product reads one stream of memory instead of sixteen.
 *
 * Blocks follow each other in the order of k. One of Q4_K or Q5_K is whole words: its lines, in
 * their order. Of the others (Q8_0, Q4_0, Q6_K) two bytes are left, the scale d, and blocks go in
 * pairs: a line whose word of a row is d of the first block and d of the second, then the lines of
 * the first, then those of the second. The last of an odd number has half a line of d before its
 * lines. A strip has the bytes of its rows, and nothing is rounded: the values are the same.
 * Thread: any. */
#ifndef SL_QUANT_STRIPS_H
#define SL_QUANT_STRIPS_H

#include "spec/model.h"

#define SL_STRIP_ROWS 16u

/* Whether matrices of that type may lie in strips. */
static inline bool sl_strips_have(sl_dtype t) {
    return t == SL_Q8_0 || t == SL_Q4_0 || t == SL_Q4_K || t == SL_Q5_K || t == SL_Q6_K;
}

/* Whether d is apart from the words, and blocks are in pairs. */
static inline bool sl_strips_pair(sl_dtype t) {
    return sl_dtype_block_bytes(t) % 4 != 0;
}

/* Values of a row that lie together: strips may be cut behind each so many. */
static inline uint32_t sl_strips_unit(sl_dtype t) {
    return sl_dtype_block(t) << (sl_strips_pair(t) ? 1 : 0);
}

/* Whether n rows of k values may lie in strips. */
static inline bool sl_strips_fit(sl_dtype t, uint64_t n, uint64_t k) {
    return sl_strips_have(t) && n > 0 && k > 0 && n % SL_STRIP_ROWS == 0 &&
           k % sl_dtype_block(t) == 0;
}

/* Block b of a row, of row `row` of a strip with k values: the bytes that it has in a file. */
void sl_strips_block(sl_dtype t, const uint8_t *strip, uint32_t k, uint32_t row, uint32_t b,
                     uint8_t *block);
/* Sixteen rows, one behind the other, to a strip. */
void sl_strips_put(sl_dtype t, const uint8_t *rows, uint32_t k, uint8_t *strip);

#endif

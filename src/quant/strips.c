/* Where blocks lie in a strip. */
#include "quant/strips.h"

#include <string.h>

#define WORD 4u
#define LINE (WORD * SL_STRIP_ROWS)
#define D    2u /* bytes of a scale */

/* Where a block's lines begin, and the scale of the strip's first row if it is apart. */
typedef struct block_place {
    size_t lines, d;
    uint32_t d_step;     /* bytes from a row's scale to the next row's */
    uint32_t d_at, word; /* in the block as a file has it: of the scale, of the first word */
} block_place;

static block_place place_of(sl_dtype t, uint32_t k, uint32_t b) {
    const uint32_t bytes = sl_dtype_block_bytes(t), all = k / sl_dtype_block(t);
    const size_t first = (size_t)(b & ~1u) * bytes * SL_STRIP_ROWS;
    if (!sl_strips_pair(t)) return (block_place){.lines = (size_t)b * bytes * SL_STRIP_ROWS};
    block_place p = {
        .d = first, .d_at = t == SL_Q6_K ? bytes - D : 0, .word = t == SL_Q6_K ? 0 : D};
    const bool alone = (b & ~1u) + 1 == all;
    p.d_step = alone ? D : WORD;
    p.d += alone ? 0 : (b & 1) * D;
    p.lines = first + p.d_step * SL_STRIP_ROWS + (b & 1) * (size_t)(bytes - D) * SL_STRIP_ROWS;
    return p;
}

static uint32_t words_of(sl_dtype t) {
    return sl_dtype_block_bytes(t) / WORD;
}

void sl_strips_block(sl_dtype t, const uint8_t *strip, uint32_t k, uint32_t row, uint32_t b,
                     uint8_t *block) {
    const block_place p = place_of(t, k, b);
    for (uint32_t i = 0; i < words_of(t); i++)
        memcpy(block + p.word + i * WORD, strip + p.lines + i * LINE + row * WORD, WORD);
    if (p.d_step) memcpy(block + p.d_at, strip + p.d + row * p.d_step, D);
}

void sl_strips_put(sl_dtype t, const uint8_t *rows, uint32_t k, uint8_t *strip) {
    const size_t bytes = sl_dtype_block_bytes(t), stride = sl_dtype_row_bytes(t, k);
    for (uint32_t b = 0; b < k / sl_dtype_block(t); b++) {
        const block_place p = place_of(t, k, b);
        for (uint32_t row = 0; row < SL_STRIP_ROWS; row++) {
            const uint8_t *block = rows + row * stride + b * bytes;
            for (uint32_t i = 0; i < words_of(t); i++)
                memcpy(strip + p.lines + i * LINE + row * WORD, block + p.word + i * WORD, WORD);
            if (p.d_step) memcpy(strip + p.d + row * p.d_step, block + p.d_at, D);
        }
    }
}

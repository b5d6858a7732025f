/* Rows of activations between f32 and the formats they travel in: whoever computes rounds, the
 * fabric moves bytes. docs/numbers.md defines the bits. Thread: any. */
#ifndef SL_QUANT_WIRE_ROWS_H
#define SL_QUANT_WIRE_ROWS_H

#include "base/status.h"

typedef enum sl_wire_format {
    SL_WIRE_F32,
    SL_WIRE_BF16,
    SL_WIRE_FP8, /* e4m3, each row with a power of two as its scale */
    SL_WIRE_FORMAT_COUNT
} sl_wire_format;

#define SL_WIRE_FP8_HEAD 4u /* bytes of a row of fp8 before its codes: its scale, f32 */

const char *sl_wire_format_name(sl_wire_format f);

/* Of one row of d_model values. A row of fp8 is its f32 scale, d_model codes, and zeros to a
 * multiple of 4. */
size_t sl_wire_row_bytes(sl_wire_format f, uint32_t d_model);

/* Rows between f32 [rows][d_model] and the wire format [rows] of sl_wire_row_bytes. Rounds to
 * nearest even (docs/numbers.md); NaN stays NaN, infinity becomes NaN in fp8. Unpack is exact, and
 * packing what was unpacked changes no value. */
void sl_wire_pack(sl_wire_format f, const float *src, size_t rows, uint32_t d_model, void *dst);
void sl_wire_unpack(sl_wire_format f, const void *src, size_t rows, uint32_t d_model, float *dst);
/* Some columns of a row, for whoever has no others. As a row of n values they are what the whole
 * row would have there: fp8's scale is that of the largest `top` of all columns (sl_wire_top; else
 * not used). sl_wire_unpack gets them back. */
uint32_t sl_wire_top(const float *src, uint32_t n); /* bits of the largest finite magnitude */
void sl_wire_pack_columns(sl_wire_format f, const float *src, uint32_t n, uint32_t top, void *dst);
/* Columns first to first + n - 1 of a whole row. */
void sl_wire_unpack_columns(sl_wire_format f, const void *row, uint32_t first, uint32_t n,
                            float *dst);
/* Refuses (SL_ERR_PROTOCOL) a scale that is not a positive power of two of f32's normal range. */
sl_status sl_wire_rows_check(sl_wire_format f, const uint8_t *data, size_t rows, uint32_t d_model,
                             sl_err *err) SL_MUST_CHECK;

#endif

/* Parts of rows of KV pages between f32 and what they are kept as (spec/kv_type.h).
 * docs/numbers.md defines the bits. Thread: any. */
#ifndef SL_QUANT_KV_ROWS_H
#define SL_QUANT_KV_ROWS_H

#include "spec/kv_type.h"

/* n values that are rounded together, to sl_kv_part_bytes at dst, of any alignment. A value that is
 * not finite stays so, and of Q8_0 makes its block NaN: whoever attends to it is told. */
void sl_kv_round(sl_kv_type t, const float *x, uint32_t n, void *dst);
/* A row of dim values, the first `part` of which are a part and what is left another, to
 * sl_kv_row_of at dst. */
void sl_kv_round_row(sl_kv_type t, const float *x, uint32_t part, uint32_t dim, void *dst);
/* The n values of such a part, each exactly what it is kept as. */
void sl_kv_widen(sl_kv_type t, const void *src, uint32_t n, float *dst);

#endif

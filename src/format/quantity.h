/* Numbers with units, as people write them in files and options: "96GB", "400Gbit/s", "150ms",
 * "148TFLOPS". A number of bytes, of bytes a second and so on needs its unit. Thread: any. */
#ifndef SL_FORMAT_QUANTITY_H
#define SL_FORMAT_QUANTITY_H

#include "base/status.h"

typedef enum sl_unit {
    SL_UNIT_NONE,        /* a plain number */
    SL_UNIT_BYTES,       /* B, KB (1000), KiB (1024) to TB, TiB */
    SL_UNIT_BYTES_PER_S, /* KB/s to TB/s, Mbit/s to Tbit/s */
    SL_UNIT_FLOPS,       /* GFLOPS, TFLOPS, PFLOPS (and GOPS, TOPS) */
    SL_UNIT_US,          /* ns, us, ms, s; the value is in microseconds */
} sl_unit;

/* Finite, in base units. SL_ERR_FORMAT says what is expected. */
sl_status sl_quantity_parse(const char *text, sl_unit unit, double *out, sl_err *err) SL_MUST_CHECK;

#define SL_QUANTITY_MAX_BYTES (1ull << 53) /* whole numbers that any reader of JSON keeps */

/* A size, as above or a plain number of bytes: 1 to SL_QUANTITY_MAX_BYTES. SL_ERR_FORMAT,
 * SL_ERR_ARG.
 */
sl_status sl_quantity_bytes(const char *text, uint64_t *out, sl_err *err) SL_MUST_CHECK;

#endif

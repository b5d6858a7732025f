/* Numbers with units: 80GB, 2.5ms, 100Gb/s. */
#include "format/quantity.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct sl_suffix {
    sl_unit unit;
    const char *text;
    double factor;
} sl_suffix;

static const sl_suffix suffixes[] = {
    {SL_UNIT_NONE, "", 1},
    {SL_UNIT_BYTES, "B", 1},
    {SL_UNIT_BYTES, "KB", 1e3},
    {SL_UNIT_BYTES, "MB", 1e6},
    {SL_UNIT_BYTES, "GB", 1e9},
    {SL_UNIT_BYTES, "TB", 1e12},
    {SL_UNIT_BYTES, "KiB", 1024.0},
    {SL_UNIT_BYTES, "MiB", 1048576.0},
    {SL_UNIT_BYTES, "GiB", 1073741824.0},
    {SL_UNIT_BYTES, "TiB", 1099511627776.0},
    {SL_UNIT_BYTES_PER_S, "B/s", 1},
    {SL_UNIT_BYTES_PER_S, "KB/s", 1e3},
    {SL_UNIT_BYTES_PER_S, "MB/s", 1e6},
    {SL_UNIT_BYTES_PER_S, "GB/s", 1e9},
    {SL_UNIT_BYTES_PER_S, "TB/s", 1e12},
    {SL_UNIT_BYTES_PER_S, "Mbit/s", 1e6 / 8},
    {SL_UNIT_BYTES_PER_S, "Gbit/s", 1e9 / 8},
    {SL_UNIT_BYTES_PER_S, "Tbit/s", 1e12 / 8},
    {SL_UNIT_FLOPS, "GFLOPS", 1e9},
    {SL_UNIT_FLOPS, "TFLOPS", 1e12},
    {SL_UNIT_FLOPS, "PFLOPS", 1e15},
    {SL_UNIT_FLOPS, "GOPS", 1e9},
    {SL_UNIT_FLOPS, "TOPS", 1e12},
    {SL_UNIT_US, "ns", 1e-3},
    {SL_UNIT_US, "us", 1},
    {SL_UNIT_US, "ms", 1e3},
    {SL_UNIT_US, "s", 1e6},
};

static const char *expected(sl_unit unit) {
    switch (unit) {
    case SL_UNIT_BYTES:
        return "a size such as 96GB or 512MiB";
    case SL_UNIT_BYTES_PER_S:
        return "a rate such as 25GB/s or 400Gbit/s";
    case SL_UNIT_FLOPS:
        return "a rate such as 148TFLOPS";
    case SL_UNIT_US:
        return "a time such as 15us, 150ms or 2s";
    case SL_UNIT_NONE:
        break;
    }
    return "a number";
}

/* Decimal only: strtod alone would take hexadecimal, "inf" and "nan" too. */
static bool is_decimal(const char *text, const char *end) {
    for (const char *p = text; p < end; p++)
        if (!strchr("0123456789.eE+-", *p)) return false;
    return end > text;
}

sl_status sl_quantity_parse(const char *text, sl_unit unit, double *out, sl_err *err) {
    char *end = NULL;
    double v = strtod(text, &end);
    if (is_decimal(text, end) && isfinite(v)) {
        while (*end == ' ') end++;
        for (size_t i = 0; i < SL_LEN(suffixes); i++) {
            if (suffixes[i].unit != unit || strcmp(suffixes[i].text, end) != 0) continue;
            *out = v * suffixes[i].factor;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_FORMAT, "\"%.40s\" is not %s", text, expected(unit));
}

sl_status sl_quantity_bytes(const char *text, uint64_t *out, sl_err *err) {
    double bytes;
    const bool plain = text[strspn(text, "0123456789")] == '\0';
    sl_status st = sl_quantity_parse(text, plain ? SL_UNIT_NONE : SL_UNIT_BYTES, &bytes, err);
    if (st == SL_OK && !(bytes >= 1 && bytes <= (double)SL_QUANTITY_MAX_BYTES))
        st = sl_fail(err, SL_ERR_ARG, "'%.40s' is not between 1 and 2^53 bytes", text);
    if (st == SL_OK) *out = (uint64_t)bytes;
    return st;
}

/* What readers of a GGUF file's metadata share: keys begin with the architecture's name. */
#include "format/gguf_config_int.h"

#include <stdio.h>
#include <string.h>

const char *sl_gguf_key(sl_gguf_reading *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch->name, name);
    return r->key;
}

sl_status sl_gguf_read_u32(sl_gguf_reading *r, const char *name, sl_gguf_need need, uint32_t min,
                           uint32_t max, uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_gguf_u64(r->g, sl_gguf_key(r, name), need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

sl_status sl_gguf_read_f64(sl_gguf_reading *r, const char *name, sl_gguf_need need, double min,
                           double max, double *out, sl_err *err) {
    return sl_gguf_f64(r->g, sl_gguf_key(r, name), need, min, max, out, err);
}

sl_status sl_gguf_expect(sl_gguf_reading *r, const char *name, uint32_t want, sl_err *err) {
    uint32_t v = want;
    sl_status st = sl_gguf_read_u32(r, name, SL_GGUF_OPTIONAL, 0, UINT32_MAX, &v, err);
    if (st == SL_OK && v != want)
        st = sl_gguf_fail(r->g, sl_gguf_key(r, name), err, SL_ERR_UNSUPPORTED,
                          "%u is not supported here, only %u", v, want);
    return st;
}

/* What readers of config.json share. */
#include "format/hf_config_int.h"

sl_status sl_hf_u32(sl_json root, const char *key, sl_json_need need, uint32_t min, uint32_t max,
                    uint32_t *out, sl_err *err) {
    uint64_t v = *out;
    sl_status st = sl_json_u64(root, key, need, min, max, &v, err);
    *out = (uint32_t)v;
    return st;
}

sl_status sl_hf_expect_u32(sl_json root, const char *key, uint32_t want, const char *why,
                           sl_err *err) {
    uint32_t v = want;
    sl_status st = sl_hf_u32(root, key, SL_JSON_OPTIONAL, 0, UINT32_MAX, &v, err);
    if (st == SL_OK && v != want)
        st = sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "%u is not %s (%u)", v, why, want);
    return st;
}

/* Values of GGUF metadata: typed access with ranges. */
#include "format/gguf.h"

#include <math.h>

const sl_gguf_kv *sl_gguf_find(const sl_gguf *g, const char *key) {
    size_t low = 0, high = sl_gguf_keys(g), len = strlen(key);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const sl_gguf_kv *kv = sl_gguf_key_at(g, mid);
        int order = memcmp(kv->key.data, key, SL_MIN(kv->key.len, len));
        if (order == 0) order = kv->key.len < len ? -1 : kv->key.len > len;
        if (order == 0) return kv;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static const char *type_name(const sl_gguf_kv *kv) {
    static const char *const names[] = {
#define SL_GGUF_NAME(name, bytes) #name,
        SL_GGUF_TYPE_LIST(SL_GGUF_NAME)
#undef SL_GGUF_NAME
    };
    return kv->array ? "an array" : names[kv->type];
}

static sl_status look_up(const sl_gguf *g, const char *key, sl_gguf_need need,
                         const sl_gguf_kv **out, sl_err *err) {
    *out = sl_gguf_find(g, key);
    if (!*out && need == SL_GGUF_REQUIRED)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "missing");
    return SL_OK;
}

/* A whole number as sign and magnitude. */
static bool integer_of(const sl_gguf_kv *kv, uint64_t *magnitude, bool *negative) {
    sl_cur c = sl_cur_of(kv->value);
    int64_t v = 0;
    *negative = false;
    if (kv->array) return false;
    switch (kv->type) {
    case SL_GGUF_U8:
    case SL_GGUF_U16:
    case SL_GGUF_U32:
    case SL_GGUF_U64:
        *magnitude = sl_cur_uint(&c, kv->value.len);
        return true;
    case SL_GGUF_I8:
        v = (int8_t)sl_cur_u8(&c);
        break;
    case SL_GGUF_I16:
        v = (int16_t)sl_cur_u16(&c);
        break;
    case SL_GGUF_I32:
        v = (int32_t)sl_cur_u32(&c);
        break;
    case SL_GGUF_I64:
        v = (int64_t)sl_cur_u64(&c);
        break;
    default:
        return false;
    }
    *negative = v < 0;
    *magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    return true;
}

sl_status sl_gguf_u64(const sl_gguf *g, const char *key, sl_gguf_need need, uint64_t min,
                      uint64_t max, uint64_t *out, sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    uint64_t v = 0;
    bool negative = false;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (!integer_of(kv, &v, &negative))
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is %s, not an integer", type_name(kv));
    if (negative || v < min || v > max)
        return sl_gguf_fail(g, key, err, SL_ERR_LIMIT, "%s%llu, limit %llu to %llu",
                            negative ? "-" : "", (unsigned long long)v, (unsigned long long)min,
                            (unsigned long long)max);
    *out = v;
    return SL_OK;
}

double sl_gguf_number_at(const sl_gguf_kv *kv, uint64_t i) {
    sl_cur c = sl_cur_of(kv->value);
    size_t bytes = kv->count ? kv->value.len / (size_t)kv->count : 0;
    const uint8_t *p = i < kv->count ? sl_cur_take(&c, (size_t)i * bytes) : NULL;
    sl_gguf_kv one = {.type = kv->type, .count = 1};
    uint64_t magnitude = 0;
    bool negative = false;
    if (!p || sl_cur_left(&c) < bytes) return 0;
    one.value = (sl_span){p + i * bytes, bytes};
    sl_cur v = sl_cur_of(one.value);
    if (kv->type == SL_GGUF_F32) return (double)sl_cur_f32(&v);
    if (kv->type == SL_GGUF_BOOL) return sl_cur_u8(&v);
    if (kv->type == SL_GGUF_F64) {
        double d;
        memcpy(&d, one.value.data, sizeof d);
        return d;
    }
    if (!integer_of(&one, &magnitude, &negative)) return 0;
    return negative ? -(double)magnitude : (double)magnitude;
}

sl_status sl_gguf_f64(const sl_gguf *g, const char *key, sl_gguf_need need, double min, double max,
                      double *out, sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (kv->array || (kv->type != SL_GGUF_F32 && kv->type != SL_GGUF_F64))
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is %s, not F32 or F64", type_name(kv));
    double v = sl_gguf_number_at(kv, 0);
    if (!(v >= min && v <= max))
        return sl_gguf_fail(g, key, err, SL_ERR_LIMIT, "%g, limit %g to %g", v, min, max);
    *out = v;
    return SL_OK;
}

sl_status sl_gguf_bool(const sl_gguf *g, const char *key, sl_gguf_need need, bool *out,
                       sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (kv->array || kv->type != SL_GGUF_BOOL)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is %s, not BOOL", type_name(kv));
    *out = kv->value.data[0] != 0;
    return SL_OK;
}

sl_status sl_gguf_string(const sl_gguf *g, const char *key, sl_gguf_need need, sl_span *out,
                         sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (kv->array || kv->type != SL_GGUF_STRING)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is %s, not STRING", type_name(kv));
    *out = kv->value;
    return SL_OK;
}

sl_status sl_gguf_strings(const sl_gguf *g, const char *key, sl_gguf_need need,
                          const sl_gguf_kv **out, sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (!kv->array || kv->type != SL_GGUF_STRING)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is not an array of strings");
    *out = kv;
    return SL_OK;
}

sl_status sl_gguf_numbers(const sl_gguf *g, const char *key, sl_gguf_need need,
                          const sl_gguf_kv **out, sl_err *err) {
    const sl_gguf_kv *kv = NULL;
    sl_status st = look_up(g, key, need, &kv, err);
    if (st != SL_OK || !kv) return st;
    if (!kv->array || kv->type == SL_GGUF_STRING)
        return sl_gguf_fail(g, key, err, SL_ERR_FORMAT, "is not an array of numbers");
    *out = kv;
    return SL_OK;
}

bool sl_gguf_next_string(const sl_gguf_kv *kv, size_t *at, sl_span *out) {
    sl_cur c = sl_cur_of(kv->value);
    if (*at >= kv->value.len || !sl_cur_take(&c, *at)) return false;
    uint64_t n = sl_cur_u64(&c);
    if (n > sl_cur_left(&c)) return false;
    *out = (sl_span){sl_cur_take(&c, (size_t)n), (size_t)n};
    *at = c.pos;
    return c.ok;
}

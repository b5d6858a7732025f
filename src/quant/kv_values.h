/* How values become codes of KV pages (spec/kv_type.h): the steps that docs/numbers.md defines, one
 * text for C and CUDA. Loops over them become vector code. Thread: any. */
#ifndef SL_QUANT_KV_VALUES_H
#define SL_QUANT_KV_VALUES_H

#include "quant/round.h"

#define SL_KV_F16_MAX_BITS 0x477fe000u /* 65504 */

/* As sl_f32_to_f16, but finite values do not become infinite. */
SL_FN uint16_t sl_kv_f16_of(float x) {
    const uint32_t bits = sl_f32_bits(x), u = bits & 0x7fffffffu;
    const int finite = (int32_t)u <= 0x7f7fffff, large = (int32_t)u > (int32_t)SL_KV_F16_MAX_BITS;
    const uint32_t a = finite & large ? SL_KV_F16_MAX_BITS : u;
    const uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    const uint32_t subnormal = sl_f32_bits(sl_f32_of_bits(a) + 0.5f) - 0x3f000000u;
    const uint32_t none = (int32_t)u > 0x7f800000 ? 0x7e00u : 0x7c00u;
    uint32_t code = (int32_t)a < 0x38800000 ? subnormal : normal;
    code = finite ? code : none;
    return (uint16_t)(code | (bits >> 16 & 0x8000u));
}

/* What a block of Q8_0 is rounded with. */
typedef struct sl_kv_q8 {
    uint16_t scale; /* as it is kept, f16 */
    bool counts;    /* else all codes are 0 */
    float inverse;
} sl_kv_q8;

/* most: the bits of the block's largest magnitude, NaN above infinity. */
SL_FN sl_kv_q8 sl_kv_q8_of(uint32_t most) {
    const bool finite = sl_act_is_finite(most);
    const float d = sl_f32_of_bits(most) / 127.0f, inverse = d != 0 ? 1.0f / d : 0;
    sl_kv_q8 q;
    q.scale = sl_kv_f16_of(finite ? d : NAN);
    q.counts = finite && sl_act_is_finite(sl_f32_bits(inverse) & 0x7fffffffu);
    q.inverse = inverse;
    return q;
}

SL_FN uint8_t sl_kv_q8_code(const sl_kv_q8 *q, float x) {
    return q->counts ? (uint8_t)(int8_t)sl_round_even(x * q->inverse) : 0;
}

#endif

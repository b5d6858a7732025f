/* How a block of activations becomes codes of 8 bits and a scale (quant/act.h): the steps that
 * docs/numbers.md defines, one text for C and CUDA. The largest magnitude of a block comes as bits
 * without the sign, which compare as integers; NaN lies above infinity. Thread: any. */
#ifndef SL_QUANT_ROUND_H
#define SL_QUANT_ROUND_H

#include "quant/half.h"

#include <math.h>
#include <stdbool.h>

#define SL_ACT_TINY 0x1p-100f

/* Nearest even for |v| < 2^22. */
SL_FN int32_t sl_round_even(float v) {
    return (int32_t)(sl_f32_bits(v + 0x1.8p23f) - sl_f32_bits(0x1.8p23f));
}

SL_FN bool sl_act_is_finite(uint32_t most) {
    return most < 0x7f800000u;
}

/* The scale of a block. */
SL_FN float sl_act_scale_of(uint32_t most) {
    float a = sl_f32_of_bits(most);
    if (!sl_act_is_finite(most)) return NAN;
    return a < SL_ACT_TINY ? 0 : a / 127.0f;
}

/* What values are multiplied with before they are rounded to codes. */
SL_FN float sl_act_to_code(uint32_t most) {
    float a = sl_f32_of_bits(most);
    return !sl_act_is_finite(most) || a < SL_ACT_TINY ? 0 : 127.0f / a;
}

/* The code of value x. */
SL_FN int8_t sl_act_code(float x, uint32_t most, float to_code) {
    return (int8_t)(sl_act_is_finite(most) ? sl_round_even(x * to_code) : 0);
}

#endif

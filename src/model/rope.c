/* What depends on positions alone: stretched rotations, growing queries. No function of libm
 * decides a bit of queries. */
#include "model/model_int.h"

#include <math.h>

double sl_rope_stretch(const sl_long_waves *w, double freq) {
    const double two_pi = 6.283185307179586, low = (double)w->low, high = (double)w->high;
    double turns = w->original * freq / two_pi;
    if (w->factor <= 0 || turns > high) return freq;
    if (turns < low || high == low) return freq / (double)w->factor;
    double kept = (turns - low) / (high - low);
    return (1 - kept) * freq / (double)w->factor + kept * freq;
}

/* The natural logarithm of x >= 1: the power of two, then the series of atanh, in f64. */
static double logarithm(double x) {
    int e = 0;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double z = (m - 1) / (m + 1), sum = 0;
    for (int i = 23; i >= 1; i -= 2) sum = sum * (z * z) + 1.0 / i;
    return e * 0.69314718055994531 + 2 * z * sum;
}

float sl_query_scale(const sl_model_spec *spec, uint32_t pos) {
    if (spec->query_floor <= 0) return 1;
    double steps = floor((pos + 1.0) / (double)spec->query_floor);
    return (float)(logarithm(steps + 1) * (double)spec->query_growth + 1);
}

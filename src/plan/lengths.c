/* Means and quantiles of drawn lengths. */
#include "plan/lengths.h"

#include <math.h>

static double clamp(double v, double low, double high) {
    return v < low ? low : v > high ? high : v;
}

static double normal_below(double z) {
    return 0.5 * erfc(-z / sqrt(2.0));
}

/* z with normal_below(z) = q, by bisection: 80 halvings of [-9, 9] are exact to a double. */
static double normal_quantile(double q) {
    double low = -9, high = 9;
    for (int i = 0; i < 80; i++) {
        double mid = (low + high) / 2;
        if (normal_below(mid) < q)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}

/* E[clamp(X, a, b)] of lognormal X: the middle part in closed form, the ends pile up at a and b. */
static double lognormal_mean(const sl_length *l) {
    double a = l->low, b = l->high, mu = log(l->median), s = l->sigma;
    if (s <= 0) return clamp(l->median, a, b);
    double za = (log(a) - mu) / s, zb = (log(b) - mu) / s;
    double middle = exp(mu + s * s / 2) * (normal_below(zb - s) - normal_below(za - s));
    return a * normal_below(za) + middle + b * normal_below(-zb);
}

double sl_length_mean(const sl_length *l) {
    double sum = 0;
    switch (l->kind) {
    case SL_LENGTH_FIXED:
        return l->low;
    case SL_LENGTH_UNIFORM:
        return ((double)l->low + l->high) / 2;
    case SL_LENGTH_LOGNORMAL:
        return lognormal_mean(l);
    case SL_LENGTH_TRACE:
        for (size_t i = 0; i < l->n; i++) sum += l->sorted[i];
        return l->n ? sum / (double)l->n : 0;
    }
    return 0;
}

uint32_t sl_length_quantile(const sl_length *l, double q) {
    q = clamp(q, 0, 1);
    double steps;
    switch (l->kind) {
    case SL_LENGTH_FIXED:
        return l->low;
    case SL_LENGTH_UNIFORM:
        steps = ceil(q * ((double)l->high - l->low + 1)) - 1;
        return (uint32_t)clamp(l->low + steps, l->low, l->high);
    case SL_LENGTH_LOGNORMAL:
        return (uint32_t)clamp(round(l->median * exp(l->sigma * normal_quantile(q))), l->low,
                               l->high);
    case SL_LENGTH_TRACE:
        steps = ceil(q * (double)l->n) - 1;
        return l->n ? l->sorted[(size_t)clamp(steps, 0, (double)l->n - 1)] : 0;
    }
    return 0;
}

double sl_workload_mean_context(const sl_workload *w) {
    return sl_length_mean(&w->input) + sl_length_mean(&w->output) / 2;
}

/* The law of micro-batches in turn between two sides. */
#include "plan/pingpong.h"

#include <math.h>

/* What a micro-batch keeps its busiest station occupied with. */
static double busiest(const sl_pingpong *p) {
    double work = fmax(p->attn, p->expert);
    switch (p->links) {
    case SL_PINGPONG_PARALLEL:
        return work;
    case SL_PINGPONG_HALF:
        return fmax(work, 2 * p->link);
    default:
        return fmax(work, p->link);
    }
}

sl_pingpong_times sl_pingpong_law(const sl_pingpong *p) {
    double round = p->attn + p->expert + 2 * p->link, busy = busiest(p);
    double period = fmax(p->lanes * busy, round);
    return (sl_pingpong_times){
        .period = period,
        .token = p->layers * period,
        .cold = round + (p->layers - 1.0) * period + (p->lanes - 1.0) * busy,
        .exact = p->links != SL_PINGPONG_HALF,
    };
}

sl_pingpong_published sl_pingpong_as_published(const sl_pingpong *p) {
    double tf = fmax(p->attn, p->expert), round = p->attn + p->expert + 2 * p->link;
    double m = p->lanes, layers = p->layers;
    return (sl_pingpong_published){
        .eq2 = p->link<tf, .eq3 = m * tf >= 2 * (tf + p->link),
                       .iter_low = round + m * tf *(layers - 1), .iter_high = m * tf * layers,
                       .total = round + tf *(m * layers - 1), .lanes = tf> 0
                   ? (uint32_t)ceil(2 * (1 + fmin(p->link / tf, 1e6)))
                   : 1,
    };
}

/* What giving experts to others takes, as measured. */
#include "sched/rehost.h"

#define PART 4 /* of a difference is learnt at once */

void sl_rehost_learn(sl_rehost *r, uint64_t bytes, uint64_t took_us) {
    double us = (double)took_us;
    if (bytes == 0) {
        r->change_us += (us - r->change_us) / PART;
        return;
    }
    double byte_us = us > r->change_us ? (us - r->change_us) / (double)bytes : 0;
    r->byte_us = r->mapped ? r->byte_us + (byte_us - r->byte_us) / PART : byte_us;
    r->mapped = true;
}

uint64_t sl_rehost_us(const sl_rehost *r, uint64_t bytes) {
    double us = r->change_us + r->byte_us * (double)bytes;
    return us < (double)(SL_REHOST_NEVER / 4) ? (uint64_t)us : SL_REHOST_NEVER / 4;
}

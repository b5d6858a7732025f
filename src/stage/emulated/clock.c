/* Times of the emulated device's stages. */
#include "stage/emulated/emulated.h"

#include "base/clock.h"
#include "base/mem.h"
#include "spec/costs.h"

uint64_t sl_emulated_ns(const sl_device_spec *d, sl_cost_kind kind, uint64_t rows, uint64_t keys) {
    double us = sl_stage_cost_us(&d->cost[kind], (double)rows, (double)keys);
    return (uint64_t)(us * d->time_scale * 1000.0);
}

void sl_emulated_begin(sl_emulated *e) {
    if (!e->counts) e->from_ns = sl_now_ns();
}

void sl_emulated_end(sl_emulated *e) {
    if (e->from_ns) e->late_ns += sl_now_ns() - e->from_ns;
    e->from_ns = 0;
}

void sl_emulated_pass(sl_emulated *e, uint64_t ns) {
    if (e->counts) {
        e->counted_ns += ns;
        e->in_head = false;
        return;
    }
    sl_emulated_end(e);
    /* A wake-up comes late by tens of microseconds; stages in a row are right on average. */
    uint64_t made_up = SL_MIN(e->late_ns, ns);
    uint64_t deadline = sl_now_ns() + ns - made_up;
    e->in_head = false;
    if (ns == 0) return;
    e->late_ns -= made_up;
    e->wait(e->ctx, deadline);
    uint64_t now = sl_now_ns();
    if (now > deadline) e->late_ns = SL_MIN(e->late_ns + now - deadline, ns);
    sl_emulated_begin(e);
}

void sl_emulated_run(sl_emulated *e, sl_cost_kind kind, uint64_t rows, uint64_t keys) {
    bool goes_on = e->in_head && kind == SL_COST_HEAD;
    double ns = e->device->cost[kind].row_us * (double)rows * e->device->time_scale * 1000.0;
    sl_emulated_pass(e, goes_on ? (uint64_t)ns : sl_emulated_ns(e->device, kind, rows, keys));
    e->in_head = kind == SL_COST_HEAD;
}

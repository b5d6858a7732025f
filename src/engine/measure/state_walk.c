/* Requests whose states are measured, and where each of them is. */
#include "engine/measure/state_walk.h"

#include "base/mem.h"
#include "kernel/delta.h"

#include <string.h>

#define MOST_BYTES ((size_t)1 << 30) /* of all states */

/* How many fit into what measuring may take. */
static uint32_t requests_of(const sl_model_spec *m, sl_extent blocks, uint32_t most) {
    const size_t linear = blocks.n - sl_kv_blocks(m, blocks.first, blocks.n);
    const size_t each = sl_delta_bytes(sl_model_delta(m), linear, false);
    if (m->n_linear == 0) return 0;
    return (uint32_t)SL_MAX(SL_MIN(MOST_BYTES / SL_MAX(each, (size_t)1), (size_t)most), (size_t)1);
}

sl_status sl_state_walk_open(const sl_model_spec *m, sl_extent blocks, uint32_t most,
                             sl_state_walk *out, sl_err *err) {
    *out = (sl_state_walk){.n = requests_of(m, blocks, most)};
    if (out->n == 0) return SL_OK;
    out->taken = sl_alloc(2 * (size_t)out->n, sizeof *out->taken);
    out->pos = sl_alloc(3 * (size_t)most, sizeof *out->pos);
    if (!out->taken || !out->pos)
        return sl_fail(err, SL_ERR_NOMEM, "%u rows to measure with", most);
    out->version = out->taken + out->n;
    out->state = out->pos + most;
    out->done = out->state + most;
    return SL_OK;
}

void sl_state_walk_close(sl_state_walk *w) {
    sl_free(w->taken);
    sl_free(w->pos);
    *w = (sl_state_walk){0};
}

/* Rows of a call that are of one request, but for the last. */
static uint32_t each_of(const sl_state_walk *w, uint32_t rows, bool prompt) {
    return prompt ? rows : (rows + w->n - 1) / w->n;
}

void sl_state_walk_place(const sl_state_walk *w, uint32_t rows, bool prompt) {
    const uint32_t each = each_of(w, rows, prompt);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t of = r / each;
        w->done[r] = prompt ? 0 : w->taken[of];
        w->pos[r] = w->done[r] + r % each;
        w->state[r] = 2 * of + w->version[of];
    }
}

void sl_state_walk_pass(sl_state_walk *w, uint32_t rows, bool prompt) {
    const uint32_t each = each_of(w, rows, prompt);
    for (uint32_t at = 0; at < rows; at += each) {
        w->taken[at / each] = (prompt ? 0 : w->taken[at / each]) + SL_MIN(each, rows - at);
        w->version[at / each] ^= 1;
    }
}

/* Memory of machines, and what is asked of it. */
#include "sched/room.h"

#include <stdio.h>

static uint64_t plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool gets(const sl_room_need *n, uint32_t worker) {
    return n->added[worker] > 0 || (n->takes && n->takes[worker]);
}

/* Bytes of experts that the workers on this one's machine get, and what those who get anything say
 * is free there. */
static uint64_t wanted(const sl_room *r, const sl_room_need *n, uint32_t worker, uint64_t *left) {
    uint64_t experts = 0;
    *left = UINT64_MAX;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        if (r->machine[i] != r->machine[worker] || !gets(n, i)) continue;
        experts += n->added[i];
        if (r->free[i] < *left) *left = r->free[i];
    }
    return experts && n->expert_bytes > UINT64_MAX / experts ? UINT64_MAX
                                                             : experts * n->expert_bytes;
}

/* An earlier worker that gets anything is on its machine. */
static bool is_told(const sl_room *r, const sl_room_need *n, uint32_t worker) {
    for (uint32_t i = 0; i < worker; i++)
        if (gets(n, i) && r->machine[i] == r->machine[worker]) return true;
    return false;
}

/* Somebody there may take KV. */
static bool takes(const sl_room *r, const sl_room_need *n, uint32_t worker) {
    for (uint32_t i = 0; n->takes && i < r->n_workers; i++)
        if (n->takes[i] && r->machine[i] == r->machine[worker]) return true;
    return false;
}

bool sl_room_has(const sl_room *r, const sl_room_need *n, sl_room_lack *out) {
    uint64_t for_kv = 0;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        uint64_t left, want;
        if (!gets(n, i) || is_told(r, n, i)) continue;
        want = wanted(r, n, i, &left);
        if (want > left) {
            *out = (sl_room_lack){i, want, left, r->own && r->own[i]};
            return false;
        }
        if (takes(r, n, i)) for_kv = left == UINT64_MAX ? left : plus(for_kv, left - want);
    }
    if (!n->takes || n->kv_bytes <= for_kv) return true;
    *out = (sl_room_lack){.worker = SL_ROOM_NONE, .needs = n->kv_bytes, .has = for_kv};
    return false;
}

void sl_room_say(const sl_room_lack *l, char *out, size_t cap) {
    double needs = 1e-6 * (double)l->needs, has = 1e-6 * (double)l->has;
    if (l->worker == SL_ROOM_NONE)
        snprintf(out, cap,
                 "KV of requests that move needs %.1f MB, the machines of the attention workers "
                 "that stay have %.1f MB left",
                 needs, has);
    else
        snprintf(out, cap,
                 "experts that move need %.1f MB beside those that are there, worker %u's %s has "
                 "%.1f MB left",
                 needs, l->worker, l->own ? "GPU" : "machine", has);
}

/* Buddies of attention workers. */
#include "spec/buddy.h"

#include <string.h>

static size_t machine_len(const char *address) {
    const char *colon = strrchr(address, ':');
    return colon ? (size_t)(colon - address) : strlen(address);
}

static bool share_machine(const sl_plan *p, uint32_t a, uint32_t b) {
    const char *x = p->worker[a].address, *y = p->worker[b].address;
    size_t n = machine_len(x);
    return n == machine_len(y) && memcmp(x, y, n) == 0;
}

static bool is_attention(const sl_plan *p, uint32_t id) {
    return (p->worker[id].roles & SL_ROLE_ATTENTION) && !p->worker[id].prefill &&
           !p->worker[id].pages;
}

uint32_t sl_plan_buddy(const sl_plan *p, uint32_t id) {
    uint32_t near = SL_BUDDY_NONE, n_far = 0, rank = 0, n = p->n_workers;
    if (p->kv_replicas == 0 || !is_attention(p, id)) return SL_BUDDY_NONE;
    for (uint32_t step = 1; step < n; step++) {
        uint32_t other = (id + step) % n;
        if (!is_attention(p, other)) continue;
        bool here = share_machine(p, id, other);
        n_far += !here;
        rank += here && other < id;
        if (here && near == SL_BUDDY_NONE) near = other;
    }
    if (n_far == 0) return near;
    uint32_t skip = rank % n_far;
    for (uint32_t step = 1; step < n; step++) {
        uint32_t other = (id + step) % n;
        if (is_attention(p, other) && !share_machine(p, id, other) && skip-- == 0) return other;
    }
    return SL_BUDDY_NONE;
}

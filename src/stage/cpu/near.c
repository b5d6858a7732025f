/* The node of a thread's cores, and the line about the weights there. */
#include "stage/cpu/near.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MOVE_NS 120000000000ull /* of opening, reading included: what has not moved then stays */

sl_cpu_who sl_cpu_who_is(sl_rank is) {
    sl_cpu_who w = {""};
    if (is.of > 1) snprintf(w.text, sizeof w.text, "rank %u of %u: ", is.index, is.of);
    return w;
}

static bool begin(sl_rank is, const sl_topology *t, sl_numa *out) {
    const int node = sl_topology_node(t);
    if (t->n_memory < 2) {
        sl_log(SL_LOG_INFO, "stage",
               "%s--numa: this machine has one memory node: weights stay where they lie",
               sl_cpu_who_is(is).text);
        return false;
    }
    if (node == SL_NO_NODE) {
        sl_log(SL_LOG_WARN, "stage",
               "%s--numa: its %u CPUs lie in several memory nodes: weights stay where they lie "
               "(fewer --threads, or more ranks, fit in one)",
               sl_cpu_who_is(is).text, t->n);
        return false;
    }
    *out = (sl_numa){.node = node, .until_ns = sl_now_ns() + MOVE_NS};
    return true;
}

bool sl_cpu_near_begin(sl_rank is, const sl_topology *t, sl_numa *out) {
    sl_topology *here = t ? NULL : sl_alloc(1, sizeof *here);
    sl_err err = {0};
    bool begun = false;
    if (!t && (!here || sl_topology_read("/sys", NULL, here, &err) != SL_OK))
        sl_log(SL_LOG_WARN, "stage", "%s--numa: %s: weights stay where they lie",
               sl_cpu_who_is(is).text, here ? err.msg : "no memory for the list of CPUs");
    else
        begun = begin(is, t ? t : here, out);
    sl_free(here);
    return begun;
}

static double mb(uint64_t bytes) {
    return (double)bytes / 1e6;
}

void sl_cpu_near_say(sl_rank is, const sl_numa *n) {
    const sl_numa_told t = sl_numa_tell(n);
    char why[96] = "";
    if (t.left)
        snprintf(why, sizeof why, " (%s)", t.why == ETIME ? "no more time" : strerror(t.why));
    sl_log(
        t.left ? SL_LOG_WARN : SL_LOG_INFO, "stage",
        "%sweights on memory node %d: %.1f MB of %.1f, %.1f of them moved; elsewhere %.1f MB that "
        "others have mapped too, %.1f that do not move%s; %.1f MB not in memory yet",
        sl_cpu_who_is(is).text, n->node, mb(t.there), mb(t.there + t.others + t.left + t.absent),
        mb(t.moved), mb(t.others), mb(t.left), why, mb(t.absent));
}

/* Cores, nodes of memory and caches from /sys, and which cores a worker gets. */
#include "base/topology.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* First line of a small file; false when there is none. */
static bool read_line(const char *root, const char *tail, char *out, size_t size) {
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", root, tail) >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* "0-3,8,10-11" to marks; false for text that is no such list. */
static bool parse_list(const char *text, uint8_t *mark, uint32_t n) {
    memset(mark, 0, n);
    for (const char *at = text; *at && *at != '\n';) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at) return false;
        if (*end == '-') {
            at = end + 1;
            last = strtoul(at, &end, 10);
            if (end == at) return false;
        }
        if (first > last || last >= n) return false;
        for (unsigned long i = first; i <= last; i++) mark[i] = 1;
        at = *end == ',' ? end + 1 : end;
        if (*end && *end != ',' && *end != '\n') return false;
    }
    return true;
}

static void fill_allowed(uint8_t *allowed) {
    cpu_set_t set;
    CPU_ZERO(&set);
    memset(allowed, 0, SL_MAX_CPUS);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (uint32_t i = 0; i < SL_MAX_CPUS; i++) allowed[i] = CPU_ISSET(i, &set) ? 1 : 0;
}

/* Which of the threads of its core a CPU is. */
static uint16_t rank_of(const char *root, uint32_t id) {
    char tail[96], text[512];
    uint8_t mark[SL_MAX_CPUS];
    uint16_t rank = 0;
    snprintf(tail, sizeof tail, "devices/system/cpu/cpu%u/topology/thread_siblings_list", id);
    if (!read_line(root, tail, text, sizeof text) || !parse_list(text, mark, SL_MAX_CPUS)) return 0;
    for (uint32_t i = 0; i < id; i++) rank += mark[i];
    return rank;
}

static int by_place(const void *a, const void *b) {
    const sl_cpu *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Marks of the nodes that a list in the nodes' folder has; false: there is no such list. */
static bool read_node_list(const char *root, const char *name, uint8_t mark[SL_MAX_CPUS]) {
    char text[4096], tail[64];
    snprintf(tail, sizeof tail, "devices/system/node/%s", name);
    return read_line(root, tail, text, sizeof text) && parse_list(text, mark, SL_MAX_CPUS);
}

static uint32_t count_memory(const char *root) {
    uint8_t mark[SL_MAX_CPUS];
    uint32_t n = 0;
    if (!read_node_list(root, "has_memory", mark)) return 1;
    for (uint32_t i = 0; i < SL_MAX_CPUS; i++) n += mark[i];
    return SL_MAX(n, 1u);
}

/* Node of every CPU, numbered without gaps; 0 for those of no node. id: of those nodes. */
static uint32_t read_nodes(const char *root, uint16_t node[SL_MAX_CPUS], uint16_t id[SL_MAX_CPUS]) {
    char text[4096], tail[64];
    uint8_t online[SL_MAX_CPUS], mark[SL_MAX_CPUS];
    uint32_t n = 0;
    memset(node, 0, SL_MAX_CPUS * sizeof *node);
    id[0] = 0;
    if (!read_node_list(root, "online", online)) return 1;
    for (uint32_t i = 0; i < SL_MAX_CPUS; i++) {
        snprintf(tail, sizeof tail, "devices/system/node/node%u/cpulist", i);
        if (!online[i] || !read_line(root, tail, text, sizeof text)) continue;
        if (!parse_list(text, mark, SL_MAX_CPUS) || !memchr(mark, 1, sizeof mark)) continue;
        for (uint32_t c = 0; c < SL_MAX_CPUS; c++)
            if (mark[c]) node[c] = (uint16_t)n;
        id[n++] = (uint16_t)i;
    }
    return n ? n : 1;
}

sl_status sl_topology_read(const char *root, const uint8_t *allowed, sl_topology *out,
                           sl_err *err) {
    uint16_t node[SL_MAX_CPUS];
    uint8_t mine[SL_MAX_CPUS];
    if (!allowed) fill_allowed(mine);
    const uint8_t *use = allowed ? allowed : mine;
    *out = (sl_topology){.n_memory = count_memory(root)};
    out->n_nodes = read_nodes(root, node, out->node_id);
    for (uint32_t i = 0; i < SL_MAX_CPUS; i++)
        if (use[i])
            out->cpu[out->n++] =
                (sl_cpu){.id = (uint16_t)i, .node = node[i], .rank = rank_of(root, i)};
    if (out->n == 0) return sl_fail(err, SL_ERR_NOTFOUND, "no CPU that this process may use");
    qsort(out->cpu, out->n, sizeof out->cpu[0], by_place);
    return SL_OK;
}

int sl_topology_node(const sl_topology *t) {
    for (uint32_t i = 1; i < t->n; i++)
        if (t->cpu[i].node != t->cpu[0].node) return SL_NO_NODE;
    return t->n ? t->node_id[t->cpu[0].node] : SL_NO_NODE;
}

/* A CPU of the node (any node: UINT32_MAX) with the lowest rank that is free; n when none is. */
static uint32_t best_free(const sl_topology *t, const uint8_t *taken, uint32_t node) {
    uint32_t best = t->n;
    for (uint32_t i = 0; i < t->n; i++) {
        if (taken[i] || (node != UINT32_MAX && t->cpu[i].node != node)) continue;
        if (best == t->n || t->cpu[i].rank < t->cpu[best].rank) best = i;
    }
    return best;
}

/* How many CPUs of a node are free: cores alone, or all. */
static uint32_t free_in(const sl_topology *t, const uint8_t *taken, uint32_t node, bool cores) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n += !taken[i] && t->cpu[i].node == node && (!cores || t->cpu[i].rank == 0);
    return n;
}

/* The node with the least room that has enough; cores first, then any hardware threads. */
static uint32_t choose_node(const sl_topology *t, const uint8_t *taken, uint32_t want) {
    for (int cores = 1; cores >= 0; cores--) {
        uint32_t best = UINT32_MAX, least = UINT32_MAX;
        for (uint32_t node = 0; node < t->n_nodes; node++) {
            uint32_t room = free_in(t, taken, node, cores);
            if (room >= want && room < least) best = node, least = room;
        }
        if (best != UINT32_MAX) return best;
    }
    return UINT32_MAX;
}

uint32_t sl_topology_pick(const sl_topology *t, const uint32_t *threads, uint32_t n_workers,
                          uint32_t which, uint16_t cpu[SL_MAX_CPUS]) {
    uint8_t taken[SL_MAX_CPUS] = {0};
    uint32_t n_taken = 0, got = 0;
    for (uint32_t w = 0; w <= which && w < n_workers; w++) {
        uint32_t want = SL_MIN(SL_MAX(threads[w], 1u), t->n);
        if (n_taken == t->n) memset(taken, 0, sizeof taken), n_taken = 0;
        uint32_t node = choose_node(t, taken, want);
        for (got = 0; got < want; got++) {
            if (n_taken == t->n) memset(taken, 0, sizeof taken), n_taken = 0;
            uint32_t at = best_free(t, taken, node);
            if (at == t->n) at = best_free(t, taken, UINT32_MAX);
            taken[at] = 1;
            n_taken++;
            cpu[got] = t->cpu[at].id;
        }
    }
    return got;
}

size_t sl_topology_largest_cache(void) {
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or -1: unknown */
    return bytes > 0 ? (size_t)bytes : 0;
}

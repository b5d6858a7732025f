/* Cores and memory nodes of this machine, and which of them workers should take.
 * Thread: any (a snapshot of what /sys and the affinity mask said). */
#ifndef SL_BASE_TOPOLOGY_H
#define SL_BASE_TOPOLOGY_H

#include "base/status.h"

#include <stddef.h>

#define SL_MAX_CPUS 1024u

typedef struct sl_cpu {
    uint16_t id;   /* as the kernel counts */
    uint16_t node; /* whose memory is near */
    uint16_t rank; /* 0: the first hardware thread of its core, 1: the second, ... */
} sl_cpu;

typedef struct sl_topology {
    sl_cpu cpu[SL_MAX_CPUS]; /* usable ones: by node, then first threads of cores before others */
    uint32_t n, n_nodes;
    uint16_t node_id[SL_MAX_CPUS]; /* of these nodes, as the kernel counts */
    uint32_t n_memory;             /* nodes that have memory, with CPUs or without */
} sl_topology;

#define SL_NO_NODE (-1)

/* Reads `root`/devices/system/{cpu,node}, normally "/sys"; without such files all CPUs are cores of
 * one node. allowed[i] nonzero: CPU i may be used; NULL: those of the caller's affinity mask.
 * SL_ERR_NOTFOUND when no CPU is left. */
sl_status sl_topology_read(const char *root, const uint8_t *allowed, sl_topology *out,
                           sl_err *err) SL_MUST_CHECK;

/* The memory node, as the kernel counts, that all CPUs of t lie in; SL_NO_NODE: they lie in
 * several. */
int sl_topology_node(const sl_topology *t);

/* Bytes of the largest cache, 0: unknown. Where many processors share it, all of it may be this
 * program's. */
size_t sl_topology_largest_cache(void);

/* CPUs of worker `which` of n_workers that run threads[i] threads each: every worker inside one
 * node as long as nodes have room, cores before second hardware threads, no CPU twice before all
 * are taken. Depends on the arguments alone, so workers agree without talking. Writes min(threads,
 * t->n) ids to cpu and returns their number. */
uint32_t sl_topology_pick(const sl_topology *t, const uint32_t *threads, uint32_t n_workers,
                          uint32_t which, uint16_t cpu[SL_MAX_CPUS]);

#endif

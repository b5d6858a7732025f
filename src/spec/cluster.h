/* The machines of a deployment as data sheets have them. Read by src/format/cluster_file.h or from
 * a preset. Thread: immutable after filling. */
#ifndef SL_SPEC_CLUSTER_H
#define SL_SPEC_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#define SL_CLUSTER_NAME       64
#define SL_CLUSTER_MAX_TYPES  32u
#define SL_CLUSTER_MAX_GROUPS 64u
#define SL_CLUSTER_MAX_NODES  1000000u

/* Number format of the multiplications. */
typedef enum sl_compute {
    SL_COMPUTE_F32,
    SL_COMPUTE_BF16,
    SL_COMPUTE_FP8,
    SL_COMPUTE_INT8
} sl_compute;
#define SL_COMPUTE_COUNT 4

typedef struct sl_device_type {
    char name[SL_CLUSTER_NAME];
    double memory_bytes;
    double flops[SL_COMPUTE_COUNT]; /* per second, dense; 0: this device has no such units */
    double bandwidth;               /* of its memory, bytes/s */
    double price_per_hour;          /* in any one currency; 0: not given */
    double flops_efficiency;        /* (0, 1]: what large products reach of `flops` */
    double bandwidth_efficiency;    /* (0, 1]: what streaming reaches of `bandwidth` */
    double launch_us;               /* of every stage */
    bool cpu;                       /* what sluice serve runs on without a GPU */
} sl_device_type;

/* From one device to another: its own share of the port, one direction. */
typedef struct sl_link_tier {
    double bandwidth;  /* bytes/s */
    double latency_us; /* of a message */
    double half_bytes; /* message size that reaches half the bandwidth; 0: all do */
    bool half_duplex;
} sl_link_tier;

/* `count` equal nodes. */
typedef struct sl_node_group {
    uint32_t type; /* index of their device type */
    uint32_t devices_per_node;
    uint32_t count;
    sl_link_tier intra; /* between devices of a node */
    sl_link_tier inter; /* from a device to one of another node; of two groups the slower counts */
} sl_node_group;

typedef struct sl_cluster {
    char name[SL_CLUSTER_NAME];
    uint32_t n_types, n_groups;
    sl_device_type type[SL_CLUSTER_MAX_TYPES];
    sl_node_group group[SL_CLUSTER_MAX_GROUPS];
} sl_cluster;

static inline uint64_t sl_cluster_devices(const sl_cluster *c) {
    uint64_t n = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        n += (uint64_t)c->group[g].devices_per_node * c->group[g].count;
    return n;
}

/* Of all devices together. */
static inline double sl_cluster_price_per_hour(const sl_cluster *c) {
    double sum = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        sum += (double)c->group[g].devices_per_node * c->group[g].count *
               c->type[c->group[g].type].price_per_hour;
    return sum;
}

#endif

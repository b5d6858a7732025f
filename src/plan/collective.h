/* What collective communication costs (MixServe III-B and III-D, corrected: latency of rounds,
 * bytes a rank really sends, distinct destinations instead of top-k copies). Sizes are bytes,
 * times microseconds. The published forms, which divide by the degree twice and know no latency,
 * are beside them.   Pure. Thread: any. */
#ifndef SL_PLAN_COLLECTIVE_H
#define SL_PLAN_COLLECTIVE_H

#include <stdint.h>

typedef enum sl_fabric_kind {
    SL_FABRIC_PORT, /* a switch; a rank's port carries all that it sends */
    SL_FABRIC_MESH, /* a link of its own to every peer */
    SL_FABRIC_RING,
} sl_fabric_kind;

typedef struct sl_fabric {
    sl_fabric_kind kind;
    double alpha_us; /* of a round */
    double byte_us;  /* per byte on a port, a link of the mesh, or a link of the ring */
} sl_fabric;

/* All-gather, or reduce-scatter: `bytes` is the whole tensor, d ranks hold a part each. */
double sl_collective_gather_us(const sl_fabric *f, double bytes, uint32_t d);
/* All-reduce: reduce-scatter, then all-gather. */
double sl_collective_reduce_us(const sl_fabric *f, double bytes, uint32_t d);
/* All-to-all, pairwise: `bytes` is what one rank holds, destined to d ranks alike (itself too). */
double sl_collective_exchange_us(const sl_fabric *f, double bytes, uint32_t d);
/* All-to-all of nodes x per_node ranks: peers of other nodes over `inter`, of the own over
 * `intra`, one after the other. */
double sl_collective_exchange_two_us(const sl_fabric *intra, const sl_fabric *inter, double bytes,
                                     uint32_t nodes, uint32_t per_node);

/* Eq. 1 to 3 as printed; size / bandwidth, any unit. */
double sl_published_reduce(double size, uint32_t d);
double sl_published_exchange(double size, uint32_t d);

/* Expected number of the `groups` that hold at least one of a row's top_k experts, experts spread
 * alike and chosen uniformly: groups (1 - C(E - E/groups, k) / C(E, k)). */
double sl_expected_groups(double experts, uint32_t top_k, double groups);
/* Expected number of experts that at least one of `rows` rows chooses. */
double sl_expected_experts(double experts, uint32_t top_k, double rows);

/* Tensor parallelism inside a group of m ranks, experts spread over n groups (MixServe Fig. 8).
 * `tokens` of each group, rows of `row_bytes`. Per layer. */
typedef struct sl_hybrid_comm {
    uint32_t n, m;
    double tokens, row_bytes, experts;
    uint32_t top_k;
    const sl_fabric *intra, *inter;
} sl_hybrid_comm;

typedef struct sl_hybrid_times {
    double dispatch_us, combine_us; /* fused: transfers of the group overlap the nodes' */
    double dispatch_apart_us, combine_apart_us; /* one after the other */
    double last_gather_us;                      /* in both combines */
    double chunk_us;                            /* t_x: a chunk between two groups */
    double inside_us;                           /* v_i: bytes of that chunk inside a group */
} sl_hybrid_times;

sl_hybrid_times sl_hybrid_law(const sl_hybrid_comm *h);

#endif

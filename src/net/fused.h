/* Fused dispatch and combine for ranks with memory of their own, which no schedule calls yet
 * (`hybrid` is of ranks that share theirs: net/rails.h): experts over n nodes, each expert split
 * over the m ranks of its node (MixServe, algorithms 1 and 2, corrected; docs/schedules.md).
 *
 * Rank r = node * m + t. Node v has home tokens, known to all its m ranks, and hosts a contiguous
 * share of the experts. A token travels at most once to each node that has experts for it. Between
 * nodes rank t talks to rank t alone and sends 1/m of each row; inside a node the ranks gather the
 * parts of what came and reduce their partial sums. Both are pipelined: while the parts from one
 * node are gathered, those of the next are on their way.
 *
 *   sl_fused_dispatch             rows leave for their nodes
 *   sl_fused_take                 all rows of one node, whole, as soon as they are here
 *   sl_fused_give                 this rank's partial sums of these rows
 *   sl_fused_result               one sum a home row, the same bits on all m ranks
 *
 * What arrives is handed in by the owner's message callback (sl_fused_on_message), which makes the
 * progress. Sums are taken over ranks in ascending order and then over nodes in ascending order,
 * whatever the order of arrival. Messages are SL_MSG_FUSED: header.pass counts the passes,
 * header.chunk is the step, header.lane the node at the other end of the rows. A peer may be one
 * pass ahead: its messages wait. f32 only. Thread: owner of the net. */
#ifndef SL_NET_FUSED_H
#define SL_NET_FUSED_H

#include "net/net.h"

#define SL_FUSED_MAX_NODES 64u
#define SL_FUSED_MAX_TP    64u

typedef struct sl_fused sl_fused;

/* Sends one message to a rank; takes the payload in every case. */
typedef sl_status (*sl_fused_send)(void *ctx, uint32_t rank, sl_wire_header h, sl_buf *payload);

typedef struct sl_fused_opts {
    sl_net *net; /* for payloads */
    uint32_t n_nodes, n_tp;
    uint32_t node, tp;    /* this rank */
    uint32_t d_model;     /* a multiple of n_tp */
    uint32_t max_rows;    /* home rows of a node, at most */
    uint32_t max_control; /* bytes of control of one node's rows, at most */
    /* The unfused order, to measure against: parts are gathered when all of them are here, and
     * replies leave when everything is reduced. Same messages, same bits. */
    bool unfused;
    sl_fused_send send;
    void *ctx;
} sl_fused_opts;

/* The home rows that go to one node: S[v][u], strictly ascending, and what its ranks have to know
 * of them (experts, gates: opaque here). Borrowed: row until the result is there, control during
 * the call. */
typedef struct sl_fused_rows {
    const uint32_t *row;
    uint32_t n;
    sl_span control;
} sl_fused_rows;

/* Rows of one node, here for this node's experts. Borrowed until the next sl_fused_dispatch. */
typedef struct sl_fused_chunk {
    uint32_t node, n;
    const float *x; /* [n][d_model] */
    sl_span control;
} sl_fused_chunk;

/* What this rank sent since it was created. Values are f32. */
typedef struct sl_fused_stats {
    uint64_t control_messages, control_bytes;
    uint64_t inter_messages, inter_values; /* between nodes, control not counted */
    uint64_t intra_messages, intra_values; /* inside the node */
} sl_fused_stats;

sl_status sl_fused_create(const sl_fused_opts *o, sl_fused **out, sl_err *err) SL_MUST_CHECK;
void sl_fused_free(sl_fused *f); /* NULL-safe */

/* Begins a pass: x [n_rows][d_model] are this node's home rows (the same on its m ranks; borrowed
 * during the call), to [n_nodes] says which of them each node gets. SL_ERR_AGAIN while the last
 * pass has no result. */
sl_status sl_fused_dispatch(sl_fused *f, uint32_t layer, const float *x, uint32_t n_rows,
                            const sl_fused_rows *to, sl_err *err) SL_MUST_CHECK;
/* The next node whose rows are whole and not yet taken, own rows last; false: none now. Every node
 * comes once a pass, also without rows. */
bool sl_fused_take(sl_fused *f, sl_fused_chunk *out);
/* Partial sums [n][d_model] of the rows taken from that node, gates applied: this rank's share of
 * every expert. Borrowed during the call. */
sl_status sl_fused_give(sl_fused *f, uint32_t node, const float *partial,
                        sl_err *err) SL_MUST_CHECK;
/* [n_rows][d_model], or NULL while it is not there. Borrowed until the next sl_fused_dispatch. */
const float *sl_fused_result(const sl_fused *f);

/* A message of kind SL_MSG_FUSED from that rank; takes the payload in every case. SL_ERR_PROTOCOL:
 * the peer broke the rules. Other errors are of sends that followed. */
sl_status sl_fused_on_message(sl_fused *f, uint32_t rank, const sl_wire_header *h, sl_buf *payload,
                              sl_err *err) SL_MUST_CHECK;

sl_fused_stats sl_fused_stats_of(const sl_fused *f);

/* ---- closed forms (equal chunks; docs/schedules.md), Thread: any ----
 * t_x: one chunk's part between nodes, by one rank's port. a_i + v_i: gathering or reducing one
 * chunk inside a node, latency and volume. Any unit of time. */

static inline double sl_fused_dispatch_time(uint32_t n, double t_x, double a_i, double v_i) {
    double t_i = a_i + v_i;
    return n < 2 ? 0 : t_x + (n - 2) * SL_MAX(t_x, t_i) + t_i;
}
static inline double sl_unfused_dispatch_time(uint32_t n, double t_x, double a_i, double v_i) {
    return n < 2 ? 0 : (n - 1) * (t_x + v_i) + a_i;
}
/* Without the final gathering of the result, which both have. */
static inline double sl_fused_combine_time(uint32_t n, double t_x, double a_i, double v_i) {
    double t_i = a_i + v_i, all = SL_MAX(t_i + (n - 1) * t_x, n * t_i);
    return n < 2 ? t_i : SL_MAX(all, (n - 1) * t_i + t_x);
}
static inline double sl_unfused_combine_time(uint32_t n, double t_x, double a_i, double v_i) {
    return a_i + n * v_i + (n - 1) * t_x;
}

#endif

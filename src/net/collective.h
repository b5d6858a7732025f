/* Collectives of a gang's ranks: sums, gatherings and meetings of f32 rows
 * (docs/tensor-parallel.md). Ranks are threads of one process or processes of one machine, in
 * memory that all of them map (collective_memory.c), or whoever is connected by a net
 * (collective_net.c).
 *
 * Every rank makes the same calls with the same sizes in the same order.
 *
 * Sums are those of a fixed binary tree over ranks, neighbours first, whatever the sizes and
 * whoever comes first: the same bits at every rank.
 *
 * No wait is without an end: a rank that is gone or late is an error that names it, and so is every
 * call after that. Thread: an sl_coll belongs to its rank's. */
#ifndef SL_NET_COLLECTIVE_H
#define SL_NET_COLLECTIVE_H

#include "net/net.h"
#include "spec/gang.h"

typedef struct sl_coll sl_coll;

typedef struct sl_coll_opts {
    sl_rank rank;
    /* In shared memory. one_memory: ranks have one address space; what they reduce to columns and
     * gather is read where it lies, which is not to be written before the caller's next step. */
    bool one_memory;
    uint32_t poll_ns;     /* before who waits sleeps */
    uint32_t deadline_ms; /* of a wait, without time in which this process stood still; > 0 */
    /* While it waits: tick is called about every tick_us. NULL: never. */
    void (*tick)(void *ctx);
    uint32_t tick_us;
    /* In shared memory: whether the rank has ended, asked every few milliseconds of a wait that has
     * a deadline, and about ten times a second of one that has none. NULL: nobody knows. */
    bool (*is_gone)(void *ctx, uint32_t rank);
    void *ctx;
} sl_coll_opts;

void sl_coll_free(sl_coll *c); /* NULL-safe; tells nobody */

/* ---- in shared memory ---- */

/* Bytes that so many ranks share. */
size_t sl_coll_bytes(uint32_t ranks);
/* memory: sl_coll_bytes, zero before the first rank opens it, a multiple of 64; borrowed until
 * sl_coll_free. SL_ERR_NOMEM. */
sl_status sl_coll_open(const sl_coll_opts *o, void *memory, sl_coll **out,
                       sl_err *err) SL_MUST_CHECK;

/* ---- over a net ----
 * Its owner says who is connected and hands in what comes, from the net's callbacks; calls below
 * make progress while they wait. What the last of them sent leaves as the owner goes on with that.
 * Messages are SL_MSG_COLLECTIVE. */

/* net: borrowed until sl_coll_free. SL_ERR_NOMEM. */
sl_status sl_coll_open_net(const sl_coll_opts *o, sl_net *net, sl_coll **out,
                           sl_err *err) SL_MUST_CHECK;
/* Who is connected says that it is that rank: to be said of all others before anything of theirs is
 * handed in. SL_ERR_PROTOCOL: there is none of that number, it is connected, or it was. */
sl_status sl_coll_on_open(sl_coll *c, uint32_t rank, sl_conn *conn, sl_err *err) SL_MUST_CHECK;
/* A message of that rank's; takes the payload in every case. SL_ERR_PROTOCOL: not what is
 * expected. */
sl_status sl_coll_on_message(sl_coll *c, uint32_t rank, const sl_wire_header *h, sl_buf *payload,
                             sl_err *err) SL_MUST_CHECK;
/* The connection is gone, and with it the rank for good. Of one that is no rank's nothing happens.
 */
void sl_coll_on_down(sl_coll *c, const sl_conn *conn);

/* ---- calls ---- */

/* Who waits for whom at a step. */
typedef enum sl_coll_step {
    SL_COLL_ALL,    /* everybody for everybody */
    SL_COLL_SPEAKS, /* the others for rank 0, without a deadline: until there is something to do */
    SL_COLL_HEARS,  /* rank 0 for the others */
} sl_coll_step;

/* What ranks wrote before it is there after it, for who waited. SPEAKS and HEARS not twice without
 * another call between: who does not wait would be ahead of the others without an end.
 * SL_ERR_PEER_DOWN, SL_ERR_TIMEOUT: as all calls below. */
sl_status sl_coll_meet(sl_coll *c, sl_coll_step step, sl_err *err) SL_MUST_CHECK;

/* y, n values, becomes the sum of all ranks'. */
sl_status sl_coll_all_reduce(sl_coll *c, float *y, size_t n, sl_err *err) SL_MUST_CHECK;

/* Nanoseconds that this rank was in calls, waiting, copying and adding up; but where it waited for
 * rank 0's word. Thread: any. */
uint64_t sl_coll_spent_ns(const sl_coll *c);

/* Columns of a rank, whole cache lines where there are enough. */
sl_extent sl_coll_columns(sl_rank r, size_t width);

/* y is [n_rows][width]; columns *first .. *first + *n - 1 of it become the sums of all ranks'. Each
 * column is one rank's; where width allows it ranks have whole cache lines. */
sl_status sl_coll_reduce_scatter(sl_coll *c, float *y, uint32_t n_rows, uint32_t width,
                                 uint32_t *first, uint32_t *n, sl_err *err) SL_MUST_CHECK;

/* Words of four bytes are moved as they are: f32 or whatever else. part is [n_rows][n], outside of
 * whole: values first .. first + n - 1 of rows of `width`. whole becomes [n_rows][width] with the
 * parts of all ranks, who may have the same values; what nobody has stays as it is.
 * SL_ERR_PROTOCOL: a rank has a part beyond the width. */
sl_status sl_coll_all_gather(sl_coll *c, const float *part, uint32_t n_rows, uint32_t first,
                             uint32_t n, uint32_t width, float *whole, sl_err *err) SL_MUST_CHECK;

/* ---- over a net, while rows travel ----
 * What is begun is finished with all that was begun before it, at the latest by the next call
 * above; until then its rows are left alone. In memory ranks see each other's rows, and have no
 * such calls.
 */

/* As sl_coll_all_gather. */
sl_status sl_coll_begin_gather(sl_coll *c, const float *part, uint32_t n_rows, uint32_t first,
                               uint32_t n, uint32_t width, float *whole, uint64_t *ticket,
                               sl_err *err) SL_MUST_CHECK;
/* rows is [n_rows][width], of which each rank has columns first .. first + n - 1: in the end all
 * have all of them. What nobody has stays as it is. */
sl_status sl_coll_begin_share(sl_coll *c, float *rows, uint32_t n_rows, uint32_t first, uint32_t n,
                              uint32_t width, uint64_t *ticket, sl_err *err) SL_MUST_CHECK;
/* Ticket 0 is of what was finished long ago, UINT64_MAX of all. */
sl_status sl_coll_finish(sl_coll *c, uint64_t ticket, sl_err *err) SL_MUST_CHECK;

#endif

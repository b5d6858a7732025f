/* Inside of collectives: what those in memory and those over a net have in common. */
#ifndef SL_NET_COLLECTIVE_INT_H
#define SL_NET_COLLECTIVE_INT_H

#include "net/collective.h"

/* Calls after the first that failed are not made. Each sets c->err where it fails. */
typedef struct sl_coll_ops {
    void (*free)(sl_coll *c);
    sl_status (*step)(sl_coll *c, sl_coll_step step);
    sl_status (*all_reduce)(sl_coll *c, float *y, size_t n);
    sl_status (*reduce_scatter)(sl_coll *c, float *y, uint32_t n_rows, uint32_t width,
                                sl_extent mine);
    sl_status (*all_gather)(sl_coll *c, const float *part, uint32_t n_rows, sl_extent mine,
                            uint32_t width, float *whole);
    /* NULL: ranks see each other's rows. A row of `part` is `stride` values. */
    sl_status (*begin)(sl_coll *c, const float *part, size_t stride, uint32_t n_rows,
                       sl_extent mine, uint32_t width, float *whole, uint64_t *ticket);
    sl_status (*finish)(sl_coll *c, uint64_t ticket);
    /* Of the step that is waited for. */
    bool (*has_come)(const sl_coll *c, uint32_t rank);
    bool (*is_gone)(const sl_coll *c, uint32_t rank);
} sl_coll_ops;

/* What each has; its own struct begins with it. */
struct sl_coll {
    const sl_coll_ops *ops;
    sl_coll_opts o;
    sl_err err;                /* code SL_OK: none yet */
    sl_coll_step last;         /* ALL: of any call but a meeting */
    _Atomic uint64_t spent_ns; /* in calls, but where rank 0's word was waited for */
};

/* Values of all ranks that each adds up by itself: cheaper than another step. */
#define SL_COLL_ALONE_FLOATS 16384u

/* Between two looks whether somebody is gone. */
#define SL_COLL_LOOK_NS 5000000u

/* What options have to be: else a fault of the caller's. */
void sl_coll_check(const sl_coll_opts *o);

/* A wait for others; zeroed at first. */
typedef struct sl_coll_wait {
    uint64_t now, ticked, looked;
    uint64_t spent; /* ns, without those in which the process stood still */
} sl_coll_wait;

/* After a while in vain: lets the owner tick, and says whether `rank` can still come; patient: it
 * has no deadline. */
sl_status sl_coll_look(sl_coll *c, sl_coll_wait *w, uint32_t rank, bool patient);

/* n values of all ranks, by the tree; `to` may be one of `from`. */
void sl_coll_add_up(uint32_t ranks, const float *const *from, size_t n, float *to);

/* Whether the part that the rank says it has is one of rows of that width. */
sl_status sl_coll_check_part(sl_coll *c, uint32_t rank, sl_extent its, size_t width);
/* Values [at, at + n) of a part of rows of its.n values each, into rows of `width`; where they lie
 * already they stay. */
void sl_coll_put_part(const float *from, size_t at, size_t n, sl_extent its, size_t width,
                      float *whole);

#endif

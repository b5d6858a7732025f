/* Inside of the fused collectives: the state of one pass. */
#ifndef SL_NET_FUSED_INT_H
#define SL_NET_FUSED_INT_H

#include "net/fused.h"

/* header.chunk */
typedef enum fused_step {
    FUSED_CONTROL, /* home -> host, rank t to rank t: what the rows want */
    FUSED_PART,    /* home -> host, rank t to rank t: part t of each row */
    FUSED_GATHER,  /* inside the host: my part of the rows of node `lane` */
    FUSED_REDUCE,  /* inside the host: your part of my partial sums for node `lane` */
    FUSED_REPLY,   /* host -> home, rank t to rank t: part t of the sums */
    FUSED_FINAL,   /* inside the home: my part of the result */
    FUSED_STEPS
} fused_step;

/* Rows of one node on their way to the experts here, and their sums back to it. */
typedef struct fused_in {
    uint32_t n;       /* rows; valid once known */
    bool known;       /* a message has said n */
    uint64_t parts;   /* bit t: part t of x is here */
    bool own_part;    /* part `tp` came from that node */
    bool forwarded;   /* .. and is on its way to the siblings */
    sl_buf *control;  /* NULL also when it came empty */
    bool has_control; /* it came */
    bool taken, given;
    float *x;                         /* [max_rows][d_model] */
    sl_buf *partial[SL_FUSED_MAX_TP]; /* by rank: part `tp` of its sums; NULL also when empty */
    uint64_t partials;                /* bit t: it came */
    bool replied;
} fused_in;

/* What came back from one node for the home rows. */
typedef struct fused_back {
    sl_buf *sums; /* [n][d_model / n_tp]; NULL also when empty */
    bool here;
} fused_back;

/* A message of the pass after this one. */
typedef struct fused_early {
    struct fused_early *next;
    uint32_t rank;
    sl_wire_header h;
    sl_buf *payload;
} fused_early;

struct sl_fused {
    sl_fused_opts o;
    uint32_t part; /* values of a row's part */
    uint64_t all_parts;
    uint64_t pass; /* 0: none yet */
    uint32_t layer, n_rows;
    bool active;
    sl_fused_rows to[SL_FUSED_MAX_NODES];
    fused_in in[SL_FUSED_MAX_NODES];
    fused_back back[SL_FUSED_MAX_NODES];
    uint32_t n_added;   /* nodes whose sums are in y */
    uint64_t finals;    /* bit t: part t of the result is here */
    float *y;           /* [max_rows][part] */
    float *result;      /* [max_rows][d_model] */
    float *x;           /* of all in[] */
    void *arrays;       /* what they are all in */
    fused_early *early; /* in order of arrival */
    uint32_t n_early;
    sl_fused_stats n;
};

static inline uint32_t fused_rank(const sl_fused *f, uint32_t node, uint32_t tp) {
    return node * f->o.n_tp + tp;
}

/* ---- fused_out.c: every message this rank sends ---- */

sl_status sl_fused_send_control(sl_fused *f, uint32_t node, sl_err *err);
sl_status sl_fused_send_part(sl_fused *f, uint32_t node, const float *x, sl_err *err);
/* Own part of rows [n][d_model] to every sibling. */
sl_status sl_fused_send_gather(sl_fused *f, fused_step step, uint32_t lane, const float *rows,
                               uint32_t n, sl_err *err);
/* Every sibling's part of partial [n][d_model]; the own one comes back in *own. */
sl_status sl_fused_send_partial(sl_fused *f, uint32_t node, const float *partial, uint32_t n,
                                sl_buf **own, sl_err *err);
/* Takes sums. */
sl_status sl_fused_send_reply(sl_fused *f, uint32_t node, uint32_t n, sl_buf *sums, sl_err *err);

/* ---- fused.c ---- */

/* Whatever can go on now does. */
sl_status sl_fused_advance(sl_fused *f, sl_err *err);

#endif

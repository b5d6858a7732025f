/* Stages of a model on a device. A stage call is a value: what to compute, for which rows, where
 * they are. A device takes calls and says by events when they are through; the engine asks nothing
 * else of it, so another kind of device is another folder here and a row of the table in stage.c.
 *
 * Calls of one queue run in the order in which they were submitted; those of different queues have
 * no order. What a call refers to in host memory stays as it is until its event is done, and what
 * it writes is there then, not before. A device that computes on the caller's thread is through
 * when submit returns.
 *
 * Thread: a device belongs to the thread that opened it. */
#ifndef SL_STAGE_STAGE_H
#define SL_STAGE_STAGE_H

#include "base/memfd.h"
#include "base/pool.h"
#include "base/span.h"
#include "model/model.h"
#include "model/seek.h"
#include "net/net.h"
#include "net/rails.h"
#include "quant/wire_rows.h"
#include "spec/device.h"
#include "spec/plan.h"

/* ---- memory ---- */

/* Bytes that stages work on, a device's or the host's. In the host's space `at` is an address of
 * this process. No bytes: nothing is there. */
typedef struct sl_mem {
    uint32_t space;
    uint64_t at;
    size_t bytes;
} sl_mem;

#define SL_SPACE_HOST 0u
#define SL_SPACE_CUDA 1u /* of the one GPU that the device which made it is */

static inline sl_mem sl_mem_host(const void *p, size_t bytes) {
    return (sl_mem){.space = SL_SPACE_HOST, .at = (uint64_t)(uintptr_t)p, .bytes = bytes};
}

/* ---- calls ---- */

typedef enum sl_stage_op {
    SL_OP_EMBED,  /* rows.x = embedding of rows.id. The calls of the step behind it, of the same
                   * queue, have the same positions and pages */
    SL_OP_ATTEND, /* rows.x += attention of block `layer`; K and V go into rows.pages */
    SL_OP_DENSE,  /* rows.x += feed-forward of a dense block */
    SL_OP_ROUTE,  /* rows.h, expert, gate of a block with experts (sl_block_route); h of a row whose
                   * gates are not finite is zero */
    SL_OP_SHARED, /* rows.h = the shared expert's results of it (sl_block_shared) */
    SL_OP_UNPACK, /* rows that came, as f32: `pack` */
    SL_OP_EXPERTS, /* routed experts: `experts` */
    SL_OP_PACK,    /* rows that leave, as they travel: `pack` */
    SL_OP_MERGE,   /* what came back, into the residual stream: `merge` */
    SL_OP_MOVE,    /* rows from place to place: `move` */
    SL_OP_HEAD,    /* logits: `head` */
    SL_OP_INSIDE,  /* rows.x = what a block with experts makes of it from its router on, of a device
                    * that has `inside` and hosts all its experts: nothing leaves the device, but ids
                    * and gates of the last such block, as of ROUTE. What travels nowhere is not
                    * rounded for the wire. rows.h, expert and gate are its to write */
    SL_OP_MTP      /* the whole block that predicts a further token, of a device that has `mtp`:
                    * `mtp` */
} sl_stage_op;

/* Rows of a step, those of one request in ascending position. id, pos, pages, state, done, expert
 * and gate are host memory. */
typedef struct sl_rowset {
    uint32_t n;
    const uint32_t *id, *pos;
    const uint32_t *const *pages; /* as of sl_rows, of the device's pool */
    /* For blocks whose state has no position: row i's request has two versions of it, at places
     * state[i] and state[i] ^ 1. Its rows from position done[i] on take the first, or nothing when
     * that is 0, step by step into the second, so that calls can be given up and done again. */
    const uint32_t *state, *done;
    sl_mem x, h;      /* [n][d_model] f32: the residual stream; what experts receive */
    uint32_t *expert; /* [n][top_k], and */
    float *gate;      /* [n][top_k]: written by ROUTE */
} sl_rowset;

/* A message whose rows are spread over the ranks of a device that `spreads`, and in which places of
 * a call may lie: ranks beside the first find their part of it by what it is called. */
typedef struct sl_stage_spread {
    sl_spread_name is;
    bool back;           /* a RETURN */
    uint32_t rows;       /* with data */
    const uint8_t *data; /* [rows] of the payload, of sl_device_row_bytes */
} sl_stage_spread;

/* Between row row[i] of `rows`, [..][d_model] f32, and at[i] in host memory, in the wire format:
 * PACK rounds it to there, UNPACK widens it from there. Of a device with `windows` at[i] may lie in
 * one of these instead; NULL, of PACK: nobody wants this row any more. */
typedef struct sl_stage_pack {
    uint32_t n;
    sl_wire_format wire;
    sl_mem rows;
    const uint32_t *row;           /* [n]; NULL: i itself */
    uint8_t *const *at;            /* [n] */
    const sl_stage_spread *spread; /* [n_spread] some of which are in these. PACK sends them, but
                                    * for rank 0's part, and each has all its rows in the call */
    uint32_t n_spread;
    bool cut; /* PACK: of `rows` each rank has its columns alone; all messages are spread then */
} sl_stage_pack;

/* Row to_row[i] of `to` becomes row from_row[i] of `from`, both [..][d_model] f32. */
typedef struct sl_stage_move {
    uint32_t n;
    sl_mem from, to;
    const uint32_t *from_row, *to_row; /* [n]; NULL: i itself */
} sl_stage_move;

/* Rows that results go to: row i of the call is row i of the first part, or when that has n rows
 * row i - n of the next, and so on. */
typedef struct sl_stage_part {
    sl_mem rows; /* [n][d_model] f32 */
    uint32_t n;
} sl_stage_part;

/* As of sl_expert_batch: pair p is row row[p] of x; its result goes to row to[p] of the parts, or
 * is added to it when adds[p], in the order of p. */
typedef struct sl_stage_experts {
    uint32_t n_groups;
    const uint32_t *expert; /* [n_groups] */
    const uint32_t *first;  /* [n_groups + 1] */
    const uint32_t *row;    /* [first[n_groups]] */
    const float *gate;      /* [first[n_groups]] */
    uint32_t n_rows;        /* all of x; 0: not known */
    sl_mem x;               /* [..][d_model] f32 */
    const uint32_t *to;     /* [first[n_groups]]; NULL: p itself, of one part */
    const uint8_t *adds;    /* [first[n_groups]], of `to` */
    const sl_stage_part *part;
    uint32_t n_parts;
} sl_stage_experts;

/* Row i of rows.x becomes row from[i] of x plus the sum of, in this order, its pieces that there
 * are and row from[i] of `shared`. One order of additions for every device, so that nobody sees
 * where a row's experts were. */
typedef struct sl_stage_merge {
    sl_mem x, shared;            /* [..][d_model] f32; x may be rows.x; no shared: nothing */
    const uint32_t *from;        /* [rows.n]; NULL: i itself */
    const uint8_t *const *piece; /* [rows.n][top_k] rows as they travelled, or NULL; as at[i] */
    sl_wire_format wire;
    const sl_stage_spread *spread; /* [n_spread] in which pieces may be; x is rows.x then, `from`
                                    * NULL, and `shared` what SHARED left */
    uint32_t n_spread;
    bool cut; /* ...of which each rank has its columns alone */
} sl_stage_merge;

/* Columns first .. first + count - 1 of the logits of n rows: of rows.x, or those that MTP has put
 * into h. Calls for the same rows go from column 0 on, until all are there; any pieces give the
 * same bits. */
typedef struct sl_stage_head {
    uint32_t n, first, count;
    const uint32_t *row; /* [n] of rows.x; made: NULL */
    sl_mem h;            /* [n][d_model], kept from the first piece to the last */
    float *logits;       /* host memory, [n][vocab] */
    bool made;           /* they are in h */
    /* [n], of a device that `finds`: rows that do not seek all get what they seek in found[i], and
     * nothing in logits; found[i].all says which. NULL: all do. */
    const sl_sought *sought;
    sl_found *found;
} sl_stage_head;

/* Row i of `out` becomes what the block that predicts a further token makes of row row[i] of rows.x
 * and of token rows.id[i], which is behind position rows.pos[i] (model/mtp.c); rows that `last`
 * does not name are nobody's afterwards. Its KV is beside that of rows.pages; it sees what of it
 * was computed, up to a gap, and is for guesses: what is missing or other is no error. */
typedef struct sl_stage_mtp {
    const uint32_t *row; /* [rows.n] of rows.x */
    sl_mem out;          /* [rows.n][d_model], not rows.x */
    bool again;          /* rows.x is what MTP made, not what the last block left */
    uint32_t n_last;
    const uint32_t *last; /* [n_last] of `out`, whose guesses HEAD will ask for: */
    sl_mem h;             /* [n_last][d_model], its rows. No bytes, n_last 0: for none */
} sl_stage_mtp;

typedef struct sl_stage_call {
    sl_stage_op op;
    uint32_t queue; /* below SL_STAGE_QUEUES */
    uint32_t layer; /* block of the model */
    sl_rowset rows; /* of EMBED to SHARED, MERGE, HEAD, INSIDE and MTP */
    bool stays; /* SHARED and EXPERTS, of a device that `spreads`: each rank keeps its columns of
                 * the results, and rank 0 gets no others */
    union {
        sl_stage_pack pack;
        sl_stage_move move;
        sl_stage_experts experts;
        sl_stage_merge merge;
        sl_stage_head head;
        sl_stage_mtp mtp;
    };
} sl_stage_call;

/* One for each lane, one for experts. */
#define SL_STAGE_QUEUES  (SL_PLAN_MAX_LANES + 1)
#define SL_QUEUE_EXPERTS SL_PLAN_MAX_LANES

/* ---- devices ---- */

/* The number-th call of a queue. */
typedef struct sl_event {
    uint32_t queue;
    uint64_t number;
} sl_event;

typedef struct sl_device sl_device;

/* What memory of a device is joined by: bytes that mean something to devices of its kind on its
 * machine. */
#define SL_DEVICE_KEY_BYTES 128u
typedef struct sl_device_key {
    uint8_t bytes[SL_DEVICE_KEY_BYTES];
    size_t len;
} sl_device_key;

typedef struct sl_device_ops {
    void (*close)(sl_device *d);
    /* Copies *c, not what it points to. */
    void (*submit)(sl_device *d, const sl_stage_call *c);
    /* Notes which calls are through now. NULL: all are when submit returns. */
    void (*poll)(sl_device *d);
    /* Zeroed memory; bytes > 0. */
    sl_status (*take)(sl_device *d, size_t bytes, sl_mem *out, sl_err *err);
    void (*give)(sl_device *d, sl_mem m);
    /* sl_device_host; NULL: every expert can always be asked for. */
    sl_status (*host)(sl_device *d, const uint8_t *hosted, uint32_t max_pairs, bool patient,
                      sl_hosting *left, sl_err *err);
    /* sl_device_room; NULL: experts lie in the memory of its machine. */
    uint64_t (*room)(sl_device *d, uint32_t max_pairs, uint64_t beside);
    /* n blocks from `first` on of a KV page, sl_kv_block_bytes each, to the host's memory, and from
     * there: no call in flight may write them, none use them. NULL: pages stay here. */
    void (*read_page)(sl_device *d, uint32_t page, uint32_t first, uint32_t n, void *to);
    void (*write_page)(sl_device *d, uint32_t page, uint32_t first, uint32_t n, const void *from);
    /* Of a device that `finds`: all logits of a row of the last call of HEAD, which is through.
     * Waits for calls in flight. */
    void (*read_logits)(sl_device *d, uint32_t row, float *to);
    /* sl_device_share; NULL: no threads of this process help it. */
    void (*share)(sl_device *d, size_t n, sl_pool_fn fn, void *ctx);
    /* How long its first rank was in calls that ranks make together, where they share memory; NULL:
     * it has none. */
    uint64_t (*ranks_ns)(const sl_device *d);
    /* sl_device_tend; NULL: it needs none. */
    void (*tend)(sl_device *d);
    /* Of a device that `spreads`: a word to a rank about its rail, at any time. */
    void (*rail)(sl_device *d, uint32_t rank, const sl_rails_word *w);
    /* Of such a device: this message came, of which an UNPACK will ask for the rows or nobody. Its
     * ranks may gather them meanwhile. */
    void (*gather)(sl_device *d, const sl_stage_spread *m, sl_wire_format f);
    /* No call names a message any more that came or left before. */
    void (*settle)(sl_device *d);
    /* Of a device with `windows`: memory of its own, undefined contents, into which the device of
     * another worker of this machine may pack rows, and what that joins it by. */
    sl_status (*offer)(sl_device *d, size_t bytes, sl_mem *out, sl_device_key *key, sl_err *err);
    /* Of such a device: memory that another one offers, or this one, for PACK. SL_ERR_UNSUPPORTED
     * says why it cannot be reached from here. */
    sl_status (*join)(sl_device *d, sl_span key, sl_mem *out, sl_err *err);
    /* Memory that it has offered or joined: waits for the calls that it has. What was joined is
     * not touched any more; what was offered is there until all in this process who joined it have
     * parted from it, and as long as this process lives where another one may have joined it. */
    void (*part)(sl_device *d, sl_mem m);
} sl_device_ops;

/* Hears when calls ran at a device that computes beside its caller's thread, in ns of
 * CLOCK_MONOTONIC, before it says that they are through. Calls of a step that ran as one are told
 * as one: the first of them, `whole`. A device that computes in `submit` tells nothing. */
typedef struct sl_device_watch {
    void (*ran)(void *ctx, const sl_stage_call *c, bool whole, uint64_t begin_ns, uint64_t end_ns);
    void *ctx;
} sl_device_watch;

/* What every device has; a device's own struct begins with it. */
struct sl_device {
    const sl_device_ops *ops;
    const sl_model_spec *spec; /* borrowed until the device is closed */
    bool in_place; /* stages work on host memory where it lies: x and parts of EXPERTS may be in
                    * messages */
    bool resumes;  /* what rows leave behind lies in KV pages alone: who has these goes on there */
    bool placed;   /* ...or at places of requests, too (sl_rowset.state): they keep theirs, */
    bool rewinds;  /* and what the last rows of a step left there is taken back where they were
                    * guesses that were wrong */
    bool kept;     /* and they lie in the file that sl_device_opts named */
    bool inside;   /* it takes SL_OP_INSIDE, */
    bool inside_exact; /* with the bits of rows that travel in f32, */
    bool inside_f32;   /* and is to be asked for it where rows would travel so, and nowhere else */
    bool copies_lists; /* calls' lists are its own once it has been asked */
    bool mtp;          /* it takes SL_OP_MTP */
    bool finds;        /* rows of HEAD may seek less than all logits */
    bool windows;      /* rows may lie in memory of its own and of others (offer, join) */
    uint32_t sharers;  /* threads that sl_device_share has, the caller among them; 0: it alone */
    uint32_t spreads;  /* its ranks exchange rows with those of others themselves: so many columns
                        * rank 0 has of a row that is cut. 0: they do not */
    bool gathers;      /* ...and gather rows: it is to be tended often */
    uint64_t given[SL_STAGE_QUEUES], done[SL_STAGE_QUEUES]; /* calls of each queue */
    uint32_t in_flight;                                     /* given and not done */
    sl_device_watch watch; /* the caller's to set between calls; `ran` NULL: nobody asks, and
                            * nothing is timed */
    char note[256];        /* what whoever opened it should say; "": nothing */
    sl_status failed;      /* SL_OK, or why no call will be through any more: */
    sl_err failure;        /* whoever drives the device ends with this */
    bool own_fault;        /* it failed by what it was asked to compute: as good as a crash */
};

typedef struct sl_device_opts {
    const char *folder;           /* of the model */
    sl_stages hosts;              /* what is computed here; copied */
    const sl_device_spec *device; /* borrowed for the call */
    const char *isa;              /* as of sl_kernels_select; NULL or "": its base */
    uint32_t threads;             /* kernel threads, the caller's counted */
    uint32_t ranks; /* of a gang that is opened, 1, 2, 4 or 8, which share the threads, one each at
                     * least; 0: one */
    uint32_t pipeline; /* ranks that share the blocks, up to 8, each of which is such a gang, and
                        * share the threads; 0: one, and no pipeline */
    sl_rank_kind rank_kind; /* what they are, but for the first: that is the caller's thread */
    /* Of SL_RANKS_MACHINES: where ranks 1 and on answer, HOST:PORT each with commas between, and
     * what they know callers by. Borrowed for the call. */
    const char *ranks_at;
    sl_span secret;
    /* Of these: ranks exchange rows in this format with those of other workers, and `rail_word`
     * hears what they say about that. */
    bool spreads;
    uint32_t spread_rows; /* messages of a step of fewer rows are not spread */
    sl_wire_format wire;
    void (*rail_word)(void *ctx, uint32_t rank, const sl_rails_word *w);
    sl_net_when encrypt; /* what is said to them, and by them; see sl_net_opts */
    bool apart;          /* each rank on its own of the CPUs that the caller's thread may use */
    bool numa;           /* weights lie on the memory node of the CPUs of who computes with them */
    const sl_gang *gang; /* of the rank that is opened, hosts.rank; NULL: it is alone. Borrowed
                          * until the device is closed */
    sl_activations activations;
    bool exact;         /* no bit may depend on what runs in the same call */
    bool inside;        /* not on GPUs: it is asked for INSIDE */
    uint32_t max_rows;  /* of a call; 0: EXPERTS only */
    uint32_t max_pairs; /* of EXPERTS; 0: there are none */
    uint32_t head_rows; /* of HEAD; 0: not known */
    uint32_t requests;  /* places of ATTEND's rowset.state, two each; 0: there are none, nor models
                         * that need them */
    bool guesses;       /* rows of a step may be dropped when it has ended */
    uint32_t kv_pages;  /* that ATTEND reads and writes: numbers below this */
    int kv_fd;          /* they lie in this file (sl_memfd_create of sl_kv_file_bytes), as they are,
                         * of a gang whose ranks are threads, too; 0: in zeroed memory of its own.
                         * Borrowed for the call */
    /* While a stage keeps the thread: tick is called about every tick_us (NULL: never); wait
     * returns at or soon after CLOCK_MONOTONIC deadline_ns, whatever else it does until then. */
    void (*tick)(void *ctx);
    void (*wait)(void *ctx, uint64_t deadline_ns);
    void *ctx;
    uint32_t tick_us;
    bool loud; /* tick is called while it is opened, too */
    /* Nobody waits for it: it is opened at low priority. What that has not done by then is done at
     * the caller's: on a machine that is busy enough it would never be done. 0: at the caller's. */
    uint32_t quiet_ms;
    /* Hears, where events change, the experts of rows that went nowhere (INSIDE): [rows][top_k].
     * NULL: nobody. */
    void (*routed)(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert);
    /* Hears, on the opening thread, how many bytes of weights are in memory, of all that are bound;
     * of a gang those of rank 0. NULL: nobody. */
    sl_progress_fn progress;
    void *progress_ctx;
} sl_device_opts;

/* Bytes of the file that kv_fd is. Each rank of a gang has its pages in a part of its own, as large
 * as one device's, from a large page on: ranks may have the same heads, and who has the file knows
 * nothing of heads; what nobody touches takes no memory. False: too many. */
static inline bool sl_kv_file_bytes(const sl_model_spec *m, uint32_t n_pages, uint32_t ranks,
                                    size_t *out) {
    if (__builtin_mul_overflow((size_t)n_pages, sl_kv_page_bytes(m), out)) return false;
    if (ranks <= 1) return true;
    if (__builtin_add_overflow(*out, SL_LARGE_PAGE - 1, out)) return false;
    return !__builtin_mul_overflow(*out / SL_LARGE_PAGE * SL_LARGE_PAGE, (size_t)ranks, out);
}

/* Makes the device that o->device says, with the weights that o->hosts needs. Errors name file and
 * tensor (sl_model_open), or what of the options cannot be had here. */
sl_status sl_device_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;
/* NULL-safe; no call may be in flight. */
static inline void sl_device_close(sl_device *d) {
    if (d) d->ops->close(d);
}

/* Who makes a worker's device: open NULL is sl_device_open. Tests put theirs in its place. */
typedef struct sl_device_maker {
    sl_status (*open)(void *ctx, const sl_device_opts *o, sl_device **out, sl_err *err);
    void *ctx;
} sl_device_maker;

/* Memory for n rows of d_model floats, until it is given back. SL_ERR_NOMEM. */
static inline sl_status sl_device_take_rows(sl_device *d, size_t n, sl_mem *out, sl_err *err) {
    size_t bytes, row = d->spec->d_model * sizeof(float);
    if (__builtin_mul_overflow(SL_MAX(n, (size_t)1), row, &bytes))
        return sl_fail(err, SL_ERR_NOMEM, "%zu rows overflow the address space", n);
    return d->ops->take(d, bytes, out, err);
}

/* Its KV outlives it, and is all that a request needs to go on elsewhere. */
static inline bool sl_device_keeps(const sl_device *d) {
    return d->kept && d->resumes;
}

/* Pages can be copied from here and to here, and a request goes on where they are. */
static inline bool sl_device_copies(const sl_device *d) {
    return d->resumes && d->ops->read_page && d->ops->write_page;
}

/* No memory is nothing to give. No call may use it any more. */
static inline void sl_device_give(sl_device *d, sl_mem m) {
    if (m.bytes) d->ops->give(d, m);
}

/* A step, of a millisecond or so (a device of several ranks first ends what they have), towards
 * EXPERTS being able to ask for these and no others: hosted as of sl_stages, of a device that hosts
 * experts, max_pairs as of sl_device_opts. To be called until *left says that it is done; until
 * then at least all that was hosted before and stays is. patient: weights that have to be read from
 * files are waited for. No call may be in flight that asks for one that goes. On an error more may
 * be hosted than before, nothing less. */
static inline sl_status sl_device_host(sl_device *d, const uint8_t *hosted, uint32_t max_pairs,
                                       bool patient, sl_hosting *left, sl_err *err) {
    *left = SL_HOSTING_DONE;
    return d->ops->host ? d->ops->host(d, hosted, max_pairs, patient, left, err) : SL_OK;
}

/* Bytes of experts, as files have them, that find room there beside all that is, with calls of up
 * to so many pairs and so many bytes that are taken otherwise. UINT64_MAX: it has no memory of its
 * own, but its machine's. */
static inline uint64_t sl_device_room(sl_device *d, uint32_t max_pairs, uint64_t beside) {
    return d->ops->room ? d->ops->room(d, max_pairs, beside) : UINT64_MAX;
}

/* fn over 0 .. n-1, in pieces of one, by the caller and whatever threads help the device; returns
 * when all are done. Results must not depend on who does what. No call may be in flight on a device
 * whose stages these threads compute. */
static inline void sl_device_share(sl_device *d, size_t n, sl_pool_fn fn, void *ctx) {
    if (d->ops->share && d->sharers > 1 && n > 1)
        d->ops->share(d, n, fn, ctx);
    else
        fn(ctx, 0, n);
}

/* To be called again and again while nothing is in flight, ten times a second at least: a device
 * whose parts are elsewhere shows them that it is there, and ends this process where one is not. */
static inline void sl_device_tend(sl_device *d) {
    if (d->ops->tend) d->ops->tend(d);
}

/* Bytes of a row in the payload of a message. */
static inline size_t sl_device_row_bytes(const sl_device *d, const sl_spread_name *s,
                                         sl_wire_format f) {
    return sl_wire_row_bytes(f, s->cut ? d->spreads : d->spec->d_model);
}

/* Never refused: callers bound what they have in flight. */
static inline sl_event sl_device_submit(sl_device *d, const sl_stage_call *c) {
    const sl_event e = {.queue = c->queue, .number = ++d->given[c->queue]};
    d->in_flight++;
    d->ops->submit(d, c);
    return e;
}

/* Of a zeroed event, too. Changes in submit, poll and drain, and where the device waits for calls
 * that it has: for memory, pages and hosting. */
static inline bool sl_device_is_done(const sl_device *d, const sl_event *e) {
    return d->done[e->queue] >= e->number;
}

/* To be called beside the fabric's progress; true: calls are in flight still. */
static inline bool sl_device_poll(sl_device *d) {
    if (d->in_flight) d->ops->poll(d);
    return d->in_flight > 0;
}

/* Returns when no call is in flight, or none will be through any more. Nobody drives the fabric
 * meanwhile. */
static inline void sl_device_drain(sl_device *d) {
    while (sl_device_poll(d) && d->failed == SL_OK) continue;
}

#endif

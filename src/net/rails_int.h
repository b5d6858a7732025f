/* Inside of rails: what the owner of the main net and the rails' threads share, under one lock. A
 * rail knows a main connection by its key alone, so that neither holds a pointer to what the other
 * frees. */
#ifndef SL_NET_RAILS_INT_H
#define SL_NET_RAILS_INT_H

#include "net/rails.h"

#include <pthread.h>
#include <stdatomic.h>

#define RAILS_EARLY 256u /* stripes of one main connection that may wait for their header */

typedef struct rail rail;

/* A message of a main connection, from its header to its delivery. The owner alone puts it into its
 * link's queue and takes it out. */
typedef struct rails_item {
    struct rails_item *next;
    sl_wire_header h; /* kind: of the message itself */
    sl_buf *payload;
    uint64_t number;  /* 0: it came whole */
    uint32_t missing; /* stripes */
    uint32_t heard;   /* of ranks that are far away: bits of those whose part is there */
    uint32_t busy;    /* rails that write into it now */
    bool dropped;     /* its link is gone: the last one that writes leaves it to the owner */
} rails_item;

/* A stripe that came before the header. */
typedef struct rails_early {
    struct rails_early *next;
    uint32_t rail;
    uint64_t number;
    uint32_t rows; /* of a rank that is far away; */
    sl_buf *bytes; /* else these */
} rails_early;

/* A payload whose stripes leave; the last rail that has copied its own leaves it to the owner. */
typedef struct rails_parcel {
    struct rails_parcel *next;
    sl_buf *payload;
    uint64_t key, number;
    uint32_t left;
} rails_parcel;

/* A main connection with a peer, at this end. */
typedef struct rails_link {
    struct rails_link *next;
    sl_conn *main; /* for the owner alone */
    sl_hello peer; /* who may say the key */
    uint64_t key;
    bool called;             /* this end was called: the rails are its own */
    sl_rails_greeting where; /* of ranks that are far away, to be called */
    uint32_t bound;          /* bits of rails that are there */
    uint64_t since_us;       /* owner: when the key was said or heard */
    uint64_t sent, got;      /* owner: striped messages */
    rails_item *queue, **tail;
    rails_early *early;
    uint32_t n_early;
    bool broken;
    char why[120];      /* with broken */
    bool told;          /* owner: that all rails are there */
    uint64_t broken_us; /* owner: when it saw that; 0: not yet */
} rails_link;

typedef enum rail_order_kind { RAIL_CALL, RAIL_HANG_UP, RAIL_SEND } rail_order_kind;

/* What the owner wants of a rail. */
typedef struct rail_order {
    struct rail_order *next;
    rail_order_kind kind;
    uint64_t key;
    rails_parcel *parcel;
    char at[SL_RAILS_ADDRESS];
} rail_order;

/* A connection of a rail. Its net's user pointer; of the rail's thread. */
typedef struct rail_end {
    struct rail_end *next;
    uint64_t key; /* 0: its caller has not said it */
    sl_conn *conn;
    bool open, called_by_us;
    uint64_t again_us; /* call again then; 0: no */
    uint64_t sent, got;
    char at[SL_RAILS_ADDRESS];
} rail_end;

struct rail {
    sl_rails *all;
    uint32_t index; /* 1 to n - 1 */
    sl_net *net;
    sl_clock clock;
    rail_end *ends;
    rail_order *orders, **last; /* under the lock */
    pthread_t thread;
    bool runs;
};

struct sl_rails {
    sl_rails_opts o;
    /* Ranks that are far away: where they are, and that they listen. */
    sl_rails_far far; /* say NULL: they are not */
    char at[SL_RAILS_MAX][SL_RAILS_ADDRESS];
    bool begun;
    uint64_t stayed;    /* messages in parts that went nowhere */
    uint32_t all_bound; /* bits of all rails */
    pthread_mutex_t lock;
    rails_link *links;
    rails_parcel *spent, *free_parcels;
    rails_item *dropped, *free_items;
    rail_order *free_orders;
    rail rail[SL_RAILS_MAX]; /* [0] is the main net: not used */
    atomic_bool stop;
    sl_rails_stats stats;
};

static inline rails_link *rails_link_of(const sl_rails *r, uint64_t key) {
    rails_link *l = r->links;
    while (l && l->key != key) l = l->next;
    return l;
}

static inline rails_item *rails_item_of(const rails_link *l, uint64_t number) {
    rails_item *it = l->queue;
    while (it && it->number != number) it = it->next;
    return it;
}

static inline bool rails_are_far(const sl_rails *r) {
    return r->far.say != NULL;
}

/* Under the lock: the main connection is to end, and why. */
void rails_break(rails_link *l, uint32_t index, const char *why);
/* Under the lock: a stripe that waits for its header; SL_ERR_PROTOCOL: too many do. */
sl_status rails_come_early(rails_link *l, const rails_early *what, sl_err *err) SL_MUST_CHECK;

/* ---- rails_far.c: of ranks that are far away; Thread: the owner's ---- */

/* All of them hear what is to be done about the link. */
void rails_say(const sl_rails *r, const rails_link *l, sl_rails_word_kind kind);
/* Under the lock: the rank has its part of the message. */
sl_status rails_hear_part(rails_item *it, uint32_t rank, uint32_t rows, sl_err *err) SL_MUST_CHECK;
/* The payload is rank 0's part. l NULL: the connection has no rails. */
sl_status rails_send_spread(sl_rails *r, const rails_link *l, sl_wire_header h, sl_buf *payload);

/* ---- rails_turn.c; Thread: the rail's ---- */

/* The rail's net; SL_ERR_* as sl_net_create. */
sl_status rail_open(rail *t, const char *host, sl_err *err) SL_MUST_CHECK;
/* Orders, bytes, calls that are due. */
void rail_turn(rail *t);
void *rail_main(void *rail);
void rail_close(rail *t); /* its thread has ended */

#endif

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
    uint32_t busy;    /* rails that write into it now */
    bool dropped;     /* its link is gone: the last one that writes leaves it to the owner */
} rails_item;

/* A stripe that came before the header. */
typedef struct rails_early {
    struct rails_early *next;
    uint32_t rail;
    uint64_t number;
    sl_buf *bytes;
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
    bool called;        /* this end was called: the rails are its own */
    uint32_t bound;     /* bits of rails that are there */
    uint64_t since_us;  /* owner: when the key was said or heard */
    uint64_t sent, got; /* owner: striped messages */
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

/* Under the lock: the main connection is to end, and why. */
void rails_break(rails_link *l, uint32_t index, const char *why);

/* ---- rails_turn.c; Thread: the rail's ---- */

/* The rail's net; SL_ERR_* as sl_net_create. */
sl_status rail_open(rail *t, const char *host, sl_err *err) SL_MUST_CHECK;
/* Orders, bytes, calls that are due. */
void rail_turn(rail *t);
void *rail_main(void *rail);
void rail_close(rail *t); /* its thread has ended */

#endif

/* The hub's mailboxes, one a net. A connection is a key that both ends share but for its last bit:
 * even at the caller, odd at the callee, so key ^ 1 is the other end. Thread: any, except
 * sl_port_steal (owner). */
#ifndef SL_NET_LOOP_INT_H
#define SL_NET_LOOP_INT_H

#include "net/net_int.h"

typedef struct sl_port sl_port;

typedef enum sl_loop_event {
    SL_LOOP_DATA,
    SL_LOOP_CALL, /* buf: u64 number of the caller's port */
    SL_LOOP_GONE, /* buf: text */
    SL_LOOP_CUT,  /* buf: u64 number of a port: all links with it are gone. For no key */
    SL_LOOP_PART, /* some bytes of a message that takes its time */
} sl_loop_event;

/* Lives until the hub is freed, so that late senders find a closed port rather than none. */
sl_port *sl_port_open(sl_loop_hub *h); /* NULL: out of memory */
/* It takes no mail any more; what has come can be stolen still. */
void sl_port_shut(sl_port *p);
void sl_port_close(sl_port *p, sl_block_pool *leftovers);
uint64_t sl_port_number(const sl_port *p);
sl_port *sl_port_find(sl_loop_hub *h, uint64_t number); /* NULL: none */
uint64_t sl_loop_new_key(sl_loop_hub *h);               /* even */
/* False when the port is closed; the block is then still the caller's. */
bool sl_port_post(sl_port *p, sl_block *b) SL_MUST_CHECK;
/* Appends what has come, in order of arrival. */
void sl_port_steal(sl_port *p, sl_block_list *out);
void sl_port_wait(sl_port *p, uint64_t timeout_us, uint64_t poll_ns, sl_poll_memory *polled);
void sl_port_wake(sl_port *p);

/* The hub's carrier has the block; false: there is none. */
bool sl_loop_carry(const sl_loop_hub *h, uint64_t from, uint64_t to, sl_block *b);

/* Delay of the nth message towards a key, 0..max_delay_us; a pure function of the hub's seed. */
uint32_t sl_loop_delay_us(const sl_loop_hub *h, uint64_t key, uint64_t nth);
bool sl_loop_has_delays(const sl_loop_hub *h); /* or links that ail */
/* Where its nets are to each other. */
sl_peer_place sl_loop_place(const sl_loop_hub *h);
/* When the bytes of a message begin to come out of what ails its link, and when all have. */
typedef struct sl_loop_passage {
    uint64_t begins_us, ends_us;
} sl_loop_passage;
/* Of so many bytes that `port` sends `peer` now. */
sl_loop_passage sl_loop_pass(sl_loop_hub *h, uint64_t port, uint64_t peer, uint64_t now_us,
                             uint64_t bytes);
/* The message that `port` sends `peer`, as it arrives. */
void sl_loop_damage(sl_loop_hub *h, uint64_t port, uint64_t peer, sl_block *b);

/* ---- what transports.c names ---- */

sl_status sl_loop_transport_create(sl_net *n, const sl_net_opts *o, sl_transport **out,
                                   sl_err *err) SL_MUST_CHECK;

#endif

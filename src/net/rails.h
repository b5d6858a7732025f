/* Rails: beside its main connection with a peer a net has others, one for each further rank of a
 * gang (schedule hybrid). A rail is a net of its own, at an address of its own (a network card, if
 * it is given one), driven by a thread of its own. A long message between two such peers is cut
 * into stripes of equal length: the first goes with the header over the main connection, stripe i
 * over rail i, each straight from the sender's payload into its place in the receiver's. Messages
 * of a main connection keep their order: what follows a message whose stripes are under way waits
 * for it.
 *
 * Who is called on the main connection says where its rails listen, and a key (RAILS); who called
 * calls these, says the key (RAIL_IS), and rails carry stripes when all of them are there. Until
 * then, and below `least`, messages go whole. A rail that breaks, or is not there within
 * SL_RAILS_MS, ends the main connection, as stripes are lost with it. docs/protocol.md has the
 * messages. Thread: owner of the main net for all functions; callbacks come from them alone.
 *
 * Where ranks are on machines of their own (sl_rails_far), each of them has its rail itself, and no
 * payload is cut: the owner sends what rank 0 has of a message, by the main connection, and ranks
 * send what they have straight to their counterparts. Who gets it delivers a message once all ranks
 * here have said that their part is there. */
#ifndef SL_NET_RAILS_H
#define SL_NET_RAILS_H

#include "net/net.h"
#include "spec/gang.h"

#define SL_RAILS_MAX     SL_MAX_RANKS
#define SL_RAILS_MS      10000u
#define SL_RAILS_ADDRESS 96u

typedef struct sl_rails sl_rails;

/* Between an owner and a rank on a machine of its own. */
typedef enum sl_rails_word_kind {
    /* to the rank */
    SL_RAILS_EXPECT = 1, /* whoever says the key is its counterpart */
    SL_RAILS_CALL,       /* its counterpart is at `text` and waits for the key */
    SL_RAILS_HANG_UP,    /* the main connection is gone; what came stays */
    /* from the rank */
    SL_RAILS_BOUND, /* its counterpart is there */
    SL_RAILS_BROKE, /* no more, and why: `text` */
    SL_RAILS_HERE,  /* its part of message `number`, so many rows, has come */
    SL_RAILS_WORDS
} sl_rails_word_kind;

typedef struct sl_rails_word {
    sl_rails_word_kind kind;
    uint32_t rows;
    uint64_t key, number; /* the key is not 0 */
    char text[SL_RAILS_ADDRESS];
} sl_rails_word;

/* Ranks 1 and on that have their rails themselves. */
typedef struct sl_rails_far {
    /* To the rank. It may be called from the main net's callbacks. */
    void (*say)(void *ctx, uint32_t rank, const sl_rails_word *w);
    /* Hears what ranks say: sl_rails_on_word. */
    void (*listen)(void *ctx);
    void *ctx;
} sl_rails_far;

typedef struct sl_rails_opts {
    uint32_t n;        /* with the main connection: 2 to SL_RAILS_MAX, the same at both ends */
    size_t least;      /* bytes of the shortest message that is cut */
    const char *hosts; /* where rails 1 to n - 1 listen, with commas; NULL, "": as net.host says */
    sl_net *main;
    sl_net_opts net; /* as of the main net: transport, hub, host, secret, hello, clock, limits */
    bool driven;     /* no threads: sl_rails_progress drives the rails (the clock is not real) */
    /* Ranks have their rails, at `hosts`, which are HOST:PORT then. NULL: this process has them.
     * Borrowed for the call. */
    const sl_rails_far *far;
    /* The next message of a main connection; the payload is the callee's. An error ends the
     * connection. */
    sl_status (*deliver)(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                         sl_err *err);
    void *ctx;
} sl_rails_opts;

/* The rails listen. SL_ERR_ARG names a host that is missing or of no use. */
sl_status sl_rails_open(const sl_rails_opts *o, sl_rails **out, sl_err *err) SL_MUST_CHECK;
void sl_rails_free(sl_rails *r); /* before the main net; NULL-safe */

/* An authenticated peer called this net by the main connection `c`: it hears where the rails are.
 * SL_ERR_NOMEM. */
sl_status sl_rails_greet(sl_rails *r, sl_conn *c, sl_err *err) SL_MUST_CHECK;
/* A message of a main connection with a peer. Takes the payload. What is not of rails is delivered,
 * at once or when it is its turn. SL_ERR_PROTOCOL: the peer broke the rules. */
sl_status sl_rails_on_message(sl_rails *r, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                              sl_err *err) SL_MUST_CHECK;
/* A main connection is gone, or is none of a peer's any more. */
void sl_rails_on_down(sl_rails *r, sl_conn *c);
/* As sl_net_send, in stripes where that is possible. With ranks far away: in parts if the payload's
 * `spread` says so. */
sl_status sl_rails_send(sl_rails *r, sl_conn *c, sl_wire_header h, sl_buf *payload);
/* Delivers what is whole, closes main connections whose rails are gone; beside sl_net_progress of
 * the main net. Returns the messages delivered. */
uint32_t sl_rails_progress(sl_rails *r);
/* Stripes of a message are under way to this net: the main net's owner may sleep in sl_net_wait,
 * which is woken, but not poll for long. */
bool sl_rails_await(const sl_rails *r);

/* ---- ranks that are far away ---- */

/* They are there: from now on they are told. */
void sl_rails_begin(sl_rails *r);
void sl_rails_on_word(sl_rails *r, uint32_t rank, const sl_rails_word *w);
/* Whether a DISPATCH or RETURN can leave by this connection (NULL: there is none) in parts. */
bool sl_rails_can_spread(const sl_rails *r, const sl_conn *c);
/* What one is called, for ranks and in its payload, that they send next, in the order of these
 * calls. Of a connection where it cannot any more, or that is gone (NULL): what nobody knows.
 * stays: it does not leave, whatever c is. bytes: what ranks beside the first send of it. */
sl_spread_name sl_rails_spread(sl_rails *r, const sl_conn *c, bool stays, size_t bytes);

typedef struct sl_rails_stats {
    uint64_t striped;    /* messages sent in stripes */
    uint64_t rail_bytes; /* of these, over rails and not over main connections */
} sl_rails_stats;
sl_rails_stats sl_rails_stats_of(const sl_rails *r);

/* ---- bytes ---- */

/* RAILS: u32 n, u32 0, u64 key, char at[n - 1][SL_RAILS_ADDRESS], zero-padded. */
typedef struct sl_rails_greeting {
    uint32_t n;
    uint64_t key;                            /* not 0 */
    char at[SL_RAILS_MAX][SL_RAILS_ADDRESS]; /* [0] is not used */
} sl_rails_greeting;
#define SL_RAILS_GREETING_HEAD 16u
size_t sl_rails_greeting_bytes(uint32_t n);
void sl_rails_greeting_encode(const sl_rails_greeting *g, uint8_t *out);
/* Refuses (SL_ERR_PROTOCOL) other lengths, n and keys, and addresses that are empty or without an
 * end. */
sl_status sl_rails_greeting_decode(sl_span payload, sl_rails_greeting *out,
                                   sl_err *err) SL_MUST_CHECK;

/* STRIPED: u16 kind, u16 0, u32 bytes of the whole, u64 number, then stripe 0. The rest of the
 * message's header is the header's. */
typedef struct sl_rails_striped {
    uint16_t kind;
    uint32_t bytes;
    uint64_t number; /* of the main connection and direction, from 1 */
} sl_rails_striped;
void sl_rails_striped_encode(const sl_rails_striped *s, uint8_t *out);
/* n: rails; 1: ranks have the others, and the payload has all bytes. Refuses what is neither
 * DISPATCH nor RETURN, bytes over SL_WIRE_MAX_BYTES, and a first stripe of another length. */
sl_status sl_rails_striped_decode(sl_span payload, uint32_t n, sl_rails_striped *out,
                                  sl_err *err) SL_MUST_CHECK;

/* A word: u32 kind, u32 rows, u64 key, u64 number, char text[SL_RAILS_ADDRESS], zero-padded. */
#define SL_RAILS_WORD_BYTES (24u + SL_RAILS_ADDRESS)
void sl_rails_word_encode(const sl_rails_word *w, uint8_t *out);
/* Refuses (SL_ERR_PROTOCOL) other lengths, what is no kind, no key, and text without an end. */
sl_status sl_rails_word_decode(sl_span payload, sl_rails_word *out, sl_err *err) SL_MUST_CHECK;

#endif

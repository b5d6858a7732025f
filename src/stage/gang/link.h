/* Connections between a gang's ranks on machines: who is who, jobs and answers in pieces, rows of
 * collectives. Every rank has a net of its own; rank 0 calls the others, each of them those before
 * it. docs/protocol.md has the messages. For src/stage/gang only. Thread: the owner. */
#ifndef SL_STAGE_GANG_LINK_H
#define SL_STAGE_GANG_LINK_H

#include "stage/gang/gang_int.h"
#include "stage/gang/rail.h"

#define GANG_ADDRESS   96u
#define GANG_MOST_JOBS 32u /* that a rank has been given and not answered, at most */

/* What a rank says first, to each other: in which gang it is which rank. Rank 0 says where all are.
 */
typedef struct gang_greeting {
    uint8_t gang[16];
    sl_rank rank;
    char build[64]; /* of the program: jobs are as it lays them out */
    char at[SL_MAX_RANKS][GANG_ADDRESS];
} gang_greeting;

/* A job, the answer to one, or the rows that one has left for the next rank. */
typedef struct gang_inbound {
    uint8_t *data;
    size_t len, cap;
    uint64_t number; /* of the job */
} gang_inbound;

typedef struct gang_peer {
    sl_conn *conn; /* NULL: not yet, or gone */
    bool gone;
    sl_status why; /* with `gone` */
    char text[96];
    /* A ring: n_whole from `first` on have come and are not taken yet; of the next one so many
     * pieces have. */
    gang_inbound in[GANG_MOST_JOBS + 1];
    uint32_t first, n_whole;
    uint32_t pieces, came;
} gang_peer;

/* The oldest that has come, with n_whole > 0; i: the i-th after it. */
static inline gang_inbound *gang_peer_at(gang_peer *p, uint32_t i) {
    return &p->in[(p->first + i) % SL_LEN(p->in)];
}

typedef struct gang_link {
    sl_net *net;
    sl_coll *coll; /* NULL: no gang yet */
    gang_greeting own;
    bool serves; /* it waits for a rank 0 that calls */
    uint32_t n_early;
    struct {
        sl_conn *conn;
        gang_greeting said;
    } early[SL_MAX_RANKS]; /* ranks that came before rank 0 did */
    gang_peer peer[SL_MAX_RANKS];
    uint8_t model_hash[32];
    gang_rail *rail;   /* who serves: its own; NULL: it is in no gang yet */
    size_t rows_bytes; /* of rows that the rank before this one hands on, at most; 0: it may not */
    void (*on_word)(void *ctx, uint32_t rank, const sl_rails_word *w);
    void (*tick)(void *ctx);
    uint32_t tick_us;
    void *ctx;
} gang_link;

typedef struct gang_link_opts {
    const char *host; /* to listen at; NULL: nowhere */
    uint16_t port;
    sl_span secret;
    sl_net_when encrypt;
    uint8_t model_hash[32];
    /* While it waits; NULL: never. */
    void (*tick)(void *ctx);
    uint32_t tick_us;
    /* Rank 0: what ranks say about their rails, from the net's callbacks. NULL: they say nothing.
     */
    void (*on_word)(void *ctx, uint32_t rank, const sl_rails_word *w);
    void *ctx;
} gang_link_opts;

/* In memory that stays where it is. */
sl_status gang_link_open(gang_link *l, const gang_link_opts *o, sl_err *err) SL_MUST_CHECK;
void gang_link_close(gang_link *l); /* zeroed: nothing */
/* This process cannot go on: all others hear why. To be called when nothing else is done with the
 * link but closing it. */
void gang_link_fail(gang_link *l, const sl_err *err);

/* Rank 0: calls ranks 1 to of - 1 at their addresses, for `ms` at most, those that are not there
 * yet, or busy still, again and again; all are connected with all afterwards. SL_ERR_TIMEOUT and
 * SL_ERR_PEER_DOWN name the rank, its address and why. */
sl_status gang_link_call(gang_link *l, uint32_t of, const char at[][GANG_ADDRESS], uint32_t ms,
                         sl_err *err) SL_MUST_CHECK;
/* The others: waits until a rank 0 has come, without an end, and then until all are connected. */
sl_status gang_link_answer(gang_link *l, sl_err *err) SL_MUST_CHECK;

/* SL_MSG_RANK_JOB, SL_MSG_RANK_DONE or SL_MSG_RANK_ROWS, in pieces. SL_ERR_PEER_DOWN, SL_ERR_NOMEM
 * name the rank. */
sl_status gang_link_send(gang_link *l, uint32_t rank, sl_msg_kind kind, uint64_t number,
                         const uint8_t *data, size_t len, sl_err *err) SL_MUST_CHECK;
/* A word about the rank's rail, or of rank 0's; who is gone does not hear it. */
void gang_link_say(gang_link *l, uint32_t rank, const sl_rails_word *w);
/* What the rank sends next, as gang_peer_at(.., 0), until gang_link_took. ms 0: without an end. Who
 * serves waits for nobody any more once rank 0 is gone. */
sl_status gang_link_wait(gang_link *l, uint32_t rank, uint32_t ms, sl_err *err) SL_MUST_CHECK;
void gang_link_took(gang_link *l, uint32_t rank);

#endif

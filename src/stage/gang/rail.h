/* The rail of a rank on a machine of its own (net/rails.h): its connections with its counterparts,
 * ranks of the same number of other workers' gangs, and what came by them until a job asks for it.
 * Rank 0 says who is to be called and who may call; the rank says what has come. For src/stage/gang
 * only. Thread: the rank's. */
#ifndef SL_STAGE_GANG_RAIL_H
#define SL_STAGE_GANG_RAIL_H

#include "net/rails.h"

#define GANG_MOST_PARTS 64u /* of one counterpart and kind that may wait */

typedef struct gang_rail gang_rail;

typedef struct gang_rail_opts {
    sl_net *net;                                    /* borrowed */
    uint32_t index;                                 /* of the rank */
    void (*say)(void *ctx, const sl_rails_word *w); /* to rank 0 */
    void *ctx;
} gang_rail_opts;

/* NULL: no memory. */
gang_rail *gang_rail_create(const gang_rail_opts *o) SL_MUST_CHECK;
sl_net *gang_rail_net(const gang_rail *r); /* whose blocks parts lie in */
void gang_rail_free(gang_rail *r);         /* before its net; NULL-safe */
/* Bytes of its part of a row, which what comes is to have; before that nothing may come. */
void gang_rail_set_row(gang_rail *r, size_t bytes);

/* What rank 0 wants. SL_ERR_PROTOCOL: that is none; SL_ERR_NOMEM. */
sl_status gang_rail_on_word(gang_rail *r, const sl_rails_word *w, sl_err *err) SL_MUST_CHECK;
/* What the net says, of connections that are no rank's of this gang. The payload stays the caller's
 * where *payload is not NULL afterwards. SL_ERR_PROTOCOL: it is not what is expected. */
sl_status gang_rail_on_open(gang_rail *r, sl_conn *c, sl_err *err) SL_MUST_CHECK;
sl_status gang_rail_on_message(gang_rail *r, sl_conn *c, const sl_wire_header *h, sl_buf **payload,
                               sl_err *err) SL_MUST_CHECK;
void gang_rail_on_down(gang_rail *r, sl_conn *c, const char *text);
/* Calls again those that are due. */
void gang_rail_turn(gang_rail *r);

/* What jobs want. The rank's part of a message leaves; where the connection is gone nobody waits
 * for it. Of one that stays here (key 0) it waits for the job that asks for it. SL_ERR_NOMEM. */
sl_status gang_rail_send(gang_rail *r, const sl_spread_name *what, bool back, uint32_t rows,
                         sl_buf *part, sl_err *err) SL_MUST_CHECK;
/* Its part of a message, which is the caller's now (NULL: it has no columns); those before it that
 * nobody has asked for are forgotten. False: it is not there. */
bool gang_rail_take(gang_rail *r, const sl_spread_name *what, bool back, uint32_t rows,
                    sl_buf **out);
/* Nobody asks for what stays here or came by connections that are hung up. */
void gang_rail_settle(gang_rail *r);

#endif

/* The connections of a worker with others of its plan: who calls whom, who is there, who came in
 * whose place. Thread: owner of the worker; callbacks of the fabric run inside its progress. */
#ifndef SL_ENGINE_PEERS_H
#define SL_ENGINE_PEERS_H

#include "engine/host/host.h"

/* Room for so many ids. SL_ERR_NOMEM. */
sl_status sl_peers_reserve(sl_worker *w, uint32_t n, sl_err *err) SL_MUST_CHECK;
/* Whose connection it is; NULL: nobody's. */
sl_worker_peer *sl_peers_of(const sl_worker *w, const sl_conn *c);
/* A peer proved itself. A refusal says why. */
sl_status sl_peers_on_open(sl_worker *w, sl_conn *c, const sl_hello *peer,
                           sl_err *err) SL_MUST_CHECK;
/* Its connection ended; what the loop has to know of that waits in the inbox. */
void sl_peers_on_down(sl_worker *w, sl_conn *c, sl_status why);

/* Calls those whom the plan `w` is to take, or has, makes it call and who are not there, and drops
 * connections with who was another one, or is called and does not call. */
sl_status sl_peers_connect(sl_worker *w, sl_err *err) SL_MUST_CHECK;
/* Everybody is there whom that plan connects this worker with. */
bool sl_peers_complete(const sl_worker *w);
/* A plan that holds, or comes, connects this worker with `id`; else what there is was left open. */
bool sl_peers_are_needed(const sl_worker *w, uint32_t id);
/* The coordinator says that worker `id` is lost: a connection with it, unless that is one with who
 * comes in its place, is closed as if it had ended. */
void sl_peers_lose(sl_worker *w, uint32_t id);
/* The plan was taken: whoever of it is missing by now is lost. */
void sl_peers_miss(sl_worker *w);
/* A request, a peer's word about one, or the end of a change is here: from now on a connection that
 * ends is missed, and whoever of the plan is not there is lost. Cheap, for each message. */
void sl_peers_begin_use(sl_worker *w);
/* Opens windows for what those send whom this worker exchanges rows with and who have none, when
 * its device is there (sl_worker_opts.windows). Cheap, for each turn of the loop. */
void sl_peers_open_windows(sl_worker *w);
/* Calls again who took no call, when it is time. */
void sl_peers_call_again(sl_worker *w);

#endif

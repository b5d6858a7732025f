/* One end of a measurement of the fabric: a net that counts what it is told and, as the echo,
 * sends every message back. It waits as a worker does. Thread: owner. */
#ifndef SL_NET_PROBE_H
#define SL_NET_PROBE_H

#include "net/net.h"

typedef struct sl_probe {
    sl_net *net;
    sl_conn *conn; /* the one that opened last, while it lasts */
    bool echo;
    uint64_t
        think_ns; /* of an echo: so long it thinks about what begins with another byte than 0 */
    sl_net_when sums, encrypt; /* the caller's, before the start */
    uint32_t window_slots;     /* opened for each peer over "ucx"; 0: none */
    size_t window_bytes;       /* of a slot */
    bool alone;                /* a second connection is refused while there is one */
    uint32_t opened, returned, downs;
    uint32_t closed; /* of those that had opened: of `conn` */
} sl_probe;

/* hub: of "loop", else NULL. Both ends give the same secret and other ids. p->echo is set by the
 * caller; p must stay where it is. Free with sl_net_free(p->net). */
sl_status sl_probe_start(sl_probe *p, const char *transport, sl_loop_hub *hub, const char *secret,
                         uint32_t id, sl_err *err) SL_MUST_CHECK;
/* Passes so much time without sleeping. */
void sl_probe_think(uint64_t ns);
/* The same, listening at host (NULL: nowhere) and port (0: any); sl_probe_start: at 127.0.0.1. */
sl_status sl_probe_start_at(sl_probe *p, const char *transport, sl_loop_hub *hub, const char *host,
                            uint16_t port, const char *secret, uint32_t id,
                            sl_err *err) SL_MUST_CHECK;
/* What has come is handled; else waits a moment. */
void sl_probe_step(sl_probe *p);
/* Steps until the counter (opened, returned) is `want` at least: true; false when a connection
 * ended or until_ns has come. */
bool sl_probe_await(sl_probe *p, const uint32_t *counter, uint32_t want, uint64_t until_ns);
/* A message of so many bytes, of which only the first is written: what is measured is the fabric.
 */
sl_status sl_probe_send(sl_probe *p, sl_conn *to, size_t bytes, int fill,
                        sl_err *err) SL_MUST_CHECK;

#endif

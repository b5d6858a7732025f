/* The transports of this program, a row each: what they can do, as those who choose one need to
 * know. A new transport is a folder of src/net and a row of transports.c. Thread: any. */
#ifndef SL_NET_TRANSPORTS_H
#define SL_NET_TRANSPORTS_H

#include "net/net.h"

typedef struct sl_transport sl_transport;

typedef struct sl_transport_kind {
    const char *name;
    bool threads; /* its nets are threads of one process and share a hub; else they are processes */
    const char *machines; /* not NULL: it has hosts and ports and reaches other machines; a profile
                             calls its links between machines so */
    bool windows;         /* payloads can be put into memory of the receiver (net/window.h) */
    const char *needs;    /* not NULL: this program was built without that */
    sl_status (*create)(sl_net *n, const sl_net_opts *o, sl_transport **out, sl_err *err);
    void (*setup_process)(void); /* NULL: nothing to set up; see sl_net_setup_process */
} sl_transport_kind;

/* Row i; NULL past the last. In the order of preference where several would do, those of processes
 * first (processes are forked before there are threads). */
const sl_transport_kind *sl_transport_at(size_t i);

/* NULL, with an error that names those there are: none has this name (NULL: none either), or with
 * `machines` none that reaches other machines. One that this program was built without is found. */
const sl_transport_kind *sl_transport_find(const char *name, bool machines, sl_err *err);

#endif

/* A worker: one process (or thread, over "loop") that hosts stages and runs the one loop of the engine:
 * receive, queue, pick, execute, dispatch. The coordinator tells it what it hosts.
 * Thread: sl_worker_run owns everything it makes. */
#ifndef SL_ENGINE_WORKER_H
#define SL_ENGINE_WORKER_H

#include "base/span.h"
#include "base/status.h"
#include "net/net.h"

typedef struct sl_worker_opts {
    const char *coordinator;  /* address to join */
    const char *transport;    /* "loop", "shm", "tcp" */
    sl_loop_hub *hub;         /* for "loop" */
    const char *host;         /* fabric address to bind */
    sl_span secret;
    const char *model_folder; /* NULL or "": the coordinator's path */
    const char *isa;          /* NULL or "": best */
    uint32_t threads;         /* 0: as the plan says */
    uint32_t wanted;          /* worker id of the plan to take; SL_NO_WORKER: any that is free */
} sl_worker_opts;

/* Joins, serves until told to stop (SL_OK), or until the coordinator is lost (SL_ERR_PEER_DOWN). */
sl_status sl_worker_run(const sl_worker_opts *o, sl_err *err) SL_MUST_CHECK;

/* Counters a worker reports in SL_MSG_STATS, u64 little-endian in this order. */
#define SL_WORKER_COUNTERS(X)                                                                      \
    X(attention_rows)                                                                              \
    X(expert_rows)                                                                                 \
    X(rounds)                                                                                      \
    X(tokens)                                                                                      \
    X(sent_bytes)                                                                                  \
    X(received_bytes)                                                                              \
    X(sent_messages)                                                                               \
    X(received_messages)                                                                           \
    X(execute_us)                                                                                  \
    X(pack_us)                                                                                     \
    X(poll_us)                                                                                     \
    X(sleep_us)                                                                                    \
    X(wall_us)                                                                                     \
    X(rows_created)                                                                                \
    X(rows_merged)                                                                                 \
    X(rows_cancelled)                                                                              \
    X(rows_lost)                                                                                   \
    X(rows_stale)

#endif

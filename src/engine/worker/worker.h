/* A worker: one process (or thread, over "loop") that hosts stages and runs the one loop of the
 * engine: receive, queue, pick, execute, dispatch. The coordinator tells it what it hosts. Thread:
 * sl_worker_run owns everything it makes. */
#ifndef SL_ENGINE_WORKER_H
#define SL_ENGINE_WORKER_H

#include "base/span.h"
#include "base/status.h"
#include "net/net.h"
#include "sched/watch.h"
#include "stage/stage.h"

typedef struct sl_worker_opts {
    const char *coordinator; /* address to join */
    const char *transport;   /* "loop", "shm", "tcp" */
    sl_loop_hub *hub;        /* for "loop" */
    const char *host;        /* fabric address to bind */
    uint16_t port;           /* and port; 0: any free one */
    const char *advertise;   /* see sl_net_opts */
    const char *rails;       /* see sl_rails_opts.hosts; NULL or "": at `host` */
    sl_span secret;
    const char *model_folder;  /* NULL or "": the coordinator's path */
    const char *isa;           /* as of sl_kernels_select; NULL or "": its base */
    uint32_t threads;          /* 0: as the plan says */
    uint32_t wanted;           /* worker id of the plan to take; SL_NO_WORKER: any that is free */
    sl_clock clock;            /* zeroed: the real one */
    sl_device_maker device;    /* zeroed: as the plan says */
    int kv_fd;                 /* as of sl_device_opts; 0: KV ends with the worker, unless... */
    struct sl_keep *keep;      /* ...it is kept (engine/attn/keep.h); sl_worker_run makes one */
    const char *kv_disk;       /* NULL or "", or: cached pages outlive it in this folder... */
    uint64_t kv_disk_bytes;    /* ...at most so many; 0: all of them */
    struct sl_kv_disk *disk;   /* that (engine/attn/disk.h); sl_worker_run makes one */
    const sl_watch *watch;     /* sees what its schedulers decide; NULL: nobody */
    double silence_limit_s;    /* see sl_net_opts; 0: its default */
    sl_net_when sums, encrypt; /* see sl_net_opts */
    bool windows;              /* see sl_net_opts */
    int32_t parent;            /* process of the coordinator, if that started this one; else 0 */
    uint32_t join_timeout_s;   /* sl_worker_run: a coordinator that is not there is tried so long */
    uint32_t rejoin_s;         /* one that was lost is looked for so long; not by its children */
    bool supervised;           /* a service manager is told of each turn (base/notify.h) */
    /* Hears, on this thread, how far the weights are read: bytes in memory, of all that this worker
     * has; total 0: they are no longer waited for. NULL: nobody. */
    sl_progress_fn progress;
    void *progress_ctx;
    int32_t cpu; /* run on CPU cpu - 1; 0: as the plan says; -1: as sl_topology_pick says */
    int numa; /* its weights are moved to its memory node (1), are not (-1); 0: as the plan says */
} sl_worker_opts;

/* Joins, serves until told to stop (SL_OK), or until the coordinator is lost (SL_ERR_PEER_DOWN) and
 * none takes its place within rejoin_s: that one gets a worker with another incarnation, which
 * tells it of which requests it has kept KV. The coordinator may start later than the worker: see
 * join_timeout_s. */
sl_status sl_worker_run(const sl_worker_opts *o, sl_err *err) SL_MUST_CHECK;

/* The same in steps, for a caller that owns the loop (the simulation): `o` stays valid until free.
 */
typedef struct sl_worker sl_worker;
sl_status sl_worker_create(const sl_worker_opts *o, sl_worker **out, sl_err *err) SL_MUST_CHECK;
/* One turn: receives what is there and runs at most one task. False: there was nothing to do. */
bool sl_worker_step(sl_worker *w);
/* Whether it was told to stop or cannot go on; *status and *err then say why. */
bool sl_worker_stopped(const sl_worker *w, sl_status *status, sl_err *err);
/* Says goodbye to its peers; with `crash` it vanishes without a word, as a killed process does. */
void sl_worker_free(sl_worker *w, bool crash);

#endif

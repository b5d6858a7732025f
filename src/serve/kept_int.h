/* Inside of kept answers: what is kept of one, for those files that write it down and read it
 * again. kept.c has its life; kept_log.c what the journal is told of it; resume.c makes it from a
 * journal; keeper.c writes the journal anew. */
#ifndef SL_SERVE_KEPT_INT_H
#define SL_SERVE_KEPT_INT_H

#include "serve/journal_records.h"
#include "serve/server_int.h"

/* The tokens of one choice. */
typedef struct sl_kept_track {
    sl_kept *kept;
    uint32_t index;
    uint32_t most;       /* max_tokens */
    size_t room, stride; /* tokens; log-probabilities of one */
    size_t whole_room;   /* resume.c: what it takes to go on */
    sl_pace pace;

    /* under kept->lock */
    uint32_t *id;        /* [room] */
    sl_logprob *logprob; /* [room][stride] */
    size_t n, n_settled; /* settled: may be shown, with SL_SYNC_EACH */
    bool submitted;      /* engine_id is valid */
    uint64_t engine_id;
    uint32_t n_found; /* as of a choice */
    sl_finish last;
    bool natural; /* it drew its last token: also one that is cancelled meanwhile has its end */
} sl_kept_track;

struct sl_kept {
    sl_server *server;
    atomic_uint refs; /* the store, every claim, every choice that runs */
    sl_journal_digest caller, key;
    bool has_key;
    bool resumed;    /* a coordinator that is gone accepted it */
    uint64_t number; /* in the journal; 0: there is none */
    const sl_dialect *dialect;
    sl_jbuf body;
    char id[SL_JOURNAL_ID_BYTES];
    uint64_t created, seed, start_ns;
    size_t n_prompts;
    sl_ids *prompt; /* [n_prompts] */
    size_t n_tracks;
    sl_kept_track *track; /* [n_tracks] */

    /* under store->lock */
    sl_kept *next;
    bool listed;
    size_t bytes;      /* of all this */
    uint32_t n_claims; /* calls that read it, or are about to */
    uint64_t left_ns;  /* when the last of them left */
    uint64_t ended_ns; /* 0: it runs */

    pthread_mutex_t lock;
    sl_call *readers;
    size_t n_running;
    bool cancelled; /* nobody came back */
    bool given_up;  /* by its client, who said so */
    bool refused;   /* the engine did not take it: it never ran */
    sl_status failed;
    char why[512];          /* with `failed` */
    bool dropped;           /* the journal knows that it is no longer kept */
    uint32_t renewal;       /* of the journal, that has it */
    uint64_t ended_s;       /* when the last choice ended that has */
    uint64_t upto, settled; /* of the journal: what it wrote last; what is durable */
};

/* Of n tokens. */
static inline size_t sl_kept_track_bytes(const sl_kept_track *t, size_t n) {
    return n * (sizeof *t->id + t->stride * sizeof *t->logprob);
}

/* kept.c */
/* One with so many prompts and choices, empty, and with the store's reference. NULL: no memory. */
sl_kept *sl_kept_new(sl_server *s, size_t n_prompts, size_t n_tracks) SL_MUST_CHECK;
void sl_kept_hold(sl_kept *k);
void sl_kept_release(sl_kept *k); /* NULL-safe */
/* Into the store; under its lock. */
void sl_kept_list(sl_kept *k);
/* Ended ones, the oldest first, are forgotten until the store is within its bounds. */
void sl_kept_fit(sl_server *s);
/* All choices have ended: what was reserved and is not needed is given back. */
void sl_kept_trim(sl_kept *k);

/* The caller's own answer of that id and the call's dialect, with a reference; NULL: none. */
sl_kept *sl_kept_borrow(sl_call *call, const char *id);
/* It is no longer kept; what runs of it is cancelled, and who reads it hears so. */
void sl_kept_give_up(sl_kept *k);

/* kept_log.c: nothing happens without a journal */
/* It is accepted; where the lists of the store do not change. False: it is not in the journal. */
bool sl_kept_log_open(sl_kept *k);
/* Tokens of a choice from the `from`-th on, and its end, if it has ended by itself; under the
 * answer's lock. */
void sl_kept_log_tokens(sl_kept *k, const sl_kept_track *t, size_t from);
/* It is no longer kept. */
void sl_kept_log_drop(sl_kept *k);
/* All of it into the journal that is written anew; false: that cannot be written. */
bool sl_kept_log_copy(sl_kept *k);

#endif

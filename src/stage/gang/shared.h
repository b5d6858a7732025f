/* Jobs in memory that processes share: what a job points to is copied into a block of it, and
 * pointers become places there, which every process finds by its own mapping. For src/stage/gang
 * only. Thread: the owner of the memory. */
#ifndef SL_STAGE_GANG_SHARED_H
#define SL_STAGE_GANG_SHARED_H

#include "stage/gang/gang_int.h"

#define GANG_MAX_BLOCKS 256u

typedef struct gang_block {
    uint8_t *at; /* here; NULL: there is no such block */
    size_t bytes;
} gang_block;

/* What of it this process has mapped, by number. */
typedef struct gang_memory {
    gang_block block[GANG_MAX_BLOCKS];
} gang_memory;

/* Maps the file as a block that is not there yet, and closes it. SL_ERR_PROTOCOL: there is, or
 * cannot be, such a block; SL_ERR_NOMEM. */
sl_status gang_memory_map(gang_memory *m, uint32_t id, int fd, size_t bytes,
                          sl_err *err) SL_MUST_CHECK;
void gang_memory_unmap(gang_memory *m, uint32_t id); /* id < GANG_MAX_BLOCKS */
void gang_memory_free(gang_memory *m);
/* The block in which that lies, and where. */
bool gang_memory_find(const gang_memory *m, const uint8_t *what, uint32_t *block, uint64_t *at);

/* Bytes of a block that what the job points to needs. spec: of the ranks' model; GANG_OPEN has
 * none. */
size_t gang_job_bytes(const gang_job *j, const sl_model_spec *spec);
/* Of these, the bytes up to the end of what is read there: room for results comes last. */
size_t gang_job_filled(const gang_job *j, const sl_model_spec *spec);
/* Copies it there. Rows of the job lie in blocks of m. */
void gang_job_pack(const gang_memory *m, uint32_t area, const gang_job *j,
                   const sl_model_spec *spec, gang_job *out);

/* A router ends the run, whose rows leave for other experts. */
static inline bool gang_run_routes(const gang_job *j) {
    return j->run.n_steps > 0 && j->run.step[j->run.n_steps - 1].op == SL_OP_ROUTE;
}

/* Blocks of a run that compute inside. */
static inline uint32_t gang_run_inside(const gang_job *j) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->run.n_steps; i++) n += j->run.step[i].op == SL_OP_INSIDE;
    return n;
}

/* Whether rows.expert is written: by a router that ends the run, or by a block inside. */
static inline bool gang_run_chooses(const gang_job *j) {
    return gang_run_inside(j) > 0 || gang_run_routes(j);
}

/* Whether all ranks have the stream as the run leaves it. */
static inline bool gang_run_shares(const gang_job *j) {
    uint32_t i = j->run.n_steps;
    while (i > 0 && j->run.step[i - 1].op == SL_OP_ROUTE) i--;
    return i > 0 && j->run.step[i - 1].shares;
}

/* Whether rank 0 is told when the job is through. It need not be of a run after which all ranks
 * have the stream: the next job waits for that, so that a rank has no more than two such before it.
 * Nor of what leaves something at ranks alone: a block has few such between its meetings. */
static inline bool gang_job_is_answered(const gang_job *j) {
    if (j->kind == GANG_SPREAD || j->kind == GANG_SETTLE) return false;
    if (j->kind == GANG_CALL && j->call.stays) return false;
    return j->kind != GANG_RUN || !j->run.together || !gang_run_shares(j);
}

/* Whether what such a job points to travels with it. */
static inline bool gang_job_has_lists(gang_job_kind kind) {
    return kind != GANG_MAP && kind != GANG_UNMAP && kind != GANG_LEAVE && kind != GANG_SETTLE;
}

/* Arrays of pointers, which each process has for itself. */
typedef struct gang_pointers {
    const uint32_t **pages;
    sl_stage_part *part;
    size_t n_pages, n_parts;
} gang_pointers;

/* The job as this process sees it, until the next one. SL_ERR_NOMEM. */
sl_status gang_job_unpack(const gang_memory *m, uint32_t area, const gang_job *in, gang_pointers *p,
                          gang_job *out, sl_err *err) SL_MUST_CHECK;
void gang_pointers_free(gang_pointers *p);

/* What the ranks beside the first wrote for the caller of a packed job goes to where he wants it;
 * n_ranks: of the gang. */
void gang_job_take_back(const gang_memory *m, uint32_t area, const gang_job *packed,
                        const gang_job *j, const sl_model_spec *spec, uint32_t n_ranks);

/* ---- descriptors between processes ---- */

/* Sends n bytes with a descriptor, which stays the caller's. SL_ERR_PEER_DOWN. */
sl_status gang_send(int socket, const void *what, size_t n, int fd, sl_err *err) SL_MUST_CHECK;
/* Receives exactly n with one, within ten seconds; the caller closes it. SL_ERR_PEER_DOWN,
 * SL_ERR_TIMEOUT, SL_ERR_PROTOCOL. */
sl_status gang_receive(int socket, void *what, size_t n, int *fd, sl_err *err) SL_MUST_CHECK;
/* The process at the other end has ended. */
bool gang_has_hung_up(int socket);

/* What a rank hears first; the board comes with it. */
typedef struct gang_hello {
    sl_rank rank;
    int32_t parent;
    uint64_t bytes;
} gang_hello;

/* Comes with a block's file; the job GANG_MAP that names it follows, unless something failed in
 * between: then the next ones do. */
typedef struct gang_delivery {
    uint64_t number; /* from 1 */
} gang_delivery;

/* The file of that delivery, of so many bytes; those before it, which no job named, are closed.
 * Errors as gang_receive's, and SL_ERR_PROTOCOL of another file than that. */
sl_status gang_receive_block(int socket, uint64_t number, size_t bytes, int *fd,
                             sl_err *err) SL_MUST_CHECK;

#endif

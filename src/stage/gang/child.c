/* A rank that is a process: started by its gang's worker (processes.c), it maps the memory that
 * all share, does what it is told, and ends with the worker. */
#include "stage/gang/shared.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/memfd.h"
#include "stage/gang.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct child {
    gang_rank rank;
    int socket;
    gang_memory memory;
    gang_pointers pointers;
} child;

static bool is_gone(void *ctx, uint32_t rank) {
    const child *c = ctx;
    return rank == 0 && gang_has_hung_up(c->socket);
}

/* Whoever it is, rank 0 knows it too, or is it: the worker says why it ends. */
static void lost(gang_rank *r, const sl_err *err) {
    sl_log(err->code == SL_ERR_PEER_DOWN ? SL_LOG_INFO : SL_LOG_ERROR, "gang", "rank %u of %u: %s",
           r->is.index, r->is.of, err->msg);
    _exit(1);
}

static sl_status read_job(gang_rank *r, gang_job *out, sl_err *err) {
    child *c = r->ctx;
    const gang_job_kind kind = r->board->job.kind;
    if (kind == GANG_MAP || kind == GANG_UNMAP) {
        *out = r->board->job;
        return SL_OK;
    }
    return gang_job_unpack(&c->memory, r->board->area, &r->board->job, &c->pointers, out, err);
}

/* The block came before the job. */
static sl_status map(gang_rank *r, const gang_job *j, sl_err *err) {
    child *c = r->ctx;
    int fd;
    if (j->kind == GANG_UNMAP) {
        gang_memory_unmap(&c->memory, j->map.id);
        return SL_OK;
    }
    sl_status st = gang_receive_block(c->socket, j->map.delivery, j->map.bytes, &fd, err);
    if (st != SL_OK) return st;
    gang_memory_unmap(&c->memory, j->map.id); /* of an attempt that another rank did not follow */
    return gang_memory_map(&c->memory, j->map.id, fd, j->map.bytes, err);
}

static sl_status take_board(child *c, sl_err *err) {
    gang_hello hello;
    int fd;
    sl_status st = gang_receive(c->socket, &hello, sizeof hello, &fd, err);
    if (st != SL_OK) return st;
    const bool right = sl_ranks_can_be(hello.rank.of) && hello.rank.index > 0 &&
                       hello.rank.index < hello.rank.of &&
                       hello.bytes == gang_board_bytes(hello.rank.of);
    if (!right)
        st = sl_fail(err, SL_ERR_PROTOCOL, "rank %u of %u with a board of %llu bytes",
                     hello.rank.index, hello.rank.of, (unsigned long long)hello.bytes);
    if (st == SL_OK) st = sl_memfd_check(fd, hello.bytes, err);
    if (st == SL_OK && !(c->rank.board = sl_memfd_map(fd, hello.bytes)))
        st = sl_fail(err, SL_ERR_NOMEM, "mapping %llu bytes of a gang",
                     (unsigned long long)hello.bytes);
    close(fd);
    c->rank.is = hello.rank;
    /* It may have ended before this process asked to hear of it. */
    if (st == SL_OK && getppid() != hello.parent)
        st = sl_fail(err, SL_ERR_PEER_DOWN, "the gang's worker has ended");
    return st;
}

/* What ends a terminal's or a service's processes ends the worker, perhaps after a while in which
 * it has a rank to compute with. */
static void end_with_the_worker(void) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

sl_status sl_gang_run_rank(int fd, sl_err *err) {
    child *c = sl_alloc(1, sizeof *c);
    char who[32];
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "a rank");
    end_with_the_worker();
    c->socket = fd;
    c->rank.ctx = c;
    c->rank.read = read_job;
    c->rank.map = map;
    c->rank.lost = lost;
    sl_status st = take_board(c, err);
    if (st == SL_OK) {
        snprintf(who, sizeof who, "rank %u of %u", c->rank.is.index, c->rank.is.of);
        sl_log_set_who(who);
        const sl_coll_opts o = {.rank = c->rank.is,
                                .poll_ns = gang_poll_ns(c->rank.is.of),
                                .deadline_ms = GANG_DEADLINE_MS,
                                .is_gone = is_gone,
                                .ctx = c};
        st = gang_rank_open(&c->rank, &o, err);
    }
    if (st == SL_OK) st = gang_rank_serve(&c->rank, err);
    gang_rank_close(&c->rank);
    gang_memory_free(&c->memory);
    gang_pointers_free(&c->pointers);
    if (c->rank.board) sl_memfd_unmap(c->rank.board, gang_board_bytes(c->rank.is.of));
    close(fd);
    sl_free(c);
    return st;
}
